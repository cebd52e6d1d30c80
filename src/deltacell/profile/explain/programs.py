"""Whether two traces are of one program, and whether one of them does more in a step.

This is decided by calls, which do not depend on the machine: the program's own ranges and modules,
the nodes of its graph, and its operators with their counts and sizes. Names of operators alone do
not tell programs apart, since all programs share them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deltacell.profile.explain.causes import CauseKind
from deltacell.profile.explain.view import View
from deltacell.profile.trace.calls import CallGroup

# The larger of the similarities of nodes and operators, which decides where components do not. On
# the 33 pairs that tests/profile/explain/test_two_programs.py records, it is 0.96 or more for one
# program and at most 0.54 for two programs or two propagations of one model, so this bound is 0.21
# away from both. A test holds that it stays away.
ONE_PROGRAM = 0.75
# Of the names of ranges and modules. Recorded pairs of one model have 1.0, others 0.07 at most.
SAME_COMPONENTS = 0.4
AS_OFTEN = 0.95  # the share of calls whose ratio is the common one
NEAR = 1.1  # ratios that differ by less are the same
MORE = 1.3  # a smaller ratio of calls is not a cause
LEAST_COMPONENTS = 2
MOST_INPUTS = 0.9  # the share of time in calls on inputs of one size, if the sizes are the same

Counts = Mapping[str, float]


@dataclass(frozen=True)
class CommonRatio:
    """The ratio of B to A that most calls have, and the share of all calls that have it."""

    ratio: float
    share: float


@dataclass(frozen=True)
class OperatorChange:
    """The calls of one operator of a group in A and in B; seconds and elements are per call."""

    name: str
    group: CallGroup
    calls_a: float
    calls_b: float
    seconds_a: float
    seconds_b: float
    elements_a: float | None = None
    elements_b: float | None = None
    sizes_a: str | None = None
    sizes_b: str | None = None

    @property
    def by_more_calls(self) -> float:
        """Seconds per step that more calls add, at the time per call of A.

        Of an operator that A does not call, it is all of its time.
        """
        if not self.calls_a:
            return self.calls_b * self.seconds_b
        return (self.calls_b - self.calls_a) * self.seconds_a

    @property
    def change(self) -> float:
        """Seconds per step that B spends more."""
        return self.calls_b * self.seconds_b - self.calls_a * self.seconds_a

    @property
    def ratio_of_elements(self) -> float | None:
        """The ratio of the elements of a call's inputs, B to A; None if unknown."""
        if not self.elements_a or not self.elements_b:
            return None
        return self.elements_b / self.elements_a


class ProgramPair:
    """Two traces side by side, by what they call in a step."""

    def __init__(self, a: View, b: View) -> None:
        self.a = a
        self.b = b

    @cached_property
    def operators(self) -> list[OperatorChange]:
        """The operators that A or B calls, by name and group."""
        columns = ("calls", "time", "elements", "sizes")
        both = self.a.calls.operators.join(
            self.b.calls.operators,
            on=["name", "group"],
            how="full",
            suffix="_b",
            coalesce=True,
        ).sort("name", "group")
        rows = both.select("name", "group", *columns, *(f"{column}_b" for column in columns))
        return [_operator_change(*row) for row in rows.iter_rows()]

    def operators_of(self, view: View) -> list[OperatorChange]:
        """Return the operators outside the optimizer that only one of the two programs calls."""
        alone = [o for o in self.operators if o.group is not CallGroup.optimizer]
        if view is self.a:
            return [o for o in alone if not o.calls_b]
        return [o for o in alone if not o.calls_a]

    @cached_property
    def share_components(self) -> bool:
        """Whether both have ranges or modules of one name."""
        return bool(self.a.calls.components.keys() & self.b.calls.components.keys())

    def calls(self, *groups: CallGroup) -> tuple[Counts, Counts]:
        """Return the calls per step of operators in some groups, by name and group."""
        chosen = [change for change in self.operators if change.group in groups]
        in_a = {f"{c.group} {c.name}": c.calls_a for c in chosen if c.calls_a}
        in_b = {f"{c.group} {c.name}": c.calls_b for c in chosen if c.calls_b}
        return in_a, in_b

    @cached_property
    def nodes(self) -> CommonRatio | None:
        """How many more nodes of its graph B runs backward; None if they are not recorded."""
        return common_ratio_of_calls(self.a.calls.nodes, self.b.calls.nodes)

    @cached_property
    def some_nodes_stay(self) -> bool:
        """Whether some nodes of the graph run as often in both, as those of the loss do.

        With more layers they do, and with more passes they do not.
        """
        in_a = self.a.calls.nodes
        in_b = self.b.calls.nodes
        return any(_same(in_b[name], in_a[name]) for name in in_a if name in in_b)

    @cached_property
    def forward(self) -> CommonRatio | None:
        """How many more operators B calls outside the backward and the optimizer."""
        return common_ratio_of_calls(*self.calls(CallGroup.forward))

    @cached_property
    def are_two_programs(self) -> bool:
        """Whether the traces are of different programs: other components, or another mix of calls.

        Numbers in names do not count, so a model with more layers is the same program.
        """
        components_a = _without_numbers(self.a.calls.components)
        components_b = _without_numbers(self.b.calls.components)
        if min(len(components_a), len(components_b)) >= LEAST_COMPONENTS:
            both = len(components_a & components_b)
            if both < SAME_COMPONENTS * len(components_a | components_b):
                return True
        return self.similarity is not None and self.similarity < ONE_PROGRAM

    @cached_property
    def similarity(self) -> float | None:
        """How similar the mixes of calls are: of operators or of nodes, whichever is more similar.

        It is None if neither is recorded in both.
        """
        similarities = [
            similarity(*self.calls(CallGroup.forward)),
            similarity(self.a.calls.nodes, self.b.calls.nodes),
        ]
        return max((value for value in similarities if value is not None), default=None)

    @cached_property
    def calls_as_often(self) -> bool:
        """Whether B calls the same operators as often as A, as far as they are recorded."""
        groups = (CallGroup.forward, CallGroup.backward)
        common = common_ratio_of_calls(*self.calls(*groups))
        if common is None:
            return True
        return common.share >= 0.8 and 1 / NEAR < common.ratio < NEAR

    @cached_property
    def all_calls(self) -> tuple[float, float]:
        """Return the calls per step of all operators of the model and the optimizer, in A and B."""
        calls_a, calls_b = self.calls(CallGroup.forward, CallGroup.backward, CallGroup.optimizer)
        return sum(calls_a.values()), sum(calls_b.values())

    @cached_property
    def one_calls_more(self) -> bool:
        """Whether one of them calls operators so much more often that this has to be a reason."""
        calls_a, calls_b = self.all_calls
        if not calls_a or not calls_b:
            return False
        return not 1 / MORE < calls_b / calls_a < MORE

    @cached_property
    def components_as_often(self) -> bool:
        """Whether both have the same ranges and modules and call them as often."""
        calls_a = self.a.calls.components
        calls_b = self.b.calls.components
        if calls_a.keys() != calls_b.keys():
            return False
        return all(_same(calls_a[name], calls_b[name]) for name in calls_a)

    @cached_property
    def inputs_of_same_size(self) -> bool:
        """Whether nearly all calls of both have inputs of the same size, by the time of B."""
        same = 0.0
        known = 0.0
        for operator in self.operators:
            ratio = operator.ratio_of_elements
            if ratio is not None and operator.group is not CallGroup.other:
                seconds = operator.calls_b * operator.seconds_b
                known += seconds
                if _same(ratio, 1.0):
                    same += seconds
        return known > 0 and same >= MOST_INPUTS * known

    @cached_property
    def has_operators(self) -> bool:
        """Whether operators are recorded in either trace."""
        return bool(self.operators)

    @cached_property
    def has_shapes(self) -> bool:
        """Whether sizes of inputs are recorded in both traces."""
        return self.a.calls.has_shapes and self.b.calls.has_shapes

    @cached_property
    def ratio_of_sizes(self) -> float | None:
        """Return by how much the inputs of a call grew: the median over the time of B.

        None if shapes are not recorded.
        """
        ratios = []
        weights = []
        for operator in self.operators:
            ratio = operator.ratio_of_elements
            if ratio is not None and operator.group in (CallGroup.forward, CallGroup.backward):
                ratios.append(ratio)
                slower = max(
                    operator.seconds_a * operator.calls_a, operator.calls_b * operator.seconds_b
                )
                weights.append(slower)
        return weighted_median(ratios, weights) if ratios else None


def passes_change(pair: ProgramPair, ratio: float) -> tuple[CauseKind, float] | None:
    """Return whether a step of the slower program holds more passes of the same model.

    Returns the kind and how many times as many passes B runs as A; None if there is no such
    difference, or if it would make the other one slower.
    """
    nodes = pair.nodes
    forward = pair.forward
    if nodes is None or forward is None:
        return None
    runs = _ratio(pair.a.calls.runs_per_node, pair.b.calls.runs_per_node)
    has_all_nodes = nodes.share >= AS_OFTEN
    has_all_operators = forward.share >= AS_OFTEN
    is_as_often = has_all_nodes and has_all_operators and _same(nodes.ratio, forward.ratio)
    if is_as_often and not pair.some_nodes_stay and _is_more(nodes.ratio, ratio):
        return CauseKind.passes, nodes.ratio
    if _is_more(runs, ratio) and _same(forward.ratio, 1.0):
        return CauseKind.backward_passes, runs
    if has_all_nodes and _same(nodes.ratio, 1.0) and _is_more(forward.ratio, ratio):
        return CauseKind.forward_passes, forward.ratio
    return None


def _is_more(calls: float, time: float) -> bool:
    """Return whether the one that takes longer has more calls, by enough to be a cause."""
    return calls >= MORE if time > 1 else calls <= 1 / MORE


def _same(ratio: float, other: float) -> bool:
    return 1 / NEAR < ratio / other < NEAR


def _ratio(a: float, b: float) -> float:
    return b / a if a and b else 1.0


def _operator_change(
    name: str,
    group: int,
    calls_a: float | None,
    time_a: float | None,
    elements_a: float | None,
    sizes_a: str | None,
    calls_b: float | None,
    time_b: float | None,
    elements_b: float | None,
    sizes_b: str | None,
) -> OperatorChange:
    return OperatorChange(
        name=name,
        group=CallGroup(group),
        calls_a=calls_a or 0.0,
        calls_b=calls_b or 0.0,
        seconds_a=(time_a or 0.0) / (calls_a or 1.0) / 1e9,
        seconds_b=(time_b or 0.0) / (calls_b or 1.0) / 1e9,
        elements_a=_known(elements_a),
        elements_b=_known(elements_b),
        sizes_a=sizes_a,
        sizes_b=sizes_b,
    )


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _without_numbers(names: Counts) -> set[str]:
    return {re.sub(r"\d+", "#", name) for name in names}


def similarity(a: Counts, b: Counts) -> float | None:
    """Return how similar two mixes of calls are, from 0 to 1; None if one of them is empty.

    It is the sum of the smaller shares over the sum of the larger ones, so that a program that
    calls everything twice is the same.
    """
    total_a = sum(a.values())
    total_b = sum(b.values())
    if not total_a or not total_b:
        return None
    smaller = 0.0
    larger = 0.0
    for name in {**a, **b}:
        share_a = a.get(name, 0.0) / total_a
        share_b = b.get(name, 0.0) / total_b
        smaller += min(share_a, share_b)
        larger += max(share_a, share_b)
    return smaller / larger


def common_ratio_of_calls(a: Counts, b: Counts) -> CommonRatio | None:
    """Return the ratio of calls that most names share; None if they have no name in common."""
    shared = [name for name in a if name in b]
    if not shared:
        return None
    ratios = np.array([b[name] / a[name] for name in shared])
    weights = np.array([max(a[name], b[name]) for name in shared])
    ratio = weighted_median(ratios, weights)
    is_near = np.abs(np.log(ratios / ratio)) < math.log(NEAR)
    every = sum(max(a.get(name, 0.0), b.get(name, 0.0)) for name in {**a, **b})
    return CommonRatio(ratio, float(weights[is_near].sum()) / every)


def weighted_median(values: npt.ArrayLike, weights: npt.ArrayLike) -> float:
    """Return the value at which half of the weight is reached."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(np.asarray(weights, dtype=np.float64)[order])
    place = int(np.searchsorted(reached, reached[-1] / 2))
    return float(np.asarray(values, dtype=np.float64)[order][place])
