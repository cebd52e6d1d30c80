"""Why a gene set scores as it does: what carries the prediction, and what was measured near it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import scipy.sparse as sp

from deltacell.arrays import AnyArray, Doubles, Ints
from deltacell.cell import Cell, Genes
from deltacell.cell.annotation import shared_terms
from deltacell.cell.readers.names import is_systematic
from deltacell.errors import InputError
from deltacell.models import Dango, HeteroCell
from deltacell.predict.attribution import (
    MOST,
    Contributions,
    GatedModel,
    gene_contributions,
    relation_contributions,
)
from deltacell.predict.ensemble import Scorer, on_one_scale, scorer_of
from deltacell.predict.request import gene_texts, trained_genes, trained_sizes
from deltacell.predict.sentences import explanation_sentences
from deltacell.predict.status import Evidence
from deltacell.screen import Genotypes, Screen
from deltacell.screen.genotypes import comparable_keys
from deltacell.train.loaded_run import LoadedRun
from deltacell.train.predictor import Predictor

OTHER_GENES = 10  # genes beside the deleted ones that are listed
NEAREST = 10  # measured sets that are listed
LARGEST_TERM, MOST_TERMS = 500, 5  # terms of more genes say little about a set
PARTS = ("test", "validation", "training")
SHARES = (0.5, 0.25, 0.25)  # of each part among the measured sets of a page
FEWEST = 3  # sets of which a correlation is defined
SETS_AT_ONCE = 50_000
SGD = "https://www.yeastgenome.org/locus/{gene}"


def explain_set(
    runs: Sequence[LoadedRun], genes: Sequence[int] | Ints, *, most: int = MOST
) -> dict[str, Any]:
    """Explain the score of one gene set, by one run or by several of the same genes together.

    The order of the genes does not matter. All numbers are in the unit of the screen. For each run
    and each way to take the score apart, at most ``most`` gradients are taken.
    """
    chosen = np.sort(np.asarray(genes, dtype=np.int64))
    indices, cell = chosen.tolist(), runs[0].data.cell
    genotype = Genotypes.of([indices]).check(cell.n_genes)
    names, systematic = gene_texts(cell.genes), cell.genes.systematic
    predictors = on_one_scale(runs)
    scorer = scorer_of(runs, predictors)
    networks = [
        _explained(one, one.model, indices, most)
        for one in predictors
        if isinstance(one.model, Dango | HeteroCell)
    ]
    scored, each = scorer.score(chosen[None]), scorer.score_each(chosen[None])[:, 0].tolist()
    evidence = Evidence(cell).of_set(indices)
    known = distinct_measured(runs, [len(chosen)])
    measured = known.sets(np.arange(len(known.rows)))
    itself = np.flatnonzero((measured == chosen).all(axis=1)).tolist()[:1]
    of_runs = []
    for run, predictor, score in zip(runs, predictors, each, strict=True):
        parts: dict[str, Any] = {"hit": None, "given_hit": None}
        # Networks have no such parts, and may be limited to smaller sets.
        if not isinstance(predictor.model, Dango | HeteroCell):
            found = predictor.predict(genotype)
            parts = {"hit": found.hit, "given_hit": found.given_hit}
        of_runs.append(
            {
                "name": run.record.name,
                "seed": run.record.seed,
                "model": run.config.model.name,
                "score": score,
                **{name: None if one is None else float(one[0]) for name, one in parts.items()},
            }
        )
    if networks:
        distances = np.mean([one.distances for one in networks], axis=0)
    else:
        distances = network_distances(cell, indices)
    result = {
        "title": f"Why {' '.join(names[g] for g in indices)} scores {scored.score[0]:+.3g}",
        "genes": [systematic[g] for g in indices],
        "names": [names[g] for g in indices],
        "runs": of_runs,
        "score": float(scored.score[0]),
        "spread": None if len(runs) == 1 else float(scored.spread[0]),
        "measured": float(known.score[itself[0]]) if itself else None,
        "part": known.part_name(itself[0]) if itself else None,
        **_relations(networks, evidence["links"]),
        **_genes(networks, chosen, systematic, names),
        "explained": _mean([one.relations.score for one in networks]),
        "complete": all(one.relations.complete and one.genes.complete for one in networks),
        **known_of(runs, [indices])[0],
        "gene_facts": gene_facts(cell.genes, indices),
        "nearest": _nearest(known, measured, scorer, distances, systematic, names),
        "evidence": evidence,
    }
    trained = trained_genes(runs)
    untrained = [names[g] for g in indices if not trained[g]]
    return {**result, "sentences": explanation_sentences(result, untrained, trained_sizes(runs))}


class _Explained(NamedTuple):
    """What one network says, its contributions in the unit of the screen."""

    relation_names: tuple[str, ...]
    relations: Contributions
    genes: Contributions
    distances: Doubles


def _explained(
    predictor: Predictor, model: Dango | HeteroCell, genes: list[int], most: int
) -> _Explained:
    gated, standard = GatedModel(model, predictor.cell, genes), predictor.standard
    relations, of_genes = (
        found._replace(
            values=found.values * standard.std,
            score=found.score * standard.std + standard.mean,
            baseline=found.baseline * standard.std + standard.mean,
        )
        for found in (relation_contributions(gated, most), gene_contributions(gated, most))
    )
    distances = gene_distances(gated.vectors().cpu().numpy(), genes)
    return _Explained(gated.relations, relations, of_genes, distances)


def _relations(networks: Sequence[_Explained], links: Sequence[dict[str, str]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for one in networks for name in one.relation_names))
    # A relation that a run does not know contributes nothing to it.
    each = np.zeros((len(networks), len(names)))
    for row, one in zip(each, networks, strict=True):
        row[[names.index(name) for name in one.relation_names]] = one.relations.values
    mean, spread = _mean_and_spread(each)
    return {
        "relations": [
            {
                "relation": names[i],
                "contribution": float(mean[i]),
                "spread": spread[i],
                "links": sum(link["relation"] == names[i] for link in links),
            }
            for i in np.argsort(-np.abs(mean), kind="stable").tolist()
        ],
        "relations_baseline": _mean([one.relations.baseline for one in networks]),
        "relations_residual": _mean([one.relations.residual for one in networks]),
    }


def _genes(
    networks: Sequence[_Explained], chosen: Ints, systematic: Sequence[str], names: Sequence[str]
) -> dict[str, Any]:
    each = np.array([one.genes.values for one in networks])
    mean, spread = _mean_and_spread(each)
    order = np.argsort(-np.abs(mean), kind="stable")
    deleted = np.isin(order, chosen)
    others = order[~deleted]
    listed = others[:OTHER_GENES][mean[others[:OTHER_GENES]] != 0]
    rest = others[len(listed) :]
    return {
        "gene_contributions": [
            {
                "gene": systematic[i],
                "name": names[i],
                "deleted": i in chosen,
                "contribution": float(mean[i]),
                "spread": spread[i],
            }
            for i in [*order[deleted].tolist(), *listed.tolist()]
        ],
        "other_genes": {"genes": len(rest), "contribution": float(mean[rest].sum())},
        "genes_baseline": _mean([one.genes.baseline for one in networks]),
        "genes_residual": _mean([one.genes.residual for one in networks]),
    }


def _mean_and_spread(each: Doubles) -> tuple[Doubles, list[float | None]]:
    """Return the mean over runs, empty where there are none, and the standard deviation."""
    if not len(each):
        return np.zeros(0), []
    mean: Doubles = each.mean(axis=0)
    if len(each) == 1:
        return mean, [None] * each.shape[1]
    return mean, each.std(axis=0, ddof=1).tolist()


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def known_of(
    runs: Sequence[LoadedRun], sets: Sequence[Sequence[int]], most: int | None = None
) -> list[dict[str, Any]]:
    """Return ``votes``, at most ``most``, ``lost`` and ``terms`` of sets, see `explain_set`."""
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


def _votes(
    runs: Sequence[LoadedRun], genes: list[int], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the measured sets that predictors name as their evidence."""
    rows = []
    for run in runs:
        evidence = getattr(run.predictor.model, "evidence", None)
        for row in evidence(run.data.cell, genes) if callable(evidence) else ():
            rows.append(
                {
                    "run": run.record.name,
                    "names": [names[gene] for gene in row["genes"]],
                    "replaced": names[row["replaced"]],
                    "by": names[row["by"]],
                    **{name: row[name] for name in ("score", "relation", "weight")},
                }
            )
    return sorted(rows, key=lambda row: -abs(row["weight"]))


_ADDRESS = re.compile(r"https?://[^{}]*(\{(gene|name)\}[^{}]*)+")


def gene_facts(
    genes: Genes, which: Iterable[int], template: str | None = None
) -> list[dict[str, str | None]]:
    """Return the names, the description and a link of some genes.

    ``template`` is an address with ``{gene}`` for the systematic name or ``{name}`` for the
    standard one; by default SGD's for systematic names of yeast.
    """
    if template is not None and not _ADDRESS.fullmatch(template):
        raise InputError(
            f"--link is '{template}'; expected http(s)://, with {{gene}} or {{name}}",
            code="invalid-link",
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


class Measured(NamedTuple):
    """Distinct measured sets of a screen."""

    screen: Screen
    rows: Ints  # one of each set
    score: Doubles  # the mean over all rows of the set
    part: Ints  # its place in `PARTS`, -1 for none

    def sets(self, which: Ints) -> Ints:
        """Return some sets of one size, [m, size], their genes ascending."""
        starts, ends = (self.screen.offsets[self.rows[which] + i] for i in (0, 1))
        size = int((ends - starts).max(initial=1))
        genes = self.screen.genotypes.genes.numpy()[starts[:, None] + np.arange(size)]
        return np.sort(genes, axis=1)

    def part_name(self, row: int) -> str | None:
        """Return the name of the part of a set."""
        return PARTS[self.part[row]] if self.part[row] >= 0 else None


def distinct_measured(runs: Sequence[LoadedRun], sizes: Sequence[int]) -> Measured:
    """Return the distinct measured sets of some sizes of the first run's screen.

    The part is that of all runs: what one was trained on is never called test.
    """
    screen = runs[0].data.screen
    screens = [run.data.screen for run in runs]
    keys = comparable_keys(
        len(screen.genes), *((s.genotypes.genes.numpy(), s.offsets) for s in screens)
    )
    distinct, rows, group = np.unique(keys[0], return_index=True, return_inverse=True)
    mean = np.bincount(group, screen.column("score").astype(np.float64)) / np.bincount(group)
    part = np.full(len(distinct), -1, dtype=np.int64)
    for run, of_run in zip(runs, keys, strict=True):
        split = run.data.split
        for p, mine in enumerate((split.test, split.validation, split.train)):
            at = np.searchsorted(distinct, of_run[mine])
            at = np.minimum(at, len(distinct) - 1)
            at = at[distinct[at] == of_run[mine]]
            part[at] = np.maximum(part[at], p)
    fitting = np.flatnonzero(np.isin(np.diff(screen.offsets)[rows], list(sizes)))
    return Measured(screen, rows[fitting], mean[fitting], part[fitting])


def against_measured(
    runs: Sequence[LoadedRun],
    scorer: Scorer,
    sizes: Sequence[int],
    *,
    most: int = 2_000,
    seed: int = 0,
) -> dict[str, list[dict[str, Any]]]:
    """Score at most ``most`` random measured sets of some sizes, half of them of the test part.

    Returns ``measured``, ``{genes, names, predicted, measured, part}`` of each, the test part
    first, and ``agreement``, ``{part, sets, pearson}`` of each part; ``pearson`` may be null.
    """
    known = distinct_measured(runs, sizes)
    rng = np.random.default_rng(seed)
    parts = [np.flatnonzero(known.part == p) for p in range(len(PARTS))]
    wanted = [min(len(of), int(share * most)) for of, share in zip(parts, SHARES, strict=True)]
    for p, of in enumerate(parts):
        wanted[p] += min(len(of) - wanted[p], most - sum(wanted))
    drawn = [rng.choice(of, n, replace=False) for of, n in zip(parts, wanted, strict=True)]
    chosen = np.concatenate([np.sort(of) for of in drawn])
    measured, predicted = known.score[chosen], np.zeros(len(chosen), dtype=np.float32)
    sets: list[list[int]] = [[]] * len(chosen)
    n_genes = np.diff(known.screen.offsets)[known.rows[chosen]]
    for size in np.unique(n_genes):
        rows = np.flatnonzero(n_genes == size)
        of_size = known.sets(chosen[rows])
        predicted[rows] = scorer.score(of_size).score
        for row, one in zip(rows.tolist(), of_size.tolist(), strict=True):
            sets[row] = one
    genes = runs[0].data.cell.genes
    names = gene_texts(genes)
    listed = [
        {
            "genes": [genes[g] for g in sets[i]],
            "names": [names[g] for g in sets[i]],
            "predicted": float(predicted[i]),
            "measured": float(measured[i]),
            "part": known.part_name(row),
        }
        for i, row in enumerate(chosen.tolist())
    ]
    ends = np.cumsum([0, *wanted])
    agreement = [
        {"part": part, "sets": b - a, "pearson": _pearson(predicted[a:b], measured[a:b])}
        for part, a, b in zip(PARTS, ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        if b > a
    ]
    return {"measured": listed, "agreement": agreement}


def _pearson(predicted: AnyArray, measured: AnyArray) -> float | None:
    if len(predicted) < FEWEST or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return None
    return float(np.corrcoef(predicted.astype(np.float64), measured)[0, 1])


def gene_distances(vectors: AnyArray, genes: Sequence[int]) -> Doubles:
    """Return ``1 - cosine`` between some genes and all genes, [size, n_genes].

    Of the vectors, [n_genes, hidden], less their mean over all genes, as what all have in common
    would make all alike. It is 0 from a gene to itself, and 1 where a vector has no length.
    """
    exact = np.asarray(vectors, dtype=np.float64)
    exact = exact - exact.mean(axis=0)
    length = np.linalg.norm(exact, axis=1, keepdims=True)
    unit = exact / np.where(length > 0, length, 1)
    distance: Doubles = np.clip(1 - unit[list(genes)] @ unit.T, 0, 2)
    distance[np.arange(len(genes)), genes] = 0
    return distance


def network_distances(cell: Cell, genes: Sequence[int]) -> Doubles:
    """Return ``1 - cosine`` between the neighbourhoods of some genes and of all genes.

    For predictors without vectors of genes. A gene's neighbourhood is itself and its neighbours in
    every relation.
    """
    n = cell.n_genes
    own = sp.eye_array(n, format="csr")
    rows = [own]
    for relation in cell.relations.values():
        entries = (np.ones(relation.n_entries), relation.indices, relation.indptr)
        rows.append(sp.csr_array(entries, shape=(n, n)) + own)
    table = sp.hstack(rows, format="csr")
    length = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel())
    products = (table[list(genes)] @ table.T).toarray()
    distance: Doubles = np.clip(1 - products / np.outer(length[list(genes)], length), 0, 1)
    distance[np.arange(len(genes)), genes] = 0
    return distance


def nearest_sets(distances: Doubles, sets: Ints, k: int) -> tuple[Ints, Doubles]:
    """Return the rows of the k sets, [m, size], of least distance, and their distances.

    ``distances`` are from the genes of the given set to all genes, [size, n_genes]. The distance
    of two sets is the mean over pairs of genes, one of each set, matched so that it is least. Ties
    go to the set that comes first. Memory is bounded whatever the number of sets.
    """
    n = len(distances)
    rows, found = np.zeros(0, dtype=np.int64), np.zeros(0)
    for start in range(0, len(sets), SETS_AT_ONCE):
        some = sets[start : start + SETS_AT_ONCE]
        to = [[distances[i][some[:, j]] for j in range(n)] for i in range(n)]
        best = np.full(len(some), np.inf)
        for order in permutations(range(n)):
            np.minimum(best, sum(to[i][order[i]] for i in range(n)), out=best)
        rows = np.concatenate([rows, start + np.arange(len(some))])
        found = np.concatenate([found, best / n])
        first = np.lexsort((rows, found))[:k]
        rows, found = rows[first], found[first]
    return rows, found


def _nearest(
    known: Measured,
    measured: Ints,
    scorer: Scorer,
    distances: Doubles,
    systematic: Sequence[str],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    rows, found = nearest_sets(distances, measured, NEAREST)
    if not len(rows):
        return []
    sets = measured[rows]
    return [
        {
            "genes": [systematic[g] for g in genes],
            "names": [names[g] for g in genes],
            "distance": float(distance),
            "measured": float(known.score[row]),
            "predicted": float(score),
            "part": known.part_name(row),
        }
        for genes, distance, row, score in zip(
            sets.tolist(), found, rows.tolist(), scorer.score(sets).score, strict=True
        )
    ]
