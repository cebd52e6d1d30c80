"""The lines of a log, with bounded memory: those on paper, and those that a bar wrote over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deltacell.base.errors import InputError

LONGEST_LINE = 1 << 16  # bytes; the rest of a line is not read
LARGEST_LOG = 4 << 30
_PIECE = 1 << 20

# A new line, or the carriage return of a progress bar; syslog writes these as #012 and #015.
_LINE_END = re.compile(rb"\n|\r|#012|#015")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x08")


class LogLine(NamedTuple):
    """A line, or what stood on it at one moment if a progress bar wrote over it."""

    number: int  # from 1, as an editor counts
    text: str
    is_cut: bool  # whether it is longer than `LONGEST_LINE`


def read_lines(path: Path) -> Iterator[LogLine]:
    """Yield the lines of a file that are not empty, without escape sequences of terminals."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size > LARGEST_LOG:
                raise InputError(
                    f"the log is larger than {LARGEST_LOG:,} bytes",
                    code="log-too-large",
                    where=path,
                    fix="Cut out the part with the training: head -c 100M LOG > PART.",
                )
            number = 1
            pending = b""  # the beginning of a line, no longer than LONGEST_LINE and an end
            is_cut = False
            while piece := file.read(_PIECE):
                data = pending + piece
                start = 0
                for end in _LINE_END.finditer(data):
                    yield from _line(number, data[start : end.start()], is_cut=is_cut)
                    is_cut = False
                    number += end[0] in (b"\n", b"#012")
                    start = end.end()
                pending = data[start:]
                if len(pending) > LONGEST_LINE:
                    # The last bytes stay: they may be the beginning of an end of line.
                    pending = pending[:LONGEST_LINE] + pending[-3:]
                    is_cut = True
            yield from _line(number, pending, is_cut=is_cut)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}",
            code="unreadable",
            where=path,
            fix="A log named in a YAML file is relative to the folder of that file.",
        ) from error


def _line(number: int, data: bytes, *, is_cut: bool) -> Iterator[LogLine]:
    is_long = is_cut or len(data) > LONGEST_LINE
    text = data[:LONGEST_LINE].decode("utf-8", errors="replace")
    text = _ESCAPES.sub("", text).rstrip()
    if text:
        yield LogLine(number, text, is_long)
