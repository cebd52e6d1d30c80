"""The explanation of a gene set's score: contributions, evidence and measured sets near it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deltacell.base.arrays import Doubles, Ints
from deltacell.cell import Genes
from deltacell.models.interface import GatedScore
from deltacell.ranking.ensemble import MeanOfRuns, on_one_scale, scorer_of_predictors
from deltacell.ranking.evidence import Evidence, GeneLink, knowledge_of
from deltacell.ranking.explained_set import (
    ExplainedSet,
    GeneContribution,
    MeanContributions,
    NearestSet,
    OtherGenes,
    RelationContribution,
    RunScore,
)
from deltacell.ranking.gene_names import gene_facts, gene_texts
from deltacell.ranking.integrated_gradients import MOST, Contributions, contributions
from deltacell.ranking.measured import MeasuredSets, nearest_sets
from deltacell.ranking.request_on_runs import trained_genes, trained_sizes
from deltacell.ranking.set_intervals import SetIntervals
from deltacell.ranking.why_sentences import why_sentences
from deltacell.screen import Genotypes
from deltacell.train.loaded_runs import LoadedRun
from deltacell.train.predictor import TrainedPredictor

OTHER_GENES = 10  # listed in addition to the deleted ones
NEAREST = 10  # measured sets that are listed


def explain_set(
    runs: Sequence[LoadedRun],
    genes: Sequence[int] | Ints,
    *,
    most: int = MOST,
) -> ExplainedSet:
    """Explain the score of one gene set, by one run or by several of the same genes together.

    The order of the genes does not matter. All numbers are in the unit of the screen. Each
    decomposition of a run's score takes at most ``most`` gradients.
    """
    cell = runs[0].data.cell
    ascending = np.sort(np.asarray(genes, dtype=np.int64))
    indices = ascending.tolist()
    Genotypes.of([indices]).check(cell.n_genes)
    predictors = on_one_scale(runs)
    scorer = scorer_of_predictors(predictors)
    scored = scorer.score(ascending[None])
    score = float(scored.score[0])
    texts = gene_texts(cell.genes)
    names = [texts[gene] for gene in indices]
    gated = [predictor.model.gated(predictor.cell, indices) for predictor in predictors]
    measured_sets = MeasuredSets(runs, [len(indices)])
    row = measured_sets.row_of(ascending)
    evidence = Evidence(cell).of_set(ascending)
    interval = SetIntervals(runs).around(ascending[None])
    explained = ExplainedSet(
        title=f"Why {' '.join(names)} scores {score:+.3g}",
        genes=[cell.genes[gene] for gene in indices],
        names=names,
        runs=_scores_of_runs(runs, predictors, gated, scorer, ascending),
        score=score,
        spread=None if len(runs) == 1 else float(scored.spread[0]),
        low=_known(interval.low[0]),
        high=_known(interval.high[0]),
        is_of_hits=any(run.data.grid is not None for run in runs),
        measured=None if row is None else float(measured_sets.score[row]),
        part=None if row is None else measured_sets.part_name(row),
        contributions=_mean_contributions(
            _contributions_of_networks(predictors, gated, most),
            indices,
            cell.genes,
            evidence.links,
        ),
        knowledge=knowledge_of(runs, indices),
        gene_facts=gene_facts(cell.genes, indices),
        nearest=_nearest(measured_sets, ascending, scorer),
        evidence=evidence,
    )
    is_trained = trained_genes(runs)
    untrained = [texts[gene] for gene in indices if not is_trained[gene]]
    sentences = why_sentences(explained, untrained, trained_sizes(runs))
    return replace(explained, sentences=sentences)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _scores_of_runs(
    runs: Sequence[LoadedRun],
    predictors: Sequence[TrainedPredictor],
    gated: Sequence[GatedScore | None],
    scorer: MeanOfRuns,
    ascending: Ints,
) -> list[RunScore]:
    """Return the score of a set by each run, with the probability of a hit if it predicts one."""
    genotype = Genotypes.of([ascending.tolist()])
    scores: list[float] = scorer.score_each(ascending[None])[:, 0].tolist()
    run_scores = []
    for run, predictor, network, score in zip(runs, predictors, gated, scores, strict=True):
        model = run.config.model.name
        run_score = RunScore(run.record.name, run.record.seed, model, score)
        if network is None:
            prediction = predictor.predict(genotype)
            if prediction.hit is not None:
                run_score = replace(run_score, hit=float(prediction.hit[0]))
            if prediction.given_hit is not None:
                run_score = replace(run_score, given_hit=float(prediction.given_hit[0]))
        run_scores.append(run_score)
    return run_scores


def _nearest(measured_sets: MeasuredSets, ascending: Ints, scorer: MeanOfRuns) -> list[NearestSet]:
    """Return the measured sets nearest to a set of their size, the nearest first."""
    candidates = measured_sets.sets[:, -len(ascending) :]
    rows, distances = nearest_sets(measured_sets.cell, ascending.tolist(), candidates, NEAREST)
    listed = measured_sets.listed(rows, scorer)
    pairs = zip(listed, distances.tolist(), strict=True)
    return [NearestSet(**vars(measured_set), distance=distance) for measured_set, distance in pairs]


@dataclass(frozen=True)
class _NetworkContributions:
    """What relations and genes contribute to the score of one network."""

    relation_names: tuple[str, ...]
    relations: Contributions
    genes: Contributions


def _contributions_of_networks(
    predictors: Sequence[TrainedPredictor],
    gated: Sequence[GatedScore | None],
    most: int,
) -> list[_NetworkContributions]:
    """Return the contributions to the score of every predictor that has gates."""
    networks = []
    for predictor, network in zip(predictors, gated, strict=True):
        if network is not None:
            n_genes = predictor.cell.n_genes
            relations, genes = contributions(network, n_genes, predictor.scale, most)
            networks.append(_NetworkContributions(network.relations, relations, genes))
    return networks


def _mean_contributions(
    networks: Sequence[_NetworkContributions],
    deleted: list[int],
    genes: Genes,
    links: Sequence[GeneLink],
) -> MeanContributions:
    """Return the means over networks; only the ``OTHER_GENES`` largest other genes are listed."""
    mean_of_gene = np.zeros(len(genes))
    for network in networks:
        mean_of_gene += network.genes.values / len(networks)
    largest_first = np.argsort(-np.abs(mean_of_gene), kind="stable").tolist() if networks else []
    deleted_first = [gene for gene in largest_first if gene in deleted]
    others = [gene for gene in largest_first if gene not in deleted]
    listed_others = [gene for gene in others[:OTHER_GENES] if mean_of_gene[gene] != 0]
    unlisted = others[len(listed_others) :]
    of_relations = [network.relations for network in networks]
    of_genes = [network.genes for network in networks]
    return MeanContributions(
        relations=_relation_contributions(networks, links),
        gene_contributions=_gene_contributions(
            deleted_first + listed_others,
            mean_of_gene,
            deleted,
            genes,
        ),
        other_genes=OtherGenes(len(unlisted), float(mean_of_gene[unlisted].sum())),
        complete=all(one_kind.complete for one_kind in of_relations + of_genes),
        relations_baseline=_mean([network.baseline for network in of_relations]),
        relations_residual=_mean([network.residual for network in of_relations]),
        genes_baseline=_mean([network.baseline for network in of_genes]),
        genes_residual=_mean([network.residual for network in of_genes]),
    )


def _relation_contributions(
    networks: Sequence[_NetworkContributions],
    links: Sequence[GeneLink],
) -> list[RelationContribution]:
    """Return the mean contribution of every relation, the largest first.

    A relation that a network does not have contributes nothing to it.
    """
    means: dict[str, float] = {}
    for network in networks:
        values = network.relations.values.tolist()
        for name, value in zip(network.relation_names, values, strict=True):
            means[name] = means.get(name, 0.0) + value / len(networks)
    linked_by = [link["relation"] for link in links]
    return [
        RelationContribution(name, linked_by.count(name), means[name])
        for name in sorted(means, key=lambda name: -abs(means[name]))
    ]


def _gene_contributions(
    which: Sequence[int],
    mean_of_gene: Doubles,
    deleted: Sequence[int],
    genes: Genes,
) -> list[GeneContribution]:
    texts = gene_texts(genes)
    return [
        GeneContribution(genes[gene], texts[gene], gene in deleted, float(mean_of_gene[gene]))
        for gene in which
    ]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
