"""Synthetic cells: a small one for experiments, and one of exactly the size of the yeast reference.

Every gene belongs to a pathway, and every pathway is backed up by two others. Relations, features
and gene rules are noisy views of that plan. The rest of a relation is background in which the
expected degree of a gene falls with its rank as (rank + 1 + shift)^-exponent, the law of Zipf and
Mandelbrot. A gene's rank is much the same in all relations, so hubs are hubs everywhere, and the
yeast-sized relations share many of their edges, as real ones do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from deltacell.base.arrays import AnyArray, Bools, Floats, Ints
from deltacell.base.errors import InputError, did_you_mean
from deltacell.cell.annotation import Feature
from deltacell.cell.cell import Cell
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.relation import Relation

REDUNDANCY, ROUTES = "redundancy", "routes"
N_SOURCES = 120
_REACHED = {2: 520, 3: 260}
_ELSEWHERE = 2_600

_GENES_PER_PATHWAY, _SMALLEST_PATHWAY = 12, 9
_CHROMOSOMES, _BASES_PER_GENE = 16, 2_000
# The background: the exponent of the degrees, genes per hub, and the share of a relation's edges
# that are drawn from those that all relations share.
_EXPONENT, _HUBS, _SHARED = 0.9, 40, 0.85
# How often a rule of Yeast-GEM has 1 to 8 alternatives, and a reaction 1 to 7 metabolites.
_ISOZYMES = (0.78, 0.136, 0.046, 0.024, 0.006, 0.004, 0.002, 0.002)
_METABOLITES = (0.066, 0.225, 0.04, 0.33, 0.265, 0.054, 0.02)

Rng = np.random.Generator
Sampler = Callable[[int, Rng], Ints]


@dataclass(frozen=True, eq=False)
class Plan:
    """The hidden structure of a synthetic cell."""

    pathway: Ints  # of each gene, [n_genes]
    redundant: Ints  # pairs of pathways that back each other up, the smaller first, [n_pairs, 2]

    @property
    def n_pathways(self) -> int:
        """Number of pathways, including those without any gene left."""
        return int(self.redundant.max()) + 1

    def members(self, genes: Ints) -> list[Ints]:
        """Return the given genes by pathway."""
        order = genes[np.argsort(self.pathway[genes], kind="stable")]
        ends = np.searchsorted(self.pathway[order], np.arange(1, self.n_pathways))
        return np.split(order, ends)


_RECIPES: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"),
)


def synthetic_cell(name: str, *, seed: int = 0) -> Cell:
    """Return the synthetic cell ``demo``, ``yeast`` or ``redundancy``; see `Cell.synthetic`."""
    if name == REDUNDANCY:
        return _redundancy_cell(seed)
    recipe, genes, plan = _recipe(name), _genes(name, seed), _plan(name, seed)
    n, rng = recipe["n_genes"], generator(name, seed, "background")
    popularity = rng.normal(size=n)
    everyone = _sampler(np.arange(n), popularity)
    keys = _filled(np.zeros(0, np.int64), recipe["shared_edges"], everyone, everyone, n, rng)
    shared = np.stack([keys // n, keys % n], axis=1)

    def drawn(make: Callable[..., Any], part: str, *given: Any, **spec: Any) -> Any:
        return make(*given, plan, generator(name, seed, part), **spec)

    return Cell(
        genes,
        [
            drawn(_relation, one, one, popularity, shared, **spec)
            for one, spec in recipe["relations"].items()
        ],
        drawn(_metabolism, "metabolism", genes, **recipe["metabolism"]),
        [drawn(_feature, f"feature {one}", one, *spec) for one, spec in recipe["features"].items()],
        synthetic={"name": name, "seed": seed},
    )


def _redundancy_cell(seed: int) -> Cell:
    """Return a cell in which only the graph determines the effect of two deletions together.

    The first 120 genes are sources. Each of the other 780 has two sources (520 genes) or three in
    the relation ``routes``, drawn independently of everything else; the relation ``elsewhere`` is
    random.
    """
    rng = generator(REDUNDANCY, seed, "routes")
    n_routes = rng.permutation(np.repeat(list(_REACHED), list(_REACHED.values())))
    n = N_SOURCES + len(n_routes)
    source = np.concatenate([rng.choice(N_SOURCES, k, replace=False) for k in n_routes])
    target = np.repeat(np.arange(N_SOURCES, n), n_routes)
    key = generator(REDUNDANCY, seed, "elsewhere").choice(n * n, _ELSEWHERE, replace=False)
    key = key[key // n != key % n]
    return Cell(
        Genes([f"R{i:04d}" for i in range(n)]),
        [
            Relation.from_edges(ROUTES, source, target, n_genes=n, directed=True),
            Relation.from_edges("elsewhere", key // n, key % n, n_genes=n, directed=True),
        ],
        synthetic={"name": REDUNDANCY, "seed": seed},
    )


def plan_of(cell: Cell) -> Plan:
    """Return the plan of a synthetic cell for its current genes, in their order."""
    what = "the cell, or one of its genes, is not synthetic"
    error = InputError(what, code="not-synthetic", fix="Use Cell.synthetic('demo').")
    if cell.synthetic_recipe is None:
        raise error
    name, seed = str(cell.synthetic_recipe["name"]), int(cell.synthetic_recipe["seed"])
    plan, index = _plan(name, seed), _genes(name, seed).resolve(cell.genes.systematic)
    if (index < 0).any():
        raise error
    return Plan(plan.pathway[index], plan.redundant)


def _recipe(name: str) -> dict[str, Any]:
    if name not in _RECIPES:
        known = [*_RECIPES, REDUNDANCY]
        what = f"unknown synthetic cell '{name}'{did_you_mean(name, known)}"
        raise InputError(what, code="unknown-cell", fix=f"Choose from {', '.join(known)}.")
    return _RECIPES[name]


def generator(name: str, seed: int, part: str) -> Rng:
    """Return an independent generator for one part of a synthetic cell or screen."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be at least 0", code="invalid-number")
    return np.random.default_rng([seed, crc32(f"{name}/{part}".encode())])


@lru_cache(maxsize=8)
def _plan(name: str, seed: int) -> Plan:
    rng = generator(name, seed, "plan")
    n_genes = _recipe(name)["n_genes"]
    n_pathways = n_genes // _GENES_PER_PATHWAY
    spare = n_genes - _SMALLEST_PATHWAY * n_pathways
    sizes = _SMALLEST_PATHWAY + rng.multinomial(spare, np.full(n_pathways, 1 / n_pathways))
    pathway = rng.permutation(np.repeat(np.arange(n_pathways), sizes))
    ring = rng.permutation(n_pathways)
    redundant = np.sort(np.stack([ring, np.roll(ring, -1)], axis=1), axis=1)
    return Plan(pathway, redundant[np.lexsort(redundant.T[::-1])])


@lru_cache(maxsize=8)
def _genes(name: str, seed: int) -> Genes:
    """Return genes named like those of yeast, with one digit more so that none is a real name."""
    rng = generator(name, seed, "genes")
    n_genes = _recipe(name)["n_genes"]
    chromosome = np.sort(np.arange(n_genes) % _CHROMOSOMES)
    place = np.arange(n_genes) - np.searchsorted(chromosome, chromosome)
    centromere = (np.bincount(chromosome) // 2)[chromosome]
    strand = rng.integers(0, 2, n_genes)
    right = place >= centromere
    number = np.where(right, place - centromere + 1, centromere - place)
    names = [
        f"Y{chr(ord('A') + c)}{'R' if r else 'L'}{n:04d}{'WC'[s]}"
        for c, r, n, s in zip(chromosome, right, number, strand, strict=True)
    ]
    start = 1_000 + _BASES_PER_GENE * place + rng.integers(0, 300, n_genes)
    end = start + rng.integers(200, _BASES_PER_GENE - 400, n_genes)
    return Genes(names, chromosome=(str(c + 1) for c in chromosome), start=start, end=end)


def _sampler(
    genes: Ints,
    popularity: AnyArray,
    exponent: float = _EXPONENT,
    shift: float = 0,
) -> Sampler:
    """Return a function that draws genes with probabilities by the rank of their popularity."""
    rank = np.empty(len(popularity))
    rank[np.argsort(-popularity)] = np.arange(len(popularity))
    cumulated = np.cumsum((rank + 1 + (shift or len(genes) / _HUBS)) ** -exponent)

    def draw(n: int, rng: Rng) -> Ints:
        at = np.searchsorted(cumulated, rng.random(n) * cumulated[-1], side="right")
        drawn: Ints = genes[np.minimum(at, len(genes) - 1)]
        return drawn

    return draw


def _relation(
    name: str,
    popularity: AnyArray,
    shared: Ints,
    plan: Plan,
    rng: Rng,
    *,
    connected: int,
    edges: int,
    within: float,
    between: float = 0.0,
    regulators: int = 0,
    scored: bool = True,
) -> Relation:
    n_genes, directed = len(plan.pathway), bool(regulators)
    genes = np.sort(rng.permutation(n_genes)[:connected])
    popular = popularity[genes] + 0.4 * rng.normal(size=connected)
    source = target = _sampler(genes, popular)
    members = plan.members(genes)
    if directed:
        chosen = np.sort(rng.permutation(genes)[:regulators])
        source = _sampler(chosen, rng.normal(size=regulators), 0.8, 5.0)
        # Every pathway is controlled by two regulators.
        pairs = [_crossed(rng.choice(chosen, 2, replace=False), m) for m in members]
        controlled = np.concatenate(pairs)
        controlled = controlled[controlled[:, 0] != controlled[:, 1]]
        planned = [_some(controlled, within * edges, rng)]
        shared = shared[:0]
    else:
        inner = np.concatenate([m[np.stack(np.triu_indices(len(m), 1), axis=1)] for m in members])
        outer = np.concatenate([_crossed(members[p], members[q]) for p, q in plan.redundant])
        planned = [_some(inner, within * edges, rng), _some(outer, between * edges, rng)]
        inside = np.zeros(n_genes, dtype=bool)
        inside[genes] = True
        shared = _some(shared[inside[shared].all(axis=1)], _SHARED * edges, rng)
    joined = np.zeros(n_genes, dtype=bool)
    joined[np.concatenate([*planned, shared])] = True
    lonely = genes[~joined[genes]]
    partner = source(len(lonely), rng)
    while (same := partner == lonely).any():
        partner[same] = source(int(same.sum()), rng)
    joining = np.stack([partner, lonely], axis=1)
    keys = _first_of_each(_keys(np.concatenate([*planned, shared, joining]), n_genes, directed))
    keys = _filled(keys, edges, source, target, n_genes, rng)
    weight = _scores(sum(map(len, planned)), len(keys), rng) if scored else None
    ends = keys // n_genes, keys % n_genes
    return Relation.from_edges(name, *ends, weight, n_genes=n_genes, directed=directed)


def _filled(keys: Ints, n: int, source: Sampler, target: Sampler, n_genes: int, rng: Rng) -> Ints:
    """Draw distinct edges until there are exactly n."""
    while len(keys) < n:
        m = (n - len(keys)) * 5 // 4 + 16
        drawn = np.stack([source(m, rng), target(m, rng)], axis=1)
        drawn = drawn[drawn[:, 0] != drawn[:, 1]]
        more = _keys(drawn, n_genes, directed=source is not target)
        keys = _first_of_each(np.concatenate([keys, more]))[:n]
    return keys


def _crossed(one: Ints, other: Ints) -> Ints:
    return np.stack([np.repeat(one, len(other)), np.tile(other, len(one))], axis=1)


def _some(pairs: Ints, n: float, rng: Rng) -> Ints:
    return pairs[rng.permutation(len(pairs))[: round(n)]]


def _keys(pairs: Ints, n_genes: int, directed: bool) -> Ints:
    if not directed:
        pairs = np.sort(pairs, axis=1)
    return pairs[:, 0] * n_genes + pairs[:, 1]


def _first_of_each(keys: Ints) -> Ints:
    return keys[np.sort(np.unique(keys, return_index=True)[1])]


def _scores(n_planned: int, n: int, rng: Rng) -> Floats:
    """Return weights with three decimals in (0, 1], higher for planned edges."""
    score = 0.15 + 0.85 * rng.beta(1.2, 4.0, n)
    score[:n_planned] = 0.4 + 0.6 * rng.beta(2.0, 2.0, min(n_planned, n))
    return np.round(score, 3).astype(np.float32)


def _metabolism(
    genes: Genes,
    plan: Plan,
    rng: Rng,
    *,
    reactions: int,
    metabolites: int,
    ruled: int,
    enzymes: int,
    parts: int,
) -> Metabolism:
    # The enzymes are the genes of whole pathways.
    turn = rng.permutation(plan.n_pathways)
    order = np.lexsort((rng.permutation(len(plan.pathway)), turn[plan.pathway]))
    some = rng.permutation(order[:enzymes])
    rules = [""] * reactions
    pathways: list[list[str]] = [[] for _ in rules]
    n_clauses = np.ones(reactions, dtype=np.int64)
    for i, reaction in enumerate(np.sort(rng.permutation(reactions)[:ruled]).tolist()):
        first = int(some[i % enzymes])
        n_clauses[reaction] = rng.choice(len(_ISOZYMES), p=_ISOZYMES) + 1
        mates = some[plan.pathway[some] == plan.pathway[first]]
        others = rng.choice(some, 16, replace=False)
        pool = dict.fromkeys([first, *rng.permutation(mates).tolist(), *others.tolist()])
        rules[reaction] = _rule([genes[g] for g in pool], int(n_clauses[reaction]), rng)
        pathways[reaction].append(f"pathway {int(plan.pathway[first])}")
    reversible = _reversible(n_clauses, parts, rng)
    return Metabolism.build(
        genes,
        [f"r_{i + 1:04d}" for i in range(reactions)],
        [f"s_{i + 1:04d}" for i in range(metabolites)],
        _stoichiometry(reactions, metabolites, rng),
        rules,
        np.where(reversible, -1_000.0, 0.0).tolist(),
        [1_000.0] * reactions,
        pathways=pathways,
    )


def _rule(pool: list[str], n_clauses: int, rng: Rng) -> str:
    form = rng.random()
    if n_clauses == 1:
        return " and ".join(pool[: 1 if form < 0.9 else 2 + int(rng.integers(4))])
    if form < 0.8:
        return " or ".join(pool[:n_clauses])
    if form < 0.9:
        return f"{pool[0]} and ({' or '.join(pool[1 : n_clauses + 1])})"
    pairs = [f"({pool[i]} and {pool[i + 1]})" for i in range(n_clauses - 1)]
    return " or ".join([*pairs, pool[n_clauses]])


def _reversible(n_clauses: Ints, parts: int, rng: Rng) -> Bools:
    """Choose the reversible reactions so that the split form has `parts` reactions."""
    missing = parts - int(n_clauses.sum())
    chosen = np.zeros(len(n_clauses), dtype=bool)
    for reaction in rng.permutation(len(n_clauses)).tolist():
        if n_clauses[reaction] <= missing:
            chosen[reaction] = True
            missing -= int(n_clauses[reaction])
    return chosen


def _stoichiometry(reactions: int, metabolites: int, rng: Rng) -> list[tuple[int, int, float]]:
    """Use every metabolite in a reaction, and a few, like water, in very many."""
    own = rng.permutation(metabolites)
    popularity = rng.normal(size=metabolites)
    common = _sampler(np.arange(metabolites), popularity, 1.0, 2.0)
    further = common(reactions * 24, rng).reshape(reactions, -1).tolist()
    sizes = rng.choice(len(_METABOLITES), reactions, p=_METABOLITES) + 1
    found = []
    for reaction, size in enumerate(sizes.tolist()):
        first = int(own[reaction % metabolites])
        members = list(dict.fromkeys([first, *further[reaction]]))[:size]
        amounts = np.where(rng.random(len(members)) < 0.08, 2.0, 1.0)
        for i, (metabolite, amount) in enumerate(zip(members, amounts.tolist(), strict=True)):
            found.append((reaction, metabolite, amount if i % 2 else -amount))
    return found


def _feature(
    name: str,
    width: int,
    noise: float,
    known_share: float,
    plan: Plan,
    rng: Rng,
) -> Feature:
    centre = rng.normal(size=(plan.n_pathways, width))
    values = centre[plan.pathway] + noise * rng.normal(size=(len(plan.pathway), width))
    known = rng.random(len(plan.pathway)) < known_share
    return Feature(name, np.where(known[:, None], values, np.nan).astype(np.float32))
