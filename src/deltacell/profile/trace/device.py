"""The device's time: compute, exposed communication, exposed copies and idle time.

compute + exposed communication + exposed copies + idle = wall, in every window. Communication is
exposed while no computation runs, and a copy while neither of them runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Indices, Ints, distinct
from deltacell.profile.trace.categories import Category, is_collective
from deltacell.profile.trace.host import HostTime, by_time
from deltacell.profile.trace.intervals import Covered
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace
from deltacell.profile.trace.waits import waiting_calls

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
    of_kernel = trace.named(is_collective)
    return np.where(trace.kind == Kind.kernel, of_kernel, PARTS.index("copies"))


class DeviceTime:
    """Where the time of the busiest device of a trace goes, in nanoseconds.

    ``windows`` are the steps of the device. They are those of the host, unless the device falls
    further behind with every step; then a step lasts from its first kernel to that of the next.
    """

    def __init__(self, trace: Trace, steps: Steps, host: HostTime, launch: Indices) -> None:
        rows = np.flatnonzero(trace.on_device & (trace.duration >= 0))
        place = _device_of(trace, rows)
        self.others = int(place.max())  # how many other devices the trace has
        busiest = np.bincount(place, weights=trace.duration[rows]).argmax()
        rows = rows[place == busiest]
        part = device_part(trace)[rows]
        busy = _busy(trace, rows, part)
        windows = _windows(trace, steps, rows, launch)
        self.windows = windows
        parts = _parts(busy, windows.begin, windows.end)
        # By step, with the time of the kernels launched in it.
        self.steps = pl.DataFrame(
            {
                "number": steps.number,
                "counted": steps.counted,
                "wall": windows.wall,
                **parts,
                "kernels": _kernel_times(trace, steps, rows[part == 0], launch),
            }
        )
        # From the first event of the device to its last.
        self.kernels = _parts_of_span(trace, rows, busy)
        has_other_streams = len(np.unique(trace.thread[rows])) > 1
        in_time = "device" if self.others > 0 or has_other_streams else "queued"
        gaps = _gaps(trace, windows, host, rows, busy[-1], launch, in_time)
        idle = by_time(gaps.with_columns(time=pl.col("end") - pl.col("begin")), "reason")
        if int(idle["time"].sum()) != int(parts["idle"][windows.counted].sum()):
            raise AssertionError("the gaps do not add up to the device's idle time")
        meanings = [MEANINGS[reason] for reason in idle["reason"]]
        meaning = pl.Series("meaning", meanings, pl.String)
        self.idle = idle.select("reason", meaning, "time", "count")  # of counted steps
        self.idle_by_name = _by_name(gaps, host)


def _device_of(trace: Trace, rows: Ints) -> Ints:
    """Return the number of the device of each event, counted from 0."""
    devices = [NOTHING if thread.device is None else thread.device for thread in trace.threads]
    of_rows = np.array(devices)[trace.thread[rows]]
    _, place = np.unique(of_rows, return_inverse=True)
    return place


def _busy(trace: Trace, rows: Ints, part: Ints) -> list[Covered]:
    """Return when a device computes, computes or communicates, and is busy with anything."""
    begin = trace.begin[rows]
    end = trace.ends(rows)
    return [Covered.union(begin[part <= last], end[part <= last]) for last in range(3)]


def _parts_of_span(trace: Trace, rows: Ints, busy: list[Covered]) -> dict[str, int]:
    """Return the parts of the time from the first event of a device to its last."""
    begin = np.array([trace.begin[rows].min()])
    end = np.array([trace.ends(rows).max()])
    parts = {"wall": end - begin, **_parts(busy, begin, end)}
    return {part: int(time[0]) for part, time in parts.items()}


def launches(trace: Trace) -> Indices:
    """Return the row of the host's call that launched each event of the device, or `NOTHING`."""
    callers = np.full(len(trace), NOTHING, dtype=np.int32)
    # In reverse, so that the first of several calls with one number is kept.
    is_call = (trace.kind == Kind.runtime) & (trace.correlation >= 0)
    calls = np.flatnonzero(is_call)[::-1]
    call_of = dict(zip(trace.correlation[calls].tolist(), calls.tolist(), strict=True))
    work = np.flatnonzero(trace.on_device)
    numbers = trace.correlation[work].tolist()
    callers[work] = [call_of.get(number, NOTHING) for number in numbers]
    return callers


def collective_rows(trace: Trace) -> Ints:
    """Return the rows of the device's events that communicate."""
    return np.flatnonzero(device_part(trace) == 1)


def _parts(busy: list[Covered], begin: Ints, end: Ints) -> dict[str, Ints]:
    """Return the time of each part within windows."""
    computing, working, any_work = [covered.within(begin, end) for covered in busy]
    wall = end - begin
    parts = (computing, working - computing, any_work - working, wall - any_work)
    adds_up = (np.sum(parts, axis=0) == wall).all()
    if not adds_up or np.min(parts) < 0:
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
    falls_behind = late[-1] - late[0] > BEHIND * int(steps.wall[1:].sum())
    if not falls_behind or late[-1] < steps.wall[-1] / 5:
        return steps
    end = np.append(begin[1:], done[-1])
    return replace(steps, begin=begin, end=end) if (end > begin).all() else steps


def _kernel_times(trace: Trace, steps: Steps, kernels: Ints, launch: Indices) -> list[int]:
    """Return the time of the computation launched in each step, counting overlap once."""
    kernels = kernels[launch[kernels] >= 0]
    step = steps.place(trace.begin[launch[kernels]])
    order = np.argsort(step, kind="stable")
    numbers = np.arange(len(steps) + 1)
    bounds = np.searchsorted(step[order], numbers).tolist()
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
    gaps = _idle_stretches(trace, steps, rows, busy, launch).split_at_launch()
    reason = _reasons(trace, host, gaps, in_time)
    return pl.DataFrame({"begin": gaps.begin, "end": gaps.end, "late": gaps.late, "reason": reason})


class _Stretches(NamedTuple):
    """Idle stretches of a device."""

    begin: Ints
    end: Ints
    late: Ints  # when the host had launched the next event, within the stretch
    following: Ints  # the row of the next event, or NOTHING
    call: Ints  # the row of the call that launched it, or NOTHING

    def split_at_launch(self) -> _Stretches:
        """Return stretches that end with a launch, and those after it if they are not short.

        The time after the launch is not the host's.
        """
        is_long = self.end - self.late > LATENCY
        after = np.flatnonzero((self.late > self.begin) & is_long & (self.call >= 0))
        end = self.end.copy()
        end[after] = self.late[after]
        return _Stretches(
            begin=np.concatenate([self.begin, self.late[after]]),
            end=np.concatenate([end, self.end[after]]),
            late=np.append(self.late, self.late[after]),
            following=np.append(self.following, self.following[after]),
            call=np.append(self.call, self.call[after]),
        )


def _idle_stretches(
    trace: Trace,
    steps: Steps,
    rows: Ints,
    busy: Covered,
    launch: Indices,
) -> _Stretches:
    """Return the stretches of counted steps in which a device has nothing to do."""
    times, _ = distinct(np.concatenate([busy.begin, busy.end, steps.begin, steps.end]))
    begin = times[:-1]
    end = times[1:]
    is_idle = steps.in_counted(begin) & (busy.within(begin, end) == 0)
    begin = begin[is_idle]
    end = end[is_idle]
    # The next event begins where an interval of the union does.
    place = np.searchsorted(busy.begin, end - 1, side="right")
    is_followed = place < len(busy.begin)
    begin_of_next = busy.begin[place[is_followed]]
    following = np.full(len(begin), NOTHING, dtype=np.int64)
    following[is_followed] = rows[np.searchsorted(trace.begin[rows], begin_of_next)]
    call = np.where(following >= 0, launch[following], NOTHING)
    called = np.where(call >= 0, trace.ends(call), end)
    return _Stretches(begin, end, np.clip(called, begin, end), following, call)


def _reasons(trace: Trace, host: HostTime, gaps: _Stretches, in_time: str) -> pl.Series:
    """Return why the device was idle in each stretch; a later reason overrides an earlier one."""
    begin = gaps.begin
    late = gaps.late

    def spent(which: Bools, since: Ints, until: Ints) -> Ints:
        return host.covered(which).within(since, np.maximum(since, until))

    kind = trace.kind[host.row]
    has_event = host.row >= 0
    at_work = has_event & ((kind == Kind.operator) | (kind == Kind.runtime))
    syncing = has_event & waiting_calls(trace)[host.row]
    loading = spent(host.category == Category.data_loading, begin, late)
    reason = np.full(len(begin), "host", dtype=object)
    reason[2 * spent(at_work, begin, late) >= late - begin] = "launch"
    # A call that waits returns a moment after the device has finished.
    just_after = np.minimum(begin + 1, late)
    reason[spent(syncing, begin - 1, just_after) > 0] = "sync"
    reason[2 * loading > late - begin] = "data"
    reason[late == begin] = in_time
    reason[gaps.call < 0] = "unlaunched"
    reason[gaps.following < 0] = "end"
    return pl.Series(reason.tolist(), dtype=pl.String)


def _by_name(gaps: pl.DataFrame, host: HostTime) -> pl.DataFrame:
    """Return idle time by reason and by what the host did, or what had made it wait, meanwhile."""
    rows: list[tuple[str, str, int]] = []
    for reason in ("data", "sync", "launch", "host"):
        of_reason = gaps.filter(reason=reason).sort("begin", maintain_order=True)
        begin = of_reason["begin"].to_numpy()
        late = of_reason["late"].to_numpy()
        if reason == "sync":
            place = np.searchsorted(host.begin, begin, side="right") - 1
            time = late - begin
            codes = host.name[np.clip(place, 0, None)]
        else:
            time = Covered.union(begin, late).within(host.begin, host.end)
            codes = host.name
        spent = np.bincount(codes, weights=time, minlength=len(host.names))
        for code in np.flatnonzero(spent).tolist():
            rows.append((reason, host.names[code], int(spent[code])))
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
            for category, time in zip(host.category[places], inside.tolist(), strict=True):
                rows.append((where, Category(category).title, time))
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
    ends_within = (ends > begin) & (ends <= end)
    work = np.flatnonzero(trace.on_device & (trace.duration > 0) & ends_within)
    work = work[np.argsort(ends[work], kind="stable")]
    ends = ends[work]

    def last_until(time: int) -> int:
        place = int(np.searchsorted(ends, time, side="right")) - 1
        return int(work[place]) if place >= 0 else NOTHING

    places, _ = host.between(begin, end)
    rows = host.row[places]
    is_wait = (rows >= 0) & waiting_calls(trace)[rows]
    waits = np.unique(rows[is_wait]).tolist()
    until = end
    for wait in reversed(waits):
        row = last_until(trace.end(wait))
        if trace.end(wait) > until or row == NOTHING:
            continue
        if trace.end(row) <= trace.begin[wait]:
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
            since = ready if before == NOTHING else trace.end(before)
            until = min(max(since, begin), start)
            yield "launch", until, start, row
            row = before
    yield "host", begin, until, NOTHING
