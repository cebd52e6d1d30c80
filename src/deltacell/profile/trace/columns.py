"""Decoded events into the columns of a trace, names and threads interned."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.profile.trace.decode import CLASSES, NO_TEXT, Arguments, Event, Scalar, written_times
from deltacell.profile.trace.trace import NAMES, NOTHING, ON_DEVICE, Kind, Thread


class Table:
    """Columns that grow; ``left_out`` counts the events that are in none, by reason."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        # Large buffers grow in place, where many small arrays would leave holes in the memory.
        self._columns = {name: bytearray() for name in _TYPES}
        self._keys = _Keys()
        self._stacks, self._shapes = _Codes(), _Codes()
        self._thread_names: dict[tuple[str, str], str] = {}
        self._halves: list[tuple[int, Event]] = []

    def add(self, events: Sequence[Event], text: bytes) -> None:
        complete = [e for e in events if e.__class__ is _COMPLETE]
        self._keep(complete, *(_times(events, complete, text, name) for name in ("ts", "dur")))
        if _OTHERS.isdisjoint(map(type, events)):
            return
        for e in events:
            if e.__class__ is _METADATA and e.name == "thread_name" and (name := _args(e).name):
                self._thread_names[_text(e.pid), _text(e.tid)] = _text(name)
        halves = [e for e in events if e.__class__ in _HALVES]
        timed = zip(_times(events, halves, text, "ts").tolist(), halves, strict=True)
        known = [(time, half) for time, half in timed if time != _UNKNOWN]
        self.left_out[_NO_TIME] += len(halves) - len(known)
        self._halves += known

    def _keep(self, events: Sequence[Event], begin: Ints, duration: Ints) -> None:
        keys, stacks, shapes = self._keys, self._stacks, self._shapes
        args = [e.args if e.args.__class__ is Arguments else _NO_ARGUMENTS for e in events]
        part: dict[str, Any] = {
            "key": _packed([keys[e.name, e.cat, e.pid, e.tid] for e in events], "i"),
            "begin": begin,
            "duration": duration,
            "correlation": _ints([a.correlation for a in args]),
            "sequence": _ints([a.sequence for a in args]),
            "external": _ints([a.external for a in args]),
            "stack": np.full(len(args), NOTHING, dtype=np.int32),
            "shape": np.full(len(args), NOTHING, dtype=np.int32),
        }
        calls = [a.stack for a in args]
        if calls.count(None) < len(calls):
            codes = [NOTHING if text is None else stacks[str(text)] for text in calls]
            part["stack"] = _packed(codes, "i")
        types = [a.types for a in args]
        if types.count(NO_TEXT) < len(types):
            codes = [
                NOTHING
                if a.types is NO_TEXT
                else shapes[_joined((a.old_dims if a.dims is NO_TEXT else a.dims, a.types))]
                for a in args
            ]
            part["shape"] = _packed(codes, "i")
        good = (begin >= -_FAR) & (begin < 2 * _FAR) & (duration >= 0) & (duration < _FAR)
        if not good.all():
            self.left_out[_NO_TIME] += int((~good).sum())
            part = {name: column[good] for name, column in part.items()}
        for name, column in part.items():
            self._columns[name] += column.data

    def finish(self) -> dict[str, Any]:
        """Return the fields of a `Trace`, events in order; nothing can be added after it."""
        if self._halves:
            begun, *times = self._paired()
            self._keep(begun, *map(_ints, times))
        keys, tables = self._keys, {"stack": self._stacks, "shape": self._shapes}
        columns = {n: np.frombuffer(self._columns.pop(n), dtype=_TYPES[n]) for n in _TYPES}
        key, begin = columns["key"], columns["begin"]
        origin = int(begin.min()) if len(begin) else 0
        columns["begin"] = begin - origin
        kinds = np.array(keys.kinds, dtype=np.int8)
        order = _order(columns, kinds[key])
        key = key[order]
        found: dict[str, Any] = {"origin": origin, "kind": kinds[key]}
        for name, codes in (("name", keys.names), ("thread", keys.threads)):
            found[name] = np.array(codes, dtype=np.int32)[key]
        for name in ("begin", "duration", "correlation", "sequence", *tables):
            found[name] = columns.pop(name)[order if tables.get(name, True) else order[:0]]
        found["correlation"][found["correlation"] == 0] = NOTHING
        shapes = (text.decode("utf-8", "replace").split("\0") for text in self._shapes)
        strange: Counter[str] = Counter()
        for code, count in enumerate(np.bincount(key, minlength=len(keys)).tolist()):
            if code in keys.strange:
                strange[keys.strange[code]] += count
        return found | {
            "names": tuple(keys.name_codes),
            "threads": self._threads(),
            "stacks": tuple(self._stacks),
            "shapes": tuple(map(tuple, shapes)),
            "strange": dict(strange.most_common(20)),
        }

    def join(self, later: Table) -> None:
        """Add the events of a table that was made from what follows in the file."""
        renumbered = {
            "key": [self._keys[key] for key in later._keys],
            "stack": [self._stacks[text] for text in later._stacks],
            "shape": [self._shapes[text] for text in later._shapes],
        }
        for name, column in later._columns.items():
            if name in renumbered:
                # The last place is that of no code.
                table = np.array([*renumbered[name], NOTHING], dtype=np.int32)
                self._columns[name] += table[np.frombuffer(column, dtype=np.int32)].data
            else:
                self._columns[name] += column
        self._thread_names |= later._thread_names
        self._halves += later._halves
        self.left_out.update(later.left_out)

    def _threads(self) -> tuple[Thread, ...]:
        kinds = zip(self._keys.threads, self._keys.kinds, strict=True)
        on_device = {thread for thread, kind in kinds if kind in _DEVICE_KINDS}
        threads = []
        for code, (pid, tid) in enumerate(self._keys.thread_codes):
            name = self._thread_names.get((pid, tid), "").strip()
            # Events of a device have its number as their process.
            device = int(pid) if code in on_device and pid.isdecimal() else None
            threads.append(Thread(pid, tid, name, code in on_device, device))
        return tuple(threads)

    def _paired(self) -> tuple[list[Event], list[int], list[int]]:
        """Return events from their beginnings and ends, with begin and duration.

        An end belongs to the last open beginning of its name on its thread; one without a name to
        the last of all.
        """
        events, begins, durations = [], [], []
        still_open: dict[tuple[str, str], list[tuple[int, Event]]] = defaultdict(list)
        for time, event in sorted(self._halves, key=lambda half: half[0]):
            stack = still_open[_text(event.pid), _text(event.tid)]
            if event.__class__ is _HALVES[0]:
                stack.append((time, event))
                continue
            places = [i for i, (_, e) in enumerate(stack) if event.name in ("", None, e.name)]
            if not places:
                self.left_out[_ALONE] += 1
                continue
            # What was begun inside it and is still open has lost its end.
            self.left_out[_ALONE] += len(stack) - 1 - places[-1]
            begin, begun = stack[places[-1]]
            del stack[places[-1] :]
            events.append(begun)
            begins.append(begin)
            durations.append(time - begin)
        self.left_out[_ALONE] += sum(map(len, still_open.values()))
        return events, begins, durations


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("key", "stack", "shape"), np.int32),
    **dict.fromkeys(("begin", "duration", "correlation", "sequence", "external"), np.int64),
}
# So far apart that differences of times still fit: 73 years.
_FAR = 2**61
_COMPLETE, _METADATA = CLASSES["X"], CLASSES["M"]
_HALVES = (CLASSES["B"], CLASSES["E"])
_OTHERS = frozenset([_METADATA, *_HALVES])
_DEVICE_KINDS = (*ON_DEVICE, Kind.device_annotation)
_NO_TIME = "no time, or no duration of at least 0"
_ALONE = "a beginning without an end, or an end without a beginning"
_NO_ARGUMENTS = Arguments()
# JSON has no such byte.
_joined = b"\0".join


def _args(event: Event) -> Arguments:
    return event.args if isinstance(event.args, Arguments) else _NO_ARGUMENTS


def _text(value: Scalar) -> str:
    return "" if value is None else str(value)


def _packed(values: list[Any], kind: str) -> npt.NDArray[Any]:
    """Return numbers as an array, several times as fast as NumPy reads a list."""
    return np.frombuffer(struct.pack(f"{len(values)}{kind}", *values), dtype=kind)


def _ints(values: list[Any]) -> Ints:
    try:
        return _packed(values, "q")
    except struct.error:
        return np.array([_int(value) for value in values], dtype=np.int64)


def _int(value: Any) -> int:
    try:
        number = value if isinstance(value, int) else int(float(value))
    except (TypeError, ValueError, OverflowError):
        return NOTHING
    return number if -(2**63) <= number < 2**63 else NOTHING


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class _Keys(dict[tuple[Scalar, Scalar, Scalar, Scalar], int]):
    """Names with their category, process and thread; one lookup is faster than one for each."""

    def __init__(self) -> None:
        super().__init__()
        self.name_codes, self.thread_codes = _Codes(), _Codes()
        self.names: list[int] = []
        self.kinds: list[Kind] = []
        self.threads: list[int] = []
        self.strange: dict[int, str] = {}

    def __missing__(self, key: tuple[Scalar, Scalar, Scalar, Scalar]) -> int:
        name, category, pid, tid = map(_text, key)
        self[key] = code = len(self)
        word = "operator" if key[1] is None else category.strip().lower()
        kind = wide = _KINDS.get(word, Kind.other)
        if wide is Kind.operator and pid == "CUDA functions":
            # This is where autograd's own profiler puts what the device did.
            kind = Kind.kernel
        for narrow, beginnings in _BEGINNINGS.get(wide, ()):
            kind = narrow if name.startswith(beginnings) else kind
        self.names.append(self.name_codes[name])
        self.kinds.append(kind)
        self.threads.append(self.thread_codes[pid, tid])
        if word not in _KINDS:
            self.strange[code] = category[:80]
        return code


_KINDS = {word: Kind[kind] for kind, words in NAMES["kinds"].items() for word in words.split()}
_KINDS[""] = Kind.other
_BEGINNINGS = {
    Kind[wide]: [(Kind[kind], tuple(names)) for kind, names in narrow.items()]
    for wide, narrow in NAMES["beginnings"].items()
}


def _order(columns: Mapping[str, npt.NDArray[Any]], kind: npt.NDArray[np.int8]) -> Ints:
    begin = columns["begin"]
    order = np.argsort(begin, kind="stable")
    same = np.diff(begin[order], prepend=-1, append=-1) == 0
    tied = same[1:] | same[:-1]
    rows = order[tied]
    outer = np.full(len(Kind), 3)
    outer[[Kind.annotation, Kind.python, Kind.operator]] = 0, 1, 2
    # Of operators that take the same time the outer one was begun, and so numbered, first.
    keys = (columns["external"][rows], outer[kind[rows]], -columns["duration"][rows], begin[rows])
    order[tied] = rows[np.lexsort(keys)]
    return order


_UNKNOWN = -(2**63)
_LAST = (2**63 - 1) // 1000


def _times(events: Sequence[Event], chosen: Sequence[Event], text: bytes, field: str) -> Ints:
    """Return a time of the chosen events in nanoseconds, `_UNKNOWN` where they have none.

    A double holds a time below 2**43 microseconds (100 days) to less than half a nanosecond, so it
    is the nearest that was meant. Others are taken from the text, with all their digits.
    """
    if not chosen:
        return np.empty(0, dtype=np.int64)
    values: list[Any] = [e.ts for e in chosen] if field == "ts" else [e.dur for e in chosen]
    with suppress(struct.error):
        whole = _packed(values, "q")
        if whole.min() >= -_LAST and whole.max() <= _LAST:
            return whole * 1000
    with suppress(struct.error, OverflowError):
        found = _packed(values, "d")
        if np.abs(found).max() < 2.0**43:
            below = np.floor(found)
            rest = np.rint((found - below) * 1000)
            return np.asarray(below.astype(np.int64) * 1000 + rest.astype(np.int64))
    wanted = {id(event) for event in chosen}
    pairs = zip(events, written_times(text), strict=True)
    written = (bytes(getattr(raw, field)) for event, raw in pairs if id(event) in wanted)
    return np.array([_exact(number) for number in written], dtype=np.int64)


def _exact(number: bytes) -> int:
    whole, _, places = number.partition(b".")
    # As PyTorch writes them.
    if len(whole) <= 16 and len(places) == 3 and whole.isdigit() and places.isdigit():
        return min(int(whole + places), _LAST * 1000)
    try:
        within = max(min(Decimal(number.strip(b'"').decode()), Decimal(_LAST)), Decimal(-_LAST))
    except InvalidOperation:
        return _UNKNOWN
    return int((within * 1000).to_integral_value())
