"""The critical path of a step: the chain of work, on host and device, that its length is made of.

It is followed backwards from the end. The host did what it did until it last waited for the
device; there the path goes to the event of the device that it waited for. That event began when
the one before it on the device had ended, or when the host had launched it, whichever was later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from deltacell.profile.trace.categories import Category, is_collective
from deltacell.profile.trace.device import on_device
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.syncs import waiting_calls
from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """What the length of one step is made of.

    Parameters
    ----------
    number
        Of the step.
    stretches
        By time: ``where`` (host, device, or launch: from the host's call to its beginning),
        ``begin``, ``end`` in nanoseconds, ``part`` (a category of the host; compute, communication
        or copies of the device; waiting) and ``name`` of the event.
    parts
        The same summed: ``where``, ``part``, ``time``; adds up to the step.
    residual
        Nanoseconds by which they miss the step.
    """

    number: int
    stretches: pl.DataFrame
    parts: pl.DataFrame
    residual: int


def critical_path(
    trace: Trace, steps: Steps, host: HostTime, launch: Codes, place: int | None = None
) -> CriticalPath:
    """Follow the critical path of a step."""
    if place is None:
        place = typical(steps)
    begin, end = int(steps.begin[place]), int(steps.end[place])
    chain = _chain(trace, host, launch, begin, end)
    rows = [piece for stretch in reversed(chain) for piece in _pieces(trace, host, stretch)]
    stretches = pl.DataFrame(rows, schema=_COLUMNS, orient="row")
    length = pl.col("end") - pl.col("begin")
    parts = (
        stretches.group_by("where", "part")
        .agg(length.sum().alias("time"))
        .sort("time", "where", "part", descending=[True, False, False])
    )
    residual = end - begin - int(parts["time"].sum())
    if residual:
        raise AssertionError(f"the critical path misses its step by {residual} ns")
    return CriticalPath(int(steps.number[place]), stretches, parts, residual)


def typical(steps: Steps) -> int:
    """Return the place of the counted step that is nearest to the median of them."""
    counted = np.flatnonzero(steps.counted)
    wall = steps.wall[counted]
    return int(counted[np.abs(wall - np.median(wall)).argmin()])


_COLUMNS = pl.Schema(
    {
        "where": pl.String(),
        "begin": pl.Int64(),
        "end": pl.Int64(),
        "part": pl.String(),
        "name": pl.String(),
    }
)
_Stretch = tuple[str, int, int, int]
"""Where, begin, end, and the row of an event of the device or nothing."""


def _chain(trace: Trace, host: HostTime, launch: Codes, begin: int, end: int) -> list[_Stretch]:
    """Return the stretches of a path from its end to its beginning."""
    work = _work(trace, begin, end)
    ends = trace.ends(work)
    waits = _waits(trace, host, begin, end)
    chain: list[_Stretch] = []
    at, wait = end, len(waits) - 1
    while at > begin:
        row = NOTHING
        while wait >= 0 and row == NOTHING:
            start, stop = waits[wait]
            wait -= 1
            if stop <= at:
                row = _last(work, ends, stop)
                if row != NOTHING and _end(trace, row) <= start:
                    row = NOTHING
        if row == NOTHING:
            chain.append(("host", begin, at, NOTHING))
            break
        done = _end(trace, row)
        chain.append(("host", done, at, NOTHING))
        at = _on_device(trace, launch, work, ends, row, begin, chain)
    return [stretch for stretch in chain if stretch[2] > stretch[1]]


def _on_device(
    trace: Trace,
    launch: Codes,
    work: Ints,
    ends: Ints,
    row: int,
    begin: int,
    chain: list[_Stretch],
) -> int:
    """Follow the device back to where it waited for the host, and return that time."""
    at = _end(trace, row)
    while True:
        start = max(int(trace.begin[row]), begin)
        chain.append(("device", start, at, row))
        at = start
        if at <= begin:
            return at
        call = int(launch[row])
        ready = min(_end(trace, call), at) if call >= 0 else begin
        before = _last(work, ends, at)
        if before == NOTHING or _end(trace, before) < ready:
            ready = max(ready, begin)
            chain.append(("launch", ready, at, row))
            return ready
        done = max(_end(trace, before), begin)
        chain.append(("launch", done, at, row))
        at, row = done, before
        if at <= begin:
            return at


def _work(trace: Trace, begin: int, end: int) -> Ints:
    """Return the events of the device that end in a step, by end."""
    inside = on_device(trace) & (trace.duration > 0)
    rows = np.flatnonzero(inside)
    ends = trace.ends(rows)
    rows = rows[(ends > begin) & (ends <= end)]
    return rows[np.argsort(trace.ends(rows), kind="stable")]


def _end(trace: Trace, row: int) -> int:
    return int(trace.begin[row] + trace.duration[row])


def _last(work: Ints, ends: Ints, time: int) -> int:
    """Return the event of the device that ended last until a time."""
    place = int(np.searchsorted(ends, time, side="right")) - 1
    return int(work[place]) if place >= 0 else NOTHING


def _waits(trace: Trace, host: HostTime, begin: int, end: int) -> list[tuple[int, int]]:
    """Return when the host waited for the device, by time."""
    places, _ = host.between(begin, end)
    rows = host.row[places]
    found = np.unique(rows[(rows >= 0) & waiting_calls(trace)[rows]])
    return [(int(trace.begin[row]), _end(trace, row)) for row in found.tolist()]


def _pieces(
    trace: Trace, host: HostTime, stretch: _Stretch
) -> list[tuple[str, int, int, str, str | None]]:
    """Return a stretch with its names; one of the host in pieces of one category each."""
    where, begin, end, row = stretch
    if where == "device":
        return [(where, begin, end, _part(trace, row), trace.text(row))]
    if where == "launch":
        return [(where, begin, end, "waiting", trace.text(row))]
    places, inside = host.between(begin, end)
    found: list[tuple[str, int, int, str, str | None]] = []
    cuts = np.flatnonzero(np.diff(host.category[places])) + 1
    for part, time in zip(np.split(places, cuts), np.split(inside, cuts), strict=True):
        most = int(host.row[part[int(time.argmax())]])
        start = max(int(host.begin[part[0]]), begin)
        stop = min(int(host.end[part[-1]]), end)
        name = None if most == NOTHING else trace.text(most)
        found.append((where, start, stop, Category(host.category[part[0]]).name, name))
    return found


def _part(trace: Trace, row: int) -> str:
    if trace.kind[row] != Kind.kernel:
        return "copies"
    return "communication" if is_collective(trace.text(row)) else "compute"
