"""A screen as it is written in a file, its gene names not yet looked up in a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

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
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.keys import repeats_a_gene, set_keys
from deltacell.screen.screen import Screen


@dataclass(frozen=True, eq=False)
class WrittenScreen:
    """What a reader makes of a file.

    Parameters
    ----------
    names, offsets
        The genotypes: names of deleted genes as written, strain suffixes stripped, as a ragged
        pair.
    role, perturbation, allele
        Of each deleted gene.
    source_row
        Line of the file that each genotype stands on, from 1.
    path, sha256
        The file.
    reader
        Name of the reader.
    study
        Its name; where the file has several studies, what they are called together.
    phenotype
        Of each genotype, or one for all.
    score, sign, standard_deviation, p_value, query_fitness, array_fitness, replicates
        Of each genotype. A missing number is NaN; a sign not given is the score's.
    studies
        The study of each genotype, where the file has several.
    panel
        The array that each genotype was made on, where the study used several.
    parts
        The part of a split that each genotype belongs to (``train``, ``validation``, ``test``, or
        nothing), where the file says so.
    dropped
        Rows of the file that the reader left out, by reason.
    notes
        Further counts worth knowing.
    complete_coverage
        Whether the file lists all that was tested, and not only the hits.
    """

    names: pl.Series
    offsets: Ints
    role: pl.Series
    perturbation: pl.Series
    allele: pl.Series
    source_row: Ints
    path: Path
    sha256: str
    reader: str
    study: str
    phenotype: pl.Series | str
    score: AnyArray | float = np.nan
    sign: AnyArray | None = None
    standard_deviation: AnyArray | float = np.nan
    p_value: AnyArray | float = np.nan
    query_fitness: AnyArray | float = np.nan
    array_fitness: AnyArray | float = np.nan
    replicates: AnyArray | int = 1
    studies: pl.Series | None = None
    panel: pl.Series | None = None
    parts: pl.Series | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int | str] = field(default_factory=dict)
    complete_coverage: bool = False

    def __post_init__(self) -> None:
        if not len(self):
            left_out = ", ".join(f"{n:,} with {why}" for why, n in self.dropped.items() if n)
            raise InputError(
                "the screen is empty: the file has no row with a genotype"
                + (f" ({left_out})" if left_out else ""),
                where=self.path,
            )
        nameless = (self.names == "").to_numpy()
        if nameless.any():
            raise self._error(self._owner[np.argmax(nameless)], "the name of a gene is missing")
        self._refuse_impossible()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lines(self) -> Ints:
        """Line of the file that each genotype stands on, from 1."""
        return self.source_row

    @property
    def gene_names(self) -> list[str]:
        """The distinct names, in the order in which they come."""
        return self.names.unique(maintain_order=True).to_list()

    def on(self, genes: Genes, on_unknown: Literal["error", "drop"] = "error") -> Screen:
        """Look up the names and return the screen.

        The notes of its source say how many distinct gene sets and genes there are in the rows
        that were read: with names as written, and after aliases, where a name that the cell does
        not know stands for itself. What was kept is counted by the screen. They also name the
        first genes that were not found. An interaction of one gene is dropped and counted.

        Parameters
        ----------
        genes
            The genes of the cell.
        on_unknown
            What to do with a row that names a gene which these do not have, or that names one
            gene twice, as written or by two of its names: raise an error with its line, or drop
            and count it.
            To add unknown genes instead, extend `genes` by `gene_names` first.
        """
        gene = genes.resolve(self.names).index
        alone = self._interactions_of_one_gene()
        unknown = self._any(gene == UNKNOWN) & ~alone
        ambiguous = self._any(gene == AMBIGUOUS) & ~alone & ~unknown
        twice = repeats_a_gene(gene, self.offsets) & ~unknown & ~ambiguous
        as_written = twice & repeats_a_gene(self._codes, self.offsets)
        if on_unknown == "error":
            self._refuse_unresolved(genes, gene, unknown | ambiguous, twice, as_written)
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
        if not len(kept):
            lost = ", ".join(f"{n:,} {why}" for why, n in counts.dropped.items())
            not_found = unresolved_notes(self.names, gene)
            raise InputError(
                f"the screen is empty: of {counts.read:,} rows none is left ({lost})",
                where=self.path,
                fix="; ".join(f"{why.replace('_', ' ')}: {n}" for why, n in not_found.items())
                or None,
            )
        return self._screen(genes, gene, kept, counts)

    def _screen(self, genes: Genes, gene: Ints, kept: Ints, counts: Counts) -> Screen:
        sizes = np.diff(self.offsets)[kept]
        at = ragged_positions(self.offsets[:-1][kept], sizes)
        offsets, kept_genes = offsets_of(sizes), gene[at]
        role = self.role.gather(at)
        studies = self.study if self.studies is None else self.studies
        study = self._per_row(studies).gather(kept)
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        numbers = {
            name: value if np.ndim(value) == 0 else np.asarray(value)[kept]
            for name, value in numbers.items()
            if value is not None
        }
        notes = {**self.notes, **self._distinct(genes, gene), **unresolved_notes(self.names, gene)}
        into = ", ".join(study.unique(maintain_order=True))
        return Screen.build(
            genes,
            Genotypes(torch.from_numpy(kept_genes), torch.from_numpy(offsets)),
            coverage=Coverage.from_rows(
                kept_genes,
                offsets,
                role,
                study,
                panel=None if self.panel is None else self.panel.gather(kept),
                complete=self.complete_coverage,
                n_genes=len(genes),
            ),
            sources=[Source(self.path.name, self.sha256, self.reader, counts, into, notes)],
            source_row=self.source_row[kept],
            role=role,
            perturbation=self.perturbation.gather(at),
            allele=self.allele.gather(at),
            study=study,
            phenotype=self._per_row(self.phenotype).gather(kept),
            **numbers,
        )

    @cached_property
    def _owner(self) -> Ints:
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @cached_property
    def _codes(self) -> Ints:
        """A number for each name, the same whatever its case."""
        codes = self.names.str.to_uppercase().rank("dense").to_numpy().astype(np.int64)
        return codes - 1

    def _distinct(self, genes: Genes, gene: Ints) -> dict[str, int]:
        """Count sets and genes as written, and after aliases with unknown names as they are."""
        n_names = int(self._codes.max()) + 1
        resolved = np.where(gene < 0, len(genes) + self._codes, gene)
        before = set_keys(self._codes, self.offsets, n_names)
        after = set_keys(resolved, self.offsets, len(genes) + n_names)
        return {
            "distinct_sets_as_written": len(
                np.unique(before[~repeats_a_gene(self._codes, self.offsets)])
            ),
            "genes_as_written": n_names,
            "distinct_sets": len(np.unique(after[~repeats_a_gene(resolved, self.offsets)])),
            "genes": len(np.unique(resolved)),
        }

    def _per_row(self, value: pl.Series | str) -> pl.Series:
        return pl.repeat(value, len(self), eager=True) if isinstance(value, str) else value

    def _any(self, per_gene: Bools) -> Bools:
        rows: Bools = np.zeros(len(self), dtype=bool)
        rows[self._owner[per_gene]] = True
        return rows

    def names_of(self, row: int) -> list[str]:
        """Return the names of the genes of a genotype, as written."""
        return self.names[int(self.offsets[row]) : int(self.offsets[row + 1])].to_list()

    def _error(self, row: int, what: str, fix: str | None = None) -> InputError:
        return InputError(what, where=self.path, line=int(self.source_row[row]), fix=fix)

    def _interactions_of_one_gene(self) -> Bools:
        interaction = (self._per_row(self.phenotype) == "interaction").to_numpy()
        alone: Bools = interaction & (np.diff(self.offsets) < 2)
        return alone

    def _refuse_impossible(self) -> None:
        for column in IMPOSSIBLE:
            values = np.broadcast_to(np.asarray(getattr(self, column), dtype=np.float64), len(self))
            wrong = is_impossible(column, values)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise self._error(
                    row,
                    f"the {column} {values[row]:g} is {IMPOSSIBLE[column]}",
                    "Correct it, leave the field empty, or give the column another name.",
                )

    def _refuse_unresolved(
        self, genes: Genes, gene: Ints, not_found: Bools, twice: Bools, as_written: Bools
    ) -> None:
        if not_found.any():
            at = int(np.argmax((gene < 0) & not_found[self._owner]))
            try:
                genes.index(self.names[at])
            except GeneNameError as error:
                raise GeneNameError(
                    error.what,
                    where=self.path,
                    line=int(self.source_row[self._owner[at]]),
                    fix="Give the systematic name, drop such rows, or add the gene to the cell.",
                ) from error
        if twice.any():
            row = int(np.argmax(twice))
            found, times = np.unique(
                gene[self.offsets[row] : self.offsets[row + 1]], return_counts=True
            )
            label = genes.label(int(found[times > 1][0]))
            raise self._error(
                row,
                f"the genotype {' '.join(self.names_of(row))} deletes the same gene twice"
                + ("" if as_written[row] else f", as two of the names are of {label}"),
                "A genotype is a set of different genes; correct the row, or drop such rows.",
            )


_NUMBERS = (
    "score",
    "sign",
    "standard_deviation",
    "p_value",
    "query_fitness",
    "array_fitness",
    "replicates",
)
