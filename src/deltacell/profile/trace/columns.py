"""Events into columns, a piece at a time, names and threads interned."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.decode import (
    NO_TEXT,
    Arguments,
    Begin,
    Complete,
    End,
    Event,
    Instant,
    Metadata,
    OldInstant,
    Piece,
    is_known,
    kind_by_name,
    kind_of,
)
from deltacell.profile.trace.trace import NOTHING, ON_DEVICE, Codes, Ints, Kind, Thread

Key = TypeVar("Key", bound=Hashable)


class Columns:
    """Columns that grow; all of them are put in order at the end.

    Attributes
    ----------
    without_duration, negative
        Events that were left out because their time or duration is missing or beyond all clocks,
        or because their duration is below 0.
    unknown
        Events of no phase that the Chrome trace format has, which were left out.
    unpaired
        Beginnings without an end and ends without a beginning, which were left out.
    """

    def __init__(self) -> None:
        self.without_duration = 0
        self.negative = 0
        self.unpaired = 0
        self.unknown = 0
        self._n = 0
        self._parts = {name: _Blocks(kind) for name, kind in _TYPES.items()}
        self._keys = _Keys()
        self._stacks = _Table[str]()
        self._shapes = _Table[tuple[bytes, bytes]]()
        self._thread_names: dict[tuple[str, str], str] = {}
        self._python: list[Ints] = []
        self._memory: list[tuple[Ints, Ints]] = []
        self._halves: list[_Halves] = []

    @property
    def strange(self) -> Counter[str]:
        """How many events are of categories that PyTorch does not have, by category."""
        return Counter(
            {name: count for name, count in self._keys.strange_categories.items() if count}
        )

    def add(self, piece: Piece) -> None:
        """Add the events of a piece."""
        try:
            self._add(piece)
        except OverflowError:
            # Nothing was added yet: a part is kept only when all of it could be made.
            self._add(piece.put_right())

    def finish(self) -> Finished:
        """Return the columns in order; nothing can be added after it."""
        if self._halves:
            part, args, self.unpaired = _pair(self._halves, self._keys)
            self._halves = []
            self._keep(part, args)
        return Finished(self)

    def _add(self, piece: Piece) -> None:
        events = piece.events
        complete = [e for e in events if e.__class__ is Complete]
        rest = [e for e in events if e.__class__ in _OTHERS] if len(complete) < len(events) else []
        timed, begin, duration = self._times(piece, complete)
        args = [e.args for e in timed]
        part = self._part(piece, timed, args, begin, duration)
        instants = [e for e in rest if e.__class__ in _INSTANTS and e.name == "[memory]"]
        memory = [e for e in instants if e.ts is not None]
        halves = [e for e in rest if e.__class__ in _HALVES]
        memory_part = self._memory_part(piece, memory) if memory else None
        halves_part = self._halves_part(piece, halves) if halves else None
        # From here on nothing fails.
        self.without_duration += len(complete) - len(timed)
        self.unknown += sum(e.__class__ is Event for e in rest)
        self._keep(part, args)
        if memory_part is not None:
            self._memory.append(memory_part)
        if halves_part is not None:
            self._halves.append(halves_part)
        for event in rest:
            if event.__class__ is Metadata and event.name == "thread_name" and event.args.name:
                self._thread_names[str(event.pid), str(event.tid)] = str(event.args.name)

    def _times(self, piece: Piece, complete: Sequence[Event]) -> tuple[Sequence[Event], Ints, Ints]:
        times, durations = [e.ts for e in complete], [e.dur for e in complete]
        # A missing one is not a number, and so not exact.
        with suppress(_Inexact):
            return complete, _nanoseconds(times), _nanoseconds(durations)
        timed = [e for e in complete if e.ts is not None and e.dur is not None]
        if len(timed) < len(complete):
            with suppress(_Inexact):
                begin = _nanoseconds([e.ts for e in timed])
                return timed, begin, _nanoseconds([e.dur for e in timed])
        rows = _rows_of(timed, piece.events)
        written, lasted = piece.written_times()
        begin = _exact_nanoseconds([written[i] for i in rows])
        return timed, begin, _exact_nanoseconds([lasted[i] for i in rows])

    def _instants(self, piece: Piece, chosen: Sequence[Event]) -> Ints:
        try:
            return _nanoseconds([e.ts for e in chosen])
        except _Inexact:
            times, _ = piece.written_times()
            return _exact_nanoseconds([times[i] for i in _rows_of(chosen, piece.events)])

    def _part(
        self,
        piece: Piece,
        events: Sequence[Event],
        args: Sequence[Arguments],
        begin: Ints,
        duration: Ints,
    ) -> dict[str, npt.NDArray[Any]]:
        keys, stacks, shapes = self._keys, self._stacks, self._shapes
        seen = len(keys)
        codes = [keys[e.name, e.cat, e.pid, e.tid] for e in events]
        for fresh in range(seen, len(keys)):
            keys.learn(fresh, args[codes.index(fresh)].device)
        part: dict[str, npt.NDArray[Any]] = {
            "key": np.array(codes, dtype=np.int32),
            "begin": begin,
            "duration": duration,
            "correlation": np.array([a.correlation for a in args], dtype=np.int64),
            "sequence": np.array([a.sequence for a in args], dtype=np.int64),
            "external": np.array([a.external for a in args], dtype=np.int64),
            "stack": np.full(len(args), NOTHING, dtype=np.int32),
            "shape": np.full(len(args), NOTHING, dtype=np.int32),
        }
        # Looking into the text is faster than into each event.
        text = bytes(piece.text)
        if not text or b'"Call stack"' in text:
            rows = [row for row, a in enumerate(args) if a.stack is not None]
            part["stack"][rows] = [stacks[str(args[row].stack)] for row in rows]
        if not text or b'"Input type"' in text:
            rows = [row for row, a in enumerate(args) if a.types is not NO_TEXT]
            told = [args[row] for row in rows]
            part["shape"][rows] = [
                shapes[bytes(a.old_dims if a.dims is NO_TEXT else a.dims), bytes(a.types)]
                for a in told
            ]
        return part

    def _keep(self, part: dict[str, npt.NDArray[Any]], args: Sequence[Arguments]) -> None:
        begin, duration = part["begin"], part["duration"]
        in_range = (begin >= -_FAR) & (begin < 2 * _FAR) & (duration < _FAR)
        good = in_range & (duration >= 0)
        if not good.all():
            self.negative += int((in_range & ~good).sum())
            self.without_duration += int((~in_range).sum())
            part = {name: column[good] for name, column in part.items()}
            args = [a for a, is_good in zip(args, good, strict=True) if is_good]
        key = part["key"]
        self._keys.count_strange(key)
        python = np.flatnonzero(self._keys.is_python(key))
        if len(python):
            said = [args[i] for i in python.tolist()]
            ids = [a.python_id for a in said]
            parents = [NOTHING if a.python_parent is None else a.python_parent for a in said]
            self._python.append(np.array([python + self._n, ids, parents], dtype=np.int64))
        for name, column in part.items():
            self._parts[name].add(column)
        self._n += len(key)

    def _memory_part(self, piece: Piece, events: Sequence[Event]) -> tuple[Ints, Ints]:
        rows = [
            (a.changed, a.allocated or 0, a.device_type, a.device_id, a.allocated is not None)
            for a in (e.args for e in events)
        ]
        return self._instants(piece, events), np.array(rows, dtype=np.int64).T

    def _halves_part(self, piece: Piece, events: Sequence[Event]) -> _Halves:
        timed = [e for e in events if e.ts is not None]
        self.without_duration += len(events) - len(timed)
        begin = self._instants(piece, timed)
        args = [e.args for e in timed]
        none = np.zeros(len(timed), dtype=np.int64)
        part = self._part(piece, timed, args, begin, none)
        return _Halves(np.array([isinstance(e, End) for e in timed], dtype=bool), part, args)


class Finished:
    """The columns of all events, in order.

    Each is taken out of what was collected, so that nothing is held twice.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        parts = columns._parts
        self.n = columns._n
        keys = columns._keys
        self.names = tuple(keys.names)
        self.stacks = tuple(columns._stacks)
        self.shapes = tuple(
            (dims.decode("utf-8", "replace"), types.decode("utf-8", "replace"))
            for dims, types in columns._shapes
        )
        begin = _whole(parts, "begin")
        duration = _whole(parts, "duration")
        key = _whole(parts, "key")
        name, kind, thread = keys.columns(key)
        del key
        kind = _with_names(kind, name, self.names)
        # There autograd's own profiler puts what the device did.
        of_device = np.array([pid == "CUDA functions" for pid, _ in keys.threads], dtype=bool)
        kind[(kind == Kind.operator) & of_device[thread]] = Kind.kernel
        self.threads = self._make_threads(kind, thread)
        self.origin = int(begin.min()) if self.n else 0
        begin -= self.origin
        order = _order(begin, duration, kind, _whole(parts, "external"))
        self.begin = begin[order]
        del begin
        self.duration = duration[order]
        del duration
        self.kind = kind[order]
        self.name = name[order]
        self.thread = thread[order]
        del kind, name, thread
        self.correlation = _whole(parts, "correlation")[order]
        self.correlation[self.correlation == 0] = NOTHING
        self.sequence = _whole(parts, "sequence")[order]
        stack, shape = _whole(parts, "stack"), _whole(parts, "shape")
        self.stack = stack[order] if self.stacks else np.empty(0, dtype=np.int32)
        self.shape = shape[order] if self.shapes else np.empty(0, dtype=np.int32)
        del stack, shape
        position = np.empty(self.n, dtype=np.int32)
        position[order] = np.arange(self.n, dtype=np.int32)
        del order
        self.parent = self._parents(position)
        self.memory, self.memory_since_begin = self._join_memory()

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices on which something ran."""
        return tuple(sorted({d for d in self._columns._keys.devices.values() if d >= 0}))

    def _is_of_autograd_on_device(self) -> npt.NDArray[np.bool_]:
        pids = [pid for pid, _ in self._columns._keys.threads]
        return np.array([pid == "CUDA functions" for pid in pids], dtype=bool)

    def _make_threads(self, kind: npt.NDArray[np.int8], thread: Codes) -> tuple[Thread, ...]:
        devices, names = self._columns._keys.devices, self._columns._thread_names
        keys = tuple(self._columns._keys.threads)
        is_device = np.zeros(len(keys), dtype=bool)
        is_device[thread[np.isin(kind, _DEVICE_KINDS)]] = True
        threads = []
        for code, (pid, tid) in enumerate(keys):
            name = names[pid, tid].strip() if (pid, tid) in names else ""
            device = None
            if is_device[code]:
                device = devices.get(code, int(pid) if pid.isdecimal() else None)
            threads.append(Thread(pid, tid, name, bool(is_device[code]), device))
        return tuple(threads)

    def _parents(self, position: Codes) -> Codes:
        parent = np.full(self.n, NOTHING, dtype=np.int32)
        if self._columns._python:
            row, identity, of_parent = np.concatenate(self._columns._python, axis=1)
            by_identity = np.argsort(identity, kind="stable")
            ordered = identity[by_identity]
            at = np.minimum(np.searchsorted(ordered, of_parent), len(ordered) - 1)
            known = (ordered[at] == of_parent) & (of_parent != NOTHING)
            parent[position[row[known]]] = position[row[by_identity[at[known]]]]
        return parent

    def _join_memory(self) -> tuple[dict[str, Ints], bool]:
        if not self._columns._memory:
            return {}, False
        time = np.concatenate([t for t, _ in self._columns._memory]) - self.origin
        order = np.argsort(time, kind="stable")
        change, total, device, device_id, has_total = np.concatenate(
            [values for _, values in self._columns._memory], axis=1
        )[:, order]
        since_begin = not has_total.all()
        if since_begin:
            for one in set(zip(device.tolist(), device_id.tolist(), strict=True)):
                of_it = (device == one[0]) & (device_id == one[1])
                total[of_it] = np.cumsum(change[of_it])
        memory = {"time": time[order], "total": total, "change": change}
        return memory | {"device": device, "device_id": device_id}, since_begin


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("key", "stack", "shape"), np.int32),
    **dict.fromkeys(("begin", "duration", "correlation", "sequence", "external"), np.int64),
}
# Rows of a block.
_BLOCK = 1 << 20
# So far apart that differences of times still fit; 73 years.
_FAR = 2**61
_INSTANTS, _HALVES = (Instant, OldInstant), (Begin, End)
_OTHERS = frozenset([Begin, End, Instant, OldInstant, Metadata, Event])
_DEVICE_KINDS = [int(kind) for kind in (*ON_DEVICE, Kind.device_annotation)]
_OUTER_FIRST = {Kind.annotation: 0, Kind.python: 1, Kind.operator: 2}


class _Blocks:
    """A column that grows in large blocks.

    Many small arrays would leave holes when they are freed, which stay with the process.
    """

    def __init__(self, kind: Any) -> None:
        self._blocks = [np.empty(0, dtype=kind)]
        self._used = 0

    def add(self, part: npt.NDArray[Any]) -> None:
        begin = 0
        while begin < len(part):
            block = self._blocks[-1]
            taken = part[begin : begin + len(block) - self._used]
            block[self._used : self._used + len(taken)] = taken
            self._used += len(taken)
            begin += len(taken)
            if self._used == len(block):
                self._blocks.append(np.empty(_BLOCK, dtype=block.dtype))
                self._used = 0

    def whole(self) -> npt.NDArray[Any]:
        blocks, self._blocks = self._blocks, []
        return np.concatenate([*blocks[:-1], blocks[-1][: self._used]])


class _Table(dict[Key, int]):
    def __missing__(self, key: Key) -> int:
        self[key] = code = len(self)
        return code


class _Keys(dict[tuple[str, str | None, int | str, int | str], int]):
    """Names with their category, process and thread, by the order they were first asked for.

    Looking up all four at once is several times faster than one after the other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names = _Table[str]()
        self.threads = _Table[tuple[str, str]]()
        self.devices: dict[int, int] = {}
        self.strange_categories: Counter[str] = Counter()
        self._columns: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._strange: dict[int, str] = {}

    def __missing__(self, key: tuple[str, str | None, int | str, int | str]) -> int:
        name, category, pid, tid = key
        self[key] = code = len(self)
        told = (self.names[name], int(kind_of(category)), self.threads[str(pid), str(tid)])
        for column, value in zip(self._columns, told, strict=True):
            column.append(value)
        if category is not None and not is_known(category):
            self._strange[code] = category
        return code

    def learn(self, code: int, device: int) -> None:
        if device >= 0 and self._columns[1][code] in _DEVICE_KINDS:
            self.devices.setdefault(self._columns[2][code], device)

    def columns(self, key: Codes) -> tuple[Codes, npt.NDArray[np.int8], Codes]:
        name, kind, thread = (np.array(column, dtype=np.int32) for column in self._columns)
        return name[key], kind.astype(np.int8)[key], thread[key]

    def is_python(self, key: Codes) -> npt.NDArray[np.bool_]:
        kinds = np.array(self._columns[1], dtype=np.int8)
        return np.asarray(kinds[key] == Kind.python, dtype=bool)

    def count_strange(self, key: Codes) -> None:
        if self._strange:
            counts = np.bincount(key, minlength=len(self))
            for code, category in self._strange.items():
                self.strange_categories[category[:80]] += int(counts[code])


def _rows_of(chosen: Sequence[Event], events: Sequence[Event]) -> list[int]:
    wanted = {id(event) for event in chosen}
    return [row for row, event in enumerate(events) if id(event) in wanted]


def _whole(parts: dict[str, _Blocks], name: str) -> npt.NDArray[Any]:
    return parts.pop(name).whole()


def _with_names(
    kind: npt.NDArray[np.int8], name: Codes, names: Sequence[str]
) -> npt.NDArray[np.int8]:
    for wide in (Kind.operator, Kind.kernel):
        by_name = np.array([int(kind_by_name(text, wide)) for text in names], dtype=np.int8)
        of_it = kind == wide
        kind[of_it] = by_name[name[of_it]]
    return kind


def _order(begin: Ints, duration: Ints, kind: npt.NDArray[np.int8], external: Ints) -> Ints:
    order = np.argsort(begin, kind="stable")
    together = np.diff(begin[order]) == 0
    tied = np.zeros(len(begin), dtype=bool)
    tied[1:] |= together
    tied[:-1] |= together
    rows = order[tied]
    outer = np.full(len(Kind), len(_OUTER_FIRST))
    for one, place in _OUTER_FIRST.items():
        outer[one] = place
    # Of operators that take the same time the outer one was begun, and so numbered, first.
    keys = (external[rows], outer[kind[rows]], -duration[rows], begin[rows])
    order[tied] = rows[np.lexsort(keys)]
    return order


class _Halves(NamedTuple):
    ends: npt.NDArray[np.bool_]
    part: dict[str, npt.NDArray[Any]]
    args: Sequence[Arguments]


def _pair(
    halves: Sequence[_Halves], keys: _Keys
) -> tuple[dict[str, npt.NDArray[Any]], Sequence[Arguments], int]:
    """Return events from their beginnings and ends, and how many found no other half.

    On each thread, by time, an end belongs to the last beginning of its name that is still open;
    one without a name to the last beginning of all.
    """
    ends = np.concatenate([h.ends for h in halves])
    columns = {name: np.concatenate([h.part[name] for h in halves]) for name in halves[0].part}
    args = [a for h in halves for a in h.args]
    name, _, lane = keys.columns(columns["key"])
    nameless = keys.names[""]
    order = np.lexsort((columns["begin"], lane))
    names, times = name.tolist(), columns["begin"].tolist()
    threads, is_end = lane.tolist(), ends.tolist()
    beginnings: list[int] = []
    durations: list[int] = []
    alone = 0
    still_open: list[int] = []
    thread = None
    for row in order.tolist():
        if threads[row] != thread:
            alone += len(still_open)
            still_open = []
            thread = threads[row]
        if not is_end[row]:
            still_open.append(row)
            continue
        at = len(still_open) - 1
        while at >= 0 and names[row] not in (nameless, names[still_open[at]]):
            at -= 1
        if at < 0:
            alone += 1
            continue
        # What was begun inside it and is still open has lost its end.
        alone += len(still_open) - 1 - at
        begun = still_open[at]
        del still_open[at:]
        beginnings.append(begun)
        durations.append(times[row] - times[begun])
    alone += len(still_open)
    rows = np.array(beginnings, dtype=np.int64)
    part = {name: column[rows] for name, column in columns.items()}
    part["duration"] = np.array(durations, dtype=np.int64)
    return part, [args[row] for row in beginnings], alone


class _Inexact(Exception):
    """These numbers have lost their nanoseconds; take them from the text."""


def _nanoseconds(written: Sequence[Any]) -> Ints:
    """Return decoded times in nanoseconds.

    A double holds a time below 2**43 microseconds (100 days) to less than half a nanosecond, so it
    is the nearest that was meant. Above, whole microseconds are taken and others refused.

    Raises
    ------
    _Inexact
        Where a double may be another nanosecond than was written.
    """
    if not written:
        return np.empty(0, dtype=np.int64)
    numbers = np.array(written)
    if numbers.dtype.kind == "i":
        if numbers.max() > _LAST or numbers.min() < -_LAST:
            raise _Inexact
        return np.asarray(numbers * 1000, dtype=np.int64)
    if numbers.dtype.kind != "f" or not np.abs(numbers).max() < _EXACT:
        raise _Inexact
    whole = np.floor(numbers)
    rest = np.rint((numbers - whole) * 1000)
    return np.asarray(whole.astype(np.int64) * 1000 + rest.astype(np.int64))


def _exact_nanoseconds(written: Sequence[Any]) -> Ints:
    texts = [number if isinstance(number, msgspec.Raw) else str(number) for number in written]
    if texts and all(isinstance(text, msgspec.Raw) for text in texts):
        joined = b",".join(texts) + b","  # type: ignore[arg-type]
        # As PyTorch writes them; numpy then reads all at once.
        if _THREE_PLACES.fullmatch(joined):
            return np.fromstring(joined[:-1].replace(b".", b""), dtype=np.int64, sep=",")
    return np.array([_exact(text) for text in texts], dtype=np.int64)


_EXACT = 2.0**43
_LAST = (2**63 - 1) // 1000
_THREE_PLACES = re.compile(rb"(?:-?(?:[0-8][0-9]{15}|[0-9]{1,15})\.[0-9]{3},)+")


def _exact(text: str | msgspec.Raw) -> int:
    number = Decimal(text if isinstance(text, str) else bytes(text).decode())
    number = max(min(number, Decimal(_LAST)), Decimal(-_LAST))
    return int((number * 1000).to_integral_value())
