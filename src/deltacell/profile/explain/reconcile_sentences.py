"""Sentences about measurements that disagree, made from values."""

from __future__ import annotations

from collections.abc import Sequence

from deltacell.base.text import count_text, listed, ratio_text, seconds_text, share_text
from deltacell.profile.explain.account import Account, Comparison, EpochRatio, Waterfall
from deltacell.profile.explain.contradictions import (
    BackwardMissing,
    ClaimDiffers,
    Contradiction,
    DifferentData,
    ExcludeEachOther,
    ForwardOnly,
    LoaderLongerThanEpoch,
    NestedSum,
    NoLoader,
    NotWhole,
    OtherConditions,
    OtherModel,
    OutsideTheSteps,
    ProfilerStart,
    StepBelowForward,
    StepsLongerThanEpoch,
    SumBelowStep,
    UnequalBatches,
    UnequalRanks,
    UnequalWindows,
    UnexplainedRest,
    WarmupAverage,
)
from deltacell.profile.explain.figures import Figure, SideReading
from deltacell.profile.explain.measurements import Side

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
        case LoaderLongerThanEpoch():
            return _loader_longer_than_epoch(contradiction)
        case OtherConditions():
            return _other_conditions(contradiction)
        case UnexplainedRest():
            return _unexplained_rest(contradiction)
        case SumBelowStep():
            return _sum_below_step(contradiction)
        case BackwardMissing():
            return _backward_missing(contradiction)
        case StepBelowForward():
            return _step_below_forward(contradiction)
        case ExcludeEachOther():
            return _exclude_each_other(contradiction)
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
    levels = [f"{times:.3g} times the one of {name}" for name, times in c.times_of_step]
    return (
        f"{sentence} Compared with the wall time of an epoch over its steps, the sum per step is"
        f" {listed(levels)}."
    )


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


def _steps_of(side: SideReading, steps_s: float) -> str:
    per_step = seconds_text(side.per_step or 0.0)
    return f"{side.side.steps_per_epoch:,} steps of {per_step} take {seconds_text(steps_s)}"


def _steps_longer_than_epoch(c: StepsLongerThanEpoch) -> str:
    return (
        f"By '{c.figure.measurement.name}', {_steps_of(c.side, c.steps_s)}, but an epoch of"
        f" {c.side.side.name} takes {seconds_text(c.epoch_s)}: they are not from the same training."
    )


def _loader_longer_than_epoch(c: LoaderLongerThanEpoch) -> str:
    return (
        f"By '{c.figure.measurement.name}', {_steps_of(c.side, c.steps_s)} in the loader of"
        f" {c.side.side.name} alone, but its whole epoch takes {seconds_text(c.epoch_s)}: this"
        " loader did not feed the training."
    )


def _other_conditions(c: OtherConditions) -> str:
    name = c.side.side.name
    differences = [
        f"{condition.replace('_', ' ')} {getattr(c.side.reading, condition):,} where the training"
        f" has {getattr(c.side.side, condition):,}"
        for condition in c.names
    ]
    sentence = (
        f"'{c.figure.measurement.name}' is not of the training of {name}: {listed(differences)}."
    )
    epoch_s = c.side.times.epoch
    steps = c.side.side.samples_per_epoch
    per_step = c.side.reading.samples_per_step
    if c.side.wall.epoch_s is None or epoch_s is None or not steps or not per_step:
        return sentence
    return (
        f"{sentence} An epoch of {steps:,} samples at {per_step:,} per step and"
        f" {seconds_text(c.side.per_step or c.side.seconds)} per step would take"
        f" {seconds_text(epoch_s)}, where {seconds_text(c.side.wall.epoch_s)} was observed."
    )


def _unexplained_rest(c: UnexplainedRest) -> str:
    rest = c.epoch_s - c.steps_s
    return (
        f"By '{c.figure.measurement.name}', {_steps_of(c.side, c.steps_s)} of the"
        f" {seconds_text(c.epoch_s)} of an epoch of {c.side.side.name}: either"
        f" {seconds_text(rest)} ({share_text(rest / c.epoch_s)}) of every epoch lie outside the"
        " steps, which no reading shows, or the rate is of another run."
    )


def _sum_below_step(c: SumBelowStep) -> str:
    return (
        f"The sum of {c.side.side.name} in '{c.figure.measurement.name}' is"
        f" {seconds_text(c.sum_s)} per step, less than the {seconds_text(c.other_s)} of"
        f" '{c.other.measurement.name}'. A sum over nested events is never below the wall time of"
        f" a step, so it covers fewer than {c.side.reading.window_steps} steps."
    )


def _backward_missing(c: BackwardMissing) -> str:
    return (
        f"The model of {c.side.side.name} in '{c.figure.measurement.name}' takes"
        f" {seconds_text(c.model_s)} beside the loader, {share_text(c.model_s / c.left_s)} of the"
        f" {seconds_text(c.left_s)} that a training step leaves beside it: as if it returned"
        " before backward, which usually takes twice as long as forward."
    )


def _step_below_forward(c: StepBelowForward) -> str:
    return (
        f"By '{c.figure.measurement.name}', a full step of {c.side.side.name} takes"
        f" {seconds_text(c.step_s)} per sample, less than the {seconds_text(c.forward_s)} of the"
        " model in the training's configuration without a backward pass: it is of another model or"
        " other batches."
    )


def _exclude_each_other(c: ExcludeEachOther) -> str:
    first = c.figure
    second = c.other
    times = [
        f"{of_first.side.name} {seconds_text(of_first.times.step or 0.0)} against"
        f" {seconds_text(of_second.times.step or 0.0)} per step"
        for of_first, of_second in zip(first.sides, second.sides, strict=True)
    ]
    return (
        f"'{first.measurement.name}' gives {ratio_text(first.ratio('sample') or 0.0)} per sample"
        f" and '{second.measurement.name}' {ratio_text(second.ratio('sample') or 0.0)}"
        f" ({listed(times)}): they exclude each other. The individual readings of 100 loader"
        " steps after warm-up, as in the training, would decide."
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
        f" {_outside_text(ratio.outside_share_a)} of an epoch of {a.name} and"
        f" {_outside_text(ratio.outside_share_b)} of one of {b.name}."
    )


def _outside_text(share: float) -> str:
    """Return the share of an epoch outside its steps, which rounded readings can make negative."""
    return share_text(share) if share >= 0.01 else "under 1 %"


def whole_epochs_sentence(a: Account, b: Account, ratio: EpochRatio) -> str:
    """Return the conclusion if epochs were measured and the steps within them were not."""
    return (
        f"An epoch of {b.name} takes {ratio_text(ratio.epoch)} as long as one of {a.name},"
        f" {seconds_text(b.epoch_s or 0.0)} against {seconds_text(a.epoch_s or 0.0)}:"
        f" {ratio.steps:.3g} times as many steps, each {ratio.time_per_step:.3g} times as long"
        f" with everything around it ({seconds_text(b.step_s)} against {seconds_text(a.step_s)})."
    )


def parts_sentence(parts: Comparison, ranks: int | None) -> str:
    """Return which causes the parts of a step show, measured on other ranks than the training."""
    of_ranks = "" if ranks is None else f" on {count_text(ranks, 'rank')}"
    slow = parts.b
    shares = [
        f"{part} {share_text(seconds / slow.step_s)} ({seconds_text(seconds)})"
        for part, seconds in slow.parts.items()
    ]
    return (
        f"A step of {slow.name}{of_ranks} up to the end of the model's forward takes"
        f" {seconds_text(slow.step_s)}: {listed(shares)}; per {parts.steps.per} it takes"
        f" {ratio_text(parts.steps.ratio or 0.0)} as long as {parts.a.name}, and backward was not"
        " measured."
    )


def parts_of_epoch_sentence(part: Account, epoch: Account) -> str:
    """Return how much of an epoch the parts would be, if more ranks did not change them."""
    steps = epoch.steps_per_epoch or 0.0
    seconds = steps * part.step_s
    whole = epoch.epoch_s or 0.0
    return (
        f"{steps:,.0f} steps of {seconds_text(part.step_s)} would be {seconds_text(seconds)} of"
        f" the {seconds_text(whole)} of an epoch of {epoch.name}; the other"
        f" {seconds_text(whole - seconds)} ({share_text(1 - seconds / whole)}) are not measured:"
        " backward, optimizer, what the ranks cost each other, and what lies outside the steps."
    )


def deciding_sentence(sides: Sequence[Side]) -> str:
    """Return the one measurement that decides between readings that exclude each other."""
    configurations = []
    for side in sides:
        known = {"batch": side.batch, "ranks": side.ranks, "steps per epoch": side.steps_per_epoch}
        settings = [f"{name} {value:,}" for name, value in known.items() if value is not None]
        configurations.append(f"{side.name} ({', '.join(settings)})")
    return (
        "One measurement decides: the wall time of 100 consecutive steps after warm-up, with the"
        f" phases of a step, in the real training of {listed(configurations)}."
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
