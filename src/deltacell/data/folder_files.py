"""The files of a folder with their readers, and why other files are not read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from deltacell.base.errors import InputError, PhenotypeError
from deltacell.base.text import Progress, count_text
from deltacell.cell.readers import CELL_READERS, embeddings, networks
from deltacell.cell.readers.names import Reader, UnclearColumns
from deltacell.screen.readers import SCREEN_READERS, tables
from deltacell.screen.readers.joined import IsKnown
from deltacell.screen.readers.written import WrittenScreen
from deltacell.storage.tables import ColumnNames, File

#: A file is read by the first reader that recognises it.
READERS: tuple[Reader[Any, Any], ...] = (embeddings.reader, *SCREEN_READERS, *CELL_READERS)
#: The page of the documentation on formats.
PAGE = "docs/how-to/screen.md"

_UNKNOWN_FORMAT = (
    "its format is unknown; a table (text, xlsx or Parquet; unpack a zip of several files) needs a "
    "header such as gene1,gene2,score (a screen), gene1,gene2,weight (a network), gene,fitness "
    f"(a feature) or gene,term (an annotation): {PAGE}"
)


class _Recognised(NamedTuple):
    """A file and the reader that recognised it."""

    path: Path
    reader: Reader[Any, Any]
    form: Any  # what the reader found there


class FileToRead(NamedTuple):
    """A file of one kind."""

    path: Path
    read: Callable[..., Any]  # with the options of its reader


class FolderFiles:
    """The files of a folder, each with its reader; others are left alone for a reason.

    A table with unclear columns raises, so that the user names them.

    Args:
        folder: The folder, in which files whose names begin with a point are ignored.
        columns: What the columns of some tables mean, as given by the user.
        progress: Called before a file is read, with its name, the bytes done and all bytes.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[ColumnNames],
        progress: Progress | None,
    ) -> None:
        self.folder = folder
        self.why_left_alone: dict[Path, str] = {}
        self._progress = progress
        self._bytes_done = 0
        self._files: list[_Recognised] = []
        questions = {}
        for path in sorted(_files_under(folder)):
            if path.stat().st_size == 0:
                self.why_left_alone[path] = "it is empty"
                continue
            file = File(path, columns)
            recognised = _recognised(file)
            if recognised is not None:
                self._files.append(recognised)
                continue
            why_no_screen = tables.why_no_screen(file)
            unclear = tables.unclear(file) or networks.unclear(file)
            if why_no_screen is not None:
                self.why_left_alone[path] = f"{why_no_screen}: {PAGE}"
            elif unclear is None:
                self.why_left_alone[path] = _UNKNOWN_FORMAT
            else:
                questions[path.name] = _question(unclear)
        if questions:
            raise InputError(
                f"the columns of {count_text(len(questions), 'table')} are unknown, so nothing was "
                "written",
                code="unknown-columns",
                where=folder,
                fix="\n  ".join(f"{name}: {question}." for name, question in questions.items()),
                files=list(questions),
            )
        names = [reader.name for reader in READERS]
        self._files.sort(key=lambda file: names.index(file.reader.name))
        self._all_bytes = sum(file.path.stat().st_size for file in self._files)

    def of(self, kind: str, *, only_one: bool = False) -> list[FileToRead]:
        """Return the files that give genes, edges, screens or another kind of content.

        With `only_one`, only the file of the first reader that has one; two of these are an error.
        """
        files = [file for file in self._files if file.reader.gives == kind]
        if only_one:
            files = self._only_one(files, kind)
        return [FileToRead(file.path, partial(self._read, file)) for file in files]

    def _only_one(self, files: Sequence[_Recognised], kind: str) -> list[_Recognised]:
        """Return the first file, and leave the others alone; raise if they are of one format."""
        same = [file.path.name for file in files if file.reader is files[0].reader]
        if len(same) > 1:
            message = f"several files contain the {kind}; keep one of {', '.join(same)}"
            raise InputError(message, code="several-files", where=self.folder)
        for file in files[1:]:
            self.why_left_alone[file.path] = f"the {kind} are from {files[0].path.name}"
        return list(files[:1])

    def read(self, kind: str, **options: Any) -> list[Any]:
        """Read all files of one kind, each of which gives a list."""
        contents: list[Any] = []
        for file in self.of(kind):
            contents += file.read(**options)
        return contents

    def read_screens(self, phenotype: str | None, is_known: IsKnown | None) -> list[WrittenScreen]:
        """Read the screens; a file that lacks the requested phenotype is left alone.

        Raise if all of them lack it, because the import would be without a screen.
        """
        screens: list[WrittenScreen] = []
        lacking: dict[Path, PhenotypeError] = {}
        for file in self.of("screens"):
            try:
                screens += file.read(phenotype=phenotype, is_known=is_known)
            except PhenotypeError as error:
                lacking[file.path] = error
                self.why_left_alone[file.path] = error.message
        if lacking and not screens:
            raise self._without_phenotype(phenotype, lacking)
        return screens

    def _without_phenotype(
        self,
        phenotype: str | None,
        lacking: dict[Path, PhenotypeError],
    ) -> PhenotypeError:
        """Return the error that no screen has the requested phenotype."""
        available = chain.from_iterable(error.phenotypes for error in lacking.values())
        names = sorted(set(available))
        reasons = [f"{path.name}: {error.message}." for path, error in lacking.items()]
        message = f"no file has the phenotype '{phenotype}', only {' and '.join(names)}"
        fix = "\n  ".join([*reasons, f"Choose --phenotype {' or '.join(names)}."])
        return PhenotypeError(message, names, where=self.folder, fix=fix)

    def _read(self, file: _Recognised, **options: Any) -> Any:
        if self._progress is not None:
            self._progress(file.path.name, self._bytes_done, self._all_bytes)
        self._bytes_done += file.path.stat().st_size
        return file.reader.make(file.form, **options)

    def left_alone(self) -> dict[str, str]:
        """Return the files that are not read, relative to the folder, and why."""
        paths = sorted(self.why_left_alone)
        return {str(path.relative_to(self.folder)): self.why_left_alone[path] for path in paths}


def _recognised(file: File) -> _Recognised | None:
    """Return a file with the first reader that recognises it."""
    for reader in READERS:
        form = reader.find(file)
        if form is not None:
            return _Recognised(file.path, reader, form)
    return None


def _question(unclear: UnclearColumns) -> str:
    """Return what the user has to say of a table."""
    named = ",".join(f"gene{number}={name}" for number, name in enumerate(unclear.genes, 1))
    if len(unclear.genes) == 1:
        named = f"genes={unclear.genes[0]}"
        return (
            f"it has pairs in one column and a number per row, and {unclear.reason}. Name its "
            f'columns: --columns "{named},score={unclear.number}"'
        )
    return (
        f"it has genes and a number per row, and {unclear.reason}. Name its columns: --columns "
        f'"{named},score={unclear.number}" for a screen, weight={unclear.number} for a network'
    )


def _files_under(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders except hidden ones."""
    if not folder.is_dir():
        raise InputError("not a folder", code="not-a-folder", where=folder)

    def refuse(error: OSError) -> None:
        message = f"the folder cannot be read: {error.strerror}"
        raise InputError(message, code="unreadable-folder", where=error.filename) from error

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(where, name) for name in names if not name.startswith(".")):
            if re.search("[\ud800-\udfff]", path.name):
                message = "the file name is not UTF-8"
                raise InputError(message, code="file-name", where=path, fix="Rename it.")
            if path.is_file():
                yield path
