"""The forward by component: the named ranges that a model sets in it."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.trace.categories import Category, own_categories
from deltacell.profile.trace.device import on_device
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace


def components(
    trace: Trace, nesting: Nesting, steps: Steps, host: HostTime, launch: Codes
) -> pl.DataFrame:
    """Tell where the time of the forward goes, by component.

    A component is a named range inside the forward that is no category of its own; where there
    are none, a module as the trace's Python functions name it.

    Parameters
    ----------
    trace, nesting
        Events, and what lies in what.
    steps, host
        Only counted steps are looked at.
    launch
        The host's call of each event of the device.

    Returns
    -------
    By time: ``component`` (with those around it, outermost first, parted by `` > ``), ``depth``,
    ``count``, ``self_time`` and ``time`` (with those inside it) of the host, ``device_time`` of
    what was launched in it, and ``share`` of the forward's host time. Nanoseconds, of all counted
    steps.
    """
    found = _component_rows(trace, steps)
    if not found.any():
        return pl.DataFrame(schema=_COLUMNS)
    above = _nearest_row(found, nesting.parent)
    counted = steps.counted[host.step] & (host.category == Category.forward)
    own = _sum_by_row(above, host.row[counted], host.length[counted], len(trace))
    work = np.flatnonzero(on_device(trace) & (launch >= 0))
    step = np.searchsorted(steps.begin, trace.begin[launch[work]], side="right") - 1
    work = work[(step >= 0) & steps.counted[step]]
    device = _sum_by_row(above, launch[work], trace.duration[work], len(trace))
    forward = int(host.length[counted].sum())
    paths: dict[str, list[int]] = {}
    there = np.flatnonzero(own)
    count: Counter[str] = Counter()
    for row in there.tolist():
        path = _path(trace, nesting, above, row)
        entry = paths.setdefault(" > ".join(path), [0, 0, 0, len(path) - 1])
        entry[0] += int(own[row])
        count[" > ".join(path)] += 1
        entry[2] += int(device[row])
        for depth in range(1, len(path) + 1):
            outer = paths.setdefault(" > ".join(path[:depth]), [0, 0, 0, depth - 1])
            outer[1] += int(own[row])
    rows = [
        (path, depth, count[path], mine, total, on, total / forward)
        for path, (mine, total, on, depth) in paths.items()
    ]
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row").sort(
        "time", "component", descending=[True, False]
    )


_COLUMNS = pl.Schema(
    {
        "component": pl.String(),
        "depth": pl.Int64(),
        "count": pl.Int64(),
        "self_time": pl.Int64(),
        "time": pl.Int64(),
        "device_time": pl.Int64(),
        "share": pl.Float64(),
    }
)
_NOT_A_PART = re.compile(r"^ProfilerStep#|^phase\.")


def _component_rows(trace: Trace, steps: Steps) -> npt.NDArray[np.bool_]:
    """Return which events are components, bool [n]."""
    free = own_categories(trace) == NOTHING
    named = np.array([not _NOT_A_PART.search(name) for name in trace.names], dtype=bool)
    on_thread = trace.thread == steps.thread
    ranges = free & named[trace.name] & (trace.kind == Kind.annotation) & on_thread
    if ranges.any():
        return np.asarray(ranges)
    modules = np.array([name.startswith("nn.Module: ") for name in trace.names], dtype=bool)
    return np.asarray(modules[trace.name] & (trace.kind == Kind.python) & on_thread)


def _nearest_row(found: npt.NDArray[np.bool_], parent: Codes) -> Ints:
    """Return the nearest of each event and its ancestors that is found; `NOTHING` where none."""
    climb = ~found & (parent != NOTHING)
    place = np.where(climb, parent, np.arange(len(found), dtype=np.int32))
    while True:
        further = place[place]
        if np.array_equal(further, place):
            return np.where(found[place], place, NOTHING)
        place = further


def _sum_by_row(above: Ints, rows: Codes, times: Ints, count: int) -> Ints:
    """Return the times of rows summed by the component that each lies in, int64 [n]."""
    there = rows >= 0
    place = above[rows[there]]
    inside = place >= 0
    sums = np.bincount(place[inside], weights=times[there][inside], minlength=count)
    return sums.astype(np.int64)


def _path(trace: Trace, nesting: Nesting, above: Ints, row: int) -> list[str]:
    """Return the names of a component and those around it, outermost first."""
    path = []
    at = row
    while at != NOTHING:
        path.append(trace.text(at))
        parent = int(nesting.parent[at])
        at = int(above[parent]) if parent != NOTHING else NOTHING
    return path[::-1]
