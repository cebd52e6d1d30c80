"""What makes the difference between two traces on the host, and which rule decides it.

A change that all categories share is due to the machine, so categories are compared by their change
beyond the common pace. What is behind the category that leads is decided by the first rule of
`HostRule` that applies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from deltacell.profile.explain.account import Bar, Waterfall
from deltacell.profile.explain.causes import (
    CannotTell,
    Cause,
    CauseKind,
    GapShare,
    MoreCalls,
    SlowerMachine,
    UnlikeCalls,
)
from deltacell.profile.explain.changes import (
    MOSTLY,
    OF_MODEL,
    common_ratio,
    most_changed,
    ratio_along,
    step_ratio,
)
from deltacell.profile.explain.programs import MORE, ProgramPair
from deltacell.profile.explain.view import View
from deltacell.profile.explain.workload import WorkChange, work_change

FEWEST_STEPS = 3  # in which a stall is not in most steps
SLOWEST_MACHINE = 4.0  # a larger ratio is not that of two machines
NEAR_PACE = 1.5  # a category whose ratio differs by less from that of all keeps the pace
KEEPS_PACE = 0.6  # the share of the time that keeps the pace if a machine is slower
WORTH_NAMING = 0.1  # of a gap


class HostRule(StrEnum):
    """What decides the first cause of a difference on the host, in the order of precedence."""

    # The category that leads does other work: other sizes, another execution, other calls.
    other_work = "other work"
    # One program calls operators more often, but not those of the category that leads.
    unlike_calls = "unlike calls"
    # All categories take about as many times as long.
    common_pace = "common pace"
    # The operator that leads is called more often.
    more_calls = "more calls"
    # The same operators are called as often, on inputs whose sizes are not recorded.
    same_calls = "same calls"
    # Nothing else is known of the category that leads.
    largest_change = "largest change"

    @property
    def is_of_whole_step(self) -> bool:
        """Whether the cause stands beside the categories, and not for the one that leads."""
        return self in (HostRule.unlike_calls, HostRule.common_pace)


@dataclass(frozen=True)
class HostVerdict:
    """The first cause of a difference on the host, and the rule that decided it."""

    rule: HostRule
    cause: Cause


@dataclass(frozen=True)
class HostGap:
    """The gap between two traces on the host, which has a change in its direction."""

    pair: ProgramPair
    fall: Waterfall  # by category of the host

    @property
    def sign(self) -> int:
        """1 if B is the slower one, -1 if A is."""
        return 1 if self.fall.gap > 0 else -1

    @property
    def slower(self) -> View:
        """The trace whose step takes longer."""
        return self.pair.b if self.fall.gap > 0 else self.pair.a

    @property
    def faster(self) -> View:
        """The trace whose step takes less time."""
        return self.pair.a if self.fall.gap > 0 else self.pair.b

    @cached_property
    def pace(self) -> float:
        """The ratio of B to A that operations have in common."""
        return common_ratio(self.pair.a.host, self.pair.b.host)

    @cached_property
    def ratio(self) -> float:
        """The ratio of a step's times in the direction of the gap."""
        return ratio_along(self.pair, self.fall)

    def beyond_pace(self, bar: Bar) -> float:
        """Return the seconds by which a category is longer than the common pace makes it."""
        return self.sign * (bar.b - self.pace * bar.a)

    @cached_property
    def bars(self) -> list[Bar]:
        """The categories that change in the direction of the gap, by their change beyond pace."""
        return sorted(_bars_along(self.fall), key=lambda bar: -self.beyond_pace(bar))

    @property
    def lead(self) -> Bar:
        """The category that changes most beyond the common pace."""
        return self.bars[0]

    @cached_property
    def lead_cause(self) -> Cause:
        """The category that leads as a cause, with nothing else known of it."""
        return host_change(self.lead, self.fall, self.pair)

    @property
    def lead_is_of_model(self) -> bool:
        """Whether the work of the model can change in the category that leads."""
        return self.lead.part in OF_MODEL

    @cached_property
    def more_calls(self) -> MoreCalls | None:
        """How much more often the operator that leads is called; None if it is not."""
        return _more_calls_of_lead(self)

    @property
    def calls_are_unlike(self) -> bool:
        """Whether one program calls operators more often, and another one than these leads."""
        return self.more_calls is None and self.pair.one_calls_more

    @property
    def is_paced(self) -> bool:
        """Whether the common pace explains most of the gap, and no category most of it beyond."""
        by_pace = (self.pace - 1) * self.fall.a / self.fall.gap
        return by_pace >= MOSTLY and self.beyond_pace(self.lead) < MOSTLY * abs(self.fall.gap)

    @property
    def calls_are_the_same(self) -> bool:
        """Whether the same operators are called as often, and larger inputs would not be seen."""
        pair = self.pair
        return pair.has_operators and pair.calls_as_often and not pair.has_shapes


def host_changes(pair: ProgramPair, fall: Waterfall) -> list[Cause]:
    """Return what makes the difference on the host, the cause that decides first.

    The categories follow in the order of their change beyond the common pace. The first of them is
    left out if the cause that decides stands for it.
    """
    if not _bars_along(fall):
        return []
    gap = HostGap(pair, fall)
    verdict = host_verdict(gap)
    by_category = [host_change(bar, fall, pair) for bar in gap.bars]
    others = by_category if verdict.rule.is_of_whole_step else by_category[1:]
    return [verdict.cause, *others]


def _bars_along(fall: Waterfall) -> list[Bar]:
    return [bar for bar in fall.bars if bar.change * fall.gap > 0]


def host_verdict(gap: HostGap) -> HostVerdict:
    """Return the first cause of a difference on the host, by the first rule that applies."""
    return (
        _by_other_work(gap)
        or _by_unlike_calls(gap)
        or _by_common_pace(gap)
        or _by_more_calls(gap)
        or _by_same_calls(gap)
        or HostVerdict(HostRule.largest_change, gap.lead_cause)
    )


def _by_other_work(gap: HostGap) -> HostVerdict | None:
    work = work_change(gap.pair, gap.ratio) if gap.lead_is_of_model else None
    if work is None:
        return None
    part = host_gap_share(_bar_of_work(gap, work), gap.fall, gap.pair)
    lead = gap.lead_cause
    evidence = replace(part, detail=work.detail)
    return HostVerdict(
        HostRule.other_work,
        Cause(work.kind, None, lead.seconds, lead.share, evidence),
    )


def _bar_of_work(gap: HostGap, work: WorkChange) -> Bar:
    """Return the category in which other work shows.

    More work is not a matter of pace, so it is the one with the largest change.
    """
    if work.kind in (CauseKind.calls, CauseKind.sizes):
        return max(gap.bars, key=lambda bar: abs(bar.change))
    return gap.lead


def _by_unlike_calls(gap: HostGap) -> HostVerdict | None:
    """Decide that it cannot be told: calls differ, and the category that leads has as many."""
    if not gap.lead_is_of_model or not gap.calls_are_unlike or _is_code_of_most_steps(gap):
        return None
    calls_a, calls_b = gap.pair.all_calls
    name = gap.lead_cause.name
    evidence = UnlikeCalls(
        a=gap.pair.a.name,
        b=gap.pair.b.name,
        calls_a=calls_a,
        calls_b=calls_b,
        ratio=gap.ratio,
        part=gap.lead.part,
        operation=name if name != gap.lead.part else None,
    )
    cause = Cause(CauseKind.unknown, None, gap.fall.gap, 1.0, evidence)
    return HostVerdict(HostRule.unlike_calls, cause)


def _by_common_pace(gap: HostGap) -> HostVerdict | None:
    """Decide why everything takes longer: the machine, or that it cannot be told."""
    if not gap.is_paced:
        return None
    cause = _slower_machine(gap) if _is_slower_machine(gap) else _cannot_tell(gap)
    return HostVerdict(HostRule.common_pace, cause)


def _is_slower_machine(gap: HostGap) -> bool:
    """Return whether a machine is slower or busier.

    It is so only if the program is the same, with as many calls of its ranges, modules and
    operators on inputs of the same size, all categories take about as many times as long, and the
    ratio is one that machines have.
    """
    pair = gap.pair
    is_same_size = pair.inputs_of_same_size or not pair.has_operators
    is_same_work = pair.calls_as_often and pair.components_as_often and is_same_size
    is_possible = 1 / SLOWEST_MACHINE < gap.pace < SLOWEST_MACHINE
    return is_same_work and is_possible and _keep_pace(gap) >= KEEPS_PACE


def _keep_pace(gap: HostGap) -> float:
    """Return the share of the time of B in categories that keep the common pace."""
    in_a = gap.pair.a.categories
    in_b = gap.pair.b.categories
    near = 0.0
    for category, seconds in in_b.items():
        ratio = seconds / in_a[category] if in_a.get(category) else math.inf
        if 1 / NEAR_PACE < ratio / gap.pace < NEAR_PACE:
            near += seconds
    return near / (math.fsum(in_b.values()) or 1.0)


def _slower_machine(gap: HostGap) -> Cause:
    is_worth_naming = gap.beyond_pace(gap.lead) > WORTH_NAMING * abs(gap.fall.gap)
    beyond = host_gap_share(gap.lead, gap.fall, gap.pair) if is_worth_naming else None
    is_competing = bool(gap.pair.b.traits.workers and not gap.pair.a.traits.workers)
    slower = SlowerMachine(gap.pace, competing_workers=is_competing, beyond=beyond)
    return Cause(CauseKind.machine, None, gap.fall.gap, 1.0, slower)


def _cannot_tell(gap: HostGap) -> Cause:
    unknown = CannotTell(gap.pace, has_shapes=gap.pair.has_shapes)
    return Cause(CauseKind.unknown, None, gap.fall.gap, 1.0, unknown)


def _by_more_calls(gap: HostGap) -> HostVerdict | None:
    if not gap.lead_is_of_model or gap.more_calls is None:
        return None
    cause = _lead_with(gap, CauseKind.calls, gap.more_calls)
    return HostVerdict(HostRule.more_calls, cause)


def _by_same_calls(gap: HostGap) -> HostVerdict | None:
    if not gap.lead_is_of_model or not gap.calls_are_the_same:
        return None
    unknown = CannotTell(step_ratio(gap.pair.a, gap.pair.b), has_shapes=False)
    return HostVerdict(HostRule.same_calls, _lead_with(gap, CauseKind.unknown, unknown))


def _lead_with(gap: HostGap, kind: CauseKind, detail: MoreCalls | CannotTell) -> Cause:
    """Return the category that leads as a cause, with what is behind its change."""
    part = host_gap_share(gap.lead, gap.fall, gap.pair)
    return replace(gap.lead_cause, kind=kind, evidence=replace(part, detail=detail))


def _more_calls_of_lead(gap: HostGap) -> MoreCalls | None:
    """Return whether the operator that leads a category is called more often.

    Only operators have calls to count; other names stand for Python code or for nothing.
    """
    pair = gap.pair
    name = gap.lead_cause.name
    if name is None or not _is_operator(name, pair):
        return None
    in_slower = gap.slower.host_calls(name)
    if in_slower < MORE * gap.faster.host_calls(name) or not in_slower:
        return None
    return MoreCalls(name, pair.a.host_calls(name), pair.b.host_calls(name), gap.slower.name)


def _is_operator(name: str, pair: ProgramPair) -> bool:
    return name in pair.a.operator_names or name in pair.b.operator_names


def _is_code_of_most_steps(gap: HostGap) -> bool:
    """Return whether code that is no operator makes most of a gap in most steps.

    More calls of operators take more of the Python around them, so only the time beyond the ratio
    of all calls counts. A stall, which a busy machine may cause, is not in most steps.
    """
    name = gap.lead_cause.name
    if name is None or _is_operator(name, gap.pair) or len(gap.slower.times) < FEWEST_STEPS:
        return False
    calls_a, calls_b = gap.pair.all_calls
    more_calls = calls_b / calls_a if gap.sign > 0 else calls_a / calls_b
    in_slower = float(np.median(gap.slower.steps_of(name)))
    in_faster = float(np.median(gap.faster.steps_of(name)))
    by_code = in_slower - max(more_calls, 1.0) * in_faster
    return by_code >= MOSTLY * abs(gap.fall.gap)


def host_change(bar: Bar, fall: Waterfall, pair: ProgramPair) -> Cause:
    """Return the change of a category of the host as a cause."""
    part = host_gap_share(bar, fall, pair)
    name = part.operation or bar.part
    return Cause(CauseKind.host, name, bar.change, bar.share or 0.0, part)


def host_gap_share(bar: Bar, fall: Waterfall, pair: ProgramPair) -> GapShare:
    """Return the change of a category of the host, with the operation that changed most in it."""
    name = most_changed(pair.a.by("host", bar.part), pair.b.by("host", bar.part), bar.change)
    return GapShare(bar.part, bar.change, fall.gap, operation=name)
