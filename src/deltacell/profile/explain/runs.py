"""The judgement on two runs of this program: which setting makes one of them slower.

A setting is blamed only if the parts of a step that it acts on make at least half of the gap, and
if it changed in the direction of the gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from deltacell.profile.explain.account import Account, Comparison, Waterfall
from deltacell.profile.explain.causes import (
    Cause,
    CauseKind,
    GapShare,
    NoSetting,
    OtherSettings,
    OtherWork,
    RunWork,
)
from deltacell.profile.explain.noise import Difference
from deltacell.profile.explain.settings import (
    RunSettings,
    SettingChange,
    SettingKind,
    Value,
    changes_between,
)
from deltacell.profile.explain.subject import RunTimes
from deltacell.profile.record import Messages
from deltacell.profile.trace.categories import Category

SAME = 0.02  # times that differ by at most this share are the same
MOST = 0.5  # a setting explains a gap if the parts that it acts on make at least this share of it
BEYOND = 1.25  # a batch or threads explain no ratio that is more than this many times their own
APART = 0.10  # ratios that differ by a larger share are worth a clause
SLOW_STEP = 2.0  # a step that takes more than this many times the median is slow

_KINDS = {
    SettingKind.model: CauseKind.model,
    SettingKind.propagation: CauseKind.propagation,
    SettingKind.loss: CauseKind.loss_function,
    SettingKind.batch: CauseKind.batch,
    SettingKind.ranks: CauseKind.ranks,
    SettingKind.relations: CauseKind.relations,
    SettingKind.parameters: CauseKind.parameters,
    SettingKind.option: CauseKind.option,
    SettingKind.genes: CauseKind.genes,
    SettingKind.cell: CauseKind.cell,
    SettingKind.accumulated: CauseKind.accumulated,
    SettingKind.precision: CauseKind.precision,
    SettingKind.compiled: CauseKind.compiled,
    SettingKind.device: CauseKind.device,
    SettingKind.threads: CauseKind.threads,
    SettingKind.torch: CauseKind.torch,
    SettingKind.mode: CauseKind.mode,
}
# The parts of a step that a setting acts on; None is all of them.
_COMPUTING = frozenset(
    {
        Category.transfer.title,
        Category.preparation.title,
        Category.forward.title,
        Category.loss.title,
        Category.backward.title,
        Category.communication.title,
        Category.optimizer.title,
    },
)
_OF_LOSS = frozenset(
    {
        Category.forward.title,
        Category.loss.title,
        Category.backward.title,
        Category.communication.title,
    },
)
_ONCE_PER_STEP = frozenset(
    {Category.communication.title, Category.optimizer.title, Category.logging.title},
)
_ACTS_ON = {
    SettingKind.loss: _OF_LOSS,
    SettingKind.accumulated: _ONCE_PER_STEP,
    SettingKind.batch: None,
    SettingKind.ranks: None,
    SettingKind.device: None,
    SettingKind.threads: None,
    SettingKind.mode: None,
}
# Settings on which the number of parameters depends.
_MAKE_PARAMETERS = frozenset(
    {
        SettingKind.model,
        SettingKind.relations,
        SettingKind.option,
        SettingKind.genes,
        SettingKind.cell,
    },
)
# Strategies in which the work on a mutant does not depend on how little it changes.
_WHOLE_MUTANTS = frozenset({Messages.graph_per_mutant, Messages.masked_edges})


@dataclass(frozen=True)
class SlowSteps:
    """Slow steps of a run, because of which its mean step takes longer than its median step."""

    run: str
    count: int
    steps: int
    first: int  # the number of the first slow step
    share: float  # of the time of all steady steps


@dataclass(frozen=True)
class OtherSamples:
    """Two runs with epochs of different length."""

    a: str
    b: str
    samples_a: int
    samples_b: int


@dataclass(frozen=True)
class OutsideSteps:
    """A run that spends more of an epoch outside its steps than the other one."""

    run: str
    share: float  # of an epoch
    part: str  # that takes most of it


RatioReason = SlowSteps | OtherSamples | OutsideSteps


@dataclass(frozen=True)
class RunsJudgement:
    """What differs between two runs, what makes the gap, and why other ratios differ from it."""

    changes: tuple[SettingChange, ...]
    is_recorded: bool  # all settings of both runs are known
    lead: Waterfall  # the comparison that leads: per sample or step, or per epoch
    cause: Cause | None  # None if the runs take the same time, up to noise
    reasons: tuple[RatioReason, ...]


def judge_runs(
    a: RunTimes,
    b: RunTimes,
    compared: Comparison,
    noise: Difference | None,
) -> RunsJudgement:
    """Judge two runs by what a sample takes, or an epoch if only that differs."""
    changes = tuple(changes_between(a.settings, b.settings))
    is_recorded = a.settings.is_complete and b.settings.is_complete
    reasons = _ratio_reasons(a, b, compared, noise)
    fall = compared.steps
    is_noise = noise is not None and not noise.is_beyond
    is_same = is_noise or fall.ratio is None or abs(fall.ratio - 1) <= SAME
    is_of_epoch = any(isinstance(reason, OutsideSteps) for reason in reasons)
    epochs = compared.epochs
    if is_same and is_of_epoch and epochs is not None and _differs(epochs):
        fall = epochs
        is_same = False
        reasons = []
    cause = None
    if not is_same and fall.gap:
        work_a = _work(compared.a.name, a.settings)
        work_b = _work(compared.b.name, b.settings)
        cause = cause_of_gap(changes, fall, work_a, work_b, is_recorded=is_recorded)
    return RunsJudgement(changes, is_recorded, fall, cause, tuple(reasons))


def _work(run: str, settings: RunSettings) -> RunWork:
    return RunWork(
        run,
        settings.model or "unknown",
        settings.messages,
        settings.propagation,
        settings.strategy,
    )


def cause_of_gap(
    changes: Sequence[SettingChange],
    fall: Waterfall,
    work_a: RunWork,
    work_b: RunWork,
    *,
    is_recorded: bool,
) -> Cause:
    """Return the setting that explains a gap, several of them, or the part that makes most of it.

    Another mode or model comes before all other settings, because these belong to it; so does a
    propagation of whole mutants against one that uses the wild type.
    """
    assert fall.ratio is not None
    lead = max(fall.bars, key=lambda bar: bar.change * (1 if fall.gap > 0 else -1))
    part = GapShare(lead.part, lead.change, fall.gap)
    candidates = [change for change in _independent(changes) if explains(change, fall)]
    if not candidates:
        known = tuple(changes) if is_recorded or changes else None
        share = lead.change / fall.gap
        return Cause(CauseKind.no_setting, None, lead.change, share, NoSetting(part, known))
    first = candidates[0]
    slow, fast = (work_b, work_a) if fall.gap > 0 else (work_a, work_b)
    is_other_strategy = first.kind is SettingKind.propagation and (
        slow.messages in _WHOLE_MUTANTS and fast.messages not in _WHOLE_MUTANTS
    )
    is_alone = len(candidates) == 1
    if first.kind is SettingKind.mode:
        candidates = [first]
    elif first.kind is SettingKind.model or is_other_strategy:
        kind = _KINDS[first.kind]
        return Cause(kind, first.name, fall.gap, 1.0, OtherWork(slow, fast))
    elif first.kind is SettingKind.propagation and is_alone:
        return Cause(CauseKind.propagation, first.name, fall.gap, 1.0, OtherWork(slow, fast))
    kind = _KINDS[first.kind] if len(candidates) == 1 else CauseKind.settings
    evidence = OtherSettings(tuple(candidates), fall.ratio, part)
    return Cause(kind, first.name, fall.gap, 1.0, evidence)


def _independent(changes: Sequence[SettingChange]) -> list[SettingChange]:
    """Return the changes without those that follow from another one, the mode first."""
    kinds = {change.kind for change in changes}
    kept = []
    for change in changes:
        follows = change.kind is SettingKind.parameters and kinds & _MAKE_PARAMETERS
        if not follows:
            kept.append(change)
    return sorted(kept, key=lambda change: change.kind is not SettingKind.mode)


def explains(change: SettingChange, fall: Waterfall) -> bool:
    """Return whether a setting acts on the parts that make a gap, and in its direction."""
    is_of_loss = change.kind is SettingKind.option and change.name.startswith("loss.")
    kind = SettingKind.loss if is_of_loss else change.kind
    parts = _ACTS_ON.get(kind, _COMPUTING)
    if parts is not None:
        moved = math.fsum(bar.change for bar in fall.bars if bar.part in parts)
        if moved / fall.gap < MOST:
            return False
    slow, fast = (change.b, change.a) if fall.gap > 0 else (change.a, change.b)
    ratio = max(fall.b, fall.a) / max(min(fall.b, fall.a), 1e-30)
    return _is_in_direction(kind, slow, fast, ratio, per_sample=fall.per == "sample")


def _is_in_direction(
    kind: SettingKind,
    slow: Value,
    fast: Value,
    ratio: float,
    *,
    per_sample: bool,
) -> bool:
    """Return whether a value can make a run slower than another one, by as much as it is."""
    match kind, slow, fast:
        case SettingKind.batch | SettingKind.accumulated, int(), int():
            # A step costs something whatever its batch, which more samples share.
            less, more = (slow, fast) if per_sample else (fast, slow)
            return less < more and ratio <= BEYOND * more / less
        case SettingKind.threads, int(), int():
            return slow < fast and ratio <= BEYOND * fast / slow
        case SettingKind.parameters | SettingKind.genes, int(), int():
            return slow > fast
        case SettingKind.relations, tuple(), tuple():
            return len(slow) >= len(fast)
    return True


def _ratio_reasons(
    a: RunTimes,
    b: RunTimes,
    compared: Comparison,
    noise: Difference | None,
) -> list[RatioReason]:
    """Return why the ratio of medians or of epochs differs from that of a sample or step."""
    reasons: list[RatioReason] = []
    ratio = compared.steps.ratio
    if ratio is None:
        return reasons
    names = (compared.a.name, compared.b.name)
    if noise is not None and (noise.of == "mean" or _is_apart(noise.ratio, ratio)):
        slow = [slow_steps(name, run) for name, run in zip(names, (a, b), strict=True)]
        several = [steps for steps in slow if steps is not None]
        if several:
            reasons.append(max(several, key=lambda steps: steps.share))
    if compared.epoch_ratio is not None and _is_apart(compared.epoch_ratio.epoch, ratio):
        reason = _epoch_reason(a, b, compared)
        if reason is not None:
            reasons.append(reason)
    return reasons


def _differs(fall: Waterfall) -> bool:
    """Return whether two take different times, of which no noise is known."""
    return fall.ratio is not None and _is_apart(fall.ratio, 1.0)


def _is_apart(ratio: float, other: float) -> bool:
    return abs(math.log(ratio / other)) > APART


def slow_steps(name: str, run: RunTimes) -> SlowSteps | None:
    """Return the steady steps that take more than `SLOW_STEP` times the median per sample."""
    steady = run.summary.steady.filter(pl.col("samples") > 0)
    per_sample = steady["wall_s"] / steady["samples"]
    median = per_sample.median()
    if not isinstance(median, float):
        return None
    is_slow = per_sample > SLOW_STEP * median
    slow = steady.filter(is_slow)
    if not len(slow):
        return None
    share = float(slow["wall_s"].sum()) / run.summary.wall_s
    return SlowSteps(name, len(slow), len(steady), int(slow["step"][0]), share)


def _epoch_reason(a: RunTimes, b: RunTimes, compared: Comparison) -> RatioReason | None:
    """Return the larger one of two reasons: other samples, or time outside the steps."""
    epochs = compared.epoch_ratio
    assert epochs is not None
    samples_a = samples_of_epoch(a)
    samples_b = samples_of_epoch(b)
    by_samples = 0.0
    if samples_a and samples_b and compared.steps.per == "sample":
        by_samples = abs(math.log(samples_b / samples_a))
    by_outside = abs(math.log(epochs.outside))
    if max(by_samples, by_outside) < APART / 2:
        return None
    if by_samples > by_outside:
        return OtherSamples(compared.a.name, compared.b.name, samples_a, samples_b)
    of_b = epochs.outside_share_b > epochs.outside_share_a
    account: Account = compared.b if of_b else compared.a
    share = epochs.outside_share_b if of_b else epochs.outside_share_a
    part = max(account.outside, key=lambda name: account.outside[name])
    return OutsideSteps(account.name, share, part)


def samples_of_epoch(run: RunTimes) -> int:
    """Return the number of samples of the longest epoch that was recorded, over all ranks."""
    per_epoch = run.rows.filter(kind="train").group_by("attempt", "epoch").agg(pl.sum("samples"))
    return max(per_epoch["samples"].to_list(), default=0)
