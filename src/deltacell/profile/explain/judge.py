"""The judgement: what takes the time of one trace, and what makes the difference between two.

With a device, causes are the parts of its time (compute, exposed communication and copies, and idle
time by reason) and the operations behind them. Without one, they are the host's categories.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from deltacell.profile.explain.account import Bar, Waterfall
from deltacell.profile.explain.causes import (
    DEVICE_PARTS,
    Cause,
    CauseKind,
    Detail,
    GapShare,
    IdleReason,
    IdleShare,
    LongerOperation,
    MoreCalls,
    MorePasses,
    OnlyOne,
    Operation,
    StepShare,
    Timed,
    TwoPrograms,
    UniformOperations,
)
from deltacell.profile.explain.changes import (
    MOSTLY,
    OF_MODEL,
    largest,
    most_changed,
    ratio_along,
    step_ratio,
    uniform_ratio,
)
from deltacell.profile.explain.host_rules import host_change, host_changes
from deltacell.profile.explain.programs import OperatorChange, ProgramPair, passes_change
from deltacell.profile.explain.view import Seconds, View
from deltacell.profile.explain.workload import PART_OF_GAP, work_change
from deltacell.profile.trace.work import NO_OPERATOR

MUCH = 0.10  # a larger share of a step is worth a clause
MODULE = "nn.Module: "  # the prefix of a module's name in a trace
# A rank that waits for the others does so in the exchange of gradients.
OF_STEP = (*OF_MODEL, "gradient communication")
# Parts of a device's time in which the work of the model can change.
OF_DEVICE = (CauseKind.compute, CauseKind.idle_launch, CauseKind.idle_host)


def causes_of_one(view: View, host: Mapping[str, float], late: Cause | None) -> list[Cause]:
    """Return what takes the time of one trace, the largest share first.

    A rank that the others wait for comes first if the wait is long, or else second.
    """
    causes = _on_device(view) if view.parts else _on_host(view, host)
    causes.sort(key=lambda cause: -cause.seconds)
    if late is not None and late.share > MUCH:
        computing = (CauseKind.compute, CauseKind.host)
        computing_share = next((c.share for c in causes if c.kind in computing), 0.0)
        causes.insert(0 if late.share >= min(computing_share, 0.25) else 1, late)
    return causes


def _on_device(view: View) -> list[Cause]:
    whole = sum(view.parts.values())
    causes = []
    for part, seconds in view.parts.items():
        if not seconds:
            continue
        share = seconds / whole
        if part == "idle":
            reason = largest(view.by("idle"), first_name_wins=True) or "end"
            name = largest(view.by("meanwhile", reason))
            idle = IdleShare(_largest_reasons(view))
            causes.append(Cause(CauseKind.idle(reason), name, seconds, share, idle))
        else:
            led = _led_by(view, part)
            name = None if led.operation is None else led.operation.name
            causes.append(Cause(CauseKind(part), name, seconds, share, led))
    return causes


def _largest_reasons(view: View) -> tuple[IdleReason, ...]:
    """Return the two largest reasons for idle time, as far as each is a fifth of it or more."""
    idle = view.by("idle")
    reasons = sorted(idle, key=lambda reason: (-idle[reason], reason))
    return tuple(
        IdleReason(reason, idle[reason], _meanwhile(view, reason))
        for reason in reasons[:2]
        if idle[reason] >= 0.2 * sum(idle.values())
    )


def _meanwhile(view: View, reason: str) -> str | None:
    """Return what the host mostly did during idle time of one reason, if it is worth naming.

    Launches are spread over many operators, of which none may be.
    """
    by_name = view.by("meanwhile", reason)
    name = largest(by_name)
    least_share = 0.3 if reason == "launch" else 0.1
    if name is None or by_name[name] < least_share * view.by("idle")[reason]:
        return None
    return name


def _led_by(view: View, part: str) -> StepShare:
    """Return the operator or kernel that leads a part of the device's time, and its module."""
    label = DEVICE_PARTS[part]
    by_name = view.by("kernels", part)
    if part == "compute" and any(name != NO_OPERATOR for name in view.by("operators")):
        by_name = view.by("operators")
    name = largest(by_name)
    if name == NO_OPERATOR:
        by_name = view.by("kernels", part)
        name = largest(by_name)
    if name is None:
        return StepShare(label)
    modules = {key: time for key, time in view.by("modules").items() if key != NO_OPERATOR}
    module = largest(modules) if part == "compute" else None
    return StepShare(
        label,
        operation=Timed(name, by_name[name]),
        module=None if module is None else Timed(module.removeprefix(MODULE), modules[module]),
    )


def _on_host(view: View, parts: Mapping[str, float]) -> list[Cause]:
    """Return the host's categories; operations without a category are causes of their own."""
    whole = math.fsum(parts.values())
    causes = []
    for category, seconds in parts.items():
        by_name = view.by("host", category)
        if category == "other":
            for name, time in by_name.items():
                evidence = StepShare(name)
                causes.append(Cause(CauseKind.host, name, time, time / whole, evidence))
            continue
        most = largest(by_name)
        if most is not None:
            is_worth_naming = by_name[most] > 0.1 * seconds
            operation = Timed(most, by_name[most]) if is_worth_naming else None
            evidence = StepShare(category, operation)
            causes.append(Cause(CauseKind.host, most, seconds, seconds / whole, evidence))
    return causes


def causes_of_two(a: View, b: View, host_fall: Waterfall) -> list[Cause]:
    """Return what makes the difference between two traces, the one that decides first.

    A difference of the whole step comes before its parts. The parts of a device are in the order of
    their changes, and those of a host in the order that `host_changes` describes. Changes against
    the gap are left out. ``host_fall`` is the difference by category of the host.
    """
    pair = ProgramPair(a, b)
    if a.parts and b.parts:
        fall = Waterfall.between("step", _device_parts(a), _device_parts(b))
        causes = _device_changes(pair, fall, host_fall)
        other_step = _other_step(pair, fall, OF_DEVICE)
    else:
        causes = host_changes(pair, host_fall)
        other_step = _other_step(pair, host_fall, OF_STEP)
    return causes if other_step is None else [other_step, *causes]


def _other_step(pair: ProgramPair, fall: Waterfall, of_model: Collection[str]) -> Cause | None:
    """Return a difference of the whole step: two programs, or more passes of one.

    There is none if most of the gap lies elsewhere, such as in the loader.
    """
    by_model = sum(bar.change for bar in fall.bars if bar.part in of_model)
    is_compiled = pair.a.traits.compiled != pair.b.traits.compiled
    if not fall.gap or by_model / fall.gap < MOSTLY or is_compiled:
        return None
    if pair.are_two_programs:
        evidence = two_programs(pair)
        return Cause(CauseKind.programs, None, fall.gap, 1.0, evidence)
    ratio = ratio_along(pair, fall)
    passes = passes_change(pair, ratio)
    if passes is None:
        return None
    kind, factor = passes
    more = MorePasses(kind, pair.a.name, pair.b.name, factor, ratio)
    return Cause(kind, None, fall.gap, 1.0, more)


def two_programs(pair: ProgramPair) -> TwoPrograms:
    """Return what each of two programs does that the other one does not do."""
    only_a = _own_components(pair.a, pair.b)
    only_b = _own_components(pair.b, pair.a)
    if not only_a and not only_b and not pair.share_components:
        only_a = _longest_operator({o: o.calls_a * o.seconds_a for o in pair.operators_of(pair.a)})
        only_b = _longest_operator({o: o.calls_b * o.seconds_b for o in pair.operators_of(pair.b)})
    return TwoPrograms(
        a=pair.a.name,
        b=pair.b.name,
        only_a=only_a,
        only_b=only_b,
        changed=_changed_component(pair),
        step_a=float(np.mean(pair.a.times)) / 1e9,
        step_b=float(np.mean(pair.b.times)) / 1e9,
        beside=_beside_components(pair),
    )


def _own_components(view: View, other: View) -> tuple[Timed, ...]:
    """Return the components that the other program does not have, the longest first."""
    elsewhere = other.by("components").keys()
    own = [
        Timed(name, seconds)
        for name, seconds in view.step_parts.components.items()
        if name not in elsewhere and f"{MODULE}{name}" not in elsewhere
    ]
    return tuple(sorted(own, key=lambda component: (-component.seconds, component.name)))


def _longest_operator(seconds: Mapping[OperatorChange, float]) -> tuple[Timed, ...]:
    operator = max(seconds, key=lambda operator: (seconds[operator], operator.name), default=None)
    return () if operator is None else (Timed(operator.name, seconds[operator]),)


def _beside_components(pair: ProgramPair) -> Timed | None:
    """Return the part of a step in no component that makes much of the gap, if there is one.

    Without components, the work of the model is in none of them, so only the rest of a step counts.
    """
    fall = Waterfall.between("step", pair.a.step_parts.others, pair.b.step_parts.others)
    gap = float(np.mean(pair.b.times) - np.mean(pair.a.times)) / 1e9
    of_model = {*OF_MODEL, *OF_DEVICE}
    rest = [bar for bar in fall.bars if bar.change * gap > 0 and bar.part not in of_model]
    if not rest or rest[0].change / gap < PART_OF_GAP:
        return None
    return Timed(rest[0].part, rest[0].change)


def _changed_component(pair: ProgramPair) -> LongerOperation | None:
    """Return the component of both programs whose time changed most, along with the step's."""
    in_a = pair.a.by("components")
    in_b = pair.b.by("components")
    change = float(np.mean(pair.b.times) - np.mean(pair.a.times))
    shared_a = {name: seconds for name, seconds in in_a.items() if name in in_b}
    shared_b = {name: seconds for name, seconds in in_b.items() if name in in_a}
    name = most_changed(shared_a, shared_b, change)
    if name is None:
        return None
    return LongerOperation(name.removeprefix(MODULE), in_a[name], in_b[name], module=None)


def _device_changes(pair: ProgramPair, fall: Waterfall, host_fall: Waterfall) -> list[Cause]:
    loading = next((bar for bar in host_fall.bars if bar.part == "data loading"), None)
    causes = []
    for bar in fall.bars:
        if bar.change * fall.gap <= 0:
            continue
        if bar.part == CauseKind.idle_data and loading is not None:
            # The device waits for the host, so the host's time is what counts.
            causes.append(host_change(loading, host_fall, pair))
        else:
            causes.append(_device_change(bar, fall, pair))
    return causes


def _device_parts(view: View) -> dict[str, float]:
    """Return the parts of a device's time with idle time by reason."""
    parts = {part: seconds for part, seconds in view.parts.items() if part != "idle"}
    for reason, seconds in view.by("idle").items():
        parts[CauseKind.idle(reason)] = seconds
    return parts


def _device_change(bar: Bar, fall: Waterfall, pair: ProgramPair) -> Cause:
    a = pair.a
    b = pair.b
    kind = CauseKind(bar.part)
    name = None
    detail: Detail = None
    if kind is CauseKind.compute:
        computing = computing_change(pair, bar.change)
        kind = computing.kind
        name = computing.name
        detail = computing.detail
    elif kind.is_idle:
        reason = kind.removeprefix("idle ")
        name = most_changed(a.by("meanwhile", reason), b.by("meanwhile", reason), bar.change)
    else:
        name = most_changed(a.by("kernels", kind), b.by("kernels", kind), bar.change)
        detail = None if name is None else Operation(name)
    evidence = GapShare(bar.part, bar.change, fall.gap, operation=name, detail=detail)
    return Cause(kind, name, bar.change, bar.change / fall.gap, evidence)


@dataclass(frozen=True)
class ComputingChange:
    """What is behind a change of the time that a device computes."""

    kind: CauseKind
    name: str | None = None  # of the operator or kernel
    detail: Detail = None


def computing_change(pair: ProgramPair, change: float) -> ComputingChange:
    """Return what is behind a change of the time that a device computes."""
    a = pair.a
    b = pair.b
    other_work = work_change(pair, step_ratio(a, b))
    if other_work is not None:
        return ComputingChange(other_work.kind, detail=other_work.detail)
    uniform = uniform_ratio(a.by("operators"), b.by("operators"))
    if uniform is not None:
        return ComputingChange(CauseKind.uniform, detail=UniformOperations(uniform))
    in_a = _computing_by_name(a)
    in_b = _computing_by_name(b)
    name = most_changed(in_a, in_b, change)
    if name is None:
        return ComputingChange(CauseKind.compute)
    return _operation_change(pair, name, in_a.get(name, 0.0), in_b.get(name, 0.0))


def _operation_change(
    pair: ProgramPair,
    name: str,
    before: float,
    after: float,
) -> ComputingChange:
    """Return what is behind the change of one operator or kernel, in seconds per step."""
    a = pair.a
    b = pair.b
    if not before:
        return ComputingChange(CauseKind.compute, name, OnlyOne(b.name, Timed(name, after)))
    if not after:
        return ComputingChange(CauseKind.compute, name, OnlyOne(a.name, Timed(name, before)))
    launches_a = a.launches(name)
    launches_b = b.launches(name)
    by_launches = (launches_b - launches_a) * (before / launches_a if launches_a else 0.0)
    if by_launches / (after - before) >= MOSTLY:
        slower = b if after > before else a
        more = MoreCalls(name, launches_a, launches_b, slower.name)
        return ComputingChange(CauseKind.calls, name, more)
    longer = LongerOperation(name, before, after, _changed_module(pair, after - before))
    return ComputingChange(CauseKind.compute, name, longer)


def _changed_module(pair: ProgramPair, change: float) -> str | None:
    """Return the module whose time on the device changed most, if it is known."""
    module = most_changed(pair.a.by("modules"), pair.b.by("modules"), change)
    if module is None or module == NO_OPERATOR:
        return None
    return module.removeprefix(MODULE)


def _computing_by_name(view: View) -> Seconds:
    """Return the device's time by operator, or by kernel if operators are not recorded."""
    operators = view.by("operators")
    return operators if len(operators) > 1 else view.by("kernels", "compute")
