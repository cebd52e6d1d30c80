"""What connects the genes of sets: relations, pathways, complexes, terms and votes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from deltacell.base.arrays import Ints
from deltacell.cell import Cell
from deltacell.cell.annotation import shared_terms
from deltacell.models.fitted.gene_sets import look_up
from deltacell.ranking.gene_names import gene_texts
from deltacell.screen import Genotypes
from deltacell.train.predictor import LoadedRun

LARGEST_TERM, MOST_TERMS = 500, 5  # terms of more genes are not specific


class Evidence:
    """Relations, pathways and complexes of a cell that connect the genes of sets.

    Two genes share a pathway if both are in gene rules of its reactions. They share a complex if a
    clause of a rule needs both, or if they are joined by a relation with "complex" in its name or
    source file.
    """

    def __init__(self, cell: Cell) -> None:
        self._genes, self._n = cell.genes.systematic, cell.n_genes
        self._relations = list(cell.relations.values())
        # Ascending keys; an undirected edge occurs once, with the smaller gene first.
        edges = [relation.edges()[:2] for relation in self._relations]
        self._edges = [np.sort(source * self._n + target) for source, target in edges]
        pathways: dict[str, set[int]] = {}
        complexes: list[tuple[str, Iterable[int]]] = []
        if (metabolism := cell.metabolism) is not None:
            rules = zip(*(column.tolist() for column in metabolism.rule_genes), strict=True)
            for reaction, gene in rules if metabolism.pathways else ():
                for name in metabolism.pathways[reaction]:
                    pathways.setdefault(name, set()).add(gene)
            ends = pairwise(metabolism.clause_offsets.tolist())
            for reaction, (a, b) in zip(metabolism.clause_reaction, ends, strict=True):
                genes = metabolism.clause_genes[a:b].tolist()
                complexes.append((metabolism.reactions[reaction], genes))
        for relation, (source, target) in zip(self._relations, edges, strict=True):
            files = [one.file for one in cell.sources if one.into == relation.name]
            if any("complex" in name.lower() for name in [relation.name, *files]):
                pairs = np.stack([source, target], axis=1).tolist()
                complexes += [(relation.name, pair) for pair in pairs]
        self._pathways = self._by_pair(pathways.items())
        self._complexes = self._by_pair(complexes)

    def _by_pair(self, groups: Iterable[tuple[str, Iterable[int]]]) -> dict[int, set[str]]:
        """Return the names of the groups that contain both genes, by the key of the pair."""
        shared: dict[int, set[str]] = {}
        for name, genes in groups:
            for a, b in combinations(sorted(genes), 2):
                shared.setdefault(a * self._n + b, set()).add(name)
        return shared

    def columns(self, sets: Ints) -> dict[str, list[Any]]:
        """Return the evidence for sets, [m, size], as columns with one entry per set.

        ``links`` are edges between genes of a set, from ``first`` to ``second`` if directed, and
        ``relations`` their names; ``pathways`` and ``complexes`` are shared by two genes.
        """
        ascending, pairs = np.sort(sets, axis=1), np.triu_indices(sets.shape[1], 1)
        first, second = (ascending[:, places] for places in pairs)
        keys = (first * self._n + second).tolist()
        links: list[list[dict[str, str]]] = [[] for _ in first]
        for relation, edges in zip(self._relations, self._edges, strict=True):
            ways = [(first, second), (second, first)][: 1 + relation.directed]
            there = np.stack([look_up(edges, a * self._n + b)[1] for a, b in ways], axis=2)
            for row, pair, way in np.argwhere(there).tolist():
                a, b = (self._genes[genes[row, pair]] for genes in ways[way])
                links[row].append({"first": a, "second": b, "relation": relation.name})
        return {
            "relations": [list({link["relation"]: None for link in of}) for of in links],
            "links": links,
            "pathways": [_shared(self._pathways, of) for of in keys],
            "complexes": [_shared(self._complexes, of) for of in keys],
        }


def _shared(by_pair: dict[int, set[str]], pairs: list[int]) -> list[str]:
    return sorted({name for pair in pairs for name in by_pair.get(pair, ())})


def known_of(
    runs: Sequence[LoadedRun],
    genes: Sequence[int],
    most: int | None = None,
) -> dict[str, Any]:
    """Return the evidence about a set.

    ``votes`` are at most ``most`` measured sets that predictions rest on, the largest weight first;
    ``lost`` the reactions that only the whole set loses; ``terms`` those that all its genes have.
    """
    cell = runs[0].data.cell
    names = gene_texts(cell.genes)
    votes: list[dict[str, Any]] = []
    for run in runs:
        for voter in run.predictor.model.evidence(run.data.cell, list(genes)):
            votes.append(
                {
                    "run": run.record.name,
                    "names": [names[gene] for gene in voter.genes],
                    "replaced": names[voter.replaced],
                    "by": names[voter.by],
                    "score": voter.score,
                    "relation": voter.relation,
                    "weight": voter.weight,
                },
            )
    votes.sort(key=lambda vote: -abs(vote["weight"]))
    lost: list[str] = []
    if (metabolism := cell.metabolism) is not None:
        reactions = metabolism.lost_together(Genotypes.of([genes])).reactions
        lost = [metabolism.reactions[reaction] for reaction in reactions]
    terms = shared_terms(cell, genes, max_genes=LARGEST_TERM)[:MOST_TERMS]
    shared = [{"annotation": term.annotation, "term": term.term} for term in terms]
    return {"votes": votes[:most], "lost": lost, "terms": shared}
