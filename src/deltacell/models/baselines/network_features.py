"""What the relations of a cell say of a set of genes, as columns of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from deltacell.arrays import AnyArray, Doubles, Floats, Ints
from deltacell.cell import Relation
from deltacell.models.baselines.gene_sets import GenePairs, GeneSets, look_up
from deltacell.models.gene_vectors import largest_signs

Aggregate = Literal["min", "max", "mean"]
ALL_AGGREGATES: tuple[Aggregate, ...] = ("min", "max", "mean")

_SETS_PER_BLOCK = 16_384
_ENTRIES_PER_BLOCK = 4_000_000
_SMALL_ENOUGH_FOR_DENSE = 512
_NO_SINGULAR_VALUE = 1e-9


class NetworkFeatures:
    """Columns that describe a set of genes by their positions in the relations.

    For each relation:

    - of every gene, its spectral embedding and its degree (of a directed relation, in and out);
    - of every pair of genes, the weight of the edge between them (the larger of the two directions,
      0 without an edge), the number of common neighbours (of a directed relation, of common sources
      and of common targets), and the inner product of their spectral embeddings.

    Each is taken as the smallest, largest and mean over the genes, or the pairs, of the set, so a
    set may have any size and its genes any order. Columns over pairs are missing (NaN) for a set of
    one gene. The first column is the size of the set.

    The spectral embeddings, ``dimensions`` wide, are computed when first needed and kept.
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

    def __call__(self, sets: GeneSets) -> Floats:
        """Return the columns of sets of one gene or more, [sets, columns]."""
        blocks = []
        for start in range(0, len(sets), _SETS_PER_BLOCK):
            block = sets.slice(start, min(start + _SETS_PER_BLOCK, len(sets)))
            pairs = block.pairs()
            columns = [
                block.sizes[:, None],
                aggregated(self.gene_table[block.genes], block.offsets, self.over_genes),
                aggregated(self.pair_table(pairs), pairs.offsets, self.over_pairs),
            ]
            blocks.append(np.concatenate([c.astype(np.float32) for c in columns], axis=1))
        return np.concatenate(blocks)

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
        columns: list[AnyArray] = [np.empty((0, len(pairs.first)))]
        for relation, embedding in zip(self.relations, self.embeddings, strict=True):
            columns.append(_edge_weight(relation, pairs))
            columns.append(_common_neighbours(relation, pairs))
            if relation.directed:
                columns.append(_common_neighbours(relation.transpose, pairs))
            product = embedding[pairs.first].astype(np.float64) * embedding[pairs.second]
            columns.append(product.sum(axis=1))
        return np.vstack(columns).T.astype(np.float32)


def aggregated(
    values: AnyArray,
    offsets: Ints,
    how: Sequence[Aggregate] = ALL_AGGREGATES,
    *,
    skip_missing: bool = False,
) -> AnyArray:
    """Return the smallest, largest or mean of each column over consecutive rows.

    Rows ``offsets[b] : offsets[b + 1]`` of values [rows, columns] are piece ``b``; a piece without
    rows gives NaN, and so does one with a NaN unless missing values are skipped. The aggregates
    stand side by side for each column, [pieces, columns * aggregates].
    """
    sizes = np.diff(offsets)
    filled = sizes > 0
    starts = offsets[:-1][filled]
    equal = int(sizes[0]) if len(sizes) and sizes[0] and (sizes == sizes[0]).all() else 0

    def reduced(function: np.ufunc, what: AnyArray) -> AnyArray:
        if not equal:
            return function.reduceat(what, starts, axis=0)
        # Pieces of one size are the usual case, and several times faster side by side.
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


def _edge_weight(relation: Relation, pairs: GenePairs) -> Floats:
    """Return the weight of the edge between two genes, 0 without one; the larger of two."""
    n = relation.n_genes
    # Rows ascend and so do the sources within a row, so the keys are sorted.
    keys = np.repeat(np.arange(n, dtype=np.int64), relation.in_degree) * n + relation.indices
    weight = np.full(len(pairs.first), np.nan, dtype=np.float32)
    ways = ((pairs.first, pairs.second), (pairs.second, pairs.first))
    for target, source in ways if relation.directed else ways[:1]:
        at, found = look_up(keys, target * n + source)
        weight[found] = np.fmax(weight[found], relation.weights[at[found]])
    return np.nan_to_num(weight)


def _common_neighbours(relation: Relation, pairs: GenePairs) -> Ints:
    """Return the number of sources that the two genes of each pair share."""
    n = relation.n_genes
    matrix = sp.csr_array(
        (np.ones(relation.n_entries, dtype=np.int32), relation.indices, relation.indptr),
        shape=(n, n),
    )
    degree = relation.in_degree
    common = np.zeros(len(pairs.first), dtype=np.int64)
    for rows in blocks_of(degree[pairs.first] + degree[pairs.second], _ENTRIES_PER_BLOCK):
        first, second = matrix[pairs.first[rows]], matrix[pairs.second[rows]]
        common[rows] = np.asarray(first.multiply(second).sum(axis=1)).ravel()
    return common


def blocks_of(sizes: Ints, most: int) -> Iterator[slice]:
    """Yield slices of rows whose sizes add up to at most ``most``; a larger row stands alone."""
    running, start = np.cumsum(sizes), 0
    while start < len(running):
        before = running[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(running, before + most, side="right")))
        yield slice(start, stop)
        start = stop


def spectral_embedding(relation: Relation, dimensions: int, *, seed: int = 0) -> Floats:
    r"""Return the leading singular vectors of the normalised relation, scaled.

    .. math:: (D_t + \bar d)^{-1/2} A (D_s + \bar d)^{-1/2} \approx U \Sigma V^T

    with D the degrees of targets and sources and :math:`\bar d` the mean degree, which keeps small
    components from filling the leading vectors; edge weights are not used. A gene's vector is its
    row of :math:`U \sqrt\Sigma`, [genes, dimensions]; of a directed relation also of
    :math:`V \sqrt\Sigma`, [genes, 2 dimensions]. Of an undirected relation U are eigenvectors and
    Σ the absolute eigenvalues. Each vector's entry of largest size is positive. Dimensions that a
    relation does not have, and genes without an edge, are 0.
    """
    n, k = relation.n_genes, dimensions
    embedding = np.zeros((n, (2 if relation.directed else 1) * k), dtype=np.float32)
    if not relation.n_entries:
        return embedding
    degrees = relation.in_degree, relation.out_degree
    damped = relation.n_entries / n
    matrix = sp.csr_array(
        (np.ones(relation.n_entries), relation.indices, relation.indptr), shape=(n, n)
    )
    targets, sources = (sp.diags_array(1 / np.sqrt(degree + damped)) for degree in degrees)
    matrix = (targets @ matrix @ sources).tocsr()
    small = n <= _SMALL_ENOUGH_FOR_DENSE or k >= n - 1
    start = np.random.default_rng(seed).uniform(0.5, 1.5, n)
    vectors: list[Doubles]
    if relation.directed:
        left, values, right = (
            np.linalg.svd(matrix.toarray())
            if small
            else scipy.sparse.linalg.svds(matrix, k=k, v0=start)
        )
        order = np.argsort(-values, kind="stable")[:k]
        vectors = [left[:, order], right[order].T]
    else:
        values, left = (
            np.linalg.eigh(matrix.toarray())
            if small
            else scipy.sparse.linalg.eigsh(matrix, k=k, which="LM", v0=start)
        )
        order = np.lexsort((-values, -np.abs(values)))[:k]
        vectors = [left[:, order]]
    values, signs = np.abs(values[order]), largest_signs(vectors[0])
    scale = np.where(values > _NO_SINGULAR_VALUE * values.max(), np.sqrt(values), 0.0)
    for side, (side_vectors, degree) in enumerate(zip(vectors, degrees, strict=False)):
        scaled = np.where(degree[:, None] > 0, side_vectors * signs * scale, 0.0)
        embedding[:, side * k : side * k + len(values)] = scaled
    return embedding
