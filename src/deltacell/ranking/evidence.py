"""What connects the genes of sets: relations, pathways, complexes, terms and votes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TypedDict

import numpy as np

from deltacell.base.arrays import Ints
from deltacell.cell import Cell
from deltacell.cell.annotation import shared_terms
from deltacell.models.fitted.gene_sets import look_up
from deltacell.models.interface import Vote
from deltacell.ranking.gene_names import gene_texts
from deltacell.screen import Genotypes
from deltacell.train.loaded_runs import LoadedRun

LARGEST_TERM = 500  # genes; a term of more is not specific
MOST_TERMS = 5  # that are listed of one set


class GeneLink(TypedDict):
    """An edge between two genes of a set, from ``first`` to ``second`` if it is directed."""

    first: str
    second: str
    relation: str


class EvidenceColumns(TypedDict):
    """The evidence for sets, as columns with one entry per set."""

    relations: list[list[str]]  # the names of those with a link
    links: list[list[GeneLink]]
    pathways: list[list[str]]  # that two genes share
    complexes: list[list[str]]  # that two genes share


@dataclass(frozen=True)
class SetEvidence:
    """The evidence for one set: a row of `EvidenceColumns`."""

    relations: list[str]
    links: list[GeneLink]
    pathways: list[str]
    complexes: list[str]


@dataclass(frozen=True)
class SetVote:
    """A measured set that the prediction of a run for another set rests on."""

    run: str
    names: list[str]  # of the measured set
    replaced: str  # the gene of the other set that is not in it
    by: str  # the gene in its place
    score: float  # the measured score
    relation: str  # that links both genes
    weight: float


@dataclass(frozen=True)
class StudyKnowledge:
    """What another study says of a set, in the unit of that study."""

    study: str
    run: str  # that has read the study
    measured: float | None
    is_tested: bool | None  # False for a tested set that is no hit; None if it is unknown
    is_hit: bool
    expected: float | None  # by the predictor of the study
    votes: list[SetVote]  # measured next to the set, the largest weight first


@dataclass(frozen=True)
class TermOfSet:
    """A term of an annotation that all genes of a set have."""

    annotation: str
    term: str


@dataclass(frozen=True)
class SetKnowledge:
    """What is known about a set in addition to its links."""

    votes: list[SetVote]  # the largest weight first
    lost: list[str]  # the reactions that only the whole set loses
    terms: list[TermOfSet]
    studies: list[StudyKnowledge]  # of the context


class Evidence:
    """Relations, pathways and complexes of a cell that connect the genes of sets.

    Two genes share a pathway if both are in gene rules of its reactions. They share a complex if a
    clause of a rule needs both, or if they are joined by a relation with "complex" in its name or
    source file.
    """

    def __init__(self, cell: Cell) -> None:
        self._genes = cell.genes.systematic
        self._n_genes = cell.n_genes
        self._relations = list(cell.relations.values())
        # Ascending keys; an undirected edge occurs once, with the smaller gene first.
        self._edges: list[Ints] = []
        for relation in self._relations:
            source, target = relation.edges()[:2]
            keys = source * self._n_genes + target
            self._edges.append(np.sort(keys))
        self._pathways = self._by_pair(_genes_of_pathways(cell))
        complexes = [*_genes_of_clauses(cell), *_edges_of_complexes(cell)]
        self._complexes = self._by_pair(complexes)

    def _by_pair(self, groups: Iterable[_Group]) -> dict[int, set[str]]:
        """Return the names of the groups that contain both genes, by the key of the pair."""
        shared: dict[int, set[str]] = {}
        for name, genes in groups:
            for first, second in combinations(sorted(genes), 2):
                key = first * self._n_genes + second
                shared.setdefault(key, set()).add(name)
        return shared

    def of_set(self, genes: Ints) -> SetEvidence:
        """Return the evidence for one set."""
        columns = self.columns(genes[None])
        return SetEvidence(
            relations=columns["relations"][0],
            links=columns["links"][0],
            pathways=columns["pathways"][0],
            complexes=columns["complexes"][0],
        )

    def columns(self, sets: Ints) -> EvidenceColumns:
        """Return the evidence for sets, [m, size]."""
        ascending = np.sort(sets, axis=1)
        first_places, second_places = np.triu_indices(sets.shape[1], 1)
        first = ascending[:, first_places]  # [m, pairs]
        second = ascending[:, second_places]
        links = self._links(first, second)
        keys = (first * self._n_genes + second).tolist()
        return {
            "relations": [_relations_of(links_of_set) for links_of_set in links],
            "links": links,
            "pathways": [_shared(self._pathways, pairs) for pairs in keys],
            "complexes": [_shared(self._complexes, pairs) for pairs in keys],
        }

    def _links(self, first: Ints, second: Ints) -> list[list[GeneLink]]:
        """Return the edges between the pairs of genes of each set, [m, pairs]."""
        links: list[list[GeneLink]] = [[] for _ in first]
        for relation, edges in zip(self._relations, self._edges, strict=True):
            directions = [(first, second), (second, first)][: 1 + relation.directed]
            keys = [source * self._n_genes + target for source, target in directions]
            is_edge = np.stack([look_up(edges, key)[1] for key in keys], axis=2)
            for row, pair, direction in np.argwhere(is_edge).tolist():
                sources, targets = directions[direction]
                source = sources[row, pair]
                target = targets[row, pair]
                links[row].append(
                    GeneLink(
                        first=self._genes[source],
                        second=self._genes[target],
                        relation=relation.name,
                    )
                )
        return links


_Group = tuple[str, Iterable[int]]
"""A name and the genes that share it."""


def _genes_of_pathways(cell: Cell) -> Iterable[_Group]:
    """Return the genes in rules of a pathway's reactions."""
    metabolism = cell.metabolism
    if metabolism is None or not metabolism.pathways:
        return []
    genes_of_pathway: dict[str, set[int]] = {}
    reactions, genes = metabolism.rule_genes
    for reaction, gene in zip(reactions.tolist(), genes.tolist(), strict=True):
        for name in metabolism.pathways[reaction]:
            genes_of_pathway.setdefault(name, set()).add(gene)
    return genes_of_pathway.items()


def _genes_of_clauses(cell: Cell) -> Iterator[_Group]:
    """Yield the genes that a clause of a rule needs together, named after its reaction."""
    metabolism = cell.metabolism
    if metabolism is None:
        return
    ends = pairwise(metabolism.clause_offsets.tolist())
    for reaction, (begin, end) in zip(metabolism.clause_reaction, ends, strict=True):
        genes = metabolism.clause_genes[begin:end]
        yield metabolism.reactions[reaction], genes.tolist()


def _edges_of_complexes(cell: Cell) -> Iterator[_Group]:
    """Yield the edges of relations with "complex" in their name or in that of a source file."""
    for relation in cell.relations.values():
        files = [source.file for source in cell.sources if source.into == relation.name]
        if any("complex" in name.lower() for name in [relation.name, *files]):
            source, target = relation.edges()[:2]
            for pair in np.stack([source, target], axis=1).tolist():
                yield relation.name, pair


def _relations_of(links: Sequence[GeneLink]) -> list[str]:
    return list(dict.fromkeys(link["relation"] for link in links))


def _shared(by_pair: dict[int, set[str]], pairs: list[int]) -> list[str]:
    shared: set[str] = set()
    for pair in pairs:
        shared |= by_pair.get(pair, set())
    return sorted(shared)


def knowledge_of(
    runs: Sequence[LoadedRun],
    genes: Sequence[int],
    most_votes: int | None = None,
) -> SetKnowledge:
    """Return the votes, lost reactions and shared terms of a set, with at most some votes."""
    cell = runs[0].data.cell
    votes = [vote for run in runs for vote in _votes_of(run, genes)]
    votes.sort(key=lambda vote: -abs(vote.weight))
    terms = shared_terms(cell, genes, max_genes=LARGEST_TERM)[:MOST_TERMS]
    return SetKnowledge(
        votes=votes[:most_votes],
        lost=_lost_reactions(cell, genes),
        terms=[TermOfSet(term.annotation, term.term) for term in terms],
        studies=[study for run in runs for study in _studies_of(run, genes, most_votes)],
    )


def _votes_of(run: LoadedRun, genes: Sequence[int]) -> list[SetVote]:
    return _named_votes(run, run.predictor.model.evidence(run.data.cell, list(genes)))


def _studies_of(
    run: LoadedRun,
    genes: Sequence[int],
    most_votes: int | None,
) -> list[StudyKnowledge]:
    return [
        StudyKnowledge(
            study=evidence.study,
            run=run.record.name,
            measured=evidence.score,
            is_tested=evidence.is_tested,
            is_hit=evidence.is_hit,
            expected=evidence.expected,
            votes=_named_votes(run, evidence.votes[:most_votes]),
        )
        for evidence in run.predictor.model.context_evidence(run.data.cell, list(genes))
    ]


def _named_votes(run: LoadedRun, votes: Sequence[Vote]) -> list[SetVote]:
    """Return votes with the names of genes."""
    names = gene_texts(run.data.cell.genes)
    return [
        SetVote(
            run=run.record.name,
            names=[names[gene] for gene in vote.genes],
            replaced=names[vote.replaced],
            by=names[vote.by],
            score=vote.score,
            relation=vote.relation,
            weight=vote.weight,
        )
        for vote in votes
    ]


def _lost_reactions(cell: Cell, genes: Sequence[int]) -> list[str]:
    metabolism = cell.metabolism
    if metabolism is None:
        return []
    lost = metabolism.lost_together(Genotypes.of([genes])).reactions
    return [metabolism.reactions[reaction] for reaction in lost]
