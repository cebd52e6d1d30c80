"""What is known of a set beside its score: tested or not, linked, and the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deltacell.arrays import AnyArray, Bools, Doubles, Floats, Ints, offsets_of, ragged_positions
from deltacell.cell import Cell, Genes
from deltacell.screen import Screen
from deltacell.screen.coverage import StudyCoverage
from deltacell.screen.genotypes import matrix_keys, sorted_matrix

MEASURED, TESTED, UNTESTED = "measured", "tested", "untested"
STATUSES = (MEASURED, TESTED, UNTESTED)  # in the order of the codes that `Statuses.of` returns
LINKED, UNLINKED, UNKNOWN = 1, 0, -1
COLUMNS = ("relations", "links", "pathways", "complexes")  # of `Evidence.columns`
SETS_AT_ONCE = 50_000

Codes = npt.NDArray[np.int8]


class Statuses:
    """The status of gene sets by one screen or several over the same genes.

    A set is measured where a screen has a row of it, whatever its phenotype and whether or not a
    run was trained on it; tested where it is in the coverage of a study and has no row; and
    untested otherwise. Measured scores are those of ``phenotypes``.
    """

    def __init__(self, screens: Sequence[Screen], phenotypes: Iterable[str]) -> None:
        self._screens, self._phenotypes = screens, set(phenotypes)
        self._n_genes = len(screens[0].genes)
        self._studies = [study for screen in screens for study in screen.coverage.studies]
        self._by_size: dict[int, _OfSize] = {}

    @property
    def complete(self) -> bool:
        """Whether all that was tested is known: no study shows only its hits."""
        return all(study.complete for study in self._studies)

    def of(self, sets: Ints) -> Codes:
        """Return the status of each set of ascending genes, [m, size], as a place in `STATUSES`."""
        known = self._of_size(sets.shape[1])
        measured = _found(known.keys, matrix_keys(sets, self._n_genes)) >= 0
        tested: Bools = np.zeros(len(sets), dtype=bool)
        for place in range(sets.shape[1] if known.grids else 0):
            # Each gene in turn is taken as the array gene, and the rest as the query.
            rest = matrix_keys(np.delete(sets, place, axis=1), self._n_genes)
            for queries, on_array in known.grids:
                tested |= on_array[sets[:, place]] & (_found(queries, rest) >= 0)
        return np.where(measured, 0, np.where(tested, 1, 2)).astype(np.int8)

    def measured(self, sets: Ints) -> Floats:
        """Return the mean measured score of each set of ascending genes; NaN where none was."""
        known = self._of_size(sets.shape[1])
        at = _found(known.keys, matrix_keys(sets, self._n_genes))
        return np.where(at >= 0, np.append(known.mean, np.nan)[at], np.nan).astype(np.float32)

    def n_measured(self, size: int, genes: Ints) -> int:
        """Return how many distinct sets of a size were measured, of these genes only."""
        return int(np.isin(self._of_size(size).sets, genes).all(axis=1).sum())

    def _of_size(self, size: int) -> _OfSize:
        if size not in self._by_size:
            self._by_size[size] = self._gather(size)
        return self._by_size[size]

    def _gather(self, size: int) -> _OfSize:
        sets, scores = [], []
        for screen in self._screens:
            rows = np.flatnonzero(np.diff(screen.offsets) == size)
            matrix = screen.genotypes.genes.numpy()[screen.offsets[rows][:, None] + np.arange(size)]
            sets.append(np.sort(matrix, axis=1))
            names, codes = _phenotypes(screen)
            learned = np.array([name in self._phenotypes for name in names], dtype=bool)[codes]
            scores.append(np.where(learned[rows], screen.column("score")[rows], np.nan))
        every, score = np.concatenate(sets), np.concatenate(scores).astype(np.float64)
        keys, first, group = np.unique(
            matrix_keys(every, self._n_genes), return_index=True, return_inverse=True
        )
        there = np.isfinite(score)
        count = np.bincount(group[there], minlength=len(keys))
        total = np.bincount(group[there], score[there], len(keys))
        mean = np.divide(total, count, out=np.full(len(keys), np.nan), where=count > 0)
        grids = [_grid(study, size, self._n_genes) for study in self._studies]
        return _OfSize(every[first], keys, mean, [grid for grid in grids if len(grid[0])])


class _OfSize(NamedTuple):
    """The distinct measured sets of one size by key, their mean scores, and what was crossed."""

    sets: Ints
    keys: AnyArray
    mean: Doubles
    grids: list[tuple[AnyArray, Bools]]


def _grid(study: StudyCoverage, size: int, n_genes: int) -> tuple[AnyArray, Bools]:
    """Return the keys of a study's queries of one gene less, and which genes are on its array."""
    sizes = np.diff(study.query_offsets)
    mine = sizes == size - 1
    genes = study.query_genes[np.repeat(mine, sizes)]
    offsets = np.arange(int(mine.sum()) + 1, dtype=np.int64) * (size - 1)
    on_array: Bools = np.zeros(n_genes, dtype=bool)
    on_array[study.array_genes] = True
    return np.unique(matrix_keys(sorted_matrix(genes, offsets, size - 1), n_genes)), on_array


def _found(ascending: AnyArray, keys: AnyArray) -> Ints:
    """Return the place of each key among ascending ones, or -1."""
    if not len(ascending):
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return np.where(ascending[at] == keys, at, -1)


def phenotypes_of(screen: Screen) -> set[str]:
    """Return the phenotypes of the rows of a screen."""
    names, codes = _phenotypes(screen)
    return {names[code] for code in np.unique(codes).tolist()}


def _phenotypes(screen: Screen) -> tuple[list[str], Ints]:
    # By code: written out as texts, the column of a large screen takes gigabytes.
    column = screen.rows["phenotype"].combine_chunks()
    return column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)


class Linkage:
    """Whether genes of a set lie on one chromosome with fewer base pairs than ``distance`` between.

    The distance is from the end of one gene to the start of the other; 0 where they overlap.
    """

    def __init__(self, genes: Genes, distance: int) -> None:
        self._chromosome: Ints = np.unique(genes.chromosome, return_inverse=True)[1]
        self._on_one: Bools = np.array([bool(c) for c in genes.chromosome], dtype=bool)
        self._placed: Bools = self._on_one & genes.has_position
        self._start, self._end, self._distance = genes.start, genes.end, distance

    def of(self, sets: Ints) -> Codes:
        """Return `LINKED`, `UNLINKED` or `UNKNOWN` for each set, [m, size].

        A set is linked where two of its genes are known to be. It is unknown where none are, and
        the place of a gene is not known well enough to tell.
        """
        linked: Bools = np.zeros(len(sets), dtype=bool)
        unknown: Bools = np.zeros(len(sets), dtype=bool)
        for a, b in combinations(sets.T, 2):
            near, open_ = self._pairs(a, b)
            linked |= near
            unknown |= open_
        return np.where(linked, LINKED, np.where(unknown, UNKNOWN, UNLINKED)).astype(np.int8)

    def n_pairs(self, genes: Ints) -> int:
        """Return how many pairs of distinct genes are linked."""
        rest = (genes[i + 1 :] for i in range(len(genes)))
        return sum(
            int(self._pairs(np.full(len(others), gene), others)[0].sum())
            for gene, others in zip(genes, rest, strict=True)
        )

    def n_unplaced(self, genes: Ints) -> int:
        """Return how many genes have no known place."""
        return int((~self._placed[genes]).sum())

    def _pairs(self, a: Ints, b: Ints) -> tuple[Bools, Bools]:
        """Return which pairs are linked, and of which it is unknown."""
        apart = self._on_one[a] & self._on_one[b] & (self._chromosome[a] != self._chromosome[b])
        known = self._placed[a] & self._placed[b]
        between = np.maximum(self._start[b] - self._end[a], self._start[a] - self._end[b])
        near: Bools = known & ~apart & (np.maximum(between, 0) < self._distance)
        return near, ~known & ~apart


class Evidence:
    """What a cell says of the genes of many sets.

    Two genes share a pathway where both are in rules of reactions of it. They share a complex
    where one clause of a rule needs both, or where an edge of a co-complex relation joins them:
    one whose name or source file says so.
    """

    def __init__(self, cell: Cell) -> None:
        self._genes, self._n = cell.genes.systematic, cell.n_genes
        self._relations = list(cell.relations.values())
        # Ascending keys of the edges: of an undirected relation each once, the smaller gene first.
        self._edges = []
        for relation in self._relations:
            source, target, _ = relation.edges()
            self._edges.append(np.sort(source * self._n + target))
        self._pathways, self._in_pathway = _pathways(cell)
        self._complexes, self._complex_pairs, self._complex_of_pair = _complexes(cell)

    def columns(self, sets: Ints) -> dict[str, list[Any]]:
        """Return the evidence of many sets, [m, size], by column with one entry per set.

        ``relations``: the names of those with an edge between two genes of the set. ``links``:
        those edges, as ``first``, ``second`` and ``relation``; from first to second where it is
        directed. ``pathways`` and ``complexes``: the names of those that two genes or more share.
        """
        found: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for start in range(0, len(sets), SETS_AT_ONCE):
            some = np.sort(np.asarray(sets[start : start + SETS_AT_ONCE], dtype=np.int64), axis=1)
            row, first, second = _pairs_of(some)
            links = self._links(len(some), row, first, second)
            found["links"] += links
            found["relations"] += [
                list(dict.fromkeys(link["relation"] for link in of_set)) for of_set in links
            ]
            found["pathways"] += self._shared_pathways(some)
            found["complexes"] += self._shared_complexes(len(some), row, first, second)
        return found

    def of_set(self, genes: Iterable[int]) -> dict[str, Any]:
        """Return the evidence of one set, by column."""
        columns = self.columns(np.array([list(genes)], dtype=np.int64))
        return {name: column[0] for name, column in columns.items()}

    def _links(
        self, n_sets: int, row: Ints, first: Ints, second: Ints
    ) -> list[list[dict[str, str]]]:
        links: list[list[dict[str, str]]] = [[] for _ in range(n_sets)]
        for relation, edges in zip(self._relations, self._edges, strict=True):
            ways = [(first, second), (second, first)][: 1 + relation.directed]
            there = np.stack([_found(edges, a * self._n + b) >= 0 for a, b in ways], axis=1)
            for pair, way in np.argwhere(there).tolist():
                a, b = (self._genes[genes[pair]] for genes in ways[way])
                link = {"first": a, "second": b, "relation": relation.name}
                links[row[pair]].append(link)
        return links

    def _shared_pathways(self, sets: Ints) -> list[list[str]]:
        shared: list[list[str]] = [[] for _ in sets]
        times = np.zeros((len(sets), len(self._pathways)), dtype=np.int16)
        for gene in sets.T:
            times += self._in_pathway[gene]
        for set_, pathway in np.argwhere(times > 1).tolist():
            shared[set_].append(self._pathways[pathway])
        return shared

    def _shared_complexes(
        self, n_sets: int, row: Ints, first: Ints, second: Ints
    ) -> list[list[str]]:
        shared: list[set[str]] = [set() for _ in range(n_sets)]
        key = first * self._n + second
        start = np.searchsorted(self._complex_pairs, key, side="left")
        length = np.searchsorted(self._complex_pairs, key, side="right") - start
        of_hit = self._complex_of_pair[ragged_positions(start, length)]
        for set_, complex_ in zip(np.repeat(row, length).tolist(), of_hit.tolist(), strict=True):
            shared[set_].add(self._complexes[complex_])
        return [sorted(names) for names in shared]


def _pairs_of(sets: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the pairs of genes of all sets, set by set: the set, the smaller and the larger."""
    places = np.array(list(combinations(range(sets.shape[1]), 2)), dtype=np.int64).reshape(-1, 2)
    row = np.repeat(np.arange(len(sets)), len(places))
    return row, sets[:, places[:, 0]].ravel(), sets[:, places[:, 1]].ravel()


def _pathways(cell: Cell) -> tuple[list[str], Bools]:
    """Return the pathways that two genes or more share, and their genes, [n_genes, n_pathways]."""
    metabolism = cell.metabolism
    if metabolism is None or not metabolism.pathways:
        return [], np.zeros((cell.n_genes, 0), dtype=bool)
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
    return [names[i] for i in kept], member[:, kept]


def _complexes(cell: Cell) -> tuple[list[str], Ints, Ints]:
    """Return the names of complexes, and pairs of genes with the complex of each, by pair."""
    names: list[str] = []
    pairs, of_pair = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    metabolism, n = cell.metabolism, cell.n_genes
    if metabolism is not None:
        names += metabolism.reactions
        sizes = np.diff(metabolism.clause_offsets)
        for size in np.unique(sizes[sizes > 1]).tolist():
            clause = np.flatnonzero(sizes == size)
            at = metabolism.clause_offsets[clause][:, None] + np.arange(size)
            genes = np.sort(metabolism.clause_genes[at].astype(np.int64), axis=1)
            row, low, high = _pairs_of(genes)
            pairs.append(low * n + high)
            of_pair.append(metabolism.clause_reaction[clause][row].astype(np.int64))
    for relation in cell.relations.values():
        files = [source.file for source in cell.sources if source.into == relation.name]
        if any("complex" in name.lower() for name in [relation.name, *files]):
            source, target, _ = relation.edges()
            pairs.append(np.minimum(source, target) * n + np.maximum(source, target))
            of_pair.append(np.full(len(source), len(names), dtype=np.int64))
            names.append(relation.name)
    key, complex_ = np.unique(np.stack([np.concatenate(pairs), np.concatenate(of_pair)]), axis=1)
    return names, key, complex_
