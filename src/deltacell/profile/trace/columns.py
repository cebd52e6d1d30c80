"""Events into columns, a piece at a time, names and threads interned."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.decode import Piece
from deltacell.profile.trace.events import Arguments, Event, kind_by_name, kind_of
from deltacell.profile.trace.pairs import Halves, pair
from deltacell.profile.trace.times import Inexact, exact_nanoseconds, nanoseconds
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
        self._parts = {name: _Blocks(_TYPES[name]) for name in _TYPES if name != "device"}
        self._names = _Table[str]()
        self._stacks = _Table[str]()
        self._threads = _Threads()
        self._kinds = _Kinds()
        self._thread_names: dict[tuple[str, str], str] = {}
        self._devices: dict[int, int] = {}
        self._python: list[Ints] = []
        self._memory: list[tuple[Ints, Ints]] = []
        self._halves: list[Halves] = []
        self._collectives: dict[int, Mapping[str, Any]] = {}
        self._told: dict[tuple[Any, ...], Mapping[str, Any]] = {}

    def add(self, piece: Piece) -> None:
        """Add the events of a piece."""
        try:
            self._add(piece)
        except OverflowError:
            # Nothing was added yet: a part is kept only when all of it could be made.
            self._add(piece.put_right())

    def finish(self) -> Finished:
        """Return the columns in order; nothing can be added after it."""
        self._pair_halves()
        return Finished(self)

    def _add(self, piece: Piece) -> None:
        events = piece.events
        complete = [e for e in events if e.ph == "X"]
        others = [e.ph for e in events if e.ph != "X"] if len(complete) < len(events) else []
        phases = set(others)
        wanted = not phases.isdisjoint(_OTHER_PHASES)
        rest = [e for e in events if e.ph in _OTHER_PHASES] if wanted else []
        unknown = sum(others.count(phase) for phase in phases - _KNOWN_PHASES)
        timed, begin, duration = self._times(piece, complete)
        args = [e.args for e in timed]
        part = self._part(timed, args, begin, duration)
        memory = [e for e in rest if e.ph in "iI" and e.name == "[memory]" and e.ts is not None]
        halves = [e for e in rest if e.ph in "BE"]
        memory_part = self._memory_part(piece, memory) if memory else None
        halves_part = self._halves_part(piece, halves) if halves else None
        # From here on nothing fails.
        self.without_duration += len(complete) - len(timed)
        self.unknown += unknown
        self._keep(part, args)
        if memory_part is not None:
            self._memory.append(memory_part)
        if halves_part is not None:
            self._halves.append(halves_part)
        for event in rest:
            if event.ph == "M" and event.name == "thread_name" and event.args.name is not None:
                self._thread_names[str(event.pid), str(event.tid)] = str(event.args.name)

    def _times(self, piece: Piece, complete: Sequence[Event]) -> tuple[Sequence[Event], Ints, Ints]:
        """Return those that have a time and a duration, and these."""
        times: list[Any] = [e.ts for e in complete]
        durations: list[Any] = [e.dur for e in complete]
        # One that is missing is a value that is no number, and so not exact.
        with suppress(Inexact):
            return complete, nanoseconds(times), nanoseconds(durations)
        timed = [e for e in complete if e.ts is not None and e.dur is not None]
        if len(timed) < len(complete):
            with suppress(Inexact):
                begin = nanoseconds([e.ts for e in timed if e.ts is not None])
                return timed, begin, nanoseconds([e.dur for e in timed if e.dur is not None])
        rows = _rows_of(timed, piece.events)
        written, lasted = piece.written_times()
        begin = exact_nanoseconds([written[i] for i in rows])
        return timed, begin, exact_nanoseconds([lasted[i] for i in rows])

    def _instants(self, piece: Piece, chosen: Sequence[Event]) -> Ints:
        try:
            return nanoseconds([e.ts for e in chosen if e.ts is not None])
        except Inexact:
            times, _ = piece.written_times()
            return exact_nanoseconds([times[i] for i in _rows_of(chosen, piece.events)])

    def _part(
        self, events: Sequence[Event], args: Sequence[Arguments], begin: Ints, duration: Ints
    ) -> dict[str, npt.NDArray[Any]]:
        names, threads, kinds, stacks = self._names, self._threads, self._kinds, self._stacks
        values: dict[str, Any] = {
            "name": [names[e.name] for e in events],
            "kind": [kinds[e.cat] for e in events],
            "thread": [threads[e.pid][e.tid] for e in events],
            "correlation": [a.correlation for a in args],
            "sequence": [a.sequence for a in args],
            "stream": [a.stream for a in args],
            "size": [a.bytes for a in args],
            "external": [a.external for a in args],
            "device": [a.device for a in args],
        }
        part = {name: np.array(value, dtype=_TYPES[name]) for name, value in values.items()}
        part["stack"] = np.full(len(args), NOTHING, dtype=np.int32)
        written = [a.stack for a in args]
        if written.count(None) < len(written):
            part["stack"][:] = [NOTHING if text is None else stacks[text] for text in written]
        return part | {"begin": begin, "duration": duration}

    def _keep(self, part: dict[str, npt.NDArray[Any]], args: Sequence[Arguments]) -> None:
        begin, duration = part["begin"], part["duration"]
        in_range = (begin >= -_FAR) & (begin < 2 * _FAR) & (duration < _FAR)
        good = in_range & (duration >= 0)
        if not good.all():
            self.negative += int((in_range & ~good).sum())
            self.without_duration += int((~in_range).sum())
            part = {name: column[good] for name, column in part.items()}
            args = [a for a, is_good in zip(args, good, strict=True) if is_good]
        kind, thread, device = part["kind"], part["thread"], part.pop("device")
        on_device = np.flatnonzero(_IS_DEVICE[kind] & (device >= 0))
        streams, first = np.unique(thread[on_device], return_index=True)
        for stream, said_device in zip(streams, device[on_device][first], strict=True):
            self._devices.setdefault(int(stream), int(said_device))
        python = np.flatnonzero(kind == Kind.python)
        if len(python):
            said = [args[i] for i in python.tolist()]
            ids = [a.python_id for a in said]
            parents = [NOTHING if a.python_parent is None else a.python_parent for a in said]
            self._python.append(np.array([python + self._n, ids, parents], dtype=np.int64))
        collectives = [a.collective for a in args]
        if collectives.count(None) < len(collectives):
            for row in [row for row, name in enumerate(collectives) if name is not None]:
                told = self._collective(args[row])
                self._collectives[self._n + row] = told
                part["size"][row] = told["bytes"]
        for name, column in part.items():
            self._parts[name].add(column)
        self._n += len(kind)

    def _collective(self, said: Arguments) -> Mapping[str, Any]:
        key = (
            said.collective,
            *(str(x) for x in (said.elements_in, said.elements_out, said.dtype)),
            *(str(x) for x in (said.group, said.group_size, said.group_ranks)),
        )
        if key not in self._told:
            self._told[key] = _described(said)
        return self._told[key]

    def _memory_part(self, piece: Piece, events: Sequence[Event]) -> tuple[Ints, Ints]:
        rows = [
            (
                a.changed,
                0 if a.allocated is None else a.allocated,
                a.device_type,
                a.device_id,
                a.allocated is not None,
            )
            for a in (e.args for e in events)
        ]
        return self._instants(piece, events), np.array(rows, dtype=np.int64).T

    def _halves_part(self, piece: Piece, events: Sequence[Event]) -> Halves:
        timed = [e for e in events if e.ts is not None]
        self.without_duration += len(events) - len(timed)
        begin = self._instants(piece, timed)
        args = [e.args for e in timed]
        part = self._part(timed, args, begin, np.zeros(len(timed), dtype=np.int64))
        ends = np.array([e.ph == "E" for e in timed], dtype=bool)
        return Halves(ends, part, args)

    def _pair_halves(self) -> None:
        if not self._halves:
            return
        nameless = self._names[""]
        part, args, self.unpaired = pair(self._halves, nameless)
        self._halves = []
        self._keep(part, args)


class Finished:
    """The columns of all events, in order.

    Each is taken out of what was collected, so that nothing is held twice.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        parts = columns._parts
        self.n = columns._n
        self.names = tuple(columns._names)
        self.stacks = tuple(columns._stacks)
        begin = _whole(parts, "begin")
        duration = _whole(parts, "duration")
        kind = _with_names(_whole(parts, "kind"), name := _whole(parts, "name"), self.names)
        thread = _whole(parts, "thread")
        kind[(kind == Kind.operator) & self._is_of_autograd_on_device()[thread]] = Kind.kernel
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
        self.stream = _whole(parts, "stream")[order]
        self.size = _whole(parts, "size")[order]
        stack = _whole(parts, "stack")
        self.stack = stack[order] if self.stacks else np.empty(0, dtype=np.int32)
        del stack
        position = np.empty(self.n, dtype=np.int32)
        position[order] = np.arange(self.n, dtype=np.int32)
        del order
        self.parent = self._parents(position)
        self.collectives = {int(position[row]): told for row, told in columns._collectives.items()}
        self.memory, self.memory_since_begin = self._join_memory()

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices on which something ran."""
        return tuple(sorted({d for d in self._columns._devices.values() if d >= 0}))

    def _is_of_autograd_on_device(self) -> npt.NDArray[np.bool_]:
        """Return which threads are where autograd's own profiler puts what the device did."""
        pids = [pid for pid, _ in self._columns._threads.keys_by_text]
        return np.array([pid == "CUDA functions" for pid in pids], dtype=bool)

    def _make_threads(self, kind: npt.NDArray[np.int8], thread: Codes) -> tuple[Thread, ...]:
        devices, names = self._columns._devices, self._columns._thread_names
        keys = tuple(self._columns._threads.keys_by_text)
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
        memory = {
            "time": time[order],
            "total": total,
            "change": change,
            "device": device,
            "device_id": device_id,
        }
        return memory, since_begin


_TYPES: dict[str, Any] = {
    "name": np.int32,
    "kind": np.int8,
    "begin": np.int64,
    "duration": np.int64,
    "thread": np.int32,
    "correlation": np.int64,
    "sequence": np.int64,
    "stream": np.int32,
    "size": np.int64,
    "external": np.int64,
    "device": np.int64,
    "stack": np.int32,
}
# Rows of a block.
_BLOCK = 1 << 20
# So far apart that differences of times still fit; 73 years.
_FAR = 2**61
_KNOWN_PHASES = frozenset([*"BEXiICbnestfPNODSTpFMRcVva()=", ","])
_OTHER_PHASES = frozenset("MBEiI")
_DEVICE_KINDS = [int(kind) for kind in (*ON_DEVICE, Kind.device_annotation)]
_IS_DEVICE = np.isin(np.arange(len(Kind)), _DEVICE_KINDS)
_OUTER_FIRST = {Kind.annotation: 0, Kind.python: 1, Kind.operator: 2}
_BYTES = {
    **{"bool": 1, "byte": 1, "char": 1, "half": 2, "bfloat16": 2, "int": 4, "float": 4},
    **{"long": 8, "double": 8, "short": 2, "uint8": 1, "int8": 1, "float16": 2, "float32": 4},
    **{"int32": 4, "int64": 8, "float64": 8, "complexfloat": 8, "complexdouble": 16},
}


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
        """Return all of it; nothing can be added after it."""
        blocks, self._blocks = self._blocks, []
        return np.concatenate([*blocks[:-1], blocks[-1][: self._used]])


class _Table(dict[Key, int]):
    """Keys by the order they were first asked for."""

    def __missing__(self, key: Key) -> int:
        self[key] = code = len(self)
        return code


class _Threads(dict[int | str, "_OfProcess"]):
    """Threads by process, then by thread, numbers and their texts being the same."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_by_text = _Table[tuple[str, str]]()

    def __missing__(self, pid: int | str) -> _OfProcess:
        self[pid] = threads = _OfProcess(str(pid), self.keys_by_text)
        return threads


class _OfProcess(dict[int | str, int]):
    """The threads of one process."""

    def __init__(self, pid: str, keys_by_text: _Table[tuple[str, str]]) -> None:
        super().__init__()
        self._pid = pid
        self._keys_by_text = keys_by_text

    def __missing__(self, tid: int | str) -> int:
        self[tid] = code = self._keys_by_text[self._pid, str(tid)]
        return code


class _Kinds(dict[str | None, int]):
    def __missing__(self, category: str | None) -> int:
        self[category] = kind = int(kind_of(category))
        return kind


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
    """Return the rows by beginning; of those together the longest, then the outermost first."""
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


def _described(said: Arguments) -> Mapping[str, Any]:
    dtype = str(said.dtype or "").lower()
    counts = [n for n in (said.elements_in, said.elements_out) if isinstance(n, int)]
    known = bool(counts) and dtype in _BYTES
    return {
        "name": said.collective,
        "group": said.group,
        "group_description": said.group_description,
        "group_size": said.group_size,
        "ranks": said.group_ranks,
        "dtype": said.dtype,
        "elements_in": said.elements_in,
        "elements_out": said.elements_out,
        "bytes": max(counts) * _BYTES[dtype] if known else NOTHING,
    }
