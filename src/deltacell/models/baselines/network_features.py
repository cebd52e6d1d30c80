"""What the relations of a cell say of a set of genes, as columns of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import scipy.sparse as sp

from deltacell.arrays import AnyArray, Floats, Ints
from deltacell.cell import Relation
from deltacell.models.baselines.gene_sets import GenePairs, GeneSets
from deltacell.models.baselines.spectral import spectral_embedding

Aggregate = Literal["min", "max", "mean"]
ALL_AGGREGATES: tuple[Aggregate, ...] = ("min", "max", "mean")

_SETS_A_BLOCK = 16_384
_ENTRIES_A_BLOCK = 4_000_000


class NetworkFeatures:
    """Columns that describe a set of genes by where they stand in the relations.

    For each relation:

    - of every gene, its spectral embedding and its degree (of a directed relation, in and out);
    - of every pair of genes, the weight of the edge between them (the larger of the two directions,
      0 without an edge), the number of common neighbours (of a directed relation, of common sources
      and of common targets), and the inner product of their spectral embeddings.

    Each is taken as the smallest, largest and mean over the genes, or the pairs, of the set, so a
    set may have any size and its genes any order. Columns over pairs are missing (NaN) for a set of
    one gene. The first column is the size of the set.

    Parameters
    ----------
    relations
        Gene networks over the genes that the sets index.
    n_genes
        Number of these genes.
    dimensions
        Width of the spectral embedding of a relation.
    over_genes, over_pairs
        Which of ``min``, ``max`` and ``mean`` to take over the genes and over the pairs of a set.
    seed
        Of the spectral embeddings, which are computed when first needed and kept.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        n_genes: int,
        *,
        dimensions: int = 8,
        over_genes: Sequence[Aggregate] = ALL_AGGREGATES,
        over_pairs: Sequence[Aggregate] = ALL_AGGREGATES,
        seed: int = 0,
    ) -> None:
        self.relations = list(relations)
        self.n_genes = n_genes
        self.dimensions = dimensions
        self.over_genes = tuple(over_genes)
        self.over_pairs = tuple(over_pairs)
        self.seed = seed

    @cached_property
    def names(self) -> list[str]:
        """Name of every column, as ``relation.what.aggregate``."""
        return [
            "size",
            *(f"{column}.{how}" for column in self._gene_columns() for how in self.over_genes),
            *(f"{column}.{how}" for column in self._pair_columns() for how in self.over_pairs),
        ]

    def __call__(self, sets: GeneSets) -> Floats:
        """Return the columns of each set, [sets, columns].

        Parameters
        ----------
        sets
            Sets of one gene or more.
        """
        features = np.empty((len(sets), len(self.names)), dtype=np.float32)
        for start in range(0, len(sets), _SETS_A_BLOCK):
            block = sets.slice(start, min(start + _SETS_A_BLOCK, len(sets)))
            pairs = block.pairs()
            features[start : start + len(block)] = np.concatenate(
                [
                    block.sizes[:, None],
                    aggregated(self.gene_table[block.genes], block.offsets, self.over_genes),
                    aggregated(self.pair_table(pairs), pairs.offsets, self.over_pairs),
                ],
                axis=1,
            )
        return features

    @cached_property
    def embeddings(self) -> list[Floats]:
        """The spectral embedding of the genes in each relation."""
        return [spectral_embedding(r, self.dimensions, seed=self.seed) for r in self.relations]

    @cached_property
    def gene_table(self) -> Floats:
        """The columns of every gene, [genes, columns]."""
        columns: list[AnyArray] = [np.empty((self.n_genes, 0))]
        for relation, embedding in zip(self.relations, self.embeddings, strict=True):
            columns += [embedding, relation.in_degree[:, None]]
            columns += [relation.out_degree[:, None]] if relation.directed else []
        return np.concatenate(columns, axis=1).astype(np.float32)

    def pair_table(self, pairs: GenePairs) -> Floats:
        """Return the columns of every pair, [pairs, columns]."""
        columns: list[AnyArray] = []
        for relation, embedding in zip(self.relations, self.embeddings, strict=True):
            columns.append(edge_weight(relation, pairs))
            columns.append(common_neighbours(relation, pairs))
            if relation.directed:
                columns.append(common_neighbours(relation.transpose, pairs))
            product = embedding[pairs.first].astype(np.float64) * embedding[pairs.second]
            columns.append(product.sum(axis=1))
        none: AnyArray = np.empty((0, len(pairs.first)))
        return np.vstack([none, *columns]).T.astype(np.float32)

    def _gene_columns(self) -> Iterator[str]:
        for relation in self.relations:
            sides = ("target", "source") if relation.directed else ("spectral",)
            degrees = ("in_degree", "out_degree") if relation.directed else ("degree",)
            yield from (
                f"{relation.name}.{side}{i}" for side in sides for i in range(self.dimensions)
            )
            yield from (f"{relation.name}.{degree}" for degree in degrees)

    def _pair_columns(self) -> Iterator[str]:
        for relation in self.relations:
            directed = ("common_sources", "common_targets")
            common = directed if relation.directed else ("common_neighbours",)
            yield from (f"{relation.name}.{what}" for what in ("weight", *common, "product"))


def aggregated(
    values: AnyArray,
    offsets: Ints,
    how: Sequence[Aggregate] = ALL_AGGREGATES,
    *,
    skip_missing: bool = False,
) -> AnyArray:
    """Return the smallest, largest or mean of each column over consecutive rows.

    Parameters
    ----------
    values
        [rows, columns].
    offsets
        Rows ``offsets[b] : offsets[b + 1]`` are piece ``b``; a piece without rows gives NaN.
    how
        Which aggregates, side by side for each column: [pieces, columns * aggregates].
    skip_missing
        Aggregate the values that are not NaN; where not set, one NaN makes the result NaN.
    """
    sizes = np.diff(offsets)
    filled = sizes > 0
    starts = offsets[:-1][filled]
    equal = int(sizes[0]) if len(sizes) and sizes[0] and (sizes == sizes[0]).all() else 0

    def reduced(function: np.ufunc, what: AnyArray) -> AnyArray:
        if not equal:
            return function.reduceat(what, starts, axis=0)
        # Pieces of one size are the usual case, and several times quicker side by side.
        of_piece = what.reshape(len(sizes), equal, -1)
        whole = of_piece[:, 0]
        for i in range(1, equal):
            whole = function(whole, of_piece[:, i])
        return whole

    result = np.full((len(sizes), values.shape[1], len(how)), np.nan)
    for i, aggregate in enumerate(how):
        if aggregate == "mean":
            wide = values.astype(np.float64)
            there = ~np.isnan(wide) if skip_missing else None
            total = reduced(np.add, wide if there is None else np.where(there, wide, 0))
            n = sizes[filled, None] if there is None else reduced(np.add, there.astype(np.int64))
            result[filled, :, i] = np.where(n > 0, total / np.maximum(n, 1), np.nan)
        else:
            result[filled, :, i] = reduced(_AGGREGATING[aggregate, skip_missing], values)
    return result.reshape(len(sizes), values.shape[1] * len(how))


_AGGREGATING = {
    ("min", False): np.minimum,
    ("min", True): np.fmin,
    ("max", False): np.maximum,
    ("max", True): np.fmax,
}


def edge_weight(relation: Relation, pairs: GenePairs) -> Floats:
    """Return the weight of the edge between the genes of each pair, 0 where there is none.

    Of two edges in opposite directions the larger weight is taken.
    """
    n = relation.n_genes
    target = np.repeat(np.arange(n, dtype=np.int64), relation.in_degree)
    # Rows ascend and so do the sources within a row: the keys are sorted as they stand.
    keys = target * n + relation.indices
    weight = _looked_up(keys, relation.weights, pairs.first * n + pairs.second)
    if relation.directed:
        turned = _looked_up(keys, relation.weights, pairs.second * n + pairs.first)
        weight = np.fmax(weight, turned)
    return np.nan_to_num(weight)


def common_neighbours(relation: Relation, pairs: GenePairs) -> Ints:
    """Return the number of sources that the two genes of each pair share."""
    n = relation.n_genes
    matrix = sp.csr_array(
        (np.ones(relation.n_entries, dtype=np.int32), relation.indices, relation.indptr),
        shape=(n, n),
    )
    degree = relation.in_degree
    entries = np.cumsum(degree[pairs.first] + degree[pairs.second])
    common = np.zeros(len(pairs.first), dtype=np.int64)
    for rows in _blocks(entries, _ENTRIES_A_BLOCK):
        first, second = matrix[pairs.first[rows]], matrix[pairs.second[rows]]
        common[rows] = np.asarray(first.multiply(second).sum(axis=1)).ravel()
    return common


def _looked_up(keys: Ints, values: Floats, wanted: Ints) -> Floats:
    """Return the value at each wanted key, NaN where it is not among the sorted keys."""
    at = np.searchsorted(keys, wanted)
    found = at < len(keys)
    found[found] = keys[at[found]] == wanted[found]
    result = np.full(len(wanted), np.nan, dtype=np.float32)
    result[found] = values[at[found]]
    return result


def _blocks(running: Ints, most: int) -> Iterator[slice]:
    """Yield slices of rows whose sizes, given as a running sum, add up to at most ``most``.

    A row that is larger alone has a slice of its own.
    """
    start = 0
    while start < len(running):
        before = running[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(running, before + most, side="right")))
        yield slice(start, stop)
        start = stop
