"""Measurements that disagree, as one account: what each supports, and what adds up to the epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from deltacell.profile.explain.account import Account, Comparison, compare
from deltacell.profile.explain.measurements import (
    Measured,
    Measurement,
    Measurements,
    Mode,
    Reading,
    Side,
    Unit,
    read_measurements,
)
from deltacell.words import change_text, count_text, listed, ratio_text, seconds_text, share_text

CLOSE = 0.04
"""Ratios that differ by less than this share are equal but for rounding."""

NOT_MEASURED = "not measured (validation, figures, checkpoints)"
"""The part of an epoch that its steps leave over."""

MARGINAL = (
    "The loader alone, and loader and forward minus the loader, are marginal costs. Each equals a "
    "share of the step only where loader and compute do not overlap; the rest of the step includes "
    "waiting for other ranks."
)


@dataclass(frozen=True)
class Times:
    """A measurement of one side in seconds; None where it cannot be known.

    ``epoch`` is the time that the samples of a real epoch would take at this rate.
    """

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

    @property
    def raw_ratio(self) -> float:
        """The ratio of the values as they were given, B by A; of rates A by B."""
        a, b = (reading.value for reading in self.measurement.readings)
        return a / b if self.measurement.unit in (Unit.rate, Unit.per_day) else b / a

    @property
    def claimed_text(self) -> str:
        """The ratio that was claimed, or else that of the values."""
        claimed = self.measurement.claimed
        return ratio_text(self.raw_ratio) if claimed is None else f"{claimed:g}x"

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        one = self.measurement
        return {
            "name": one.name,
            "measured": one.measured.value,
            "mode": None if one.mode is None else one.mode.value,
            "claimed": one.claimed,
            **{
                side: {f"{per}_s": value for per, value in asdict(getattr(self, side)).items()}
                for side in ("a", "b")
            },
            **{f"{per}_ratio": self.ratio(per) for per in ("step", "sample", "epoch")},
            "supports": self.supports,
            "per": self.per,
            "of": self.of,
        }


@dataclass(frozen=True)
class Contradiction:
    """Something that makes a comparison invalid, or two measurements disagree.

    ``kind`` is a word for programs, such as ``nested_sum``; ``measurement`` is None where it is
    about several.
    """

    kind: str
    measurement: str | None
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
    given = (
        measurements if isinstance(measurements, Measurements) else read_measurements(measurements)
    )
    figures = tuple(_figure(one, given) for one in given.measurements)
    epoch = _first(figures, Measured.epoch)
    whole = _first(figures, Measured.rate, Measured.step)
    compared = _comparison(given, figures, epoch, whole)
    found = [
        Contradiction(kind, one.measurement.name, sentence)
        for one in figures
        for kind, sentence in _contradictions(one, given, whole)
    ]
    around = [
        Contradiction(kind, None, sentence)
        for kind, sentence in _of_all(given, compared if epoch is not None else None)
    ]
    data = [one for one in around if one.kind == "different_data"]
    found = [*data, *found, *(one for one in around if one not in data)]
    return Reconciliation(
        given,
        figures,
        tuple(found),
        compared,
        _sentence(given, figures, compared, epoch),
        tuple(_evidence(given, compared, is_same_data=not data)),
        tuple(_advice(compared, epoch, whole)),
    )


def _first(figures: Sequence[Figure], *kinds: Measured) -> Figure | None:
    return next((one for one in figures if one.measurement.measured in kinds), None)


def _is_close(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


def _seconds(measurement: Measurement, value: float) -> float:
    if measurement.unit is Unit.rate:
        return 1.0 / value
    if measurement.unit is Unit.per_day:
        return 86_400.0 / value
    return value / 1e3 if measurement.unit is Unit.milliseconds else value


def _steady_value(reading: Reading) -> float:
    return float(np.median(reading.steady)) if reading.readings else reading.value


def _sum_per_step(measurement: Measurement, reading: Reading) -> float | None:
    # The step of the profiler's start is left out.
    if reading.window_steps is None:
        return None
    seconds, steps = _seconds(measurement, reading.value), reading.window_steps
    if reading.startup_seconds is not None:
        seconds, steps = seconds - reading.startup_seconds, steps - 1
    return seconds / steps


def _figure(one: Measurement, given: Measurements) -> Figure:
    times = [_times(one, *pair) for pair in zip(one.readings, given.sides, strict=True)]
    of = _WHAT[one.measured]
    if one.measured is Measured.loader_and_model and one.mode in _LOADER_AND:
        of = _LOADER_AND[one.mode]
    others = [
        side.name
        for side, reading in zip(given.sides, one.readings, strict=True)
        if side.parameters and reading.parameters != side.parameters
    ]
    if others:
        of += f", with another model of {' and '.join(others)} than the one that trained"
    found = Figure(one, times[0], times[1], None, None, of)
    if one.measured is Measured.trace and one.is_nested_sum is not False:
        why = (
            "a sum of nested events is not a time"
            if one.is_nested_sum
            else "it is not known whether nested events were added up"
        )
        return Figure(one, times[0], times[1], None, None, why)
    if any(reading.is_mean_with_warmup for reading in one.readings):
        return Figure(one, times[0], times[1], None, None, "the average includes warm-up")
    for per in ("epoch",) if one.measured is Measured.epoch else ("sample", "step"):
        if (ratio := found.ratio(per)) is not None:
            return Figure(one, times[0], times[1], ratio, per, of)
    return found


_WHAT = {
    Measured.epoch: "the wall time of an epoch, all of it",
    Measured.rate: "the training steps alone",
    Measured.step: "the training steps alone",
    Measured.trace: "self times of a trace",
    Measured.loader: "the loader alone",
    Measured.loader_and_model: "loader and model",
    Measured.saved: "the full step on a batch that is there already",
}
_LOADER_AND: dict[Mode | None, str] = {
    Mode.forward: "loader and forward",
    Mode.step: "loader, forward and backward",
}


def _times(one: Measurement, reading: Reading, side: Side) -> Times:
    samples = side.samples_per_epoch
    if one.measured is Measured.epoch:
        epoch = _seconds(one, reading.value)
        return Times(None, epoch / samples if samples else None, epoch)
    if one.measured is Measured.trace:
        step = None if one.is_nested_sum is not False else _sum_per_step(one, reading)
    else:
        value = _steady_value(reading) if reading.is_mean_with_warmup else reading.value
        step = _seconds(one, value)
    if step is None:
        return Times()
    sample = step / reading.samples_per_step if reading.samples_per_step else None
    return Times(step, sample, sample * samples if sample and samples else None)


_Found = Iterator[tuple[str, str]]


def _of_all(given: Measurements, compared: Comparison | None) -> _Found:
    a, b = given.sides
    most = [side.samples_per_epoch or 0.0 for side in given.sides]
    # The last step of an epoch may be cut short, so each number is known up to one step.
    least = [m - (s.batch or 0) * (s.ranks or 0) for m, s in zip(most, given.sides, strict=True)]
    if all(most) and not (least[0] < most[1] and least[1] < most[0]):
        yield (
            "different_data",
            f"An epoch of {a.name} has {most[0]:,.0f} samples and one of {b.name} {most[1]:,.0f} "
            "(steps * batch * ranks), so a ratio of epochs compares different amounts of data.",
        )
    if compared is None or compared.epoch_ratio is None:
        return
    ratio = compared.epoch_ratio
    for account in (compared.a, compared.b):
        if account.outside_s < 0:
            steps = (account.steps_per_epoch or 0) * account.step_s
            yield (
                "steps_longer_than_epoch",
                f"The training steps of {account.name} take {seconds_text(steps)} by the time of a "
                f"step, and its epoch takes {seconds_text(account.epoch_s or 0.0)}: they are not "
                "of the same training.",
            )
            return
    if not _is_close(ratio.of_steps, ratio.epoch):
        yield (
            "outside_the_steps",
            f"The training steps predict {ratio_text(ratio.of_steps)} per epoch where "
            f"{ratio_text(ratio.epoch)} was observed. The rest lies outside the steps: "
            f"{share_text(ratio.outside_a)} of an epoch of {a.name} "
            f"({seconds_text(compared.a.outside_s)}) and {share_text(ratio.outside_b)} of one of "
            f"{b.name} ({seconds_text(compared.b.outside_s)}).",
        )


def _contradictions(figure: Figure, given: Measurements, whole: Figure | None) -> _Found:
    one, (a, b) = figure.measurement, figure.measurement.readings
    steps = (None, None) if whole is None else (whole.a.step, whole.b.step)
    pairs = list(zip(given.sides, (a, b), (figure.a.step, figure.b.step), steps, strict=True))
    claim = figure.claimed_text
    if one.measured is Measured.trace and one.is_nested_sum is not False:
        yield from _nested(figure, pairs)
    if a.window_steps and b.window_steps and a.window_steps != b.window_steps:
        sentence = (
            f"'{one.name}' has windows of {count_text(a.window_steps, 'step')} of {given.a.name} "
            f"and {count_text(b.window_steps, 'step')} of {given.b.name}"
        )
        if one.measured is Measured.trace:
            sentence += (
                f": {ratio_text(b.window_steps / a.window_steps)} of its "
                f"{ratio_text(figure.raw_ratio)} is this alone, and per step it is "
                f"{ratio_text(figure.raw_ratio * a.window_steps / b.window_steps)}"
            )
        yield "unequal_windows", f"{sentence}."
    for side, reading, _, step in pairs:
        if reading.startup_seconds is not None and reading.window_steps:
            sentence = (
                f"One of the {count_text(reading.window_steps, 'step')} of {side.name} in "
                f"'{one.name}' is {seconds_text(reading.startup_seconds)} of the profiler's own "
                "start"
            )
            sums = _sum_per_step(one, a), _sum_per_step(one, b)
            if sums[0] and sums[1]:
                sentence += f"; without it, the ratio per step is {ratio_text(sums[1] / sums[0])}"
            yield "profiler_start", f"{sentence}."
        if reading.warmup:
            yield "warmup_average", _warmup_sentence(figure, side, reading, step)
    if a.ranks and b.ranks and a.ranks != b.ranks:
        yield (
            "ranks",
            f"'{one.name}' has {a.ranks} ranks of {given.a.name} and {b.ranks} of the other.",
        )
    yield from _batch_sizes(figure, given)
    for side, reading, _, _ in pairs:
        if side.parameters and reading.parameters and side.parameters != reading.parameters:
            size = "smaller" if reading.parameters < side.parameters else "larger"
            yield (
                "other_model",
                f"'{one.name}' measures a {size} {side.name} ({reading.parameters:,} parameters) "
                f"than the one that trained ({side.parameters:,}), so {claim} says nothing about "
                "that one.",
            )
    if one.measured is Measured.saved:
        batches = [
            f"{reading.batch} where {side.name} trained with {side.batch}"
            for side, reading, _, _ in pairs
            if side.batch and reading.batch and side.batch != reading.batch
        ]
        also = f", and a batch of {listed(batches)}" if batches else ""
        yield (
            "no_loader",
            f"'{one.name}' has no loader, no collation and no transfer{also}: it is about the "
            "model alone.",
        )
    if one.measured is Measured.loader_and_model and one.mode is None:
        yield (
            "mode_not_said",
            f"'{one.name}' does not say how much of a step the model did (mode: forward, step or "
            "train), so it is not clear what was timed.",
        )
    elif one.measured is Measured.loader_and_model and one.mode in _LEFT_OUT:
        ended, missing = _LEFT_OUT[one.mode]
        yield (
            "forward_only" if one.mode is Mode.forward else "not_whole",
            f"The model of '{one.name}' returned {ended} (mode '{one.mode}'), so its {claim} is "
            f"without {missing}.",
        )
    for side, reading, part, step in pairs:
        # Where readings were cut, the sentence on warm-up says this.
        is_part = one.measured in (Measured.loader, Measured.loader_and_model)
        if not is_part or reading.warmup or reading.batch != side.batch or not part or not step:
            continue
        if part > step * (1 + CLOSE):
            yield (
                "part_longer_than_whole",
                f"'{one.name}' gives {seconds_text(part)} per step of {side.name} for a part of a "
                f"step that takes {seconds_text(step)} in training.",
            )
    ratios = [figure.raw_ratio, *(figure.ratio(per) for per in ("step", "sample", "epoch"))]
    if one.claimed is not None and not any(r and _is_close(one.claimed, r) for r in ratios):
        yield (
            "claim_differs",
            f"'{one.name}' claims {claim}, and its own values give {ratio_text(figure.raw_ratio)}.",
        )


_LEFT_OUT: dict[Mode | None, tuple[str, str]] = {
    Mode.step: ("before the optimizer", "the optimizer"),
    Mode.forward: ("before backward", "backward and the optimizer"),
    Mode.data: ("before forward", "the model"),
    Mode.fixed: ("to the same batch", "the loader"),
    Mode.empty: ("before forward", "the model"),
}


def _nested(figure: Figure, pairs: Sequence[tuple[Side, Reading, Any, float | None]]) -> _Found:
    one = figure.measurement
    if one.is_nested_sum is None:
        yield (
            "sum_not_said",
            f"'{one.name}' does not say whether durations of nested events were added up (sum: "
            "nested) or self times (sum: self); only the latter are comparable.",
        )
        return
    levels = [
        f"{total / step:.0f} times the step of {side.name}"
        for side, reading, _, step in pairs
        if (total := _sum_per_step(one, reading)) and step and total > 1.05 * step
    ]
    also = f" Per step the sums are {listed(levels)}." if levels else ""
    yield (
        "nested_sum",
        f"'{one.name}' adds up durations of nested events, so one second counts once per level of "
        f"the stack: {figure.claimed_text} is a ratio of such sums and not of times.{also}",
    )


def _warmup_sentence(figure: Figure, side: Side, reading: Reading, step: float | None) -> str:
    one, readings = figure.measurement, reading.readings or ()
    first = ", ".join(f"{value:g}" for value in readings[: reading.warmup][:5])
    what = "is the plain average of" if reading.is_mean_with_warmup else "comes with"
    sentence = (
        f"The {reading.value:g} {one.unit} of {side.name} in '{one.name}' {what} {len(readings)} "
        f"readings from {min(readings):g} to {max(readings):g}: the first {reading.warmup} "
        f"({first}) are warm-up or sanity check, the median of the rest is "
        f"{_steady_value(reading):g} {one.unit}"
    )
    if reading.is_mean_with_warmup:
        sentence += f", so {figure.claimed_text} is a ratio of the warm-up"
    steady = _seconds(one, _steady_value(reading))
    if step and one.mode is Mode.data and steady > step:
        sentence += (
            f". Nor is the rest a measure of the training: {seconds_text(steady)} per step for a "
            f"part of a step that takes {seconds_text(step)}"
        )
    return f"{sentence}."


def _batch_sizes(figure: Figure, given: Measurements) -> _Found:
    one, (a, b) = figure.measurement, figure.measurement.readings
    sample, step = figure.ratio("sample"), figure.ratio("step")
    if one.measured is Measured.epoch or a.samples_per_step == b.samples_per_step:
        return
    if figure.supports is None or sample is None or step is None:
        return
    sentence = (
        f"'{one.name}' compares steps of unequal size, batch {a.batch} against {b.batch}: "
        f"{ratio_text(step)} per {'step' if one.mode is Mode.train else 'batch'} is "
        f"{ratio_text(sample)} per sample"
    )
    steps = (given.a.steps_per_epoch, given.b.steps_per_epoch)
    if one.mode is Mode.train and all(steps) and figure.a.epoch and figure.b.epoch:
        sentence += (
            f", and with {steps[0]:,} against {steps[1]:,} steps per epoch the training steps of "
            f"an epoch take {seconds_text(figure.a.epoch)} against {seconds_text(figure.b.epoch)}"
        )
    yield "batch_sizes", f"{sentence}."


def _comparison(
    given: Measurements, figures: Sequence[Figure], epoch: Figure | None, whole: Figure | None
) -> Comparison | None:
    if whole is None:
        return None
    loader, forward = _loader_and_forward(given, figures)
    accounts = []
    for at, side in zip(("a", "b"), given.sides, strict=True):

        def of(figure: Figure | None, per: str = "step", at: str = at) -> float | None:
            value: float | None = None if figure is None else getattr(getattr(figure, at), per)
            return value

        step = of(whole)
        if step is None:
            return None
        alone, both, all_of_it = of(loader), of(forward), of(epoch, "epoch")
        parts = {"training step": step}
        if alone is not None and both is not None:
            parts = {"data loading": alone, "forward": both - alone}
            parts["rest of the step"] = step - both
        elif alone is not None:
            parts = {"data loading": alone, "rest of the step": step - alone}
        outside = {}
        if all_of_it is not None and side.steps_per_epoch:
            outside = {NOT_MEASURED: all_of_it - side.steps_per_epoch * step}
        accounts.append(
            Account(
                side.name,
                "figures",
                parts,
                samples_per_step=side.batch * side.ranks if side.batch and side.ranks else None,
                steps_per_epoch=side.steps_per_epoch,
                outside=outside,
                facts={"batch": side.batch, "ranks": side.ranks, "parameters": side.parameters},
            )
        )
    return compare(accounts[0], accounts[1])


def _loader_and_forward(
    given: Measurements, figures: Sequence[Figure]
) -> tuple[Figure | None, Figure | None]:
    """Return the loader alone and the loader with the forward, where both fit the training."""
    usable = [
        one
        for one in figures
        if one.supports is not None
        and all(
            side.batch == reading.batch and side.parameters == reading.parameters
            for side, reading in zip(given.sides, one.measurement.readings, strict=True)
        )
    ]
    loader = _first(usable, Measured.loader)
    if loader is None:
        return None, None
    ranks = [reading.ranks for reading in loader.measurement.readings]
    forward = [
        one
        for one in usable
        if one.measurement.measured is Measured.loader_and_model
        and one.measurement.mode is Mode.forward
        and [reading.ranks for reading in one.measurement.readings] == ranks
    ]
    return loader, forward[0] if forward else None


def _sentence(
    given: Measurements,
    figures: Sequence[Figure],
    compared: Comparison | None,
    epoch: Figure | None,
) -> str:
    a, b = given.a.name, given.b.name
    if compared is not None and compared.epoch_ratio is not None and epoch is not None:
        ratio = compared.epoch_ratio
        return (
            f"An epoch of {b} takes {ratio_text(ratio.epoch)} as long as one of {a}, "
            f"{seconds_text(compared.b.epoch_s or 0)} against "
            f"{seconds_text(compared.a.epoch_s or 0)}: {ratio.steps:.3g} times as many steps, each "
            f"{ratio.step:.3g} times as long, predict {ratio_text(ratio.of_steps)}, and the rest "
            f"lies outside the steps, {share_text(ratio.outside_a)} of an epoch of {a} and "
            f"{share_text(ratio.outside_b)} of one of {b}."
        )
    if compared is not None and compared.steps.ratio is not None:
        fall = compared.steps
        return (
            f"A {fall.per} of {b} takes {ratio_text(compared.steps.ratio)} as long as one of {a} "
            f"in the training steps, {seconds_text(fall.b)} against {seconds_text(fall.a)}; the "
            "time of a whole epoch was not measured."
        )
    if epoch is not None and epoch.supports is not None:
        return (
            f"An epoch of {b} takes {ratio_text(epoch.supports)} as long as one of {a}; no step "
            "of the training was measured, so it is unknown where the difference lies."
        )
    valid = [
        f"{ratio_text(one.supports)} per {one.per}, of {one.of}"
        for one in figures
        if one.supports is not None
    ]
    said = (
        f"The measurements support {listed(valid)}" if valid else "No measurement supports a ratio"
    )
    return f"{said}; neither an epoch nor a step of the real training of {b} and {a} was measured."


def _evidence(
    given: Measurements, compared: Comparison | None, *, is_same_data: bool
) -> Iterator[str]:
    if compared is None:
        return
    if compared.epoch_ratio is not None:
        yield f"{compared.epoch_ratio.line}."
    fall = compared.epochs if compared.epochs is not None else compared.steps
    if len(fall.bars) > 1 and fall.gap:
        bars = [
            f"{bar.part} {change_text(bar.change)} ({share_text(bar.change / fall.gap)})"
            for bar in fall.bars
        ]
        yield f"The gap of {seconds_text(fall.gap)} per {fall.per} is {listed(bars)}."
    if "data loading" in compared.a.parts:
        for account in (compared.a, compared.b):
            terms = " + ".join(f"{seconds_text(s)} {part}" for part, s in account.parts.items())
            yield f"A step of {account.name} takes {seconds_text(account.step_s)} = {terms}."
        yield MARGINAL
    samples = [side.samples_per_epoch for side in given.sides]
    if is_same_data and all(samples):
        yield (
            f"Both epochs go through the same data: {samples[0]:,.0f} and {samples[1]:,.0f} "
            "samples by steps * batch * ranks, which agree but for the last step."
        )


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
