"""A screen as it is written in a file, its gene names not yet looked up in a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch

from deltacell.arrays import Bools, Doubles, Ints, offsets_of, ragged_positions
from deltacell.cell import Genes
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN
from deltacell.cell.readers.names import names_not_found, text_of_notes, unresolved_notes
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source
from deltacell.errors import InputError, PhenotypeError
from deltacell.screen.columns import NO_INTERACTION, ONE_GENE_TWICE, SAME_GENE_TWICE, is_impossible
from deltacell.screen.coverage import Coverage
from deltacell.screen.genotypes import Genotypes, repeats_a_gene, set_keys, sets_with
from deltacell.screen.screen import Screen
from deltacell.table import Table

#: Why a reader drops a row whose score is missing.
NO_SCORE = "no score"

_PER_GENE = {"role": "unknown", "perturbation": "deletion", "allele": ""}


class WrittenScreen:
    """What a reader makes of a file.

    `genes` has one row per deleted gene: ``row``, ascending, ``name`` as written, and ``role``,
    ``perturbation`` and ``allele`` if they are known. `columns`, of each row or one value for all,
    are those of `Screen`, ``line`` if it is not that of the table, the ``panel`` of a study that
    used several arrays, and the ``part`` of a split. `dropped` are the rows to leave out, by
    reason. With `complete_coverage` the file lists all that was tested, and not only hits.
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
        table.refuse()
        self.path, self.sha256, self.notes = table.path, table.sha256, table.notes
        self.reader, self.study, self.complete_coverage = reader, study, complete_coverage
        given = {"line": table.lines, "phenotype": "interaction", "study": study, **columns}
        rows = pl.select(pl.lit(values).alias(name) for name, values in given.items())
        left_out: Bools = np.zeros(len(given["line"]), dtype=bool)
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
        self.deleted = genes.filter(kept.gather(genes["row"])).with_columns(
            pl.lit(value).alias(name) for name, value in _PER_GENE.items() if name not in genes
        )
        # A number for each name, the same whatever its case.
        ranks = self.deleted["name"].str.to_uppercase().rank("dense")
        self._codes: Ints = ranks.to_numpy().astype(np.int64) - 1

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def gene_names(self) -> list[str]:
        return self.deleted["name"].unique(maintain_order=True).to_list()

    def names_of(self, row: int) -> list[str]:
        return self.deleted["name"][int(self.offsets[row]) : int(self.offsets[row + 1])].to_list()

    def on(self, genes: Genes, on_unknown: Literal["error", "drop"] = "error") -> Screen:
        """Look up the names and return the screen.

        An interaction of one gene is always dropped and counted.
        """
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
            self._refuse(gene, reasons)
        counts = Counts(len(self) + sum(self.dropped.values()), int(left.sum()), dropped)
        not_found = unresolved_notes(names, gene)
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
        lost = ", ".join(f"{n:,} {why}" for why, n in dropped.items() if n) or "it has none"
        what = f"the screen is empty: no row with a genotype is left ({lost})"
        return InputError(what, code="empty-screen", where=self.path, fix=not_found)

    def _refuse(self, gene: Ints, reasons: Mapping[str, Bools]) -> None:
        """Raise where names are not found, all of them at once, or a gene is deleted twice."""
        not_found = reasons[UNKNOWN_GENE] | reasons[AMBIGUOUS_NAME]
        twice = reasons[SAME_GENE_TWICE] | reasons[ONE_GENE_TWICE]
        wrong = not_found if not_found.any() else twice
        if not wrong.any():
            return
        rows, first = f"{int(wrong.sum()):,} of {len(self):,} rows", int(np.argmax(wrong))
        mine = (gene < 0) & np.repeat(wrong, np.diff(self.offsets))
        absent = unresolved_notes(self.deleted["name"].filter(pl.Series(mine)), gene[mine])
        line = int(self.rows["line"][first])
        if absent:
            raise names_not_found(absent, rows, self.path, line)
        what = f"{rows} delete a gene twice, first {' '.join(self.names_of(first))}"
        fix = "Correct such rows, or drop them."
        raise InputError(what, code="gene-twice", where=self.path, line=line, fix=fix)


def chosen_phenotype(asked: str | None, there: Sequence[str], path: Path) -> str:
    """Return the phenotype to read: the one asked for, or the first that the file has."""
    if asked not in (None, *there):
        what = f"the file has {' and '.join(there)}, and no '{asked}'"
        raise PhenotypeError(what, code="missing-phenotype", where=path)
    return asked or there[0]


def measured(table: Table, name: str, column: str, *, required: bool = False) -> Doubles:
    """Return a column of a table as a column of a screen; values no measurement has are bad."""
    values = table.numbers(column, required=required)
    wrong, why = is_impossible(name, values)
    table.bad(f"column '{column}' is {why}", column, wrong)
    return values
