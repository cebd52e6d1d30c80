"""The events of a trace file, decoded a piece at a time.

Files may be packed, cut off, damaged or still growing, and may hold what JSON does not allow.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import operator
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from deltacell.errors import InputError
from deltacell.profile.trace.trace import NOTHING
from deltacell.words import Progress

NO_TEXT = msgspec.Raw(b"")
Scalar = str | int | float | bool | None
"""What writers put where a number or a name belongs."""


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
    """What an event has beside its name and time, under the words of PyTorch's profiler."""

    # In the order in which they are written, which is the fastest to read.
    external: Scalar = NOTHING
    device: Scalar = NOTHING
    correlation: Scalar = NOTHING
    sequence: Scalar = NOTHING
    dims: msgspec.Raw = NO_TEXT
    old_dims: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    stack: Scalar = None
    name: Scalar = None


class Event(msgspec.Struct, gc=False, tag_field="ph", tag=""):
    """An event of the Chrome trace format, with a class per phase; times in microseconds."""

    cat: Scalar = None
    name: Scalar = ""
    pid: Scalar = ""
    tid: Scalar = ""
    ts: Scalar = None
    dur: Scalar = None
    args: Arguments | list[Any] | Scalar = Arguments()


CLASSES: dict[str, Any] = {
    phase: msgspec.defstruct(f"Event{phase}", [], bases=(Event,), gc=False, tag=phase)
    for phase in "XBEM"
}
"""By phase: complete events, beginnings, ends and metadata."""

_PASSED_OVER = [
    msgspec.defstruct(f"Phase{ord(phase)}", [], gc=False, tag_field="ph", tag=phase)
    for phase in "iICbnestfPNODSTpFRcVva()=,"
]
_ANY: Any = functools.reduce(operator.or_, [*CLASSES.values(), *_PASSED_OVER])
PIECE = 1 << 19
"""Bytes of text to decode at once; small enough for the processor's cache."""


class Source:
    """A file, or some bytes of it, unpacked where its first bytes are those of gzip."""

    def __init__(
        self, path: Path, progress: Progress | None = None, begin: int = 0, end: int | None = None
    ) -> None:
        self.path, self._progress = path, progress
        self.given = 0  # unpacked bytes handed out
        self.damage = ""  # what is wrong with the packing
        try:
            self._file = path.open("rb")
            self._size = os.fstat(self._file.fileno()).st_size
            packed = self._file.read(2) == b"\x1f\x8b"
            self._file.seek(begin)
        except OSError as error:
            raise self._unreadable(error) from error
        self._text: Any = gzip.GzipFile(fileobj=self._file) if packed else self._file
        # A file may still grow.
        self._left = 1 << 62 if end is None else end - begin

    def close(self) -> None:
        self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process may know, which is all but the file."""
        return {"path": self.path, "given": self.given, "damage": self.damage}

    def read(self, n: int) -> bytes:
        read = b""
        try:
            read = self._text.read1(min(n, self._left))
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.damage = "its packing (gzip) is damaged"
        except OSError as error:
            raise self._unreadable(error) from error
        self.given += len(read)
        self._left -= len(read)
        if self._progress is not None:
            self._progress(f"reading {self.path.name}", self._file.tell(), self._size)
        return read

    def _unreadable(self, error: OSError) -> InputError:
        what = f"the trace cannot be read: {error.strerror or error}"
        return InputError(what, code="unreadable-file", where=self.path)


Piece = tuple[Sequence[Event], bytes]
"""Consecutive events, and the array they were decoded from."""


@dataclass
class Decoder:
    """The events of a trace, and what it says of itself."""

    source: Source
    is_inside: bool = False  # the source begins within the events
    about: dict[str, Any] = field(default_factory=dict)  # complete after the last piece
    lost: int = 0  # events that could not be decoded
    repaired: int = 0  # pieces with signs that JSON does not allow
    cut: bool = False  # the text has no end
    goes_on: bool = False  # the text ends where another event could follow
    unclear: bool = False  # some of `about` could not be decoded

    def pieces(self) -> Iterator[Piece]:
        """Yield the events; free each piece before asking for the next."""
        text, is_bare = (b"", False) if self.is_inside else self._begin()
        closed = False
        while not closed:
            # As much again as there is, so that a very long event is not searched too often.
            wanted = max(PIECE, 2 * len(text))
            while len(text) < wanted and (more := self.source.read(wanted - len(text))):
                text += more
            if comma := _last_comma(text):
                view, text = memoryview(text)[:comma], text[comma + 1 :].lstrip(_GAP)
                piece = self._decode(view)
                if piece is None:
                    part = bytes(view)
                    # Damage, or what follows the array has something like events in it.
                    end, closed = _walk(part)
                    if closed:
                        text, part = part[end:] + b"," + text, part[:end]
                    piece = self._decode(part) or self._one_by_one(part)
                yield piece
                del piece, view
            elif len(text) < wanted:
                break
            elif len(text) > _LONGEST:
                given = self.source.given - len(text)
                raise self._not_a_trace(f"no event ends within 64 MiB after byte {given:,}")
        yield from self._end(text, is_bare)

    def _begin(self) -> tuple[bytes, bool]:
        """Return the text after the bracket of the events, and whether that is all there is."""
        text, searched, more = b"", 0, b"{"
        while more and searched <= _LONGEST:
            more = self.source.read(PIECE)
            text = (text + more).removeprefix(b"\xef\xbb\xbf")
            first = text.lstrip()[:20]
            if first.startswith(b"["):
                return text[text.index(b"[") + 1 :], True
            if first and not first.startswith(b"{"):
                raise self._not_a_trace(f"it begins with {first!r}")
            if found := _EVENTS.search(text, max(0, searched - 64)):
                self._learn(text[: found.end() - 1] + b"[]}")
                return text[found.end() :], False
            searched = len(text)
        if not text.strip():
            raise InputError("the trace is empty", code="empty-trace", where=self.source.path)
        why = f", and {self.source.damage}" if self.source.damage else ""
        raise self._not_a_trace(f"it has no list of traceEvents{why}")

    def _end(self, text: bytes, is_bare: bool) -> Iterator[Piece]:
        while len(text) < _LONGEST and (more := self.source.read(PIECE)):
            text += more
        end, closed = _walk(text)
        if not closed and _walk(repaired := _repair(text)) > (end, closed):
            text, (end, closed) = repaired, _walk(repaired)
            self.repaired += 1
        if part := text[:end].rstrip(_GAP):
            yield self._decode(part) or self._one_by_one(part)
        self.goes_on = not text[end:].strip()
        rest = text[end + closed :].strip()
        if not closed:
            # In a bare array the last bracket may be missing.
            self.cut = not is_bare or bool(rest)
        elif rest or not is_bare:
            self._learn(b"{" + rest.removeprefix(b","))

    def _not_a_trace(self, why: str) -> InputError:
        fix = "Expected a Chrome trace as written by torch.profiler's export_chrome_trace."
        what, where = f"this is not a trace: {why}", self.source.path
        return InputError(what, code="not-a-trace", where=where, fix=fix)

    def _decode(self, part: bytes | memoryview) -> Piece | None:
        """Decode the events of a part, of which all have to be JSON; None where they are not."""
        array = b"".join((b"[", part, b"]"))
        for repairs in (False, True):
            array = _repair(array) if repairs else array
            with suppress(*_UNDECODABLE):
                try:
                    found: Piece = _EVENT_LIST.decode(array), array
                except msgspec.ValidationError:
                    found = self._events_among(_RAW_LIST.decode(array))
                self.repaired += repairs
                return found
        return None

    def _one_by_one(self, part: bytes) -> Piece:
        """Decode every event alone, and leave out those that are damaged."""
        places = [-1, *(match.start(1) for match in BETWEEN.finditer(part)), len(part)]
        alone = [part[a + 1 : b].strip(_GAP) for a, b in itertools.pairwise(places)]
        return self._events_among([_repair(event) for event in alone if event])

    def _events_among(self, texts: Sequence[msgspec.Raw | bytes]) -> Piece:
        found = []
        for text in texts:
            try:
                _EVENT.decode(text)
                found.append(text)
            except _UNDECODABLE:
                self.lost += 1
        array = b"[" + b",".join(found) + b"]"
        return _EVENT_LIST.decode(array), array

    def _learn(self, text: bytes) -> None:
        for attempt in (text, _repair(text)):
            try:
                self.about.update(msgspec.json.decode(attempt, type=dict[str, Any]))
                return
            except _UNDECODABLE as error:
                self.cut = "truncated" in str(error)
        self.unclear = not self.cut


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT


_EVENT = msgspec.json.Decoder(_ANY)
_EVENT_LIST = msgspec.json.Decoder(list[_ANY])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
written_times = msgspec.json.Decoder(list[_Times]).decode
_JSON = json.JSONDecoder(strict=False)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_LONGEST = 64 << 20
_GAP = b", \t\r\n"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(rb'\}\s*(,)\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args)"\s*:)')
# Between events a line break is as good as a space, and within a name it is not allowed.
_WITHOUT_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)
_NO_NUMBER = re.compile(
    rb"(?<=[:,\[])(\s*)[+-]?(?:inf(?:inity)?|nan)(?:\([a-z0-9]*\))?(?=\s*[,}\]])", re.IGNORECASE
)
# A valid escape, half of a surrogate pair, or a lone backslash.
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|(u[dD][0-9a-fA-F]{3})|(.))",
    re.DOTALL,
)


def _last_comma(text: bytes) -> int:
    """Return the place of the last comma that seems to stand between events; 0 for none."""
    for start in (max(0, len(text) - (1 << 13)), 0):
        if commas := [match.start(1) for match in BETWEEN.finditer(text, start)]:
            return commas[-1]
    return 0


def _repair(text: bytes) -> bytes:
    """Correct what JSON does not allow and traces have all the same."""

    def escaped(found: re.Match[bytes]) -> bytes:
        if found[1] is not None:
            return rb"\ufffd"
        return found[0] if found[2] is None else rb"\\" + found[2]

    plain = text.translate(_WITHOUT_CONTROL).decode("utf-8", "replace").encode()
    return _ESCAPE.sub(escaped, _NO_NUMBER.sub(rb"\1null", plain))


def _walk(text: bytes) -> tuple[int, bool]:
    """Return where the whole elements of an array end, and whether the array ends there."""
    # In this encoding places are those of the bytes.
    plain, at = text.decode("latin-1"), 0
    with suppress(ValueError, RecursionError):
        while at < len(plain):
            if plain[at] == "]":
                return at, True
            at = at + 1 if plain[at] in ", \t\r\n" else _JSON.raw_decode(plain, at)[1]
    return at, False
