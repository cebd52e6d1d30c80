"""Screens of another organism on the genes of a cell, through a table of orthologues."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.base.arrays import Ints, offsets_of, ragged_positions
from deltacell.base.errors import InputError
from deltacell.cell import Genes
from deltacell.screen import Screen
from deltacell.screen.genotypes import repeats_a_gene
from deltacell.storage import sha256_of_file
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import File

MOST_ORTHOLOGUES = 4
"""A gene with more orthologues belongs to a family, and says little about each of them."""

NO_ORTHOLOGUE = "a gene without an orthologue"
MANY_ORTHOLOGUES = f"a gene with more than {MOST_ORTHOLOGUES} orthologues"
SAME_ORTHOLOGUE = "two genes with the same orthologue"


@dataclass(frozen=True, eq=False)
class Orthologues:
    """Pairs of genes of two organisms, each pair once, by the gene of the other organism."""

    of_other: Ints  # indices of the genes of the other organism, ascending
    of_cell: Ints  # indices of the genes of the cell
    file: str = ""
    sha256: str = ""

    @classmethod
    def of_names(cls, other: Genes, cell: Genes, names: pl.DataFrame) -> Orthologues | None:
        """Return the pairs in two columns of names; None if no row names a gene of each.

        The columns are those with the most names of either organism, in any order. Rows without a
        gene of each organism, such as a header, are ignored.
        """
        in_other = {column: other.resolve(names[column]) for column in names.columns}
        in_cell = {column: cell.resolve(names[column]) for column in names.columns}
        best: tuple[int, Ints, Ints] | None = None
        for column, genes in in_other.items():
            for cell_column, cell_genes in in_cell.items():
                is_pair = (genes >= 0) & (cell_genes >= 0)
                n_pairs = int(is_pair.sum())
                if column != cell_column and n_pairs > (0 if best is None else best[0]):
                    best = n_pairs, genes[is_pair], cell_genes[is_pair]
        if best is None:
            return None
        _, genes, cell_genes = best
        distinct = np.unique(np.stack([genes, cell_genes], axis=1), axis=0)
        return cls(distinct[:, 0].copy(), distinct[:, 1].copy())

    def __len__(self) -> int:
        return len(self.of_other)


def read_orthologues(path: str | os.PathLike[str], other: Genes, cell: Genes) -> Orthologues:
    """Read a table with the genes of two organisms in two of its columns, from any source."""
    file = File(path)
    found: list[Orthologues] = []
    for sheet in file.sheets:
        names = sheet.below(None).frame
        pairs = Orthologues.of_names(other, cell, names)
        if pairs is not None:
            found.append(pairs)
    if not found:
        what = "no row has a gene of the cell and one of the other organism"
        fix = "Give a table with the genes of both in two columns, as the screens name them."
        raise InputError(what, code="no-orthologues", where=path, fix=fix)
    most = max(found, key=len)
    sha256 = sha256_of_file(file.path)
    return Orthologues(most.of_other, most.of_cell, file.path.name, sha256)


def on_orthologues(screen: Screen, genes: Genes, orthologues: Orthologues) -> Screen:
    """Return a screen of another organism on the genes of a cell.

    A genotype becomes one of the cell for each choice of an orthologue for each of its genes, with
    the same score. What was tested, beyond the rows, is not known of the other genes.
    """
    mapped = _choices(screen, orthologues)
    counts = mapped.counts
    if not counts.kept:
        reasons = ", ".join(f"{n:,} with {reason}" for reason, n in counts.dropped.items())
        what = f"no genotype of the other organism has orthologues: of {counts.read:,}, {reasons}"
        raise InputError(what, code="no-orthologues", fix="Check the names in the table.")
    sizes = np.diff(screen.offsets)[mapped.rows]
    entries = ragged_positions(screen.offsets[:-1][mapped.rows], sizes)
    source = Source(orthologues.file, orthologues.sha256, "orthologues", counts, "genes")
    return Screen(
        genes,
        screen.rows[mapped.rows].with_columns(end=offsets_of(sizes)[1:]),
        screen.deleted[entries].with_columns(gene=mapped.genes),
        sources=[*screen.sources, source],
        stated_hits=screen.stated_hits,
    )


class _Choices(NamedTuple):
    """Genotypes with orthologues in place of their genes."""

    rows: Ints  # of the screen, [genotypes]
    genes: Ints  # of the cell, concatenated
    counts: Counts


def _choices(screen: Screen, orthologues: Orthologues) -> _Choices:
    """Return every choice of an orthologue for each gene, but none with one gene twice."""
    n_of_gene = np.bincount(orthologues.of_other, minlength=len(screen.genes))
    genes = screen.genotypes.genes.numpy()
    begins = screen.offsets[:-1]
    has_none = np.minimum.reduceat(n_of_gene[genes], begins) == 0
    most = np.maximum.reduceat(n_of_gene[genes], begins)
    has_many = ~has_none & (most > MOST_ORTHOLOGUES)
    usable = np.flatnonzero(~has_none & ~has_many)
    rows_by_size = [np.empty(0, dtype=np.int64)]
    genes_by_size = [np.empty(0, dtype=np.int64)]
    sizes = np.diff(screen.offsets)[usable]
    for size in np.unique(sizes):
        rows, chosen = _choices_of_size(screen, orthologues, n_of_gene, usable[sizes == size])
        rows_by_size.append(rows)
        genes_by_size.append(chosen.ravel())
    rows = np.concatenate(rows_by_size).astype(np.int64)
    n_kept = len(np.unique(rows))
    dropped = {
        NO_ORTHOLOGUE: int(has_none.sum()),
        MANY_ORTHOLOGUES: int(has_many.sum()),
        SAME_ORTHOLOGUE: len(usable) - n_kept,
    }
    kept_genes = np.concatenate(genes_by_size).astype(np.int64)
    return _Choices(rows, kept_genes, Counts(len(screen), n_kept, dropped))


def _choices_of_size(
    screen: Screen,
    orthologues: Orthologues,
    n_of_gene: Ints,
    rows: Ints,
) -> tuple[Ints, Ints]:
    """Return the choices for rows of one size: the row of each, and its genes, [choices, size]."""
    genes = screen.genotypes.genes.numpy()
    size = int(np.diff(screen.offsets)[rows[0]])
    first_of_gene = offsets_of(n_of_gene)[:-1]
    chosen = np.empty((len(rows), 0), dtype=np.int64)
    for position in range(size):
        of_row = genes[screen.offsets[rows] + position]
        n_choices = n_of_gene[of_row]
        places = ragged_positions(first_of_gene[of_row], n_choices)
        rows = np.repeat(rows, n_choices)
        before = np.repeat(chosen, n_choices, axis=0)
        chosen = np.concatenate([before, orthologues.of_cell[places][:, None]], axis=1)
    is_kept = ~repeats_a_gene(chosen.ravel(), np.arange(len(rows) + 1) * size)
    return rows[is_kept], chosen[is_kept]
