"""Sentences about measurements that disagree, made from values."""

from __future__ import annotations

from collections.abc import Sequence

from deltacell.profile.explain.account import Account, EpochRatio, Waterfall
from deltacell.profile.explain.contradictions import (
    ClaimDiffers,
    Contradiction,
    DifferentData,
    ForwardOnly,
    NestedSum,
    NoLoader,
    NotWhole,
    OtherModel,
    OutsideTheSteps,
    ProfilerStart,
    StepsLongerThanEpoch,
    UnequalBatches,
    UnequalRanks,
    UnequalWindows,
    WarmupAverage,
)
from deltacell.profile.explain.figures import Figure
from deltacell.profile.explain.measurements import Side
from deltacell.words import count_text, listed, ratio_text, seconds_text, share_text

MOST_READINGS = 5  # of a warm-up that a sentence lists

MARGINAL_COSTS = (
    "The loader alone, and loader and forward minus the loader, are marginal costs: each equals a"
    " share of the step only if loader and compute do not overlap."
)
MEASURE_EPOCH = (
    "Measure the wall time of an epoch from one beginning to the next: it is what has to be"
    " explained."
)
MEASURE_STEPS = "Measure the steps per second of the real training after its warm-up."
TIME_OUTSIDE = "Time what lies outside the steps: validation, figures, checkpoints."
TIME_PHASES = "Time the phases of full steps, which add up, instead of differences between modes."


def contradiction_sentence(contradiction: Contradiction) -> str:
    """Return a sentence that says what is wrong, with the arithmetic."""
    match contradiction:
        case DifferentData():
            return _different_data(contradiction)
        case NestedSum():
            return _nested_sum(contradiction)
        case UnequalWindows():
            return _unequal_windows(contradiction)
        case ProfilerStart():
            return _profiler_start(contradiction)
        case WarmupAverage():
            return _warmup_average(contradiction)
        case OtherModel():
            return _other_model(contradiction)
        case UnequalRanks():
            return _unequal_ranks(contradiction)
        case UnequalBatches():
            return _unequal_batches(contradiction)
        case NoLoader():
            return _no_loader(contradiction)
        case ForwardOnly():
            return _forward_only(contradiction)
        case NotWhole():
            return _not_whole(contradiction)
        case ClaimDiffers():
            return _claim_differs(contradiction)
        case StepsLongerThanEpoch():
            return _steps_longer_than_epoch(contradiction)
        case OutsideTheSteps():
            return _outside_the_steps(contradiction)
    raise AssertionError(contradiction.kind)


def _different_data(c: DifferentData) -> str:
    return (
        f"An epoch of {c.a.name} has {c.a.samples_per_epoch:,} samples and one of {c.b.name}"
        f" {c.b.samples_per_epoch:,} (steps * batch * ranks), so a ratio of epochs compares"
        " different amounts of data."
    )


def _nested_sum(c: NestedSum) -> str:
    sentence = (
        f"'{c.figure.measurement.name}' adds up durations of nested events, so one second counts"
        f" once per level of the stack: {c.figure.claim} is a ratio of such sums and not of times."
    )
    if not c.times_of_step:
        return sentence
    levels = [f"{times:.0f} times the step of {name}" for name, times in c.times_of_step]
    return f"{sentence} Per step the sums are {listed(levels)}."


def _unequal_windows(c: UnequalWindows) -> str:
    return (
        f"'{c.figure.measurement.name}' covers {count_text(c.steps_a, 'step')} of"
        f" {c.figure.a.side.name} and {count_text(c.steps_b, 'step')} of {c.figure.b.side.name},"
        f" which alone is a ratio of {ratio_text(c.steps_b / c.steps_a)}."
    )


def _profiler_start(c: ProfilerStart) -> str:
    return (
        f"One of the {count_text(c.window_steps, 'step')} of {c.side.side.name} in"
        f" '{c.figure.measurement.name}' is {seconds_text(c.seconds)} of profiler start-up."
    )


def _warmup_average(c: WarmupAverage) -> str:
    reading = c.side.reading
    unit = c.figure.measurement.unit
    is_mean = reading.is_mean_with_warmup
    first = ", ".join(f"{value:g}" for value in reading.readings[: reading.warmup][:MOST_READINGS])
    sentence = (
        f"The {reading.value:g} {unit} of {c.side.side.name} in '{c.figure.measurement.name}'"
        f" {'averages' if is_mean else 'comes with'} {len(reading.readings)} readings, of which"
        f" the first {reading.warmup} ({first}) are warm-up or sanity checks: the median of the"
        f" rest is {reading.steady:g} {unit}"
    )
    return f"{sentence}, and {c.figure.claim} is not a steady ratio." if is_mean else f"{sentence}."


def _other_model(c: OtherModel) -> str:
    return (
        f"'{c.figure.measurement.name}' measures another {c.side.side.name}"
        f" ({c.side.reading.parameters:,} parameters) than the one that trained"
        f" ({c.side.side.parameters:,}), so {c.figure.claim} does not apply to that one."
    )


def _unequal_ranks(c: UnequalRanks) -> str:
    a = c.figure.a
    b = c.figure.b
    return (
        f"'{c.figure.measurement.name}' has {a.reading.ranks} ranks of {a.side.name} and"
        f" {b.reading.ranks} of {b.side.name}."
    )


def _unequal_batches(c: UnequalBatches) -> str:
    a = c.figure.a
    b = c.figure.b
    sentence = (
        f"'{c.figure.measurement.name}' compares steps of unequal size, batch {a.reading.batch}"
        f" against {b.reading.batch}: {ratio_text(c.per_step)} per step is"
        f" {ratio_text(c.per_sample)} per sample"
    )
    epoch_a = a.times.epoch
    epoch_b = b.times.epoch
    if c.figure.measurement.mode != "train" or epoch_a is None or epoch_b is None:
        return f"{sentence}."
    return (
        f"{sentence}, and the training steps of an epoch ({a.side.steps_per_epoch:,} against"
        f" {b.side.steps_per_epoch:,}) take {seconds_text(epoch_a)} against"
        f" {seconds_text(epoch_b)}."
    )


def _no_loader(c: NoLoader) -> str:
    batches = [
        f"{side.reading.batch} where {side.side.name} trained with {side.side.batch}"
        for side in c.figure.sides
        if side.side.batch not in (None, side.reading.batch)
    ]
    also = f", and a batch of {listed(batches)}" if batches else ""
    return (
        f"'{c.figure.measurement.name}' has no loader, no collation and no transfer{also}: it"
        " times the model alone."
    )


def _forward_only(c: ForwardOnly) -> str:
    return (
        f"The model of '{c.figure.measurement.name}' returned before backward (mode 'forward'), so"
        f" its {c.figure.claim} does not include backward and the optimizer."
    )


def _not_whole(c: NotWhole) -> str:
    measurement = c.figure.measurement
    if measurement.mode:
        subject = f"The steps of '{measurement.name}' are not whole (mode '{measurement.mode}')"
    else:
        subject = (
            f"'{measurement.name}' does not say how much of a step the model did"
            " (mode: forward, step or train)"
        )
    return f"{subject}, so {c.figure.claim} is not a ratio of training steps."


def _claim_differs(c: ClaimDiffers) -> str:
    return (
        f"'{c.figure.measurement.name}' claims {c.figure.claim}, but its own values give"
        f" {ratio_text(c.figure.raw_ratio)}."
    )


def _steps_longer_than_epoch(c: StepsLongerThanEpoch) -> str:
    account = c.account
    steps_s = (account.steps_per_epoch or 0.0) * account.step_s
    return (
        f"The training steps of {account.name} take {seconds_text(steps_s)} by the time of a"
        f" step, but its epoch takes {seconds_text(account.epoch_s or 0.0)}: they are not from"
        " the same training."
    )


def _outside_the_steps(c: OutsideTheSteps) -> str:
    ratio = c.ratio
    return (
        f"The training steps predict {ratio_text(ratio.of_steps)} per epoch where"
        f" {ratio_text(ratio.epoch)} was observed. The rest lies outside the steps:"
        f" {share_text(ratio.outside_share_a)} of an epoch of {c.a.name}"
        f" ({seconds_text(c.a.outside_s)}) and {share_text(ratio.outside_share_b)} of an epoch of"
        f" {c.b.name} ({seconds_text(c.b.outside_s)})."
    )


def epochs_sentence(a: Account, b: Account, ratio: EpochRatio) -> str:
    """Return the conclusion if whole epochs of both trainings were measured."""
    return (
        f"An epoch of {b.name} takes {ratio_text(ratio.epoch)} as long as one of {a.name},"
        f" {seconds_text(b.epoch_s or 0.0)} against {seconds_text(a.epoch_s or 0.0)}:"
        f" {ratio.steps:.3g} times as many steps, each {ratio.time_per_step:.3g} times as long,"
        f" predict {ratio_text(ratio.of_steps)}, and the rest lies outside the steps,"
        f" {share_text(ratio.outside_share_a)} of an epoch of {a.name} and"
        f" {share_text(ratio.outside_share_b)} of one of {b.name}."
    )


def steps_sentence(a: Account, b: Account, steps: Waterfall) -> str:
    """Return the conclusion if only steps of the trainings were measured."""
    return (
        f"A {steps.per} of {b.name} takes {ratio_text(steps.ratio or 0.0)} as long as one of"
        f" {a.name} in the training steps, {seconds_text(steps.b)} against"
        f" {seconds_text(steps.a)}; the time of a whole epoch was not measured."
    )


def not_reconciled_sentence(a: Side, b: Side, figures: Sequence[Figure]) -> str:
    """Return the conclusion if no step of the trainings was measured."""
    supported = [
        f"{ratio_text(figure.supports)} per {figure.per}, of {figure.of}"
        for figure in figures
        if figure.supports is not None
    ]
    return (
        f"The measurements support {', '.join(supported) or 'no ratio'}; no step of the real"
        f" training of {b.name} and {a.name} was measured."
    )


def step_sentence(account: Account) -> str:
    """Return the parts of a step, which add up."""
    parts = [f"{seconds_text(seconds)} {part}" for part, seconds in account.parts.items()]
    return f"A step of {account.name} takes {seconds_text(account.step_s)} = {' + '.join(parts)}."


def same_data_sentence(a: Side, b: Side) -> str:
    """Return that epochs of both trainings have the same samples."""
    return (
        f"Both epochs cover the same data: {a.samples_per_epoch:,} and {b.samples_per_epoch:,}"
        " samples (steps * batch * ranks), which agree up to the last step."
    )
