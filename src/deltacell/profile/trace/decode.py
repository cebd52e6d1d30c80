"""Decode a trace file piece by piece into columns with interned names and threads.

Files may be compressed, cut off, damaged or still growing, and may contain invalid JSON.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

from deltacell.base.arrays import AnyArray, Indices, Ints
from deltacell.base.errors import InputError
from deltacell.base.text import Progress
from deltacell.profile.trace.trace import NAMES, NOTHING, ON_DEVICE, Kind, Thread, recoded

_NO_TEXT = msgspec.Raw(b"")
Scalar = str | int | float | bool | None  # what programs write in place of a number or a name
_Key = tuple[Scalar, Scalar, Scalar, Scalar]  # name, category, process and thread


class Arguments(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "external": "External id",
        "sequence": "Sequence number",
        "dims": "Input Dims",
        "old_dims": "Input dims",
        "types": "Input type",
        "stack": "Call stack",
    },
):
    """The arguments of an event, as PyTorch's profiler names them."""

    # In the order in which they are written, which is the fastest to read.
    external: Scalar = NOTHING
    correlation: Scalar = NOTHING
    sequence: Scalar = NOTHING
    dims: msgspec.Raw = _NO_TEXT
    old_dims: msgspec.Raw = _NO_TEXT
    types: msgspec.Raw = _NO_TEXT
    stack: Scalar = None
    name: Scalar = None


class Event(msgspec.Struct, gc=False):
    """An event of the Chrome trace format; times in microseconds."""

    # Complete events, beginnings, ends, metadata, and phases that are ignored.
    ph: Literal[tuple("XBEMiICbnestfPNODSTpFRcVva()=,")]  # type: ignore[valid-type]
    cat: Scalar = None
    name: Scalar = ""
    pid: Scalar = ""
    tid: Scalar = ""
    ts: Scalar = None
    dur: Scalar = None
    args: Arguments | list[Any] | Scalar = Arguments()


PIECE = 1 << 19  # bytes of text to decode at once; small enough for the processor's cache
Piece = tuple[Sequence[Event], bytes]  # consecutive events and the array they were decoded from


@dataclass
class Decoder:
    """The events of a file, or of a part of it, and its metadata."""

    path: Path
    begin: int = 0  # in bytes; a part that begins later begins within the events
    end: int | None = None
    about: dict[str, Any] = field(default_factory=dict)  # metadata, complete after the last piece
    given: int = 0  # uncompressed bytes
    lost: int = 0  # events that could not be decoded
    repaired: bool = False  # invalid JSON was corrected
    cut: bool = False  # the text ends too early
    closed: bool = False  # the list of events ends in this part
    unclear: bool = False  # some metadata could not be decoded
    damage: str = ""  # what is wrong with the compression

    def pieces(self, progress: Progress | None = None) -> Iterator[Piece]:
        """Yield the events; free each piece before requesting the next."""
        chunks = self._chunks(progress)
        text, needs_end = (b"", True) if self.begin else self._head(chunks)
        needs_end = needs_end and self.end is None
        while not self.closed:
            # Doubling keeps a very long event from being searched too often.
            wanted = max(PIECE, 2 * len(text))
            while len(text) < wanted and (more := next(chunks, b"")):
                text += more
            comma = _last_comma(text)
            if comma:
                view = memoryview(text)[:comma]
                text = text[comma + 1 :]
                piece = self._decode(view)
                if piece is None:
                    # It is damaged, or text that resembles events follows the list.
                    elements, rest = _elements(bytes(view))
                    piece = self._one_by_one(elements)
                    if rest is not None:
                        self.closed = True
                        text = rest + b"," + text
                yield piece
                del piece, view
            elif len(text) < wanted:
                break
            elif len(text) > _LONGEST:
                place = self.given - len(text)
                raise self._not_a_trace(f"no event ends within 64 MiB after byte {place:,}")
        while len(text) < _LONGEST and (more := next(chunks, b"")):
            text += more
        if not self.closed:
            elements, rest = _elements(text)
            if rest is None:
                repaired, rest = _elements(_repair(text))
                if rest is not None:
                    elements = repaired
                    self.repaired = True
            self.closed = rest is not None
            lost = self.lost
            yield self._one_by_one(elements)
            if rest is None:
                # An event that cannot be decoded here is cut off, not damaged.
                self.cut = needs_end or self.lost > lost
                self.lost = lost
                return
            text = rest
        if text.strip() or needs_end:
            self._learn(b"{" + text.strip().removeprefix(b","))

    def _chunks(self, progress: Progress | None) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(self.begin)
            text: Any = gzip.GzipFile(fileobj=file) if is_packed else file
            # Without an end, read to the last byte, because the file may still grow.
            left = 1 << 62 if self.end is None else self.end - self.begin
            try:
                while more := text.read1(min(PIECE, left)):
                    self.given += len(more)
                    left -= len(more)
                    if progress is not None:
                        progress(f"reading {self.path.name}", file.tell(), size)
                    yield more
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.damage = "the gzip data is damaged"

    def _head(self, chunks: Iterator[bytes]) -> tuple[bytes, bool]:
        """Return the text after the opening bracket of the events, and whether it must be closed.

        A list without an object around it may lack its last bracket.
        """
        text = b""
        searched = 0
        while searched <= _LONGEST and (more := next(chunks, b"")):
            text = (text + more).removeprefix(b"\xef\xbb\xbf")
            first = text.lstrip()[:20]
            if first.startswith(b"["):
                return text[text.index(b"[") + 1 :], False
            if first and not first.startswith(b"{"):
                raise self._not_a_trace(f"it begins with {first!r}")
            if opening := _EVENTS.search(text, max(0, searched - 64)):
                self._learn(text[: opening.end() - 1] + b"[]}")
                return text[opening.end() :], True
            searched = len(text)
        if not text.strip():
            raise InputError("the trace is empty", code="empty-trace", where=self.path)
        why = f", and {self.damage}" if self.damage else ""
        raise self._not_a_trace(f"it has no list of traceEvents{why}")

    def _not_a_trace(self, why: str) -> InputError:
        fix = "Expected a Chrome trace as written by torch.profiler's export_chrome_trace."
        return InputError(f"not a trace: {why}", code="not-a-trace", where=self.path, fix=fix)

    def _decode(self, part: memoryview) -> Piece | None:
        """Decode events; None if one of them is invalid."""
        array = b"".join((b"[", part, b"]"))
        with suppress(*_UNDECODABLE):
            return _EVENT_LIST.decode(array), array
        with suppress(*_UNDECODABLE):
            array = _repair(array)
            piece = _EVENT_LIST.decode(array), array
            self.repaired = True
            return piece
        return None

    def _one_by_one(self, elements: Sequence[bytes]) -> Piece:
        """Decode each event alone and skip damaged ones."""
        events = []
        for element in elements:
            for text in (element, _repair(element)):
                with suppress(*_UNDECODABLE):
                    _EVENT.decode(text)
                    events.append(text)
                    self.repaired |= text != element
                    break
            else:
                self.lost += 1
        array = b"[" + b",".join(events) + b"]"
        return _EVENT_LIST.decode(array), array

    def _learn(self, text: bytes) -> None:
        try:
            self.about.update(msgspec.json.decode(_repair(text), type=dict[str, Any]))
        except _UNDECODABLE as error:
            self.cut = "truncated" in str(error)
            self.unclear = not self.cut


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = _NO_TEXT
    dur: msgspec.Raw = _NO_TEXT


_EVENT = msgspec.json.Decoder(Event)
_EVENT_LIST = msgspec.json.Decoder(list[Event])
_written_times = msgspec.json.Decoder(list[_Times]).decode
_JSON = json.JSONDecoder(strict=False)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_LONGEST = 64 << 20
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(rb'\}\s*(,)\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args)"\s*:)')
# Line breaks are allowed between events, where spaces will do too, but not within a name.
_WITHOUT_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)
_NO_NUMBER = re.compile(
    rb"(?<=[:,\[])(\s*)[+-]?(?:inf(?:inity)?|nan)(?:\([a-z0-9]*\))?(?=\s*[,}\]])",
    re.IGNORECASE,
)
# A valid escape, half of a surrogate pair, or a lone backslash.
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|(u[dD][0-9a-fA-F]{3})|(.))",
    re.DOTALL,
)


def _last_comma(text: bytes) -> int:
    """Return the position of the last comma that seems to separate events; 0 if there is none."""
    for start in (max(0, len(text) - (1 << 13)), 0):
        if commas := [match.start(1) for match in BETWEEN.finditer(text, start)]:
            return commas[-1]
    return 0


def _repair(text: bytes) -> bytes:
    """Correct invalid JSON that traces contain."""

    def escaped(escape: re.Match[bytes]) -> bytes:
        whole, half, lone = escape[0], escape[1], escape[2]
        if half is not None:
            return rb"\ufffd"
        return whole if lone is None else rb"\\" + lone

    plain = text.translate(_WITHOUT_CONTROL).decode("utf-8", "replace").encode()
    return _ESCAPE.sub(escaped, _NO_NUMBER.sub(rb"\1null", plain))


def _elements(text: bytes) -> tuple[list[bytes], bytes | None]:
    """Return the elements of a list and the text after its end; None if it does not end.

    A damaged element extends to the beginning of the next event.
    """
    # In this encoding, positions of characters and bytes agree.
    plain = text.decode("latin-1")
    place = 0
    pieces = list[bytes]()
    while place < len(plain):
        if plain[place] == "]":
            return pieces, text[place + 1 :]
        if plain[place] in ", \t\r\n":
            place += 1
            continue
        try:
            end = _JSON.raw_decode(plain, place)[1]
        except (ValueError, RecursionError):
            comma = BETWEEN.search(text, place)
            end = comma.start(1) if comma else len(text)
        pieces.append(text[place:end])
        place = end
    return pieces, None


class EventTable:
    """Growing columns of events; ``left_out`` counts skipped events by reason."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        # Large buffers grow in place; many small arrays would fragment the memory.
        self._columns = {name: bytearray() for name in _TYPES}
        # One lookup for name, category, process and thread is faster than one for each.
        self._codes = {name: _Codes() for name in ("key", "stack", "shape")}
        self._thread_names: dict[tuple[str, str], str] = {}
        self._halves: list[tuple[int, Event]] = []

    def add(self, events: Sequence[Event], text: bytes) -> None:
        """Append the events of a piece of the file, whose text has their exact times."""
        complete = [e for e in events if e.ph == "X"]
        begin = _times(events, complete, text, "ts")
        duration = _times(events, complete, text, "dur")
        self._keep(complete, begin, duration)
        for e in events:
            if e.ph == "M" and e.name == "thread_name" and isinstance(e.args, Arguments):
                self._thread_names[_text(e.pid), _text(e.tid)] = _text(e.args.name)
        halves = [e for e in events if e.ph == "B" or e.ph == "E"]
        times = _times(events, halves, text, "ts").tolist()
        timed = [pair for pair in zip(times, halves, strict=True) if pair[0] != _UNKNOWN]
        self.left_out[_NO_TIME] += len(halves) - len(timed)
        self._halves += timed

    def _keep(self, events: Sequence[Event], begin: Ints, duration: Ints) -> None:
        keys = self._codes["key"]
        stacks = self._codes["stack"]
        shapes = self._codes["shape"]
        args = [e.args if e.args.__class__ is Arguments else _NO_ARGUMENTS for e in events]
        stack = [NOTHING if a.stack is None else stacks[str(a.stack)] for a in args]
        shape = [
            NOTHING
            if a.types is _NO_TEXT
            else shapes[_joined((a.old_dims if a.dims is _NO_TEXT else a.dims, a.types))]
            for a in args
        ]
        part: dict[str, AnyArray] = {
            "key": _packed([keys[e.name, e.cat, e.pid, e.tid] for e in events], "i"),
            "stack": _packed(stack, "i"),
            "shape": _packed(shape, "i"),
            "begin": begin,
            "duration": duration,
            "correlation": _ints([a.correlation for a in args]),
            "sequence": _ints([a.sequence for a in args]),
            "external": _ints([a.external for a in args]),
        }
        has_begin = (begin >= -_FAR) & (begin < 2 * _FAR)
        is_valid = has_begin & (duration >= 0) & (duration < _FAR)
        if not is_valid.all():
            self.left_out[_NO_TIME] += int((~is_valid).sum())
            part = {name: column[is_valid] for name, column in part.items()}
        for name, column in part.items():
            self._columns[name] += column.data

    def finish(self) -> TraceFields:
        """Return the fields of a `Trace`, with sorted events; nothing can be added afterwards."""
        if self._halves:
            begun, begins, durations = self._paired()
            self._keep(begun, _ints(begins), _ints(durations))
        columns = {
            name: np.frombuffer(self._columns.pop(name), dtype=dtype)
            for name, dtype in _TYPES.items()
        }
        keys = _DecodedKeys.of(self._codes["key"], columns["key"])
        origin = int(columns["begin"].min()) if len(columns["begin"]) else 0
        columns["begin"] = columns["begin"] - origin
        order = _order(columns, keys.rows[columns["key"], 2])
        name, thread, kind = keys.rows[columns["key"][order]].T.copy()
        correlation = columns["correlation"][order]
        correlation[correlation == 0] = NOTHING
        return {
            "begin": columns["begin"][order],
            "duration": columns["duration"][order],
            "correlation": correlation,
            "sequence": columns["sequence"][order],
            "stack": self._ordered_if_any("stack", columns, order),
            "shape": self._ordered_if_any("shape", columns, order),
            "origin": origin,
            "kind": kind.astype(np.int8),
            "name": name,
            "thread": thread,
            "names": tuple(keys.names),
            "threads": self._threads(keys),
            "stacks": tuple(self._codes["stack"]),
            "shapes": tuple(_sizes_and_types(shape) for shape in self._codes["shape"]),
            "strange": dict(keys.strange.most_common(20)),
        }

    def _ordered_if_any(self, name: str, columns: Mapping[str, AnyArray], order: Ints) -> Indices:
        """Return a column in order, or an empty one if no event has a value in it."""
        return columns[name][order if self._codes[name] else order[:0]]

    def _threads(self, keys: _DecodedKeys) -> tuple[Thread, ...]:
        """Return the threads; events of a device have its number as their process."""
        on_device = (*ON_DEVICE, Kind.device_annotation)
        of_device = np.isin(keys.rows[:, 2], on_device)
        codes_of_devices = set(keys.rows[of_device, 1].tolist())
        threads = []
        for code, (pid, tid) in enumerate(keys.threads):
            is_device = code in codes_of_devices
            device = int(pid) if is_device and pid.isdecimal() else None
            name = self._thread_names.get((pid, tid), "").strip()
            threads.append(Thread(pid, tid, name, is_device, device))
        return tuple(threads)

    def join(self, later: EventTable) -> None:
        """Append the events of a later part of the file."""
        for name, column in later._columns.items():
            values = np.frombuffer(column, dtype=_TYPES[name])
            if name in self._codes:
                values = recoded(self._codes[name], later._codes[name], values)
            self._columns[name] += values.data
        self._thread_names |= later._thread_names
        self._halves += later._halves
        self.left_out.update(later.left_out)

    def _paired(self) -> tuple[list[Event], list[int], list[int]]:
        """Return events with begin and duration; an end closes the last open one of its thread."""
        events = []
        begins = []
        durations = []
        still_open: dict[tuple[str, str], list[tuple[int, Event]]] = defaultdict(list)
        for time, event in sorted(self._halves, key=lambda half: half[0]):
            stack = still_open[_text(event.pid), _text(event.tid)]
            if event.ph == "B":
                stack.append((time, event))
            elif stack:
                begin, begun = stack.pop()
                events.append(begun)
                begins.append(begin)
                durations.append(time - begin)
            else:
                self.left_out[_ALONE] += 1
        self.left_out[_ALONE] += sum(map(len, still_open.values()))
        return events, begins, durations


class TraceFields(TypedDict):
    """The fields of a `Trace` that its events give."""

    begin: Ints
    duration: Ints
    correlation: Ints
    sequence: Ints
    stack: Indices
    shape: Indices
    origin: int
    kind: npt.NDArray[np.int8]
    name: Indices
    thread: Indices
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    stacks: tuple[str, ...]
    shapes: tuple[tuple[str, str], ...]
    strange: dict[str, int]


@dataclass(frozen=True, eq=False)
class _DecodedKeys:
    """What the keys of events say, each of which is a name, category, process and thread."""

    names: Sequence[str]
    threads: Sequence[tuple[str, str]]  # process and thread
    rows: npt.NDArray[np.int32]  # for each key the number of its name, of its thread, and its kind
    strange: Counter[str]  # the number of events of unknown categories

    @classmethod
    def of(cls, keys: Iterable[_Key], key_of_event: Indices) -> _DecodedKeys:
        names = _Codes()
        threads = _Codes()
        strange = Counter[str]()
        rows = []
        key_list = list(keys)
        counts = np.bincount(key_of_event, minlength=len(key_list)).tolist()
        for key, count in zip(key_list, counts, strict=True):
            name, category, pid, tid = map(_text, key)
            word = "operator" if key[1] is None else category.strip().lower()
            kind = _kind(name, word, pid)
            rows.append((names[name], threads[pid, tid], kind))
            if word not in _KINDS:
                strange[category[:80]] += count
        by_key = np.array(rows, dtype=np.int32).reshape(-1, 3)
        return cls(list(names), list(threads), by_key, strange)


def _sizes_and_types(shape: bytes) -> tuple[str, str]:
    sizes, types = shape.decode("utf-8", "replace").split("\0")
    return sizes, types


_TYPES: dict[str, type[np.signedinteger[Any]]] = {
    **dict.fromkeys(("key", "stack", "shape"), np.int32),
    **dict.fromkeys(("begin", "duration", "correlation", "sequence", "external"), np.int64),
}
# Differences of times up to this one (73 years) fit into 64 bits.
_FAR = 2**61
_NO_TIME = "no valid time or duration"
_ALONE = "a beginning without an end, or an end without a beginning"
_NO_ARGUMENTS = Arguments()
_joined = b"\0".join  # a byte that JSON does not contain


def _text(value: Scalar) -> str:
    return "" if value is None else str(value)


def _packed(values: Sequence[Scalar], kind: str) -> AnyArray:
    """Return numbers as an array, several times faster than NumPy converts a list."""
    return np.frombuffer(struct.pack(f"{len(values)}{kind}", *values), dtype=kind)


def _ints(values: Sequence[Scalar]) -> Ints:
    try:
        return _packed(values, "q")
    except struct.error:
        return np.array([_int(value) for value in values], dtype=np.int64)


def _int(value: Scalar) -> int:
    if value is None:
        return NOTHING
    try:
        number = value if isinstance(value, int) else int(float(value))
    except (TypeError, ValueError, OverflowError):
        return NOTHING
    return number if -(2**63) <= number < 2**63 else NOTHING


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


def _kind(name: str, category: str, pid: str) -> Kind:
    kind = wide = _KINDS.get(category, Kind.other)
    if wide is Kind.operator and pid == "CUDA functions":
        # Autograd's own profiler writes events of the device here.
        kind = Kind.kernel
    for narrow, beginnings in _BEGINNINGS.get(wide, ()):
        kind = narrow if name.startswith(beginnings) else kind
    return kind


_KINDS = {word: Kind[kind] for kind, words in NAMES["kinds"].items() for word in words.split()}
_KINDS[""] = Kind.other
_BEGINNINGS = {
    Kind[wide]: [(Kind[kind], tuple(names)) for kind, names in narrow.items()]
    for wide, narrow in NAMES["beginnings"].items()
}


def _order(columns: Mapping[str, AnyArray], kind: Indices) -> Ints:
    begin = columns["begin"]
    order = np.argsort(begin, kind="stable")
    same = np.diff(begin[order], prepend=-1, append=-1) == 0
    tied = same[1:] | same[:-1]
    rows = order[tied]
    outer = np.full(len(Kind), 3)
    outer[[Kind.annotation, Kind.python, Kind.operator]] = 0, 1, 2
    # Of operators that take the same time, the outer one began, and was numbered, first.
    longest_first = -columns["duration"][rows]
    keys = (columns["external"][rows], outer[kind[rows]], longest_first, begin[rows])
    order[tied] = rows[np.lexsort(keys)]
    return order


_UNKNOWN = -(2**63)
_LAST = (2**63 - 1) // 1000


def _times(events: Sequence[Event], chosen: Sequence[Event], text: bytes, field: str) -> Ints:
    """Return a time of the chosen events in nanoseconds, `_UNKNOWN` if they have none.

    A double represents times below 2**43 microseconds (100 days) to less than half a nanosecond.
    Larger ones are read from the text, with all their digits.
    """
    if not chosen:
        return np.empty(0, dtype=np.int64)
    values = [e.ts for e in chosen] if field == "ts" else [e.dur for e in chosen]
    with suppress(struct.error):
        whole = _packed(values, "q")
        if whole.min() >= -_LAST and whole.max() <= _LAST:
            return whole * 1000
    with suppress(struct.error, OverflowError):
        packed = _packed(values, "d")
        if np.abs(packed).max() < 2.0**43:
            below = np.floor(packed)
            rest = np.rint((packed - below) * 1000)
            return np.asarray(below.astype(np.int64) * 1000 + rest.astype(np.int64))
    wanted = {id(event) for event in chosen}
    times = []
    for event, written in zip(events, _written_times(text), strict=True):
        if id(event) in wanted:
            times.append(_exact(bytes(getattr(written, field))))
    return np.array(times, dtype=np.int64)


def _exact(number: bytes) -> int:
    whole, _, places = number.partition(b".")
    are_digits = whole.isdigit() and places.isdigit()
    # The form in which PyTorch writes times.
    if len(whole) <= 16 and len(places) == 3 and are_digits:
        return min(int(whole + places), _LAST * 1000)
    try:
        exact = Decimal(number.strip(b'"').decode())
        within = max(min(exact, Decimal(_LAST)), Decimal(-_LAST))
    except InvalidOperation:
        return _UNKNOWN
    return int((within * 1000).to_integral_value())
