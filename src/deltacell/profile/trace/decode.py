"""The events of a trace file, decoded a piece at a time.

Files may be packed, cut off, damaged or still growing, and may hold what JSON does not allow.
"""

from __future__ import annotations

import functools
import operator
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from deltacell.errors import InputError
from deltacell.profile.trace.trace import NOTHING
from deltacell.words import Progress

NO_TEXT = msgspec.Raw(b"")


class Arguments(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "sequence": "Sequence number",
        "external": "External id",
        "dims": "Input Dims",
        "old_dims": "Input dims",
        "types": "Input type",
        "stack": "Call stack",
        "changed": "Bytes",
        "allocated": "Total Allocated",
        "device_type": "Device Type",
        "device_id": "Device Id",
    },
):
    """What an event has beside its name and time, under the words of PyTorch's profiler."""

    # In the order in which they are written, which is the fastest to read.
    external: int = NOTHING
    device: int = NOTHING
    correlation: int = NOTHING
    sequence: int = NOTHING
    dims: msgspec.Raw = NO_TEXT
    old_dims: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    stack: str | None = None
    changed: int = 0
    allocated: int | None = None
    device_type: int = NOTHING
    device_id: int = NOTHING
    name: Any = None


WITHOUT_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False, tag_field="ph", tag=""):
    """An event of the Chrome trace format, with a class per phase; times in microseconds."""

    cat: str | None = None
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float | None = None
    dur: int | float | None = None
    args: Arguments = WITHOUT_ARGUMENTS


CLASSES: dict[str, Any] = {
    phase: msgspec.defstruct(f"Event{phase}", [], bases=(Event,), gc=False, tag=phase)
    for phase in "XBEMiI"
}
"""By phase: complete events, beginnings, ends, metadata, and instants of new and old traces."""

# Of these phases nothing is kept.
_PASSED_OVER = frozenset([*"CbnestfPNODSTpFRcVva()=", ","])
_EMPTY = [
    msgspec.defstruct(f"Phase{ord(phase)}", [], gc=False, tag_field="ph", tag=phase)
    for phase in sorted(_PASSED_OVER)
]
_ANY: Any = functools.reduce(operator.or_, [*CLASSES.values(), *_EMPTY])


class Source:
    """A file, read from its beginning to where its end was when it was opened.

    Its first bytes decide whether it is gzip. ``given`` counts the unpacked bytes handed out.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path, self._progress = path, progress
        self.given = 0
        self.damage = ""  # what is wrong with the packing
        try:
            self._file = path.open("rb")
            self.size = self._left = os.fstat(self._file.fileno()).st_size
            packed = self._file.read(2) == b"\x1f\x8b"
            self._file.seek(0)
        except OSError as error:
            raise self._unreadable(error) from error
        self._unpacker = zlib.decompressobj(_GZIP) if packed else None
        self._packed = b""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def read(self, n: int) -> bytes:
        """Return the next `n` bytes or what is left; nothing at the end."""
        read = self._raw(n) if self._unpacker is None else self._unpack(n)
        self.given += len(read)
        if self._progress is not None:
            self._progress(f"reading {self.path.name}", self.size - self._left, self.size)
        return read

    def grown(self) -> int:
        """Return how many bytes the file has gained since it was opened, or lost if negative."""
        try:
            return self.path.stat().st_size - self.size
        except OSError:
            return -self.size

    def _unreadable(self, error: OSError) -> InputError:
        what = f"the trace cannot be read: {error.strerror or error}"
        return InputError(what, code="unreadable-file", where=self.path)

    def _raw(self, n: int) -> bytes:
        try:
            read = self._file.read(min(n, self._left))
        except OSError as error:
            raise self._unreadable(error) from error
        self._left -= len(read)
        return read

    def _unpack(self, n: int) -> bytes:
        parts: list[bytes] = []
        while n > 0 and self._unpacker is not None and not self.damage:
            packed = self._packed or self._raw(1 << 18)
            if self._unpacker.eof:
                # A packed file may be several, one after the other, and be padded with zeros.
                packed = packed.lstrip(b"\0")
                if packed:
                    self._unpacker = zlib.decompressobj(_GZIP)
            if not packed:
                if not self._unpacker.eof:
                    self.damage = "its packing (gzip) ends too early"
                break
            try:
                parts.append(self._unpacker.decompress(packed, n))
            except zlib.error:
                self.damage = "its packing (gzip) is damaged"
                break
            self._packed = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            n -= len(parts[-1])
        return b"".join(parts)


_GZIP = 31
PIECE = 1 << 20
"""Bytes of text to decode at once."""


@dataclass(frozen=True)
class Piece:
    """Consecutive events, and the array they were decoded from; empty where they were repaired."""

    events: Sequence[Event]
    text: bytes | memoryview = b""

    def written_times(self) -> tuple[list[Any], list[Any]]:
        """Return the times and durations of the events with all their digits."""
        events: Any = _TIMES.decode(self.text) if self.text else self.events
        return [e.ts for e in events], [e.dur for e in events]

    def put_right(self) -> Piece:
        """Return the same events without numbers that fit no column."""
        return Piece(_one_by_one(self.text)[0]) if self.text else self


@dataclass
class Decoder:
    """The events of a trace, and what it says of itself."""

    source: Source
    about: dict[str, Any] = field(default_factory=dict)  # complete after the last piece
    lost: int = 0  # events that could not be decoded
    repaired: int = 0  # pieces with signs that JSON does not allow
    cut: bool = False  # the text has no end
    unclear: bool = False  # some of `about` could not be decoded

    def pieces(self) -> Iterator[Piece]:
        """Yield the events; free each piece before asking for the next."""
        text, is_bare = self._begin()
        ended = False
        while True:
            while not ended and len(text) < PIECE:
                ended = not self._more(text)
            piece, used = self._guess(text, 1)
            if piece is None:
                self.repaired += _repair(text, text.rfind(b"}") + 1)
                piece, used = self._guess(text, 3)
            if piece is None:
                last, closed, broken = _scan(text)
                if closed is not None and (piece := self._decode(text[:closed] + b"]")):
                    yield piece
                    self._after(text[closed + 1 :], is_bare)
                    return
                if closed is None and not broken:
                    if last:
                        piece, used = self._decode(text[:last] + b"]"), last - 1
                    elif not ended and len(text) < _LONGEST:
                        ended = not self._more(text)
                        continue
            if piece is None:
                piece, used = self._save(text)
            if piece is not None:
                yield piece
                text = bytearray(b"[") + text[used + 1 :].lstrip(_GAP)
                continue
            if not ended:
                given = self.source.given - len(text)
                raise self._not_a_trace(f"no event ends within 64 MiB after byte {given:,}")
            if closed is not None or broken:
                # The array ends, so the last thing in it is not an event.
                self.lost += 1
                self.unclear = not is_bare
            else:
                # In a bare array the last bracket may be missing.
                self.cut = not is_bare or len(text) > 1
            return

    def _more(self, text: bytearray) -> bool:
        # As much again as there is, so that a very long event is not scanned too often.
        more = self.source.read(max(PIECE, len(text)))
        text += more.lstrip(_GAP) if len(text) == 1 else more
        return bool(more)

    def _begin(self) -> tuple[bytearray, bool]:
        text = bytearray()
        searched = 0
        more = b"{"
        while more and searched <= _LONGEST:
            more = self.source.read(PIECE)
            text += more
            if text.startswith(b"\xef\xbb\xbf"):
                del text[:3]
            first = bytes(text.lstrip()[:20])
            if first.startswith(b"["):
                return text[text.index(b"[") :], True
            if first and not first.startswith(b"{"):
                raise self._not_a_trace(f"it begins with {first!r}")
            if found := _EVENTS.search(text, max(0, searched - 64)):
                self._learn(bytes(text[: found.end() - 1]) + b"[]}")
                return text[found.end() - 1 :], False
            searched = len(text)
        if not text.strip():
            raise InputError("the trace is empty", code="empty-trace", where=self.source.path)
        why = f", and {self.source.damage}" if self.source.damage else ""
        raise self._not_a_trace(f"it has no list of traceEvents{why}")

    def _not_a_trace(self, why: str) -> InputError:
        return InputError(
            f"this is not a trace: {why}",
            code="not-a-trace",
            where=self.source.path,
            fix="Expected a Chrome trace as written by torch.profiler's export_chrome_trace.",
        )

    def _guess(self, text: bytearray, guesses: int) -> tuple[Piece | None, int]:
        """Decode up to one of the last commas that seem to stand between events."""
        found = [m.start(1) for m in _BETWEEN.finditer(text, max(0, len(text) - _NEAR))]
        if not found:
            found = [m.start(1) for m in _BETWEEN.finditer(text)]
        for comma in reversed(found[-guesses:]):
            text[comma] = ord("]")
            view = memoryview(text)[: comma + 1]
            if (piece := self._decode(view)) is not None:
                return piece, comma
            view.release()
            text[comma] = ord(",")
        return None, 0

    def _decode(self, array: bytearray | memoryview) -> Piece | None:
        try:
            return Piece(_EVENT_LIST.decode(array), memoryview(array))
        except msgspec.ValidationError:
            pass
        except _UNDECODABLE:
            return None
        try:
            events, lost = _one_by_one(array)
        except _UNDECODABLE:
            return None
        self.lost += lost
        return Piece(events)

    def _save(self, text: bytearray) -> tuple[Piece | None, int]:
        """Decode every event alone that ends with a comma, and leave out those that are damaged."""
        commas = [m.start(1) for m in _BETWEEN.finditer(text)]
        begins = [1, *(comma + 1 for comma in commas)]
        events = []
        for begin, comma in zip(begins, commas, strict=False):
            alone = text[begin:comma].strip()
            _repair(alone, len(alone))
            events.append(_tidy(alone))
        saved = [event for event in events if event is not None]
        self.lost += len(events) - len(saved)
        return (Piece(saved), commas[-1]) if commas else (None, 0)

    def _after(self, rest: bytearray, is_bare: bool) -> None:
        while len(rest) < _LONGEST and (more := self.source.read(PIECE)):
            rest += more
        rest = rest.strip()
        if is_bare and not rest:
            return
        rest = bytearray(b"{") + rest.removeprefix(b",")
        self.cut = _scan(rest)[1] is None
        self._learn(bytes(rest))
        self.unclear &= not self.cut

    def _learn(self, text: bytes) -> None:
        repaired = bytearray(text)
        _repair(repaired, len(repaired))
        for attempt in (text, repaired):
            try:
                about = msgspec.json.decode(attempt)
            except _UNDECODABLE:
                continue
            if isinstance(about, Mapping):
                self.about.update({str(key): value for key, value in about.items()})
                return
        self.unclear = True


_MISSING = msgspec.Raw(b"null")
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = _MISSING
    dur: msgspec.Raw = _MISSING


class _Loose(_Times, gc=False):
    ph: Any = None
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    args: Any = None


_EVENT_LIST = msgspec.json.Decoder(list[_ANY])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_LOOSE = msgspec.json.Decoder(_Loose)
_TIMES = msgspec.json.Decoder(list[_Times])

_LONGEST = 64 << 20
_NEAR = 1 << 13
_GAP = b", \t\r\n"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*(,)\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args)"\s*:)')
# After the array of events comes another key, or the end.
_AFTER = re.compile(rb'\s*(?:,\s*"|\}|\Z|,\s*\Z)')
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]"]', re.DOTALL)
# Between events a line break is as good as a space, and within a name it is not allowed.
_CONTROL = bytes(range(32))
_WITHOUT_CONTROL = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
_WITHOUT_BREAKS = bytes.maketrans(b"\t\n\r", b"   ")
_NO_NUMBER = re.compile(
    rb"(?<=[:,\[])(\s*)[+-]?(?:inf(?:inity)?|nan)(?:\([a-z0-9]*\))?(?=\s*[,}\]])", re.IGNORECASE
)
# A valid escape, half of a surrogate pair, or a lone backslash.
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|(u[dD][0-9a-fA-F]{3})|(.))",
    re.DOTALL,
)


def _repair(text: bytearray, end: int) -> bool:
    """Correct what JSON does not allow and traces have all the same; return if there was any.

    What follows ``end`` is left alone because it may continue in the next piece.
    """
    before = bytes(text[:end])
    repaired = before.translate(_WITHOUT_CONTROL)
    try:
        repaired.decode()
    except UnicodeDecodeError:
        repaired = repaired.decode("utf-8", "replace").encode()
    repaired = _NO_NUMBER.sub(rb"\1null", repaired)
    if b"\\" in repaired:
        repaired = _ESCAPE.sub(_escaped, repaired)
    text[:end] = repaired
    return before.translate(_WITHOUT_BREAKS) != repaired


def _escaped(found: re.Match[bytes]) -> bytes:
    if found[1] is not None:
        return rb"\ufffd"
    return found[0] if found[2] is None else rb"\\" + found[2]


def _scan(text: bytearray) -> tuple[int, int | None, bool]:
    """Return the end of the last whole element, of the array, and whether brackets do not match."""
    depth = last = 0
    for token in _TOKENS.finditer(text):
        sign = text[token.start()]
        if sign == ord('"'):
            if token.end() - token.start() == 1:
                break
        elif sign in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 1 and sign == ord("}"):
                last = token.end()
            elif depth == 0:
                # Each closing bracket is two signs after its opening one.
                fits = sign == text[0] + 2 and _AFTER.match(text, token.end())
                return (last, token.start(), False) if fits else (last, None, True)
    return last, None, False


def _one_by_one(array: bytes | bytearray | memoryview) -> tuple[list[Event], int]:
    events = [_tidy(raw) for raw in _RAW_LIST.decode(array)]
    whole = [event for event in events if event is not None]
    return whole, len(events) - len(whole)


def _tidy(text: msgspec.Raw | bytearray) -> Event | None:
    """Return an event whose fields may be of other types; None where it cannot be decoded."""
    try:
        loose = _LOOSE.decode(text)
    except _UNDECODABLE:
        return None
    phase = _text(loose.ph)
    passed_over = phase in _PASSED_OVER
    kind: type[Event] = CLASSES.get("M" if passed_over else phase, Event)
    return kind(
        name="" if passed_over else _text(loose.name),
        cat=None if loose.cat is None else _text(loose.cat),
        pid=_text(loose.pid),
        tid=_text(loose.tid),
        ts=_number(loose.ts),
        dur=_number(loose.dur),
        args=_arguments(loose.args),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _number(raw: msgspec.Raw) -> Any:
    try:
        number = Decimal(bytes(raw).decode().strip('"'))
    except (InvalidOperation, UnicodeDecodeError):
        return None
    return number if number.is_finite() else None


def _arguments(args: Any) -> Arguments:
    values: dict[str, Any] = {}
    for known in msgspec.structs.fields(Arguments):
        value = args.get(known.encode_name) if isinstance(args, Mapping) else None
        if value is None:
            continue
        if known.name in ("dims", "old_dims", "types"):
            value = msgspec.Raw(msgspec.json.encode(value))
        elif known.name == "stack":
            value = _text(value)
        elif known.name != "name":
            try:
                value = int(value)
            except (TypeError, ValueError, OverflowError):
                continue
            if not -(2**63) <= value < 2**63:
                continue
        values[known.name] = value
    return Arguments(**values)
