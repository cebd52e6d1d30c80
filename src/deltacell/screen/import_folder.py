"""A folder of source files to one cell and its screens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from deltacell import store
from deltacell.cell import Annotation, Cell, Feature, Genes, Metabolism, Relation
from deltacell.cell import readers as cell_readers
from deltacell.cell.genes import UNKNOWN, OnUnknown
from deltacell.cell.readers import (
    NamedEdges,
    NoFeatureError,
    edge_list,
    relation_of,
    sbml,
    string_genes,
)
from deltacell.cell.readers import terms as term_readers
from deltacell.counts import Source
from deltacell.errors import InputError, PhenotypeError, did_you_mean
from deltacell.screen import readers as screen_readers
from deltacell.screen.readers import WrittenScreen, tables
from deltacell.screen.screen import Screen
from deltacell.screen.split import Split
from deltacell.screen.unread import why_unread
from deltacell.sheet import ColumnNames

Progress = Callable[[str, int, int], None]
#: The file of an import that says what became of every source.
ACCOUNT = "account.json"

_SPLIT = "split"


class UnknownColumnsError(InputError):
    """Tables of genes and numbers that may be screens or networks; nothing is written.

    Parameters
    ----------
    folder
        The folder of the files.
    asked
        What to say of each file.
    """

    def __init__(self, folder: Path, asked: Mapping[Path, str]) -> None:
        self.files = [path.name for path in asked]
        told = "\n  ".join(f"{path.name}: {why}." for path, why in asked.items())
        super().__init__(
            f"it is not known what {len(asked)} of the files {'is' if len(asked) == 1 else 'are'}, "
            "so nothing was written",
            where=folder,
            fix=told,
        )


@dataclass(frozen=True)
class LeftAlone:
    """A file that was not read, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class Imported:
    """A cell and screens over its genes, by name.

    Parameters
    ----------
    cell
        The wild type.
    screens
        By study.
    left_alone
        Files that were not read.
    splits
        By study, the gene sets (lists of systematic names) and their parts, where a table or a
        file of its own names them.
    notes
        What a person should know of the import, in sentences.
    """

    cell: Cell
    screens: Mapping[str, Screen]
    left_alone: Sequence[LeftAlone] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    splits: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    def account(self) -> dict[str, Any]:
        """Return what became of every file."""
        screens = [source for screen in self.screens.values() for source in screen.sources]
        return {
            "sources": [s.to_json() for s in [*self.cell.sources, *screens]],
            "left_alone": [{"file": x.file, "why": x.why} for x in self.left_alone],
            "notes": list(self.notes),
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write ``path/cell``, ``path/screens/NAME`` and the account, all of it or nothing."""
        for name in self.screens:
            if not name or Path(name).name != name or name.startswith("."):
                raise InputError(f"'{name}' cannot be the name of a screen: it names its folder")
        with store.new_directory(path, "import", overwrite=overwrite) as temporary:
            self.cell.save(temporary / "cell")
            for name, screen in self.screens.items():
                screen.save(temporary / "screens" / name)
            for name, parts in self.splits.items():
                store.write(temporary / "splits" / name, "parts", {"sets": parts.to_arrow()}, {})
            text = json.dumps(self.account(), indent=1, ensure_ascii=False)
            (temporary / ACCOUNT).write_text(text + "\n", encoding="utf-8")
            meta = {
                "files": [ACCOUNT],
                "screens": list(self.screens),
                "left_alone": [{"file": x.file, "why": x.why} for x in self.left_alone],
                "notes": list(self.notes),
                "splits": list(self.splits),
            }
            store.write_manifest(temporary, "import", {}, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Imported:
        """Open what `save` wrote."""
        path = Path(path)
        meta = store.read(path, "import").meta
        return cls(
            Cell.load(path / "cell"),
            {name: Screen.load(path / "screens" / Path(name).name) for name in meta["screens"]},
            [LeftAlone(x["file"], x["why"]) for x in meta["left_alone"]],
            meta["notes"],
            {
                name: pl.DataFrame({"genes": sets, "part": parts})
                for name in meta.get("splits", ())
                for sets, parts in [read_parts(path / "splits" / name)]
            },
        )


def read_parts(path: str | os.PathLike[str]) -> tuple[list[list[str]], list[str]]:
    """Return gene sets and their parts: of an imported split, or of a table that names them."""
    if not Path(path).is_dir():
        return tables.read_parts(path)
    sets = store.read(path, "parts").parts["sets"]
    return sets["genes"].to_pylist(), sets["part"].to_pylist()


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

    Parameters
    ----------
    folder
        Subfolders are read too.
    on_unknown
        What to do with a gene that the cell does not know: ``error``, ``drop`` the rows that name
        it, or ``add`` it.
    phenotype
        What to take as the score where a file has both.
    columns
        What the columns of tables with other headers are, each as
        ``gene1=ORF 1,gene2=ORF 2,score=S``; of tables without a header, by number. With
        ``weight`` in place of ``score`` the table is a network.
    progress
        Called with a label, the bytes done and the bytes in all.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            "this is a file, and a folder was expected"
            if folder.exists()
            else "there is no such folder",
            where=folder,
            fix="Give the folder that holds the source files.",
        )
    told = [ColumnNames.parse(names) for names in columns]
    files = _Files(folder, progress, told)
    genes, gene_sources, gene_note = _read_genes(files)
    edges = [
        e for reader in cell_readers.EDGE_READERS for e in files.read_each(reader.NAME, reader.read)
    ]
    edges += files.read_each(edge_list.NAME, partial(edge_list.read, columns=told))
    for path in files.of(string_genes.NAME):
        files.passed_over(path, "it numbers the genes of the STRING adjacency files beside it")
    written = _read_metabolism(files)
    screens = [
        screen
        for reader in screen_readers.SCREEN_READERS
        for screen in files.read_all(reader.NAME, partial(_read_screen, reader.read, phenotype))
    ]
    own = partial(tables.read, columns=told)
    screens += files.read_each(tables.NAME, partial(_read_screen, own, phenotype))
    terms = _read_terms(files)
    if genes is None or on_unknown == "add":
        known = genes if genes is not None else Genes([])
        named = [
            *(n for e in edges for n in cell_readers.names_of(e)),
            *(written.gene_names if written is not None else ()),
            *(n for s in screens for n in s.gene_names),
        ]
        index = known.resolve(named).index
        missing = [n for n, i in zip(named, index, strict=True) if i == UNKNOWN]
        genes = known.extended(cell_readers.in_capitals(n.strip()) for n in missing)
        if not gene_sources:
            gene_note = _note_on_names(genes)
    if not len(genes):
        unread = [f"{x.file}: {x.why}" for x in files.unread()[:5]]
        raise InputError(
            "no file of the folder names a gene",
            where=folder,
            fix="\n  ".join(
                [*unread, "Put networks or screens there; `deltacell data get` fetches some."]
            ),
        )
    policy = "error" if on_unknown == "error" else "drop"
    relations, relation_sources, renamed = _build_relations(edges, genes, policy)
    metabolism, metabolism_sources = _build_metabolism(written, genes, policy)
    features, feature_sources, feature_notes = _read_features(files, genes, policy)
    taken = {feature.name for feature in features}
    annotations, term_sources = _build_annotations(terms, genes, policy, taken)
    cell = Cell(
        genes,
        relations,
        metabolism,
        features,
        annotations,
        sources=[
            *gene_sources,
            *relation_sources,
            *metabolism_sources,
            *feature_sources,
            *term_sources,
        ],
    )
    by_study = _build_screens(screens, genes, policy)
    splits = _build_splits(screens, files.read_all(_SPLIT, tables.read_parts), by_study)
    notes = [
        gene_note,
        *renamed,
        *feature_notes,
        *_told_by_header(screens),
        *(f"The split of {name} is named: train with split.method=named." for name in splits),
        *_told_by_absence(cell, by_study),
    ]
    return Imported(cell, by_study, files.unread(), notes, splits)


def open_screen(path: str | os.PathLike[str], name: str | None = None) -> Screen:
    """Open a screen, or a screen of an import.

    Parameters
    ----------
    path
        Of either.
    name
        Which screen of an import; not needed where it has one.
    """
    path = Path(path)
    manifest = store.read_manifest(path)
    if manifest["kind"] != "import":
        if name is not None:
            raise InputError(
                f"a screen '{name}' was asked for, and this is a {manifest['kind']}, not an import",
                where=path,
                fix="Leave out the name (--screen), or give the import.",
            )
        return Screen.load(path)
    names = manifest["meta"]["screens"]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        asked = "which of its screens is meant?"
        if name is not None:
            asked = f"it has no screen '{name}'{did_you_mean(name, names)}"
        raise InputError(
            asked, where=path, fix=f"Give one of {', '.join(names) or 'none'} (--screen NAME)."
        )
    return Screen.load(path / "screens" / Path(str(name)).name)


class _Files:
    """The files of a folder by the reader that recognises them, and which of them were read."""

    def __init__(
        self, folder: Path, progress: Progress | None, columns: Sequence[ColumnNames]
    ) -> None:
        self.folder = folder
        self._progress = progress
        self.paths = sorted(_files_under(folder))
        self._total = sum(p.stat().st_size for p in self.paths)
        self._done = 0
        self._reader: dict[Path, str | None] = {}
        self._why: dict[Path, str] = {}
        self.asked: dict[Path, str] = {}
        self._read: set[Path] = set()
        for path in self.paths:
            if path.stat().st_size == 0:
                self._reader[path], self._why[path] = None, "it is empty"
                continue
            self._reader[path] = screen_readers.recognise(path, columns) or (
                _SPLIT if tables.is_split(path) else cell_readers.recognise(path, columns)
            )
            if self._reader[path] is None:
                asked = tables.asks(path) or edge_list.asks(path)
                self._why[path] = asked or why_unread(path)
                if asked:
                    self.asked[path] = asked
        if self.asked:
            raise UnknownColumnsError(self.folder, self.asked)

    def of(self, *readers: str) -> list[Path]:
        return [p for p in self.paths if self._reader[p] in readers]

    def read_all(self, reader: str, read: Callable[[Path], Any]) -> list[Any]:
        found = []
        for path in self.of(reader):
            self.say(path)
            found.append(read(path))
            self.done(path)
        return found

    def read_each(self, reader: str, read: Callable[[Path], list[Any]]) -> list[Any]:
        return [item for items in self.read_all(reader, read) for item in items]

    def say(self, path: Path) -> None:
        if self._progress is not None:
            self._progress(path.name, self._done, self._total)

    def done(self, path: Path) -> None:
        self._read.add(path)
        self._done += path.stat().st_size

    def passed_over(self, path: Path, why: str) -> None:
        self._read.discard(path)
        self._why[path] = why

    def unread(self) -> list[LeftAlone]:
        return [
            LeftAlone(str(p.relative_to(self.folder)), self._why[p])
            for p in self.paths
            if p not in self._read
        ]


def _files_under(folder: Path) -> Iterator[Path]:
    """Give the files of a folder and its subfolders but hidden ones; all must be readable."""

    def refuse(error: OSError) -> None:
        raise InputError(
            f"the folder cannot be read: {error.strerror}", where=error.filename
        ) from error

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(where, name) for name in names if not name.startswith(".")]
        for path in paths:
            if _is_not_text(path.name):
                raise InputError(
                    "the file's name is not text (UTF-8)", where=path, fix="Rename it."
                )
            if path.is_file():
                yield path


def _is_not_text(name: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in name)


def _read_genes(files: _Files) -> tuple[Genes | None, list[Source], str]:
    for reader in cell_readers.GENE_READERS:
        paths = files.of(reader.NAME)
        if not paths:
            continue
        if len(paths) > 1:
            raise InputError(
                f"several files name the genes: {', '.join(p.name for p in paths)}",
                where=files.folder,
                fix="Keep one of them in the folder.",
            )
        files.say(paths[0])
        genes, source = reader.read(paths[0])
        files.done(paths[0])
        for other in cell_readers.GENE_READERS:
            for path in files.of(other.NAME):
                if path != paths[0]:
                    files.passed_over(path, f"the genes are those of {paths[0].name}")
        return genes, [source], f"The genes are those of {paths[0].name}."
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


def _build_relations(
    edges: Sequence[NamedEdges], genes: Genes, policy: Any
) -> tuple[list[Relation], list[Source], list[str]]:
    relations: dict[str, Relation] = {}
    sources, notes = [], []
    for written in edges:
        relation, source = relation_of(written, genes, policy)
        name, number = relation.name, 2
        while name in relations:
            name, number = f"{relation.name}_{number}", number + 1
        if name != relation.name:
            notes.append(
                f"{written.path.name} is called '{name}', as there is another '{relation.name}'."
            )
        if written.weight is not None and (np.asarray(written.weight) < 0).any():
            notes.append(
                f"{written.path.name} was read as a network, and some weights are below 0. If "
                "these are scores of a screen, take it out of the folder, or models will see what "
                "they are to predict: docs/how-to/screen.md."
            )
        relations[name] = relation.renamed(name)
        sources.append(source)
    return list(relations.values()), sources, notes


def _read_metabolism(files: _Files) -> Any:
    paths = files.of(sbml.NAME)
    if len(paths) > 1:
        raise InputError(
            f"several files hold a metabolism: {', '.join(p.name for p in paths)}",
            where=files.folder,
            fix="Keep one of them in the folder.",
        )
    found = files.read_all(sbml.NAME, sbml.read)
    return found[0] if found else None


def _build_metabolism(
    written: Any, genes: Genes, policy: Any
) -> tuple[Metabolism | None, list[Source]]:
    if written is None:
        return None, []
    metabolism, source = written.on(genes, policy)
    return metabolism, [source]


def _read_features(
    files: _Files, genes: Genes, policy: Any
) -> tuple[list[Feature], list[Source], list[str]]:
    """Return the features; of files that hold the same one, the first."""
    features: dict[str, Feature] = {}
    sources: list[Source] = []
    notes: list[str] = []
    for reader in cell_readers.FEATURE_READERS:
        for path in files.of(reader.NAME):
            files.say(path)
            try:
                feature, source = reader.read(path, genes, on_unknown=policy)
            except NoFeatureError as error:
                why = f"{error.what}. {error.fix or ''}".strip()
                files.passed_over(path, why)
                notes.append(f"{path.name} holds no feature of this cell: {error.what}.")
                continue
            files.done(path)
            same = next((f for f in features.values() if _same_values(f, feature)), None)
            if same is not None:
                first = next(s.file for s in sources if s.into == same.name)
                files.passed_over(path, f"it holds the same feature as {first}")
                notes.append(f"{path.name} holds the same feature as {first}, which was kept.")
                continue
            name, number = feature.name, 2
            while name in features:
                name, number = f"{feature.name}_{number}", number + 1
            if name != feature.name:
                notes.append(
                    f"{path.name} is called '{name}', as there is another '{feature.name}'."
                )
            features[name] = feature.renamed(name)
            sources.append(replace(source, into=name))
    return list(features.values()), sources, notes


def _same_values(one: Feature, other: Feature) -> bool:
    """Whether two features are the same table, saved by programs that round differently."""
    return one.columns == other.columns and np.allclose(
        one.values, other.values, rtol=1e-5, atol=1e-7, equal_nan=True
    )


def _read_terms(files: _Files) -> list[term_readers.NamedTerms]:
    ontologies = files.read_all("obo", term_readers.read_ontology)
    ontology = ontologies[0] if ontologies else None
    read = partial(term_readers.read, ontology=ontology)
    kinds = [name for name in term_readers.NAMES if name != "obo"]
    return [terms for kind in kinds for terms in files.read_each(kind, read)]


def _build_annotations(
    terms: Sequence[term_readers.NamedTerms], genes: Genes, policy: Any, taken: set[str]
) -> tuple[list[Annotation], list[Source]]:
    """Return the annotations, under names that neither a feature nor another one has."""
    annotations, sources = [], []
    for written in terms:
        annotation, source = written.on(genes, policy)
        name, number = annotation.name, 2
        while name in taken:
            name, number = f"{annotation.name}_{number}", number + 1
        taken.add(name)
        annotations.append(annotation.renamed(name))
        sources.append(replace(source, into=name))
    return annotations, sources


def _read_screen(read: Callable[..., Any], phenotype: str | None, path: Path) -> Any:
    try:
        return read(path, phenotype=phenotype)
    except PhenotypeError:
        return read(path)


def _build_screens(
    written: Sequence[WrittenScreen], genes: Genes, policy: Any
) -> dict[str, Screen]:
    by_study: dict[str, list[Screen]] = {}
    for screen in written:
        by_study.setdefault(screen.study, []).append(screen.on(genes, policy))
    return {study: Screen.concat(parts) for study, parts in sorted(by_study.items())}


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


def _told_by_header(written: Sequence[WrittenScreen]) -> list[str]:
    return [
        f"{screen.path.name} was read as a screen of {len(screen):,} genotypes. If it is a "
        "network, call its number weight."
        for screen in written
        if screen.reader == tables.NAME
    ]


def _told_by_absence(cell: Cell, screens: Mapping[str, Screen]) -> list[str]:
    notes = []
    if not cell.relations:
        notes.append("There is no network: docs/how-to/networks.md says what is read as one.")
    if not screens:
        notes.append(
            "There is no screen, so there is nothing to train on: docs/how-to/screen.md says what "
            "is read as one."
        )
    return notes
