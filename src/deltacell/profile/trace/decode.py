"""The events of a trace file, decoded a piece at a time.

Files may be packed, cut off, damaged or still growing, and may hold what JSON does not allow.
"""

from __future__ import annotations

import functools
import gzip
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

Piece = tuple[Sequence[Event], bytes]
"""Consecutive events, and the array they were decoded from."""


@dataclass
class Decoder:
    """The events of a file, or of a part of it, and what the file says of itself."""

    path: Path
    begin: int = 0  # in bytes; a part that begins later begins within the events
    end: int | None = None
    about: dict[str, Any] = field(default_factory=dict)  # complete after the last piece
    given: int = 0  # unpacked bytes
    lost: int = 0  # events that could not be decoded
    repaired: bool = False  # there were signs that JSON does not allow
    cut: bool = False  # the text ends too early
    closed: bool = False  # the list of events ends in this part
    unclear: bool = False  # some of `about` could not be decoded
    damage: str = ""  # what is wrong with the packing

    def pieces(self, progress: Progress | None = None) -> Iterator[Piece]:
        """Yield the events; free each piece before asking for the next."""
        chunks = self._chunks(progress)
        text, needs_end = (b"", True) if self.begin else self._head(chunks)
        needs_end = needs_end and self.end is None
        while not self.closed:
            # As much again as there is, so that a very long event is not searched too often.
            wanted = max(PIECE, 2 * len(text))
            while len(text) < wanted and (more := next(chunks, b"")):
                text += more
            if comma := _last_comma(text):
                view, text = memoryview(text)[:comma], text[comma + 1 :]
                piece = self._decode(view)
                if piece is None:
                    # Damage, or what follows the list has something like events in it.
                    elements, rest = _elements(bytes(view))
                    piece = self._one_by_one(elements)
                    if rest is not None:
                        self.closed, text = True, rest + b"," + text
                yield piece
                del piece, view
            elif len(text) < wanted:
                break
            elif len(text) > _LONGEST:
                at = self.given - len(text)
                raise self._not_a_trace(f"no event ends within 64 MiB after byte {at:,}")
        while len(text) < _LONGEST and (more := next(chunks, b"")):
            text += more
        if not self.closed:
            elements, rest = _elements(text)
            if rest is None and (repaired := _elements(_repair(text)))[1] is not None:
                elements, rest = repaired
                self.repaired = True
            self.closed, lost = rest is not None, self.lost
            yield self._one_by_one(elements)
            if rest is None:
                # What cannot be decoded here is not damaged, but cut off.
                self.cut, self.lost = needs_end or self.lost > lost, lost
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
            # Without an end it is read to the last byte: the file may still grow.
            left = 1 << 62 if self.end is None else self.end - self.begin
            try:
                while more := text.read1(min(PIECE, left)):
                    self.given += len(more)
                    left -= len(more)
                    if progress is not None:
                        progress(f"reading {self.path.name}", file.tell(), size)
                    yield more
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.damage = "its packing (gzip) is damaged"

    def _head(self, chunks: Iterator[bytes]) -> tuple[bytes, bool]:
        """Return the text after the bracket of the events, and whether it has to end.

        A list without an object around it may have lost its last bracket.
        """
        text, searched = b"", 0
        while searched <= _LONGEST and (more := next(chunks, b"")):
            text = (text + more).removeprefix(b"\xef\xbb\xbf")
            first = text.lstrip()[:20]
            if first.startswith(b"["):
                return text[text.index(b"[") + 1 :], False
            if first and not first.startswith(b"{"):
                raise self._not_a_trace(f"it begins with {first!r}")
            if found := _EVENTS.search(text, max(0, searched - 64)):
                self._learn(text[: found.end() - 1] + b"[]}")
                return text[found.end() :], True
            searched = len(text)
        if not text.strip():
            raise InputError("the trace is empty", code="empty-trace", where=self.path)
        why = f", and {self.damage}" if self.damage else ""
        raise self._not_a_trace(f"it has no list of traceEvents{why}")

    def _not_a_trace(self, why: str) -> InputError:
        fix = "Expected a Chrome trace as written by torch.profiler's export_chrome_trace."
        return InputError(f"not a trace: {why}", code="not-a-trace", where=self.path, fix=fix)

    def _decode(self, part: memoryview) -> Piece | None:
        """Decode events, of which all have to be valid; None where one is not."""
        array = b"".join((b"[", part, b"]"))
        with suppress(*_UNDECODABLE):
            return _EVENT_LIST.decode(array), array
        with suppress(*_UNDECODABLE):
            array = _repair(array)
            found = _EVENT_LIST.decode(array), array
            self.repaired = True
            return found
        return None

    def _one_by_one(self, elements: Sequence[bytes]) -> Piece:
        """Decode every event alone, and leave out those that are damaged."""
        found = []
        for element in elements:
            for text in (element, _repair(element)):
                with suppress(*_UNDECODABLE):
                    _EVENT.decode(text)
                    found.append(text)
                    self.repaired |= text != element
                    break
            else:
                self.lost += 1
        array = b"[" + b",".join(found) + b"]"
        return _EVENT_LIST.decode(array), array

    def _learn(self, text: bytes) -> None:
        try:
            self.about.update(msgspec.json.decode(_repair(text), type=dict[str, Any]))
        except _UNDECODABLE as error:
            self.cut = "truncated" in str(error)
            self.unclear = not self.cut


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT


_EVENT = msgspec.json.Decoder(_ANY)
_EVENT_LIST = msgspec.json.Decoder(list[_ANY])
written_times = msgspec.json.Decoder(list[_Times]).decode
_JSON = json.JSONDecoder(strict=False)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_LONGEST = 64 << 20
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


def _elements(text: bytes) -> tuple[list[bytes], bytes | None]:
    """Return the elements of a list and what follows its end; None where it does not end.

    A damaged element reaches to where another event begins.
    """
    # In this encoding places are those of the bytes.
    plain, at, found = text.decode("latin-1"), 0, list[bytes]()
    while at < len(plain):
        if plain[at] == "]":
            return found, text[at + 1 :]
        if plain[at] in ", \t\r\n":
            at += 1
            continue
        try:
            end = _JSON.raw_decode(plain, at)[1]
        except (ValueError, RecursionError):
            comma = BETWEEN.search(text, at)
            end = comma.start(1) if comma else len(text)
        found.append(text[at:end])
        at = end
    return found, None
