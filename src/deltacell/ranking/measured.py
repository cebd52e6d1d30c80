"""Measured gene sets: how a ranking predicts them, and which are nearest to a set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import scipy.sparse as sp

from deltacell.base.arrays import AnyArray, Doubles, Floats, Ints
from deltacell.cell import Cell
from deltacell.ranking.ensemble import MeanOfRuns
from deltacell.ranking.gene_names import gene_texts
from deltacell.screen.gene_keys import matrix_keys, sorted_matrix
from deltacell.train.loaded_runs import LoadedRun

PARTS = ("test", "validation", "training")
SHARES = (0.5, 0.25, 0.25)  # of each part among the measured sets of a page
FEWEST = 3  # sets that a correlation needs


@dataclass(frozen=True)
class MeasuredSet:
    """A measured set, with its predicted score and the part of the split that it is in."""

    genes: list[str]  # systematic names
    names: list[str]
    predicted: float
    measured: float
    part: str | None  # None if the set is in no part


@dataclass(frozen=True)
class Agreement:
    """How well predicted and measured scores of a part correlate; None for too few sets."""

    part: str
    sets: int
    pearson: float | None


@dataclass(frozen=True)
class AgainstMeasured:
    """Measured sets with their predicted scores, the test part first, and their agreement."""

    measured: list[MeasuredSet]
    agreement: list[Agreement]


class MeasuredSets:
    """The distinct measured sets of some sizes of the first run's screen.

    A set that any run was trained on is in the training part.
    """

    def __init__(self, runs: Sequence[LoadedRun], sizes: Sequence[int]) -> None:
        self.cell = runs[0].data.cell
        screens = [run.data.screen for run in runs]
        largest = [int(np.diff(screen.offsets).max(initial=0)) for screen in screens]
        width = max([*sizes, *largest])
        matrices = [
            sorted_matrix(screen.genotypes.genes.numpy(), screen.offsets, width)
            for screen in screens
        ]
        keys = [matrix_keys(sets, self.cell.n_genes) for sets in matrices]
        distinct, first_row, group = np.unique(keys[0], return_index=True, return_inverse=True)
        sets = matrices[0][first_row]
        total = np.bincount(group, screens[0].column("score").astype(np.float64))
        has_size = np.isin((sets >= 0).sum(axis=1), list(sizes))
        self.sets: Ints = sets[has_size]  # padded in front with -1
        self.score: Doubles = (total / np.bincount(group))[has_size]  # the mean over repeats
        self.part: Ints = _parts(runs, keys, distinct)[has_size]  # the index in `PARTS`, or -1

    def row_of(self, ascending: Ints) -> int | None:
        """Return the row of a set of ascending genes; None if it was not measured."""
        n_padded = self.sets.shape[1] - len(ascending)
        padded = np.pad(ascending, (n_padded, 0), constant_values=-1)
        rows = np.flatnonzero((self.sets == padded).all(axis=1))
        return int(rows[0]) if len(rows) else None

    def part_name(self, row: int) -> str | None:
        """Return the name of the part that a set is in; None if it is in no part."""
        return PARTS[self.part[row]] if self.part[row] >= 0 else None

    def listed(self, rows: Ints, scorer: MeanOfRuns) -> list[MeasuredSet]:
        """Return the sets of some rows with their predicted scores."""
        predicted = self._predicted(rows, scorer).tolist()
        names = gene_texts(self.cell.genes)
        listed = []
        for row, score in zip(rows.tolist(), predicted, strict=True):
            genes = self.sets[row][self.sets[row] >= 0].tolist()
            listed.append(
                MeasuredSet(
                    genes=[self.cell.genes[gene] for gene in genes],
                    names=[names[gene] for gene in genes],
                    predicted=score,
                    measured=float(self.score[row]),
                    part=self.part_name(row),
                )
            )
        return listed

    def _predicted(self, rows: Ints, scorer: MeanOfRuns) -> Floats:
        """Return the predicted scores of some rows; a scorer takes sets of one size at a time."""
        sets = self.sets[rows]
        sizes = (sets >= 0).sum(axis=1)
        predicted = np.zeros(len(rows), dtype=np.float32)
        for size in np.unique(sizes).tolist():
            has_size = sizes == size
            predicted[has_size] = scorer.score(sets[has_size, -size:]).score
        return predicted


def _parts(runs: Sequence[LoadedRun], keys: Sequence[AnyArray], distinct: AnyArray) -> Ints:
    """Return the part of each distinct key as an index in `PARTS`, or -1; the last part counts.

    ``keys`` are those of the rows of each run's screen.
    """
    part = np.full(len(distinct), -1, dtype=np.int64)
    for run, keys_of_run in zip(runs, keys, strict=True):
        split = run.data.split
        for number, rows in enumerate((split.test, split.validation, split.train)):
            is_in_part = np.isin(distinct, keys_of_run[rows])
            part[is_in_part] = np.maximum(part[is_in_part], number)
    return part


def against_measured(
    runs: Sequence[LoadedRun],
    scorer: MeanOfRuns,
    sizes: Sequence[int],
    *,
    most: int = 2_000,
) -> AgainstMeasured:
    """Score at most ``most`` random measured sets of some sizes, half of them of the test part."""
    known = MeasuredSets(runs, sizes)
    rng = np.random.default_rng(0)
    measured: list[MeasuredSet] = []
    agreement: list[Agreement] = []
    for number, (part, share) in enumerate(zip(PARTS, SHARES, strict=True)):
        rows = np.flatnonzero(known.part == number)
        n_drawn = min(len(rows), int(share * most))
        drawn = np.sort(rng.choice(rows, n_drawn, replace=False))
        listed = known.listed(drawn, scorer)
        measured += listed
        if n_drawn:
            agreement.append(Agreement(part, n_drawn, _pearson(listed)))
    return AgainstMeasured(measured, agreement)


def _pearson(sets: Sequence[MeasuredSet]) -> float | None:
    """Return the correlation of predicted and measured scores; None if it is not defined."""
    predicted = np.array([measured_set.predicted for measured_set in sets])
    measured = np.array([measured_set.measured for measured_set in sets])
    if len(sets) < FEWEST or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return None
    return float(np.corrcoef(predicted, measured)[0, 1])


def nearest_sets(cell: Cell, genes: Sequence[int], sets: Ints, k: int) -> tuple[Ints, Doubles]:
    """Return the rows of the k nearest sets, of [m, size], and their distances.

    The distance of two genes is ``1 - cosine`` between their neighbourhoods: each gene itself and
    its neighbours in every relation. The distance of two sets is the smallest mean distance over
    all matchings of their genes. Ties are broken by row.
    """
    distances = _distances_to_genes(cell, genes)
    places = np.arange(len(genes))
    smallest: Doubles = np.full(len(sets), np.inf)
    for order in permutations(places):
        matched = distances[places, sets[:, order]]  # [m, size]
        smallest = np.minimum(smallest, matched.sum(axis=1))
    of_sets = smallest / len(genes)
    nearest: Ints = np.argsort(of_sets, kind="stable")[:k]
    return nearest, of_sets[nearest]


def _distances_to_genes(cell: Cell, genes: Sequence[int]) -> Doubles:
    """Return the distances of some genes to all genes of a cell, [some, genes]."""
    itself = sp.eye_array(cell.n_genes, format="csr")
    neighbours = [relation.adjacency() + itself for relation in cell.relations.values()]
    neighbourhoods = sp.hstack([itself, *neighbours], format="csr")
    squares = neighbourhoods.multiply(neighbourhoods).sum(axis=1)
    unit = sp.diags_array(squares**-0.5) @ neighbourhoods
    distances: Doubles = np.maximum(1 - (unit[list(genes)] @ unit.T).toarray(), 0)
    distances[np.arange(len(genes)), genes] = 0
    return distances
