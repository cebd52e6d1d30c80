"""A screen as written in a file, before its gene names are looked up in a cell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
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
    is_systematic,
    names_in,
    names_not_found,
    text_of_notes,
    unresolved_notes,
)
from deltacell.screen.coverage import Coverage
from deltacell.screen.genotypes import Genotypes, repeats_a_gene, set_keys, sets_with
from deltacell.screen.readers.joined import (
    IsKnown,
    Joins,
    may_be_joined,
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
_EXAMPLES = 3
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


class WrittenScreen:
    """The result of a reader.

    `genes` is the result of `deleted_genes`. `columns`, with one value per row or one for all, are
    those of `Screen`, the ``panel`` of a study with several arrays, and the ``part`` of a split.
    `dropped` has a mask of rows by reason. With `complete_coverage` the file lists all that was
    tested, and not only hits.
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
    ) -> None:
        table.raise_if_bad()
        self.path, self.sha256, self.notes = table.path, table.sha256, table.notes
        self.reader, self.study, self.complete_coverage = reader, study, complete_coverage
        given = {"line": table.lines, "phenotype": "interaction", "study": study, **columns}
        rows = pl.select(pl.lit(values).alias(name) for name, values in given.items())
        left_out: Bools = np.zeros(len(table), dtype=bool)
        self.dropped: dict[str, int] = {}
        for why, mask in (dropped or {}).items():
            self.dropped[why] = int((mask & ~left_out).sum())
            left_out |= mask
        if left_out.all():
            raise self._empty(self.dropped)
        kept = pl.Series(~left_out)
        sizes = np.bincount(genes["row"].to_numpy(), minlength=len(rows))
        self.rows = rows.filter(kept)
        self.offsets = offsets_of(sizes[~left_out])
        self.deleted = genes.filter(kept.gather(genes["row"]))
        # A number for each name, ignoring case.
        ranks = self.deleted["name"].str.to_uppercase().rank("dense")
        self._codes: Ints = ranks.to_numpy().astype(np.int64) - 1

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def gene_names(self) -> list[str]:
        return self.deleted["name"].unique(maintain_order=True).to_list()

    def names_of(self, row: int) -> list[str]:
        return self.deleted["name"][int(self.offsets[row]) : int(self.offsets[row + 1])].to_list()

    @property
    def split(self) -> tuple[list[list[str]], list[str]]:
        """The gene sets of the rows that have a part of a split, and these parts."""
        parts = self.rows["part"].to_list() if "part" in self.rows else []
        named = [row for row, part in enumerate(parts) if part]
        return [self.names_of(row) for row in named], [parts[row] for row in named]

    def on(self, genes: Genes, on_unknown: Literal["error", "drop"] = "error") -> Screen:
        """Look up the names; interactions of one gene are always dropped and counted."""
        names = self.deleted["name"]
        gene = genes.resolve(names)
        interaction = (self.rows["phenotype"] == "interaction").to_numpy()
        twice = repeats_a_gene(gene, self.offsets)
        reasons = {
            NO_INTERACTION: interaction & (np.diff(self.offsets) < 2),
            UNKNOWN_GENE: sets_with(gene == UNKNOWN, self.offsets),
            AMBIGUOUS_NAME: sets_with(gene == AMBIGUOUS, self.offsets),
            SAME_GENE_TWICE: twice & repeats_a_gene(self._codes, self.offsets),
            ONE_GENE_TWICE: twice,
        }
        dropped, left = dict(self.dropped), np.ones(len(self), dtype=bool)
        for why, mask in reasons.items():
            reasons[why] = mask & left
            dropped[why] = int(reasons[why].sum())
            left &= ~mask
        if on_unknown == "error":
            self._refuse(genes, gene, reasons)
        counts = Counts(len(self) + sum(self.dropped.values()), int(left.sum()), dropped)
        not_found = self._notes_on_names(genes, names, gene)
        if not left.any():
            raise self._empty(counts.dropped, text_of_notes(not_found) or None)
        sizes = np.diff(self.offsets)[left]
        at, offsets = ragged_positions(self.offsets[:-1][left], sizes), offsets_of(sizes)
        deleted, rows = self.deleted[at], self.rows.filter(pl.Series(left))
        columns: dict[str, Any] = {name: deleted[name] for name in _PER_GENE}
        columns |= {n: rows[n] for n in rows.columns if n not in ("line", "panel", "part")}
        into = ", ".join(rows["study"].unique(maintain_order=True))
        notes = {**self.notes, **self._distinct(genes, gene), **not_found}
        coverage = Coverage.from_rows(
            gene[at],
            offsets,
            deleted["role"],
            rows["study"],
            panel=rows.get_column("panel", default=None),
            complete=self.complete_coverage,
        )
        return Screen.build(
            genes,
            Genotypes(torch.from_numpy(gene[at]), torch.from_numpy(offsets)),
            coverage=coverage,
            sources=[Source(self.path.name, self.sha256, self.reader, counts, into, notes)],
            source_row=rows["line"],
            **columns,
        )

    def _notes_on_names(self, genes: Genes, names: pl.Series, gene: Ints) -> dict[str, str]:
        """Return notes on the names that are not found, and on those that may be several genes."""
        unknown = names.filter(pl.Series(gene == UNKNOWN)).unique(maintain_order=True)
        notes = unresolved_notes(names, gene, genes)
        joined = several_genes(unknown, lambda name: _is_gene(name, genes.is_known))
        if joined:
            more = ", …" if len(joined) > _EXAMPLES else ""
            notes[JOINED_NAMES] = f"{len(joined):,}: {', '.join(joined[:_EXAMPLES])}{more}"
        return notes

    def _distinct(self, genes: Genes, gene: Ints) -> dict[str, int]:
        n_names = int(self._codes.max()) + 1
        resolved = np.where(gene < 0, len(genes) + self._codes, gene)

        def sets(codes: Ints) -> int:
            keys = set_keys(codes, self.offsets, len(genes) + n_names)
            return len(np.unique(keys[~repeats_a_gene(codes, self.offsets)]))

        return {
            "distinct_sets_as_written": sets(self._codes),
            "genes_as_written": n_names,
            "distinct_sets": sets(resolved),
            "genes": len(np.unique(resolved)),
        }

    def _empty(self, dropped: Mapping[str, int], not_found: str | None = None) -> InputError:
        reasons = {why: n for why, n in dropped.items() if n}
        if reasons.keys() == {NO_SCORE}:
            what = f"none of the {reasons[NO_SCORE]:,} rows has a score"
            fix = (
                "Without scores, a list of genes cannot be a screen; fill in the column of scores."
            )
            return InputError(what, code="no-scores", where=self.path, fix=fix)
        lost = ", ".join(f"{n:,} {why}" for why, n in reasons.items()) or "no rows"
        what = f"the screen is empty, as every row was dropped ({lost})"
        return InputError(what, code="empty-screen", where=self.path, fix=not_found)

    def _refuse(self, genes: Genes, gene: Ints, reasons: Mapping[str, Bools]) -> None:
        """Raise if names are not found, listing all of them, or a gene is deleted twice."""
        not_found = reasons[UNKNOWN_GENE] | reasons[AMBIGUOUS_NAME]
        twice = reasons[SAME_GENE_TWICE] | reasons[ONE_GENE_TWICE]
        wrong = not_found if not_found.any() else twice
        if not wrong.any():
            return
        rows, first = f"{int(wrong.sum()):,} of {len(self):,} rows", int(np.argmax(wrong))
        mine = (gene < 0) & np.repeat(wrong, np.diff(self.offsets))
        absent = self._notes_on_names(
            genes, self.deleted["name"].filter(pl.Series(mine)), gene[mine]
        )
        line = int(self.rows["line"][first])
        if absent:
            raise names_not_found(absent, rows, self.path, line)
        what = f"{rows} delete a gene twice, first {' '.join(self.names_of(first))}"
        fix = "Correct such rows, or drop them."
        raise InputError(what, code="gene-twice", where=self.path, line=line, fix=fix)


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
) -> pl.DataFrame:
    """Return a row per deleted gene: its ``row``, ``name``, ``role``, ``perturbation``, ``allele``.

    Allele names that do not match the genes of a field one to one are ignored. Without a column of
    alleles, the allele is the field itself, unless it is the gene's name. Empty fields are bad if
    `required`. `is_known` says whether a name is a gene of the cell; without it, a field that may
    be several genes is bad unless they are known otherwise, see `split_field`.
    """
    for column in columns:
        if required:
            names_in(table, column.name)
        else:
            longest = 1 if column.joins is Joins.never else _MOST_JOINED
            check_lengths(table, column.name, longest * LONGEST_NAME)
    alone = {
        _gene_of(field, column.is_strain)[0].upper()
        for column in columns
        if column.joins is Joins.of_known_genes
        for field in table.frame[column.name].unique()
        if not may_be_joined(field)
    }

    def is_gene(name: str) -> bool:
        return _is_gene(
            name, lambda gene: gene.upper() in alone or bool(is_known and is_known(gene))
        )

    each = [
        pl.select(
            field=present(table.frame[column.name]),
            alleles=table.frame.get_column(column.alleles or "", default=pl.lit("")),
            column=i,
        ).with_row_index("row")
        for i, column in enumerate(columns)
    ]
    fields = pl.concat(each).filter(pl.col("field") != "").sort("row", maintain_order=True)
    keys, told = ["field", "alleles", "column"], []
    unclear = set()
    for field, alleles, i in fields.select(keys).unique(maintain_order=True).iter_rows():
        names = split_field(field, columns[i].joins, is_gene)
        if columns[i].joins is Joins.of_known_genes and names == [field] and may_be_joined(field):
            unclear.add(field)
        given = [allele.strip() for allele in alleles.split("+")]
        given = given if len(given) == len(names) else [""] * len(names)
        for name, allele in zip(names, given, strict=True):
            gene, collection = _gene_of(name, columns[i].is_strain)
            by_name = (p for p, known in _ALLELES.items() if re.fullmatch(known, allele))
            perturbation = COLLECTIONS.get(collection) or next(by_name, "allele")
            if columns[i].alleles is None and gene != name:
                allele = name
            told.append((field, alleles, i, gene, columns[i].role, perturbation, allele))
    for column in columns if unclear and is_known is None else ():
        table.mark_bad(
            "one name or several, which only --columns genes=COLUMN or a list of genes can tell",
            column.name,
            table.frame[column.name].is_in(list(unclear)),
        )
    schema = fields.select(keys).schema | dict.fromkeys(("name", *_PER_GENE), pl.String)
    described = pl.DataFrame(told, schema, orient="row")
    genes = fields.join(described, on=keys, maintain_order="left_right")
    return genes.select("row", "name", *_PER_GENE)


def _is_gene(written: str, is_known: IsKnown) -> bool:
    """Whether a name, which may have the mark of a deletion or strain, is that of a gene."""
    gene = _gene_of(written, is_strain=True)[0]
    return is_known(gene) or is_known(written) or is_systematic(gene)


@cache
def _gene_of(written: str, is_strain: bool) -> tuple[str, str]:
    """Return a gene without the marks of a deletion or strain, and the strain's collection."""
    gene = re.sub(DELETED, "", written)
    # In rad52delta the digits belong to the gene.
    if written.lower().endswith("delta") and written[:-5][-1:].isdigit():
        gene = written[:-5]
    found = _STRAIN.fullmatch(gene)
    if found and (is_strain or is_systematic(found[1])):
        return found[1], found[2].lower()
    return gene or written, ""


def chosen_phenotype(asked: str | None, there: Sequence[str], path: Path) -> str:
    """Return the requested phenotype, or the first that the file has."""
    if asked not in (None, *there):
        what = f"the file has no phenotype '{asked}', only {' and '.join(there)}"
        raise PhenotypeError(what, there, where=path)
    return asked or there[0]


def measured(table: Table, name: str, column: str, *, required: bool = False) -> Doubles:
    """Return a numeric column for a screen; values out of range are bad."""
    values = table.numbers(column, required=required)
    wrong, why = is_impossible(name, values)
    table.mark_bad(f"column '{column}' is {why}", column, wrong)
    return values
