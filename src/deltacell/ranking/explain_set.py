"""Explanations of the score of a gene set: contributions, evidence and measured sets near it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from itertools import pairwise, permutations
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import scipy.sparse as sp
import torch

from deltacell.base.arrays import Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.cell import Cell, Genes
from deltacell.cell.annotation import shared_terms
from deltacell.cell.readers.names import is_systematic
from deltacell.models.interface import GatedScore, TargetScale
from deltacell.ranking.ensemble import MeanOfRuns, on_one_scale, scorer_of_predictors
from deltacell.ranking.request import gene_texts, trained_genes, trained_sizes
from deltacell.ranking.status import Evidence
from deltacell.ranking.why_sentences import why_sentences
from deltacell.screen import Genotypes
from deltacell.screen.genotypes import matrix_keys, sorted_matrix
from deltacell.train.predictor import LoadedRun

OTHER_GENES = 10  # listed in addition to the deleted ones
NEAREST = 10  # measured sets that are listed
LARGEST_TERM, MOST_TERMS = 500, 5  # terms of more genes are not specific
PARTS = ("test", "validation", "training")
SHARES = (0.5, 0.25, 0.25)  # of each part among the measured sets of a page
FEWEST = 3  # sets that a correlation needs
SGD = "https://www.yeastgenome.org/locus/{gene}"
TOLERANCE = 0.01  # the largest residual, as a share of the sum of absolute contributions
MOST = 300  # gradients per decomposition; the residual shows whether they suffice

_NODES, _WEIGHTS = (column.tolist() for column in np.polynomial.legendre.leggauss(5))
_FIRST = (0.0, 0.1, 0.5, 1.0)


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


_ADDRESS = re.compile(r"https?://[^{}]*(\{(gene|name)\}[^{}]*)+")


def gene_facts(
    genes: Genes,
    which: Iterable[int],
    template: str | None = None,
) -> list[dict[str, str | None]]:
    """Return the names, the description and a link of some genes.

    ``template`` is a URL with ``{gene}`` for the systematic or ``{name}`` for the standard name; by
    default it is SGD's, for systematic names of yeast.
    """
    if template is not None and not _ADDRESS.fullmatch(template):
        what = f"--link is '{template}'; expected http(s)://, with {{gene}} or {{name}}"
        raise InputError(what, code="invalid-link", fix=f"Such as: {SGD}")
    names = gene_texts(genes)
    found: list[dict[str, str | None]] = []
    for g in which:
        fact = {"gene": genes[g], "name": names[g]}
        url = template or (SGD if is_systematic(genes[g]) else "")
        # A name must not change the structure of the URL.
        link = url.format(**{key: quote(name, safe="") for key, name in fact.items()})
        found.append({**fact, "description": genes.description[g] or None, "link": link or None})
    return found


class MeasuredSets:
    """The distinct measured sets of some sizes of the first run's screen.

    A set that any run was trained on is in the training part.
    """

    def __init__(self, runs: Sequence[LoadedRun], sizes: Sequence[int]) -> None:
        self._genes = runs[0].data.cell.genes
        screens = [run.data.screen for run in runs]
        width = max([*sizes, *(int(np.diff(s.offsets).max(initial=0)) for s in screens)])
        every = [sorted_matrix(s.genotypes.genes.numpy(), s.offsets, width) for s in screens]
        keys = [matrix_keys(sets, len(self._genes)) for sets in every]
        distinct, rows, group = np.unique(keys[0], return_index=True, return_inverse=True)
        total = np.bincount(group, screens[0].column("score").astype(np.float64))
        part = np.full(len(distinct), -1, dtype=np.int64)
        for run, of_run in zip(runs, keys, strict=True):
            split = run.data.split
            for p, mine in enumerate((split.test, split.validation, split.train)):
                at = np.flatnonzero(np.isin(distinct, of_run[mine]))
                part[at] = np.maximum(part[at], p)
        fitting = np.isin((every[0][rows] >= 0).sum(axis=1), list(sizes))
        self.sets: Ints = every[0][rows][fitting]  # padded in front with -1
        self.score: Doubles = (total / np.bincount(group))[fitting]  # the mean over repeats
        self.part: Ints = part[fitting]  # the index in `PARTS`, or -1

    def part_name(self, row: int) -> str | None:
        return PARTS[self.part[row]] if self.part[row] >= 0 else None

    def listed(self, which: Ints, scorer: MeanOfRuns) -> list[dict[str, Any]]:
        names, found = gene_texts(self._genes), [dict[str, Any]()] * len(which)
        sizes = (self.sets[which] >= 0).sum(axis=1)
        for size in np.unique(sizes).tolist():
            places = np.flatnonzero(sizes == size)
            sets = self.sets[which[places], -size:]
            predicted = scorer.score(sets).score.tolist()
            for place, one, score in zip(places.tolist(), sets.tolist(), predicted, strict=True):
                found[place] = {
                    "genes": [self._genes[g] for g in one],
                    "names": [names[g] for g in one],
                    "predicted": score,
                    "measured": float(self.score[which[place]]),
                    "part": self.part_name(which[place]),
                }
        return found


def against_measured(
    runs: Sequence[LoadedRun],
    scorer: MeanOfRuns,
    sizes: Sequence[int],
    *,
    most: int = 2_000,
) -> dict[str, list[dict[str, Any]]]:
    """Score at most ``most`` random measured sets of some sizes, half of them of the test part.

    Return ``measured``, a list of ``{genes, names, predicted, measured, part}``, the test part
    first, and ``agreement``, a list of ``{part, sets, pearson}``; ``pearson`` may be None.
    """
    known = MeasuredSets(runs, sizes)
    rng = np.random.default_rng(0)
    result: dict[str, list[dict[str, Any]]] = {"measured": [], "agreement": []}
    for p, (part, share) in enumerate(zip(PARTS, SHARES, strict=True)):
        rows = np.flatnonzero(known.part == p)
        n = min(len(rows), int(share * most))
        chosen = np.sort(rng.choice(rows, n, replace=False))
        listed, measured = known.listed(chosen, scorer), known.score[chosen]
        result["measured"] += listed
        predicted = np.array([one["predicted"] for one in listed])
        defined = n >= FEWEST and np.ptp(predicted) > 0 and np.ptp(measured) > 0
        pearson = float(np.corrcoef(predicted, measured)[0, 1]) if defined else None
        result["agreement"] += [{"part": part, "sets": n, "pearson": pearson}] if n else []
    return result


def nearest_sets(cell: Cell, genes: Sequence[int], sets: Ints, k: int) -> tuple[Ints, Doubles]:
    """Return the rows of the k nearest sets, of [m, size], and their distances.

    The distance of two genes is ``1 - cosine`` between their neighbourhoods: each gene itself and
    its neighbours in every relation. The distance of two sets is the smallest mean distance over
    all matchings of their genes. Ties are broken by row.
    """
    own = sp.eye_array(cell.n_genes, format="csr")
    near = [relation.adjacency() + own for relation in cell.relations.values()]
    rows = sp.hstack([own, *near], format="csr")
    unit = sp.diags_array(rows.multiply(rows).sum(axis=1) ** -0.5) @ rows
    distances = np.maximum(1 - (unit[list(genes)] @ unit.T).toarray(), 0)
    places = np.arange(len(genes))
    distances[places, genes] = 0
    sums = (distances[places, sets[:, order]].sum(axis=1) for order in permutations(places))
    every = reduce(np.minimum, sums) / len(genes)
    first: Ints = np.argsort(every, kind="stable")[:k]
    return first, every[first]


def contributions(
    gated: GatedScore,
    n_genes: int,
    scale: TargetScale,
    most: int = MOST,
) -> tuple[Contributions, Contributions]:
    """Return the contributions of relations and of all genes to a score in the screen's unit."""
    relations = torch.ones(len(gated.relations), dtype=torch.float64)
    genes = torch.ones(n_genes, dtype=torch.float64)

    def score_of_relations(gates: torch.Tensor) -> torch.Tensor:
        return scale.undo(gated.score(gates, genes))

    def score_of_genes(gates: torch.Tensor) -> torch.Tensor:
        return scale.undo(gated.score(relations, gates))

    return (
        integrated_gradients(score_of_relations, len(relations), most),
        integrated_gradients(score_of_genes, n_genes, most),
    )


class Contributions(NamedTuple):
    """Contributions of gates to a score: ``score - baseline = values.sum() + residual``."""

    values: Doubles  # one per gate
    score: float  # with all gates at 1
    baseline: float  # with all gates at 0

    @property
    def residual(self) -> float:
        return self.score - self.baseline - float(self.values.sum())

    @property
    def allowed(self) -> float:
        """The largest residual of a complete explanation, including rounding."""
        rounding = 1e-10 * max(abs(self.score), abs(self.baseline))
        return TOLERANCE * float(np.abs(self.values).sum()) + rounding

    @property
    def complete(self) -> bool:
        return abs(self.residual) <= self.allowed


def integrated_gradients(
    function: Callable[[torch.Tensor], torch.Tensor],
    n_gates: int,
    most: int = MOST,
) -> Contributions:
    r"""Return ``c_k = integral over t from 0 to 1 of (df / dg_k)(t, ..., t)``.

    They add up to ``f(1) - f(0)``, and so do the integrals over each piece of the path to the
    difference of f over it. Each piece is integrated by Gauss-Legendre quadrature with five nodes,
    and the one with the largest error is halved until the total error is small or ``most``
    gradients have been taken.
    """

    @cache
    def value(t: float) -> float:
        with torch.no_grad():
            return float(function(torch.full((n_gates,), t, dtype=torch.float64)))

    def piece(begin: float, end: float) -> tuple[float, float, float, Doubles]:
        half, values = (end - begin) / 2, np.zeros(n_gates)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            at = torch.full((n_gates,), begin + half * (1 + node), dtype=torch.float64)
            at.requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(function(at), at)
            values += half * weight * gradient.numpy()
        return value(end) - value(begin) - float(values.sum()), begin, end, values

    pieces = [piece(a, b) for a, b in pairwise(_FIRST)]
    gradients = len(_NODES) * len(pieces)
    while True:
        total: Doubles = np.sum([values for *_, values in pieces], axis=0)
        found = Contributions(total, value(1.0), value(0.0))
        errors = np.abs([error for error, *_ in pieces])
        gradients += 2 * len(_NODES)
        if errors.sum() <= found.allowed or gradients > most:
            return found
        _, begin, end, _ = pieces.pop(int(errors.argmax()))
        middle = (begin + end) / 2
        pieces += [piece(begin, middle), piece(middle, end)]
