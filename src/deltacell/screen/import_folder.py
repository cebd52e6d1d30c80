"""A folder of source files to one cell and its screens."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from deltacell import store
from deltacell.cell import Annotation, Cell, Feature, Genes, Relation
from deltacell.cell import readers as cell_readers
from deltacell.cell.genes import UNKNOWN, OnUnknown
from deltacell.cell.readers import NoFeatureError, edge_list, relation_of, sbml, string_genes
from deltacell.cell.readers import terms as term_readers
from deltacell.cell.readers.features import is_feature_table
from deltacell.cell.readers.names import first_line
from deltacell.counts import Source
from deltacell.errors import InputError, PhenotypeError, did_you_mean
from deltacell.screen import readers as screen_readers
from deltacell.screen.readers import WrittenScreen, tables
from deltacell.screen.screen import Screen
from deltacell.screen.split import Split
from deltacell.sheet import ColumnNames, sheets
from deltacell.table import holds_several_files, peek

Progress = Callable[[str, int, int], None]
#: The file of an import that says what became of every source.
ACCOUNT = "account.json"

_SPLIT = "split"
_PAGE = "docs/how-to/screen.md"


@dataclass(frozen=True)
class LeftAlone:
    """A file that was not read, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class Imported:
    """A cell and screens over its genes, by study, with named splits of these screens.

    A split is a table of gene sets (lists of systematic names) and their parts.
    """

    cell: Cell
    screens: Mapping[str, Screen]
    left_alone: Sequence[LeftAlone] = ()
    notes: Sequence[str] = ()
    splits: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    def account(self) -> dict[str, Any]:
        """Return what became of every file."""
        screens = [source for screen in self.screens.values() for source in screen.sources]
        return {
            "sources": [s.to_json() for s in [*self.cell.sources, *screens]],
            "left_alone": [vars(left) for left in self.left_alone],
            "notes": list(self.notes),
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write ``path/cell``, ``path/screens/NAME`` and the account, all of it or nothing."""
        for name in self.screens:
            if not name or Path(name).name != name or name.startswith("."):
                raise InputError(
                    f"'{name}' cannot be the name of a screen: it names its folder",
                    code="screen-name",
                )
        account = self.account()
        with store.new_directory(path, "import", overwrite=overwrite) as temporary:
            self.cell.save(temporary / "cell")
            for name, screen in self.screens.items():
                screen.save(temporary / "screens" / name)
            for name, parts in self.splits.items():
                store.write(temporary / "splits" / name, "parts", {"sets": parts.to_arrow()}, {})
            text = json.dumps(account, indent=1, ensure_ascii=False)
            (temporary / ACCOUNT).write_text(text + "\n", encoding="utf-8")
            meta = {
                "files": [ACCOUNT],
                "screens": list(self.screens),
                "left_alone": account["left_alone"],
                "notes": account["notes"],
                "splits": list(self.splits),
            }
            store.write_manifest(temporary, "import", {}, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Imported:
        """Open what `save` wrote."""
        path = Path(path)
        meta = store.read(path, "import").meta
        splits = {name: read_parts(path / "splits" / name) for name in meta.get("splits", ())}
        return cls(
            Cell.load(path / "cell"),
            {name: Screen.load(path / "screens" / Path(name).name) for name in meta["screens"]},
            [LeftAlone(**left) for left in meta["left_alone"]],
            meta["notes"],
            {
                n: pl.DataFrame({"genes": sets, "part": parts})
                for n, (sets, parts) in splits.items()
            },
        )


def read_parts(path: str | os.PathLike[str]) -> tuple[list[list[str]], list[str]]:
    """Return gene sets and their parts: of an imported split, or of a table that names them."""
    if not Path(path).is_dir():
        return tables.read_parts(path)
    sets = store.read(path, "parts").parts["sets"]
    return sets["genes"].to_pylist(), sets["part"].to_pylist()


def open_screen(path: str | os.PathLike[str], name: str | None = None) -> Screen:
    """Open a screen, or a screen of an import; its name is not needed if there is only one."""
    path = Path(path)
    manifest = store.read_manifest(path)
    if manifest["kind"] != "import":
        if name is not None:
            raise InputError(
                f"a screen '{name}' was asked for, and this is a {manifest['kind']}, not an import",
                code="not-an-import",
                where=path,
                fix="Leave out the name (--screen), or give the import.",
            )
        return Screen.load(path)
    names = manifest["meta"]["screens"]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        raise InputError(
            "which of its screens is meant?"
            if name is None
            else f"it has no screen '{name}'{did_you_mean(name, names)}",
            code="unknown-screen",
            where=path,
            fix=f"Give one of {', '.join(names) or 'none'} (--screen NAME).",
        )
    return Screen.load(path / "screens" / Path(str(name)).name)


def import_folder(
    folder: str | os.PathLike[str],
    *,
    on_unknown: OnUnknown = "drop",
    phenotype: str | None = None,
    columns: Sequence[str] = (),
    progress: Progress | None = None,
) -> Imported:
    """Read every file of a folder that is recognised by its content.

    The genes are those of an SGD feature file; without one, of STRING's protein names; without
    either, all that the networks and screens name.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            "not a folder" if folder.exists() else "no such folder",
            code="not-a-folder",
            where=folder,
            fix="Give the folder that holds the source files.",
        )
    names = [ColumnNames.parse(given) for given in columns]
    files = _Files(folder, progress, names)
    genes, gene_sources, gene_note = _read_genes(files)
    edges = [
        e for reader in cell_readers.EDGE_READERS for e in files.read_each(reader.NAME, reader.read)
    ]
    edges += files.read_each(edge_list.NAME, partial(edge_list.read, columns=names))
    for path in files.of(string_genes.NAME):
        files.why[path] = "it numbers the genes of the STRING adjacency files beside it"
    files.refuse_several(sbml.NAME, "hold a metabolism")
    metabolisms = files.read(sbml.NAME, sbml.read)

    def screen(read: Callable[..., Any], path: Path) -> Any:
        try:
            return read(path, phenotype=phenotype)
        except PhenotypeError:
            return read(path)

    screens: list[WrittenScreen] = [
        written
        for reader in screen_readers.SCREEN_READERS
        for written in files.read(reader.NAME, partial(screen, reader.read))
    ]
    own = partial(tables.read, columns=names)
    screens += files.read_each(tables.NAME, partial(screen, own))
    terms = _read_terms(files)
    if genes is None or on_unknown == "add":
        known = Genes([]) if genes is None else genes
        named = [
            *(n for e in edges for n in cell_readers.names_of(e)),
            *(n for m in metabolisms for n in m.gene_names),
            *(n for s in screens for n in s.gene_names),
        ]
        index = known.resolve(named).index
        missing = (n for n, i in zip(named, index, strict=True) if i == UNKNOWN)
        genes = known.extended(cell_readers.in_capitals(n.strip()) for n in missing)
        if not gene_sources:
            gene_note = _note_on_names(genes)
    if not len(genes):
        unread = [f"{x.file}: {x.why}" for x in files.unread()[:5]]
        hint = "Put networks or screens there; `deltacell data get` fetches some."
        raise InputError(
            "no file of the folder names a gene",
            code="no-genes",
            where=folder,
            fix="\n  ".join([*unread, hint]),
        )
    policy: Literal["error", "drop"] = "error" if on_unknown == "error" else "drop"
    built = _Built(genes, policy, [*gene_sources], [gene_note])
    for written in edges:
        built.add_relation(written)
    for found in metabolisms:
        metabolism, source = found.on(genes, policy)
        built.sources.append(source)
    built.read_features(files)
    for written_terms in terms:
        annotation, source = written_terms.on(genes, policy)
        name = _free(annotation.name, [*built.features, *built.annotations])
        built.annotations[name] = annotation.renamed(name)
        built.sources.append(replace(source, into=name))
    cell = Cell(
        genes,
        list(built.relations.values()),
        metabolism if metabolisms else None,
        list(built.features.values()),
        list(built.annotations.values()),
        sources=built.sources,
    )
    by_study: dict[str, list[Screen]] = {}
    for one in screens:
        by_study.setdefault(one.study, []).append(one.on(genes, policy))
    studies = {study: Screen.concat(parts) for study, parts in sorted(by_study.items())}
    splits = _build_splits(screens, files.read(_SPLIT, tables.read_parts), studies)
    notes = built.notes
    notes += [
        f"{one.path.name} was read as a screen of {len(one):,} genotypes. If it is a network, call "
        "its number weight."
        for one in screens
        if one.reader == tables.NAME
    ]
    notes += [f"The split of {name} is named: train with split.method=named." for name in splits]
    if not cell.relations:
        notes.append("There is no network: docs/how-to/networks.md says what is read as one.")
    if not studies:
        notes.append(f"There is no screen to train on: {_PAGE} says what is read as one.")
    return Imported(cell, studies, files.unread(), notes, splits)


def why_unread(path: str | os.PathLike[str]) -> str:
    """Return why no reader recognises a file that is not empty, and what to do about it."""
    path = Path(path)
    if _is_other_spreadsheet(path):
        return "it is a spreadsheet of another kind; save it as xlsx or CSV"
    if holds_several_files(path):
        return "it is a zip of several files; unpack it to have them read"
    found = sheets(path)
    named = ", ".join(sheet.name for sheet in found if sheet.name)
    if named:
        return f"none of its sheets ({named}) is a table of genes with a header as in {_PAGE}"
    head = peek(path)
    if any("\0" in line for line in head):
        return "it is not text, and of no known format"
    if first_line(head).lstrip()[:1] in ("{", "["):
        return "it is JSON, of no known format"
    for sheet in found:
        width = len(sheet.rows[0])
        header = ["gene", *(f"value {chr(97 + i % 26)}{i}" for i in range(width - 1))]
        if len(sheet.rows) > 1 and is_feature_table([header, *sheet.rows]):
            return (
                "it has genes and numbers and no header; put one above it, such as gene,fitness: "
                + _PAGE
            )
    return (
        "its content is of no known format; a table needs a header such as gene1,gene2,score "
        "(a screen), gene1,gene2,weight (a network), gene,fitness (a feature) or gene,term (an "
        f"annotation): {_PAGE}"
    )


class _Files:
    """The files of a folder by the reader that recognises them, and why others are not read."""

    def __init__(
        self, folder: Path, progress: Progress | None, columns: Sequence[ColumnNames]
    ) -> None:
        self.folder, self._progress = folder, progress
        self.paths = sorted(_files_under(folder))
        self.why: dict[Path, str] = {}
        self._reader: dict[Path, str | None] = {}
        self._total, self._done = sum(p.stat().st_size for p in self.paths), 0
        asked: dict[str, str] = {}
        for path in self.paths:
            if path.stat().st_size == 0:
                self._reader[path], self.why[path] = None, "it is empty"
                continue
            self._reader[path] = screen_readers.recognise(path, columns) or (
                _SPLIT if tables.is_split(path) else cell_readers.recognise(path, columns)
            )
            if self._reader[path] is None:
                question = tables.asks(path) or edge_list.asks(path)
                self.why[path] = question or why_unread(path)
                if question:
                    asked[path.name] = question
        if asked:
            raise InputError(
                f"the columns of {len(asked)} tables are unknown, so nothing was written",
                code="unknown-columns",
                where=folder,
                fix="\n  ".join(f"{name}: {question}." for name, question in asked.items()),
                files=list(asked),
            )

    def of(self, reader: str) -> list[Path]:
        return [p for p in self.paths if self._reader[p] == reader]

    def refuse_several(self, reader: str, what: str) -> None:
        paths = self.of(reader)
        if len(paths) > 1:
            raise InputError(
                f"several files {what}: {', '.join(p.name for p in paths)}",
                code="several-files",
                where=self.folder,
                fix="Keep one of them in the folder.",
            )

    def read(self, reader: str, read: Callable[[Path], Any]) -> list[Any]:
        """Read all files of a reader."""
        return [self.read_one(path, read) for path in self.of(reader)]

    def read_each(self, reader: str, read: Callable[[Path], list[Any]]) -> list[Any]:
        """Read all files of a reader that returns several things per file."""
        return [item for items in self.read(reader, read) for item in items]

    def read_one(self, path: Path, read: Callable[[Path], Any]) -> Any:
        if self._progress is not None:
            self._progress(path.name, self._done, self._total)
        found = read(path)
        self._done += path.stat().st_size
        return found

    def unread(self) -> list[LeftAlone]:
        return [
            LeftAlone(str(p.relative_to(self.folder)), self.why[p])
            for p in self.paths
            if p in self.why
        ]


@dataclass
class _Built:
    """The parts of a cell, each under a name that no other has, and what to say of them."""

    genes: Genes
    policy: Literal["error", "drop"]
    sources: list[Source]
    notes: list[str]
    relations: dict[str, Relation] = field(default_factory=dict)
    features: dict[str, Feature] = field(default_factory=dict)
    annotations: dict[str, Annotation] = field(default_factory=dict)

    def add_relation(self, written: cell_readers.NamedEdges) -> None:
        relation, source = relation_of(written, self.genes, self.policy)
        name = self._named(relation.name, self.relations, written.path)
        if written.weight is not None and (np.asarray(written.weight) < 0).any():
            self.notes.append(
                f"{written.path.name} was read as a network, and some weights are below 0. If "
                "these are scores of a screen, take it out of the folder, or models will see what "
                f"they are to predict: {_PAGE}."
            )
        self.relations[name] = relation.renamed(name)
        self.sources.append(source)

    def read_features(self, files: _Files) -> None:
        """Read the features; of files that hold the same one, the first is kept."""
        file_of: dict[str, str] = {}
        for reader in cell_readers.FEATURE_READERS:
            read = partial(reader.read, genes=self.genes, on_unknown=self.policy)
            for path in files.of(reader.NAME):
                try:
                    feature, source = files.read_one(path, read)
                except NoFeatureError as error:
                    files.why[path] = f"{error.what}. {error.fix or ''}".strip()
                    self.notes.append(f"{path.name} holds no feature of this cell: {error.what}.")
                    continue
                same = next((n for n, f in self.features.items() if _same(f, feature)), None)
                if same is not None:
                    why = f"holds the same feature as {file_of[same]}"
                    files.why[path] = f"it {why}"
                    self.notes.append(f"{path.name} {why}, which was kept.")
                    continue
                name = self._named(feature.name, self.features, path)
                self.features[name], file_of[name] = feature.renamed(name), source.file
                self.sources.append(replace(source, into=name))

    def _named(self, name: str, taken: Collection[str], path: Path) -> str:
        free = _free(name, taken)
        if free != name:
            self.notes.append(f"{path.name} is called '{free}', as there is another '{name}'.")
        return free


def _free(name: str, taken: Collection[str]) -> str:
    free, number = name, 2
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def _same(one: Feature, other: Feature) -> bool:
    """Whether two features are the same table, saved by programs that round differently."""
    return one.columns == other.columns and np.allclose(
        one.values, other.values, rtol=1e-5, atol=1e-7, equal_nan=True
    )


def _files_under(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders but hidden ones; all must be readable."""

    def refuse(error: OSError) -> None:
        raise InputError(
            f"the folder cannot be read: {error.strerror}",
            code="unreadable-folder",
            where=error.filename,
        ) from error

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(where, name) for name in names if not name.startswith(".")):
            if any("\ud800" <= character <= "\udfff" for character in path.name):
                raise InputError(
                    "the file's name is not text (UTF-8)",
                    code="file-name",
                    where=path,
                    fix="Rename it.",
                )
            if path.is_file():
                yield path


def _read_genes(files: _Files) -> tuple[Genes | None, list[Source], str]:
    found = [path for reader in cell_readers.GENE_READERS for path in files.of(reader.NAME)]
    for reader in cell_readers.GENE_READERS:
        if not files.of(reader.NAME):
            continue
        files.refuse_several(reader.NAME, "name the genes")
        [path] = files.of(reader.NAME)
        genes, source = files.read_one(path, reader.read)
        files.why |= {p: f"the genes are those of {path.name}" for p in found if p != path}
        return genes, [source], f"The genes are those of {path.name}."
    return None, [], ""


def _note_on_names(genes: Genes) -> str:
    """Say that the genes are what the files call them, and where one may have two names."""
    systematic = [name for name in genes if cell_readers.is_systematic(name)]
    others = [name for name in genes if not cell_readers.is_systematic(name)]
    note = "No file names the genes, so they are all that networks and screens name"
    if not systematic or not others:
        return f"{note}, and --unknown has nothing to act on."
    return (
        f"{note}: {len(systematic):,} by a systematic name (such as {systematic[0]}) and "
        f"{len(others):,} by another (such as {others[0]}). A gene written both ways counts as "
        "two. To have names resolved, put a file of genes into the folder (for yeast: deltacell "
        "data get sgd-features --out FOLDER); without it --unknown has nothing to act on."
    )


def _read_terms(files: _Files) -> list[term_readers.NamedTerms]:
    ontology = next(iter(files.read("obo", term_readers.read_ontology)), None)
    read = partial(term_readers.read, ontology=ontology)
    kinds = [name for name in term_readers.NAMES if name != "obo"]
    return [terms for kind in kinds for terms in files.read_each(kind, read)]


def _build_splits(
    written: Sequence[WrittenScreen],
    files: Sequence[tuple[list[list[str]], list[str]]],
    screens: Mapping[str, Screen],
) -> dict[str, pl.DataFrame]:
    """Return the named split of each screen that has one, and check it."""
    splits = {}
    for study, screen in screens.items():
        sets: list[list[str]] = []
        parts: list[str] = []
        for one in written:
            if one.study == study and one.parts is not None:
                named = np.flatnonzero((one.parts != "").to_numpy()).tolist()
                sets += [one.names_of(row) for row in named]
                parts += one.parts.gather(named).to_list()
        for their_sets, their_parts in files:
            sets, parts = sets + their_sets, parts + their_parts
        if sets:
            Split.named(screen, sets, parts)
            splits[study] = pl.DataFrame({"genes": sets, "part": parts})
    return splits


def _is_other_spreadsheet(path: Path) -> bool:
    """Whether it is an xls, xlsb or ods."""
    with path.open("rb") as file:
        if file.read(8) == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1":
            return True
    try:
        with zipfile.ZipFile(path) as archive:
            return not {"xl/workbook.bin", "content.xml"}.isdisjoint(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False
