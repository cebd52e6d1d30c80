"""A screen as written in a file, before its gene names are looked up in a cell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
import torch

from deltacell.base.arrays import Bools, Doubles, Ints, offsets_of, ragged_positions
from deltacell.base.errors import InputError, PhenotypeError
from deltacell.cell import Genes
from deltacell.cell.genes import AMBIGUOUS, LONGEST_NAME, UNKNOWN
from deltacell.cell.readers.names import (
    DELETED,
    check_lengths,
    check_number,
    is_systematic,
    names_error,
    names_in,
    text_of_notes,
    unresolved_notes,
)
from deltacell.screen.coverage import Coverage
from deltacell.screen.gene_keys import set_keys
from deltacell.screen.genotypes import Genotypes, repeats_a_gene, sets_with
from deltacell.screen.hit_rule import HitRule
from deltacell.screen.readers.joined import (
    IsKnown,
    Joins,
    may_be_pair,
    separator_of,
    several_genes,
    split_field,
)
from deltacell.screen.screen import (
    NO_INTERACTION,
    ONE_GENE_TWICE,
    SAME_GENE_TWICE,
    Screen,
    is_impossible,
)
from deltacell.storage.provenance import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source
from deltacell.storage.tables import Table, present

#: The reason to drop a row whose score is missing.
NO_SCORE = "no score"

#: The key of a note on names that look like several genes, in a table with two columns of genes.
JOINED_NAMES = "names_of_several_genes"

#: The perturbation of the strains of a collection; for others it follows from the allele name.
COLLECTIONS = {
    **{"tsq": "ts", "tsa": "ts", "damp": "damp"},
    **{"sn": "deletion", "dma": "deletion", "s": "allele"},
}
_N_EXAMPLES = 3
_MOST_JOINED = 16  # names of full length in a field
_STRAIN = re.compile(r"([^_]+)_([A-Za-z]*)\w*")
# Perturbations by allele name. A gene name in lower case (vam3, rpl26a, arg5,6, ygr242w, yfl034c-b)
# means its deletion.
_ALLELES = {
    "deletion": r"|(?i:.*(?:\u0394|\u2206|delta))|[a-z]{3}\d+(?:,\d+)?[a-d]?"
    r"|y[a-p][lr]\d{3}[wc](?:-[a-z])?|q\d{4}",
    "damp": r"(?i:.*[-_]damp\d*)",
    "ts": r"(?i:.*-ts\d*)",
}
_PER_GENE = ("role", "perturbation", "allele")


class NamedParts(NamedTuple):
    """A split of gene sets by name."""

    sets: list[list[str]]
    parts: list[str]  # train, validation or test, of each set


class _RowsByReason(NamedTuple):
    """Which rows are kept, and why the others are dropped."""

    is_kept: Bools  # [rows]
    dropped: dict[str, int]  # the number of rows by the first reason to drop them
    is_dropped: dict[str, Bools]  # these rows, [rows] each


def _first_reasons(reasons: Mapping[str, Bools], n_rows: int) -> _RowsByReason:
    """Count each row once, for the first of its reasons to be dropped."""
    is_kept: Bools = np.ones(n_rows, dtype=bool)
    is_dropped = {}
    for reason, mask in reasons.items():
        is_dropped[reason] = mask & is_kept
        is_kept = is_kept & ~mask
    dropped = {reason: int(mask.sum()) for reason, mask in is_dropped.items()}
    return _RowsByReason(is_kept, dropped, is_dropped)


class WrittenScreen:
    """The result of a reader.

    Args:
        table: The file.
        genes: The result of `deleted_genes`.
        reader: The name of the reader.
        study: The name of the screen.
        columns: One value per row or one for all: those of `Screen`, the ``panel`` of a study with
            several arrays, and the ``part`` of a split.
        dropped: Rows to drop, a mask [rows] by reason.
        complete_coverage: Whether the file lists all that was tested, and not only hits.
        hits: What a hit is, if the format says it.
    """

    def __init__(
        self,
        table: Table,
        genes: pl.DataFrame,
        reader: str,
        study: str,
        columns: Mapping[str, Any],
        *,
        dropped: Mapping[str, Bools] | None = None,
        complete_coverage: bool = False,
        hits: HitRule | None = None,
    ) -> None:
        table.raise_if_bad()
        self.path = table.path
        self.sha256 = table.sha256
        self.notes = table.notes
        self.reader = reader
        self.study = study
        self.complete_coverage = complete_coverage
        self.hits = hits
        values = {"line": table.lines, "phenotype": "interaction", "study": study, **columns}
        rows = pl.select(pl.lit(column).alias(name) for name, column in values.items())
        by_reason = _first_reasons(dropped or {}, len(table))
        self.dropped = by_reason.dropped
        if not by_reason.is_kept.any():
            raise self._empty(self.dropped)
        is_kept = pl.Series(by_reason.is_kept)
        sizes = np.bincount(genes["row"].to_numpy(), minlength=len(rows))
        self.rows = rows.filter(is_kept)
        self.offsets = offsets_of(sizes[by_reason.is_kept])
        self.deleted = genes.filter(is_kept.gather(genes["row"]))
        # A number for each name, ignoring case.
        ranks = self.deleted["name"].str.to_uppercase().rank("dense")
        self._codes: Ints = ranks.to_numpy().astype(np.int64) - 1

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def gene_names(self) -> list[str]:
        """The distinct names, as written, in order of first appearance."""
        return self.deleted["name"].unique(maintain_order=True).to_list()

    def names_of(self, row: int) -> list[str]:
        """Return the names of the genes of a row."""
        start = int(self.offsets[row])
        end = int(self.offsets[row + 1])
        return self.deleted["name"][start:end].to_list()

    @property
    def split(self) -> NamedParts:
        """The gene sets of the rows that have a part of a split, and these parts."""
        parts = self.rows["part"].to_list() if "part" in self.rows else []
        rows = [row for row, part in enumerate(parts) if part]
        return NamedParts([self.names_of(row) for row in rows], [parts[row] for row in rows])

    def on(self, genes: Genes, on_unknown: Literal["error", "drop"] = "error") -> Screen:
        """Look up the names; interactions of one gene are always dropped and counted."""
        names = self.deleted["name"]
        gene = genes.resolve(names)
        by_reason = _first_reasons(self._reasons_to_drop(gene), len(self))
        if on_unknown == "error":
            self._raise_if_dropped(genes, gene, by_reason.is_dropped)
        is_kept = by_reason.is_kept
        n_read = len(self) + sum(self.dropped.values())
        counts = Counts(n_read, int(is_kept.sum()), {**self.dropped, **by_reason.dropped})
        not_found = self._notes_on_names(genes, names, gene)
        if not is_kept.any():
            raise self._empty(counts.dropped, text_of_notes(not_found) or None)
        sizes = np.diff(self.offsets)[is_kept]
        entries = ragged_positions(self.offsets[:-1][is_kept], sizes)
        offsets = offsets_of(sizes)
        deleted = self.deleted[entries]
        rows = self.rows.filter(pl.Series(is_kept))
        coverage = Coverage.from_rows(
            gene[entries],
            offsets,
            deleted["role"],
            rows["study"],
            panel=rows.get_column("panel", default=None),
            complete=self.complete_coverage,
        )
        studies = ", ".join(rows["study"].unique(maintain_order=True))
        notes = {**self.notes, **self._count_distinct(genes, gene), **not_found}
        source = Source(self.path.name, self.sha256, self.reader, counts, studies, notes)
        columns: dict[str, Any] = {name: deleted[name] for name in _PER_GENE}
        for name in rows.columns:
            if name not in ("line", "panel", "part"):
                columns[name] = rows[name]
        return Screen.build(
            genes,
            Genotypes(torch.from_numpy(gene[entries]), torch.from_numpy(offsets)),
            coverage=coverage,
            sources=[source],
            source_row=rows["line"],
            stated_hits=self.hits,
            **columns,
        )

    def _reasons_to_drop(self, gene: Ints) -> dict[str, Bools]:
        """Return the rows that cannot be in a screen by reason, for the genes of all names."""
        is_interaction = (self.rows["phenotype"] == "interaction").to_numpy()
        repeats = repeats_a_gene(gene, self.offsets)
        return {
            NO_INTERACTION: is_interaction & (np.diff(self.offsets) < 2),
            UNKNOWN_GENE: sets_with(gene == UNKNOWN, self.offsets),
            AMBIGUOUS_NAME: sets_with(gene == AMBIGUOUS, self.offsets),
            SAME_GENE_TWICE: repeats & repeats_a_gene(self._codes, self.offsets),
            ONE_GENE_TWICE: repeats,
        }

    def _notes_on_names(self, genes: Genes, names: pl.Series, gene: Ints) -> dict[str, str]:
        """Return notes on the names that are not found, and on those that may be several genes."""
        unknown = names.filter(pl.Series(gene == UNKNOWN)).unique(maintain_order=True)
        notes = unresolved_notes(names, gene, genes)
        joined = several_genes(unknown, lambda name: _is_gene(name, genes.is_known))
        if joined:
            examples = ", ".join(joined[:_N_EXAMPLES])
            more = ", …" if len(joined) > _N_EXAMPLES else ""
            notes[JOINED_NAMES] = f"{len(joined):,}: {examples}{more}"
        return notes

    def _count_distinct(self, genes: Genes, gene: Ints) -> dict[str, int]:
        """Return how many genes and sets there are, by names as written and by genes."""
        n_names = int(self._codes.max()) + 1
        # A name that is not found counts as a gene of its own.
        resolved = np.where(gene < 0, len(genes) + self._codes, gene)

        def n_sets(codes: Ints) -> int:
            keys = set_keys(codes, self.offsets, len(genes) + n_names)
            without_repeats = keys[~repeats_a_gene(codes, self.offsets)]
            return len(np.unique(without_repeats))

        return {
            "distinct_sets_as_written": n_sets(self._codes),
            "genes_as_written": n_names,
            "distinct_sets": n_sets(resolved),
            "genes": len(np.unique(resolved)),
        }

    def _empty(self, dropped: Mapping[str, int], not_found: str | None = None) -> InputError:
        """Return the error that every row was dropped; `not_found` lists names."""
        reasons = {reason: n for reason, n in dropped.items() if n}
        if reasons.keys() == {NO_SCORE}:
            message = f"none of the {reasons[NO_SCORE]:,} rows has a score"
            fix = (
                "Without scores, a list of genes cannot be a screen; fill in the column of scores."
            )
            return InputError(message, code="no-scores", where=self.path, fix=fix)
        counts = ", ".join(f"{n:,} {reason}" for reason, n in reasons.items()) or "no rows"
        message = f"the screen is empty, as every row was dropped ({counts})"
        return InputError(message, code="empty-screen", where=self.path, fix=not_found)

    def _raise_if_dropped(
        self,
        genes: Genes,
        gene: Ints,
        is_dropped: Mapping[str, Bools],
    ) -> None:
        """Raise if names are not found, listing all of them, or a gene is deleted twice."""
        not_found = is_dropped[UNKNOWN_GENE] | is_dropped[AMBIGUOUS_NAME]
        repeats = is_dropped[SAME_GENE_TWICE] | is_dropped[ONE_GENE_TWICE]
        is_bad = not_found if not_found.any() else repeats
        if not is_bad.any():
            return
        rows = f"{int(is_bad.sum()):,} of {len(self):,} rows"
        first = int(np.argmax(is_bad))
        line = int(self.rows["line"][first])
        is_absent = (gene < 0) & np.repeat(is_bad, np.diff(self.offsets))
        absent_names = self.deleted["name"].filter(pl.Series(is_absent))
        absent = self._notes_on_names(genes, absent_names, gene[is_absent])
        if absent:
            raise names_error(absent, rows, self.path, line)
        message = f"{rows} delete a gene twice, first {' '.join(self.names_of(first))}"
        fix = "Correct such rows, or drop them."
        raise InputError(message, code="gene-twice", where=self.path, line=line, fix=fix)


class GeneColumn(NamedTuple):
    """A column with one gene per field, or several."""

    name: str
    role: str = "unknown"
    is_strain: bool = False  # whether it contains strain IDs, such as YAL001C_tsq508
    alleles: str | None = None  # the column of allele names, if the format has one
    joins: Joins = Joins.never  # whether a field can have several genes


def deleted_genes(
    table: Table,
    columns: Sequence[GeneColumn],
    *,
    required: bool = False,
    is_known: IsKnown | None = None,
    told: str = "genes=COLUMN",
) -> pl.DataFrame:
    """Return a row per deleted gene: its ``row``, ``name``, ``role``, ``perturbation``, ``allele``.

    Allele names that do not match the genes of a field one to one are ignored. Without a column of
    alleles, the allele is the field itself, unless it is the gene's name.

    Args:
        table: The table.
        columns: Its columns of genes.
        required: Whether empty fields are bad.
        is_known: Whether a name is a gene of the cell; without it, a field that may be several
            genes is bad unless they are known otherwise, see `split_field`.
        told: The columns of the table as ``--columns`` takes them.
    """
    for column in columns:
        check_number(table, column.name)
        if required:
            names_in(table, column.name)
        else:
            n_names = 1 if column.joins is Joins.never else _MOST_JOINED
            check_lengths(table, column.name, n_names * LONGEST_NAME)
    alone = _names_alone(table, columns)

    def is_known_or_alone(gene: str) -> bool:
        return gene.upper() in alone or bool(is_known and is_known(gene))

    fields = _gene_fields(table, columns)
    separators = [_separator(table, column) for column in columns]
    keys = ["field", "alleles", "column"]
    described = []
    unclear = set()
    for field, alleles, i in fields.select(keys).unique(maintain_order=True).iter_rows():
        column = columns[i]
        names = split_field(
            field,
            column.joins,
            partial(_is_gene, is_known=is_known_or_alone, is_strain=column.is_strain),
            separators[i],
        )
        is_one_name = names == [field] and not is_systematic(field)
        if column.joins is Joins.of_known_genes and is_one_name and may_be_pair(field):
            unclear.add(field)
        for gene in _describe(names, alleles, column):
            described.append((field, alleles, i, *gene))
    if unclear and is_known is None:
        kind = f'one name or several, which a list of genes can tell, or --columns "{told}"'
        for column in columns:
            table.mark_bad(kind, column.name, table.frame[column.name].is_in(list(unclear)))
    schema = fields.select(keys).schema | dict.fromkeys(_DeletedGene._fields, pl.String)
    by_field = pl.DataFrame(described, schema, orient="row")
    genes = fields.join(by_field, on=keys, maintain_order="left_right")
    return genes.select("row", *_DeletedGene._fields)


def _separator(table: Table, column: GeneColumn) -> str | None:
    """Return what joins two names in every field of a column that is split."""
    if column.joins is not Joins.always:
        return None
    fields = present(table.frame[column.name])
    return separator_of(field for field in fields.unique() if field)


class _DeletedGene(NamedTuple):
    """What a field says of one deleted gene."""

    name: str
    role: str
    perturbation: str
    allele: str


def _names_alone(table: Table, columns: Sequence[GeneColumn]) -> set[str]:
    """Return the genes, in capitals, that stand alone in a field where others may be joined."""
    genes = set()
    for column in columns:
        if column.joins is Joins.of_known_genes:
            for field in table.frame[column.name].unique():
                if not may_be_pair(field):
                    genes.add(_strain_of(field, column.is_strain).gene.upper())
    return genes


def _gene_fields(table: Table, columns: Sequence[GeneColumn]) -> pl.DataFrame:
    """Return the fields of genes that are not empty, by row and then column.

    The columns are ``row``, ``field``, ``alleles`` and the number of the ``column``.
    """
    by_column = []
    for i, column in enumerate(columns):
        alleles = table.frame.get_column(column.alleles or "", default=pl.lit(""))
        fields = pl.select(field=present(table.frame[column.name]), alleles=alleles, column=i)
        by_column.append(fields.with_row_index("row"))
    filled = pl.concat(by_column).filter(pl.col("field") != "")
    return filled.sort("row", maintain_order=True)


def _describe(names: Sequence[str], alleles: str, column: GeneColumn) -> Iterator[_DeletedGene]:
    """Yield the genes of a field with the names of their alleles, which ``+`` joins."""
    alleles_of_names = [allele.strip() for allele in alleles.split("+")]
    if len(alleles_of_names) != len(names):
        alleles_of_names = [""] * len(names)
    for name, allele in zip(names, alleles_of_names, strict=True):
        strain = _strain_of(name, column.is_strain)
        perturbation = COLLECTIONS.get(strain.collection) or _perturbation_of(allele)
        if column.alleles is None and strain.gene != name:
            allele = name
        yield _DeletedGene(strain.gene, column.role, perturbation, allele)


def _perturbation_of(allele: str) -> str:
    """Return the perturbation that the name of an allele says."""
    for perturbation, known in _ALLELES.items():
        if re.fullmatch(known, allele):
            return perturbation
    return "allele"


def _is_gene(written: str, is_known: IsKnown, *, is_strain: bool = True) -> bool:
    """Whether a name, which may have the mark of a deletion or strain, is that of a gene."""
    gene = _strain_of(written, is_strain).gene
    return is_known(gene) or is_known(written) or is_systematic(gene)


class _Strain(NamedTuple):
    """A gene without the marks of a deletion or strain."""

    gene: str
    collection: str  # of strains, in lower case; empty if unknown


@cache
def _strain_of(written: str, is_strain: bool) -> _Strain:
    """Return the gene that a name means, and the collection of its strain."""
    gene = re.sub(DELETED, "", written)
    # In rad52delta the digits belong to the gene.
    if written.lower().endswith("delta") and written[:-5][-1:].isdigit():
        gene = written[:-5]
    match = _STRAIN.fullmatch(gene)
    if match and (is_strain or is_systematic(match[1])):
        return _Strain(match[1], match[2].lower())
    return _Strain(gene or written, "")


def chosen_phenotype(requested: str | None, phenotypes: Sequence[str], path: Path) -> str:
    """Return the requested phenotype, or the first of those that the file has."""
    if requested not in (None, *phenotypes):
        message = f"the file has no phenotype '{requested}', only {' and '.join(phenotypes)}"
        raise PhenotypeError(message, phenotypes, where=path)
    return requested or phenotypes[0]


def measured(table: Table, name: str, column: str, *, required: bool = False) -> Doubles:
    """Return a numeric column for a screen; values out of range are bad."""
    values = table.numbers(column, required=required)
    is_outside, reason = is_impossible(name, values)
    table.mark_bad(f"column '{column}' is {reason}", column, is_outside)
    return values
