"""Explanations of the score of a gene set: contributions, evidence and measured sets near it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deltacell.base.arrays import Ints
from deltacell.cell import Genes
from deltacell.models.interface import GatedScore
from deltacell.ranking.ensemble import on_one_scale, scorer_of_predictors
from deltacell.ranking.evidence import Evidence, known_of
from deltacell.ranking.gene_names import gene_facts, gene_texts
from deltacell.ranking.integrated_gradients import MOST, Contributions, contributions
from deltacell.ranking.measured import MeasuredSets, nearest_sets
from deltacell.ranking.request_on_runs import trained_genes, trained_sizes
from deltacell.ranking.why_sentences import why_sentences
from deltacell.screen import Genotypes
from deltacell.train.predictor import LoadedRun

OTHER_GENES = 10  # listed in addition to the deleted ones
NEAREST = 10  # measured sets that are listed


def explain_set(
    runs: Sequence[LoadedRun],
    genes: Sequence[int] | Ints,
    *,
    most: int = MOST,
) -> dict[str, Any]:
    """Explain the score of one gene set, by one run or by several of the same genes together.

    The order of the genes does not matter. All numbers are in the unit of the screen. Each
    decomposition of a run's score takes at most ``most`` gradients.
    """
    chosen = np.sort(np.asarray(genes, dtype=np.int64))
    indices, cell = chosen.tolist(), runs[0].data.cell
    genotype = Genotypes.of([indices]).check(cell.n_genes)
    predictors = on_one_scale(runs)
    scorer = scorer_of_predictors(predictors)
    scored, each = scorer.score(chosen[None]), scorer.score_each(chosen[None])[:, 0].tolist()
    networks, of_runs = [], []
    for run, predictor, score in zip(runs, predictors, each, strict=True):
        said = {"name": run.record.name, "seed": run.record.seed, "model": run.config.model.name}
        said |= {"score": score, "hit": None, "given_hit": None}
        gated = predictor.model.gated(predictor.cell, indices)
        if gated is not None:
            both = contributions(gated, cell.n_genes, predictor.scale, most)
            networks.append((gated, *both))
        else:
            found = predictor.predict(genotype)
            hits = {"hit": found.hit, "given_hit": found.given_hit}
            said |= {name: float(one[0]) for name, one in hits.items() if one is not None}
        of_runs.append(said)
    names = gene_texts(cell.genes)
    evidence = {name: column[0] for name, column in Evidence(cell).columns(chosen[None]).items()}
    known = MeasuredSets(runs, [len(chosen)])
    measured = known.sets[:, -len(chosen) :]
    itself = np.flatnonzero((measured == chosen).all(axis=1)).tolist()[:1]
    rows, apart = nearest_sets(cell, indices, measured, NEAREST)
    nearest = known.listed(rows, scorer)
    result = {
        "title": f"Why {' '.join(names[g] for g in indices)} scores {scored.score[0]:+.3g}",
        "genes": [cell.genes[g] for g in indices],
        "names": [names[g] for g in indices],
        "runs": of_runs,
        "score": float(scored.score[0]),
        "spread": None if len(runs) == 1 else float(scored.spread[0]),
        "measured": float(known.score[itself[0]]) if itself else None,
        "part": known.part_name(itself[0]) if itself else None,
        **_carried(networks, indices, cell.genes, evidence["links"]),
        **known_of(runs, indices),
        "gene_facts": gene_facts(cell.genes, indices),
        "nearest": [{**x, "distance": d} for x, d in zip(nearest, apart.tolist(), strict=True)],
        "evidence": evidence,
    }
    trained, sizes = trained_genes(runs), trained_sizes(runs)
    untrained = [names[g] for g in indices if not trained[g]]
    return {**result, "sentences": why_sentences(result, untrained, sizes)}


def _carried(
    networks: Sequence[tuple[GatedScore, Contributions, Contributions]],
    chosen: list[int],
    genes: Genes,
    links: list[dict[str, str]],
) -> dict[str, Any]:
    n, names, joined = len(networks), gene_texts(genes), [link["relation"] for link in links]
    # A relation that a run does not have contributes nothing to it.
    relations: dict[str, float] = {}
    for gated, of_relations, _ in networks:
        for name, value in zip(gated.relations, of_relations.values.tolist(), strict=True):
            relations[name] = relations.get(name, 0.0) + value / n
    mean = sum((of_genes.values / n for *_, of_genes in networks), np.zeros(len(genes)))
    order = np.argsort(-np.abs(mean), kind="stable").tolist() if n else []
    others = [g for g in order if g not in chosen]
    listed = [g for g in others[:OTHER_GENES] if mean[g] != 0]
    found: dict[str, Any] = {
        "relations": [
            {"relation": name, "links": joined.count(name), "contribution": relations[name]}
            for name in sorted(relations, key=lambda name: -abs(relations[name]))
        ],
        "gene_contributions": [
            {"gene": genes[g], "name": names[g], "deleted": g in chosen, "contribution": mean[g]}
            for g in [g for g in order if g in chosen] + listed
        ],
        "other_genes": {
            "genes": len(others) - len(listed),
            "contribution": float(mean[others[len(listed) :]].sum()),
        },
        "complete": all(one.complete for _, *both in networks for one in both),
    }
    for place, kind in enumerate(("relations", "genes"), 1):
        for what in ("baseline", "residual"):
            values = [getattr(one[place], what) for one in networks]
            found[f"{kind}_{what}"] = float(np.mean(values)) if n else None
    return found
