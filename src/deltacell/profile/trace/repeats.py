"""How steady a trace is, from repeated calls: a step alone holds many calls of one kind.

Calls are of one kind if they have the same name and inputs of the same size, as far as these are
recorded. Their times differ only by noise.
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from deltacell.base.arrays import Indices, Ints
from deltacell.profile.trace.components import owner_of
from deltacell.profile.trace.device import device_part
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

FEWEST_CALLS = 32  # of kinds that are repeated; with fewer, the spread is unknown
REPEATED = 4  # calls of one kind
BLOCKS = 8  # of consecutive calls


def spread_of_kernels(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    launch: Indices,
) -> float | None:
    """Return how steady the computing kernels of counted steps are, as `spread_of_repeats`."""
    kernels = np.flatnonzero((trace.kind == Kind.kernel) & (launch >= 0))
    kernels = kernels[device_part(trace)[kernels] == 0]
    kernels = kernels[steps.in_counted(trace.begin[launch[kernels]])]
    operator = owner_of(trace.kind == Kind.operator, nesting)[launch[kernels]]
    return spread_of_repeats(trace, kernels, _shapes_of(trace, operator))


def spread_of_operators(trace: Trace, nesting: Nesting, steps: Steps) -> float | None:
    """Return how steady the operators of counted steps are, as `spread_of_repeats`."""
    is_operator = (trace.kind == Kind.operator) & (trace.thread == steps.thread)
    above = np.where(nesting.parent >= 0, is_operator[nesting.parent], False)
    rows = np.flatnonzero(is_operator & ~above & steps.in_counted(trace.begin))
    return spread_of_repeats(trace, rows, _shapes_of(trace, rows))


def _shapes_of(trace: Trace, rows: Ints | Indices) -> Indices:
    if not len(trace.shape):
        return np.full(len(rows), NOTHING, dtype=np.int32)
    shapes: Indices = np.where(rows >= 0, trace.shape[rows], np.int32(NOTHING))
    return shapes


def spread_of_repeats(trace: Trace, rows: Ints, shape: Indices) -> float | None:
    """Return the relative standard error of the time of all calls; None if few are repeated.

    The calls are cut into consecutive blocks. For each one, the time of its calls is divided by
    what they would take at the mean of their kind. A load that changes slowly makes whole blocks
    slower, so the spread over blocks contains it, unlike that of single calls. ``rows`` are the
    calls, and ``shape`` the codes of their inputs.
    """
    frame = pl.DataFrame(
        {
            "name": trace.name[rows],
            "shape": shape,
            "begin": trace.begin[rows],
            "time": trace.duration[rows],
        },
    )
    repeated = (
        frame.filter(pl.col("time") > 0)
        .with_columns(
            mean=pl.mean("time").over("name", "shape"),
            number=pl.len().over("name", "shape"),
        )
        .filter(pl.col("number") >= REPEATED)
        .sort("begin")
    )
    if len(repeated) < FEWEST_CALLS:
        return None
    edges = np.linspace(0, len(repeated), BLOCKS + 1).astype(np.int64)[:-1]
    taken = np.add.reduceat(repeated["time"].to_numpy().astype(np.float64), edges)
    expected = np.add.reduceat(repeated["mean"].to_numpy(), edges)
    return float(np.std(taken / expected, ddof=1)) / math.sqrt(BLOCKS)
