"""Which gene sets a ranking keeps: by their status in the screens, and by linkage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deltacell.base.arrays import AnyArray, Bools, Doubles, Floats, Ints
from deltacell.cell import Genes
from deltacell.models.fitted.gene_sets import look_up
from deltacell.screen import Screen, StudyCoverage
from deltacell.screen.gene_keys import matrix_keys, sorted_matrix

MEASURED = "measured"
TESTED = "tested"
UNTESTED = "untested"
STATUSES = (MEASURED, TESTED, UNTESTED)  # `Statuses.of` returns indices into it
LINKED = 1
UNLINKED = 0
UNKNOWN = -1
Codes = npt.NDArray[np.int8]


def phenotypes_of(screen: Screen) -> set[str]:
    """Return the phenotypes that a screen measured."""
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
        self._width = _largest_set(screens, studies)
        sets = []
        scores = []
        for screen in screens:
            genes = screen.genotypes.genes.numpy()
            sets.append(sorted_matrix(genes, screen.offsets, self._width))
            scores.append(_scores_of_phenotypes(screen, phenotypes))
        keys = matrix_keys(np.concatenate(sets), self._n_genes)
        self._keys, group = np.unique(keys, return_inverse=True)
        score = np.concatenate(scores).astype(np.float64)
        mean = _mean_by_group(score, group, len(self._keys))
        self._mean: Doubles = np.append(mean, np.nan)  # place -1 is for sets that are not measured
        self._grids = [self._grid_of(study) for study in studies]

    def _grid_of(self, study: StudyCoverage) -> _Grid:
        queries = sorted_matrix(study.query_genes, study.query_offsets, self._width)
        query_keys = np.unique(matrix_keys(queries, self._n_genes))
        return _Grid(query_keys, np.isin(np.arange(self._n_genes), study.array_genes))

    def of(self, sets: Ints) -> Codes:
        """Return the status of each set of ascending genes, [m, size], as indices of `STATUSES`."""
        tested: Bools = np.zeros(len(sets), dtype=bool)
        for grid in self._grids:
            for place in range(sets.shape[1]):
                # Each gene in turn is the array gene, and the rest is the query.
                rest = np.delete(sets, place, axis=1)
                is_query = self._places(grid.query_keys, rest) >= 0
                tested |= grid.is_on_array[sets[:, place]] & is_query
        measured = self._places(self._keys, sets) >= 0
        codes = np.where(tested, STATUSES.index(TESTED), STATUSES.index(UNTESTED))
        codes[measured] = STATUSES.index(MEASURED)
        return codes.astype(np.int8)

    def measured(self, sets: Ints) -> Floats:
        """Return the mean measured score of each set of ascending genes; NaN if there is none."""
        places = self._places(self._keys, sets)
        return self._mean[places].astype(np.float32)

    def _places(self, keys: AnyArray, sets: Ints) -> Ints:
        """Return the place of each set among ascending keys, -1 for a set that is not there."""
        n_padded = self._width - sets.shape[1]
        if n_padded < 0:
            return np.full(len(sets), -1, dtype=np.int64)
        padded = np.pad(sets, ((0, 0), (n_padded, 0)), constant_values=-1)
        places, is_known = look_up(keys, matrix_keys(padded, self._n_genes))
        return np.where(is_known, places, -1)


class _Grid(NamedTuple):
    """What a study crossed."""

    query_keys: AnyArray  # ascending
    is_on_array: Bools  # of each gene


def _largest_set(screens: Sequence[Screen], studies: Sequence[StudyCoverage]) -> int:
    """Return the size of the largest set that was measured or crossed."""
    measured = [int(np.diff(screen.offsets).max(initial=0)) for screen in screens]
    crossed = [1 + int(np.diff(study.query_offsets).max(initial=0)) for study in studies]
    return max(measured + crossed)


def _scores_of_phenotypes(screen: Screen, phenotypes: Iterable[str]) -> Floats:
    """Return the score of every row of a screen; NaN for other phenotypes."""
    has_phenotype = screen.rows["phenotype"].is_in(sorted(phenotypes)).to_numpy()
    scores: Floats = np.where(has_phenotype, screen.column("score"), np.nan)
    return scores


def _mean_by_group(values: Doubles, group: Ints, n_groups: int) -> Doubles:
    """Return the mean of the finite values of each group; NaN for a group without one."""
    is_finite = np.isfinite(values)
    count = np.bincount(group[is_finite], minlength=n_groups)
    total = np.bincount(group[is_finite], values[is_finite], n_groups)
    means = np.full(n_groups, np.nan)
    np.divide(total, count, out=means, where=count > 0)
    return means


class Linkage:
    """Whether two genes of a set lie on one chromosome, fewer than ``distance`` base pairs apart.

    They are counted from the end of one gene to the start of the other.
    """

    def __init__(self, genes: Genes, distance: int) -> None:
        self._chromosome: Ints = np.unique(genes.chromosome, return_inverse=True)[1]
        has_chromosome = [bool(chromosome) for chromosome in genes.chromosome]
        self._has_chromosome: Bools = np.array(has_chromosome, dtype=bool)
        self._has_position: Bools = self._has_chromosome & genes.has_position
        self._start = genes.start
        self._end = genes.end
        self._distance = distance

    def of(self, sets: Ints) -> Codes:
        """Return `LINKED`, `UNLINKED` or `UNKNOWN` for each set, [m, size].

        A set is linked if two of its genes are, and unknown if that depends on unknown positions.
        """
        linked = np.zeros(len(sets), dtype=bool)
        unknown = np.zeros(len(sets), dtype=bool)
        for first, second in combinations(sets.T, 2):
            may_be_linked = ~self._are_on_two_chromosomes(first, second)
            are_placed = self._has_position[first] & self._has_position[second]
            are_near = self._gap(first, second) < self._distance
            linked |= may_be_linked & are_placed & are_near
            unknown |= may_be_linked & ~are_placed
        codes = np.where(unknown, UNKNOWN, UNLINKED)
        codes[linked] = LINKED
        return codes.astype(np.int8)

    def _are_on_two_chromosomes(self, first: Ints, second: Ints) -> Bools:
        are_known = self._has_chromosome[first] & self._has_chromosome[second]
        differ: Bools = self._chromosome[first] != self._chromosome[second]
        return are_known & differ

    def _gap(self, first: Ints, second: Ints) -> Ints:
        """Return the base pairs between genes of one chromosome; 0 if they overlap."""
        after_first = self._start[second] - self._end[first]
        after_second = self._start[first] - self._end[second]
        gap: Ints = np.maximum(after_first, after_second)
        return np.maximum(gap, 0)

    def n_unplaced(self, genes: Ints) -> int:
        """Return how many of some genes have no known position."""
        return int((~self._has_position[genes]).sum())
