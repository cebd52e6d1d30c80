"""How the work of two programs differs: its size, its type, and how it is carried out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deltacell.profile.explain.causes import (
    BatchCause,
    CauseKind,
    DataType,
    Detail,
    Execution,
    LargerInputs,
    MoreCalls,
)
from deltacell.profile.explain.programs import ProgramPair
from deltacell.profile.explain.view import View
from deltacell.profile.trace.calls import CallGroup

MOST_OPERATORS = 0.5  # of the forward operators show a change of the batch
LARGER = 1.2  # inputs that grew by less are not a cause
HALF = 0.5  # of a difference that more calls have to make
PART_OF_GAP = 0.3  # that a component has to take

_TYPE = re.compile(r"\b(double|float|c10::\w+|half|bfloat16)\b")
_BITS = {"double": 64, "float": 32}  # of all other types: 16


@dataclass(frozen=True)
class WorkChange:
    """A difference in the work of two programs that explains why one of them is slower."""

    kind: CauseKind
    detail: Detail


def work_change(pair: ProgramPair, ratio: float) -> WorkChange | None:
    """Return how the work of B differs from that of A, if this makes the slower one slower.

    ``ratio`` is that of the times of a step. First what a user sets (batch, data type), then how
    the program is executed, then what it calls.
    """
    return (
        _other_batch(pair, ratio)
        or _other_type(pair.a, pair.b, ratio)
        or _other_execution(pair.a, pair.b, ratio)
        or _larger_inputs(pair, ratio)
        or _more_calls(pair, ratio)
    )


def _other_batch(pair: ProgramPair, ratio: float) -> WorkChange | None:
    """Return a change of the batch.

    It is one if the first size of the first input of most forward operators changes by one factor,
    and no other size does. Operators of the backward and of the optimizer do not count: the first
    size of their inputs is often that of a weight.
    """
    changes = []
    n_sized = 0
    for operator in pair.operators:
        sizes_a = _leading_sizes(operator.sizes_a or "")
        sizes_b = _leading_sizes(operator.sizes_b or "")
        if operator.group is CallGroup.forward and sizes_a and sizes_b:
            n_sized += 1
            is_batch = sizes_a[0] != sizes_b[0] and sizes_a[1:] == sizes_b[1:]
            if is_batch and sizes_a[0] and sizes_b[0]:
                changes.append((sizes_a[0], sizes_b[0]))
    (old, new), _ = _most_common(changes, (0, 0))
    if not old:
        return None
    by_one_factor = [b for a, b in changes if math.isclose(b / a, new / old, rel_tol=0.05)]
    is_larger = new > old
    is_slower = ratio > 1
    if len(by_one_factor) < max(2, MOST_OPERATORS * n_sized) or is_larger != is_slower:
        return None
    return WorkChange(CauseKind.batch, BatchCause(old, new, ratio))


def _leading_sizes(dims: str) -> tuple[int, ...]:
    """Return the sizes of the first input that has any, from text such as ``[[8, 64], []]``."""
    first = re.search(r"\[(\d[\d, ]*)\]", dims[:2000])
    if first is None:
        return ()
    return tuple(int(size) for size in first[1].split(",") if size.strip())


def _other_type(a: View, b: View, ratio: float) -> WorkChange | None:
    """Return a change of the data type, if the slower program has the wider one."""
    changes = []
    for operator in a.traits.shapes.keys() & b.traits.shapes.keys():
        type_a = _TYPE.search(a.traits.shapes[operator][1])
        type_b = _TYPE.search(b.traits.shapes[operator][1])
        if type_a is not None and type_b is not None:
            changes.append((type_a[1], type_b[1]))
    (old, new), _ = _most_common(changes, ("", ""))
    is_wider = _BITS.get(new, 16) > _BITS.get(old, 16)
    is_slower = ratio > 1
    if old == new or is_wider != is_slower:
        return None
    return WorkChange(CauseKind.type, DataType(old, new))


def _other_execution(a: View, b: View, ratio: float) -> WorkChange | None:
    """Return what the slower program does, or the faster one does in its place."""
    slow, fast = (b, a) if ratio > 1 else (a, b)
    if slow.traits.recomputes and not fast.traits.recomputes:
        return _execution(CauseKind.recompute, slow)
    if fast.traits.compiled and not slow.traits.compiled:
        return _execution(CauseKind.compiled, fast)
    if fast.traits.graphs and not slow.traits.graphs:
        return _execution(CauseKind.graphs, fast)
    return None


def _larger_inputs(pair: ProgramPair, ratio: float) -> WorkChange | None:
    """Return larger inputs of the same calls."""
    growth = pair.ratio_of_sizes
    if growth is None or not pair.calls_as_often:
        return None
    is_larger = growth >= LARGER if ratio > 1 else growth <= 1 / LARGER
    if not is_larger:
        return None
    grown = [operator for operator in pair.operators if operator.sizes_a != operator.sizes_b]
    forward = [operator for operator in grown if operator.group is CallGroup.forward]
    lead = max(forward or grown, key=lambda operator: abs(operator.change), default=None)
    if lead is None or lead.sizes_a is None or lead.sizes_b is None:
        return None
    detail = LargerInputs(growth, lead.name, lead.sizes_a, lead.sizes_b)
    return WorkChange(CauseKind.sizes, detail)


def _more_calls(pair: ProgramPair, ratio: float) -> WorkChange | None:
    """Return the operator that is called more often, if more calls make most of the difference.

    An operator of the forward is named before the node of its backward.
    """
    sign = 1 if ratio > 1 else -1
    changes = sum(sign * operator.change for operator in pair.operators)
    by_calls = {operator: sign * operator.by_more_calls for operator in pair.operators}
    slower = pair.b if ratio > 1 else pair.a
    is_of_calls = changes > 0 and sum(by_calls.values()) >= HALF * changes
    if not is_of_calls or not _is_part_of_gap(pair, changes, sign):
        return _more_components(pair, slower, sign)
    forward = {o: more for o, more in by_calls.items() if o.group is CallGroup.forward}
    chosen = forward if sum(forward.values()) >= 0.2 * changes else by_calls
    lead = max(chosen, key=lambda operator: chosen[operator])
    if chosen[lead] <= 0:
        return None
    detail = MoreCalls(lead.name, lead.calls_a, lead.calls_b, slower.name)
    return WorkChange(CauseKind.calls, detail)


def _is_part_of_gap(pair: ProgramPair, seconds: float, sign: int) -> bool:
    """Return whether a change of operators makes an essential part of that of a step.

    With a device, the time of an operator on the host is that of launching it, so this is unknown.
    """
    if pair.a.parts and pair.b.parts:
        return True
    return seconds >= PART_OF_GAP * _gap(pair, sign)


def _gap(pair: ProgramPair, sign: int) -> float:
    """Return the seconds by which the median step of one of them is longer."""
    return sign * float(np.median(pair.b.times) - np.median(pair.a.times)) / 1e9


def _more_components(pair: ProgramPair, slower: View, sign: int) -> WorkChange | None:
    """Return the range or module that is called more often, if its time is a part of the gap."""
    gap = _gap(pair, sign)
    calls_a = pair.a.calls.components
    calls_b = pair.b.calls.components
    more = {}
    for name in {**calls_a, **calls_b}:
        is_more = sign * (calls_b.get(name, 0.0) - calls_a.get(name, 0.0)) > 0
        seconds = slower.component(name)
        if is_more and seconds >= PART_OF_GAP * gap:
            more[name] = seconds
    if not more:
        return None
    name = max(more, key=lambda name: (more[name], name))
    detail = MoreCalls(name, calls_a.get(name, 0.0), calls_b.get(name, 0.0), slower.name)
    return WorkChange(CauseKind.calls, detail)


def _execution(kind: CauseKind, view: View) -> WorkChange:
    return WorkChange(kind, Execution(kind, view.name))


def _most_common(pairs: Iterable[tuple[Any, Any]], default: tuple[Any, Any]) -> tuple[Any, int]:
    counts = Counter(pairs)
    most = max(counts, key=lambda pair: (counts[pair], pair), default=default)
    return most, counts[most]
