"""Leading eigenvectors and singular vectors of large matrices, the same ones in every call."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from deltacell.base.arrays import Doubles

# A search that meets an invariant subspace, as in a matrix with few entries, begins again at a
# random vector. SciPy takes the seed of it from 1.17 on; before, vectors may differ there.
_SEED: dict[str, Any] = (
    {"rng": 0} if "rng" in inspect.signature(scipy.sparse.linalg.eigsh).parameters else {}
)


def leading_eigenvectors(
    matrix: sp.csr_array | scipy.sparse.linalg.LinearOperator,
    k: int,
    seed: int = 0,
    tolerance: float = 0,
) -> tuple[Doubles, Doubles]:
    """Return the eigenvalues [k] of largest magnitude of a symmetric matrix, and vectors [n, k].

    The search begins at a vector of positive numbers that are drawn from the seed.
    """
    start = np.random.default_rng(seed).uniform(0.5, 1.5, matrix.shape[0])
    values, vectors = scipy.sparse.linalg.eigsh(matrix, k, v0=start, tol=tolerance, **_SEED)
    return values, vectors


class SingularVectors(NamedTuple):
    """The leading singular values of a matrix [n, m], in descending order, and their vectors."""

    left: Doubles  # [n, k]
    values: Doubles  # [k]
    right: Doubles  # [m, k]


def leading_singular_vectors(
    matrix: sp.csr_array | Doubles,
    k: int,
    seed: int = 0,
) -> SingularVectors:
    """Return the k largest singular values of a matrix and their vectors.

    They are those of `scipy.sparse.linalg.svds`, which takes no seed for vectors at which its
    search begins again. All are 0 for a matrix of zeros, at which the search would fail.
    """
    n_rows, n_columns = matrix.shape
    if not abs(matrix).sum():
        return SingularVectors(np.zeros((n_rows, k)), np.zeros(k), np.zeros((n_columns, k)))
    if n_rows < n_columns:
        transposed = leading_singular_vectors(matrix.T, k, seed)
        return SingularVectors(transposed.right, transposed.values, transposed.left)
    gram = scipy.sparse.linalg.LinearOperator(
        (n_columns, n_columns),
        matvec=lambda vector: matrix.T @ (matrix @ vector),
        dtype=np.float64,
    )
    _, vectors = leading_eigenvectors(gram, k, seed)
    orthonormal, _ = np.linalg.qr(vectors)
    left, values, rotation = scipy.linalg.svd(matrix @ orthonormal, full_matrices=False)
    return SingularVectors(left, values, orthonormal @ rotation.T)
