"""Which gene sets a ranking keeps: by their status in the screens, and by linkage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from deltacell.base.arrays import AnyArray, Bools, Doubles, Floats, Ints
from deltacell.cell import Genes
from deltacell.models.fitted.gene_sets import look_up
from deltacell.screen import Screen
from deltacell.screen.genotypes import matrix_keys, sorted_matrix

MEASURED, TESTED, UNTESTED = "measured", "tested", "untested"
STATUSES = (MEASURED, TESTED, UNTESTED)  # `Statuses.of` returns indices into it
LINKED, UNLINKED, UNKNOWN = 1, 0, -1
Codes = npt.NDArray[np.int8]


def phenotypes_of(screen: Screen) -> set[str]:
    return set(screen.rows["phenotype"])


class Statuses:
    """The status of gene sets in one screen or several over the same genes.

    A set is measured if a screen has a row of it, of any phenotype, trained on or not; tested if it
    is in the coverage of a study but has no row; and untested otherwise. Measured scores are those
    of ``phenotypes``.
    """

    def __init__(self, screens: Sequence[Screen], phenotypes: Iterable[str]) -> None:
        self._n_genes = len(screens[0].genes)
        studies = [study for screen in screens for study in screen.coverage.studies]
        self.complete = all(study.complete for study in studies)  # none lists only its hits
        # The keys are as wide as the largest set that was measured or crossed.
        widths = [int(np.diff(screen.offsets).max(initial=0)) for screen in screens]
        widths += [1 + int(np.diff(study.query_offsets).max(initial=0)) for study in studies]
        self._width = max(widths)
        learned = sorted(phenotypes)
        sets, scores = [], []
        for screen in screens:
            genes = screen.genotypes.genes.numpy()
            sets.append(sorted_matrix(genes, screen.offsets, self._width))
            known = screen.rows["phenotype"].is_in(learned).to_numpy()
            scores.append(np.where(known, screen.column("score"), np.nan))
        every, score = np.concatenate(sets), np.concatenate(scores).astype(np.float64)
        keys = matrix_keys(every, self._n_genes)
        self._keys, group = np.unique(keys, return_inverse=True)
        there, n = np.isfinite(score), len(self._keys)
        count = np.bincount(group[there], minlength=n)
        total = np.bincount(group[there], score[there], n)
        mean = np.divide(total, count, out=np.full(n, np.nan), where=count > 0)
        self._mean: Doubles = np.append(mean, np.nan)  # place -1 is for sets that are not measured
        # For each study: the keys of its queries, and which genes are on its array.
        self._grids: list[tuple[AnyArray, Bools]] = []
        for study in studies:
            queries = sorted_matrix(study.query_genes, study.query_offsets, self._width)
            on_array = np.isin(np.arange(self._n_genes), study.array_genes)
            self._grids.append((np.unique(matrix_keys(queries, self._n_genes)), on_array))

    def of(self, sets: Ints) -> Codes:
        """Return the status of each set of ascending genes, [m, size], as indices of `STATUSES`."""
        tested: Bools = np.zeros(len(sets), dtype=bool)
        for place in range(sets.shape[1] if self._grids else 0):
            # Each gene in turn is the array gene, and the rest is the query.
            rest = np.delete(sets, place, axis=1)
            for queries, on_array in self._grids:
                tested |= on_array[sets[:, place]] & (self._places(queries, rest) >= 0)
        measured = self._places(self._keys, sets) >= 0
        return np.where(measured, 0, np.where(tested, 1, 2)).astype(np.int8)

    def measured(self, sets: Ints) -> Floats:
        """Return the mean measured score of each set of ascending genes; NaN if there is none."""
        return self._mean[self._places(self._keys, sets)].astype(np.float32)

    def _places(self, keys: AnyArray, sets: Ints) -> Ints:
        pad = self._width - sets.shape[1]
        if pad < 0:
            return np.full(len(sets), -1, dtype=np.int64)
        padded = np.pad(sets, ((0, 0), (pad, 0)), constant_values=-1)
        at, known = look_up(keys, matrix_keys(padded, self._n_genes))
        return np.where(known, at, -1)


class Linkage:
    """Whether two genes of a set lie on one chromosome, fewer than ``distance`` base pairs apart.

    They are counted from the end of one gene to the start of the other.
    """

    def __init__(self, genes: Genes, distance: int) -> None:
        self._chromosome: Ints = np.unique(genes.chromosome, return_inverse=True)[1]
        self._on_one: Bools = np.array([bool(c) for c in genes.chromosome], dtype=bool)
        self._placed: Bools = self._on_one & genes.has_position
        self._start, self._end, self._distance = genes.start, genes.end, distance

    def of(self, sets: Ints) -> Codes:
        """Return `LINKED`, `UNLINKED` or `UNKNOWN` for each set, [m, size].

        A set is linked if two of its genes are, and unknown if that depends on unknown positions.
        """
        linked, unknown = np.zeros((2, len(sets)), dtype=bool)
        for a, b in combinations(sets.T, 2):
            apart = self._on_one[a] & self._on_one[b] & (self._chromosome[a] != self._chromosome[b])
            known = self._placed[a] & self._placed[b]
            between = np.maximum(self._start[b] - self._end[a], self._start[a] - self._end[b])
            linked |= known & ~apart & (np.maximum(between, 0) < self._distance)
            unknown |= ~known & ~apart
        return np.where(linked, LINKED, np.where(unknown, UNKNOWN, UNLINKED)).astype(np.int8)

    def n_unplaced(self, genes: Ints) -> int:
        return int((~self._placed[genes]).sum())
