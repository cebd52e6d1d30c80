"""The measured gene sets that are most like a given one in the eyes of a model."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment

from deltacell.arrays import AnyArray, Ints
from deltacell.cell import Cell

Doubles = npt.NDArray[np.float64]

BY_PERMUTATIONS = 4
"""Sets of up to so many genes are matched by trying all ways, larger ones by assignment."""

_ROWS_AT_ONCE = 50_000


class Nearest(NamedTuple):
    """Sets, the nearest first.

    Parameters
    ----------
    rows
        Which of the given sets, [k].
    distance
        Of each, [k].
    """

    rows: Ints
    distance: Doubles


def gene_distances(vectors: AnyArray, genes: Sequence[int]) -> Doubles:
    """Return ``1 - cosine`` between genes of a set and all genes, [size, n_genes].

    Of the vectors less their mean over all genes, for what all have in common would make all alike.
    It is 0 of a gene to itself, and 1 where a vector has no length.

    Parameters
    ----------
    vectors
        The genes' vectors in the wild type, [n_genes, hidden].
    genes
        The set.
    """
    exact = np.asarray(vectors, dtype=np.float64)
    exact = exact - exact.mean(axis=0)
    length = np.linalg.norm(exact, axis=1, keepdims=True)
    unit = exact / np.where(length > 0, length, 1)
    chosen = np.asarray(genes, dtype=np.int64)
    distance: Doubles = np.clip(1 - unit[chosen] @ unit.T, 0, 2)
    distance[np.arange(len(chosen)), chosen] = 0
    return distance


def network_distances(cell: Cell, genes: Sequence[int]) -> Doubles:
    """Return ``1 - cosine`` between the neighbourhoods of genes of a set and of all genes.

    For predictors that have no vectors of genes. A gene's neighbourhood is itself and its
    neighbours in every relation, [size, n_genes].

    Parameters
    ----------
    cell
        The wild type.
    genes
        The set.
    """
    n = cell.n_genes
    chosen = np.asarray(genes, dtype=np.int64)
    own = sp.eye_array(n, format="csr")
    rows = [own]
    for relation in cell.relations.values():
        entries = (np.ones(relation.n_entries), relation.indices, relation.indptr)
        rows.append(sp.csr_array(entries, shape=(n, n)) + own)
    table = sp.hstack(rows, format="csr")
    length = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel())
    products = (table[chosen] @ table.T).toarray()
    distance: Doubles = np.clip(1 - products / np.outer(length[chosen], length), 0, 1)
    distance[np.arange(len(chosen)), chosen] = 0
    return distance


def nearest_sets(distances: Doubles, sets: Ints, k: int) -> Nearest:
    """Return the k sets of least distance.

    The distance of two sets is the mean over pairs of genes, one of each set, matched so that it is
    least. Ties go to the set that stands first. Memory is bounded whatever the number of sets.

    Parameters
    ----------
    distances
        From the genes of the given set to all genes, [size, n_genes], see `gene_distances`.
    sets
        Gene indices, [m, size].
    k
        How many, fewer where there are fewer.
    """
    rows, found = np.zeros(0, dtype=np.int64), np.zeros(0)
    for start in range(0, len(sets), _ROWS_AT_ONCE):
        some = sets[start : start + _ROWS_AT_ONCE]
        # Beyond the worst that is kept nothing is needed.
        limit = float(found[-1]) if len(found) == k else np.inf
        at, distance = _some_nearest(distances, some, k, limit)
        rows, found = np.concatenate([rows, at + start]), np.concatenate([found, distance])
        order = np.lexsort((rows, found))[:k]
        rows, found = rows[order], found[order]
    return Nearest(rows, found)


def _some_nearest(distances: Doubles, sets: Ints, k: int, limit: float) -> tuple[Ints, Doubles]:
    if len(distances) <= BY_PERMUTATIONS:
        matched = _by_permutations(distances, sets)
        order = np.argsort(matched, kind="stable")[:k]
        return order, matched[order]
    # No matching costs less than each gene with its nearest, and most sets fall to that.
    n = len(distances)
    least = np.mean([distances[i][sets].min(axis=1) for i in range(n)], axis=0)
    best: list[tuple[float, int]] = []
    for row in np.argsort(least, kind="stable").tolist():
        worst = best[-1][0] if len(best) == k else limit
        if least[row] > worst + _SLACK:
            break
        cost = distances[:, sets[row]]
        insort(best, (float(cost[linear_sum_assignment(cost)].mean()), row))
        del best[k:]
    return (
        np.array([row for _, row in best], dtype=np.int64),
        np.array([distance for distance, _ in best], dtype=np.float64),
    )


def _by_permutations(distances: Doubles, sets: Ints) -> Doubles:
    """Return the distance of each set, [m], by trying all ways to match its genes."""
    n = len(distances)
    to = [[distances[i][sets[:, j]] for j in range(n)] for i in range(n)]
    best = np.full(len(sets), np.inf)
    for order in permutations(range(n)):
        total = to[0][order[0]].copy()
        for i in range(1, n):
            total += to[i][order[i]]
        np.minimum(best, total, out=best)
    return best / max(n, 1)


# Of rounding, so that a set at the limit is not lost.
_SLACK = 1e-12
