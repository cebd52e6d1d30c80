"""Reconcile measurements that disagree: what each supports, and what adds up to the epoch.

They are read from a YAML file that describes two trainings and what was measured of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from deltacell.errors import InputError
from deltacell.profile.explain.account import Account, compare
from deltacell.profile.say import say
from deltacell.words import listed, ratio_text

LARGEST_FILE = 1 << 20
CLOSE = 0.04  # ratios that differ by less than this share are equal up to rounding
NOT_MEASURED = "not measured (validation, figures, checkpoints)"  # the rest of an epoch
PERS = ("step", "sample", "epoch")

Unit = Literal["s", "ms", "it/s", "epochs per day"]
Mode = Literal["train", "step", "forward", "data", "fixed", "empty"]
# What can be measured: its units, the default first, the default mode, and what its ratio is of.
MEASURED: dict[str, tuple[tuple[Unit, ...], Mode | None, str]] = {
    "epoch seconds": (("s", "epochs per day"), "train", "the wall time of a whole epoch"),
    "it/s": (("it/s",), "train", "the training steps alone"),
    "ms per step": (("ms", "s"), "train", "the training steps alone"),
    "trace sum": (("ms", "s"), None, "self times of a trace"),
    "loader only": (("it/s", "ms", "s"), "data", "the loader alone"),
    "loader+model": (("it/s", "ms", "s"), None, "loader and model"),
    "saved batch": (("ms", "s", "it/s"), "fixed", "the full step on a batch in memory"),
}
_RATES = {"it/s": 1.0, "epochs per day": 86_400.0}  # seconds in which a rate counts

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]
Count = Annotated[int, msgspec.Meta(gt=0, lt=10**15)]
Name = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Conditions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a time depends on: a reading overrides its measurement, which overrides the side."""

    batch: Count | None = None  # of one process
    ranks: Count | None = None
    parameters: Count | None = None
    window_steps: Count | None = None  # the steps covered
    startup_seconds: Positive | None = None  # start-up of the profiler, all of it in one step

    @property
    def samples_per_step(self) -> int | None:
        return self.batch * self.ranks if self.batch and self.ranks else None


class Side(Conditions, forbid_unknown_fields=True, kw_only=True):
    """One of the two trainings, with its real conditions."""

    name: Name
    steps_per_epoch: Count | None = None

    @property
    def samples_per_epoch(self) -> int | None:
        """Steps times batch times ranks, with the last step counted as full."""
        samples = self.samples_per_step
        return self.steps_per_epoch * samples if self.steps_per_epoch and samples else None


class Reading(Conditions, forbid_unknown_fields=True, kw_only=True):
    """What was measured of one side, with conditions that differ from the real training."""

    value: Positive = 0.0
    readings: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = ()

    @property
    def warmup(self) -> int:
        """The number of leading readings far from the median of the second half."""
        half = len(self.readings) // 2
        usual = float(np.median(self.readings[half:])) if half else 0.0
        steady = (i for i in range(half) if usual / 1.5 <= self.readings[i] <= 1.5 * usual)
        return next(steady, half)

    @property
    def steady(self) -> float:
        """The median of the readings that are not warm-up; without readings, the value."""
        return float(np.median(self.readings[self.warmup :])) if self.readings else self.value

    @property
    def is_mean_with_warmup(self) -> bool:
        """Whether the value is the average of all readings, including warm-up."""
        return self.warmup > 0 and math.isclose(np.mean(self.readings), self.value, rel_tol=0.02)


class Measurement(Conditions, forbid_unknown_fields=True, kw_only=True):
    """One comparison of the two trainings."""

    name: Name
    measured: Literal[tuple(MEASURED)]  # type: ignore[valid-type]
    a: Positive | Reading
    b: Positive | Reading
    unit: Unit | None = None
    mode: Mode | None = None
    sum: Literal["nested", "self"] | None = None
    claimed: Positive | None = None  # the ratio of B to A that people derived from it

    def seconds(self, value: float) -> float:
        if self.unit in _RATES:
            return _RATES[self.unit] / value
        return value / 1e3 if self.unit == "ms" else value

    def seconds_per_step(self, reading: Reading) -> float | None:
        """Return the time of a step, without the step in which a profiler starts."""
        seconds = self.seconds(reading.steady if reading.is_mean_with_warmup else reading.value)
        if self.measured != "trace sum":
            return None if self.measured == "epoch seconds" else seconds
        start, steps = reading.startup_seconds, reading.window_steps
        if steps is None:
            return None
        return seconds / steps if start is None else (seconds - start) / (steps - 1)


class Measurements(msgspec.Struct, forbid_unknown_fields=True):
    """Two trainings and all measurements, in the order of the file."""

    a: Side
    b: Side
    measurements: Annotated[tuple[Measurement, ...], msgspec.Meta(min_length=1)]


class Figure:
    """One measurement, made comparable.

    ``times`` are seconds of A and of B per ``step``, ``sample`` and ``epoch`` (the samples of a
    real epoch at this rate). ``supports`` is the ratio of B to A, ``per`` one of these, that the
    measurement supports; ``of`` is what it is a ratio of, or why there is none.
    """

    def __init__(self, measurement: Measurement, given: Measurements) -> None:
        self.measurement = m = measurement
        self.readings = [one for one in (m.a, m.b) if isinstance(one, Reading)]
        self.pairs = list(zip((given.a, given.b), self.readings, strict=True))
        self.times = [self._times(side, reading) for side, reading in self.pairs]
        a, b = (m.seconds(reading.value) for reading in self.readings)
        self.raw_ratio = b / a  # of the values in the file
        self.claim = f"{m.claimed:g}x" if m.claimed else ratio_text(self.raw_ratio)
        self.of, self.per = MEASURED[m.measured][2], None
        others = [s.name for s, r in self.pairs if s.parameters not in (None, r.parameters)]
        trained = [(s.batch, s.parameters) for s, _ in self.pairs]
        self.is_as_trained = trained == [(r.batch, r.parameters) for r in self.readings]
        if m.sum == "nested":
            self.of = "a sum over nested events is not a time"
        elif any(reading.is_mean_with_warmup for reading in self.readings):
            self.of = "the average includes warm-up"
        else:
            if m.measured == "loader+model" and m.mode is not None:
                self.of += f" in mode '{m.mode}'"
            if others:
                self.of += f", with another model of {listed(others)} than the one that trained"
            pers = ("epoch",) if m.measured == "epoch seconds" else ("sample", "step")
            self.per = next((per for per in pers if self.ratio(per) is not None), None)
        self.supports = None if self.per is None else self.ratio(self.per)

    def _times(self, side: Side, reading: Reading) -> dict[str, Any]:
        m, samples, sample = self.measurement, side.samples_per_epoch, None
        if m.measured == "epoch seconds":
            epoch = m.seconds(reading.value)
            sample = epoch / samples if samples else None
            return {"step": None, "sample": sample, "epoch": epoch}
        step = None if m.sum == "nested" else m.seconds_per_step(reading)
        if step is not None and reading.samples_per_step:
            sample = step / reading.samples_per_step
        return {"step": step, "sample": sample, "epoch": sample and samples and sample * samples}

    def ratio(self, per: str) -> float | None:
        a, b = (times[per] for times in self.times)
        return None if a is None or b is None else b / a

    def to_json(self) -> dict[str, Any]:
        m = self.measurement
        times = [{f"{per}_s": value for per, value in of.items()} for of in self.times]
        return {
            **{name: getattr(m, name) for name in ("name", "measured", "mode", "claimed")},
            **dict(zip("ab", times, strict=True)),
            **{f"{per}_ratio": self.ratio(per) for per in PERS},
            **{"supports": self.supports, "per": self.per, "of": self.of},
        }

    def problems(self, whole: Figure | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the kinds of reasons why a comparison by it is invalid, with values for sentences.

        ``whole`` is the figure of the steps of the real training, if any.
        """
        m, (ra, rb) = self.measurement, self.readings

        def differ(what: str) -> bool:
            in_a, in_b = getattr(ra, what), getattr(rb, what)
            return bool(in_a and in_b and in_a != in_b)

        if m.sum == "nested":
            levels = []
            for at, (side, r) in enumerate(self.pairs):
                nested, step = m.seconds_per_step(r), whole and whole.times[at]["step"]
                if nested and step:
                    levels.append(f"{nested / step:.0f} times the step of {side.name}")
            yield "nested_sum", {"levels": levels}
        if differ("window_steps"):
            yield "unequal_windows", {}
        for side, r in self.pairs:
            if r.startup_seconds is not None:
                yield "profiler_start", {"side": side, "r": r}
            if r.warmup:
                yield "warmup_average", {"side": side, "r": r}
            if side.parameters not in (None, r.parameters):
                yield "other_model", {"side": side, "r": r}
        if differ("ranks"):
            yield "ranks", {}
        if differ("samples_per_step") and self.supports and self.ratio("step"):
            yield "batch_sizes", {}
        if m.measured == "saved batch":
            batches = [
                f"{r.batch} where {side.name} trained with {side.batch}"
                for side, r in self.pairs
                if side.batch not in (None, r.batch)
            ]
            yield "no_loader", {"batches": batches}
        if m.measured == "loader+model" and m.mode != "train":
            yield "forward_only" if m.mode == "forward" else "not_whole", {}
        ratios = [ratio for ratio in (self.raw_ratio, *map(self.ratio, PERS)) if ratio]
        if m.claimed and not any(math.isclose(m.claimed, x, rel_tol=CLOSE) for x in ratios):
            yield "claim_differs", {}


def read_measurements(path: str | os.PathLike[str]) -> Measurements:
    """Read and check a YAML file of measurements; the how-to on slow runs describes its keys."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"the file is larger than {LARGEST_FILE:,} bytes")
        given = msgspec.yaml.decode(path.read_bytes(), type=Measurements)
    except (OSError, msgspec.DecodeError, RecursionError, ValueError) as error:
        what = " ".join(str(error).split())
        raise InputError(what, code="not-measurements", where=path) from error
    for one in given.measurements:
        units, mode, _ = MEASURED[one.measured]
        one.unit, one.mode = one.unit or units[0], one.mode or mode
        one.a, one.b = (_filled(one, x, y) for x, y in ((one.a, given.a), (one.b, given.b)))
        what = "" if one.unit in units else f"the unit is {one.unit}; expected {', '.join(units)}"
        if (one.sum is None) == (one.measured == "trace sum"):
            what = "'sum' is required for a 'trace sum', and only for it"
        for x in (one.a, one.b):
            start, steps = x.startup_seconds or 0.0, x.window_steps or 0
            if not x.value:
                what = "'a' or 'b' has neither a 'value' nor 'readings'"
            elif start and (one.unit in _RATES or steps < 2 or start >= one.seconds(x.value)):
                what = "'startup_seconds' needs a longer time, and window_steps of 2 or more"
        if what:
            raise InputError(f"'{one.name}': {what}", code="wrong-measurement", where=path)
    return given


def _filled(one: Measurement, value: float | Reading, side: Side) -> Reading:
    reading = value if isinstance(value, Reading) else Reading(value=value)
    reading.value = reading.value or reading.steady
    for name in Conditions.__struct_fields__:
        known = getattr(reading, name) or getattr(one, name) or getattr(side, name)
        setattr(reading, name, known)
    return reading


def reconcile(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return one consistent account of the measurements in a YAML file, JSON-serialisable.

    ``comparison`` is the waterfall between the ``accounts`` of the two trainings, or None if no
    step of the real training was measured. ``advice`` lists what to measure.
    """
    given = read_measurements(path)
    a, b = given.a, given.b
    figures = [Figure(one, given) for one in given.measurements]
    epoch = _first(figures, "epoch seconds")
    whole = _first(figures, "it/s", "ms per step")
    accounts = _accounts(figures, epoch, whole)
    has_parts = bool(accounts) and "data loading" in accounts[0].parts
    compared = compare(*accounts) if accounts else None
    ratio = None if compared is None else compared.epoch_ratio
    same_data = None
    if a.samples_per_epoch and b.samples_per_epoch:
        more = a.samples_per_epoch - b.samples_per_epoch
        # The last step of an epoch may be short, so each number is known up to one step.
        same_data = -(b.samples_per_step or 0) < more < (a.samples_per_step or 0)
    found: list[tuple[Figure | None, str, dict[str, Any]]] = []
    found += [(None, "different_data", {})] if same_data is False else []
    found += [(x, *one) for x in figures for one in x.problems(whole)]
    names = {"a": a.name, "b": b.name}
    evidence = [] if ratio is None else [f"{ratio.line}."]
    if has_parts:
        evidence += [*(say("step is", x=account) for account in accounts), say("marginal costs")]
    if same_data:
        evidence.append(say("same data", a=a, b=b))
    if compared is None:
        supported = [one for one in figures if one.supports is not None]
        sentence = say("not reconciled", figures=supported, **names)
    elif ratio is None or epoch is None:
        sentence = say("reconciled steps", x=compared.steps, **names)
    else:
        times, outside = [x.epoch_s for x in accounts], [x.outside_s for x in accounts]
        sentence = say("reconciled epochs", x=ratio, times=times, **names)
        if min(outside) < 0:
            account = accounts[0] if outside[0] < 0 else accounts[1]
            found.append((None, "steps_longer_than_epoch", {"account": account}))
        elif not math.isclose(ratio.of_steps, ratio.epoch, rel_tol=CLOSE):
            found.append((None, "outside_the_steps", {"ratio": ratio, "outside": outside}))
    is_outside = ratio is not None and max(ratio.outside_share_a, ratio.outside_share_b) > 0.1
    advice = {"time outside": is_outside, "measure epoch": epoch is None}
    advice |= {"measure steps": whole is None, "time phases": has_parts}
    contradictions = []
    for x, kind, values in found:
        m = None if x is None else x.measurement
        said = say(f"wrong {kind}", **values, a=a, b=b, x=x, m=m)
        contradictions.append({"kind": kind, "measurement": m and m.name, "sentence": said})
    return {
        **{"sentence": sentence, "evidence": evidence, **names},
        "advice": [say(key) for key, is_wanted in advice.items() if is_wanted],
        "measurements": [one.to_json() for one in figures],
        "contradictions": contradictions,
        "accounts": [account.to_json() for account in accounts],
        "comparison": None if compared is None else compared.to_json(),
    }


def _first(figures: list[Figure], *kinds: str) -> Figure | None:
    return next((one for one in figures if one.measurement.measured in kinds), None)


def _accounts(figures: list[Figure], epoch: Figure | None, whole: Figure | None) -> list[Account]:
    """Return the accounts of both trainings; none if no step of them was measured.

    A step is split by the loader alone and by the loader with the forward, if these were measured
    with the models and batches of the real training.
    """
    if whole is None or whole.ratio("step") is None:
        return []
    usable = [x for x in figures if x.supports is not None and x.is_as_trained]
    loader, forward = _first(usable, "loader only"), None
    if loader is not None:
        ranks = [reading.ranks for reading in loader.readings]
        alike = [x for x in usable if [reading.ranks for reading in x.readings] == ranks]
        forward = _first([x for x in alike if x.measurement.mode == "forward"], "loader+model")
    accounts = []
    for at, (side, _) in enumerate(whole.pairs):
        alone, both, took = (None if x is None else x.times[at] for x in (loader, forward, epoch))
        step = whole.times[at]["step"]
        parts = {"training step": step}
        if alone is not None:
            parts = {"data loading": alone["step"]}
            parts |= {} if both is None else {"forward": both["step"] - alone["step"]}
            parts["rest of the step"] = step - (both or alone)["step"]
        outside = {}
        if took is not None and side.steps_per_epoch:
            outside = {NOT_MEASURED: took["epoch"] - side.steps_per_epoch * step}
        facts = {"batch": side.batch, "ranks": side.ranks, "parameters": side.parameters}
        samples, steps = side.samples_per_step, side.steps_per_epoch
        accounts.append(Account(side.name, "figures", parts, samples, steps, outside, facts=facts))
    return accounts
