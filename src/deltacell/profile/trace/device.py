"""The device's time: compute, communication and copies that nothing hides, and idle.

compute + exposed communication + exposed copies + idle = wall, in every window. Communication is
exposed where no computation runs at the same time, a copy where neither does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import polars as pl

from deltacell.arrays import Bools, Indices, Ints
from deltacell.profile.trace.categories import Category, is_collective
from deltacell.profile.trace.host import Doing, HostTime, waiting_calls
from deltacell.profile.trace.self_time import Covered
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

REASONS = {
    "data": "the host waited for the loader",
    "sync": "the host had waited for the device and had nothing ready after it",
    "launch": "the host was busy with operators and launches, which take longer than the kernels",
    "host": "the host was busy with something other than operators",
    "device": "it was launched, and waited for another stream, rank or for its start",
    "end": "nothing follows in the trace",
}
"""Why a device is idle, by name."""

BEHIND = 0.05
"""The share of a step by which a device falls behind in each before its own steps are taken."""

LATENCY = 20_000
"""Nanoseconds from a launch to its beginning that are a part of launching."""

PARTS = ("compute", "communication", "copies", "idle")
"""What a device's time is made of; communication and copies as far as they are exposed."""


@dataclass(frozen=True, eq=False)
class DeviceTime:
    """Where the time of the busiest device of a trace goes, in nanoseconds.

    ``windows`` are the steps as the device went through them. They are those of the host, unless
    the device falls further behind with every step (``queued``): then a step is from its first
    kernel to the first of the next.
    """

    steps: pl.DataFrame  # by step: PARTS, and kernels and launches that the host launched in it
    windows: Steps
    queued: bool
    kernels: dict[str, int]  # wall and PARTS from the first event of the device to its last
    idle: pl.DataFrame  # counted steps by reason; adds up to the idle time
    idle_by_name: pl.DataFrame  # by reason and what the host did meanwhile
    gaps: pl.DataFrame  # the longest, with what is waited for and what runs next
    small: pl.DataFrame  # kernels that take less time than the call that launched them, by name
    others: int  # how many other devices the trace has


def device_time(
    trace: Trace, steps: Steps, host: HostTime, launch: Indices, doing: Doing
) -> DeviceTime | None:
    """Return where the time of the device goes, and what it waits for; None without a device."""
    rows = np.flatnonzero(trace.on_device & (trace.duration >= 0))
    if not len(rows):
        return None
    devices = np.array([NOTHING if t.device is None else t.device for t in trace.threads])
    numbers, place = np.unique(devices[trace.thread[rows]], return_inverse=True)
    busiest = int(np.bincount(place, weights=trace.duration[rows]).argmax())
    rows = rows[place == busiest]
    collective = trace.named(is_collective)
    is_kernel = trace.kind[rows] == Kind.kernel
    start, stop = trace.begin[rows], trace.ends(rows)
    # Computing; computing or communicating; doing anything.
    busy = [
        Covered.union(start[which], stop[which])
        for which in (is_kernel & ~collective[rows], is_kernel, np.ones(len(rows), dtype=bool))
    ]
    windows = _windows(trace, steps, rows, launch)
    parts = _parts(busy, windows.begin, windows.end)
    span = np.array([start.min(), stop.max()])
    whole = {"wall": np.diff(span), **_parts(busy, span[:1], span[1:])}
    launched = rows[is_kernel & (launch[rows] >= 0)]
    gaps = _gaps(trace, windows, host, rows, busy[2], launch)
    idle = _by_reason(gaps)
    if int(idle["time"].sum()) != int(parts["idle"][windows.counted].sum()):
        raise AssertionError("the gaps miss the device's idle time")
    return DeviceTime(
        steps=_step_frame(trace, steps, launched[~collective[launched]], launch, parts, windows),
        windows=windows,
        queued=windows is not steps,
        kernels={part: int(time[0]) for part, time in whole.items()},
        idle=idle,
        idle_by_name=_by_name(gaps, host, doing),
        gaps=_longest(trace, host, gaps, launch),
        small=_small(trace, steps, launched, launch),
        others=len(numbers) - 1,
    )


def launches(trace: Trace) -> Indices:
    """Return the row of the host's call that caused each event of the device, or `NOTHING`."""
    found = np.full(len(trace), NOTHING, dtype=np.int32)
    calls = np.flatnonzero((trace.kind == Kind.runtime) & (trace.correlation >= 0))
    work = np.flatnonzero(trace.on_device & (trace.correlation >= 0))
    if len(calls):
        calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
        numbers = trace.correlation[calls]
        place = np.searchsorted(numbers, trace.correlation[work])
        place = np.minimum(place, len(calls) - 1)
        same = numbers[place] == trace.correlation[work]
        found[work[same]] = calls[place[same]]
    return found


def collective_rows(trace: Trace) -> Ints:
    """Return the kernels that are collectives, by beginning."""
    return np.flatnonzero(trace.named(is_collective) & (trace.kind == Kind.kernel))


def typical(steps: Steps) -> int:
    """Return the place of the counted step that is nearest to the median of them."""
    counted = np.flatnonzero(steps.counted)
    wall = steps.wall[counted]
    return int(counted[np.abs(wall - np.median(wall)).argmin()])


def _parts(busy: list[Covered], begin: Ints, end: Ints) -> dict[str, Ints]:
    computing, working, any_work = (x.within(begin, end) for x in busy)
    found = (computing, working - computing, any_work - working, end - begin - any_work)
    if (np.sum(found, axis=0) != end - begin).any() or np.min(found) < 0:
        raise AssertionError("the parts of the device's time miss the wall")
    return dict(zip(PARTS, found, strict=True))


def _windows(trace: Trace, steps: Steps, rows: Ints, launch: Indices) -> Steps:
    """Return the steps, or the device's own where it falls further behind with every step."""
    known = rows[launch[rows] >= 0]
    step = steps.place(trace.begin[launch[known]])
    known, step = known[step >= 0], step[step >= 0]
    if len(np.unique(step)) < len(steps):
        return steps
    begin = np.full(len(steps), np.iinfo(np.int64).max)
    done = np.zeros(len(steps), dtype=np.int64)
    np.minimum.at(begin, step, trace.begin[known])
    np.maximum.at(done, step, trace.ends(known))
    late = done - steps.end
    if late[-1] - late[0] <= BEHIND * int(steps.wall[1:].sum()) or late[-1] < steps.wall[-1] / 5:
        return steps
    end = np.append(begin[1:], done[-1])
    return replace(steps, begin=begin, end=end) if (end > begin).all() else steps


def _step_frame(
    trace: Trace,
    steps: Steps,
    kernels: Ints,
    launch: Indices,
    parts: dict[str, Ints],
    windows: Steps,
) -> pl.DataFrame:
    step = steps.place(trace.begin[launch[kernels]])
    order = np.argsort(step, kind="stable")
    bounds = np.searchsorted(step[order], np.arange(len(steps) + 1)).tolist()
    mine = [kernels[order[first:last]] for first, last in pairwise(bounds)]
    covered = [Covered.union(trace.begin[rows], trace.ends(rows)).total for rows in mine]
    return pl.DataFrame(
        {
            "number": steps.number,
            "counted": steps.counted,
            "wall": windows.wall,
            **parts,
            "kernels": pl.Series(covered, dtype=pl.Int64),
            "launches": pl.Series([len(rows) for rows in mine], dtype=pl.Int64),
        }
    )


def _gaps(
    trace: Trace, steps: Steps, host: HostTime, rows: Ints, busy: Covered, launch: Indices
) -> pl.DataFrame:
    """Return the idle stretches of counted steps, what runs next and how late the host is."""
    begin, end, step = _idle_pieces(steps, busy)
    # What runs next begins where an interval of the union does.
    place = np.searchsorted(busy.begin, end - 1, side="right")
    follows = place < len(busy.begin)
    following = np.full(len(begin), NOTHING, dtype=np.int64)
    following[follows] = rows[np.searchsorted(trace.begin[rows], busy.begin[place[follows]])]
    call = np.where(following >= 0, launch[following], NOTHING)
    called = np.where(call >= 0, trace.ends(call), end)
    late = np.clip(called, begin, end)
    # What comes after the launch is not the host's.
    own = np.flatnonzero((late > begin) & (end - late > LATENCY) & (call >= 0))
    begin = np.concatenate([begin, late[own]])
    end = np.concatenate([end, end[own]])
    end[own] = late[own]
    step, following, call, late = (np.append(x, x[own]) for x in (step, following, call, late))

    def spent(which: Bools, since: Ints, until: Ints) -> Ints:
        return host.covered(which).within(since, np.maximum(since, until))

    kind = trace.kind[host.row]
    at_work = (host.row >= 0) & ((kind == Kind.operator) | (kind == Kind.runtime))
    syncing = (host.row >= 0) & waiting_calls(trace)[host.row]
    loading = spent(host.category == Category.data_loading, begin, late)
    reason = np.full(len(begin), "host", dtype=object)
    reason[2 * spent(at_work, begin, late) >= late - begin] = "launch"
    # A call that waits returns a moment after the device is done.
    reason[spent(syncing, begin - 1, np.minimum(begin + 1, late)) > 0] = "sync"
    reason[2 * loading > late - begin] = "data"
    # Launched in time, or by no known call.
    reason[(late == begin) | ((following >= 0) & (call < 0))] = "device"
    reason[following < 0] = "end"
    columns = {"begin": begin, "end": end, "step": steps.number[step], "following": following}
    reasons = pl.Series(reason.tolist(), dtype=pl.String)
    return pl.DataFrame({**columns, "late": late, "reason": reasons})


def _idle_pieces(steps: Steps, busy: Covered) -> tuple[Ints, Ints, Ints]:
    begin = np.concatenate([[np.int64(-1)], busy.end])
    end = np.append(busy.begin, np.iinfo(np.int64).max)
    pieces = []
    for place in np.flatnonzero(steps.counted).tolist():
        start, stop = steps.begin[place], steps.end[place]
        first = int(np.searchsorted(end, start, side="right"))
        last = int(np.searchsorted(begin, stop, side="left"))
        left = np.maximum(begin[first:last], start)
        right = np.minimum(end[first:last], stop)
        inside = right > left
        pieces.append((left[inside], right[inside], np.full(int(inside.sum()), place)))
    lefts, rights, places = (np.concatenate(x) for x in zip(*pieces, strict=True))
    return lefts, rights, places


def _by_reason(gaps: pl.DataFrame) -> pl.DataFrame:
    reasons = pl.DataFrame({"reason": list(REASONS), "meaning": list(REASONS.values())})
    count = pl.len().cast(pl.Int64).alias("gaps")
    found = gaps.group_by("reason").agg(
        (pl.col("end") - pl.col("begin")).sum().alias("time"), count
    )
    found = reasons.join(found, on="reason", maintain_order="left")
    return found.sort("time", descending=True, maintain_order=True)


def _by_name(gaps: pl.DataFrame, host: HostTime, doing: Doing) -> pl.DataFrame:
    """Return idle time by reason and by what the host did meanwhile.

    After a wait for the device it is what asked for the wait.
    """
    rows: list[tuple[str, str, int]] = []
    for reason in ("data", "sync", "launch", "host"):
        mine = gaps.filter(pl.col("reason") == reason).sort("begin", maintain_order=True)
        begin, late = mine["begin"].to_numpy(), mine["late"].to_numpy()
        if reason == "sync":
            place = np.clip(np.searchsorted(host.begin, begin, side="right") - 1, 0, None)
            time, codes = late - begin, doing.code[place]
        else:
            time = Covered.union(begin, late).within(host.begin, host.end)
            codes = doing.code
        spent = np.bincount(codes, weights=time, minlength=len(doing.names))
        rows += [(reason, doing.names[i], int(spent[i])) for i in np.flatnonzero(spent).tolist()]
    schema = {"reason": pl.String, "name": pl.String, "time": pl.Int64}
    found = pl.DataFrame(rows, schema=schema, orient="row")
    return found.sort("time", "name", descending=[True, False])


def _longest(trace: Trace, host: HostTime, gaps: pl.DataFrame, launch: Indices) -> pl.DataFrame:
    rows = []
    length = (pl.col("end") - pl.col("begin")).alias("length")
    gaps = gaps.with_columns(length).sort("length", descending=True, maintain_order=True)
    for gap in gaps.head(50).iter_rows(named=True):
        begin, late = gap["begin"], gap["late"]
        row, category = host.busiest(begin, late if late > begin else gap["end"])
        following = gap["following"]
        call = int(launch[following]) if following >= 0 else NOTHING
        busy, runs, launched = (
            None if one < 0 else trace.text(one) for one in (row, following, call)
        )
        about = (begin, gap["length"], gap["step"], gap["reason"])
        rows.append((*about, busy, None if category is None else category.name, runs, launched))
    schema = {
        **dict.fromkeys(("begin", "length", "step"), pl.Int64),
        **dict.fromkeys(("reason", "host", "category", "next", "launch"), pl.String),
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _small(trace: Trace, steps: Steps, kernels: Ints, launch: Indices) -> pl.DataFrame:
    """Return kernels that are shorter than the call that launched them, by name."""
    kernels = kernels[steps.in_counted(trace.begin[launch[kernels]])]
    call = trace.duration[launch[kernels]]
    short = trace.duration[kernels] < call
    kernels, call = kernels[short], call[short]
    columns = {"code": trace.name[kernels], "time": trace.duration[kernels], "launch_time": call}
    found = (
        pl.DataFrame(columns)
        .group_by("code")
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("time", "launch_time").sum())
    )
    names = [trace.names[code] for code in found["code"].to_list()]
    kernel = pl.Series("kernel", names, dtype=pl.String)
    found = found.select(kernel, "count", "time", "launch_time")
    return found.sort("launch_time", "kernel", descending=[True, False])


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The chain of work, on host and device, that the length of one step is made of.

    ``stretches`` are by time; ``where`` is host, device, or launch (from the host's call to its
    beginning), ``part`` a category of the host, a part of the device, or waiting. ``parts`` sums
    them up, and adds up to the step.
    """

    stretches: pl.DataFrame
    parts: pl.DataFrame


def critical_path(trace: Trace, steps: Steps, host: HostTime, launch: Indices) -> CriticalPath:
    """Follow the critical path of a typical step backwards from its end.

    The host did what it did until it last waited for the device; there the path goes to the event
    of the device that it waited for. That event began when the one before it on the device had
    ended, or when the host had launched it, whichever was later.
    """
    place = typical(steps)
    begin, end = int(steps.begin[place]), int(steps.end[place])
    chain = _chain(trace, host, launch, begin, end)
    rows = [piece for stretch in reversed(chain) for piece in _pieces(trace, host, *stretch)]
    schema = {
        **{"where": pl.String, "begin": pl.Int64, "end": pl.Int64},
        **{"part": pl.String, "name": pl.String},
    }
    stretches = pl.DataFrame(rows, schema=schema, orient="row")
    parts = (
        stretches.group_by("where", "part")
        .agg((pl.col("end") - pl.col("begin")).sum().alias("time"))
        .sort("time", "where", "part", descending=[True, False, False])
    )
    if int(parts["time"].sum()) != end - begin:
        raise AssertionError("the critical path misses its step")
    return CriticalPath(stretches, parts)


_Stretch = tuple[str, int, int, int]
"""Where, begin, end, and the row of an event of the device or nothing."""


def _chain(trace: Trace, host: HostTime, launch: Indices, begin: int, end: int) -> list[_Stretch]:
    work = np.flatnonzero(trace.on_device & (trace.duration > 0))
    ends = trace.ends(work)
    work = work[(ends > begin) & (ends <= end)]
    work = work[np.argsort(trace.ends(work), kind="stable")]
    ends = trace.ends(work)

    def end_of(row: int) -> int:
        return int(trace.begin[row] + trace.duration[row])

    def last_until(time: int) -> int:
        place = int(np.searchsorted(ends, time, side="right")) - 1
        return int(work[place]) if place >= 0 else NOTHING

    rows = host.row[host.between(begin, end)[0]]
    waits = np.unique(rows[(rows >= 0) & waiting_calls(trace)[rows]]).tolist()
    chain: list[_Stretch] = []
    at = end
    while at > begin:
        row = NOTHING
        while waits and row == NOTHING:
            wait = waits.pop()
            if end_of(wait) <= at:
                row = last_until(end_of(wait))
                if row != NOTHING and end_of(row) <= trace.begin[wait]:
                    row = NOTHING
        if row == NOTHING:
            chain.append(("host", begin, at, NOTHING))
            break
        chain.append(("host", end_of(row), at, NOTHING))
        at = end_of(row)
        while row != NOTHING and at > begin:
            start = max(int(trace.begin[row]), begin)
            chain.append(("device", start, at, row))
            call = int(launch[row])
            ready = min(end_of(call), start) if call >= 0 else begin
            before = last_until(start)
            if before != NOTHING and end_of(before) < ready:
                before = NOTHING
            at = min(max(ready if before == NOTHING else end_of(before), begin), start)
            chain.append(("launch", at, start, row))
            row = before
    return [stretch for stretch in chain if stretch[2] > stretch[1]]


def _pieces(
    trace: Trace, host: HostTime, where: str, begin: int, end: int, row: int
) -> list[tuple[str, int, int, str, str | None]]:
    if where == "launch":
        return [(where, begin, end, "waiting", trace.text(row))]
    if where == "device":
        part = "communication" if is_collective(trace.text(row)) else "compute"
        part = part if trace.kind[row] == Kind.kernel else "copies"
        return [(where, begin, end, part, trace.text(row))]
    places, inside = host.between(begin, end)
    found: list[tuple[str, int, int, str, str | None]] = []
    cuts = np.flatnonzero(np.diff(host.category[places])) + 1
    for piece, time in zip(np.split(places, cuts), np.split(inside, cuts), strict=True):
        most = int(host.row[piece[int(time.argmax())]])
        start = max(int(host.begin[piece[0]]), begin)
        stop = min(int(host.end[piece[-1]]), end)
        name = None if most == NOTHING else trace.text(most)
        found.append((where, start, stop, Category(host.category[piece[0]]).name, name))
    return found
