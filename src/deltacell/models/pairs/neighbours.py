"""Which genes are alike: the relations of a cell, and similarities made from features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from deltacell.arrays import Floats
from deltacell.cell import Cell
from deltacell.models.baselines.gene_sets import GeneOrder
from deltacell.models.gene_vectors import largest_signs

NEAREST = 30
"""Neighbours that a similarity gives each gene."""

NEAREST_ALIKE = 100
"""Neighbours that each gene has among those that interact alike."""

ALIKE = "similar interactions"
"""Name of the relation between genes that interact alike."""

PROFILE_WIDTH = 16
"""A feature with at least so many columns is a profile by which genes can be compared."""

_ROWS_PER_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Neighbours:
    r"""Symmetric weights between genes, one matrix per relation, all with an empty diagonal.

    The weight of an edge is the larger one of its two directions. Besides the relations of the cell
    there is one for each profile (a wide feature), which links the genes whose profiles correlate
    most, and one for the networks together, which links the genes whose rows over all networks are
    most alike. Relations are ordered by name, so their order in the cell does not matter.
    """

    names: tuple[str, ...]
    weights: tuple[sp.csr_array, ...]  # W of each relation, [genes, genes]
    matrices: tuple[sp.csr_array, ...]  # D^{-1/2} W D^{-1/2} with D the row sums of W

    @classmethod
    def of(cls, cell: Cell, order: GeneOrder, features: Sequence[str] | None = None) -> Neighbours:
        """Return the neighbours of a cell's genes, numbered by their place in ``order``.

        Genes are compared by the given features, by default by all of the cell's.
        """
        weights = {name: _symmetric(cell, name, order) for name in sorted(cell.relations)}
        similar = {}
        if len(weights) > 1:
            rows = sp.hstack([_normalised(matrix) for matrix in weights.values()]).tocsr()
            similar["networks"] = _nearest(_unit_rows(rows))
        for name in sorted(cell.features if features is None else features):
            if cell.feature(name).width >= PROFILE_WIDTH:
                similar[name] = _nearest(profiles(cell.feature(name).values[order.gene]))
        weights |= {f"similar {name}": matrix for name, matrix in similar.items()}
        return cls(
            tuple(weights),
            tuple(weights.values()),
            tuple(_normalised(matrix) for matrix in weights.values()),
        )

    def joined(self, other: Neighbours) -> Neighbours:
        """Return the relations of both."""
        return Neighbours(
            self.names + other.names, self.weights + other.weights, self.matrices + other.matrices
        )

    def places(self, k: int) -> Floats:
        """Return the place of each gene in all relations together, [genes, k].

        They are the leading left singular vectors of the matrices side by side, times their
        singular values. The largest entry of each vector is positive; vectors for which there are
        too few genes are 0.
        """
        n = int(self.weights[0].shape[0])
        found = np.zeros((n, k), dtype=np.float32)
        if n > 1:
            rows = sp.hstack(self.matrices).tocsr().astype(np.float64)
            start = np.random.default_rng(0).uniform(0.5, 1.5, n)
            left, values, _ = svds(rows, k=min(k, n - 1), v0=start)
            left, values = left[:, ::-1], values[::-1]
            found[:, : len(values)] = left * (largest_signs(left) * values)
        return found


def alike(scores: sp.csr_array) -> Neighbours:
    """Return the genes that interact alike as one relation.

    It links each gene to the `NEAREST_ALIKE` others whose rows of scores (symmetric, [genes,
    genes]) are most alike; the weight is the square of their cosine.
    """
    weights = _nearest(_unit_rows(scores.astype(np.float64)), NEAREST_ALIKE)
    weights.data **= 2
    return Neighbours((ALIKE,), (weights,), (_normalised(weights),))


def profiles(values: Floats) -> Floats:
    """Return standardised profiles as rows of mean 0 and length 1; 0 for a gene without one."""
    present = ~np.isnan(values)
    count = np.maximum(present.sum(axis=0), 1)
    filled = np.where(present, values, 0).astype(np.float64)
    centred = np.where(present, filled - filled.sum(axis=0) / count, 0)
    deviation = np.sqrt((centred**2).sum(axis=0) / count)
    scaled = centred / np.where(deviation > 0, deviation, 1)
    scaled -= np.where(present.any(axis=1), scaled.mean(axis=1), 0)[:, None]
    length = np.linalg.norm(scaled, axis=1)
    unit: Floats = (scaled / np.where(length > 0, length, 1)[:, None]).astype(np.float32)
    return unit


def _symmetric(cell: Cell, name: str, order: GeneOrder) -> sp.csr_array:
    relation = cell.relations[name].take(order.gene)
    n = relation.n_genes
    matrix = sp.csr_array((relation.weights, relation.indices, relation.indptr), shape=(n, n))
    return _without_diagonal(matrix.maximum(matrix.T))


def _without_diagonal(matrix: sp.sparray) -> sp.csr_array:
    entries = matrix.tocoo()
    kept = (entries.row != entries.col) & (entries.data > 0)
    clean = sp.csr_array(
        (entries.data[kept].astype(np.float32), (entries.row[kept], entries.col[kept])),
        shape=matrix.shape,
    )
    clean.sort_indices()
    return clean


def _normalised(matrix: sp.csr_array) -> sp.csr_array:
    degree = np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
    scale = np.zeros_like(degree)
    np.divide(1.0, np.sqrt(degree), out=scale, where=degree > 0)
    scaled = sp.diags_array(scale) @ matrix @ sp.diags_array(scale)
    return sp.csr_array(scaled, dtype=np.float32)


def _unit_rows(rows: sp.csr_array) -> sp.csr_array:
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    return sp.csr_array(sp.diags_array(1 / np.where(length > 0, length, 1.0)) @ rows)


def _nearest(rows: sp.csr_array | Floats, k: int = NEAREST) -> sp.csr_array:
    """Return the cosine to the k most similar genes, where it is positive."""
    n = rows.shape[0]
    k = min(k, n - 1)
    columns, values = [], []
    for start in range(0, n, _ROWS_PER_BLOCK):
        block: Any = rows[start : start + _ROWS_PER_BLOCK] @ rows.T
        cosine = block.toarray() if sp.issparse(block) else block
        cosine[np.arange(len(cosine)), np.arange(start, start + len(cosine))] = -np.inf
        best = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
        columns.append(best)
        values.append(np.take_along_axis(cosine, best, axis=1))
    data = np.concatenate(values).ravel()
    matrix = sp.csr_array(
        (np.maximum(data, 0), np.concatenate(columns).ravel(), np.arange(0, n * k + 1, k)),
        shape=(n, n),
    )
    return _without_diagonal(matrix.maximum(matrix.T))
