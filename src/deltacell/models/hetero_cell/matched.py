"""Genes in place of the deleted ones, to see whether a model reads which genes are deleted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from deltacell.base.arrays import Ints
from deltacell.cell import Cell

GENES_PER_BLOCK = 32
FORBIDDEN = 1e6  # the cost of a gene in its own place


def matched_genes(cell: Cell, relations: Sequence[str]) -> Ints:
    """Return a permutation of the genes that replaces each by one of similar degrees.

    Within blocks of about 32 genes of similar degree, the assignment minimises the differences of
    the log degrees over all relations. Hubs stay hubs, but get other neighbours.
    """
    degrees = np.stack([cell.relation(name).out_degree for name in relations], axis=1)
    logs = np.log1p(degrees)
    order = np.argsort(logs.sum(1), kind="stable")
    instead = np.empty(len(order), dtype=np.int64)
    n_blocks = max(1, len(order) // GENES_PER_BLOCK)
    for block in np.array_split(order, n_blocks):
        differences = np.abs(logs[block][:, None] - logs[block][None]).sum(2)
        np.fill_diagonal(differences, FORBIDDEN)
        columns = linear_sum_assignment(differences)[1]
        instead[block] = block[columns]
    return instead
