"""Measured sets beside predictions: how near those are, and which sets are most alike."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment

from deltacell.arrays import AnyArray, Ints
from deltacell.cell import Cell
from deltacell.predict.request import gene_texts
from deltacell.predict.scorers import Scorer
from deltacell.screen.keys import comparable_keys
from deltacell.train.loaded_run import LoadedRun

PARTS = ("test", "validation", "training")
_SHARES = (0.5, 0.25, 0.25)
_FEWEST = 3


class Known(NamedTuple):
    """Measured sets with their predictions, and how near these are.

    Parameters
    ----------
    measured
        As ``measured`` of `Ranking.to_json`.
    agreement
        As ``agreement`` of `Ranking.to_json`.
    """

    measured: list[dict[str, Any]]
    agreement: list[dict[str, Any]]


def against_measured(
    runs: Sequence[LoadedRun],
    scorer: Scorer,
    sizes: Sequence[int],
    *,
    most: int = 2_000,
    seed: int = 0,
) -> Known:
    """Score sets that were measured.

    Parameters
    ----------
    runs
        One or more; the measured sets are those of the first, see `distinct_measured`.
    scorer
        Of the runs.
    sizes
        Genes of the sets.
    most
        How many are drawn: half of them of the test part where it has as many.
    seed
        Of the draw.
    """
    screen = runs[0].data.screen
    rows, measured, part = distinct_measured(runs)
    fitting = np.isin(np.diff(screen.offsets)[rows], list(sizes)) & (part >= 0)
    rng = np.random.default_rng(seed)
    chosen = _drawn([np.flatnonzero(fitting & (part == p)) for p in range(len(PARTS))], most, rng)
    genes = screen.genotypes.genes.numpy()
    sets = [np.sort(genes[screen.offsets[r] : screen.offsets[r + 1]]) for r in rows[chosen]]
    predicted = np.zeros(len(chosen), dtype=np.float32)
    n_genes = np.array([len(one) for one in sets], dtype=np.int64)
    for size in np.unique(n_genes).tolist():
        of_size = np.flatnonzero(n_genes == size)
        predicted[of_size] = scorer.score(np.stack([sets[i] for i in of_size])).score
    cell_genes = runs[0].data.cell.genes
    names = gene_texts(cell_genes)
    listed = [
        {
            "genes": [cell_genes[g] for g in sets[i].tolist()],
            "names": [names[g] for g in sets[i].tolist()],
            "predicted": float(predicted[i]),
            "measured": float(measured[row]),
            "part": PARTS[part[row]],
        }
        for i, row in enumerate(chosen.tolist())
    ]
    agreement = [
        {"part": name, "sets": int(mine.sum()), "pearson": _pearson(predicted[mine], values[mine])}
        for name, mine, values in (
            (name, part[chosen] == p, measured[chosen]) for p, name in enumerate(PARTS)
        )
        if mine.any()
    ]
    return Known(listed, agreement)


def distinct_measured(runs: Sequence[LoadedRun]) -> tuple[Ints, AnyArray, Ints]:
    """Return a row of each distinct set, the mean of its scores, and its part, -1 for none.

    Parameters
    ----------
    runs
        As in `against_measured`.
    """
    screen = runs[0].data.screen
    screens = [run.data.screen for run in runs]
    keys = comparable_keys(
        len(screen.genes), *((s.genotypes.genes.numpy(), s.offsets) for s in screens)
    )
    distinct, rows, group = np.unique(keys[0], return_index=True, return_inverse=True)
    score = screen.column("score").astype(np.float64)
    mean = np.bincount(group, score) / np.bincount(group)
    part = np.full(len(distinct), -1, dtype=np.int64)
    for run, of_run in zip(runs, keys, strict=True):
        split = run.data.split
        # A part that comes later here wins: what a run was trained on is never called test.
        for p, mine in enumerate((split.test, split.validation, split.train)):
            at = np.searchsorted(distinct, of_run[mine])
            at = np.minimum(at, len(distinct) - 1)
            at = at[distinct[at] == of_run[mine]]
            part[at] = np.maximum(part[at], p)
    return rows, mean, part


def _drawn(parts: Sequence[Ints], most: int, rng: np.random.Generator) -> Ints:
    """Return about so many of all parts, by their shares, and more of one where another has few."""
    wanted = [min(len(part), int(share * most)) for part, share in zip(parts, _SHARES, strict=True)]
    for p, part in enumerate(parts):
        wanted[p] += min(len(part) - wanted[p], most - sum(wanted))
    found = [
        np.sort(rng.choice(part, n, replace=False)) for part, n in zip(parts, wanted, strict=True)
    ]
    return np.concatenate(found)


def _pearson(predicted: AnyArray, measured: AnyArray) -> float | None:
    if len(predicted) < _FEWEST or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return None
    return float(np.corrcoef(predicted.astype(np.float64), measured.astype(np.float64))[0, 1])


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
