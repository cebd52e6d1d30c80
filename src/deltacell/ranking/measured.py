"""Measured gene sets: how a ranking predicts them, and which are nearest to a set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import permutations
from typing import Any

import numpy as np
import scipy.sparse as sp

from deltacell.base.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.ranking.ensemble import MeanOfRuns
from deltacell.ranking.gene_names import gene_texts
from deltacell.screen.genotypes import matrix_keys, sorted_matrix
from deltacell.train.predictor import LoadedRun

PARTS = ("test", "validation", "training")
SHARES = (0.5, 0.25, 0.25)  # of each part among the measured sets of a page
FEWEST = 3  # sets that a correlation needs


class MeasuredSets:
    """The distinct measured sets of some sizes of the first run's screen.

    A set that any run was trained on is in the training part.
    """

    def __init__(self, runs: Sequence[LoadedRun], sizes: Sequence[int]) -> None:
        self._genes = runs[0].data.cell.genes
        screens = [run.data.screen for run in runs]
        width = max([*sizes, *(int(np.diff(s.offsets).max(initial=0)) for s in screens)])
        every = [sorted_matrix(s.genotypes.genes.numpy(), s.offsets, width) for s in screens]
        keys = [matrix_keys(sets, len(self._genes)) for sets in every]
        distinct, rows, group = np.unique(keys[0], return_index=True, return_inverse=True)
        total = np.bincount(group, screens[0].column("score").astype(np.float64))
        part = np.full(len(distinct), -1, dtype=np.int64)
        for run, of_run in zip(runs, keys, strict=True):
            split = run.data.split
            for p, mine in enumerate((split.test, split.validation, split.train)):
                at = np.flatnonzero(np.isin(distinct, of_run[mine]))
                part[at] = np.maximum(part[at], p)
        fitting = np.isin((every[0][rows] >= 0).sum(axis=1), list(sizes))
        self.sets: Ints = every[0][rows][fitting]  # padded in front with -1
        self.score: Doubles = (total / np.bincount(group))[fitting]  # the mean over repeats
        self.part: Ints = part[fitting]  # the index in `PARTS`, or -1

    def part_name(self, row: int) -> str | None:
        return PARTS[self.part[row]] if self.part[row] >= 0 else None

    def listed(self, which: Ints, scorer: MeanOfRuns) -> list[dict[str, Any]]:
        names, found = gene_texts(self._genes), [dict[str, Any]()] * len(which)
        sizes = (self.sets[which] >= 0).sum(axis=1)
        for size in np.unique(sizes).tolist():
            places = np.flatnonzero(sizes == size)
            sets = self.sets[which[places], -size:]
            predicted = scorer.score(sets).score.tolist()
            for place, one, score in zip(places.tolist(), sets.tolist(), predicted, strict=True):
                found[place] = {
                    "genes": [self._genes[g] for g in one],
                    "names": [names[g] for g in one],
                    "predicted": score,
                    "measured": float(self.score[which[place]]),
                    "part": self.part_name(which[place]),
                }
        return found


def against_measured(
    runs: Sequence[LoadedRun],
    scorer: MeanOfRuns,
    sizes: Sequence[int],
    *,
    most: int = 2_000,
) -> dict[str, list[dict[str, Any]]]:
    """Score at most ``most`` random measured sets of some sizes, half of them of the test part.

    Return ``measured``, a list of ``{genes, names, predicted, measured, part}``, the test part
    first, and ``agreement``, a list of ``{part, sets, pearson}``; ``pearson`` may be None.
    """
    known = MeasuredSets(runs, sizes)
    rng = np.random.default_rng(0)
    result: dict[str, list[dict[str, Any]]] = {"measured": [], "agreement": []}
    for p, (part, share) in enumerate(zip(PARTS, SHARES, strict=True)):
        rows = np.flatnonzero(known.part == p)
        n = min(len(rows), int(share * most))
        chosen = np.sort(rng.choice(rows, n, replace=False))
        listed, measured = known.listed(chosen, scorer), known.score[chosen]
        result["measured"] += listed
        predicted = np.array([one["predicted"] for one in listed])
        defined = n >= FEWEST and np.ptp(predicted) > 0 and np.ptp(measured) > 0
        pearson = float(np.corrcoef(predicted, measured)[0, 1]) if defined else None
        result["agreement"] += [{"part": part, "sets": n, "pearson": pearson}] if n else []
    return result


def nearest_sets(cell: Cell, genes: Sequence[int], sets: Ints, k: int) -> tuple[Ints, Doubles]:
    """Return the rows of the k nearest sets, of [m, size], and their distances.

    The distance of two genes is ``1 - cosine`` between their neighbourhoods: each gene itself and
    its neighbours in every relation. The distance of two sets is the smallest mean distance over
    all matchings of their genes. Ties are broken by row.
    """
    own = sp.eye_array(cell.n_genes, format="csr")
    near = [relation.adjacency() + own for relation in cell.relations.values()]
    rows = sp.hstack([own, *near], format="csr")
    unit = sp.diags_array(rows.multiply(rows).sum(axis=1) ** -0.5) @ rows
    distances = np.maximum(1 - (unit[list(genes)] @ unit.T).toarray(), 0)
    places = np.arange(len(genes))
    distances[places, genes] = 0
    sums = (distances[places, sets[:, order]].sum(axis=1) for order in permutations(places))
    every = reduce(np.minimum, sums) / len(genes)
    first: Ints = np.argsort(every, kind="stable")[:k]
    return first, every[first]
