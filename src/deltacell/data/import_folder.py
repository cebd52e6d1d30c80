"""The import of a folder of source files as one cell and its screens."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from deltacell import storage
from deltacell.base.errors import InputError, PhenotypeError
from deltacell.base.files import write_json
from deltacell.base.text import Progress
from deltacell.cell import Cell, Genes
from deltacell.cell.genes import UNKNOWN, OnUnknown
from deltacell.cell.readers import CELL_READERS, networks
from deltacell.cell.readers.damage import damaged_names
from deltacell.cell.readers.features import NoFeatureError
from deltacell.cell.readers.names import Reader, in_capitals, is_systematic
from deltacell.cell.readers.networks import NamedEdges
from deltacell.screen.readers import SCREEN_READERS, tables
from deltacell.screen.readers.joined import IsKnown, may_be_joined, several_genes
from deltacell.screen.readers.written import JOINED_NAMES, WrittenScreen
from deltacell.screen.screen import Screen
from deltacell.screen.split import Split
from deltacell.storage.provenance import Source
from deltacell.storage.tables import ColumnNames, File

Parts = tuple[list[list[str]], list[str]]
"""Gene sets by name, and the part of a split of each."""

#: A file is read by the first reader that recognises it.
READERS: tuple[Reader[Any, Any], ...] = (*SCREEN_READERS, *CELL_READERS)
#: The file of an import with the counts of every source.
ACCOUNT = "account.json"

_NO_GENES = (
    "No file lists the genes, so they are all names in networks and screens; two names of one gene "
    "count as two genes. To resolve names, put a gene file into the folder (for yeast: deltacell "
    "data get sgd-features --unchecked --out FOLDER)."
)
_PAGE = "docs/how-to/screen.md"
_UNKNOWN_FORMAT = (
    "its format is unknown; a table (text, xlsx or Parquet; unpack a zip of several files) needs a "
    "header such as gene1,gene2,score (a screen), gene1,gene2,weight (a network), gene,fitness "
    f"(a feature) or gene,term (an annotation): {_PAGE}"
)

_NO_GENE_OF_THE_CELL = (
    "none of its names is a gene of the cell, first '{}'. Names of proteins need a TFLink network, "
    "or a gene table with a column of aliases"
)

# By the key of a note of a source.
_WARNINGS = {
    "spreadsheet_damage": "names that a spreadsheet has changed, in rows that were dropped: {}.",
    JOINED_NAMES: "names of several genes in one field are split only with --columns (keys genes1, "
    "genes2, …), because the table has another column of genes; rows were dropped. Names: {}.",
    "invisible_characters_removed": "{} invisible characters were removed.",
    "characters_in_another_encoding": "{} characters in another encoding than the rest were read "
    "as Windows-1252; check names with special characters.",
    "unreadable_characters": "{} characters could not be read and are now \ufffd.",
}


@dataclass(frozen=True)
class Imported:
    """A cell and screens over its genes, by study, with named splits of these screens."""

    cell: Cell
    screens: Mapping[str, Screen]
    left_alone: Mapping[str, str] = field(default_factory=dict)  # files not read, and why
    notes: Sequence[str] = ()
    splits: Mapping[str, Parts] = field(default_factory=dict)

    def account(self) -> dict[str, Any]:
        screens = [source for screen in self.screens.values() for source in screen.sources]
        return {
            "sources": [s.to_json() for s in [*self.cell.sources, *screens]],
            "left_alone": [{"file": file, "why": why} for file, why in self.left_alone.items()],
            "notes": list(self.notes),
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write ``path/cell``, ``path/screens/NAME`` and the account, all of it or nothing."""
        for name in self.screens:
            if not name or Path(name).name != name or name.startswith("."):
                what = f"'{name}' cannot be the name of a screen and its folder"
                raise InputError(what, code="screen-name")
        account = self.account()
        with storage.new_directory(path, "import", overwrite=overwrite) as temporary:
            self.cell.save(temporary / "cell")
            for name, screen in self.screens.items():
                screen.save(temporary / "screens" / name)
            for name, (sets, parts) in self.splits.items():
                table = pl.DataFrame({"genes": sets, "part": parts}).to_arrow()
                storage.write(temporary / "splits" / name, "parts", {"sets": table}, {})
            write_json(temporary / ACCOUNT, account, what="the account")
            names = {"screens": list(self.screens), "splits": list(self.splits)}
            meta = {"files": [ACCOUNT], **names, **account}
            del meta["sources"]
            storage.write_manifest(temporary, "import", {}, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Imported:
        path = Path(path)
        meta = storage.read(path, "import").meta
        cell = Cell.load(path / "cell")
        return cls(
            cell,
            {name: Screen.load(path / "screens" / Path(name).name) for name in meta["screens"]},
            {left["file"]: left["why"] for left in meta["left_alone"]},
            meta["notes"],
            {n: read_parts(path / "splits" / n, cell.genes) for n in meta.get("splits", ())},
        )


def read_parts(path: str | os.PathLike[str], genes: Genes) -> Parts:
    """Return the gene sets and their parts from an imported split or a table of these genes."""
    if not Path(path).is_dir():
        parts: Parts = tables.split_reader.read(path, is_known=genes.is_known)[0]
        return parts
    sets = storage.read(path, "parts").parts["sets"]
    return sets["genes"].to_pylist(), sets["part"].to_pylist()


def open_screen(path: str | os.PathLike[str], name: str | None = None) -> Screen:
    """Open a screen, or a screen of an import by name; optional if there is only one."""
    path = Path(path)
    manifest = storage.read_manifest(path)
    if manifest["kind"] != "import" and name is None:
        return Screen.load(path)
    names = manifest["meta"].get("screens", ())
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        what = f"it has no screen '{name}'" if name else f"it has {len(names)} screens"
        fix = f"Choose from: {', '.join(names) or 'none'}."
        raise InputError(what, code="unknown-screen", where=path, fix=fix)
    return Screen.load(path / "screens" / Path(str(name)).name)


def import_folder(
    folder: str | os.PathLike[str],
    *,
    on_unknown: OnUnknown = "drop",
    phenotype: str | None = None,
    columns: Sequence[str] = (),
    progress: Progress | None = None,
) -> Imported:
    """Read every file of a folder whose content is recognised.

    The genes come from an SGD feature file, otherwise from STRING protein names or a gene table,
    otherwise from the networks and screens.
    """
    files = _Files(Path(folder), [ColumnNames.parse(given) for given in columns], progress)
    built = _Built([], [_NO_GENES])
    genes: Genes | None = None
    for path, read in files.of("genes", only_one=True):
        genes, source = read()
        built = _Built([source], [f"The genes are from {path.name}."])
    for path, _ in files.of("numbers of genes"):
        files.why[path] = "it is the gene list of the STRING adjacency files next to it"
    edges = files.read("edges")
    is_known = _known_names(genes, edges)
    screens = files.read_screens(phenotype, is_known)
    metabolisms = [read() for _, read in files.of("metabolism", only_one=True)]
    terms = files.read("terms")
    if genes is None or on_unknown == "add":
        genes = Genes([]) if genes is None else genes
        named = [n for written in (*edges, *metabolisms, *screens) for n in written.gene_names]
        genes = genes.extended(_new_genes(genes, named))
    if not len(genes):
        unread = [f"{file}: {why}" for file, why in files.unread().items()]
        fix = "\n  ".join([*unread[:5], "`deltacell data get` downloads networks and screens."])
        raise InputError("no file contains a gene name", code="no-genes", where=folder, fix=fix)
    policy: Literal["error", "drop"] = "error" if on_unknown == "error" else "drop"
    for written in edges:
        built.add(built.relations, *written.on(genes, policy))
    metabolism = None
    for written in metabolisms:
        metabolism, source = written.on(genes, policy)
        built.sources.append(source)
    for path, read in files.of("feature"):
        try:
            built.add(built.features, *read(genes=genes, on_unknown=policy))
        except NoFeatureError as error:
            files.why[path] = f"{error.message}. {error.fix or ''}".strip()
            built.notes.append(f"{path.name}: {error.message}.")
    known_proteins = [written.proteins for written in edges if written.proteins is not None]
    proteins = pl.concat(known_proteins).unique(maintain_order=True) if known_proteins else None
    for written in terms:
        annotation, source = written.on(genes, policy, proteins)
        if annotation.known.any():
            built.add(built.annotations, annotation, source)
        else:
            first = next(iter(written.rows["gene"].drop_nulls()), "")
            files.why[written.table.path] = _NO_GENE_OF_THE_CELL.format(first)
    parts = built.relations, metabolism, built.features, built.annotations.values()
    cell = Cell(genes, *parts, sources=built.sources)
    by_study: dict[str, list[Screen]] = {}
    for one in screens:
        by_study.setdefault(one.study, []).append(one.on(genes, policy))
    studies = {study: Screen.concat(parts) for study, parts in sorted(by_study.items())}
    splits = _named_splits(screens, files.read("parts", is_known=genes.is_known), studies)
    notes = built.notes
    for one in screens:
        if one.reader == tables.reader.name:
            said = f"{one.path.name} was read as a screen of {len(one):,} genotypes. If it is a "
            notes.append(f"{said}network, rename its number column to weight.")
    sources = [*built.sources, *(source for study in studies.values() for source in study.sources)]
    notes += [f"{source.file}: {note}" for source in sources for note in _warnings(source)]
    notes += [f"{name} has a split of its own: train with split.method=named." for name in splits]
    if not cell.relations:
        notes.append("There is no network; see docs/how-to/networks.md for the formats.")
    if not studies:
        notes.append(f"There is no screen; see {_PAGE} for the formats.")
    return Imported(cell, studies, files.unread(), notes, splits)


def _warnings(source: Source) -> Iterator[str]:
    """Yield what a reader of a file should look at, in words."""
    for key, about in _WARNINGS.items():
        if key in source.notes:
            value = source.notes[key]
            yield about.format(f"{value:,}" if isinstance(value, int) else value)


def _new_genes(genes: Genes, names: Sequence[str]) -> list[str]:
    """Return the names that become genes: unknown ones that are neither damaged nor several."""
    not_genes = set(damaged_names(Counter(names)))
    given = {name.strip().upper() for name in names}

    def is_gene(name: str) -> bool:
        # A name of several genes is itself among the names.
        is_single = not may_be_joined(name)
        is_given = is_single and name.upper() in given
        return is_given or genes.is_known(name) or is_systematic(name)

    not_genes.update(several_genes(set(names), is_gene))
    unknown = (n for n, i in zip(names, genes.resolve(names), strict=True) if i == UNKNOWN)
    return [in_capitals(name.strip()) for name in unknown if name not in not_genes]


def _known_names(genes: Genes | None, edges: Sequence[NamedEdges]) -> IsKnown | None:
    """Return whether a name is a gene, by the list of genes or the networks; None without both."""
    if genes is not None:
        return genes.is_known
    if not edges:
        return None
    names = {name.strip().upper() for written in edges for name in written.gene_names}
    return lambda name: name.upper() in names


@dataclass
class _Built:
    """The parts of a cell under unique names, with their sources and notes."""

    sources: list[Source] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    relations: dict[str, Any] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)

    def add(self, parts: dict[str, Any], part: Any, source: Source) -> None:
        for one in parts.values() if parts is self.features else ():
            # Programs differ in how they round numbers.
            near: Any = {"rtol": 1e-5, "atol": 1e-7, "equal_nan": True}
            if one.columns == part.columns and np.allclose(one.values, part.values, **near):
                first = next(s.file for s in self.sources if s.into == one.name)
                raise NoFeatureError(f"it is the same feature as {first}", code="same-feature")
        taken = parts if parts is self.relations else {**self.features, **self.annotations}
        numbered = (f"{part.name}_{number}" for number in count(2))
        name = next(name for name in chain([part.name], numbered) if name not in taken)
        if name != part.name:
            self.notes.append(f"{source.file} is named '{name}', as '{part.name}' exists.")
        parts[name] = replace(part, name=name)
        self.sources.append(replace(source, into=name))


class _Files:
    """The files of a folder with their readers, and why other files are not read."""

    def __init__(
        self,
        folder: Path,
        columns: Sequence[ColumnNames],
        progress: Progress | None,
    ) -> None:
        self.folder, self._progress, self._done = folder, progress, 0
        self.why: dict[Path, str] = {}
        self._found: list[tuple[Path, Reader[Any, Any], Any]] = []
        asked = {}
        for path in sorted(_files_under(folder)):
            if path.stat().st_size == 0:
                self.why[path] = "it is empty"
                continue
            file = File(path, columns)
            tried = ((reader, reader.find(file)) for reader in READERS)
            reader, form = next((one for one in tried if one[1]), (None, None))
            if reader is not None:
                self._found.append((path, reader, form))
            elif found_unclear := tables.unclear(file) or networks.unclear(file):
                why, genes, number = found_unclear
                named = ",".join(f"gene{n}={name}" for n, name in enumerate(genes, 1))
                asked[path.name] = (
                    f"it has genes and a number per row, and {why}. Name its columns: --columns "
                    f'"{named},score={number}" for a screen, weight={number} for a network'
                )
            else:
                self.why[path] = _UNKNOWN_FORMAT
        if asked:
            raise InputError(
                f"the columns of {len(asked)} tables are unknown, so nothing was written",
                code="unknown-columns",
                where=folder,
                fix="\n  ".join(f"{name}: {question}." for name, question in asked.items()),
                files=list(asked),
            )
        names = [reader.name for reader in READERS]
        self._found.sort(key=lambda one: names.index(one[1].name))
        self._total = sum(path.stat().st_size for path, *_ in self._found)

    def of(self, gives: str, *, only_one: bool = False) -> list[tuple[Path, Callable[..., Any]]]:
        """Return the files of one kind and a function to read each.

        With `only_one`, only the file of the first reader that has one; two of these are an error.
        """
        mine = [one for one in self._found if one[1].gives == gives]
        if only_one:
            same = [path.name for path, reader, _ in mine if reader is mine[0][1]]
            if len(same) > 1:
                what = f"several files contain the {gives}; keep one of {', '.join(same)}"
                raise InputError(what, code="several-files", where=self.folder)
            self.why |= {p: f"the {gives} are from {mine[0][0].name}" for p, *_ in mine[1:]}
            mine = mine[:1]
        return [(path, partial(self._read, path, reader, form)) for path, reader, form in mine]

    def read(self, gives: str, **options: Any) -> list[Any]:
        return [item for _, read in self.of(gives) for item in read(**options)]

    def read_screens(self, phenotype: str | None, is_known: IsKnown | None) -> list[WrittenScreen]:
        """Read the screens; a file that lacks the requested phenotype is left alone.

        Raise if all of them lack it, because the import would be without a screen.
        """
        screens: list[WrittenScreen] = []
        lacking: dict[Path, PhenotypeError] = {}
        for path, read in self.of("screens"):
            try:
                screens += read(phenotype=phenotype, is_known=is_known)
            except PhenotypeError as error:
                lacking[path] = error
                self.why[path] = error.message
        if lacking and not screens:
            available = sorted({name for e in lacking.values() for name in e.phenotypes})
            reasons = [f"{path.name}: {error.message}." for path, error in lacking.items()]
            what = f"no file has the phenotype '{phenotype}', only {' and '.join(available)}"
            fix = "\n  ".join([*reasons, f"Choose --phenotype {' or '.join(available)}."])
            raise PhenotypeError(what, available, where=self.folder, fix=fix)
        return screens

    def _read(self, path: Path, reader: Reader[Any, Any], form: Any, **options: Any) -> Any:
        if self._progress is not None:
            self._progress(path.name, self._done, self._total)
        self._done += path.stat().st_size
        return reader.make(form, **options)

    def unread(self) -> dict[str, str]:
        return {str(path.relative_to(self.folder)): self.why[path] for path in sorted(self.why)}


def _files_under(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders except hidden ones."""
    if not folder.is_dir():
        raise InputError("not a folder", code="not-a-folder", where=folder)

    def refuse(error: OSError) -> None:
        what = f"the folder cannot be read: {error.strerror}"
        raise InputError(what, code="unreadable-folder", where=error.filename) from error

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(where, name) for name in names if not name.startswith(".")):
            if re.search("[\ud800-\udfff]", path.name):
                what = "the file name is not UTF-8"
                raise InputError(what, code="file-name", where=path, fix="Rename it.")
            if path.is_file():
                yield path


def _named_splits(
    written: Sequence[WrittenScreen],
    files: Sequence[Parts],
    screens: Mapping[str, Screen],
) -> dict[str, Parts]:
    """Return the named split of each screen that has one, and check it."""
    splits = {}
    for study, screen in screens.items():
        named = [*(one.split for one in written if one.study == study), *files]
        sets, parts = (list(chain.from_iterable(each)) for each in zip(*named, strict=True))
        if sets:
            Split.named(screen, sets, parts)
            splits[study] = sets, parts
    return splits
