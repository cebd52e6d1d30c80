"""The pairs of genes that genotypes hold, as keys that can be compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from deltacell.arrays import Ints, offsets_of
from deltacell.screen.keys import sorted_matrix
from deltacell.screen.screen import Screen


class Pairs(NamedTuple):
    """Pairs of genes, each with the genotype that holds it.

    ``key = n_genes * smaller + larger``, so two are equal exactly when the pairs are.
    """

    owner: Ints
    key: Ints


def gene_pairs(screen: Screen) -> Pairs:
    """Return every pair of genes of every genotype; one of a single gene has none."""
    return _all_pairs(screen.genotypes.genes.numpy(), screen.offsets, len(screen.genes))


def query_pairs(screen: Screen) -> Pairs:
    """Return the pairs of query genes of every genotype.

    For a genotype without two query genes (a pair of query and array, or unknown roles) these are
    all its pairs.
    """
    genes, sizes = screen.genotypes.genes.numpy(), np.diff(screen.offsets)
    role = screen.deleted["role"].combine_chunks().cast("string")
    is_query = pc.equal(role, "query").to_numpy(zero_copy_only=False)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    n_queries = np.bincount(owner[is_query], minlength=len(sizes))
    kept = is_query | (n_queries < 2)[owner]
    kept_sizes = np.bincount(owner[kept], minlength=len(sizes))
    return _all_pairs(genes[kept], offsets_of(kept_sizes), len(screen.genes))


def _all_pairs(genes: Ints, offsets: Ints, n_genes: int) -> Pairs:
    matrix = sorted_matrix(genes, offsets)
    width = matrix.shape[1]
    owners, keys = [], []
    for low in range(width):
        holders = np.flatnonzero(matrix[:, low] >= 0)
        for high in range(low + 1, width):
            owners.append(holders)
            keys.append(matrix[holders, low] * n_genes + matrix[holders, high])
    if not keys:
        return Pairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    return Pairs(np.concatenate(owners), np.concatenate(keys))
