"""How often a step calls its operators, ranges and modules, and on inputs of which size.

Time alone does not tell a program that does more from one that is slower. Calls do: they do not
depend on the machine or its load.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Doubles, Indices, Ints
from deltacell.profile.trace.ancestors import climb
from deltacell.profile.trace.categories import Category, own_categories
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.host_names import plain_names
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

_ENGINE = "autograd::engine::evaluate_function: "
# Ranges that programs of every kind have.
_COMMON = re.compile(
    r"^(?:ProfilerStep|phase\.|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\."
    r"|gloo:|nccl:|Torch-Compiled|## |\[param\||torch/csrc|PyTorch Profiler)",
)
_MODULE = "nn.Module: "


class CallGroup(IntEnum):
    """In which part of a step an operator is called."""

    forward, backward, optimizer, other = range(4)


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls per counted step.

    ``operators`` has a row per name and group: ``calls`` per step, ``time`` in nanoseconds per step
    with everything inside, and, where shapes are recorded, ``elements`` of all inputs per call and
    the most frequent ``sizes`` as written. Only operators that no other operator called count.
    ``nodes`` are the nodes of the graph that the backward runs, with their calls per step.
    """

    operators: pl.DataFrame  # name, group, calls, time, elements, sizes
    nodes: dict[str, float]
    components: dict[str, float]  # calls per step of the program's own ranges and modules
    runs_per_node: float  # how often the backward runs each node of the graph, 0 if unknown
    has_shapes: bool


def find_calls(trace: Trace, nesting: Nesting, steps: Steps, host: HostTime) -> Calls:
    """Count what the counted steps of a trace call."""
    inside = steps.in_counted(trace.begin)
    n_steps = int(steps.counted.sum())
    is_operator = trace.kind == Kind.operator
    is_node = trace.named(lambda name: name.startswith(_ENGINE))
    outer = inside & is_operator & ~is_node & _is_outermost(is_operator & ~is_node, nesting)
    rows = np.flatnonzero(outer)
    group = _groups(host, is_node, nesting)[rows]
    return Calls(
        operators=_operators(trace, rows, group, n_steps),
        nodes=_nodes(trace, inside & is_node, n_steps),
        components=_components(trace, inside & (nesting.lane == steps.thread), n_steps),
        runs_per_node=_runs_per_node(trace, inside & is_node),
        has_shapes=bool(len(trace.shape)),
    )


def _operators(trace: Trace, rows: Ints, group: Indices, n_steps: int) -> pl.DataFrame:
    plain = plain_names(trace)
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(name, len(known)) for name in plain], dtype=np.int32)
    no_shape = np.full(len(rows), NOTHING, dtype=np.int32)
    shape = trace.shape[rows] if len(trace.shape) else no_shape
    names = pl.Series(list(known), dtype=pl.String)
    # The last entry stands for no shape.
    sizes = pl.Series([*(sizes for sizes, _ in trace.shapes), None], dtype=pl.String)
    columns = {
        "code": codes[trace.name[rows]],
        "group": group,
        "shape": shape,
        "time": trace.duration[rows],
        "elements": _elements(trace)[shape],
    }
    return (
        pl.DataFrame(columns)
        .group_by("code", "group", "shape")
        .agg(pl.len().alias("calls"), pl.sum("time"), pl.first("elements"))
        .sort("calls", "shape", descending=True)
        .group_by("code", "group", maintain_order=True)
        .agg(
            calls=pl.sum("calls") / n_steps,
            time=pl.sum("time") / n_steps,
            elements=(pl.col("elements") * pl.col("calls")).sum() / pl.sum("calls"),
            shape=pl.first("shape"),
        )
        .select(
            "group",
            "calls",
            "time",
            "elements",
            name=pl.lit(names).gather(pl.col("code")),
            sizes=pl.lit(sizes).gather(pl.col("shape") % len(sizes)),
        )
        .sort("time", "name", "group", descending=[True, False, False])
    )


def _is_outermost(operators: Bools, nesting: Nesting) -> Bools:
    """Return which events no operator called, not even through other events."""
    has_parent = nesting.parent >= 0
    above = climb(~operators, nesting.parent)
    parent = np.where(has_parent, nesting.parent, 0)
    under_operator = has_parent & operators[above[parent]]
    return ~under_operator


def _groups(host: HostTime, is_node: Bools, nesting: Nesting) -> Indices:
    """Return the group of each event: that of its category, and backward inside a node."""
    groups = np.full(len(is_node), CallGroup.other, dtype=np.int32)
    for category, group in _GROUP_OF.items():
        groups[host.events == category] = group
    place = climb(~is_node, nesting.parent)
    groups[is_node[place]] = CallGroup.backward
    return groups


_GROUP_OF = {
    Category.forward: CallGroup.forward,
    Category.loss: CallGroup.forward,
    Category.validation: CallGroup.forward,
    Category.other: CallGroup.forward,
    NOTHING: CallGroup.forward,
    Category.backward: CallGroup.backward,
    Category.optimizer: CallGroup.optimizer,
}


def _elements(trace: Trace) -> Doubles:
    """Return the number of elements of all inputs, by code of shapes; NaN for no code."""
    return np.array([*(elements_of(sizes) for sizes, _ in trace.shapes), math.nan])


def elements_of(sizes: str) -> float:
    """Return the number of elements of inputs such as ``[[8, 64], [64, 64], []]``.

    It is NaN if the sizes cannot be read; inputs without a size do not count.
    """
    try:
        inputs = json.loads(sizes[:10_000])
    except ValueError:
        return math.nan
    return float(sum(_product(size) for size in inputs if isinstance(size, list) and size))


def _product(size: list[object]) -> float:
    if any(isinstance(length, list) for length in size):  # a list of tensors
        return sum(_product(inner) for inner in size if isinstance(inner, list) and inner)
    return math.prod(float(length) for length in size if isinstance(length, int))


def _nodes(trace: Trace, rows: Bools, n_steps: int) -> dict[str, float]:
    counts = np.bincount(trace.name[rows], minlength=len(trace.names))
    return {
        trace.names[code].removeprefix(_ENGINE): int(counts[code]) / n_steps
        for code in np.flatnonzero(counts).tolist()
    }


def _components(trace: Trace, rows: Bools, n_steps: int) -> dict[str, float]:
    """Return the ranges and modules of a program; layers that are numbered are told apart."""
    is_module = trace.named(lambda name: name.startswith(_MODULE)) & (trace.kind == Kind.python)
    is_range = trace.named(lambda name: not _COMMON.match(name)) & (trace.kind == Kind.annotation)
    is_range &= own_categories(trace) == NOTHING
    counts = np.bincount(trace.name[rows & (is_module | is_range)], minlength=len(trace.names))
    return {
        trace.names[code].removeprefix(_MODULE): int(counts[code]) / n_steps
        for code in np.flatnonzero(counts).tolist()
    }


def _runs_per_node(trace: Trace, nodes: Bools) -> float:
    """Return how often the backward runs a node, by the numbers that link it to its forward."""
    numbers = trace.sequence[nodes & (trace.sequence >= 0)]
    return len(numbers) / len(np.unique(numbers)) if len(numbers) else 0.0
