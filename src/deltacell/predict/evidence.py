"""What a biologist looks at beside a score: how the genes of a set are connected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from deltacell.arrays import Bools, Ints, offsets_of, ragged_positions
from deltacell.cell import Cell, Metabolism, Relation

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
