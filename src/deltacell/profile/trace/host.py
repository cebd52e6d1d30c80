"""The host's time: of every moment of a step, what the program was busy with.

It is that of the thread the steps are on. Where that thread only waits for the threads that run
the backward, it is theirs; where it waits for a collective of the host, it is the collective's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.trace.categories import (
    Category,
    categories,
    classify,
    is_collective,
    is_loader,
    nearest,
    own_categories,
)
from deltacell.profile.trace.self_time import (
    Covered,
    Nesting,
    Timeline,
    merge,
    moments,
    parts,
    timeline,
)
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace


@dataclass(frozen=True, eq=False)
class HostTime:
    """Pieces of time, one after another, that fill all steps.

    Parameters
    ----------
    begin, end
        Of each piece in nanoseconds, int64 [k].
    row
        The event that the piece belongs to, int32 [k]; `NOTHING` where none was recorded.
    category
        Of each piece, int8 [k].
    step
        The place of the step that each lies in, int32 [k].
    inferred
        Whether the category is not from a name but from what lies around, bool [k].
    loader
        Nanoseconds of each step that the training was in its loader, int64 [s].
    helpers
        The threads that ran the backward for it.
    residual
        Nanoseconds by which the pieces and the steps differ.
    """

    begin: Ints
    end: Ints
    row: Codes
    category: npt.NDArray[np.int8]
    step: Codes
    inferred: npt.NDArray[np.bool_]
    loader: Ints
    helpers: tuple[int, ...]
    residual: int

    @property
    def length(self) -> Ints:
        """Nanoseconds of each piece, int64 [k]."""
        return self.end - self.begin

    def by_category(self, steps: int) -> Ints:
        """Return the nanoseconds of each step and category, int64 [s, 12]."""
        total = np.zeros(steps * len(Category), dtype=np.int64)
        for part in parts(len(self.begin)):
            place = self.step[part].astype(np.int64) * len(Category) + self.category[part]
            length = self.end[part] - self.begin[part]
            total += np.bincount(place, weights=length, minlength=len(total)).astype(np.int64)
        return total.reshape(steps, len(Category))

    def covered(self, which: npt.NDArray[np.bool_]) -> Covered:
        """Return when the host was in these of its pieces."""
        first, last = which.copy(), which.copy()
        goes_on = which[1:] & which[:-1]
        goes_on &= self.begin[1:] == self.end[:-1]
        first[1:] ^= goes_on
        last[:-1] ^= goes_on
        return Covered(self.begin[first], self.end[last])

    def between(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Return the places of the pieces of a stretch of time, and what of each lies in it."""
        first = int(np.searchsorted(self.end, begin, side="right"))
        last = int(np.searchsorted(self.begin, end, side="left"))
        places = np.arange(first, max(first, last))
        inside = np.minimum(self.end[places], end) - np.maximum(self.begin[places], begin)
        return places, inside


def host_time(trace: Trace, nesting: Nesting, steps: Steps) -> HostTime:
    """Tell what the host was busy with at every moment of every step."""
    told = own_categories(trace)
    found = _with_forward(trace, nesting, steps, told, categories(trace, nesting, told))
    helpers = _helpers(trace, steps, told)
    main = timeline(trace, nesting, steps.thread)
    others = [timeline(trace, nesting, lane) for lane in helpers]
    collectives = _collectives(trace, nesting, steps)
    times = moments(
        main.times, steps.begin, steps.end, *(line.times for line in others), *collectives
    )
    begin, end, step = _within(steps, times)
    del times
    row = np.empty(len(begin), dtype=np.int32)
    category = np.empty(len(begin), dtype=np.int8)
    waits = np.empty(len(begin), dtype=bool)
    for part in parts(len(begin)):
        row[part], category[part], waits[part] = _busy(trace, found, main, others, begin[part])
    del main, others
    exposed = _exposed(told, row, waits, begin, collectives)
    category[exposed] = Category.communication
    least, most, share = PAUSE
    pause = min(max(least, share * float(np.median(steps.wall))), most)
    category, inferred = _fill(category, step, begin, end, pause)
    inferred |= exposed
    filled = sum(int((end[part] - begin[part]).sum()) for part in parts(len(begin)))
    residual = abs(filled - int(steps.wall.sum()))
    if residual:
        raise AssertionError(f"the host's time misses that of the steps by {residual} ns")
    loader = _loader(trace, nesting, steps)
    return HostTime(begin, end, row, category, step, inferred, loader, helpers, residual)


def _within(steps: Steps, times: Ints) -> tuple[Ints, Ints, Codes]:
    # The bounds of steps are among the times.
    first, last = np.searchsorted(times, steps.begin), np.searchsorted(times, steps.end)
    places = [slice(a, max(a, b)) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    begin = np.concatenate([times[:-1][place] for place in places])
    end = np.concatenate([times[1:][place] for place in places])
    step = np.repeat(np.arange(len(steps), dtype=np.int32), np.maximum(last - first, 0))
    return begin, end, step


def _busy(
    trace: Trace,
    found: npt.NDArray[np.int8],
    main: Timeline,
    others: Sequence[Timeline],
    begin: Ints,
) -> tuple[Codes, npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    row = main.at(begin)
    category = np.where(row >= 0, found[row], np.int8(NOTHING))
    waits = _waits(trace, row) & ((category == NOTHING) | (category == Category.backward))
    for line in others:
        other = line.at(begin)
        helped = waits & (other >= 0)
        row = np.where(helped, other, row)
        theirs = np.where(found[other] == NOTHING, np.int8(Category.backward), found[other])
        category = np.where(helped, theirs, category)
        waits &= ~helped
    return row, category, waits


def _waits(trace: Trace, row: Codes) -> npt.NDArray[np.bool_]:
    kind = trace.kind[row]
    waits: npt.NDArray[np.bool_] = (row < 0) | (kind == Kind.annotation) | (kind == Kind.python)
    return waits


def _helpers(trace: Trace, steps: Steps, told: npt.NDArray[np.int8]) -> tuple[int, ...]:
    at_work = (told == Category.backward) & (trace.kind == Kind.operator)
    threads = np.unique(trace.thread[at_work & (trace.thread != steps.thread)])
    return tuple(int(thread) for thread in threads)


def _with_forward(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    told: npt.NDArray[np.int8],
    found: npt.NDArray[np.int8],
) -> npt.NDArray[np.int8]:
    """Call forward what no name tells and what has a backward later in the same step.

    An operator that needs no gradient has the number of the next one that does, so that of those
    with one number the last is meant, with all that lies in it.
    """
    numbered = trace.sequence >= 0
    back = np.flatnonzero(numbered & (told == Category.backward))
    untold = numbered & (found == NOTHING)
    untold &= (trace.kind == Kind.operator) & (trace.thread == steps.thread)
    rows = np.flatnonzero(untold)
    if not len(back) or not len(rows):
        return found
    most = int(trace.sequence.max()) + 1

    def key(these: Ints) -> Ints:
        step: Ints = np.searchsorted(steps.begin, trace.begin[these], side="right")
        return step * most + trace.sequence[these]

    keys = key(rows)
    meant = np.isin(keys, key(back))
    rows, keys = rows[meant], keys[meant]
    # Rows are by beginning: of those with one key the last that lies in none of the others.
    outer = nesting.parent[rows]
    inside = np.isin(outer, rows)
    inside[inside] = _same_key(rows, keys, outer[inside], keys[inside])
    rows, keys = rows[~inside], keys[~inside]
    _, from_end = np.unique(keys[::-1], return_index=True)
    own = found.copy()
    own[rows[len(rows) - 1 - from_end]] = Category.forward
    return nearest(own, nesting.parent)


def _same_key(rows: Ints, keys: Ints, others: Codes, expected: Ints) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = keys[np.searchsorted(rows, others)] == expected
    return found


def _collectives(trace: Trace, nesting: Nesting, steps: Steps) -> tuple[Ints, Ints]:
    named = np.array([is_collective(name) for name in trace.names], dtype=bool)
    if not named.any():
        return merge(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    rows = named[trace.name] & (trace.kind == Kind.annotation) & (nesting.lane != steps.thread)
    # Those of NCCL are only the launch; what they launch is on the device.
    launched = np.array([name.startswith(("nccl:", "rccl:")) for name in trace.names], dtype=bool)
    rows &= ~launched[trace.name]
    return merge(trace.begin[rows], trace.ends(rows))


def _exposed(
    told: npt.NDArray[np.int8],
    row: Codes,
    waits: npt.NDArray[np.bool_],
    begin: Ints,
    collectives: tuple[Ints, Ints],
) -> npt.NDArray[np.bool_]:
    starts, stops = collectives
    if not len(starts):
        return np.zeros(len(begin), dtype=bool)
    place = np.searchsorted(starts, begin, side="right") - 1
    is_open = (place >= 0) & (begin < stops[place])
    # The backward goes on where the next thing at work is one of its operators.
    works = np.flatnonzero(~waits)
    following = np.searchsorted(works, np.arange(len(row)))
    last = following >= len(works)
    after = row[works[np.minimum(following, len(works) - 1)]] if len(works) else row
    goes_on = ~last & (after >= 0) & (told[after] == Category.backward)
    exposed: npt.NDArray[np.bool_] = is_open & waits & ~goes_on
    return exposed


PAUSE = (100_000, 500_000, 0.02)
"""What may lie between two operators of the forward and be a part of it: nanoseconds at least and
at most, and the share of a step."""


def _fill(
    category: npt.NDArray[np.int8], step: Codes, begin: Ints, end: Ints, pause: float
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Give what no name tells to what lies before and after it, where both are the same.

    Only of forward and backward: their operators have Python between them that no range holds.
    A long pause in the forward may be anything, so that it is not filled.
    """
    told = np.flatnonzero(category != NOTHING).astype(np.int32)
    untold = np.flatnonzero(category == NOTHING).astype(np.int32)
    filled = category.copy()
    inferred = np.zeros(len(category), dtype=bool)
    filled[untold] = Category.other
    if len(told) and len(untold):
        after = np.searchsorted(told, untold)
        inner = (after > 0) & (after < len(told))
        untold, after = untold[inner], after[inner]
        left, right = told[after - 1], told[after]
        same = (
            (category[left] == category[right])
            & (step[left] == step[untold])
            & (step[right] == step[untold])
            & np.isin(category[left], (Category.forward, Category.backward))
            & ((category[left] == Category.backward) | (begin[right] - end[left] <= pause))
        )
        filled[untold[same]] = category[left[same]]
        inferred[untold[same]] = True
    return filled, inferred


def _loader(trace: Trace, nesting: Nesting, steps: Steps) -> Ints:
    named = np.array([is_loader(name) for name in trace.names], dtype=bool)
    rows = named[trace.name] & (nesting.lane == steps.thread) & (trace.kind != Kind.runtime)
    return Covered.of(trace.begin[rows], nesting.cut[rows]).within(steps.begin, steps.end)


NOT_RECORDED = "(nothing recorded)"
"""The name of moments in which no event is open."""


def operations(trace: Trace, steps: Steps, host: HostTime) -> pl.DataFrame:
    """Return the operations of counted steps by self time.

    Returns
    -------
    ``operation``, ``category``, ``count``, ``time`` in nanoseconds of all counted steps,
    ``per_step`` in nanoseconds, ``share`` of the wall; shares add up to 1.
    """
    summed = _summed(steps, host, _plain(trace))
    names = {**dict(enumerate(plain_names(trace))), -1: NOT_RECORDED}
    return _named(summed, steps, names)


@dataclass(frozen=True, eq=False)
class Doing:
    """What the host does, in names that tell a person something.

    Parameters
    ----------
    names
        Of what it does, once each.
    code
        The name of each piece of the host's time, int32 [k].
    """

    names: list[str]
    code: Codes


def doing(trace: Trace, nesting: Nesting, steps: Steps, host: HostTime) -> Doing:
    """Name every piece of the host's time.

    A call into the driver is its operator. Python is the innermost function that is not of a
    library, or the one whose name says what it is for, such as ``torch.save``. Where nothing is
    recorded, it is what lies before and after.
    """
    names = list(dict.fromkeys(shown := [_spoken(name) for name in plain_names(trace)]))
    of_name = {name: code for code, name in enumerate(names)}
    codes = np.array([of_name[name] for name in shown] or [0], dtype=np.int32)
    row = _told_by(trace, nesting)
    piece = np.where(host.row >= 0, row[host.row], NOTHING)
    code = np.where(piece >= 0, codes[trace.name[piece]], np.int32(len(names)))
    names.append(NOT_RECORDED)
    bare = np.flatnonzero(piece < 0)
    if len(bare):
        _name_bare(names, code, bare, steps, host)
    return Doing(names, code.astype(np.int32))


def _told_by(trace: Trace, nesting: Nesting) -> Codes:
    rows = np.arange(len(trace), dtype=np.int32)
    parent = nesting.parent
    above = np.where(parent >= 0, trace.kind[parent], np.int8(NOTHING))
    is_python = trace.kind == Kind.python
    climbs = (trace.kind == Kind.runtime) & (above == Kind.operator)
    inner = np.array([name == "aten::_local_scalar_dense" for name in trace.names], dtype=bool)
    climbs |= inner[trace.name] & (above == Kind.operator)
    untold = np.array([_untold(name) for name in trace.names], dtype=bool)
    climbs |= is_python & untold[trace.name] & (above == Kind.python)
    place = np.where(climbs, parent, rows)
    while not np.array_equal(further := place[place], place):
        place = further
    steps = np.array([bool(_STEP.match(name)) for name in trace.names], dtype=bool)
    found: Codes = np.where(steps[trace.name[place]], np.int32(NOTHING), place)
    return found


def _name_bare(names: list[str], code: Codes, bare: Ints, steps: Steps, host: HostTime) -> None:
    first = bare[np.flatnonzero(np.diff(bare, prepend=-2) > 1)]
    last = bare[np.flatnonzero(np.diff(bare, append=len(code) + 1) > 1)]
    length = host.end[last] - host.begin[first]
    long = length > BARE * float(np.median(steps.wall))
    known: dict[str, int] = {}
    for begin, end in zip(first[long].tolist(), last[long].tolist(), strict=True):
        before = _brief(names[code[begin - 1]]) if begin else "the start"
        after = _brief(names[code[end + 1]]) if end + 1 < len(code) else "the end"
        text = f"code that records nothing, between {before} and {after}"
        if text not in known:
            known[text] = len(names)
            names.append(text)
        code[begin : end + 1] = known[text]


def _brief(name: str) -> str:
    if is_loader(name):
        return "the loader"
    return name if len(name) <= 40 else f"{name[:39]}…"


BARE = 0.02
"""The share of a step from which on a stretch without any event is named by what is around it."""

_STEP = re.compile(r"^ProfilerStep#\d+$")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VENDOR = re.compile(r"^(?:hip|xpu|musa|mtia)(?=[A-Z])")
_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|^torch/|/torch/|^<|/lib/python3|^(?:threading|contextlib|runpy)\.py"
)
_SPOKEN = {
    re.compile(r"torch/serialization\.py\(\d+\): save$"): "torch.save",
    re.compile(r"torch/serialization\.py\(\d+\): load$"): "torch.load",
}


def _spoken(name: str) -> str:
    # Names are untrusted; the ones that are looked for are short.
    if len(name) < 300:
        for pattern, spoken in _SPOKEN.items():
            if pattern.search(name):
                return spoken
    return name


def _untold(name: str) -> bool:
    if classify(name, Kind.python) is not None:
        return False
    return bool(_LIBRARY.search(name[:1000]))


def plain_name(name: str) -> str:
    """Return a name without what differs from run to run: numbers of steps, addresses, vendors."""
    if _STEP.match(name):
        return "ProfilerStep"
    if " at 0x" in name:
        name = _ADDRESS.sub("", name)
    return _VENDOR.sub("cuda", name).replace("rccl", "nccl")


def plain_names(trace: Trace) -> list[str]:
    """Return the names of a trace as `plain_name` has them."""
    return [plain_name(name) for name in trace.names]


def _plain(trace: Trace) -> Codes:
    names = plain_names(trace)
    first: dict[str, int] = {}
    codes = [first.setdefault(name, code) for code, name in enumerate(names)]
    plain: Codes = np.array(codes, dtype=np.int32)[trace.name]
    return plain


def _summed(steps: Steps, host: HostTime, codes: Codes) -> pl.DataFrame:
    """Return the pieces of counted steps summed by code and category.

    The code is that of the event that a piece belongs to, -1 of no event; ``count`` is of events.
    """
    counted = steps.counted[host.step]
    size = int(codes.max()) + 2
    frames = []
    for category in Category:
        places = np.flatnonzero(counted & (host.category == category)).astype(np.int32)
        if not len(places):
            continue
        time = np.zeros(size, dtype=np.int64)
        # The last is of no event: -1 is the last place.
        seen = np.zeros(len(codes) + 1, dtype=bool)
        for part in parts(len(places)):
            place = places[part]
            row = host.row[place]
            seen[row] = True
            code = np.where(row >= 0, codes[row], -1) + 1
            length = host.end[place] - host.begin[place]
            time += np.bincount(code, weights=length, minlength=size).astype(np.int64)
        count = np.bincount(codes[seen[:-1]] + 1, minlength=size)
        count[0] += int(seen[-1])
        found = np.flatnonzero(count)
        frames.append(
            pl.DataFrame(
                {
                    "code": found - 1,
                    "category": np.full(len(found), category, dtype=np.int8),
                    "count": count[found],
                    "time": time[found],
                }
            )
        )
    return pl.concat(frames)


def _named(summed: pl.DataFrame, steps: Steps, names: Mapping[int, str]) -> pl.DataFrame:
    counted = int(steps.counted.sum())
    wall = int(steps.wall[steps.counted].sum())
    titles = [category.name for category in Category]
    return summed.select(
        pl.Series("operation", [names[code] for code in summed["code"].to_list()], dtype=pl.String),
        pl.Series("category", [titles[code] for code in summed["category"].to_list()]),
        "count",
        "time",
        (pl.col("time") / counted).alias("per_step"),
        (pl.col("time") / wall).alias("share"),
    ).sort("time", "operation", "category", descending=[True, False, False])


def is_sync_call(name: str) -> bool:
    """Return whether a call of the host into the driver waits for the device."""
    return len(name) <= 100 and bool(_CALLS.match(name))


def waiting_calls(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return which events are calls that wait for the device, blocking copies too, bool [n]."""
    named = np.array([is_sync_call(name) for name in trace.names], dtype=bool)
    waits: npt.NDArray[np.bool_] = named[trace.name] & (trace.kind == Kind.runtime)
    return waits | _copies_to_pageable(trace)


def sync_points(trace: Trace, nesting: Nesting, steps: Steps) -> pl.DataFrame:
    """Return where the host waits for the device, by what asked for it and from where.

    They are calls that wait, such as ``cudaStreamSynchronize``, and operators that need a value on
    the host: ``.item()``, ``nonzero``, a copy to the host. What asked is the outermost operator
    around the call. Without a device ``.item()`` costs nothing, so a trace of the host only has
    none.

    Returns
    -------
    By time waited: ``operation``, ``call`` (what waits), ``site`` (file, line and function, where
    the trace has stacks), ``range`` (the innermost named range around it), ``count``, ``time`` in
    nanoseconds, ``per_step`` (how many).
    """
    calls = np.flatnonzero(waiting_calls(trace))
    step = np.searchsorted(steps.begin, trace.begin[calls], side="right") - 1
    inside = (step >= 0) & (trace.begin[calls] < steps.end[step]) & steps.counted[step]
    calls = calls[inside]
    keys: dict[tuple[str, str, str | None, str | None], list[int]] = {}
    for row in calls.tolist():
        operation, site, around = _asked_by(trace, nesting, row)
        key = (operation, trace.text(row), site, around)
        entry = keys.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += int(trace.duration[row])
    counted = int(steps.counted.sum())
    rows = [
        {
            "operation": operation,
            "call": call,
            "site": site,
            "range": around,
            "count": count,
            "time": time,
            "per_step": count / counted,
        }
        for (operation, call, site, around), (count, time) in keys.items()
    ]
    by = ["time", "operation", "call", "site", "range"]
    return pl.DataFrame(rows, schema=_COLUMNS).sort(by, descending=[True, *[False] * 4])


_CALLS = re.compile(
    r"(?:cuda|hip|cu|musa|xpu)\w*(?:Stream|Device|Event|Ctx)Synchronize(?:_\w+)?$"
    r"|(?:cuda|hip)Memcpy(?:2D|3D)?(?:_\w+)?$|cuMemcpy(?:DtoH|HtoD)(?:_v2)?$|(?:cuda|hip)Free$"
)
_TO_HOST = re.compile(r"(?:DtoH|DeviceToHost)(?!.*Pinned)")
_PROFILER_STEP = re.compile(r"ProfilerStep#")
_COLUMNS = pl.Schema(
    {
        "operation": pl.String(),
        "call": pl.String(),
        "site": pl.String(),
        "range": pl.String(),
        "count": pl.Int64(),
        "time": pl.Int64(),
        "per_step": pl.Float64(),
    }
)
_TORCH = re.compile(r"(?:site-packages|dist-packages)/|^torch/|/torch/|^<|nn\.Module: |<built-in")


def _copies_to_pageable(trace: Trace) -> npt.NDArray[np.bool_]:
    to_host = np.array([bool(_TO_HOST.search(name[:200])) for name in trace.names], dtype=bool)
    if not to_host.any():
        return np.zeros(len(trace), dtype=bool)
    copies = trace.correlation[to_host[trace.name] & (trace.kind == Kind.copy)]
    waits = np.zeros(len(trace), dtype=bool)
    calls = np.flatnonzero(trace.kind == Kind.runtime)
    waits[calls] = np.isin(trace.correlation[calls], copies[copies >= 0])
    return waits


def _asked_by(trace: Trace, nesting: Nesting, row: int) -> tuple[str, str | None, str | None]:
    operation, site, around = trace.text(row), None, None
    outside = False
    at = int(nesting.parent[row])
    while at != NOTHING:
        kind = trace.kind[at]
        outside |= kind != Kind.operator
        if not outside:
            operation = trace.text(at)
        if kind == Kind.annotation and around is None and not _PROFILER_STEP.match(trace.text(at)):
            around = trace.text(at)
        if kind == Kind.python and site is None and not _TORCH.search(trace.text(at)):
            site = trace.text(at)
        if site is None and len(trace.stack) and trace.stack[at] != NOTHING:
            site = _site(trace.stacks[trace.stack[at]])
        at = int(nesting.parent[at])
    return operation, site, around


def _site(stack: str) -> str | None:
    calls = [call.strip() for call in stack.split(";") if call.strip()]
    mine = [call for call in calls if not _TORCH.search(call)]
    return next(iter(mine or calls), None)


@dataclass(frozen=True)
class MemoryPeak:
    """The highest that was allocated on one device.

    Parameters
    ----------
    device
        ``cpu``, or the device's type and number.
    size
        In bytes.
    time
        When, in nanoseconds.
    step
        The number of the step it was in; None outside.
    during
        What the host was busy with, or nothing.
    since_begin
        Whether only what was allocated after the trace began is counted.
    """

    device: str
    size: int
    time: int
    step: int | None
    during: str | None
    since_begin: bool


def memory_peaks(trace: Trace, steps: Steps, host: HostTime) -> tuple[MemoryPeak, ...]:
    """Return the peak of each device, the highest first; none where memory was not recorded."""
    if "total" not in trace.memory or not len(trace.memory["total"]):
        return ()
    total, time, kind = (trace.memory[name] for name in ("total", "time", "device"))
    number = trace.memory["device_id"] if "device_id" in trace.memory else np.zeros_like(kind)
    peaks = []
    for device, which in sorted(set(zip(kind.tolist(), number.tolist(), strict=True))):
        rows = np.flatnonzero((kind == device) & (number == which))
        top = rows[int(total[rows].argmax())]
        if total[top] <= 0:
            continue
        at = int(time[top])
        place = int(np.searchsorted(steps.begin, at, side="right")) - 1
        inside = place >= 0 and at < steps.end[place]
        pieces, _ = host.between(at, at + 1)
        row = int(host.row[pieces[0]]) if len(pieces) else NOTHING
        peaks.append(
            MemoryPeak(
                device=_name(device, which),
                size=int(total[top]),
                time=at,
                step=int(steps.number[place]) if inside else None,
                during=None if row == NOTHING else trace.text(row),
                since_begin=bool(trace.settings.get("memory_since_begin")),
            )
        )
    return tuple(sorted(peaks, key=lambda peak: -peak.size))


def _name(kind: int, number: int) -> str:
    if kind == 0:
        return "cpu"
    return f"cuda:{number}" if kind == 1 else f"device type {kind}:{number}"
