"""Why a gene set scores as it does: what carries the prediction, and what is like it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from deltacell.arrays import AnyArray, Ints
from deltacell.cell import Genes
from deltacell.cell.annotation import shared_terms
from deltacell.cell.readers.names import is_systematic
from deltacell.errors import InputError
from deltacell.models import Dango, HeteroCell
from deltacell.predict.attribution import (
    MOST,
    Contributions,
    Doubles,
    GatedModel,
    gene_contributions,
    relation_contributions,
)
from deltacell.predict.ensemble import Ensemble, on_one_scale, scorer_of
from deltacell.predict.explained_sentences import sentences_of
from deltacell.predict.measured import (
    PARTS,
    distinct_measured,
    gene_distances,
    nearest_sets,
    network_distances,
)
from deltacell.predict.request import gene_texts
from deltacell.predict.scorers import Scorer
from deltacell.predict.status import Evidence
from deltacell.predict.subject import trained_genes, trained_sizes
from deltacell.screen import Genotypes
from deltacell.train.data import Standard
from deltacell.train.loaded_run import LoadedRun
from deltacell.train.predictor import Predictor

OTHER_GENES = 10
"""How many genes beside the deleted ones are told of."""

NEAREST = 10
"""How many measured sets are told of."""


def explain_set(
    runs: Sequence[LoadedRun], genes: Sequence[int] | Ints, *, most: int = MOST
) -> dict[str, Any]:
    """Explain the score of one gene set, by one run or by several together.

    The order of the genes does not matter. All numbers are in the unit of the screen.

    Parameters
    ----------
    runs
        One or more, of the same genes.
    genes
        Indices of the deleted genes.
    most
        Gradients to take at most, for each run and each of the two ways to take the score apart.

    Returns
    -------
    dict
        Plain data:

        - ``title``, ``genes`` and ``names`` of the set; ``runs``: name, seed, model, ``score`` on
          the scale they share, and of a predictor of two parts ``hit``, how likely it is one, and
          ``given_hit``, the score given that it is (null for others);
        - ``score``, ``spread`` (null for one run); ``measured`` and ``part`` (test, validation,
          training), null where it was not measured;
        - ``relations``: relation, contribution, spread over runs, and ``links`` between genes of
          the set, the largest contribution first; ``relations_baseline``, the score with nothing
          received over any relation; ``relations_residual``, so that ``score = baseline + sum of
          contributions + residual``;
        - ``gene_contributions``: gene, name, deleted, contribution, spread; the deleted ones first,
          then the others that matter most; ``other_genes``, how many further ones there are and
          what they contribute; ``genes_baseline``, the score when no gene has a vector;
          ``genes_residual``;
        - ``explained``: the score that the contributions add up to, which is that of the networks
          among the runs; null where there is none, and then there are no contributions;
        - ``complete``: whether both residuals are within the tolerance;
        - ``votes``: the measured sets that a score rests on, where a predictor tells them: run,
          names, which gene is replaced by which, score, relation, weight, the largest weight first;
        - ``lost``: names of the reactions that the set loses and no smaller set of its genes does;
        - ``gene_facts``: of each gene ``gene``, ``name``, ``description`` and ``link``, a page of a
          database, or null;
        - ``nearest``: genes, names, distance, measured, predicted, part;
        - ``evidence``: relations, links, pathways, complexes, see `Evidence`;
        - ``sentences``: what carries the prediction, in words.
    """
    chosen = np.sort(np.asarray(genes, dtype=np.int64))
    cell = runs[0].data.cell
    Genotypes.of([chosen.tolist()]).check(cell.n_genes)
    predictors = on_one_scale(runs)
    scorer = scorer_of(runs, predictors)
    explained = [
        _of_network(one, one.model, chosen, most)
        for one in predictors
        if isinstance(one.model, Dango | HeteroCell)
    ]
    scored = scorer.score(chosen[None])
    evidence = Evidence.of(cell).of_set(chosen.tolist())
    names = gene_texts(cell.genes)
    measured = _measured(runs, len(chosen))
    itself = np.flatnonzero((measured.sets == chosen).all(axis=1)).tolist()
    distances = (
        np.mean([one.distances for one in explained], axis=0)
        if explained
        else network_distances(cell, chosen.tolist())
    )
    result = {
        "title": f"Why {' '.join(names[g] for g in chosen)} scores {scored.score[0]:+.3g}",
        "genes": [cell.genes[g] for g in chosen.tolist()],
        "names": [names[g] for g in chosen.tolist()],
        "runs": _said_by(runs, predictors, scorer, chosen),
        "score": float(scored.score[0]),
        "spread": None if len(runs) == 1 else float(scored.spread[0]),
        "measured": float(measured.score[itself[0]]) if itself else None,
        "part": measured.part[itself[0]] if itself else None,
        **_relations(explained, evidence["links"]),
        **_genes(explained, chosen, cell.genes.systematic, names),
        "explained": _mean([one.relations.score for one in explained]),
        "complete": all(one.relations.complete and one.genes.complete for one in explained),
        **known_of(runs, [chosen.tolist()])[0],
        "gene_facts": gene_facts(cell.genes, chosen.tolist()),
        "nearest": _nearest(measured, scorer, distances, cell.genes.systematic, names),
        "evidence": evidence,
    }
    untrained = [names[g] for g in chosen.tolist() if not trained_genes(runs)[g]]
    return {**result, "sentences": sentences_of(result, untrained, trained_sizes(runs))}


def _said_by(
    runs: Sequence[LoadedRun], predictors: Sequence[Predictor], scorer: Ensemble, genes: Ints
) -> list[dict[str, Any]]:
    """Return what each run says of a set."""
    said = []
    scores = scorer.of_each(genes[None])[:, 0].tolist()
    for run, predictor, score in zip(runs, predictors, scores, strict=True):
        one = {"name": run.record.name, "seed": run.record.seed, "model": run.config.model.name}
        parts: dict[str, float | None] = {"hit": None, "given_hit": None}
        if not isinstance(predictor.model, Dango | HeteroCell):
            found = predictor.predict(Genotypes.of([genes.tolist()]))
            for name in parts:
                column = getattr(found, name)
                parts[name] = None if column is None else float(column[0])
        said.append({**one, "score": score, **parts})
    return said


def known_of(
    runs: Sequence[LoadedRun], sets: Sequence[Sequence[int]], most: int | None = None
) -> list[dict[str, Any]]:
    """Return what is known of gene sets beside relations, pathways and complexes.

    Parameters
    ----------
    runs
        One or more, of the same genes.
    sets
        Gene indices.
    most
        How many votes to return for each set; all where not given.

    Returns
    -------
    list
        Of each set ``votes`` and ``lost``, as `explain_set` has them, and ``terms`` that all of
        its genes have.
    """
    cell = runs[0].data.cell
    names = gene_texts(cell.genes)
    lost: Sequence[tuple[str, ...]] = [()] * len(sets)
    if cell.metabolism is not None and len(sets):
        lost = cell.metabolism.names_lost_together(Genotypes.of([list(one) for one in sets]))
    return [
        {
            "votes": _votes(runs, list(one), names)[:most],
            "lost": list(gone),
            "terms": [
                {"annotation": shared.annotation, "term": shared.term}
                for shared in shared_terms(cell, one, max_genes=LARGEST_TERM)[:MOST_TERMS]
            ],
        }
        for one, gone in zip(sets, lost, strict=True)
    ]


LARGEST_TERM, MOST_TERMS = 500, 5
"""Terms of more genes say little of a set, and the smallest ones say enough."""

SGD = "https://www.yeastgenome.org/locus/{gene}"
"""Where a gene of yeast is described; ``{gene}`` stands for its systematic name."""

_ADDRESS = re.compile(r"https?://[^{}]*(\{(gene|name)\}[^{}]*)+")


def gene_facts(
    genes: Genes, which: Iterable[int], template: str | None = None
) -> list[dict[str, str | None]]:
    """Return the names, the description and a link of some genes.

    Parameters
    ----------
    genes
        Of the cell.
    which
        Their indices.
    template
        An address with ``{gene}`` for the systematic name or ``{name}`` for the standard one; of
        yeast's systematic names that of SGD where not given.
    """
    if template is not None and not _ADDRESS.fullmatch(template):
        raise InputError(
            f"'{template}' is not an address of a gene's page; expected http(s)://, with {{gene}} "
            "or {name}",
            fix=f"Such as: {SGD}",
        )
    names = gene_texts(genes)
    found: list[dict[str, str | None]] = []
    for g in which:
        address = template or (SGD if is_systematic(genes[g]) else None)
        # What a name holds must not become a part of the address.
        quoted = {"gene": quote(genes[g], safe=""), "name": quote(names[g], safe="")}
        link = None if address is None else address.format(**quoted)
        about = {"description": genes.description[g] or None, "link": link}
        found.append({"gene": genes[g], "name": names[g], **about})
    return found


def _votes(
    runs: Sequence[LoadedRun], genes: list[int], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the measured sets that predictors name as their evidence."""
    rows = []
    for run in runs:
        tells = getattr(run.predictor.model, "evidence", None)
        for row in tells(run.data.cell, genes) if callable(tells) else ():
            rows.append(
                {
                    "run": run.record.name,
                    "names": [names[gene] for gene in row["genes"]],
                    "replaced": names[row["replaced"]],
                    "by": names[row["by"]],
                    "score": row["score"],
                    "relation": row["relation"],
                    "weight": row["weight"],
                }
            )
    return sorted(rows, key=lambda row: -abs(row["weight"]))


class _OfRun(NamedTuple):
    """What one run says, its contributions in the unit of the screen."""

    relation_names: tuple[str, ...]
    relations: Contributions
    genes: Contributions
    distances: Doubles


def _of_network(predictor: Predictor, model: Dango | HeteroCell, genes: Ints, most: int) -> _OfRun:
    gated = GatedModel(model, predictor.cell, genes.tolist())
    return _OfRun(
        gated.relations,
        _undone(relation_contributions(gated, most), predictor.standard),
        _undone(gene_contributions(gated, most), predictor.standard),
        gene_distances(gated.vectors().cpu().numpy(), genes.tolist()),
    )


def _undone(found: Contributions, standard: Standard) -> Contributions:
    """Return contributions in the unit of the screen: a difference has a scale and no mean."""
    return found._replace(
        values=found.values * standard.std,
        score=found.score * standard.std + standard.mean,
        baseline=found.baseline * standard.std + standard.mean,
    )


def _relations(explained: Sequence[_OfRun], links: Sequence[dict[str, str]]) -> dict[str, Any]:
    if not explained:
        return {"relations": [], "relations_baseline": None, "relations_residual": None}
    names = list(dict.fromkeys(name for one in explained for name in one.relation_names))
    # To a run that does not know a relation, it contributes nothing.
    each = np.zeros((len(explained), len(names)))
    for row, one in zip(each, explained, strict=True):
        row[[names.index(name) for name in one.relation_names]] = one.relations.values
    mean, spread = each.mean(axis=0), _spread(each)
    rows = [
        {
            "relation": names[i],
            "contribution": float(mean[i]),
            "spread": spread[i],
            "links": sum(link["relation"] == names[i] for link in links),
        }
        for i in np.argsort(-np.abs(mean), kind="stable").tolist()
    ]
    return {
        "relations": rows,
        "relations_baseline": _mean([one.relations.baseline for one in explained]),
        "relations_residual": _mean([one.relations.residual for one in explained]),
    }


def _genes(
    explained: Sequence[_OfRun], chosen: Ints, systematic: Sequence[str], names: Sequence[str]
) -> dict[str, Any]:
    if not explained:
        nothing = {"genes": 0, "contribution": 0.0}
        empty = {"genes_baseline": None, "genes_residual": None}
        return {"gene_contributions": [], "other_genes": nothing, **empty}
    each = np.stack([one.genes.values for one in explained])
    mean, spread = each.mean(axis=0), _spread(each)
    order = np.argsort(-np.abs(mean), kind="stable")
    deleted = np.isin(order, chosen)
    others = order[~deleted]
    told = others[:OTHER_GENES][mean[others[:OTHER_GENES]] != 0]
    rows = [
        {
            "gene": systematic[i],
            "name": names[i],
            "deleted": i in chosen,
            "contribution": float(mean[i]),
            "spread": spread[i],
        }
        for i in [*order[deleted].tolist(), *told.tolist()]
    ]
    rest = others[len(told) :]
    return {
        "gene_contributions": rows,
        "other_genes": {"genes": len(rest), "contribution": float(mean[rest].sum())},
        "genes_baseline": _mean([one.genes.baseline for one in explained]),
        "genes_residual": _mean([one.genes.residual for one in explained]),
    }


class _Measured(NamedTuple):
    """The distinct measured sets of one size, with their mean score and part."""

    sets: Ints
    score: AnyArray
    part: list[str | None]


def _measured(runs: Sequence[LoadedRun], size: int) -> _Measured:
    screen = runs[0].data.screen
    rows, score, part = distinct_measured(runs)
    fitting = np.flatnonzero(np.diff(screen.offsets)[rows] == size)
    starts = screen.offsets[rows[fitting]]
    sets = screen.genotypes.genes.numpy()[starts[:, None] + np.arange(size)]
    parts = [PARTS[p] if p >= 0 else None for p in part[fitting].tolist()]
    return _Measured(np.sort(sets, axis=1), score[fitting], parts)


def _nearest(
    measured: _Measured,
    scorer: Scorer,
    distances: Doubles,
    systematic: Sequence[str],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    found = nearest_sets(distances, measured.sets, NEAREST)
    if not len(found.rows):
        return []
    sets = measured.sets[found.rows]
    predicted = scorer.score(sets).score
    return [
        {
            "genes": [systematic[g] for g in genes],
            "names": [names[g] for g in genes],
            "distance": float(distance),
            "measured": float(measured.score[row]),
            "predicted": float(score),
            "part": measured.part[row],
        }
        for genes, distance, row, score in zip(
            sets.tolist(), found.distance, found.rows.tolist(), predicted, strict=True
        )
    ]


def _spread(each: AnyArray) -> list[float | None]:
    if len(each) == 1:
        return [None] * each.shape[1]
    spread: list[float | None] = each.std(axis=0, ddof=1).tolist()
    return spread


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
