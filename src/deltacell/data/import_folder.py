"""The import of a folder of source files as one cell and its screens."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from deltacell.base.errors import InputError
from deltacell.base.text import Progress, count_text
from deltacell.cell import Annotation, Cell, Feature, Genes, Metabolism, Relation
from deltacell.cell.genes import UNKNOWN, OnUnknown
from deltacell.cell.readers.damage import damaged_names
from deltacell.cell.readers.features import NoFeatureError
from deltacell.cell.readers.names import in_capitals, is_systematic
from deltacell.cell.readers.networks import NamedEdges
from deltacell.cell.readers.terms import NamedTerms
from deltacell.data.folder_files import PAGE, READERS, FileToRead, FolderFiles
from deltacell.data.imported import ACCOUNT, Imported, open_screen, read_parts
from deltacell.screen.readers import tables
from deltacell.screen.readers.joined import IsKnown, may_be_joined, several_genes
from deltacell.screen.readers.written import JOINED_NAMES, NamedParts, WrittenScreen
from deltacell.screen.screen import Screen
from deltacell.screen.split import Split
from deltacell.storage.provenance import Source
from deltacell.storage.tables import ColumnNames

__all__ = ["ACCOUNT", "READERS", "Imported", "import_folder", "open_screen", "read_parts"]

_NO_GENES = (
    "No file lists the genes, so they are all names in networks and screens; two names of one gene "
    "count as two genes. To resolve names, put a gene file into the folder (for yeast: deltacell "
    "data get sgd-features --unchecked --out FOLDER)."
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
    "invisible_characters_removed": "invisible characters were removed: {}.",
    "characters_in_another_encoding": "characters in another encoding than the rest were read as "
    "Windows-1252; check names with special characters: {}.",
    "unreadable_characters": "characters could not be read and are now \ufffd: {}.",
    "letters_composed": "accents were joined with their letters, in lines or fields: {}.",
}


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

    Args:
        folder: The folder.
        on_unknown: Whether rows with a gene that is not among these are dropped, are an error, or
            add it.
        phenotype: That of screens; by default the first that a file has.
        columns: What the columns of tables mean, as in ``gene1=ORF,gene2=Partner,score=S``.
        progress: Called before a file is read, with its name, the bytes done and all bytes.
    """
    files = FolderFiles(Path(folder), list(map(ColumnNames.parse, columns)), progress)
    parts = _CellParts()
    genes = _read_genes(files, parts)
    networks = files.read("edges")
    screens = files.read_screens(phenotype, _known_names(genes, networks))
    metabolisms = [file.read() for file in files.of("metabolism", only_one=True)]
    terms = files.read("terms")
    if genes is None or on_unknown == "add":
        genes = Genes([]) if genes is None else genes
        written = (*networks, *metabolisms, *screens)
        names = list(chain.from_iterable(content.gene_names for content in written))
        genes = genes.extended(_new_genes(genes, names))
    if not len(genes):
        raise _no_gene_names(files, folder)
    policy: Literal["error", "drop"] = "error" if on_unknown == "error" else "drop"
    for network in networks:
        parts.add_relation(*network.on(genes, policy))
    for written_metabolism in metabolisms:
        parts.metabolism, source = written_metabolism.on(genes, policy)
        parts.sources.append(source)
    _read_features(files, parts, genes, policy)
    _add_annotations(terms, _proteins(networks), files, parts, genes, policy)
    cell = parts.cell(genes)
    studies = _by_study(screens, genes, policy)
    splits = _named_splits(screens, files.read("parts", is_known=genes.is_known), studies)
    notes = [*parts.notes, *_notes_on_import(cell, screens, studies, splits)]
    return Imported(cell, studies, files.left_alone(), notes, splits)


def _read_genes(files: FolderFiles, parts: _CellParts) -> Genes | None:
    """Return the genes of a file that lists them; None if there is no such file."""
    genes: Genes | None = None
    parts.notes.append(_NO_GENES)
    others = files.of("genes")
    for file in files.of("genes", only_one=True):
        genes, source = file.read()
        parts.sources.append(source)
        parts.notes[:] = [f"The genes are from {file.path.name}."]
        for other in others:
            if other.path != file.path:
                genes = _with_names_of(other, genes, files, parts)
    for file in files.of("numbers of genes"):
        reason = "it is the gene list of the STRING adjacency files next to it"
        files.why_left_alone[file.path] = reason
    return genes


def _with_names_of(
    other: FileToRead,
    genes: Genes,
    files: FolderFiles,
    parts: _CellParts,
) -> Genes:
    """Return genes with the names that another file has for them, as aliases."""
    names, source = other.read()
    with_names = genes.with_names_of(names)
    n_new = sum(map(len, with_names.aliases)) - sum(map(len, genes.aliases))
    if n_new:
        del files.why_left_alone[other.path]
        parts.sources.append(replace(source, into="aliases"))
        parts.notes.append(f"{n_new:,} names of {other.path.name} were added as aliases.")
    return with_names


def _no_gene_names(files: FolderFiles, folder: str | os.PathLike[str]) -> InputError:
    reasons = [f"{file}: {why}" for file, why in files.left_alone().items()]
    fix = "\n  ".join([*reasons[:5], "`deltacell data get` downloads networks and screens."])
    return InputError("no file contains a gene name", code="no-genes", where=folder, fix=fix)


def _read_features(
    files: FolderFiles,
    parts: _CellParts,
    genes: Genes,
    policy: Literal["error", "drop"],
) -> None:
    """Add the features; a file without values for these genes is left alone."""
    for file in files.of("feature"):
        try:
            parts.add_feature(*file.read(genes=genes, on_unknown=policy))
        except NoFeatureError as error:
            files.why_left_alone[file.path] = f"{error.message}. {error.fix or ''}".strip()
            parts.notes.append(f"{file.path.name}: {error.message}.")


def _proteins(networks: Sequence[NamedEdges]) -> pl.DataFrame | None:
    """Return the genes of proteins, which some networks list; None without one of these."""
    tables = [network.proteins for network in networks if network.proteins is not None]
    return pl.concat(tables).unique(maintain_order=True) if tables else None


def _add_annotations(
    terms: Sequence[NamedTerms],
    proteins: pl.DataFrame | None,
    files: FolderFiles,
    parts: _CellParts,
    genes: Genes,
    policy: Literal["error", "drop"],
) -> None:
    """Add the annotations; a file without a term of these genes is left alone."""
    for named_terms in terms:
        annotation, source = named_terms.on(genes, policy, proteins)
        if annotation.known.any():
            parts.add_annotation(annotation, source)
        else:
            first = next(iter(named_terms.rows["gene"].drop_nulls()), "")
            path = named_terms.table.path
            files.why_left_alone[path] = _NO_GENE_OF_THE_CELL.format(first)


def _by_study(
    screens: Sequence[WrittenScreen],
    genes: Genes,
    policy: Literal["error", "drop"],
) -> dict[str, Screen]:
    """Return the screens on these genes, those of one study as one screen."""
    by_study: dict[str, list[Screen]] = {}
    for screen in screens:
        by_study.setdefault(screen.study, []).append(screen.on(genes, policy))
    return {study: Screen.concat(by_study[study]) for study in sorted(by_study)}


def _notes_on_import(
    cell: Cell,
    written: Sequence[WrittenScreen],
    screens: Mapping[str, Screen],
    splits: Mapping[str, NamedParts],
) -> Iterator[str]:
    """Yield what the user should look at, in words."""
    yield from _notes_on_conditions(written)
    of_screens = list(chain.from_iterable(screen.sources for screen in screens.values()))
    for source in of_screens:
        if source.reader == tables.reader.name and tables.CONDITION not in source.notes:
            n_genotypes = count_text(source.counts.kept, "genotype")
            yield (
                f"{source.file} was read as a screen of {n_genotypes}. If it is a network, rename "
                "its number column to weight."
            )
    for source in (*cell.sources, *of_screens):
        for warning in _warnings(source):
            yield f"{source.file}: {warning}"
    for name in splits:
        yield f"{name} has a split of its own: train with split.method=named."
    if not cell.relations:
        yield "There is no network; see docs/how-to/networks.md for the formats."
    if not screens:
        yield f"There is no screen; see {PAGE} for the formats."


def _notes_on_conditions(written: Sequence[WrittenScreen]) -> Iterator[str]:
    """Yield which tables have several conditions, each of which is a screen."""
    conditions: dict[str, list[str]] = {}
    for screen in written:
        if tables.CONDITION in screen.notes:
            conditions.setdefault(screen.path.name, []).append(str(screen.notes[tables.CONDITION]))
    for file, names in conditions.items():
        yield (
            f"{file} has {len(names)} conditions, each of which is a screen of its own: "
            f"{', '.join(names)}. Choose one with: deltacell start FOLDER --condition {names[0]}"
        )


def _warnings(source: Source) -> Iterator[str]:
    """Yield what a reader of a file should look at, in words."""
    for key, sentence in _WARNINGS.items():
        if key in source.notes:
            value = source.notes[key]
            yield sentence.format(f"{value:,}" if isinstance(value, int) else value)


def _new_genes(genes: Genes, names: Sequence[str]) -> list[str]:
    """Return the names that become genes: unknown ones that are neither damaged nor several."""
    not_genes = set(damaged_names(Counter(names)))
    in_upper_case = {name.strip().upper() for name in names}

    def is_gene(name: str) -> bool:
        # A name of several genes is itself among the names.
        is_single_name = not may_be_joined(name) and name.upper() in in_upper_case
        return is_single_name or genes.is_known(name) or is_systematic(name)

    not_genes.update(several_genes(set(names), is_gene))
    index = genes.resolve(names)
    unknown = [name for name, i in zip(names, index, strict=True) if i == UNKNOWN]
    return [in_capitals(name.strip()) for name in unknown if name not in not_genes]


def _known_names(genes: Genes | None, networks: Sequence[NamedEdges]) -> IsKnown | None:
    """Return whether a name is a gene, by the list of genes or the networks; None without both."""
    if genes is not None:
        return genes.is_known
    if not networks:
        return None
    written = chain.from_iterable(network.gene_names for network in networks)
    names = {name.strip().upper() for name in written}
    return lambda name: name.upper() in names


@dataclass
class _CellParts:
    """The parts of a cell under unique names, with their sources and notes."""

    sources: list[Source] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metabolism: Metabolism | None = None
    relations: dict[str, Relation] = field(default_factory=dict)
    features: dict[str, Feature] = field(default_factory=dict)
    annotations: dict[str, Annotation] = field(default_factory=dict)

    def add_relation(self, relation: Relation, source: Source) -> None:
        """Add a relation under its name, or with a number if it is in use."""
        name = self._unique(relation.name, self.relations, source)
        self.relations[name] = replace(relation, name=name)

    def add_feature(self, feature: Feature, source: Source) -> None:
        """Add a feature; raise a `NoFeatureError` if it is there under another name."""
        for other in self.features.values():
            if _are_equal(other, feature):
                first = next(s.file for s in self.sources if s.into == other.name)
                message = f"it is the same feature as {first}"
                raise NoFeatureError(message, code="same-feature")
        name = self._unique(feature.name, {**self.features, **self.annotations}, source)
        self.features[name] = replace(feature, name=name)

    def add_annotation(self, annotation: Annotation, source: Source) -> None:
        """Add an annotation under its name, or with a number if it is in use."""
        name = self._unique(annotation.name, {**self.features, **self.annotations}, source)
        self.annotations[name] = replace(annotation, name=name)

    def _unique(self, wanted: str, in_use: Mapping[str, Any], source: Source) -> str:
        """Return a name that is not in use, and record the source of the part with this name."""
        numbered = (f"{wanted}_{number}" for number in count(2))
        name = next(name for name in chain([wanted], numbered) if name not in in_use)
        if name != wanted:
            self.notes.append(f"{source.file} is named '{name}', as '{wanted}' exists.")
        self.sources.append(replace(source, into=name))
        return name

    def cell(self, genes: Genes) -> Cell:
        """Return the cell with these parts."""
        return Cell(
            genes,
            self.relations,
            self.metabolism,
            self.features,
            self.annotations,
            sources=self.sources,
        )


def _are_equal(first: Feature, second: Feature) -> bool:
    """Whether two features have the same columns and values; programs round in several ways."""
    if first.columns != second.columns:
        return False
    return np.allclose(first.values, second.values, rtol=1e-5, atol=1e-7, equal_nan=True)


def _named_splits(
    written: Sequence[WrittenScreen],
    files: Sequence[NamedParts],
    screens: Mapping[str, Screen],
) -> dict[str, NamedParts]:
    """Return the named split of each screen that has one, and check it."""
    splits = {}
    for study, screen in screens.items():
        of_study = [table.split for table in written if table.study == study]
        named = [*of_study, *files]
        sets = list(chain.from_iterable(split.sets for split in named))
        parts = list(chain.from_iterable(split.parts for split in named))
        if sets:
            Split.named(screen, sets, parts)
            splits[study] = NamedParts(sets, parts)
    return splits
