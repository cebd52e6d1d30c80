"""How much a model goes by each relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.errors import InputError

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RelationWeights:
    """The weight of each relation over genes.

    Parameters
    ----------
    names
        Of the relations.
    mean, low, high
        Mean and quartiles over the genes, [relations].
    genes
        How many.
    """

    names: tuple[str, ...]
    mean: Doubles
    low: Doubles
    high: Doubles
    genes: int


def relation_weights(
    names: Sequence[str], weights: npt.ArrayLike, genes: Ints | None = None
) -> RelationWeights:
    """Return the weight of each relation.

    Parameters
    ----------
    names
        Of the relations.
    weights
        Of each relation for each gene, [n_genes, relations], such as the ``attention`` of DANGO; or
        one for all genes, [relations].
    genes
        The genes to look at, each as often as it is given: those that the test genotypes delete;
        all where not given.
    """
    given = np.asarray(weights, dtype=np.float64)
    matrix = given[None] if given.ndim == 1 else given
    if matrix.ndim != 2 or matrix.shape[1] != len(names):
        raise InputError(
            f"weights of shape {given.shape} for {len(names)} relations; expected [relations] or "
            "[genes, relations]"
        )
    if genes is not None and given.ndim == 2:
        matrix = matrix[np.asarray(genes)]
    if not matrix.size or not np.isfinite(matrix).all():
        raise InputError("the weights of relations must be finite numbers, for one gene or more")
    low, high = np.quantile(matrix, [0.25, 0.75], axis=0)
    return RelationWeights(tuple(names), matrix.mean(axis=0), low, high, len(matrix))
