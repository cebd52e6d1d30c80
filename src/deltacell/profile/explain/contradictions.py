"""What is wrong with measurements, or missing from them, each in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deltacell.profile.explain.figures import Figure, seconds_of, steady_value, sum_per_step
from deltacell.profile.explain.measurements import (
    Measured,
    Measurements,
    Mode,
    Reading,
    Side,
)
from deltacell.profile.explain.words import listed, ratio_text, seconds_text
from deltacell.words import count_text

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
