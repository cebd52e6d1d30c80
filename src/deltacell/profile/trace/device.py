"""The device's time: compute, exposed communication, exposed copies and idle time.

compute + exposed communication + exposed copies + idle = wall, in every window. Communication is
exposed while no computation runs, and a copy while neither of them runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Indices, Ints, distinct
from deltacell.profile.trace.host import Category, HostTime, by_time, is_collective, waiting_calls
from deltacell.profile.trace.self_time import Covered
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

PARTS = ("compute", "communication", "copies", "idle")  # exposed communication and copies
# Why a device is idle.
MEANINGS = {
    "data": "the host waited for the loader",
    "sync": "the host had waited for the device and had no work queued after it",
    "launch": "the host was busy with operators and launches, which take longer than the kernels",
    "host": "the host was busy with something other than operators",
    "device": "the next event was launched in time and waited for another stream or device",
    "queued": "the next event was launched in time, and there is no other stream to wait for",
    "unlaunched": "the trace does not have the call that launched the next event",
    "end": "no event follows in the trace",
}
BEHIND = 0.05  # a device that falls behind by more of a step in every step has steps of its own
LATENCY = 20_000  # nanoseconds from a launch to its beginning that belong to launching


def device_part(trace: Trace) -> Ints:
    """Return the index in `PARTS` of each event; only those of the device have a meaning."""
    return np.where(trace.kind == Kind.kernel, trace.named(is_collective), 2)


class DeviceTime:
    """Where the time of the busiest device of a trace goes, in nanoseconds.

    ``windows`` are the steps of the device. They are those of the host, unless the device falls
    further behind with every step; then a step lasts from its first kernel to that of the next.
    """

    def __init__(self, trace: Trace, steps: Steps, host: HostTime, launch: Indices) -> None:
        rows = np.flatnonzero(trace.on_device & (trace.duration >= 0))
        devices = np.array([NOTHING if t.device is None else t.device for t in trace.threads])
        numbers, place = np.unique(devices[trace.thread[rows]], return_inverse=True)
        self.others = len(numbers) - 1  # how many other devices the trace has
        rows = rows[place == np.bincount(place, weights=trace.duration[rows]).argmax()]
        part = device_part(trace)[rows]
        start = trace.begin[rows]
        stop = trace.ends(rows)
        # Computing; computing or communicating; busy with anything.
        busy = [Covered.union(start[part <= last], stop[part <= last]) for last in range(3)]
        self.windows = windows = _windows(trace, steps, rows, launch)
        parts = _parts(busy, windows.begin, windows.end)
        kernels = _kernel_times(trace, steps, rows[part == 0], launch)
        facts = {"number": steps.number, "counted": steps.counted, "wall": windows.wall}
        # By step, with the time of the kernels launched in it.
        self.steps = pl.DataFrame({**facts, **parts, "kernels": kernels})
        span = np.array([start.min(), stop.max()])
        whole = {"wall": np.diff(span), **_parts(busy, span[:1], span[1:])}
        # From the first event of the device to its last.
        self.kernels = {part: int(time[0]) for part, time in whole.items()}
        has_others = self.others > 0 or len(np.unique(trace.thread[rows])) > 1
        in_time = "device" if has_others else "queued"
        gaps = _gaps(trace, windows, host, rows, busy[2], launch, in_time)
        idle = by_time(gaps.with_columns(time=pl.col("end") - pl.col("begin")), "reason")
        if int(idle["time"].sum()) != int(parts["idle"][windows.counted].sum()):
            raise AssertionError("the gaps do not add up to the device's idle time")
        meanings = pl.Series("meaning", [MEANINGS[reason] for reason in idle["reason"]], pl.String)
        self.idle = idle.select("reason", meanings, "time", "count")  # of counted steps
        self.idle_by_name = _by_name(gaps, host)


def launches(trace: Trace) -> Indices:
    """Return the row of the host's call that launched each event of the device, or `NOTHING`."""
    callers = np.full(len(trace), NOTHING, dtype=np.int32)
    # In reverse, so that the first of several calls with one number is kept.
    calls = np.flatnonzero((trace.kind == Kind.runtime) & (trace.correlation >= 0))[::-1]
    known = dict(zip(trace.correlation[calls].tolist(), calls.tolist(), strict=True))
    work = np.flatnonzero(trace.on_device)
    callers[work] = [known.get(number, NOTHING) for number in trace.correlation[work].tolist()]
    return callers


def collective_rows(trace: Trace) -> Ints:
    """Return the rows of the device's events that communicate."""
    return np.flatnonzero(device_part(trace) == 1)


def _parts(busy: list[Covered], begin: Ints, end: Ints) -> dict[str, Ints]:
    computing, working, any_work = (x.within(begin, end) for x in busy)
    parts = (computing, working - computing, any_work - working, end - begin - any_work)
    if (np.sum(parts, axis=0) != end - begin).any() or np.min(parts) < 0:
        raise AssertionError("the parts of the device's time do not add up to the wall time")
    return dict(zip(PARTS, parts, strict=True))


def _windows(trace: Trace, steps: Steps, rows: Ints, launch: Indices) -> Steps:
    """Return the host's steps, or the device's if it falls further behind with every step."""
    known = rows[launch[rows] >= 0]
    step = steps.place(trace.begin[launch[known]])
    known = known[step >= 0]
    step = step[step >= 0]
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


def _kernel_times(trace: Trace, steps: Steps, kernels: Ints, launch: Indices) -> list[int]:
    """Return the time of the computation launched in each step, counting overlap once."""
    kernels = kernels[launch[kernels] >= 0]
    step = steps.place(trace.begin[launch[kernels]])
    order = np.argsort(step, kind="stable")
    bounds = np.searchsorted(step[order], np.arange(len(steps) + 1)).tolist()
    by_step = [kernels[order[first:last]] for first, last in pairwise(bounds)]
    return [Covered.union(trace.begin[rows], trace.ends(rows)).total for rows in by_step]


def _gaps(
    trace: Trace,
    steps: Steps,
    host: HostTime,
    rows: Ints,
    busy: Covered,
    launch: Indices,
    in_time: str,
) -> pl.DataFrame:
    """Return the idle stretches of counted steps, when the host had launched, and the reasons.

    ``in_time`` is the reason where the next event had been launched before.
    """
    bounds = (busy.begin, busy.end, steps.begin, steps.end)
    times, _ = distinct(np.concatenate(bounds))
    begin = times[:-1]
    end = times[1:]
    idle = steps.in_counted(begin) & (busy.within(begin, end) == 0)
    begin = begin[idle]
    end = end[idle]
    # The next event begins where an interval of the union does.
    place = np.searchsorted(busy.begin, end - 1, side="right")
    follows = place < len(busy.begin)
    following = np.full(len(begin), NOTHING, dtype=np.int64)
    following[follows] = rows[np.searchsorted(trace.begin[rows], busy.begin[place[follows]])]
    call = np.where(following >= 0, launch[following], NOTHING)
    called = np.where(call >= 0, trace.ends(call), end)
    late = np.clip(called, begin, end)
    # The time after the launch is not the host's.
    own = np.flatnonzero((late > begin) & (end - late > LATENCY) & (call >= 0))
    begin = np.concatenate([begin, late[own]])
    end = np.concatenate([end, end[own]])
    end[own] = late[own]
    following, call, late = (np.append(x, x[own]) for x in (following, call, late))

    def spent(which: Bools, since: Ints, until: Ints) -> Ints:
        return host.covered(which).within(since, np.maximum(since, until))

    kind = trace.kind[host.row]
    at_work = (host.row >= 0) & ((kind == Kind.operator) | (kind == Kind.runtime))
    syncing = (host.row >= 0) & waiting_calls(trace)[host.row]
    loading = spent(host.category == Category.data_loading, begin, late)
    reason = np.full(len(begin), "host", dtype=object)
    reason[2 * spent(at_work, begin, late) >= late - begin] = "launch"
    # A call that waits returns a moment after the device has finished.
    reason[spent(syncing, begin - 1, np.minimum(begin + 1, late)) > 0] = "sync"
    reason[2 * loading > late - begin] = "data"
    reason[late == begin] = in_time
    reason[call < 0] = "unlaunched"
    reason[following < 0] = "end"
    reasons = pl.Series(reason.tolist(), dtype=pl.String)
    return pl.DataFrame({"begin": begin, "end": end, "late": late, "reason": reasons})


def _by_name(gaps: pl.DataFrame, host: HostTime) -> pl.DataFrame:
    """Return idle time by reason and by what the host did, or what had made it wait, meanwhile."""
    rows: list[tuple[str, str, int]] = []
    for reason in ("data", "sync", "launch", "host"):
        of_reason = gaps.filter(reason=reason).sort("begin", maintain_order=True)
        begin = of_reason["begin"].to_numpy()
        late = of_reason["late"].to_numpy()
        if reason == "sync":
            place = np.clip(np.searchsorted(host.begin, begin, side="right") - 1, 0, None)
            time = late - begin
            codes = host.name[place]
        else:
            time = Covered.union(begin, late).within(host.begin, host.end)
            codes = host.name
        spent = np.bincount(codes, weights=time, minlength=len(host.names))
        rows += [(reason, host.names[i], int(spent[i])) for i in np.flatnonzero(spent).tolist()]
    schema = {"reason": pl.String, "name": pl.String, "time": pl.Int64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table.sort("time", "name", descending=[True, False])


def critical_path(
    trace: Trace,
    host: HostTime,
    launch: Indices,
    begin: int,
    end: int,
) -> pl.DataFrame:
    """Return the time on the critical path of a step, followed backwards from its end.

    The path follows the host back to its last wait for the device, and then the event of the device
    that it waited for. That event began after the one before it on the device had ended and after
    the host had launched it. ``where`` is host, device, or launch (from the host's call to the
    beginning); ``part`` is a category of the host, a part of the device, or waiting.
    """
    part = device_part(trace)
    rows = list[tuple[str, str, int]]()
    for where, start, stop, row in critical_stretches(trace, host, launch, begin, end):
        if where == "host":
            places, inside = host.between(start, stop)
            titles = [Category(category).title for category in host.category[places]]
            rows += [(where, *row) for row in zip(titles, inside.tolist(), strict=True)]
        else:
            name = PARTS[part[row]] if where == "device" else "waiting"
            rows.append((where, name, stop - start))
    schema = {"where": pl.String, "part": pl.String, "time": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row").filter(pl.col("time") > 0)
    if frame["time"].sum() != end - begin:
        raise AssertionError("the critical path does not add up to its step")
    return by_time(frame, "where", "part").drop("count")


def critical_stretches(
    trace: Trace,
    host: HostTime,
    launch: Indices,
    begin: int,
    end: int,
) -> Iterator[tuple[str, int, int, int]]:
    """Yield where, begin, end, and the row of a device event or nothing, from the end backwards."""
    ends = trace.begin + trace.duration
    inside = trace.on_device & (trace.duration > 0) & (ends > begin) & (ends <= end)
    work = np.flatnonzero(inside)
    work = work[np.argsort(ends[work], kind="stable")]
    ends = ends[work]

    def last_until(time: int) -> int:
        place = int(np.searchsorted(ends, time, side="right")) - 1
        return int(work[place]) if place >= 0 else NOTHING

    rows = host.row[host.between(begin, end)[0]]
    waits = np.unique(rows[(rows >= 0) & waiting_calls(trace)[rows]]).tolist()
    until = end
    for wait in reversed(waits):
        row = last_until(trace.end(wait))
        if trace.end(wait) > until or row == NOTHING or trace.end(row) <= trace.begin[wait]:
            continue
        yield "host", trace.end(row), until, NOTHING
        until = trace.end(row)
        while row != NOTHING and until > begin:
            start = max(int(trace.begin[row]), begin)
            yield "device", start, until, row
            call = int(launch[row])
            ready = min(trace.end(call), start) if call >= 0 else begin
            before = last_until(start)
            if before != NOTHING and trace.end(before) < ready:
                before = NOTHING
            until = min(max(ready if before == NOTHING else trace.end(before), begin), start)
            yield "launch", until, start, row
            row = before
    yield "host", begin, until, NOTHING
