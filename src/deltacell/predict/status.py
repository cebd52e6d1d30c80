"""What is known of a set beside its score: tested or not, linked, and the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from deltacell.arrays import AnyArray, Bools, Floats, Ints, offsets_of, ragged_positions
from deltacell.cell import Cell, Genes, Metabolism, Relation
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


LINKED, UNLINKED, UNKNOWN = 1, 0, -1


class Linkage:
    """Whether two genes of a set lie on one chromosome with fewer base pairs between them.

    Parameters
    ----------
    genes
        With their places.
    distance
        Base pairs from the end of one gene to the start of the other; genes that overlap have 0.
    """

    def __init__(self, genes: Genes, distance: int) -> None:
        names = {name: i for i, name in enumerate(dict.fromkeys(genes.chromosome))}
        self._chromosome: Ints = np.array([names[c] for c in genes.chromosome], dtype=np.int64)
        self._on_one: Bools = np.array([bool(c) for c in genes.chromosome], dtype=bool)
        self._placed: Bools = self._on_one & genes.has_position
        self._start, self._end = genes.start, genes.end
        self._distance = distance

    def of(self, sets: Ints) -> Codes:
        """Return `LINKED`, `UNLINKED` or `UNKNOWN` for each set.

        A set is linked where two of its genes are known to be. It is unknown where none are, and
        the place of a gene is not known well enough to tell.

        Parameters
        ----------
        sets
            Gene indices, [m, size].
        """
        linked: Bools = np.zeros(len(sets), dtype=bool)
        unknown: Bools = np.zeros(len(sets), dtype=bool)
        for a in range(sets.shape[1]):
            for b in range(a + 1, sets.shape[1]):
                near, untold = self._pairs(sets[:, a], sets[:, b])
                linked |= near
                unknown |= untold
        return np.where(linked, LINKED, np.where(unknown, UNKNOWN, UNLINKED)).astype(np.int8)

    def n_pairs(self, genes: Ints) -> int:
        """Return how many pairs of some genes are linked.

        Parameters
        ----------
        genes
            Indices, each once.
        """
        found = 0
        for i in range(len(genes)):
            near, _ = self._pairs(np.full(len(genes) - i - 1, genes[i]), genes[i + 1 :])
            found += int(near.sum())
        return found

    def n_unplaced(self, genes: Ints) -> int:
        """Return how many genes have no known place."""
        return int((~self._placed[genes]).sum())

    def _pairs(self, a: Ints, b: Ints) -> tuple[Bools, Bools]:
        """Return which pairs are linked, and of which it is not known."""
        apart = self._on_one[a] & self._on_one[b] & (self._chromosome[a] != self._chromosome[b])
        told = self._placed[a] & self._placed[b]
        between = np.maximum(self._start[b] - self._end[a], self._start[a] - self._end[b])
        near: Bools = told & ~apart & (np.maximum(between, 0) < self._distance)
        return near, ~told & ~apart


COLUMNS = ("relations", "links", "pathways", "complexes")
"""The columns of `Evidence.columns`."""

_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of the genes of a cell, ready to be looked up for many sets.

    Parameters
    ----------
    genes
        Systematic names.
    relations
        Names of the relations, in the order of the cell.
    directed
        Which of them are.
    edges
        Of each relation, its edges as ascending keys ``first * n_genes + second``: of an undirected
        one each edge once, the smaller gene first; of a directed one source and target.
    pathways
        Names of the pathways of the metabolism, in order.
    in_pathway
        Which genes are in a rule of a reaction of each, [n_genes, n_pathways].
    complexes
        Names of what makes two genes a complex: a reaction, or a relation.
    complex_pairs, complex_of_pair
        Pairs of genes as ascending keys, the smaller gene first, and the complex of each.
    """

    genes: tuple[str, ...]
    relations: tuple[str, ...]
    directed: tuple[bool, ...]
    edges: tuple[Ints, ...]
    pathways: tuple[str, ...]
    in_pathway: Bools
    complexes: tuple[str, ...]
    complex_pairs: Ints
    complex_of_pair: Ints

    @classmethod
    def of(cls, cell: Cell) -> Evidence:
        """Collect it from a cell.

        Parameters
        ----------
        cell
            The wild type. Two genes share a pathway where both are in rules of reactions of it.
            They share a complex where one clause of a rule needs both, or where an edge of a
            co-complex relation joins them: one whose name or source file says so.
        """
        pathways, in_pathway = _pathways(cell)
        complexes, pairs, of_pair = _complexes(cell)
        return cls(
            cell.genes.systematic,
            tuple(cell.relations),
            tuple(relation.directed for relation in cell.relations.values()),
            tuple(_edge_keys(relation) for relation in cell.relations.values()),
            pathways,
            in_pathway,
            complexes,
            pairs,
            of_pair,
        )

    def columns(self, sets: Ints) -> dict[str, list[Any]]:
        """Return the evidence of many sets, one list a column with one entry a set.

        ``relations``: the names of those with an edge between two genes of the set. ``links``:
        those edges, as ``first``, ``second`` and ``relation``; from first to second where it is
        directed. ``pathways`` and ``complexes``: the names of those that two genes or more share.
        The order of a set's genes does not matter.

        Parameters
        ----------
        sets
            Gene indices, [m, size].
        """
        found: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for start in range(0, len(sets), _ROWS_AT_ONCE):
            some = np.sort(np.asarray(sets[start : start + _ROWS_AT_ONCE], dtype=np.int64), axis=1)
            row, first, second = _pairs_of(some)
            relations, links = self._links(len(some), row, first, second)
            found["relations"] += relations
            found["links"] += links
            found["pathways"] += self._shared_pathways(some)
            found["complexes"] += self._shared_complexes(len(some), row, first, second)
        return found

    def of_set(self, genes: Iterable[int]) -> dict[str, Any]:
        """Return the evidence of one set, by column.

        Parameters
        ----------
        genes
            Gene indices.
        """
        columns = self.columns(np.array([list(genes)], dtype=np.int64))
        return {name: column[0] for name, column in columns.items()}

    def _links(
        self, n_sets: int, row: Ints, first: Ints, second: Ints
    ) -> tuple[list[list[str]], list[list[dict[str, str]]]]:
        n = len(self.genes)
        names: list[list[str]] = [[] for _ in range(n_sets)]
        links: list[list[dict[str, str]]] = [[] for _ in range(n_sets)]
        for name, directed, edges in zip(self.relations, self.directed, self.edges, strict=True):
            ways = [(first, second), (second, first)] if directed else [(first, second)]
            there = np.stack([_among(a * n + b, edges) for a, b in ways], axis=1)
            for pair, way in np.argwhere(there).tolist():
                a, b = ways[way]
                set_ = int(row[pair])
                if not names[set_] or names[set_][-1] != name:
                    names[set_].append(name)
                links[set_].append(
                    {"first": self.genes[a[pair]], "second": self.genes[b[pair]], "relation": name}
                )
        return names, links

    def _shared_pathways(self, sets: Ints) -> list[list[str]]:
        shared: list[list[str]] = [[] for _ in sets]
        if self.pathways:
            times = np.zeros((len(sets), len(self.pathways)), dtype=np.int16)
            for gene in sets.T:
                times += self.in_pathway[gene]
            for set_, pathway in np.argwhere(times > 1).tolist():
                shared[set_].append(self.pathways[pathway])
        return shared

    def _shared_complexes(
        self, n_sets: int, row: Ints, first: Ints, second: Ints
    ) -> list[list[str]]:
        shared: list[dict[str, None]] = [{} for _ in range(n_sets)]
        key = first * len(self.genes) + second
        start = np.searchsorted(self.complex_pairs, key, side="left")
        length = np.searchsorted(self.complex_pairs, key, side="right") - start
        of_hit = self.complex_of_pair[ragged_positions(start, length)]
        hits = np.stack([np.repeat(row, length), of_hit], axis=1)
        for set_, complex_ in hits.tolist():
            shared[set_][self.complexes[complex_]] = None
        return [sorted(names) for names in shared]


def _pairs_of(sets: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the pairs of genes of all sets, set by set: the set, the smaller and the larger."""
    places = np.array(list(combinations(range(sets.shape[1]), 2)), dtype=np.int64).reshape(-1, 2)
    row = np.repeat(np.arange(len(sets)), len(places))
    return row, sets[:, places[:, 0]].ravel(), sets[:, places[:, 1]].ravel()


def _among(keys: Ints, ascending: Ints) -> Bools:
    """Return which of the keys are among others that ascend."""
    if not len(ascending):
        return np.zeros(len(keys), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    found: Bools = ascending[at] == keys
    return found


def _edge_keys(relation: Relation) -> Ints:
    source, target, _ = relation.edges()
    keys: Ints = np.sort(source * relation.n_genes + target)
    return keys


def _pathways(cell: Cell) -> tuple[tuple[str, ...], Bools]:
    metabolism = cell.metabolism
    if metabolism is None or not metabolism.pathways:
        return (), np.zeros((cell.n_genes, 0), dtype=bool)
    names = sorted({name for of_reaction in metabolism.pathways for name in of_reaction})
    number = {name: i for i, name in enumerate(names)}
    listed = [[number[name] for name in of_reaction] for of_reaction in metabolism.pathways]
    offsets = offsets_of(np.array([len(one) for one in listed], dtype=np.int64))
    flat = np.array([i for one in listed for i in one], dtype=np.int64)
    reaction, gene = metabolism.rule_genes
    lengths = np.diff(offsets)[reaction]
    member = np.zeros((cell.n_genes, len(names)), dtype=bool)
    member[np.repeat(gene, lengths), flat[ragged_positions(offsets[reaction], lengths)]] = True
    kept = np.flatnonzero(member.sum(axis=0) > 1)
    return tuple(names[i] for i in kept), member[:, kept]


def _complexes(cell: Cell) -> tuple[tuple[str, ...], Ints, Ints]:
    """Return the names, and the pairs with the complex of each, ordered by pair."""
    names: list[str] = []
    pairs, of_pair = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    if cell.metabolism is not None:
        names += cell.metabolism.reactions
        keys, reaction = _clause_pairs(cell.metabolism)
        pairs.append(keys)
        of_pair.append(reaction)
    for relation in cell.relations.values():
        if _is_of_complexes(cell, relation.name):
            source, target, _ = relation.edges()
            low, high = np.minimum(source, target), np.maximum(source, target)
            pairs.append(low * cell.n_genes + high)
            of_pair.append(np.full(len(low), len(names), dtype=np.int64))
            names.append(relation.name)
    key, complex_ = np.concatenate(pairs), np.concatenate(of_pair)
    order = np.lexsort((complex_, key))
    return tuple(names), key[order], complex_[order]


def _clause_pairs(metabolism: Metabolism) -> tuple[Ints, Ints]:
    """Return the pairs of genes that one clause needs, with the reaction, each once."""
    n_reactions = max(metabolism.n_reactions, 1)
    sizes = np.diff(metabolism.clause_offsets)
    found = [np.zeros(0, dtype=np.int64)]
    for size in np.unique(sizes[sizes > 1]).tolist():
        clause = np.flatnonzero(sizes == size)
        at = metabolism.clause_offsets[clause][:, None] + np.arange(size)
        genes = np.sort(metabolism.clause_genes[at].astype(np.int64), axis=1)
        row, low, high = _pairs_of(genes)
        reaction = metabolism.clause_reaction[clause][row].astype(np.int64)
        found.append(np.unique((low * metabolism.n_genes + high) * n_reactions + reaction))
    key = np.unique(np.concatenate(found))
    return key // n_reactions, key % n_reactions


def _is_of_complexes(cell: Cell, relation: str) -> bool:
    files = [source.file for source in cell.sources if source.into == relation]
    return any("complex" in name.lower() for name in [relation, *files])
