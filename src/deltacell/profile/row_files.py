"""Files to which a process adds rows while it runs, each written atomically."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

import polars as pl

from deltacell.base.errors import StoreError
from deltacell.base.files import new_file

ROWS_OF_PART = 10_000  # in a file, after which the next one begins


@dataclass(frozen=True)
class _Part:
    """A file that may still grow."""

    path: Path
    content: pl.DataFrame

    def belongs_to(self, folder: Path, prefix: str) -> bool:
        """Return whether it lies in a folder, has a name with a prefix, and still exists."""
        is_same = self.path.parent == folder and self.path.name.startswith(prefix)
        return is_same and self.path.exists()


class RowFiles:
    """Rows of one kind on disk, in files of a folder with one prefix and a number each.

    Rows are added to the last file that was written, until it has `ROWS_OF_PART` rows, so that a
    run has few files.
    """

    def __init__(self, what: str) -> None:
        self.what = what  # in errors, such as "the phases"
        self._part: _Part | None = None  # the file that the next rows are added to

    def add(self, folder: Path, prefix: str, rows: pl.DataFrame) -> None:
        """Write rows to disk; if that fails, `StoreError` is raised and no file has changed."""
        part = self._part
        is_continued = part is not None and part.belongs_to(folder, prefix)
        content = rows
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if part is not None and is_continued:
                path = part.path
                content = pl.concat([part.content, rows])
            else:
                path = _new_part(folder, prefix)
            with new_file(path) as temporary:
                content.write_parquet(temporary)
        except OSError as error:
            what = f"{self.what} could not be written: {error.strerror or error}"
            fix = "Free some space; no incomplete file was left."
            raise StoreError(what, code="not-written", where=folder, fix=fix) from error
        self._part = None if len(content) >= ROWS_OF_PART else _Part(path, content)


def prefix_of(rank: int, attempt: int) -> str:
    """Return what the names of the files of a rank in an attempt begin with."""
    return f"rank{rank}-attempt{attempt}-part"


def _new_part(folder: Path, prefix: str) -> Path:
    """Return the path of the first part that does not exist."""
    names = (f"{prefix}{number}.parquet" for number in count())
    return next(folder / name for name in names if not (folder / name).exists())
