"""What is known about the score of one gene set, as values; `deltacell.report` renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deltacell.base.files import JsonObject
from deltacell.ranking.evidence import SetEvidence, SetKnowledge
from deltacell.ranking.gene_names import GeneFacts
from deltacell.ranking.measured import MeasuredSet


@dataclass(frozen=True)
class RunScore:
    """The score that one run predicts for a set."""

    name: str
    seed: int
    model: str
    score: float
    hit: float | None = None  # the probability of a hit, of a predictor that has one
    given_hit: float | None = None  # the score if it is a hit


@dataclass(frozen=True)
class RelationContribution:
    """What the messages over a relation add to a score, as the mean over networks."""

    relation: str
    links: int  # edges between genes of the set
    contribution: float


@dataclass(frozen=True)
class GeneContribution:
    """What the vector of a gene adds to a score, as the mean over networks."""

    gene: str
    name: str
    deleted: bool
    contribution: float


@dataclass(frozen=True)
class OtherGenes:
    """The genes that are not listed, and what their vectors add to a score together."""

    genes: int
    contribution: float


@dataclass(frozen=True)
class MeanContributions:
    """What relations and genes contribute to a score, as means over networks.

    The baselines are the scores without any messages, and without any vectors of genes. A residual
    is what is missing in the sum of a baseline and its contributions. All four are None without a
    network.
    """

    relations: list[RelationContribution]  # the largest first
    gene_contributions: list[GeneContribution]  # the deleted genes first, each the largest first
    other_genes: OtherGenes
    complete: bool  # whether all residuals are within the tolerance
    relations_baseline: float | None
    relations_residual: float | None
    genes_baseline: float | None
    genes_residual: float | None


@dataclass(frozen=True)
class NearestSet(MeasuredSet):
    """A measured set near another one."""

    distance: float


@dataclass(frozen=True)
class ExplainedSet:
    """The score of one gene set with what it is based on, in the unit of the screen."""

    title: str
    genes: list[str]  # systematic names
    names: list[str]  # standard names
    runs: list[RunScore]
    score: float  # the mean over runs
    spread: float | None  # the standard deviation over runs; None for one run
    low: float | None  # the ends of a 90 % interval; None if it is unknown
    high: float | None
    is_of_hits: bool  # whether the interval is that of the score of a hit
    measured: float | None
    part: str | None  # of the split, in which the set was measured
    contributions: MeanContributions
    knowledge: SetKnowledge
    gene_facts: list[GeneFacts]
    nearest: list[NearestSet]  # the nearest first
    evidence: SetEvidence
    sentences: Sequence[str] = ()

    def to_json(self) -> JsonObject:
        """Return a JSON-serialisable dict, in which contributions and knowledge are not nested."""
        result: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name in ("contributions", "knowledge"):
                result |= value
            else:
                result[name] = value
        return result
