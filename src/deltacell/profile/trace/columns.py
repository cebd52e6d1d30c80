"""Decoded events into the columns of a trace, names and threads interned."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.profile.trace.decode import CLASSES, NO_TEXT, Arguments, Event, Piece
from deltacell.profile.trace.trace import NOTHING, ON_DEVICE, Kind, Thread

Columns = dict[str, npt.NDArray[Any]]


class Table:
    """Columns that grow; ``left_out`` counts the events that are in none, by reason."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.strange: Counter[str] = Counter()  # events of categories that PyTorch does not have
        self.n = 0
        # Large buffers grow in place, where many small arrays would leave holes in the memory.
        self._columns = {name: bytearray() for name in _TYPES}
        self._keys = _Keys()
        self._stacks, self._shapes = _Codes(), _Codes()
        self._thread_names: dict[tuple[str, str], str] = {}
        self._devices: dict[int, int] = {}
        self._memory: list[tuple[Ints, Ints]] = []
        self._halves: list[tuple[int, Event]] = []

    def add(self, piece: Piece) -> None:
        """Add the events of a piece."""
        try:
            self._add(piece)
        except OverflowError:
            # Nothing was added yet: parts are kept only when all of them could be made.
            self._add(piece.put_right())

    def _add(self, piece: Piece) -> None:
        events = piece.events
        complete = [e for e in events if e.__class__ is _COMPLETE]
        rest = [e for e in events if e.__class__ in _OTHERS] if len(complete) < len(events) else []
        timed, (begin, duration) = _times(piece, complete, "ts", "dur")
        args = [e.args for e in timed]
        part = self._part(timed, args, begin, duration, bytes(piece.text))
        instants = [e for e in rest if e.__class__ in _INSTANTS and e.name == "[memory]"]
        memory, (memory_times,) = _times(piece, instants, "ts")
        changes = [
            (a.changed, a.allocated or 0, a.device_type, a.device_id, a.allocated is not None)
            for a in (e.args for e in memory)
        ]
        memory_part = (memory_times, np.array(changes, dtype=np.int64).reshape(-1, 5).T)
        halves = [e for e in rest if e.__class__ in _HALVES]
        timed_halves, (half_times,) = _times(piece, halves, "ts")
        # From here on nothing fails.
        without = len(complete) - len(timed) + len(halves) - len(timed_halves)
        self.left_out[_NO_TIME] += without
        self.left_out[_NO_PHASE] += sum(e.__class__ is Event for e in rest)
        self._keep(part)
        if memory:
            self._memory.append(memory_part)
        self._halves += zip(half_times.tolist(), timed_halves, strict=True)
        for e in rest:
            if e.__class__ is _METADATA and e.name == "thread_name" and e.args.name:
                self._thread_names[str(e.pid), str(e.tid)] = str(e.args.name)

    def _part(
        self,
        events: Sequence[Event],
        args: Sequence[Arguments],
        begin: Ints,
        duration: Ints,
        text: bytes = b"",
    ) -> Columns:
        keys, stacks, shapes = self._keys, self._stacks, self._shapes
        seen = len(keys)
        codes = [keys[e.name, e.cat, e.pid, e.tid] for e in events]
        for fresh in range(seen, len(keys)):
            device = args[codes.index(fresh)].device
            if device >= 0 and keys.kinds[fresh] in _DEVICE_KINDS:
                self._devices.setdefault(keys.threads[fresh], device)
        part: Columns = {
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
        if not text or b'"Call stack"' in text:
            rows = [row for row, a in enumerate(args) if a.stack is not None]
            part["stack"][rows] = [stacks[args[row].stack] for row in rows]
        if not text or b'"Input type"' in text:
            rows = [row for row, a in enumerate(args) if a.types is not NO_TEXT]
            part["shape"][rows] = [
                shapes[bytes(a.old_dims if a.dims is NO_TEXT else a.dims), bytes(a.types)]
                for a in (args[row] for row in rows)
            ]
        return part

    def _keep(self, part: Columns) -> None:
        begin, duration = part["begin"], part["duration"]
        in_range = (begin >= -_FAR) & (begin < 2 * _FAR) & (duration < _FAR)
        good = in_range & (duration >= 0)
        if not good.all():
            self.left_out[_NEGATIVE] += int((in_range & ~good).sum())
            self.left_out[_NO_TIME] += int((~in_range).sum())
            part = {name: column[good] for name, column in part.items()}
        keys = self._keys
        if keys.strange:
            counts = np.bincount(part["key"], minlength=len(keys))
            for code, category in keys.strange.items():
                self.strange[category] += int(counts[code])
        for name, column in part.items():
            self._columns[name] += column.astype(_TYPES[name], copy=False).tobytes()
        self.n += len(begin)

    def finish(self) -> dict[str, Any]:
        """Return the fields of a `Trace`, events in order; nothing can be added after it."""
        if self._halves:
            paired, begin, duration = self._pair()
            self._keep(self._part(paired, [e.args for e in paired], begin, duration))
        keys = self._keys
        begin, key = self._whole("begin"), self._whole("key")
        duration = self._whole("duration")
        kind = np.array(keys.kinds, dtype=np.int8)[key]
        origin = int(begin.min()) if self.n else 0
        begin -= origin
        order = _order(begin, duration, kind, self._whole("external"))
        found: dict[str, Any] = {"origin": origin, "kind": kind[order]}
        for name, table in (("name", keys.names), ("thread", keys.threads)):
            found[name] = np.array(table, dtype=np.int32)[key][order]
        del kind, key
        found["begin"], found["duration"] = begin[order], duration[order]
        del begin, duration
        for name in ("correlation", "sequence", "stack", "shape"):
            found[name] = self._whole(name)[order]
        found["correlation"][found["correlation"] == 0] = NOTHING
        for name, codes in (("stack", self._stacks), ("shape", self._shapes)):
            if not codes:
                found[name] = np.empty(0, dtype=np.int32)
        return found | {
            "names": tuple(keys.name_codes),
            "threads": self._threads(),
            "stacks": tuple(self._stacks),
            "shapes": tuple(
                (dims.decode("utf-8", "replace"), types.decode("utf-8", "replace"))
                for dims, types in self._shapes
            ),
            "memory": self._joined_memory(origin),
            "strange": dict(self.strange.most_common(20)),
        }

    @property
    def devices(self) -> list[int]:
        """Devices on which something ran."""
        return list(self._devices.values())

    def _whole(self, name: str) -> npt.NDArray[Any]:
        return np.frombuffer(self._columns.pop(name), dtype=_TYPES[name])

    def _threads(self) -> tuple[Thread, ...]:
        keys = self._keys
        on_device = {
            thread
            for thread, kind in zip(keys.threads, keys.kinds, strict=True)
            if kind in _DEVICE_KINDS
        }
        threads = []
        for code, (pid, tid) in enumerate(keys.thread_codes):
            name = self._thread_names.get((pid, tid), "").strip()
            device = self._devices.get(code, int(pid) if pid.isdecimal() else None)
            is_device = code in on_device
            threads.append(Thread(pid, tid, name, is_device, device if is_device else None))
        return tuple(threads)

    def _joined_memory(self, origin: int) -> dict[str, Ints]:
        if not self._memory:
            return {}
        time = np.concatenate([times for times, _ in self._memory]) - origin
        order = np.argsort(time, kind="stable")
        change, total, device, number, has_total = np.concatenate(
            [values for _, values in self._memory], axis=1
        )[:, order]
        if not has_total.all():
            for one in set(zip(device.tolist(), number.tolist(), strict=True)):
                of_it = (device == one[0]) & (number == one[1])
                total[of_it] = np.cumsum(change[of_it])
        memory = {"time": time[order], "total": total, "change": change}
        return memory | {"device": device, "device_id": number}

    def _pair(self) -> tuple[list[Event], Ints, Ints]:
        """Return events from their beginnings and ends.

        An end belongs to the last open beginning of its name on its thread; one without a name to
        the last of all.
        """
        paired: list[tuple[Event, int, int]] = []
        still_open: dict[tuple[str, str], list[tuple[int, Event]]] = defaultdict(list)
        for time, event in sorted(self._halves, key=lambda half: half[0]):
            stack = still_open[str(event.pid), str(event.tid)]
            if event.__class__ is _HALVES[0]:
                stack.append((time, event))
                continue
            places = [i for i, (_, e) in enumerate(stack) if event.name in ("", e.name)]
            if not places:
                self.left_out[_ALONE] += 1
                continue
            # What was begun inside it and is still open has lost its end.
            self.left_out[_ALONE] += len(stack) - 1 - places[-1]
            begin, begun = stack[places[-1]]
            del stack[places[-1] :]
            paired.append((begun, begin, time - begin))
        self.left_out[_ALONE] += sum(map(len, still_open.values()))
        times = np.array([one[1:] for one in paired], dtype=np.int64).reshape(-1, 2)
        return [event for event, *_ in paired], times[:, 0], times[:, 1]


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("key", "stack", "shape"), np.int32),
    **dict.fromkeys(("begin", "duration", "correlation", "sequence", "external"), np.int64),
}
# So far apart that differences of times still fit: 73 years.
_FAR = 2**61
_COMPLETE, _METADATA = CLASSES["X"], CLASSES["M"]
_INSTANTS, _HALVES = (CLASSES["i"], CLASSES["I"]), (CLASSES["B"], CLASSES["E"])
_OTHERS = frozenset([Event, _METADATA, *_INSTANTS, *_HALVES])
_DEVICE_KINDS = (*ON_DEVICE, Kind.device_annotation)
_NO_TIME = "no time or no duration"
_NO_PHASE = "an unknown phase"
_NEGATIVE = "a negative duration"
_ALONE = "a beginning without an end, or an end without a beginning"


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class _Keys(dict[tuple[str, str | None, int | str, int | str], int]):
    """Names with their category, process and thread; one lookup is faster than one for each."""

    def __init__(self) -> None:
        super().__init__()
        self.name_codes, self.thread_codes = _Codes(), _Codes()
        self.names: list[int] = []
        self.kinds: list[Kind] = []
        self.threads: list[int] = []
        self.strange: dict[int, str] = {}

    def __missing__(self, key: tuple[str, str | None, int | str, int | str]) -> int:
        name, category, pid, tid = key
        self[key] = code = len(self)
        word = "operator" if category is None else category.strip().lower()
        kind = _KINDS.get(word, Kind.other)
        # Old versions wrote named ranges as operators; ROCm writes copies and fills as kernels.
        if kind is Kind.operator and name.startswith(_RANGES):
            kind = Kind.annotation
        elif kind is Kind.operator and pid == "CUDA functions":
            # This is where autograd's own profiler puts what the device did.
            kind = Kind.kernel
        elif kind is Kind.kernel and name.startswith(_COPIES):
            kind = Kind.copy
        elif kind is Kind.kernel and name.startswith(_FILLS):
            kind = Kind.fill
        self.names.append(self.name_codes[name])
        self.kinds.append(kind)
        self.threads.append(self.thread_codes[str(pid), str(tid)])
        if category is not None and word not in _KINDS and word not in _OF_THE_PROFILER:
            self.strange[code] = category[:80]
        return code


_KINDS = {
    word: kind
    for kind, words in {
        Kind.operator: "operator cpu_op",
        Kind.runtime: "runtime cuda_runtime cuda_driver hip_runtime hip_driver xpu_runtime "
        "xpu_driver privateuse1_runtime privateuse1_driver mtia_runtime",
        Kind.kernel: "kernel gpu_op mtia_ccp_events hpu_op xpu_op privateuse1_kernel",
        Kind.copy: "memcpy gpu_memcpy",
        Kind.fill: "memset gpu_memset",
        Kind.annotation: "user_annotation record_function",
        Kind.device_annotation: "gpu_user_annotation",
        Kind.python: "python_function",
    }.items()
    for word in words.split()
}
_OF_THE_PROFILER = {
    *("trace", "overhead", "cuda_sync", "cuda_profiler_range", "external_correlation", "ac2g"),
    *("cpu_instant_event", "cpu_op_instant", "fwdbwd", "async_gpu", "async_cpu_to_gpu", ""),
    *("forward_backward", "collective_comm", "mtia_insight", "glow_runtime", "function_events"),
}
_RANGES = (
    *("ProfilerStep#", "ProfilerStep*", "enumerate(DataLoader)#", "Optimizer.step#", "phase."),
    *("Optimizer.zero_grad#", "DistributedDataParallel.forward", "## ", "[pl][", "nccl:", "gloo:"),
)
_COPIES = (
    *("Memcpy ", "CopyHostToDevice", "CopyDeviceToHost", "CopyDeviceToDevice"),
    "__amd_rocclr_copyBuffer",
)
_FILLS = ("Memset ", "FillBuffer", "__amd_rocclr_fillBuffer")


def _order(begin: Ints, duration: Ints, kind: npt.NDArray[np.int8], external: Ints) -> Ints:
    order = np.argsort(begin, kind="stable")
    together = np.diff(begin[order]) == 0
    tied = np.zeros(len(begin), dtype=bool)
    tied[1:] |= together
    tied[:-1] |= together
    rows = order[tied]
    outer = np.full(len(Kind), 3)
    outer[[Kind.annotation, Kind.python, Kind.operator]] = 0, 1, 2
    # Of operators that take the same time the outer one was begun, and so numbered, first.
    keys = (external[rows], outer[kind[rows]], -duration[rows], begin[rows])
    order[tied] = rows[np.lexsort(keys)]
    return order


class _InexactError(Exception):
    """Decoded numbers may have lost their nanoseconds, so take them from the text."""


def _times(
    piece: Piece, chosen: Sequence[Event], *fields: str
) -> tuple[Sequence[Event], list[Ints]]:
    """Return those of these events that have these times, and the times in nanoseconds."""
    try:
        return chosen, [_nanoseconds(list(map(attrgetter(name), chosen))) for name in fields]
    except _InexactError:
        pass
    timed = [e for e in chosen if all(getattr(e, name) is not None for name in fields)]
    if len(timed) < len(chosen):
        return _times(piece, timed, *fields)
    wanted = {id(event) for event in timed}
    rows = [row for row, event in enumerate(piece.events) if id(event) in wanted]
    written = piece.written_times()[: len(fields)]
    return timed, [_exact_nanoseconds([one[row] for row in rows]) for one in written]


def _nanoseconds(written: Sequence[Any]) -> Ints:
    """Return decoded microseconds in nanoseconds, if no digit of them was lost.

    A double holds a time below 2**43 microseconds (100 days) to less than half a nanosecond, so it
    is the nearest that was meant.
    """
    if not written:
        return np.empty(0, dtype=np.int64)
    numbers = np.array(written)
    if numbers.dtype.kind == "i" and numbers.min() >= -_LAST and numbers.max() <= _LAST:
        return np.asarray(numbers * 1000, dtype=np.int64)
    if numbers.dtype.kind != "f" or not np.abs(numbers).max() < 2.0**43:
        raise _InexactError
    whole = np.floor(numbers)
    rest = np.rint((numbers - whole) * 1000)
    return np.asarray(whole.astype(np.int64) * 1000 + rest.astype(np.int64))


_LAST = (2**63 - 1) // 1000
_THREE_PLACES = re.compile(rb"(?:-?(?:[0-8][0-9]{15}|[0-9]{1,15})\.[0-9]{3},)+")


def _exact_nanoseconds(written: Sequence[Any]) -> Ints:
    texts = [bytes(n) if isinstance(n, msgspec.Raw) else str(n).encode() for n in written]
    joined = b",".join(texts) + b","
    # As PyTorch writes them; numpy then reads all at once.
    if _THREE_PLACES.fullmatch(joined):
        return np.fromstring(joined[:-1].replace(b".", b""), dtype=np.int64, sep=",")
    return np.array([_exact(Decimal(text.decode())) for text in texts], dtype=np.int64)


def _exact(microseconds: Decimal) -> int:
    within = max(min(microseconds, Decimal(_LAST)), Decimal(-_LAST))
    return int((within * 1000).to_integral_value())
