"""The bytes of a trace file, packed or not, as they were when it was opened."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from deltacell.errors import InputError

Progress = Callable[[str, int, int], None]
"""Called with a label, what is done and what there is in all."""


class Source:
    """A file to read from its beginning to where its end was at first.

    Parameters
    ----------
    path
        The file; its first bytes say whether it is packed, not its name.
    progress
        Told how far the reading is.

    Attributes
    ----------
    size
        Of the file when it was opened, in bytes, packed where it is.
    given
        How many bytes were handed out, unpacked.
    damage
        What is wrong with the packing, as a part of a sentence; empty where nothing is.
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
            raise InputError(
                f"the trace cannot be read: {error.strerror or error}", where=path
            ) from error
        self._unpacker = zlib.decompressobj(_GZIP) if packed else None
        self._packed = b""

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    def _raw(self, n: int) -> bytes:
        try:
            read = self._file.read(min(n, self._left))
        except OSError as error:
            raise InputError(
                f"the trace cannot be read: {error.strerror or error}", where=self.path
            ) from error
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
