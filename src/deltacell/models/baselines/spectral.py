"""Spectral embeddings of the genes of a relation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import scipy.sparse.linalg

from deltacell.arrays import Floats
from deltacell.cell import Relation
from deltacell.models.baselines.baseline import Doubles

_SMALL_ENOUGH_FOR_DENSE = 512
_NO_SINGULAR_VALUE = 1e-9


def spectral_embedding(relation: Relation, dimensions: int, *, seed: int = 0) -> Floats:
    r"""Return the leading singular vectors of the normalised relation, scaled.

    .. math:: (D_t + \bar d)^{-1/2} A (D_s + \bar d)^{-1/2} \approx U \Sigma V^T

    with D the degrees of targets and sources and :math:`\bar d` the mean degree, which keeps small
    components from filling the leading vectors. A gene's vector is its row of
    :math:`U \sqrt\Sigma`, [genes, dimensions]; of a directed relation also of
    :math:`V \sqrt\Sigma`, [genes, 2 dimensions]. Of an undirected relation U are eigenvectors and
    Σ the absolute eigenvalues. Each vector's entry of largest size is positive. Dimensions that a
    relation does not have, and genes without an edge, are 0.

    Parameters
    ----------
    relation
        The gene network; its weights are not used.
    dimensions
        Number of vectors.
    seed
        Of the vector that the iteration starts from.
    """
    n = relation.n_genes
    sides = 2 if relation.directed else 1
    embedding = np.zeros((n, sides * dimensions), dtype=np.float32)
    if not relation.n_entries:
        return embedding
    in_degree, out_degree = relation.in_degree, relation.out_degree
    damped = relation.n_entries / n
    matrix = sp.csr_array(
        (np.ones(relation.n_entries), relation.indices, relation.indptr), shape=(n, n)
    )
    matrix = (
        sp.diags_array(1 / np.sqrt(in_degree + damped))
        @ matrix
        @ sp.diags_array(1 / np.sqrt(out_degree + damped))
    ).tocsr()
    vectors, values = (
        _singular(matrix, dimensions, seed)
        if relation.directed
        else _symmetric(matrix, dimensions, seed)
    )
    real = values > _NO_SINGULAR_VALUE * values.max()
    scale = np.where(real, np.sqrt(values), 0.0)
    for side, (side_vectors, degree) in enumerate(
        zip(vectors, (in_degree, out_degree), strict=False)
    ):
        scaled = np.where(degree[:, None] > 0, side_vectors * scale, 0.0)
        embedding[:, side * dimensions : side * dimensions + len(values)] = scaled
    return embedding


def _symmetric(matrix: sp.csr_array, k: int, seed: int) -> tuple[list[Doubles], Doubles]:
    n = matrix.shape[0]
    if _is_small(n, k):
        values, vectors = np.linalg.eigh(matrix.toarray())
    else:
        values, vectors = scipy.sparse.linalg.eigsh(matrix, k=k, which="LM", v0=_start(n, seed))
    order = np.lexsort((-values, -np.abs(values)))[:k]
    vectors = vectors[:, order]
    return [vectors * _signs(vectors)], np.abs(values[order])


def _singular(matrix: sp.csr_array, k: int, seed: int) -> tuple[list[Doubles], Doubles]:
    n = matrix.shape[0]
    if _is_small(n, k):
        left, values, right = np.linalg.svd(matrix.toarray())
    else:
        left, values, right = scipy.sparse.linalg.svds(matrix, k=k, v0=_start(n, seed))
    order = np.argsort(-values, kind="stable")[:k]
    left, right = left[:, order], right[order].T
    signs = _signs(left)
    return [left * signs, right * signs], values[order]


def _is_small(n: int, k: int) -> bool:
    return n <= _SMALL_ENOUGH_FOR_DENSE or k >= n - 1


def _start(n: int, seed: int) -> Doubles:
    return np.random.default_rng(seed).uniform(0.5, 1.5, n)


def _signs(vectors: Doubles) -> npt.NDArray[np.float64]:
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)
