"""Measurements that disagree, as one account: what each supports, and what adds up to the epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deltacell.profile.explain.account import (
    Account,
    Comparison,
    change_text,
    compare,
    listed,
    ratio_text,
    seconds_text,
    share_text,
)
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
from deltacell.words import count_text

NOT_MEASURED = "not measured (validation, figures, checkpoints)"
"""The part of an epoch that its steps leave over."""

MARGINAL = (
    "Loader alone, and loader and forward less loader, are marginal costs. Each equals a share of "
    "the step only where loader and compute do not overlap; the rest of the step is what is left "
    "of the real step, waiting for other ranks included."
)


@dataclass(frozen=True)
class Reconciliation:
    """One consistent account of measurements that disagree.

    Parameters
    ----------
    given
        The measurements.
    figures
        What each says, and which ratio it really supports; in the order of the file.
    contradictions
        What is wrong or missing, each in a sentence.
    comparison
        The two trainings as accounts that add up, and the waterfall between them; None where no
        step of the real training was measured.
    sentence
        The answer.
    evidence
        Where it comes from, in sentences.
    advice
        What to measure next.
    """

    given: Measurements
    figures: tuple[Figure, ...]
    contradictions: tuple[Contradiction, ...]
    comparison: Comparison | None
    sentence: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]

    def of(self, name: str) -> Figure:
        """Return what the measurement of this name says."""
        return next(one for one in self.figures if one.measurement.name == name)

    def kinds(self) -> set[str]:
        """Return which kinds of contradictions there are."""
        return {one.kind for one in self.contradictions}

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        compared = self.comparison
        return {
            "sentence": self.sentence,
            "evidence": list(self.evidence),
            "advice": list(self.advice),
            "a": self.given.a.name,
            "b": self.given.b.name,
            "measurements": [one.to_json() for one in self.figures],
            "contradictions": [one.to_json() for one in self.contradictions],
            "accounts": [] if compared is None else [compared.a.to_json(), compared.b.to_json()],
            "comparison": None if compared is None else compared.to_json(),
        }


def reconcile(measurements: Measurements | str | os.PathLike[str]) -> Reconciliation:
    """Return one account of measurements that disagree.

    Parameters
    ----------
    measurements
        From `read_measurements`, or the file.
    """
    given = (
        measurements if isinstance(measurements, Measurements) else read_measurements(measurements)
    )
    figures = tuple(figure(one, given) for one in given.measurements)
    epoch = _first(figures, (Measured.epoch,))
    whole = _first(figures, (Measured.rate, Measured.step))
    compared = _comparison(given, figures, epoch, whole)
    found = [one for each in figures for one in contradictions_of(each, given, whole)]
    data = different_data(given)
    if data is not None:
        found.insert(0, data)
    found += _residual(given, compared, epoch)
    return Reconciliation(
        given,
        figures,
        tuple(found),
        compared,
        _sentence(given, figures, compared, epoch),
        tuple(_evidence(given, compared, epoch)),
        tuple(_advice(compared, epoch, whole)),
    )


def _first(figures: tuple[Figure, ...], kinds: tuple[Measured, ...]) -> Figure | None:
    return next((one for one in figures if one.measurement.measured in kinds), None)


def _comparison(
    given: Measurements, figures: tuple[Figure, ...], epoch: Figure | None, whole: Figure | None
) -> Comparison | None:
    if whole is None or whole.a.step is None or whole.b.step is None:
        return None
    loader, forward = _parts(given, figures)
    accounts = []
    for place, side in enumerate((given.a, given.b)):
        step = (whole.a.step, whole.b.step)[place]
        parts = {"training step": step}
        if loader is not None:
            alone = (loader.a.step, loader.b.step)[place] or 0.0
            parts = {"data loading": alone, "rest of the step": step - alone}
            if forward is not None:
                both = (forward.a.step, forward.b.step)[place] or 0.0
                parts = {
                    "data loading": alone,
                    "forward": both - alone,
                    "rest of the step": step - both,
                }
        outside = {}
        if epoch is not None and side.steps_per_epoch:
            all_of_it = (epoch.a.epoch, epoch.b.epoch)[place] or 0.0
            outside = {NOT_MEASURED: all_of_it - side.steps_per_epoch * step}
        samples = side.batch * side.ranks if side.batch and side.ranks else None
        accounts.append(
            Account(
                side.name,
                "figures",
                parts,
                samples_per_step=samples,
                steps_per_epoch=side.steps_per_epoch,
                outside=outside,
                facts={"batch": side.batch, "ranks": side.ranks, "parameters": side.parameters},
            )
        )
    return compare(accounts[0], accounts[1])


def _parts(given: Measurements, figures: tuple[Figure, ...]) -> tuple[Figure | None, Figure | None]:
    def fits(one: Figure) -> bool:
        sides = ((given.a, one.measurement.a), (given.b, one.measurement.b))
        return one.supports is not None and all(
            side.batch == reading.batch and side.parameters == reading.parameters
            for side, reading in sides
        )

    usable = [one for one in figures if fits(one)]
    loader = _first(tuple(usable), (Measured.loader,))
    if loader is None:
        return None, None
    ranks = (loader.measurement.a.ranks, loader.measurement.b.ranks)
    for one in usable:
        if (
            one.measurement.measured is Measured.loader_and_model
            and one.measurement.mode is Mode.forward
            and (one.measurement.a.ranks, one.measurement.b.ranks) == ranks
        ):
            return loader, one
    return loader, None


def _residual(
    given: Measurements, compared: Comparison | None, epoch: Figure | None
) -> list[Contradiction]:
    if compared is None or epoch is None or compared.epoch_ratio is None:
        return []
    ratio = compared.epoch_ratio
    for account in (compared.a, compared.b):
        if account.outside_s < 0:
            steps = (account.steps_per_epoch or 0) * account.step_s
            return [
                Contradiction(
                    "steps_longer_than_epoch",
                    None,
                    f"The training steps of {account.name} take {seconds_text(steps)} by the time "
                    f"of a step, and its epoch {seconds_text(account.epoch_s or 0.0)}: they are "
                    "not of the same training.",
                )
            ]
    if is_close(ratio.of_steps, ratio.epoch):
        return []
    return [
        Contradiction(
            "outside_the_steps",
            None,
            f"The training steps predict {ratio_text(ratio.of_steps)} per epoch where "
            f"{ratio_text(ratio.epoch)} was observed. The rest lies outside the steps: "
            f"{share_text(ratio.outside_a)} of an epoch of {given.a.name} "
            f"({seconds_text(compared.a.outside_s)}) and {share_text(ratio.outside_b)} of one of "
            f"{given.b.name} ({seconds_text(compared.b.outside_s)}).",
        )
    ]


def _sentence(
    given: Measurements,
    figures: tuple[Figure, ...],
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
        waterfall = compared.steps
        return (
            f"A {waterfall.per} of {b} takes {ratio_text(compared.steps.ratio)} as long as one of "
            f"{a} in the training steps, {seconds_text(waterfall.b)} against "
            f"{seconds_text(waterfall.a)}; what an epoch takes as a whole was not measured."
        )
    if epoch is not None and epoch.supports is not None:
        return (
            f"An epoch of {b} takes {ratio_text(epoch.supports)} as long as one of {a}; no step "
            "of the training was measured, so where that lies cannot be said."
        )
    valid = [one.support_text for one in figures if one.supports is not None]
    told = f"They support {listed(valid)}" if valid else "None of them supports a ratio"
    return f"{told}; neither an epoch nor a step of the real training of {b} and {a} was measured."


def _evidence(given: Measurements, compared: Comparison | None, epoch: Figure | None) -> list[str]:
    if compared is None:
        return []
    found = []
    if compared.epoch_ratio is not None:
        found.append(f"{compared.epoch_ratio.line}.")
    waterfall = compared.epochs if compared.epochs is not None else compared.steps
    if len(waterfall.bars) > 1 and waterfall.gap:
        bars = [
            f"{bar.part} {change_text(bar.change)} ({share_text(waterfall.share(bar) or 0.0)})"
            for bar in waterfall.bars
        ]
        found.append(
            f"The gap of {seconds_text(waterfall.gap)} per {waterfall.per} is {listed(bars)}."
        )
    if "data loading" in compared.a.parts:
        for account in (compared.a, compared.b):
            terms = [f"{seconds_text(s)} {part}" for part, s in account.parts.items()]
            found.append(
                f"A step of {account.name} takes {seconds_text(account.step_s)} = "
                f"{' + '.join(terms)}."
            )
        found.append(MARGINAL)
    same = different_data(given)
    if same is None and given.a.samples_per_epoch and given.b.samples_per_epoch:
        found.append(
            f"Both epochs go through the same data: {given.a.samples_per_epoch:,.0f} and "
            f"{given.b.samples_per_epoch:,.0f} samples by steps * batch * ranks, which agree but "
            "for the last step."
        )
    return found


def _advice(compared: Comparison | None, epoch: Figure | None, whole: Figure | None) -> list[str]:
    found = []
    if epoch is None:
        found.append("Measure the seconds of an epoch from begin to begin: it is what to explain.")
    if whole is None:
        found.append("Measure steps a second of the real training, after the warm-up.")
    ratio = None if compared is None else compared.epoch_ratio
    if epoch is not None and ratio is not None and max(ratio.outside_a, ratio.outside_b) > 0.1:
        found.append("Time what lies outside the steps: validation, figures, checkpoints.")
    if compared is not None and "data loading" in compared.a.parts:
        found.append(
            "Time the phases of full steps, which add up, in place of differences between modes."
        )
    return found


@dataclass(frozen=True)
class Times:
    """A measurement of one side in seconds; None where it cannot be known.

    Parameters
    ----------
    step, sample, epoch
        Seconds of each. The epoch is what the samples of a real epoch would take at this rate.
    """

    step: float | None
    sample: float | None
    epoch: float | None


@dataclass(frozen=True)
class Figure:
    """One measurement, made comparable.

    Parameters
    ----------
    measurement
        As it was given.
    a, b
        Its times.
    supports
        The ratio that it really supports, B by A; None where it supports none.
    per
        What that ratio is per: ``sample``, ``step`` or ``epoch``.
    of
        What it is a ratio of, or why there is none.
    """

    measurement: Measurement
    a: Times
    b: Times
    supports: float | None
    per: str | None
    of: str

    @property
    def step_ratio(self) -> float | None:
        """Per step, B by A."""
        return _ratio(self.a.step, self.b.step)

    @property
    def sample_ratio(self) -> float | None:
        """Per sample, B by A."""
        return _ratio(self.a.sample, self.b.sample)

    @property
    def epoch_ratio(self) -> float | None:
        """Per epoch, B by A."""
        return _ratio(self.a.epoch, self.b.epoch)

    @property
    def raw_ratio(self) -> float:
        """Of the values as they were given, B by A; of rates A by B."""
        a, b = self.measurement.a.value, self.measurement.b.value
        return a / b if self.measurement.unit in (Unit.rate, Unit.per_day) else b / a

    @property
    def support_text(self) -> str:
        """What it supports, in a few words."""
        if self.supports is None:
            return f"nothing: {self.of}"
        return f"{ratio_text(self.supports)} per {self.per}, of {self.of}"

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "name": self.measurement.name,
            "measured": self.measurement.measured.value,
            "mode": None if self.measurement.mode is None else self.measurement.mode.value,
            "claimed": self.measurement.claimed,
            "a": {"step_s": self.a.step, "sample_s": self.a.sample, "epoch_s": self.a.epoch},
            "b": {"step_s": self.b.step, "sample_s": self.b.sample, "epoch_s": self.b.epoch},
            "step_ratio": self.step_ratio,
            "sample_ratio": self.sample_ratio,
            "epoch_ratio": self.epoch_ratio,
            "supports": self.supports,
            "per": self.per,
            "of": self.of,
        }


def figure(measurement: Measurement, given: Measurements) -> Figure:
    """Return what a measurement says."""
    a = _times(measurement, measurement.a, given.a)
    b = _times(measurement, measurement.b, given.b)
    made = Figure(measurement, a, b, None, None, _of(measurement, given))
    if not _is_valid(measurement):
        return made
    for per, ratio in _ratios(made):
        if ratio is not None:
            return Figure(measurement, a, b, ratio, per, made.of)
    return made


def seconds_of(measurement: Measurement, value: float) -> float:
    """Return a value of a measurement in seconds, of a step or of an epoch."""
    if measurement.unit is Unit.rate:
        return 1.0 / value
    if measurement.unit is Unit.per_day:
        return 86_400.0 / value
    return value / 1e3 if measurement.unit is Unit.milliseconds else value


def steady_value(reading: Reading) -> float:
    """Return the median of the steady readings where there are any, and the value otherwise."""
    return float(np.median(reading.steady)) if reading.readings else reading.value


def sum_per_step(measurement: Measurement, reading: Reading) -> float | None:
    """Return the seconds of a trace's sum by its steps, without the step of the start-up."""
    if reading.window_steps is None:
        return None
    seconds, steps = seconds_of(measurement, reading.value), reading.window_steps
    if reading.startup_seconds is not None:
        seconds, steps = seconds - reading.startup_seconds, steps - 1
    return seconds / steps


def _times(measurement: Measurement, reading: Reading, side: Side) -> Times:
    samples = side.samples_per_epoch
    if measurement.measured is Measured.epoch:
        epoch = seconds_of(measurement, reading.value)
        return Times(None, epoch / samples if samples else None, epoch)
    if measurement.measured is Measured.trace:
        step = None if measurement.nested is not False else sum_per_step(measurement, reading)
    elif reading.is_mean_with_warmup:
        step = seconds_of(measurement, steady_value(reading))
    else:
        step = seconds_of(measurement, reading.value)
    if step is None:
        return Times(None, None, None)
    per_step = reading.samples_per_step
    sample = step / per_step if per_step else None
    return Times(step, sample, sample * samples if sample and samples else None)


def _is_valid(measurement: Measurement) -> bool:
    if measurement.measured is Measured.trace and measurement.nested is not False:
        return False
    return not (measurement.a.is_mean_with_warmup or measurement.b.is_mean_with_warmup)


def _ratios(figure: Figure) -> list[tuple[str, float | None]]:
    if figure.measurement.measured is Measured.epoch:
        return [("epoch", figure.epoch_ratio)]
    return [("sample", figure.sample_ratio), ("step", figure.step_ratio)]


_WHAT = {
    Measured.epoch: "the wall time of an epoch, all of it",
    Measured.rate: "the training steps alone",
    Measured.step: "the training steps alone",
    Measured.trace: "self times of a trace",
    Measured.loader: "the loader alone",
    Measured.loader_and_model: "loader and model",
    Measured.saved: "the full step on a batch that is there already",
}


def _of(measurement: Measurement, given: Measurements) -> str:
    if measurement.measured is Measured.trace and measurement.nested is not False:
        return (
            "a sum of nested events is no time"
            if measurement.nested
            else "whether nested events were added up is not said"
        )
    if not _is_valid(measurement):
        return "the average is one of warm-up"
    what = _WHAT[measurement.measured]
    if measurement.measured is Measured.loader_and_model and measurement.mode is Mode.forward:
        what = "loader and forward"
    if measurement.measured is Measured.loader_and_model and measurement.mode is Mode.step:
        what = "loader, forward and backward"
    others = [
        side.name
        for side, reading in ((given.a, measurement.a), (given.b, measurement.b))
        if side.parameters and reading.parameters != side.parameters
    ]
    if others:
        what += f", with another model of {' and '.join(others)} than the one that trained"
    return what


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b / a


CLOSE = 0.04
"""Ratios that differ by less than this share are the same, rounded."""


@dataclass(frozen=True)
class Contradiction:
    """Something that makes a comparison invalid, or two measurements disagree.

    Parameters
    ----------
    kind
        A word for programs, such as ``nested_sum``.
    measurement
        The one it is about; None where it is about several.
    sentence
        What it is, with the numbers.
    """

    kind: str
    measurement: str | None
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {"kind": self.kind, "measurement": self.measurement, "sentence": self.sentence}


def contradictions_of(
    figure: Figure, given: Measurements, whole: Figure | None
) -> Iterator[Contradiction]:
    """Give what is wrong with one measurement."""
    for kind, sentence in (
        *_sums(figure, given, whole),
        *_windows(figure, given),
        *_readings(figure, given, whole),
        *_sizes(figure, given),
        *_models(figure, given),
        *_modes(figure, given),
        *_longer_than_whole(figure, given, whole),
        *_claims(figure),
    ):
        yield Contradiction(kind, figure.measurement.name, sentence)


def different_data(given: Measurements) -> Contradiction | None:
    """Return that epochs of the two hold different numbers of samples, where they do.

    The last step of an epoch may be cut short, so each number is known up to one step.
    """
    a, b = given.a, given.b
    most_a, most_b = a.samples_per_epoch, b.samples_per_epoch
    if most_a is None or most_b is None:
        return None
    least_a = most_a - (a.batch or 0) * (a.ranks or 0)
    least_b = most_b - (b.batch or 0) * (b.ranks or 0)
    if least_a < most_b and least_b < most_a:
        return None
    return Contradiction(
        "different_data",
        None,
        f"An epoch of {a.name} has {most_a:,.0f} samples, one of {b.name} {most_b:,.0f} (steps * "
        "batch * ranks), so a ratio of epochs compares different amounts of data.",
    )


def is_close(a: float, b: float) -> bool:
    """Return whether two ratios are the same but for rounding."""
    return abs(a - b) <= CLOSE * max(abs(a), abs(b))


_Found = Iterator[tuple[str, str]]


def _sums(figure: Figure, given: Measurements, whole: Figure | None) -> _Found:
    one = figure.measurement
    if one.measured is not Measured.trace or one.nested is False:
        return
    if one.nested is None:
        yield (
            "sum_not_said",
            f"'{one.name}' does not say whether durations of nested events were added up (sum: "
            "nested) or self times (sum: self); only the latter are comparable.",
        )
        return
    sentence = (
        f"'{one.name}' adds up durations of nested events, so one second counts once per level of "
        f"the stack: {_claimed(figure)} is a ratio of such sums and not of times."
    )
    sums = [sum_per_step(one, reading) for reading in (one.a, one.b)]
    steps = [None, None] if whole is None else [whole.a.step, whole.b.step]
    levels = [
        f"{total / step:.0f} times the step of {side.name}"
        for total, step, side in zip(sums, steps, (given.a, given.b), strict=True)
        if total and step and total > 1.05 * step
    ]
    if levels:
        sentence += f" By their steps the sums are {listed(levels)}."
    yield "nested_sum", sentence


def _windows(figure: Figure, given: Measurements) -> _Found:
    one, a, b = figure.measurement, figure.measurement.a, figure.measurement.b
    if a.window_steps and b.window_steps and a.window_steps != b.window_steps:
        sentence = (
            f"'{one.name}' has windows of {_steps(a.window_steps)} of {given.a.name} and "
            f"{_steps(b.window_steps)} of {given.b.name}"
        )
        if one.measured is Measured.trace:
            per_step = figure.raw_ratio * a.window_steps / b.window_steps
            sentence += (
                f": {ratio_text(b.window_steps / a.window_steps)} of its "
                f"{ratio_text(figure.raw_ratio)} is this alone, and by steps it is "
                f"{ratio_text(per_step)}"
            )
        yield "unequal_windows", f"{sentence}."
    for side, reading in ((given.a, a), (given.b, b)):
        if reading.startup_seconds is not None and reading.window_steps:
            left = (sum_per_step(one, a), sum_per_step(one, b))
            sentence = (
                f"One of the {_steps(reading.window_steps)} of {side.name} in '{one.name}' is "
                f"{seconds_text(reading.startup_seconds)} of the profiler's own start, not of the "
                "program"
            )
            if left[0] and left[1]:
                sentence += f"; without that step it is {ratio_text(left[1] / left[0])} by steps"
            yield "profiler_start", f"{sentence}."


def _readings(figure: Figure, given: Measurements, whole: Figure | None) -> _Found:
    one = figure.measurement
    for place, (side, reading) in enumerate(((given.a, one.a), (given.b, one.b))):
        if not reading.warmup:
            continue
        cut, kept = reading.readings[: reading.warmup], reading.steady
        what = "is the plain average of" if reading.is_mean_with_warmup else "comes with"
        unit = one.unit.value
        sentence = (
            f"The {reading.value:g} {unit} of {side.name} in '{one.name}' {what} "
            f"{len(reading.readings)} readings from {min(reading.readings):g} to "
            f"{max(reading.readings):g}: the first {len(cut)} ({_list(cut)}) are warm-up or sanity "
            f"check, the rest ({_list(kept)}) is {steady_value(reading):g} {unit}"
        )
        if reading.is_mean_with_warmup:
            sentence += f", so {_claimed(figure)} is a ratio of the warm-up"
        step = None if whole is None else (whole.a.step, whole.b.step)[place]
        steady = seconds_of(one, steady_value(reading))
        if step and one.mode is Mode.data and steady > step:
            sentence += (
                f". Nor is what is left a measure of the training: {seconds_text(steady)} a step "
                f"for a part of a step that takes {seconds_text(step)}"
            )
        yield "warmup_average", f"{sentence}."


def _sizes(figure: Figure, given: Measurements) -> _Found:
    one, a, b = figure.measurement, figure.measurement.a, figure.measurement.b
    if a.ranks and b.ranks and a.ranks != b.ranks:
        yield (
            "ranks",
            f"'{one.name}' has {count_text(a.ranks, 'rank')} of {given.a.name} and {b.ranks} of "
            f"{given.b.name}.",
        )
    if one.measured is Measured.epoch or not a.samples_per_step or not b.samples_per_step:
        return
    if a.samples_per_step == b.samples_per_step or figure.supports is None:
        return
    sample, step = figure.sample_ratio, figure.step_ratio
    if sample is None or step is None:
        return
    sentence = (
        f"'{one.name}' compares steps of unequal size, batch {a.batch} against {b.batch}: "
        f"{ratio_text(step)} per {'step' if one.mode is Mode.train else 'batch'} is "
        f"{ratio_text(sample)} per sample"
    )
    steps = (given.a.steps_per_epoch, given.b.steps_per_epoch)
    if one.mode is Mode.train and steps[0] and steps[1] and figure.a.epoch and figure.b.epoch:
        sentence += (
            f", and with {steps[0]:,} against {steps[1]:,} steps an epoch the training steps of an "
            f"epoch are {seconds_text(figure.a.epoch)} against {seconds_text(figure.b.epoch)}"
        )
    yield "batch_sizes", f"{sentence}."


def _models(figure: Figure, given: Measurements) -> _Found:
    one = figure.measurement
    for side, reading in ((given.a, one.a), (given.b, one.b)):
        if side.parameters and reading.parameters and side.parameters != reading.parameters:
            size = "smaller" if reading.parameters < side.parameters else "larger"
            yield (
                "other_model",
                f"'{one.name}' measures a {size} {side.name} ({reading.parameters:,} parameters) "
                f"than the one that trained ({side.parameters:,}), so {_claimed(figure)} says "
                "nothing of that one.",
            )


def _modes(figure: Figure, given: Measurements) -> _Found:
    one = figure.measurement
    if one.measured is Measured.saved:
        sentence = f"'{one.name}' has no loader, no collation and no transfer"
        batches = [
            f"{reading.batch} where {side.name} trained with {side.batch}"
            for side, reading in ((given.a, one.a), (given.b, one.b))
            if side.batch and reading.batch and side.batch != reading.batch
        ]
        if batches:
            sentence += f", and a batch of {listed(batches)}"
        yield "no_loader", f"{sentence}: it is about the model alone."
    if one.measured is not Measured.loader_and_model:
        return
    if one.mode is None:
        yield (
            "mode_not_said",
            f"'{one.name}' does not say how much of a step the model did (mode: forward, step or "
            "train), so it is not clear what was timed.",
        )
    elif one.mode is not Mode.train:
        ended, missing = _LEFT_OUT[one.mode]
        yield (
            "forward_only" if one.mode is Mode.forward else "not_whole",
            f"The model of '{one.name}' returned {ended} (mode '{one.mode}'), so its "
            f"{_claimed(figure)} is without {missing}.",
        )


_LEFT_OUT = {
    Mode.step: ("before the optimizer", "the optimizer"),
    Mode.forward: ("before backward", "backward and the optimizer"),
    Mode.data: ("before forward", "the model"),
    Mode.fixed: ("to the same batch", "the loader"),
    Mode.empty: ("before forward", "the model"),
}


def _longer_than_whole(figure: Figure, given: Measurements, whole: Figure | None) -> _Found:
    one = figure.measurement
    if whole is None or one.measured not in (Measured.loader, Measured.loader_and_model):
        return
    rows: Sequence[tuple[Side, Reading, float | None, float | None]] = (
        (given.a, one.a, figure.a.step, whole.a.step),
        (given.b, one.b, figure.b.step, whole.b.step),
    )
    for side, reading, part, step in rows:
        # Where readings were cut, that is said with them.
        if reading.warmup or part is None or step is None or reading.batch != side.batch:
            continue
        if part > step * (1 + CLOSE):
            yield (
                "part_longer_than_whole",
                f"'{one.name}' says {seconds_text(part)} a step of {side.name} for a part of a "
                f"step that takes {seconds_text(step)} in the training: they are not of the same "
                "state.",
            )


def _claims(figure: Figure) -> _Found:
    one = figure.measurement
    if one.claimed is None:
        return
    ratios = (figure.raw_ratio, figure.step_ratio, figure.sample_ratio, figure.epoch_ratio)
    if not any(ratio is not None and is_close(one.claimed, ratio) for ratio in ratios):
        yield (
            "claim_differs",
            f"'{one.name}' was said to be {one.claimed:g}x, and its own values are "
            f"{ratio_text(figure.raw_ratio)}.",
        )


def _claimed(figure: Figure) -> str:
    claimed = figure.measurement.claimed
    return ratio_text(figure.raw_ratio) if claimed is None else f"{claimed:g}x"


def _steps(count: int) -> str:
    return f"{count:,} step" if count == 1 else f"{count:,} steps"


def _list(values: Sequence[float]) -> str:
    few = [f"{value:g}" for value in values[:5]]
    return ", ".join(few) + (", …" if len(values) > len(few) else "")
