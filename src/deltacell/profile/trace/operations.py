"""Operations by self time, alone and by the path of calls that leads to them."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from deltacell.profile.trace.categories import Category
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Ints, Trace

NOT_RECORDED = "(nothing recorded)"
"""The name of moments in which no event is open."""


def operations(trace: Trace, steps: Steps, host: HostTime) -> pl.DataFrame:
    """Return the operations of counted steps by self time.

    Parameters
    ----------
    trace
        Events.
    steps, host
        What the host did in the steps.

    Returns
    -------
    ``operation``, ``category``, ``count``, ``time`` in nanoseconds of all counted steps,
    ``per_step`` in nanoseconds, ``share`` of the wall; shares add up to 1.
    """
    frame = _pieces(trace, steps, host, _plain(trace))
    return _summed(frame, steps, [*_plain_names(trace), NOT_RECORDED], "operation")


def call_paths(trace: Trace, nesting: Nesting, steps: Steps, host: HostTime) -> pl.DataFrame:
    """Return the same by path of calls: ``path`` in place of ``operation``.

    Names of a path are parted by `` > ``, outermost first, without the steps themselves, so that
    the same call has the same path in two traces.
    """
    paths, codes = _paths(trace, nesting)
    frame = _pieces(trace, steps, host, codes)
    return _summed(frame, steps, [*paths, NOT_RECORDED], "path")


_STEP = re.compile(r"^ProfilerStep#\d+$")


def _plain_names(trace: Trace) -> list[str]:
    """Return the names, those of steps without their numbers."""
    return ["ProfilerStep" if _STEP.match(name) else name for name in trace.names]


def _plain(trace: Trace) -> Ints:
    """Return the name of each event; all steps have one."""
    names = _plain_names(trace)
    first: dict[str, int] = {}
    codes = np.array([first.setdefault(name, code) for code, name in enumerate(names)])
    plain: Ints = codes[trace.name]
    return plain


def _pieces(trace: Trace, steps: Steps, host: HostTime, codes: Ints) -> pl.DataFrame:
    """Return the pieces of counted steps with the code of each."""
    counted = steps.counted[host.step]
    row = host.row[counted]
    code = np.where(row >= 0, codes[row], -1).astype(np.int32)
    return pl.DataFrame(
        {"code": code, "category": host.category[counted], "row": row, "time": host.length[counted]}
    )


def _summed(frame: pl.DataFrame, steps: Steps, names: list[str], column: str) -> pl.DataFrame:
    counted = int(steps.counted.sum())
    wall = int(steps.wall[steps.counted].sum())
    summed = frame.group_by("code", "category").agg(
        pl.col("row").n_unique().cast(pl.Int64).alias("count"), pl.col("time").sum()
    )
    titles = [category.name for category in Category]
    return summed.select(
        pl.Series(column, [names[code] for code in summed["code"].to_list()], dtype=pl.String),
        pl.Series("category", [titles[code] for code in summed["category"].to_list()]),
        "count",
        "time",
        (pl.col("time") / counted).alias("per_step"),
        (pl.col("time") / wall).alias("share"),
    ).sort("time", column, "category", descending=[True, False, False])


def _paths(trace: Trace, nesting: Nesting) -> tuple[list[str], Ints]:
    """Return all paths of calls, and the one of each event."""
    names = _plain_names(trace)
    step = np.array([name == "ProfilerStep" for name in names], dtype=bool)
    plain = _plain(trace)
    texts: list[str] = ["ProfilerStep"]
    codes = np.full(len(trace), NOTHING, dtype=np.int64)
    depth = _depth(nesting)
    order = np.argsort(depth, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
        if not len(rows):
            continue
        parent = nesting.parent[rows]
        outer = np.where(parent >= 0, codes[parent], 0)
        keys = outer * len(names) + plain[rows]
        is_step = step[trace.name[rows]]
        fresh, place = np.unique(keys[~is_step], return_inverse=True)
        start = len(texts)
        for key in fresh.tolist():
            over, name = divmod(key, len(names))
            texts.append(names[name] if over == 0 else f"{texts[over]} > {names[name]}")
        codes[rows[~is_step]] = start + place
        codes[rows[is_step]] = 0
    return texts, codes


def _depth(nesting: Nesting) -> Ints:
    """Return how many events lie around each, int64 [n]."""
    depth = np.zeros(len(nesting.parent), dtype=np.int64)
    at = nesting.parent.astype(np.int64)
    rows = np.flatnonzero(at >= 0)
    while len(rows):
        depth[rows] += 1
        at[rows] = nesting.parent[at[rows]]
        rows = rows[at[rows] >= 0]
    return depth
