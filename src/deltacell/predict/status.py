"""What is known of a gene set: measured, tested and not significant, or untested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltacell.arrays import AnyArray, Bools, Floats, Ints
from deltacell.screen import Screen
from deltacell.screen.coverage import StudyCoverage
from deltacell.screen.keys import matrix_keys, sorted_matrix

MEASURED, TESTED, UNTESTED = "measured", "tested", "untested"
STATUSES = (MEASURED, TESTED, UNTESTED)
"""In the order of the codes that `Statuses.of` gives."""

Codes = npt.NDArray[np.int8]


class Statuses:
    """The status of gene sets by one screen or several.

    A set is measured where a screen has a row of it, whatever its phenotype and whether or not a
    run was trained on it; tested where it is in the coverage of a study and has no row; and
    untested otherwise.

    Parameters
    ----------
    screens
        Over the same genes.
    phenotypes
        Those that a run learned: `measured` is of their rows.
    """

    def __init__(self, screens: Iterable[Screen], phenotypes: Iterable[str]) -> None:
        self._screens = tuple(screens)
        self._phenotypes = tuple(sorted(phenotypes))
        self._n_genes = len(self._screens[0].genes)
        self._studies = [c for screen in self._screens for c in screen.coverage.studies]
        self._by_size: dict[int, _OfSize] = {}

    @property
    def complete(self) -> bool:
        """Whether all that was tested is known: no study shows only its hits."""
        return all(study.complete for study in self._studies)

    def of(self, sets: Ints) -> Codes:
        """Return the status of each set, as a place in `STATUSES`.

        Parameters
        ----------
        sets
            Ascending gene indices, [m, size].
        """
        known = self._of_size(sets.shape[1])
        measured = known.rows(matrix_keys(sets, self._n_genes)) >= 0
        tested = known.tested(sets, self._n_genes)
        return np.where(measured, 0, np.where(tested, 1, 2)).astype(np.int8)

    def measured(self, sets: Ints) -> Floats:
        """Return the mean score that was measured of each set; NaN where none was.

        Parameters
        ----------
        sets
            Ascending gene indices, [m, size].
        """
        known = self._of_size(sets.shape[1])
        at = known.rows(matrix_keys(sets, self._n_genes))
        return np.where(at >= 0, np.append(known.mean, np.nan)[at], np.nan).astype(np.float32)

    def n_measured(self, size: int, genes: Ints) -> int:
        """Return how many distinct sets of a size were measured, of some genes only.

        Parameters
        ----------
        size
            Genes of a set.
        genes
            Indices.
        """
        among: Bools = np.zeros(self._n_genes, dtype=bool)
        among[genes] = True
        return int(among[self._of_size(size).sets].all(axis=1).sum())

    def _of_size(self, size: int) -> _OfSize:
        if size not in self._by_size:
            self._by_size[size] = self._gathered(size)
        return self._by_size[size]

    def _gathered(self, size: int) -> _OfSize:
        sets, scores = [], []
        for screen in self._screens:
            rows = np.flatnonzero(np.diff(screen.offsets) == size)
            genes = screen.genotypes.genes.numpy()
            matrix = genes[screen.offsets[rows][:, None] + np.arange(size)]
            learned = _is_one_of(screen, self._phenotypes)[rows]
            sets.append(np.sort(matrix, axis=1))
            scores.append(np.where(learned, screen.column("score")[rows], np.nan))
        every = np.concatenate(sets)
        score = np.concatenate(scores).astype(np.float64)
        keys, first, group = np.unique(
            matrix_keys(every, self._n_genes), return_index=True, return_inverse=True
        )
        there = np.isfinite(score)
        count = np.bincount(group[there], minlength=len(keys))
        total = np.bincount(group[there], score[there], len(keys))
        mean = np.divide(total, count, out=np.full(len(keys), np.nan), where=count > 0)
        grids = [_Grid.of(study, size, self._n_genes) for study in self._studies]
        return _OfSize(every[first], keys, mean, [g for g in grids if len(g.queries)])


def phenotypes_of(screen: Screen) -> set[str]:
    """Return the phenotypes that the rows of a screen have."""
    names, codes = _phenotypes(screen)
    return {names[code] for code in np.unique(codes).tolist()}


@dataclass(frozen=True, eq=False)
class _OfSize:
    """What is known of sets of one size: the distinct ones by key, their means, the crosses."""

    sets: Ints
    keys: AnyArray
    mean: npt.NDArray[np.float64]
    grids: list[_Grid]

    def rows(self, keys: AnyArray) -> Ints:
        """Return where each key is, or -1."""
        return _found(self.keys, keys)

    def tested(self, sets: Ints, n_genes: int) -> Bools:
        tested: Bools = np.zeros(len(sets), dtype=bool)
        if not self.grids:
            return tested
        for place in range(sets.shape[1]):
            # Each gene in turn is taken as the array gene, and the rest as the query.
            rest = matrix_keys(np.delete(sets, place, axis=1), n_genes)
            for grid in self.grids:
                tested |= grid.on_array[sets[:, place]] & (_found(grid.queries, rest) >= 0)
        return tested


@dataclass(frozen=True, eq=False)
class _Grid:
    """What one study crossed: the keys of queries of one size, and which genes are on the array."""

    queries: AnyArray
    on_array: Bools

    @classmethod
    def of(cls, study: StudyCoverage, size: int, n_genes: int) -> _Grid:
        sizes = np.diff(study.query_offsets)
        mine = sizes == size - 1
        genes = study.query_genes[np.repeat(mine, sizes)]
        offsets = np.arange(int(mine.sum()) + 1, dtype=np.int64) * (size - 1)
        on_array: Bools = np.zeros(n_genes, dtype=bool)
        on_array[study.array_genes] = True
        matrix = sorted_matrix(genes, offsets, size - 1)
        return cls(np.unique(matrix_keys(matrix, n_genes)), on_array)


def _found(ascending: AnyArray, keys: AnyArray) -> Ints:
    """Return the place of each key among ascending ones, or -1."""
    if not len(ascending):
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return np.where(ascending[at] == keys, at, -1)


def _is_one_of(screen: Screen, phenotypes: Sequence[str]) -> Bools:
    names, codes = _phenotypes(screen)
    wanted: Bools = np.array([name in phenotypes for name in names], dtype=bool)
    return wanted[codes]


def _phenotypes(screen: Screen) -> tuple[list[str], Ints]:
    """Return the names of phenotypes, and which one every row has."""
    # By code: written out as texts, the column of a large screen takes gigabytes.
    column = screen.rows["phenotype"].combine_chunks()
    return column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)
