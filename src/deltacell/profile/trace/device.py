"""The device's time: compute, communication and copies that nothing hides, and idle.

compute + exposed communication + exposed copies + idle = wall, of every window. Communication is
exposed where no computation runs at the same time, a copy where neither does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.trace.categories import Category, is_collective
from deltacell.profile.trace.host import Doing, HostTime, waiting_calls
from deltacell.profile.trace.self_time import Covered
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, ON_DEVICE, Codes, Ints, Kind, Trace

REASONS = {
    "data": "the host waited for the loader",
    "sync": "the host had waited for the device and had nothing ready after it",
    "launch": "the host was busy with operators and launches: kernels are shorter than these",
    "host": "the host was busy with something that no operator is",
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


@dataclass(frozen=True)
class DeviceAccount:
    """What a device did in a window, in nanoseconds; see `PARTS`."""

    begin: int
    end: int
    compute: int
    communication: int
    copies: int
    idle: int

    @property
    def wall(self) -> int:
        """The length of the window."""
        return self.end - self.begin

    def share(self, part: str) -> float:
        """Return a part as a share of the wall, 0 to 1."""
        value: int = getattr(self, part)
        return value / self.wall if self.wall else 0.0


@dataclass(frozen=True, eq=False)
class DeviceTime:
    """Where the time of the busiest device of a trace goes.

    Parameters
    ----------
    device
        Which one; None where the trace does not say.
    steps
        One row per step: its ``number``, whether it is ``counted``, ``wall``, ``compute``,
        ``communication``, ``copies``, ``idle``; ``kernels`` and ``launches``, the time covered by
        kernels that the host launched in this step and how many; all times in nanoseconds.
    windows
        The steps as the device went through them. They are those of the host, but where the host
        runs ahead of a device that falls behind more with every step: then a step is from the
        first of its kernels to the first of the next.
    queued
        Whether that is so.
    kernels
        From the first event of the device to its last, as HolisticTraceAnalysis counts.
    idle
        Of counted steps, one row per reason: ``reason``, ``time``, ``gaps``; times add up to the
        idle time.
    idle_by_name
        Of counted steps: ``reason``, ``name`` of what the host did meanwhile, and ``time``.
    gaps
        The longest in counted steps: ``begin``, ``length``, ``step``, ``reason``; the ``host``
        call that most of it waits for and its ``category``; what runs ``next`` and its ``launch``.
    small
        Kernels that take less time than the call that launched them, by name: ``kernel``,
        ``count``, ``time``, ``launch_time``; of counted steps.
    others
        How many other devices the trace has.
    """

    device: int | None
    steps: pl.DataFrame
    windows: Steps
    queued: bool
    kernels: DeviceAccount
    idle: pl.DataFrame
    idle_by_name: pl.DataFrame
    gaps: pl.DataFrame
    small: pl.DataFrame
    others: int


def device_time(
    trace: Trace,
    steps: Steps,
    host: HostTime,
    *,
    launch: Codes | None = None,
    doing: Doing | None = None,
    longest: int = 50,
) -> DeviceTime | None:
    """Tell where the time of the device goes, and what it waits for when it is idle.

    None where the trace has no device.
    """
    rows, device, others = _busiest(trace)
    if not len(rows):
        return None
    launch = launches(trace) if launch is None else launch
    collective = trace.named(is_collective)
    is_kernel = trace.kind[rows] == Kind.kernel
    compute = is_kernel & ~collective[rows]
    start, stop = trace.begin[rows], trace.ends(rows)
    # Computing; computing or communicating; doing anything.
    busy = [
        Covered.of(start[which], stop[which])
        for which in (compute, is_kernel, np.ones(len(rows), dtype=bool))
    ]
    windows = _windows(trace, steps, rows, launch)
    parts = _parts(busy, windows.begin, windows.end)
    first, last = int(start.min()), int(stop.max())
    whole = _parts(busy, np.array([first]), np.array([last]))
    launched = rows[is_kernel & (launch[rows] >= 0)]
    gaps = _gaps(trace, windows, host, rows, busy[2], launch)
    return DeviceTime(
        device=device,
        steps=_step_frame(trace, steps, launched[~collective[launched]], launch, parts, windows),
        windows=windows,
        queued=windows is not steps,
        kernels=DeviceAccount(first, last, *(int(whole[part][0]) for part in PARTS)),
        idle=_by_reason(gaps, parts, windows),
        idle_by_name=_by_name(gaps, host, doing),
        gaps=_longest(trace, windows, host, gaps, launch, longest),
        small=_small(trace, steps, launched, launch),
        others=others,
    )


def launches(trace: Trace) -> Codes:
    """Return the row of the host's call that caused each event of the device, or `NOTHING`."""
    found = np.full(len(trace), NOTHING, dtype=np.int32)
    calls = np.flatnonzero((trace.kind == Kind.runtime) & (trace.correlation >= 0))
    work = np.flatnonzero(on_device(trace) & (trace.correlation >= 0))
    if not len(calls) or not len(work):
        return found
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    numbers = trace.correlation[calls]
    place = np.searchsorted(numbers, trace.correlation[work])
    place = np.minimum(place, len(calls) - 1)
    same = numbers[place] == trace.correlation[work]
    found[work[same]] = calls[place[same]]
    return found


def on_device(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return which events are work of a device, bool [n]."""
    table = np.zeros(len(Kind), dtype=bool)
    table[[int(kind) for kind in ON_DEVICE]] = True
    there: npt.NDArray[np.bool_] = table[trace.kind]
    return there


def collective_rows(trace: Trace) -> Ints:
    """Return the kernels that are collectives, by beginning."""
    return np.flatnonzero(trace.named(is_collective) & (trace.kind == Kind.kernel))


@dataclass(frozen=True, eq=False)
class _Gaps:
    """Idle stretches within counted steps; ``late`` is until when the host is waited for."""

    begin: Ints
    end: Ints
    step: Ints
    following: Ints
    late: Ints
    reason: Ints


_REASONS = tuple(REASONS)


def _busiest(trace: Trace) -> tuple[Ints, int | None, int]:
    """Return the events of the device with most time, which one it is, and how many others."""
    rows = np.flatnonzero(on_device(trace) & (trace.duration >= 0))
    if not len(rows):
        return rows, None, 0
    devices = np.array([NOTHING if t.device is None else t.device for t in trace.threads])
    numbers, place = np.unique(devices[trace.thread[rows]], return_inverse=True)
    chosen = int(np.bincount(place, weights=trace.duration[rows]).argmax())
    device = int(numbers[chosen])
    return rows[place == chosen], None if device == NOTHING else device, len(numbers) - 1


def _parts(busy: list[Covered], begin: Ints, end: Ints) -> dict[str, Ints]:
    computing, working, any_work = (x.within(begin, end) for x in busy)
    idle = end - begin - any_work
    found = (computing, working - computing, any_work - working, idle)
    if (np.sum(found, axis=0) != end - begin).any() or any((part < 0).any() for part in found):
        raise AssertionError("the parts of the device's time miss the wall")
    return dict(zip(PARTS, found, strict=True))


def _windows(trace: Trace, steps: Steps, rows: Ints, launch: Codes) -> Steps:
    """Return the steps, or the device's own where it falls behind the host more and more."""
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
    trace: Trace, steps: Steps, kernels: Ints, launch: Codes, parts: dict[str, Ints], windows: Steps
) -> pl.DataFrame:
    step = steps.place(trace.begin[launch[kernels]])
    covered, count = [], []
    order = np.argsort(step, kind="stable")
    bounds = np.searchsorted(step[order], np.arange(len(steps) + 1))
    for first, last in pairwise(bounds.tolist()):
        mine = kernels[order[first:last]]
        union = Covered.of(trace.begin[mine], trace.ends(mine))
        covered.append(int((union.end - union.begin).sum()))
        count.append(len(mine))
    return pl.DataFrame(
        {
            "number": steps.number,
            "counted": steps.counted,
            "wall": windows.wall,
            **parts,
            "kernels": pl.Series(covered, dtype=pl.Int64),
            "launches": pl.Series(count, dtype=pl.Int64),
        }
    )


def _gaps(
    trace: Trace, steps: Steps, host: HostTime, rows: Ints, busy: Covered, launch: Codes
) -> _Gaps:
    begin, end, step = _idle_pieces(steps, busy)
    # What runs next begins where an interval of the union does.
    starts = trace.begin[rows]
    place = np.searchsorted(busy.begin, end - 1, side="right")
    follows = place < len(busy.begin)
    following = np.full(len(begin), NOTHING, dtype=np.int64)
    following[follows] = rows[np.searchsorted(starts, busy.begin[place[follows]])]
    call = np.where(following >= 0, launch[following], NOTHING)
    called = np.where(call >= 0, trace.ends(call), end)
    late = np.clip(called, begin, end)
    # What comes after the launch is not the host's.
    own = np.flatnonzero((late > begin) & (end - late > LATENCY) & (call >= 0))
    begin = np.concatenate([begin, late[own]])
    end = np.concatenate([end, end[own]])
    end[own] = late[own]
    step, following = (np.concatenate([x, x[own]]) for x in (step, following))
    call, late = np.concatenate([call, call[own]]), np.concatenate([late, late[own]])
    reason = np.full(len(begin), _REASONS.index("host"))
    loading = _spent(host, host.category == Category.data_loading, begin, late)
    kind = trace.kind[host.row]
    working = (host.row >= 0) & ((kind == Kind.operator) | (kind == Kind.runtime))
    operating = _spent(host, working, begin, late)
    reason[2 * operating >= late - begin] = _REASONS.index("launch")
    syncing = (host.row >= 0) & waiting_calls(trace)[host.row]
    # A call that waits returns a moment after the device is done.
    synced = _spent(host, syncing, begin - 1, np.minimum(begin + 1, late)) > 0
    reason[synced] = _REASONS.index("sync")
    reason[2 * loading > late - begin] = _REASONS.index("data")
    reason[late == begin] = _REASONS.index("device")
    # Not a call that is too late, but no call that is known.
    reason[(following >= 0) & (call < 0)] = _REASONS.index("device")
    reason[following < 0] = _REASONS.index("end")
    return _Gaps(begin, end, step, following, late, reason)


def _idle_pieces(steps: Steps, busy: Covered) -> tuple[Ints, Ints, Ints]:
    far = np.iinfo(np.int64).max
    begin = np.concatenate([[np.int64(-1)], busy.end])
    end = np.concatenate([busy.begin, [np.int64(far)]])
    pieces = []
    for place in np.flatnonzero(steps.counted).tolist():
        start, stop = steps.begin[place], steps.end[place]
        first = int(np.searchsorted(end, start, side="right"))
        last = int(np.searchsorted(begin, stop, side="left"))
        left = np.maximum(begin[first:last], start)
        right = np.minimum(end[first:last], stop)
        inside = right > left
        pieces.append((left[inside], right[inside], np.full(int(inside.sum()), place)))
    lefts, rights, places = zip(*pieces, strict=True)
    return np.concatenate(lefts), np.concatenate(rights), np.concatenate(places)


def _spent(host: HostTime, which: npt.NDArray[np.bool_], begin: Ints, end: Ints) -> Ints:
    return host.covered(which).within(begin, np.maximum(begin, end))


def _by_reason(gaps: _Gaps, parts: dict[str, Ints], steps: Steps) -> pl.DataFrame:
    length = gaps.end - gaps.begin
    time = np.bincount(gaps.reason, weights=length, minlength=len(_REASONS)).astype(np.int64)
    count = np.bincount(gaps.reason, minlength=len(_REASONS))
    if int(time.sum()) != int(parts["idle"][steps.counted].sum()):
        raise AssertionError("the gaps miss the device's idle time")
    frame = pl.DataFrame(
        {"reason": _REASONS, "meaning": list(REASONS.values()), "time": time, "gaps": count}
    )
    return frame.filter(pl.col("gaps") > 0).sort("time", descending=True)


def _by_name(gaps: _Gaps, host: HostTime, doing: Doing | None) -> pl.DataFrame:
    """Return idle time by reason and by what the host did meanwhile.

    After a wait for the device it is what asked for the wait.
    """
    rows: list[tuple[str, str, int]] = []
    for code, reason in enumerate(_REASONS[:4] if doing is not None else ()):
        mine = gaps.reason == code
        begin, late = gaps.begin[mine], gaps.late[mine]
        if doing is None or not len(begin):
            continue
        if reason == "sync":
            place = np.clip(np.searchsorted(host.begin, begin, side="right") - 1, 0, None)
            time, codes = late - begin, doing.code[place]
        else:
            order = np.argsort(begin, kind="stable")
            time = Covered.of(begin[order], late[order]).within(host.begin, host.end)
            codes = doing.code
        spent = np.bincount(codes, weights=time, minlength=len(doing.names))
        rows += [(reason, doing.names[i], int(spent[i])) for i in np.flatnonzero(spent).tolist()]
    schema = {"reason": pl.String(), "name": pl.String(), "time": pl.Int64()}
    found = pl.DataFrame(rows, schema=schema, orient="row")
    return found.sort("time", "name", descending=[True, False])


def _longest(
    trace: Trace, steps: Steps, host: HostTime, gaps: _Gaps, launch: Codes, longest: int
) -> pl.DataFrame:
    length = gaps.end - gaps.begin
    rows = []
    for place in np.argsort(-length, kind="stable")[:longest].tolist():
        begin, late, end = (int(x[place]) for x in (gaps.begin, gaps.late, gaps.end))
        row, category = host_row(host, begin, late if late > begin else end)
        following = int(gaps.following[place])
        call = int(launch[following]) if following >= 0 else NOTHING
        about = (begin, int(length[place]), int(steps.number[gaps.step[place]]))
        named = [None if one < 0 else trace.text(one) for one in (row, following, call)]
        reason = _REASONS[int(gaps.reason[place])]
        kind = None if category is None else category.name
        rows.append((*about, reason, named[0], kind, named[1], named[2]))
    schema = {
        **dict.fromkeys(("begin", "length", "step"), pl.Int64()),
        **dict.fromkeys(("reason", "host", "category", "next", "launch"), pl.String()),
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def host_row(host: HostTime, begin: int, end: int) -> tuple[int, Category | None]:
    """Return the event of the host that most of a stretch belongs to, and its category.

    Of the pieces of the category that has most of the stretch, the event with most of it.
    """
    places, inside = host.between(begin, end)
    if not len(places):
        return NOTHING, None
    per_category = np.bincount(host.category[places], weights=inside, minlength=len(Category))
    category = int(per_category.argmax())
    mine = host.category[places] == category
    rows, place = np.unique(host.row[places[mine]], return_inverse=True)
    most = int(np.bincount(place, weights=inside[mine]).argmax())
    return int(rows[most]), Category(category)


def _small(trace: Trace, steps: Steps, kernels: Ints, launch: Codes) -> pl.DataFrame:
    """Return kernels that are shorter than the call that launched them, by name."""
    kernels = kernels[steps.in_counted(trace.begin[launch[kernels]])]
    call = trace.duration[launch[kernels]]
    short = trace.duration[kernels] < call
    kernels, call = kernels[short], call[short]
    codes, place = np.unique(trace.name[kernels], return_inverse=True)
    sums = {
        name: np.bincount(place, weights=weights, minlength=len(codes)).astype(np.int64)
        for name, weights in (
            ("count", None),
            ("time", trace.duration[kernels]),
            ("launch_time", call),
        )
    }
    names = pl.Series([trace.names[code] for code in codes.tolist()], dtype=pl.String)
    return pl.DataFrame({"kernel": names, **sums}).sort(
        "launch_time", "kernel", descending=[True, False]
    )


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The chain of work, on host and device, that the length of one step is made of.

    ``stretches`` has by time: ``where`` (host, device, or launch: from the host's call to its
    beginning), ``begin``, ``end`` in nanoseconds, ``part`` (a category of the host; compute,
    communication or copies of the device; waiting) and ``name`` of the event. ``parts`` is the
    same summed: ``where``, ``part``, ``time``; they add up to the step.
    """

    number: int
    stretches: pl.DataFrame
    parts: pl.DataFrame
    residual: int


def critical_path(
    trace: Trace, steps: Steps, host: HostTime, launch: Codes, place: int | None = None
) -> CriticalPath:
    """Follow the critical path of a step, by default a typical one, backwards from its end.

    The host did what it did until it last waited for the device; there the path goes to the event
    of the device that it waited for. That event began when the one before it on the device had
    ended, or when the host had launched it, whichever was later.
    """
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


_COLUMNS = {
    **{"where": pl.String(), "begin": pl.Int64(), "end": pl.Int64()},
    **{"part": pl.String(), "name": pl.String()},
}
_Stretch = tuple[str, int, int, int]
"""Where, begin, end, and the row of an event of the device or nothing."""


def _chain(trace: Trace, host: HostTime, launch: Codes, begin: int, end: int) -> list[_Stretch]:
    work = np.flatnonzero(on_device(trace) & (trace.duration > 0))
    ends = trace.ends(work)
    work = work[(ends > begin) & (ends <= end)]
    work = work[np.argsort(trace.ends(work), kind="stable")]
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
    trace: Trace, launch: Codes, work: Ints, ends: Ints, row: int, begin: int, chain: list[_Stretch]
) -> int:
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


def _end(trace: Trace, row: int) -> int:
    return int(trace.begin[row] + trace.duration[row])


def _last(work: Ints, ends: Ints, time: int) -> int:
    place = int(np.searchsorted(ends, time, side="right")) - 1
    return int(work[place]) if place >= 0 else NOTHING


def _waits(trace: Trace, host: HostTime, begin: int, end: int) -> list[tuple[int, int]]:
    places, _ = host.between(begin, end)
    rows = host.row[places]
    found = np.unique(rows[(rows >= 0) & waiting_calls(trace)[rows]])
    return [(int(trace.begin[row]), _end(trace, row)) for row in found.tolist()]


def _pieces(
    trace: Trace, host: HostTime, stretch: _Stretch
) -> list[tuple[str, int, int, str, str | None]]:
    where, begin, end, row = stretch
    if where == "device":
        is_compute = not is_collective(trace.text(row))
        part = "compute" if is_compute else "communication"
        part = part if trace.kind[row] == Kind.kernel else "copies"
        return [(where, begin, end, part, trace.text(row))]
    if where == "launch":
        return [(where, begin, end, "waiting", trace.text(row))]
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
