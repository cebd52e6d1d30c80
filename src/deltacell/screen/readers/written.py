"""A screen as it is written in a file, its gene names not yet looked up in a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch

from deltacell.arrays import AnyArray, Bools, Ints, offsets_of, ragged_positions
from deltacell.cell import Genes
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN
from deltacell.cell.readers.names import unresolved_notes
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source
from deltacell.errors import GeneNameError, InputError
from deltacell.screen.columns import (
    IMPOSSIBLE,
    NO_INTERACTION,
    ONE_GENE_TWICE,
    SAME_GENE_TWICE,
    is_impossible,
)
from deltacell.screen.coverage import Coverage
from deltacell.screen.genotypes import Genotypes, repeats_a_gene, set_keys
from deltacell.screen.screen import Screen
from deltacell.table import Table

#: Why a reader drops a row whose score is missing.
NO_SCORE = "no score"


@dataclass(frozen=True, eq=False)
class WrittenScreen:
    """What a reader makes of a file."""

    table: Table
    rows: Ints  # row of the table that each genotype stands on
    deleted: pl.DataFrame  # name as written, role, perturbation and allele of each deleted gene
    offsets: Ints  # where the genes of each genotype begin, and the end
    reader: str
    study: str  # where the file has several studies, what they are called together
    phenotype: pl.Series | str = "interaction"
    numbers: Mapping[str, AnyArray | float] = field(default_factory=dict)  # columns of `Screen`
    studies: pl.Series | None = None  # of each genotype, where the file has several
    panel: pl.Series | None = None  # array of each genotype, where the study used several
    parts: pl.Series | None = None  # part of a split of each genotype, or "", where it is given
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int | str] = field(default_factory=dict)
    complete_coverage: bool = False  # whether it lists all that was tested, and not only hits

    def __post_init__(self) -> None:
        if not len(self):
            left_out = ", ".join(f"{n:,} with {why}" for why, n in self.dropped.items() if n)
            raise InputError(
                "the screen is empty: the file has no row with a genotype"
                + (f" ({left_out})" if left_out else ""),
                code="empty-screen",
                where=self.path,
            )
        nameless = (self.deleted["name"] == "").to_numpy()
        if nameless.any():
            row = int(self._owner[np.argmax(nameless)])
            raise self._error(row, "the name of a gene is missing", "missing-gene")
        for column in IMPOSSIBLE.keys() & self.numbers.keys():
            values = np.broadcast_to(np.asarray(self.numbers[column], np.float64), len(self))
            wrong = is_impossible(column, values)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise self._error(
                    row,
                    f"the {column} {values[row]:g} is {IMPOSSIBLE[column]}",
                    "impossible-value",
                    "Correct it, leave the field empty, or give the column another name.",
                )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def path(self) -> Path:
        """The file."""
        return self.table.path

    @property
    def lines(self) -> Ints:
        """Line of the file that each genotype stands on, from 1."""
        return self.table.lines[self.rows]

    @property
    def gene_names(self) -> list[str]:
        """The distinct names, in order of appearance."""
        return self.deleted["name"].unique(maintain_order=True).to_list()

    def names_of(self, row: int) -> list[str]:
        """Return the names of the genes of a genotype, as written."""
        return self.deleted["name"][int(self.offsets[row]) : int(self.offsets[row + 1])].to_list()

    def on(self, genes: Genes, on_unknown: Literal["error", "drop"] = "error") -> Screen:
        """Look up the names and return the screen.

        The notes of its source say how many distinct gene sets and genes there are in the rows
        that were read: with names as written, and after aliases, where a name that the cell does
        not know stands for itself. An interaction of one gene is always dropped and counted.
        """
        names = self.deleted["name"]
        gene = genes.resolve(names).index
        interaction = (self._per_row(self.phenotype) == "interaction").to_numpy()
        alone = interaction & (np.diff(self.offsets) < 2)
        unknown = self._any(gene == UNKNOWN) & ~alone
        ambiguous = self._any(gene == AMBIGUOUS) & ~alone & ~unknown
        twice = repeats_a_gene(gene, self.offsets) & ~unknown & ~ambiguous
        as_written = twice & repeats_a_gene(self._codes, self.offsets)
        if on_unknown == "error":
            self._refuse(genes, gene, unknown | ambiguous, twice)
        kept = np.flatnonzero(~(alone | unknown | ambiguous | twice))
        counts = Counts(
            len(self) + sum(self.dropped.values()),
            len(kept),
            {
                **self.dropped,
                NO_INTERACTION: int(alone.sum()),
                UNKNOWN_GENE: int(unknown.sum()),
                AMBIGUOUS_NAME: int(ambiguous.sum()),
                SAME_GENE_TWICE: int(as_written.sum()),
                ONE_GENE_TWICE: int((twice & ~as_written).sum()),
            },
        )
        not_found = unresolved_notes(names, gene)
        if not len(kept):
            lost = ", ".join(f"{n:,} {why}" for why, n in counts.dropped.items())
            raise InputError(
                f"the screen is empty: of {counts.read:,} rows none is left ({lost})",
                code="empty-screen",
                where=self.path,
                fix="; ".join(f"{why.replace('_', ' ')}: {n}" for why, n in not_found.items())
                or None,
            )
        sizes = np.diff(self.offsets)[kept]
        at, offsets = ragged_positions(self.offsets[:-1][kept], sizes), offsets_of(sizes)
        deleted, kept_genes = self.deleted[at], gene[at]
        study = self._per_row(self.study if self.studies is None else self.studies).gather(kept)
        into = ", ".join(study.unique(maintain_order=True))
        notes = {**self.notes, **self._distinct(genes, gene), **not_found}
        columns: dict[str, Any] = {c: deleted[c] for c in ("role", "perturbation", "allele")}
        for name, value in self.numbers.items():
            columns[name] = value if np.ndim(value) == 0 else np.asarray(value)[kept]
        return Screen.build(
            genes,
            Genotypes(torch.from_numpy(kept_genes), torch.from_numpy(offsets)),
            coverage=Coverage.from_rows(
                kept_genes,
                offsets,
                deleted["role"],
                study,
                panel=None if self.panel is None else self.panel.gather(kept),
                complete=self.complete_coverage,
                n_genes=len(genes),
            ),
            sources=[Source(self.path.name, self.table.sha256, self.reader, counts, into, notes)],
            source_row=self.lines[kept],
            study=study,
            phenotype=self._per_row(self.phenotype).gather(kept),
            **columns,
        )

    @cached_property
    def _owner(self) -> Ints:
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @cached_property
    def _codes(self) -> Ints:
        """A number for each name, the same whatever its case."""
        codes = self.deleted["name"].str.to_uppercase().rank("dense").to_numpy()
        return codes.astype(np.int64) - 1

    def _any(self, per_gene: Bools) -> Bools:
        rows: Bools = np.zeros(len(self), dtype=bool)
        rows[self._owner[per_gene]] = True
        return rows

    def _per_row(self, value: pl.Series | str) -> pl.Series:
        return pl.repeat(value, len(self), eager=True) if isinstance(value, str) else value

    def _distinct(self, genes: Genes, gene: Ints) -> dict[str, int]:
        """Count sets and genes as written, and after aliases with unknown names as they are."""
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

    def _error(self, row: int, what: str, code: str, fix: str | None = None) -> InputError:
        return InputError(what, code=code, where=self.path, line=int(self.lines[row]), fix=fix)

    def _refuse(self, genes: Genes, gene: Ints, not_found: Bools, twice: Bools) -> None:
        """Raise where names are not found, all of them at once, or a gene is deleted twice."""
        if not_found.any():
            wrong = (gene < 0) & not_found[self._owner]
            absent = unresolved_notes(self.deleted["name"].filter(pl.Series(wrong)), gene[wrong])
            told = "; ".join(f"{why.replace('_', ' ')}: {n}" for why, n in absent.items())
            try:
                genes.index(self.deleted["name"][int(np.argmax(wrong))])
            except GeneNameError as error:
                raise GeneNameError(
                    f"{int(not_found.sum()):,} of {len(self):,} rows name genes that the cell does "
                    f"not know or that are ambiguous ({told}); first, {error.what}",
                    code="unknown-gene",
                    where=self.path,
                    line=int(self.lines[np.argmax(not_found)]),
                    fix="Give systematic names, drop such rows, or add the genes to the cell.",
                    rows=int(not_found.sum()),
                    **absent,
                ) from error
        if twice.any():
            row = int(np.argmax(twice))
            found = gene[self.offsets[row] : self.offsets[row + 1]]
            label = genes.label(next(int(g) for g in found if (found == g).sum() > 1))
            raise self._error(
                row,
                f"the genotype {' '.join(self.names_of(row))} deletes {label} twice",
                "gene-twice",
                "A genotype is a set of different genes; correct the row, or drop such rows.",
            )


def deleted_genes(
    names: pl.Series,
    role: pl.Series | str = "unknown",
    perturbation: pl.Series | str = "deletion",
    allele: pl.Series | str = "",
) -> pl.DataFrame:
    """Return the columns of deleted genes, each given as a series or as one value for all."""
    columns = {"name": names, "role": role, "perturbation": perturbation, "allele": allele}
    return pl.DataFrame(
        [
            (pl.repeat(c, len(names), eager=True) if isinstance(c, str) else c).alias(name)
            for name, c in columns.items()
        ]
    )


def one_of(
    values: pl.Series,
    allowed: Sequence[str],
    what: str,
    table: Table | None = None,
    rows: Ints | None = None,
) -> None:
    """Raise where a value is not allowed, with the line of its row of the table."""
    wrong = ~values.is_in(list(allowed)).to_numpy()
    if wrong.any():
        at = int(np.argmax(wrong))
        row = at if rows is None else int(rows[at])
        raise InputError(
            f"{what}: {values[at]!r} is not one of {', '.join(map(repr, allowed))}",
            code="unknown-value",
            where=None if table is None else table.path,
            line=None if table is None else int(table.lines[row]),
        )


def refuse_empty(table: Table) -> None:
    """Raise where a table has a header and no row."""
    if not len(table):
        raise InputError(
            "the screen is empty: there is a header and no row",
            code="empty-screen",
            where=table.path,
        )
