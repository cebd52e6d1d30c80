"""Leading eigenvectors of large matrices, the same ones in every call."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from deltacell.base.arrays import Doubles

# A search that meets an invariant subspace, as in a matrix with few entries, begins again at a
# random vector. SciPy takes the seed of it from 1.17 on; before, last bits may differ there.
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
