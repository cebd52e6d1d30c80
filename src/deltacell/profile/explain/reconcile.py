"""Measurements that disagree, as one account: what each supports, and what adds up to the epoch.

They are read from a YAML file in which people wrote down two trainings and what they measured.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import yaml  # type: ignore[import-untyped]

from deltacell.errors import InputError, did_you_mean
from deltacell.profile.explain.account import Account, Comparison, compare
from deltacell.profile.explain.sentences import say
from deltacell.words import ratio_text, seconds_text

LARGEST_FILE = 1 << 20

CLOSE = 0.04  # ratios that differ by less than this share are equal but for rounding

NOT_MEASURED = "not measured (validation, figures, checkpoints)"
"""The part of an epoch that its steps leave over."""

UNITS = {
    "epoch seconds": ("s", "epochs per day"),
    "it/s": ("it/s",),
    "ms per step": ("ms", "s"),
    "trace sum": ("ms", "s"),
    "loader only": ("it/s", "ms", "s"),
    "loader+model": ("it/s", "ms", "s"),
    "saved batch": ("ms", "s", "it/s"),
}
"""The units that each measurement can be given in; the first is the default."""

MODES = {
    **dict.fromkeys(("epoch seconds", "it/s", "ms per step"), "train"),
    **{"loader only": "data", "saved batch": "fixed"},
}
"""How much of a step was carried out, where a measurement does not say."""

_OF = {
    "epoch seconds": "the wall time of a whole epoch",
    "it/s": "the training steps alone",
    "ms per step": "the training steps alone",
    "trace sum": "self times of a trace",
    "loader only": "the loader alone",
    "loader+model": "loader and model",
    "loader+model forward": "loader and forward",
    "loader+model step": "loader, forward and backward",
    "saved batch": "the full step on a batch in memory",
}

Measured = Literal[
    "epoch seconds",
    "it/s",
    "ms per step",
    "trace sum",
    "loader only",
    "loader+model",
    "saved batch",
]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]
Count = Annotated[int, msgspec.Meta(gt=0, lt=10**15)]
Name = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a time depends on: given by the reading, else by the measurement, else by the side."""

    batch: Count | None = None  # of one process
    ranks: Count | None = None
    parameters: Count | None = None
    window_steps: Count | None = None  # the steps covered
    startup_seconds: Positive | None = None  # the profiler's own start, all of it in one step

    @property
    def samples_per_step(self) -> int | None:
        """The batch of all processes together."""
        return self.batch * self.ranks if self.batch and self.ranks else None


class Side(Conditions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of the two trainings, as it really trained."""

    name: Name
    steps_per_epoch: Count | None = None

    @property
    def samples_per_epoch(self) -> float | None:
        """Steps times batch times ranks, the last step counted as full."""
        samples = self.samples_per_step
        return self.steps_per_epoch * samples if self.steps_per_epoch and samples else None


class Reading(Conditions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was measured of one side, and where it differs from the real training."""

    value: Positive = 0.0
    readings: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = ()

    @property
    def warmup(self) -> int:
        """How many of the readings are warm-up.

        Leading readings are, as long as they lie 1.5 times above or below the median of the
        second half, up to half of them.
        """
        half = len(self.readings) // 2
        usual = float(np.median(self.readings[half:])) if half else 0.0
        steady = (i for i in range(half) if usual / 1.5 <= self.readings[i] <= 1.5 * usual)
        return next(steady, half)

    @property
    def steady(self) -> float:
        """The median of the readings that are not warm-up; the value where there are none."""
        return float(np.median(self.readings[self.warmup :])) if self.readings else self.value

    @property
    def is_mean_with_warmup(self) -> bool:
        """Whether the value is the average of all readings, those of the warm-up included."""
        if not self.warmup:
            return False
        return abs(float(np.mean(self.readings)) - self.value) <= 0.02 * self.value


class Measurement(Conditions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One way in which the two trainings were compared; once read, all is filled in."""

    name: Name
    measured: Measured
    a: Positive | Reading
    b: Positive | Reading
    unit: Literal["s", "ms", "it/s", "epochs per day"] | None = None
    mode: Literal["train", "step", "forward", "data", "fixed", "empty"] | None = None
    sum: Literal["nested", "self"] | None = None
    claimed: Positive | None = None  # the ratio B by A that was said to follow

    @property
    def readings(self) -> tuple[Reading, Reading]:
        """The values of A and of B."""
        return self.a, self.b  # type: ignore[return-value]

    @property
    def raw_ratio(self) -> float:
        """The ratio of the values as they were given, B by A; of rates A by B."""
        a, b = (reading.value for reading in self.readings)
        return a / b if self.unit in ("it/s", "epochs per day") else b / a

    def seconds(self, value: float) -> float:
        """Return a value in seconds."""
        if self.unit in ("it/s", "epochs per day"):
            return (1.0 if self.unit == "it/s" else 86_400.0) / value
        return value / 1e3 if self.unit == "ms" else value

    def sum_per_step(self, reading: Reading) -> float | None:
        """Return the sum of a trace per step, without the step of the profiler's start."""
        if reading.window_steps is None:
            return None
        seconds, steps = self.seconds(reading.value), reading.window_steps
        if reading.startup_seconds is not None:
            seconds, steps = seconds - reading.startup_seconds, steps - 1
        return seconds / steps


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All measurements of two trainings, in the order of the file."""

    a: Side
    b: Side
    measurements: Annotated[tuple[Measurement, ...], msgspec.Meta(min_length=1)]

    @property
    def sides(self) -> tuple[Side, Side]:
        """A and B."""
        return self.a, self.b


def read_measurements(path: str | os.PathLike[str]) -> Measurements:
    """Read and check a YAML file of measurements; the how-to on slow runs describes its keys."""
    path = Path(path)
    try:
        given = msgspec.convert(_read_yaml(path), Measurements)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        unknown = re.search(r"unknown field `(.*)`", what)
        keys = {*Side.__struct_fields__, *Measurement.__struct_fields__, *Reading.__struct_fields__}
        hint = did_you_mean(unknown[1], sorted(keys)) if unknown else ""
        place = place.strip("`.") or "the file"
        raise InputError(f"{place}: {what}{hint}", code="wrong-key", where=path) from error
    names = [one.name for one in given.measurements]
    if given.a.name == given.b.name or len(set(names)) < len(names):
        what = "two trainings or two measurements have the same name"
        raise InputError(what, code="same-name", where=path)
    filled = tuple(_filled(one, given, path) for one in given.measurements)
    return msgspec.structs.replace(given, measurements=filled)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [str(key.value) for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            what = f"the key '{twice}' is given twice"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Any:
    try:
        if path.stat().st_size > LARGEST_FILE:
            what = f"larger than {LARGEST_FILE:,} bytes"
            fix = "Explain a trace with `deltacell explain`."
            raise InputError(what, code="file-too-large", where=path, fix=fix)
        return yaml.load(path.read_bytes().decode("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise InputError(what, code="unreadable", where=path) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        what = f"not YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}"
        line = None if mark is None else mark.line + 1
        raise InputError(what, code="not-yaml", where=path, line=line) from error


def _filled(one: Measurement, given: Measurements, path: Path) -> Measurement:
    def wrong(code: str, what: str) -> InputError:
        return InputError(f"'{one.name}': {what}", code=code, where=path)

    units = UNITS[one.measured]
    unit = one.unit or units[0]
    if unit not in units:
        raise wrong("wrong-unit", f"the unit is {unit}; expected one of {', '.join(units)}")
    if one.sum is not None and one.measured != "trace sum":
        raise wrong("wrong-sum", f"'sum' is for a 'trace sum', and this is '{one.measured}'")
    readings = []
    for side, value in zip(given.sides, (one.a, one.b), strict=True):
        reading = value if isinstance(value, Reading) else Reading(value=value)
        number = reading.value or reading.steady
        if not number:
            raise wrong("no-value", f"{side.name} has neither a 'value' nor 'readings'")
        known = {
            name: getattr(reading, name) or getattr(one, name) or getattr(side, name)
            for name in Conditions.__struct_fields__
        }
        made = msgspec.structs.replace(reading, value=number, **known)
        if made.startup_seconds is not None:
            whole = 0.0 if unit == "it/s" else number / (1e3 if unit == "ms" else 1.0)
            if (made.window_steps or 0) < 2 or made.startup_seconds >= whole:
                what = "'startup_seconds' needs a longer time, and window_steps of 2 or more"
                raise wrong("wrong-startup", what)
        readings.append(made)
    mode = one.mode or MODES.get(one.measured)
    return msgspec.structs.replace(one, unit=unit, mode=mode, a=readings[0], b=readings[1])


@dataclass(frozen=True)
class Times:
    """A measurement of one side in seconds; ``epoch`` is a real epoch's samples at this rate."""

    step: float | None = None
    sample: float | None = None
    epoch: float | None = None


@dataclass(frozen=True)
class Figure:
    """One measurement, made comparable.

    ``supports`` is the ratio B by A that it really supports, ``per`` a ``sample``, ``step`` or
    ``epoch``; ``of`` says what it is a ratio of, or why there is none.
    """

    measurement: Measurement
    a: Times
    b: Times
    supports: float | None
    per: str | None
    of: str

    def ratio(self, per: str) -> float | None:
        """Return the ratio B by A per ``step``, ``sample`` or ``epoch``."""
        a, b = getattr(self.a, per), getattr(self.b, per)
        return None if a is None or b is None else b / a

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        one = self.measurement
        return {
            **{name: getattr(one, name) for name in ("name", "measured", "mode", "claimed")},
            "a": {f"{per}_s": value for per, value in asdict(self.a).items()},
            "b": {f"{per}_s": value for per, value in asdict(self.b).items()},
            **{f"{per}_ratio": self.ratio(per) for per in ("step", "sample", "epoch")},
            **{"supports": self.supports, "per": self.per, "of": self.of},
        }


@dataclass(frozen=True)
class Contradiction:
    """Something that makes a comparison invalid, or two measurements disagree."""

    kind: str
    measurement: str | None  # None where it is about several
    sentence: str


@dataclass(frozen=True)
class Reconciliation:
    """One consistent account of measurements that disagree.

    ``comparison`` holds the two trainings as accounts that add up, and the waterfall between them;
    it is None where no step of the real training was measured. ``advice`` says what to measure.
    """

    given: Measurements
    figures: tuple[Figure, ...]
    contradictions: tuple[Contradiction, ...]
    comparison: Comparison | None
    sentence: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]

    def of(self, name: str) -> Figure:
        """Return the figure of the measurement with this name."""
        return next(one for one in self.figures if one.measurement.name == name)

    def kinds(self) -> set[str]:
        """Return the kinds of contradictions."""
        return {one.kind for one in self.contradictions}

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        compared = self.comparison
        return {
            "sentence": self.sentence,
            "evidence": list(self.evidence),
            "advice": list(self.advice),
            "a": self.given.a.name,
            "b": self.given.b.name,
            "measurements": [one.to_json() for one in self.figures],
            "contradictions": [asdict(one) for one in self.contradictions],
            "accounts": [] if compared is None else [compared.a.to_json(), compared.b.to_json()],
            "comparison": None if compared is None else compared.to_json(),
        }


def reconcile(measurements: Measurements | str | os.PathLike[str]) -> Reconciliation:
    """Return one account of measurements that disagree, given as read or as a YAML file."""
    is_read = isinstance(measurements, Measurements)
    given: Measurements = measurements if is_read else read_measurements(measurements)  # type: ignore
    figures = tuple(_figure(one, given) for one in given.measurements)
    epoch = _first(figures, "epoch seconds")
    whole = _first(figures, "it/s", "ms per step")
    compared = _comparison(given, figures, epoch, whole)
    about_data = list(_of_data(given))
    found = [
        *((None, *one) for one in about_data),
        *((f.measurement.name, *one) for f in figures for one in _of_figure(f, given, whole)),
        *((None, *one) for one in _of_epochs(compared if epoch is not None else None)),
    ]
    return Reconciliation(
        given,
        figures,
        tuple(Contradiction(kind, name, sentence) for name, kind, sentence in found),
        compared,
        _sentence(given, figures, compared, epoch),
        tuple(_evidence(given, compared, is_same_data=not about_data)),
        tuple(_advice(compared, epoch, whole)),
    )


def _first(figures: Sequence[Figure], *kinds: str) -> Figure | None:
    return next((one for one in figures if one.measurement.measured in kinds), None)


def _is_close(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


def _figure(one: Measurement, given: Measurements) -> Figure:
    a, b = (_times(one, *pair) for pair in zip(one.readings, given.sides, strict=True))
    if one.measured == "trace sum" and one.sum != "self":
        nested, unknown = "a sum of nested events is not a time", "it may add up nested events"
        return Figure(one, a, b, None, None, nested if one.sum else unknown)
    if any(reading.is_mean_with_warmup for reading in one.readings):
        return Figure(one, a, b, None, None, "the average includes warm-up")
    of = _OF.get(f"{one.measured} {one.mode}", _OF[one.measured])
    pairs = zip(given.sides, one.readings, strict=True)
    others = [s.name for s, reading in pairs if s.parameters and reading.parameters != s.parameters]
    if others:
        of += f", with another model of {' and '.join(others)} than the one that trained"
    found = Figure(one, a, b, None, None, of)
    for per in ("epoch",) if one.measured == "epoch seconds" else ("sample", "step"):
        if (ratio := found.ratio(per)) is not None:
            return Figure(one, a, b, ratio, per, of)
    return found


def _times(one: Measurement, reading: Reading, side: Side) -> Times:
    samples = side.samples_per_epoch
    if one.measured == "epoch seconds":
        epoch = one.seconds(reading.value)
        return Times(None, epoch / samples if samples else None, epoch)
    if one.measured == "trace sum":
        step = one.sum_per_step(reading) if one.sum == "self" else None
    else:
        step = one.seconds(reading.steady if reading.is_mean_with_warmup else reading.value)
    if step is None:
        return Times()
    sample = step / reading.samples_per_step if reading.samples_per_step else None
    return Times(step, sample, sample * samples if sample and samples else None)


_Found = Iterator[tuple[str, str]]


def _of_data(given: Measurements) -> _Found:
    most = [side.samples_per_epoch or 0.0 for side in given.sides]
    # The last step of an epoch may be cut short, so each number is known up to one step.
    least = [m - (s.samples_per_step or 0) for m, s in zip(most, given.sides, strict=True)]
    if all(most) and not (least[0] < most[1] and least[1] < most[0]):
        said = "An epoch of {a.name} has {most[0]:,.0f} samples and one of {b.name} {most[1]:,.0f} "
        said += "(steps * batch * ranks), so a ratio of epochs compares different amounts of data."
        yield "different_data", say(said, a=given.a, b=given.b, most=most)


def _of_epochs(compared: Comparison | None) -> _Found:
    if compared is None or compared.epoch_ratio is None:
        return
    for one in (compared.a, compared.b):
        if one.outside_s < 0:
            said = "The training steps of {of.name} take {steps:time} by the time of a step, but "
            said += "its epoch takes {of.epoch_s:time}: they are not from the same training."
            steps = (one.steps_per_epoch or 0) * one.step_s
            yield "steps_longer_than_epoch", say(said, of=one, steps=steps)
            return
    ratio = compared.epoch_ratio
    if not _is_close(ratio.of_steps, ratio.epoch):
        said = "The training steps predict {x.of_steps:ratio} per epoch where {x.epoch:ratio} was "
        said += "observed. The rest lies outside the steps: {x.outside_a:share} of an epoch of "
        said += "{a.name} ({a.outside_s:time}) and {x.outside_b:share} of an epoch of {b.name} "
        said += "({b.outside_s:time})."
        yield "outside_the_steps", say(said, x=ratio, a=compared.a, b=compared.b)


def _of_figure(figure: Figure, given: Measurements, whole: Figure | None) -> _Found:
    m, (a, b), (ra, rb) = figure.measurement, given.sides, figure.measurement.readings
    claim = ratio_text(m.raw_ratio) if m.claimed is None else f"{m.claimed:g}x"
    env = {"m": m, "a": a, "b": b, "ra": ra, "rb": rb, "claim": claim}
    steps = (None, None) if whole is None else (whole.a.step, whole.b.step)
    pairs = list(zip(given.sides, m.readings, (figure.a.step, figure.b.step), steps, strict=True))
    step, sample = figure.ratio("step"), figure.ratio("sample")

    def found(kind: str, template: str, **more: Any) -> tuple[str, str]:
        return kind, say(template, **env, **more)

    def differs(name: str) -> bool:
        in_a, in_b = getattr(ra, name), getattr(rb, name)
        return bool(in_a and in_b and in_a != in_b)

    if m.measured == "trace sum" and m.sum is None:
        said = "'{m.name}' does not say whether durations of nested events were added up (sum: "
        said += "nested) or self times (sum: self); only self times are comparable."
        yield found("sum_not_said", said)
    elif m.sum == "nested":
        sums = [(m.sum_per_step(reading), side, x) for side, reading, _, x in pairs]
        levels = [f"{y / x:.0f} times the step of {side.name}" for y, side, x in sums if x and y]
        said = "'{m.name}' adds up durations of nested events, so one second counts once per level "
        said += "of the stack: {claim} is a ratio of such sums and not of times."
        said += " Per step the sums are {levels:list}." if levels else ""
        yield found("nested_sum", said, levels=levels)
    if differs("window_steps"):
        windows = (rb.window_steps or 1) / (ra.window_steps or 1)
        said = "'{m.name}' covers {ra.window_steps:count step} of {a.name} and "
        said += "{rb.window_steps:count step} of {b.name}, which alone is a ratio of {x:ratio}."
        yield found("unequal_windows", said, x=windows)
    for side, reading, _, _ in pairs:
        if reading.startup_seconds is not None:
            said = "One of the {r.window_steps:count step} of {side.name} in '{m.name}' is "
            said += "{r.startup_seconds:time} of profiler start-up."
            yield found("profiler_start", said, side=side, r=reading)
        if reading.warmup:
            is_mean = reading.is_mean_with_warmup
            said = "The {r.value:g} {m.unit} of {side.name} in '{m.name}' "
            said += "averages" if is_mean else "comes with"
            said += " {n} readings, of which the first {r.warmup} ({first}) are warm-up or sanity "
            said += "checks: the median of the rest is {r.steady:g} {m.unit}"
            said += ", and {claim} is not a steady ratio." if is_mean else "."
            first = ", ".join(f"{value:g}" for value in reading.readings[: reading.warmup][:5])
            values = {"n": len(reading.readings), "first": first}
            yield found("warmup_average", said, side=side, r=reading, **values)
    if differs("ranks"):
        said = "'{m.name}' has {ra.ranks} ranks of {a.name} and {rb.ranks} of {b.name}."
        yield found("ranks", said)
    if differs("samples_per_step") and m.measured != "epoch seconds" and figure.supports and step:
        said = "'{m.name}' compares steps of unequal size, batch {ra.batch} against {rb.batch}: "
        said += "{step:ratio} per step is {sample:ratio} per sample"
        if m.mode == "train" and figure.a.epoch and figure.b.epoch:
            said += ", and the training steps of an epoch ({a.steps_per_epoch:,} against "
            said += "{b.steps_per_epoch:,}) take {f.a.epoch:time} against {f.b.epoch:time}"
        yield found("batch_sizes", f"{said}.", step=step, sample=sample, f=figure)
    for side, reading, _, _ in pairs:
        if side.parameters and reading.parameters and side.parameters != reading.parameters:
            said = "'{m.name}' measures another {side.name} ({r.parameters:,} parameters) than the "
            said += "one that trained ({side.parameters:,}), so {claim} does not apply to that one."
            yield found("other_model", said, side=side, r=reading)
    if m.measured == "saved batch":
        batches = [
            f"{reading.batch} where {side.name} trained with {side.batch}"
            for side, reading, _, _ in pairs
            if side.batch and reading.batch and side.batch != reading.batch
        ]
        said = "'{m.name}' has no loader, no collation and no transfer"
        said += ", and a batch of {batches:list}" if batches else ""
        said += ": it times the model alone."
        yield found("no_loader", said, batches=batches)
    if m.measured == "loader+model" and m.mode is None:
        said = "'{m.name}' does not say how much of a step the model did (mode: forward, step or "
        yield found("mode_not_said", said + "train), so it is unclear what was timed.")
    elif m.measured == "loader+model" and m.mode == "forward":
        said = "The model of '{m.name}' returned before backward (mode 'forward'), so its {claim} "
        yield found("forward_only", said + "does not include backward and the optimizer.")
    elif m.measured == "loader+model" and m.mode != "train":
        said = "The steps of '{m.name}' are not whole (mode '{m.mode}'), so {claim} is not a ratio "
        yield found("not_whole", said + "of training steps.")
    for side, reading, part, in_training in pairs:
        is_part = m.measured in ("loader only", "loader+model") and not reading.warmup
        if not is_part or not part or not in_training or reading.batch != side.batch:
            continue
        if part > in_training * (1 + CLOSE):
            said = "'{m.name}' gives {part:time} per step of {side.name} for a part of a step that "
            said += "takes {whole:time} in training."
            yield found("part_longer_than_whole", said, side=side, part=part, whole=in_training)
    ratios = [m.raw_ratio, step, sample, figure.ratio("epoch")]
    if m.claimed is not None and not any(r and _is_close(m.claimed, r) for r in ratios):
        said = "'{m.name}' claims {claim}, but its own values give {m.raw_ratio:ratio}."
        yield found("claim_differs", said)


def _comparison(
    given: Measurements, figures: Sequence[Figure], epoch: Figure | None, whole: Figure | None
) -> Comparison | None:
    if whole is None or whole.a.step is None or whole.b.step is None:
        return None
    # The loader alone, and the loader with the forward, where they fit the training.
    usable = [
        one
        for one in figures
        if one.supports is not None
        and all(
            side.batch == reading.batch and side.parameters == reading.parameters
            for side, reading in zip(given.sides, one.measurement.readings, strict=True)
        )
    ]
    loader, forward = _first(usable, "loader only"), None
    if loader is not None:
        ranks = [reading.ranks for reading in loader.measurement.readings]
        alike = [x for x in usable if [r.ranks for r in x.measurement.readings] == ranks]
        forward = _first([x for x in alike if x.measurement.mode == "forward"], "loader+model")
    accounts = []
    for at, side in zip(("a", "b"), given.sides, strict=True):
        alone, both, took = (getattr(x, at, None) for x in (loader, forward, epoch))
        step = getattr(whole, at).step
        parts = {"training step": step}
        if alone is not None:
            parts = {"data loading": alone.step}
            parts |= {} if both is None else {"forward": both.step - alone.step}
            parts["rest of the step"] = step - (both or alone).step
        outside = {}
        if took is not None and side.steps_per_epoch:
            outside = {NOT_MEASURED: took.epoch - side.steps_per_epoch * step}
        facts = {"batch": side.batch, "ranks": side.ranks, "parameters": side.parameters}
        samples, steps = side.samples_per_step, side.steps_per_epoch
        account = Account(side.name, "figures", parts, samples, steps, outside, facts=facts)
        accounts.append(account)
    return compare(accounts[0], accounts[1])


def _sentence(
    given: Measurements,
    figures: Sequence[Figure],
    compared: Comparison | None,
    epoch: Figure | None,
) -> str:
    if compared is not None and compared.epoch_ratio is not None and epoch is not None:
        said = "An epoch of {b.name} takes {x.epoch:ratio} as long as one of {a.name}, "
        said += "{b.epoch_s:time} against {a.epoch_s:time}: {x.steps:.3g} times as many steps, "
        said += "each {x.step:.3g} times as long, predict {x.of_steps:ratio}, and the rest lies "
        said += "outside the steps, {x.outside_a:share} of an epoch of {a.name} and "
        said += "{x.outside_b:share} of one of {b.name}."
        return say(said, a=compared.a, b=compared.b, x=compared.epoch_ratio)
    if compared is not None and compared.steps.ratio is not None:
        said = "A {x.per} of {b.name} takes {x.ratio:ratio} as long as one of {a.name} in the "
        said += "training steps, {x.b:time} against {x.a:time}; the time of a whole epoch was not "
        return say(said + "measured.", a=given.a, b=given.b, x=compared.steps)
    if epoch is not None and epoch.supports is not None:
        said = "An epoch of {b.name} takes {x:ratio} as long as one of {a.name}; no step of the "
        said += "training was measured, so it is unknown where the difference lies."
        return say(said, a=given.a, b=given.b, x=epoch.supports)
    valid = [(one.supports, one.per, one.of) for one in figures if one.supports is not None]
    ratios = [f"{ratio_text(ratio)} per {per}, of {of}" for ratio, per, of in valid] or ["no ratio"]
    said = "The measurements support {ratios:list}; neither an epoch nor a step of the real "
    said += "training of {b.name} and {a.name} was measured."
    return say(said, a=given.a, b=given.b, ratios=ratios)


def _evidence(
    given: Measurements, compared: Comparison | None, *, is_same_data: bool
) -> Iterator[str]:
    if compared is None:
        return
    if compared.epoch_ratio is not None:
        yield f"{compared.epoch_ratio.line}."
    if "data loading" in compared.a.parts:
        for account in (compared.a, compared.b):
            terms = " + ".join(f"{seconds_text(s)} {part}" for part, s in account.parts.items())
            yield f"A step of {account.name} takes {seconds_text(account.step_s)} = {terms}."
        yield (
            "The loader alone, and loader and forward minus the loader, are marginal costs: each "
            "equals a share of the step only where loader and compute do not overlap."
        )
    samples = [side.samples_per_epoch for side in given.sides]
    if is_same_data and all(samples):
        said = "Both epochs go through the same data: {x[0]:,.0f} and {x[1]:,.0f} samples by steps "
        yield say(said + "* batch * ranks, which agree but for the last step.", x=samples)


def _advice(
    compared: Comparison | None, epoch: Figure | None, whole: Figure | None
) -> Iterator[str]:
    if epoch is None:
        yield "Measure the seconds of an epoch from begin to begin: this is what to explain."
    if whole is None:
        yield "Measure the steps per second of the real training, after the warm-up."
    ratio = None if compared is None else compared.epoch_ratio
    if epoch is not None and ratio is not None and max(ratio.outside_a, ratio.outside_b) > 0.1:
        yield "Time what lies outside the steps: validation, figures, checkpoints."
    if compared is not None and "data loading" in compared.a.parts:
        yield "Time the phases of full steps, which add up, instead of differences between modes."
