"""The host's time: what the program was busy with at every moment of a step, and its names for it.

It is the time of the thread the steps are on. Where that thread only waits for the threads that
run the backward, it is theirs; where it waits for a collective of the host, it is the
collective's. Also here: where the host waits for the device, and the peaks of memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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

Flags = npt.NDArray[np.bool_]
Categories = npt.NDArray[np.int8]

PAUSE = (100_000, 500_000, 0.02)
"""How long a pause between two operators of the forward may be and belong to it: nanoseconds at
least and at most, and the share of a step."""

BARE = 0.02
"""The share of a step from which on a stretch without any event is named by what is around it."""

NOT_RECORDED = "(nothing recorded)"
"""The name of moments in which no event is open."""


@dataclass(frozen=True, eq=False)
class HostTime:
    """Pieces of time, one after another, that fill all steps; arrays have one entry per piece.

    Parameters
    ----------
    begin, end
        In nanoseconds, int64 [k].
    row
        The event that the piece belongs to, int32 [k]; `NOTHING` where none was recorded.
    category, step
        int8 [k], and the place of the step, int32 [k].
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
    category: Categories
    step: Codes
    inferred: Flags
    loader: Ints
    helpers: tuple[int, ...]
    residual: int

    def by_category(self, steps: int) -> Ints:
        """Return the nanoseconds of each step and category, int64 [s, 12]."""
        total = np.zeros(steps * len(Category), dtype=np.int64)
        for part in parts(len(self.begin)):
            place = self.step[part].astype(np.int64) * len(Category) + self.category[part]
            length = self.end[part] - self.begin[part]
            total += np.bincount(place, weights=length, minlength=len(total)).astype(np.int64)
        return total.reshape(steps, len(Category))

    def covered(self, which: Flags) -> Covered:
        """Return when the host was in these of its pieces."""
        first, last = which.copy(), which.copy()
        goes_on = which[1:] & which[:-1]
        goes_on &= self.begin[1:] == self.end[:-1]
        first[1:] ^= goes_on
        last[:-1] ^= goes_on
        return Covered(self.begin[first], self.end[last])

    def between(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Return the places of the pieces of a stretch of time, and how much of each is in it."""
        first = int(np.searchsorted(self.end, begin, side="right"))
        last = int(np.searchsorted(self.begin, end, side="left"))
        places = np.arange(first, max(first, last))
        inside = np.minimum(self.end[places], end) - np.maximum(self.begin[places], begin)
        return places, inside


def host_time(trace: Trace, nesting: Nesting, steps: Steps) -> HostTime:
    """Tell what the host was busy with at every moment of every step."""
    told = own_categories(trace)
    found = _with_forward(trace, nesting, steps, told, categories(trace, nesting, told))
    backward = (told == Category.backward) & (trace.kind == Kind.operator)
    threads = np.unique(trace.thread[backward & (trace.thread != steps.thread)])
    helpers = tuple(int(thread) for thread in threads)
    main = timeline(trace, nesting, steps.thread)
    others = [timeline(trace, nesting, lane) for lane in helpers]
    collectives = _collectives(trace, nesting, steps)
    times = moments(
        main.times, steps.begin, steps.end, *(line.times for line in others), *collectives
    )
    # The bounds of steps are among the times.
    first, last = np.searchsorted(times, steps.begin), np.searchsorted(times, steps.end)
    places = [slice(a, max(a, b)) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    begin = np.concatenate([times[:-1][place] for place in places])
    end = np.concatenate([times[1:][place] for place in places])
    step = np.repeat(np.arange(len(steps), dtype=np.int32), np.maximum(last - first, 0))
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
    loading = trace.named(is_loader) & (nesting.lane == steps.thread)
    loading &= trace.kind != Kind.runtime
    loader = Covered.of(trace.begin[loading], nesting.cut[loading]).within(steps.begin, steps.end)
    return HostTime(begin, end, row, category, step, inferred, loader, helpers, residual)


def _busy(
    trace: Trace, found: Categories, main: Timeline, others: Sequence[Timeline], begin: Ints
) -> tuple[Codes, Categories, Flags]:
    """Return of pieces the event and category of each, and whether the program waits in it."""
    row = main.at(begin)
    category = np.where(row >= 0, found[row], np.int8(NOTHING))
    kind = trace.kind[row]
    # Nothing is at work, or only a range that others may be at work in.
    waits = (row < 0) | (kind == Kind.annotation) | (kind == Kind.python)
    waits &= (category == NOTHING) | (category == Category.backward)
    for line in others:
        other = line.at(begin)
        helped = waits & (other >= 0)
        row = np.where(helped, other, row)
        theirs = np.where(found[other] == NOTHING, np.int8(Category.backward), found[other])
        category = np.where(helped, theirs, category)
        waits &= ~helped
    return row, category, waits


def _with_forward(
    trace: Trace, nesting: Nesting, steps: Steps, told: Categories, found: Categories
) -> Categories:
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
    inside[inside] = keys[np.searchsorted(rows, outer[inside])] == keys[inside]
    rows, keys = rows[~inside], keys[~inside]
    _, from_end = np.unique(keys[::-1], return_index=True)
    own = found.copy()
    own[rows[len(rows) - 1 - from_end]] = Category.forward
    return nearest(own, nesting.parent)


def _collectives(trace: Trace, nesting: Nesting, steps: Steps) -> tuple[Ints, Ints]:
    """Return when a collective of the host runs beside the thread of the steps."""
    # Those of NCCL are only the launch; what they launch is on the device.
    rows = trace.named(lambda name: is_collective(name) and not name.startswith(("nccl:", "rccl:")))
    rows &= (trace.kind == Kind.annotation) & (nesting.lane != steps.thread)
    chosen = np.flatnonzero(rows)
    return merge(trace.begin[chosen], trace.ends(chosen))


def _exposed(
    told: Categories, row: Codes, waits: Flags, begin: Ints, collectives: tuple[Ints, Ints]
) -> Flags:
    """Return where the host waits for a collective, and not only between two of its operators."""
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
    exposed: Flags = is_open & waits & ~goes_on
    return exposed


def _fill(
    category: Categories, step: Codes, begin: Ints, end: Ints, pause: float
) -> tuple[Categories, Flags]:
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


def operations(trace: Trace, steps: Steps, host: HostTime) -> pl.DataFrame:
    """Return the operations of counted steps by self time.

    Returns
    -------
    ``operation``, ``category``, ``count`` of events, ``time`` in nanoseconds of all counted steps,
    ``per_step`` in nanoseconds, ``share`` of the wall; shares add up to 1.
    """
    names = plain_names(trace)
    first: dict[str, int] = {}
    # All steps have one name; code 0 is that of no event.
    shared = [first.setdefault(name, code) for code, name in enumerate(names)]
    codes = np.array(shared, dtype=np.int32)[trace.name] + 1
    names.insert(0, NOT_RECORDED)
    counted = steps.counted[host.step]
    rows = []
    for category in Category:
        places = np.flatnonzero(counted & (host.category == category)).astype(np.int32)
        if not len(places):
            continue
        time = np.zeros(len(names), dtype=np.int64)
        # The last is of no event: -1 is the last place.
        seen = np.zeros(len(codes) + 1, dtype=bool)
        for part in parts(len(places)):
            place = places[part]
            row = host.row[place]
            seen[row] = True
            code = np.where(row >= 0, codes[row], 0)
            length = host.end[place] - host.begin[place]
            time += np.bincount(code, weights=length, minlength=len(names)).astype(np.int64)
        count = np.bincount(codes[seen[:-1]], minlength=len(names))
        count[0] += int(seen[-1])
        rows += [
            (names[i], category.name, int(count[i]), int(time[i]))
            for i in np.flatnonzero(count).tolist()
        ]
    schema = {
        **dict.fromkeys(("operation", "category"), pl.String()),
        **dict.fromkeys(("count", "time"), pl.Int64()),
    }
    return (
        pl.DataFrame(rows, schema=schema, orient="row")
        .with_columns(
            (pl.col("time") / int(steps.counted.sum())).alias("per_step"),
            (pl.col("time") / int(steps.wall[steps.counted].sum())).alias("share"),
        )
        .sort("time", "operation", "category", descending=[True, False, False])
    )


@dataclass(frozen=True, eq=False)
class Doing:
    """What the host does, in names for people: ``code`` indexes ``names``, int32 [k] by piece."""

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
    first = bare[np.flatnonzero(np.diff(bare, prepend=-2) > 1)]
    last = bare[np.flatnonzero(np.diff(bare, append=len(code) + 1) > 1)]
    long = host.end[last] - host.begin[first] > BARE * float(np.median(steps.wall))
    known: dict[str, int] = {}
    for begin, end in zip(first[long].tolist(), last[long].tolist(), strict=True):
        before = _brief(names[code[begin - 1]]) if begin else "the start"
        after = _brief(names[code[end + 1]]) if end + 1 < len(code) else "the end"
        text = f"code that records nothing, between {before} and {after}"
        if text not in known:
            known[text] = len(names)
            names.append(text)
        code[begin : end + 1] = known[text]
    return Doing(names, code.astype(np.int32))


def _told_by(trace: Trace, nesting: Nesting) -> Codes:
    """Return the event whose name tells what each is about, int32 [n]; `NOTHING` where none."""
    parent = nesting.parent
    above = np.where(parent >= 0, trace.kind[parent], np.int8(NOTHING))
    climbs = trace.kind == Kind.runtime
    climbs |= trace.named(lambda name: name == "aten::_local_scalar_dense")
    climbs &= above == Kind.operator
    untold = trace.named(
        lambda name: classify(name, Kind.python) is None and _LIBRARY.search(name[:1000])
    )
    climbs |= (trace.kind == Kind.python) & untold & (above == Kind.python)
    place = np.where(climbs, parent, np.arange(len(trace), dtype=np.int32))
    while not np.array_equal(further := place[place], place):
        place = further
    found: Codes = np.where(trace.named(_STEP.match)[place], np.int32(NOTHING), place)
    return found


def _brief(name: str) -> str:
    if is_loader(name):
        return "the loader"
    return name if len(name) <= 40 else f"{name[:39]}…"


_STEP = re.compile(r"^ProfilerStep#\d+$")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VENDOR = re.compile(r"^(?:hip|xpu|musa|mtia)(?=[A-Z])")
_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|^torch/|/torch/|^<|/lib/python3|^(?:threading|contextlib|runpy)\.py"
)
_SPOKEN = re.compile(r"torch/serialization\.py\(\d+\): (save|load)$")


def _spoken(name: str) -> str:
    # Names are untrusted; the ones that are looked for are short.
    found = _SPOKEN.search(name) if len(name) < 300 else None
    return name if found is None else f"torch.{found[1]}"


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


def is_sync_call(name: str) -> bool:
    """Return whether a call of the host into the driver waits for the device."""
    return len(name) <= 100 and bool(_CALLS.match(name))


def waiting_calls(trace: Trace) -> Flags:
    """Return which events are calls that wait for the device, blocking copies too, bool [n]."""
    is_call = trace.kind == Kind.runtime
    waits: Flags = trace.named(is_sync_call) & is_call
    # A copy to pageable memory of the host returns when it is there.
    to_host = trace.named(lambda name: _TO_HOST.search(name[:200])) & (trace.kind == Kind.copy)
    copies = trace.correlation[to_host]
    if len(copies):
        waits[is_call] |= np.isin(trace.correlation[is_call], copies[copies >= 0])
    return waits


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
    calls = calls[steps.in_counted(trace.begin[calls])]
    found: dict[tuple[str, str, str | None, str | None], list[int]] = {}
    for row in calls.tolist():
        operation, site, around = _asked_by(trace, nesting, row)
        entry = found.setdefault((operation, trace.text(row), site, around), [0, 0])
        entry[0] += 1
        entry[1] += int(trace.duration[row])
    counted = int(steps.counted.sum())
    rows = [(*key, count, time, count / counted) for key, (count, time) in found.items()]
    by = ["time", "operation", "call", "site", "range"]
    schema = {
        **dict.fromkeys(("operation", "call", "site", "range"), pl.String()),
        **{"count": pl.Int64(), "time": pl.Int64(), "per_step": pl.Float64()},
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.sort(by, descending=[True, *[False] * 4])


_CALLS = re.compile(
    r"(?:cuda|hip|cu|musa|xpu)\w*(?:Stream|Device|Event|Ctx)Synchronize(?:_\w+)?$"
    r"|(?:cuda|hip)Memcpy(?:2D|3D)?(?:_\w+)?$|cuMemcpy(?:DtoH|HtoD)(?:_v2)?$|(?:cuda|hip)Free$"
)
_TO_HOST = re.compile(r"(?:DtoH|DeviceToHost)(?!.*Pinned)")
_TORCH = re.compile(r"(?:site-packages|dist-packages)/|^torch/|/torch/|^<|nn\.Module: |<built-in")


def _asked_by(trace: Trace, nesting: Nesting, row: int) -> tuple[str, str | None, str | None]:
    """Return the outermost operator around a call, the call site, and the named range around."""
    operation, site, around = trace.text(row), None, None
    outside = False
    at = int(nesting.parent[row])
    while at != NOTHING:
        kind, text = trace.kind[at], trace.text(at)
        outside |= kind != Kind.operator
        if not outside:
            operation = text
        if kind == Kind.annotation and around is None and not text.startswith("ProfilerStep#"):
            around = text
        if kind == Kind.python and site is None and not _TORCH.search(text):
            site = text
        if site is None and len(trace.stack) and trace.stack[at] != NOTHING:
            calls = [call.strip() for call in trace.stacks[trace.stack[at]].split(";")]
            mine = [call for call in calls if call and not _TORCH.search(call)]
            site = next(iter([*mine, *filter(None, calls)]), None)
        at = int(nesting.parent[at])
    return operation, site, around


@dataclass(frozen=True)
class MemoryPeak:
    """The most memory that was allocated on one device.

    ``device`` is ``cpu``, or the device's type and number; ``size`` is in bytes and ``time`` in
    nanoseconds; ``step`` is None outside of all; ``during`` is what the host was busy with.
    ``since_begin`` says that only what was allocated after the trace began is counted.
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
        place = int(steps.place(np.array([at]))[0])
        pieces, _ = host.between(at, at + 1)
        row = int(host.row[pieces[0]]) if len(pieces) else NOTHING
        called = {0: "cpu", 1: f"cuda:{which}"}.get(device, f"device type {device}:{which}")
        peaks.append(
            MemoryPeak(
                device=called,
                size=int(total[top]),
                time=at,
                step=int(steps.number[place]) if place >= 0 else None,
                during=None if row == NOTHING else trace.text(row),
                since_begin=bool(trace.settings.get("memory_since_begin")),
            )
        )
    return tuple(sorted(peaks, key=lambda peak: -peak.size))
