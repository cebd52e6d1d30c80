"""Stage 1 of `late`: rows of the cell, each with deleted genes that touch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor

from deltacell.base.arrays import Bools, Ints, offsets_of, ragged_positions
from deltacell.base.caching import kept_with
from deltacell.propagate.hop import GENE, Aggregate, HopShape, MessageShape
from deltacell.propagate.parallel.chunks import Chunks, RowFunction, Rows, row_wise
from deltacell.propagate.pool import WildTerms, pool_changes
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.strategy import Readout, Step


@dataclass(frozen=True, eq=False)
class TouchIndex:
    """The rows that each gene of a cell touches, ascending, and over which relations."""

    n_genes: int
    starts: Ints  # where the rows of each gene begin, and the end, [n_genes + 1]
    rows: Ints
    relations: Ints  # of each row, bit r for relation r, and `own_bit` for the gene itself
    n_sources: Ints  # of each row in the wild type, [relations, n_genes]

    @property
    def own_bit(self) -> int:
        """The bit of the row of the gene itself."""
        return len(self.n_sources)


@kept_with
def touch_index(*matrices: SparseMatrix) -> TouchIndex:
    """Return which rows each gene touches over some relations.

    >>> path = SparseMatrix([0, 1, 3, 5, 6], [1, 0, 2, 1, 3, 2])
    >>> index = touch_index(path)
    >>> index.rows[index.starts[2] : index.starts[3]].tolist()
    [1, 2, 3]
    >>> index.relations[index.starts[2] : index.starts[3]].tolist()
    [1, 2, 1]
    """
    n = matrices[0].shape[0]
    bits = eye_array(n, dtype=np.int64, format="csr") * np.int64(1 << len(matrices))
    for number, matrix in enumerate(matrices):
        by_source = matrix.transpose
        bit = np.full(by_source.n_entries, 1 << number, dtype=np.int64)
        bits = bits + csr_array((bit, by_source.indices, by_source.indptr), shape=(n, n))
    bits.sort_indices()
    return TouchIndex(
        n_genes=n,
        starts=bits.indptr.astype(np.int64),
        rows=bits.indices.astype(np.int64),
        relations=bits.data,
        n_sources=np.stack([np.diff(matrix.indptr) for matrix in matrices]),
    )


@dataclass(frozen=True, eq=False)
class SingleUnits:
    """The rows that each of some genes touches, each with that gene alone, gene by gene."""

    genes: Ints  # distinct, ascending, [g]
    starts: Ints  # where the units of each gene begin, and the end, [g + 1]
    gene: Ints  # the number of each unit's gene among `genes`, [u]
    rows: Ints  # [u]
    relations: Ints  # over which the gene touches the row, see `TouchIndex`, [u]

    def __len__(self) -> int:
        return len(self.rows)


def single_units(index: TouchIndex, genes: Ints) -> SingleUnits:
    """Return the units of distinct genes.

    >>> path = SparseMatrix([0, 1, 3, 5, 6], [1, 0, 2, 1, 3, 2])
    >>> single = single_units(touch_index(path), np.array([0, 2]))
    >>> single.rows.tolist()
    [0, 1, 1, 2, 3]
    >>> single.genes[single.gene].tolist()
    [0, 0, 2, 2, 2]
    """
    n_rows = np.diff(index.starts)[genes]
    positions = ragged_positions(index.starts[genes], n_rows)
    return SingleUnits(
        genes=genes,
        starts=offsets_of(n_rows),
        gene=np.repeat(np.arange(len(genes)), n_rows),
        rows=index.rows[positions],
        relations=index.relations[positions],
    )


@dataclass(frozen=True, eq=False)
class RemovedSources:
    """The sources that m units lose over one relation; all int64."""

    genes: Tensor  # the lost sources, [e]
    units: Tensor  # the unit that loses each, ascending, [e]
    n_left: Tensor  # the number of remaining sources, [m]


@dataclass(frozen=True, eq=False)
class ReachedMessage:
    """The units whose message is computed again, because a gene touches them over it."""

    units: Tensor  # int64 [m]
    removed: tuple[RemovedSources, ...]  # for each aggregate of the message


@dataclass(frozen=True, eq=False)
class Units:
    """Rows, each with deleted genes that touch it."""

    rows: Tensor  # the gene whose vector it is, int64 [u]
    living: Tensor  # whether that gene is not itself deleted, bool [u]
    messages: tuple[ReachedMessage, ...]  # of the hop


class UnitBuilder:
    """Makes units of one hop from the units of single genes."""

    def __init__(self, shape: HopShape, index: TouchIndex, single: SingleUnits) -> None:
        self._shape = shape
        self._index = index
        self._single = single

    def of_single_genes(self) -> Units:
        """Return the rows that each gene touches, without that gene."""
        own = np.arange(len(self._single))[:, None]
        return self.units(self._single.rows, deleted_units=own, touching_units=own)

    def units(self, rows: Ints, *, deleted_units: Ints, touching_units: Ints) -> Units:
        """Return rows, each without some of the genes that touch it.

        Such a gene stands here as a single unit: the number, among the `SingleUnits`, of the unit
        of that gene and the row.

        Parameters
        ----------
        rows
            The gene whose vector each unit is, [u].
        deleted_units
            The units of the deleted genes, [u, k], -1 for none.
        touching_units
            The units of the genes that decide which messages are computed again, [u, k]; those of
            a genotype, so that all subsets of its genes compute the same messages.
        """
        deleted_over = self._relations_of(deleted_units)
        touched_over = self._relations_of(touching_units)
        is_own = (deleted_over >> self._index.own_bit) & 1
        living: Bools = (is_own == 0).all(axis=1)
        messages = []
        first = 0
        for message in self._shape.messages:
            relations = range(first, first + len(message.aggregates))
            mask = sum(1 << relation for relation in relations)
            is_reached = (touched_over & mask != 0).any(axis=1)
            # The vector of a deleted gene is never read.
            units = np.flatnonzero(living & is_reached)
            removed = tuple(
                self._removed(relation, rows[units], deleted_units[units], deleted_over[units])
                for relation in relations
            )
            messages.append(ReachedMessage(as_indices(units), removed))
            first = relations.stop
        return Units(as_indices(rows), torch.from_numpy(living), tuple(messages))

    def _relations_of(self, units: Ints) -> Ints:
        """Return over which relations the genes of single units touch; 0 for none."""
        return np.where(units >= 0, self._single.relations[units], 0)

    def _removed(
        self, relation: int, rows: Ints, deleted_units: Ints, over: Ints
    ) -> RemovedSources:
        is_source = (over >> relation) & 1
        unit, place = np.nonzero(is_source)
        genes = self._single.genes[self._single.gene[deleted_units[unit, place]]]
        n_left = self._index.n_sources[relation][rows] - is_source.sum(axis=1)
        return RemovedSources(as_indices(genes), as_indices(unit), as_indices(n_left))


@dataclass(frozen=True, eq=False)
class UnitTerms:
    """The terms of units in the two sums of ``z = N / (1 + Q)``."""

    numerator: Tensor  # [u, hidden]
    denominator: Tensor  # [u, 1]


def terms_of_units(
    step: Step,
    units: Units,
    chunks: Chunks,
    *,
    in_double: bool = False,
) -> UnitTerms:
    """Return the terms of units in N and Q; in float64 and without autocast if `in_double`."""
    pool = step.pool
    wild = pool.at(units.rows)
    living = units.living.to(pool.weight.dtype)
    if not in_double:
        with step.hops[0].around():
            vectors = vectors_of_units(step, units, chunks, step.wild_type.last[GENE].dtype)
        return _terms(step.readout, units.rows, vectors, living, wild, chunks)
    with torch.autocast(pool.value.device.type, enabled=False):
        with step.hops[0].around():
            vectors = vectors_of_units(step, units, chunks, torch.float64)
        return _terms(step.readout, units.rows, vectors, living.double(), wild.double(), chunks)


def _terms(
    readout: Readout,
    rows: Tensor,
    vectors: Tensor,
    living: Tensor,
    wild: WildTerms,
    chunks: Chunks,
) -> UnitTerms:
    inputs = [vectors, living, wild.total, wild.weight, wild.value, wild.from_pooled]
    numerator, denominator = row_wise(_Changes(readout), rows, inputs, chunks)
    return UnitTerms(numerator, denominator.unsqueeze(1))


class _Changes(RowFunction):
    """The readout of vectors, compared with the wild type by `pool_changes`."""

    def __init__(self, readout: Readout) -> None:
        self._readout = readout
        self.parameters = list(readout.parameters())

    def forward(self, rows: Rows, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the terms of rows in N and Q."""
        vectors, living, *wild = inputs
        return pool_changes(self._readout.terms(vectors, rows), living, WildTerms(*wild))


def vectors_of_units(step: Step, units: Units, chunks: Chunks, dtype: torch.dtype) -> Tensor:
    """Return the vector of every unit after the hop, [units, hidden].

    The hop adds up messages, so only those that a deletion reaches are exchanged:

        vector(unit) = wild type's vector + sum of (new message - wild type's message)
    """
    before = step.wild_type.states[0][GENE]
    vectors = _rows(step.wild_type.last[GENE], units.rows, dtype)
    wild_messages = step.wild_type.messages[0]
    for message, reached, wild in zip(
        step.hops[0].messages,
        units.messages,
        wild_messages,
        strict=True,
    ):
        rows = units.rows.index_select(0, reached.units)
        received = [
            _received_without(removed, aggregate, sums, before, rows, dtype)
            for aggregate, sums, removed in zip(
                message.aggregates,
                wild.sums,
                reached.removed,
                strict=True,
            )
        ]
        new = message.at_rows(rows, _rows(before, rows, dtype), received, chunks)
        change = new - wild.message.index_select(0, rows)
        vectors = vectors.index_add_(0, reached.units, change.to(dtype))
    return vectors


def _received_without(
    removed: RemovedSources,
    aggregate: Aggregate,
    wild_sums: Tensor,
    vectors: Tensor,
    rows: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return what rows receive over one relation from their living sources, [rows, hidden].

    This is the wild type's sum minus the vectors of the deleted sources. A mean is divided by the
    number of sources that are left, or by 1 if there are none.
    """
    received = _rows(wild_sums, rows, dtype)
    received = received.index_add_(0, removed.units, _rows(vectors, removed.genes, dtype), alpha=-1)
    if aggregate.mean:
        n_left = removed.n_left.clamp(min=1).to(dtype)
        received = received * n_left.reciprocal().unsqueeze(1)
    return received


def _rows(vectors: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    return vectors.index_select(0, rows).to(dtype)


def relations_of(messages: Sequence[MessageShape]) -> list[SparseMatrix]:
    """Return the matrices of all aggregates, message by message."""
    aggregates = chain.from_iterable(message.aggregates for message in messages)
    return [aggregate.matrix for aggregate in aggregates]


def as_indices(array: Ints) -> Tensor:
    """Return an array as an int64 tensor."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
