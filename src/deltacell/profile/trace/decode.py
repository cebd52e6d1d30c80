"""An event as the file has it: only what is needed of it, and what its category means."""

from __future__ import annotations

import functools
import operator
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from deltacell.errors import InputError
from deltacell.profile.trace.trace import NOTHING, Kind

NO_TEXT = msgspec.Raw(b"")
"""Of an event that says nothing of its inputs."""


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
        "python_id": "Python id",
        "python_parent": "Python parent id",
        "changed": "Bytes",
        "allocated": "Total Allocated",
        "device_type": "Device Type",
        "device_id": "Device Id",
    },
):
    """What an event says beside its name and time, under the words of PyTorch's profiler."""

    # In the order in which they are written, which is the fastest to read.
    external: int = NOTHING
    device: int = NOTHING
    correlation: int = NOTHING
    sequence: int = NOTHING
    dims: msgspec.Raw = NO_TEXT
    old_dims: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    stack: str | None = None
    python_id: int = NOTHING
    python_parent: int | None = None
    changed: int = 0
    allocated: int | None = None
    device_type: int = NOTHING
    device_id: int = NOTHING
    name: Any = None


WITHOUT_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False, tag_field="ph", tag=""):
    """An event of the Chrome trace format, one class for each phase; times in microseconds."""

    cat: str | None = None
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float | None = None
    dur: int | float | None = None
    args: Arguments = WITHOUT_ARGUMENTS


class Complete(Event, gc=False, tag="X"):
    """An event with a duration."""


class Begin(Event, gc=False, tag="B"):
    """The beginning of an event."""


class End(Event, gc=False, tag="E"):
    """The end of an event."""


class Metadata(Event, gc=False, tag="M"):
    """A name of a process or thread."""


class Instant(Event, gc=False, tag="i"):
    """A moment, such as an allocation."""


class OldInstant(Event, gc=False, tag="I"):
    """A moment in old traces."""


CLASSES = {"X": Complete, "B": Begin, "E": End, "M": Metadata, "i": Instant, "I": OldInstant}
"""Events of which something is needed, by phase."""

PASSED_OVER = frozenset([*"CbnestfPNODSTpFRcVva()=", ","])
"""Phases of the Chrome trace format of which nothing is needed."""

_EMPTY = (
    msgspec.defstruct(f"Phase{ord(phase)}", [], gc=False, tag_field="ph", tag=phase)
    for phase in sorted(PASSED_OVER)
)
ANY_EVENT: Any = functools.reduce(operator.or_, [*CLASSES.values(), *_EMPTY])
"""What a piece of a trace is decoded as: of a phase that is passed over nothing is kept."""


def kind_of(category: str | None) -> Kind:
    """Return what a category means, whichever version of PyTorch, Kineto or ROCm wrote it."""
    if category is None:
        return Kind.operator
    return _KINDS[word] if (word := category.strip().lower()) in _KINDS else Kind.other


def is_known(category: str) -> bool:
    """Return whether a category is one that PyTorch writes."""
    return (word := category.strip().lower()) in _KINDS or word in _OF_THE_PROFILER


def kind_by_name(name: str, kind: Kind) -> Kind:
    """Return the kind of an event whose category is too wide for it.

    Old versions wrote named ranges as operators; ROCm writes copies and fills as kernels.
    """
    if kind is Kind.operator and name.startswith(_RANGES):
        return Kind.annotation
    if kind is Kind.kernel and name.startswith(_COPIES):
        return Kind.copy
    if kind is Kind.kernel and name.startswith(_FILLS):
        return Kind.fill
    return kind


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
    *("ProfilerStep#", "ProfilerStep*", "enumerate(DataLoader)#", "Optimizer.step#"),
    *("Optimizer.zero_grad#", "DistributedDataParallel.forward", "phase.", "## ", "[pl]["),
    *("nccl:", "gloo:"),
)
_COPIES = (
    *("Memcpy ", "CopyHostToDevice", "CopyDeviceToHost", "CopyDeviceToDevice"),
    "__amd_rocclr_copyBuffer",
)
_FILLS = ("Memset ", "FillBuffer", "__amd_rocclr_fillBuffer")


Progress = Callable[[str, int, int], None]
"""Called with a label, what is done and what there is in all."""


class Source:
    """A file to read from its beginning to where its end was when it was opened.

    Its first bytes say whether it is gzip, not its name. ``size`` is that of the file; ``given``
    counts the bytes handed out, unpacked; ``damage`` says what is wrong with the packing.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.given = 0
        self.damage = ""
        self._progress = progress
        if path.is_dir():
            raise InputError(
                "this is a directory, not a trace", where=path, fix="Name one of its files."
            )
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
        """Return the next bytes, `n` of them or what is left; nothing at the end."""
        read = self._raw(n) if self._unpacker is None else self._unpack(n)
        self.given += len(read)
        if self._progress is not None:
            self._progress(f"reading {self.path.name}", self.size - self._left, self.size)
        return read

    def grown(self) -> int:
        """Return how many bytes the file has gained since it was opened; less than 0 if lost."""
        try:
            return self.path.stat().st_size - self.size
        except OSError:
            return -self.size

    def _unreadable(self, error: OSError) -> InputError:
        return InputError(f"the trace cannot be read: {error.strerror or error}", where=self.path)

    def _raw(self, n: int) -> bytes:
        try:
            read = self._file.read(min(n, self._left))
        except OSError as error:
            raise self._unreadable(error) from error
        self._left -= len(read)
        return read

    def _unpack(self, n: int) -> bytes:
        parts: list[bytes] = []
        missing = n
        while missing > 0 and self._unpacker is not None and not self.damage:
            packed = self._packed or self._raw(_PACKED)
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
                part = self._unpacker.decompress(packed, missing)
            except zlib.error:
                self.damage = "its packing (gzip) is damaged"
                break
            self._packed = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            missing -= len(part)
            parts.append(part)
        return b"".join(parts)


_GZIP = 31
_PACKED = 1 << 18


PIECE = 1 << 20
"""Bytes of text to decode at once."""


@dataclass(frozen=True)
class Piece:
    """Some events in a row, and the array they are from; empty where they were repaired."""

    events: Sequence[Event]
    text: bytes | bytearray | memoryview = b""

    def written_times(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the times and the durations of the events with all their digits."""
        if not self.text:
            return [e.ts for e in self.events], [e.dur for e in self.events]
        times = _TIMES.decode(self.text)
        return [e.ts for e in times], [e.dur for e in times]

    def put_right(self) -> Piece:
        """Return the same events with numbers that do not fit left out."""
        return Piece(_one_by_one(self.text)[0]) if self.text else self


@dataclass
class Decoder:
    """The events of a trace and what it says of itself.

    ``about`` is what stands before and after the events, complete when all have been given, and
    ``unclear`` where some of it could not be decoded; ``lost`` counts events that could not be,
    ``repaired`` pieces with signs that JSON does not allow; ``cut`` is a text without its end.
    """

    source: Source
    about: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    repaired: int = 0
    cut: bool = False
    unclear: bool = False

    def pieces(self) -> Iterator[Piece]:
        """Give the events, and free each piece before the next is asked for."""
        text, is_bare = self._begin()
        ended = False
        while True:
            if not ended and len(text) < PIECE:
                ended = not self._more(text)
                if not ended and len(text) < PIECE:
                    continue
            piece, used = self._guess(text, 1)
            if piece is None:
                self.repaired += _repair(text, text.rfind(b"}") + 1)
                piece, used = self._guess(text, _GUESSES)
            if piece is not None:
                yield piece
                text = _rest(text, used + 1)
                continue
            end = _scan(text)
            if (
                end.closed is not None
                and (piece := self._decode(_up_to(text, end.closed))) is not None
            ):
                yield piece
                self._after(text[end.closed + 1 :], is_bare)
                return
            if end.closed is None and end.last and not end.broken:
                piece = self._decode(_up_to(text, end.last))
                if piece is not None:
                    yield piece
                    text = _rest(text, end.last)
                    continue
            waits = end.closed is None and not end.last and not end.broken
            if waits and not ended and len(text) < _LONGEST:
                ended = not self._more(text)
                continue
            piece, used = self._save(text)
            if piece is not None:
                yield piece
                text = _rest(text, used + 1)
            elif ended:
                self._give_up(text, is_bare, end)
                return
            else:
                raise InputError(
                    f"no end of an event within {_LONGEST >> 20} MiB, after "
                    f"{self.source.given - len(text):,} bytes: not a trace, or damaged",
                    where=self.source.path,
                )

    def _more(self, text: bytearray) -> bool:
        # As much again as there is, so that a very long event is not looked at too often.
        more = self.source.read(max(PIECE, len(text)))
        text += more.lstrip(_GAP) if len(text) == 1 else more
        return bool(more)

    def _begin(self) -> tuple[bytearray, bool]:
        text = bytearray()
        searched = 0
        while True:
            more = self.source.read(PIECE)
            text += more
            if text.startswith(b"\xef\xbb\xbf"):
                del text[:3]
            first = bytes(text.lstrip()[:1])
            if first == b"[":
                return text[text.index(b"[") :], True
            if first not in (b"{", b""):
                raise self._no_trace(f"it begins with {bytes(text.lstrip()[:20])!r}")
            if found := _EVENTS.search(text, max(0, searched - 64)):
                self._learn(bytes(text[: found.end() - 1]) + b"[]}")
                return text[found.end() - 1 :], False
            searched = len(text)
            if not more or searched > _LONGEST:
                break
        if not text.strip():
            raise InputError(
                "the trace is empty", where=self.source.path, fix="Was its writing stopped?"
            )
        raise self._no_trace(
            f"there is no list of traceEvents in it{self._why_cut()}"
            if not more
            else f"there is no list of traceEvents in its first {_LONGEST >> 20} MiB"
        )

    def _no_trace(self, why: str) -> InputError:
        return InputError(
            f"this is not a trace: {why}",
            where=self.source.path,
            fix="Expected a Chrome trace, as torch.profiler's export_chrome_trace writes it.",
        )

    def _why_cut(self) -> str:
        return f", and {self.source.damage}" if self.source.damage else ""

    def _guess(self, text: bytearray, guesses: int) -> tuple[Piece | None, int]:
        found = [m.start(1) for m in _BETWEEN.finditer(text, max(0, len(text) - _NEAR))]
        if not found:
            found = [m.start(1) for m in _BETWEEN.finditer(text)]
        for comma in reversed(found[-guesses:]):
            text[comma] = _CLOSE
            view = memoryview(text)[: comma + 1]
            if (piece := self._decode(view)) is not None:
                return piece, comma
            view.release()
            text[comma] = _COMMA
        return None, 0

    def _decode(self, array: bytes | memoryview) -> Piece | None:
        try:
            return Piece(_EVENT_LIST.decode(array), array)
        except msgspec.ValidationError:
            return self._decode_each(array)
        except _UNDECODABLE:
            return None

    def _decode_each(self, array: bytes | memoryview) -> Piece | None:
        try:
            events, lost = _one_by_one(array)
        except _UNDECODABLE:
            return None
        self.lost += lost
        return Piece(events)

    def _save(self, text: bytearray) -> tuple[Piece | None, int]:
        commas = [m.start(1) for m in _BETWEEN.finditer(text)]
        events: list[Event] = []
        begin = 1
        for comma in commas:
            event = _alone(text[begin:comma])
            if event is None:
                self.lost += 1
            else:
                events.append(event)
            begin = comma + 1
        return (Piece(events), commas[-1]) if commas else (None, 0)

    def _give_up(self, text: bytearray, is_bare: bool, end: _End) -> None:
        if end.closed is not None or end.broken:
            # The array ends, so what stands last is not an event.
            self.lost += 1
            self.unclear = not is_bare
        else:
            # In a bare array the last bracket may be left out.
            self.cut = not is_bare or len(text) > 1

    def _after(self, rest: bytearray, is_bare: bool) -> None:
        while len(rest) < _LONGEST and (more := self.source.read(PIECE)):
            rest += more
        rest = rest.strip()
        if is_bare and not rest:
            return
        rest = bytearray(b"{") + rest.removeprefix(b",")
        self.cut = _scan(rest).closed is None
        self._learn(bytes(rest))
        self.unclear &= not self.cut

    def _learn(self, text: bytes) -> None:
        repaired = bytearray(text)
        _repair(repaired, len(repaired))
        for attempt in (text, bytes(repaired)):
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


class _Loose(msgspec.Struct, gc=False):
    ph: Any = None
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _MISSING
    dur: msgspec.Raw = _MISSING
    args: Any = None


class _TimesAsText(msgspec.Struct, gc=False):
    ts: msgspec.Raw = _MISSING
    dur: msgspec.Raw = _MISSING


@dataclass(frozen=True)
class _End:
    last: int
    closed: int | None = None
    broken: bool = False


_EVENT_LIST = msgspec.json.Decoder(list[ANY_EVENT])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_LOOSE = msgspec.json.Decoder(_Loose)
_TIMES = msgspec.json.Decoder(list[_TimesAsText])

_LONGEST = 64 << 20
_NEAR = 1 << 13
_GUESSES = 3
_CLOSE = ord("]")
_COMMA = ord(",")
_GAP = b", \t\r\n"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*(,)\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args)"\s*:)')
# After the array of events another key follows, or the end.
_AFTER = re.compile(rb'\s*(?:,\s*"|\}|\Z|,\s*\Z)')
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]"]', re.DOTALL)
# Between events a line break is as good as a space, and within a name it is not allowed.
_CONTROL = bytes(range(32))
_WITHOUT_CONTROL = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
_WITHOUT_BREAKS = bytes.maketrans(b"\t\n\r", b"   ")
_NO_NUMBER = re.compile(
    rb"(?<=[:,\[])(\s*)[+-]?(?:inf(?:inity)?|nan)(?:\([a-z0-9]*\))?(?=\s*[,}\]])", re.IGNORECASE
)
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|(u[dD][0-9a-fA-F]{3})|(.))",
    re.DOTALL,
)


def _repair(text: bytearray, end: int) -> bool:
    """Put right what JSON does not allow and traces have all the same; return if there was any.

    Only up to a place, because what follows may go on in the next piece.
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


def _up_to(text: bytearray, end: int) -> bytes:
    return bytes(text[:end]) + b"]"


def _rest(text: bytearray, begin: int) -> bytearray:
    return bytearray(b"[") + text[begin:].lstrip(_GAP)


def _scan(text: bytearray) -> _End:
    depth = last = 0
    for token in _TOKENS.finditer(text):
        sign = text[token.start()]
        if sign == 0x22:
            if token.end() - token.start() == 1:
                break
        elif sign in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 1 and sign == 0x7D:
                last = token.end()
            elif depth == 0:
                # Each closing bracket is two signs after its opening one.
                fits = sign == text[0] + 2 and _AFTER.match(text, token.end())
                return _End(last, token.start()) if fits else _End(last, broken=True)
    return _End(last)


def _one_by_one(array: bytes | bytearray | memoryview) -> tuple[list[Event], int]:
    events = [_tidy(raw) for raw in _RAW_LIST.decode(array)]
    whole = [event for event in events if event is not None]
    return whole, len(events) - len(whole)


def _alone(text: bytearray) -> Event | None:
    repaired = bytearray(text.strip())
    _repair(repaired, len(repaired))
    return _tidy(repaired)


def _tidy(text: msgspec.Raw | bytearray) -> Event | None:
    try:
        loose = _LOOSE.decode(text)
    except _UNDECODABLE:
        return None
    # The phase says which class it is; an unknown one is an event of no class.
    phase = _text(loose.ph)
    made = Metadata if phase in PASSED_OVER else CLASSES.get(phase, Event)
    return made(
        name="" if phase in PASSED_OVER else _text(loose.name),
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
    if not isinstance(args, Mapping):
        return WITHOUT_ARGUMENTS
    values = {}
    for known in msgspec.structs.fields(Arguments):
        if known.encode_name not in args:
            continue
        value = args[known.encode_name]
        if known.name in _NUMBERS:
            value = _whole(value)
        elif known.name in _RAW:
            value = msgspec.Raw(msgspec.json.encode(value))
        elif known.name == "stack" and value is not None:
            value = _text(value)
        if value is not None:
            values[known.name] = value
    return Arguments(**values)


_RAW = {"dims", "old_dims", "types"}
_NUMBERS = {
    *("correlation", "device", "sequence", "external", "python_id"),
    *("python_parent", "changed", "allocated", "device_type", "device_id"),
}


def _whole(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else None
