"""Synthetic cells: a small one for experiments, and one of exactly the size of the yeast reference.

Every gene belongs to a pathway, and every pathway is backed up by two others. Relations, features
and gene rules are noisy views of that plan. The rest of a relation is background in which the
expected degree of a gene falls with its rank as (rank + 1 + shift)^-exponent, the law of Zipf and
Mandelbrot. A gene's rank is much the same in all relations, so hubs are hubs everywhere, and the
yeast-sized relations share many of their edges, as real ones do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from deltacell.base.arrays import AnyArray, Bools, Doubles, Floats, Ints
from deltacell.base.errors import InputError, did_you_mean
from deltacell.cell.annotation import Feature
from deltacell.cell.cell import Cell
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.relation import Relation

REDUNDANCY = "redundancy"
ROUTES = "routes"
N_SOURCES = 120
_GENES_BY_N_SOURCES = {2: 520, 3: 260}
_N_EDGES_ELSEWHERE = 2_600

_GENES_PER_PATHWAY = 12
_SMALLEST_PATHWAY = 9
_N_CHROMOSOMES = 16
_BASES_PER_GENE = 2_000
# The background.
_EXPONENT = 0.9  # of the degrees
_GENES_PER_HUB = 40
_SHARED = 0.85  # of a relation's edges, drawn from those that all relations share
# How often a rule of Yeast-GEM has 1 to 8 alternatives, and a reaction 1 to 7 metabolites.
_ISOZYMES = (0.78, 0.136, 0.046, 0.024, 0.006, 0.004, 0.002, 0.002)
_METABOLITES = (0.066, 0.225, 0.04, 0.33, 0.265, 0.054, 0.02)
_ONE_GENE = 0.9  # how often a rule with one clause has one gene
# Of the rules with several clauses: those with one gene per clause; these, and those in which all
# clauses share a gene.
_ONLY_ALTERNATIVES = 0.8
_OR_WITH_A_SHARED_GENE = 0.9
_N_OTHER_ENZYMES = 16  # from which a rule is filled up
_TWICE = 0.08  # how often two molecules of a metabolite take part in a reaction

Rng = np.random.Generator
Sampler = Callable[[int, Rng], Ints]


@dataclass(frozen=True, eq=False)
class SyntheticPlan:
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
    recipe = _recipe(name)
    genes = _genes(name, seed)
    plan = _plan(name, seed)
    background = _Background.drawn(
        recipe["n_genes"],
        recipe["shared_edges"],
        generator(name, seed, "background"),
    )
    relations = [
        _relation(relation, background, plan, generator(name, seed, relation), **options)
        for relation, options in recipe["relations"].items()
    ]
    rng = generator(name, seed, "metabolism")
    metabolism = _metabolism(genes, plan, rng, **recipe["metabolism"])
    features = [
        _feature(feature, plan, generator(name, seed, f"feature {feature}"), *options)
        for feature, options in recipe["features"].items()
    ]
    recipe_of_cell = {"name": name, "seed": seed}
    return Cell(genes, relations, metabolism, features, synthetic=recipe_of_cell)


@dataclass(frozen=True, eq=False)
class _Background:
    """What all relations of a cell have in common."""

    popularity: Doubles  # of each gene, [n_genes]; the most popular ones are hubs
    edges: Ints  # pairs of genes, from which undirected relations draw, [n_edges, 2]

    @classmethod
    def drawn(cls, n_genes: int, n_edges: int, rng: Rng) -> _Background:
        """Draw the popularity of genes, and edges between them."""
        popularity = rng.normal(size=n_genes)
        everyone = _sampler(np.arange(n_genes), popularity)
        keys = _filled(np.zeros(0, np.int64), n_edges, everyone, everyone, n_genes, rng)
        return cls(popularity, np.stack([keys // n_genes, keys % n_genes], axis=1))


def _redundancy_cell(seed: int) -> Cell:
    """Return a cell in which only the graph determines the effect of two deletions together.

    The first 120 genes are sources. Each of the other 780 has two sources (520 genes) or three in
    the relation ``routes``, drawn independently of everything else; the relation ``elsewhere`` is
    random.
    """
    rng = generator(REDUNDANCY, seed, "routes")
    n_sources = np.repeat(list(_GENES_BY_N_SOURCES), list(_GENES_BY_N_SOURCES.values()))
    n_sources = rng.permutation(n_sources)
    n_genes = N_SOURCES + len(n_sources)
    source = np.concatenate([rng.choice(N_SOURCES, n, replace=False) for n in n_sources])
    target = np.repeat(np.arange(N_SOURCES, n_genes), n_sources)
    routes = Relation.from_edges(ROUTES, source, target, n_genes=n_genes, directed=True)
    rng = generator(REDUNDANCY, seed, "elsewhere")
    key = rng.choice(n_genes * n_genes, _N_EDGES_ELSEWHERE, replace=False)
    source = key // n_genes
    target = key % n_genes
    no_loop = source != target
    elsewhere = Relation.from_edges(
        "elsewhere",
        source[no_loop],
        target[no_loop],
        n_genes=n_genes,
        directed=True,
    )
    genes = Genes([f"R{i:04d}" for i in range(n_genes)])
    recipe = {"name": REDUNDANCY, "seed": seed}
    return Cell(genes, [routes, elsewhere], synthetic=recipe)


def plan_of(cell: Cell) -> SyntheticPlan:
    """Return the plan of a synthetic cell for its current genes, in their order."""
    message = "the cell, or one of its genes, is not synthetic"
    error = InputError(message, code="not-synthetic", fix="Use Cell.synthetic('demo').")
    if cell.synthetic_recipe is None:
        raise error
    name = str(cell.synthetic_recipe["name"])
    seed = int(cell.synthetic_recipe["seed"])
    plan = _plan(name, seed)
    index = _genes(name, seed).resolve(cell.genes.systematic)
    if (index < 0).any():
        raise error
    return SyntheticPlan(plan.pathway[index], plan.redundant)


def _recipe(name: str) -> dict[str, Any]:
    """Return the sizes of a synthetic cell, from synthetic.toml."""
    if name not in _RECIPES:
        known = [*_RECIPES, REDUNDANCY]
        message = f"unknown synthetic cell '{name}'{did_you_mean(name, known)}"
        raise InputError(message, code="unknown-cell", fix=f"Choose from {', '.join(known)}.")
    return _RECIPES[name]


def generator(name: str, seed: int, part: str) -> Rng:
    """Return an independent generator for one part of a synthetic cell or screen."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be at least 0", code="invalid-number")
    return np.random.default_rng([seed, crc32(f"{name}/{part}".encode())])


@lru_cache(maxsize=8)
def _plan(name: str, seed: int) -> SyntheticPlan:
    """Draw the pathways, which back each other up in a ring."""
    rng = generator(name, seed, "plan")
    n_genes = _recipe(name)["n_genes"]
    n_pathways = n_genes // _GENES_PER_PATHWAY
    n_spare = n_genes - _SMALLEST_PATHWAY * n_pathways
    sizes = _SMALLEST_PATHWAY + rng.multinomial(n_spare, np.full(n_pathways, 1 / n_pathways))
    pathway = rng.permutation(np.repeat(np.arange(n_pathways), sizes))
    ring = rng.permutation(n_pathways)
    redundant = np.sort(np.stack([ring, np.roll(ring, -1)], axis=1), axis=1)
    return SyntheticPlan(pathway, redundant[np.lexsort(redundant.T[::-1])])


@lru_cache(maxsize=8)
def _genes(name: str, seed: int) -> Genes:
    """Return genes named like those of yeast, with one digit more so that none is a real name."""
    rng = generator(name, seed, "genes")
    n_genes = _recipe(name)["n_genes"]
    chromosome = np.sort(np.arange(n_genes) % _N_CHROMOSOMES)
    place = np.arange(n_genes) - np.searchsorted(chromosome, chromosome)
    centromere = (np.bincount(chromosome) // 2)[chromosome]
    strand = rng.integers(0, 2, n_genes)
    is_right = place >= centromere
    number = np.where(is_right, place - centromere + 1, centromere - place)
    names = list(map(_gene_name, chromosome, is_right, number, strand))
    start = 1_000 + _BASES_PER_GENE * place + rng.integers(0, 300, n_genes)
    end = start + rng.integers(200, _BASES_PER_GENE - 400, n_genes)
    return Genes(names, chromosome=(str(c + 1) for c in chromosome), start=start, end=end)


def _gene_name(chromosome: int, is_right: bool, number: int, strand: int) -> str:
    """Return a name such as ``YDL0227C``: chromosome, arm, number from the centromere, strand."""
    letter = chr(ord("A") + chromosome)
    arm = "R" if is_right else "L"
    return f"Y{letter}{arm}{number:04d}{'WC'[strand]}"


def _sampler(
    genes: Ints,
    popularity: AnyArray,
    exponent: float = _EXPONENT,
    shift: float = 0,
) -> Sampler:
    """Return a function that draws genes with probabilities by the rank of their popularity."""
    rank = np.empty(len(popularity))
    rank[np.argsort(-popularity)] = np.arange(len(popularity))
    shift = shift or len(genes) / _GENES_PER_HUB
    cumulated = np.cumsum((rank + 1 + shift) ** -exponent)

    def draw(n: int, rng: Rng) -> Ints:
        position = np.searchsorted(cumulated, rng.random(n) * cumulated[-1], side="right")
        drawn: Ints = genes[np.minimum(position, len(genes) - 1)]
        return drawn

    return draw


def _relation(
    name: str,
    background: _Background,
    plan: SyntheticPlan,
    rng: Rng,
    *,
    connected: int,
    edges: int,
    within: float,
    between: float = 0.0,
    regulators: int = 0,
    scored: bool = True,
) -> Relation:
    """Draw a relation with planned edges, edges of the background, and further ones.

    Args:
        name: Its name.
        background: What all relations have in common.
        plan: The pathways.
        rng: The generator of this relation.
        connected: The number of genes with an edge.
        edges: The number of edges.
        within: The share of edges within a pathway or, if directed, from its regulators.
        between: The share of edges between pathways that back each other up.
        regulators: The number of sources of a directed relation; 0 if undirected.
        scored: Whether the edges have weights.
    """
    n_genes = len(plan.pathway)
    directed = bool(regulators)
    genes = np.sort(rng.permutation(n_genes)[:connected])
    popularity = background.popularity[genes] + 0.4 * rng.normal(size=connected)
    target = _sampler(genes, popularity)
    members = plan.members(genes)
    if directed:
        chosen = np.sort(rng.permutation(genes)[:regulators])
        source = _sampler(chosen, rng.normal(size=regulators), 0.8, 5.0)
        planned = _some(_controlled(members, chosen, rng), within * edges, rng)
        shared = background.edges[:0]
    else:
        source = target
        inner = _some(_pairs_within(members), within * edges, rng)
        outer = _some(_pairs_between(members, plan), between * edges, rng)
        planned = np.concatenate([inner, outer])
        shared = _some(_among(background.edges, genes, n_genes), _SHARED * edges, rng)
    drawn = np.concatenate([planned, shared])
    joining = _edges_of_lonely_genes(genes, drawn, n_genes, source, rng)
    keys = _first_of_each(_keys(np.concatenate([drawn, joining]), n_genes, directed))
    keys = _filled(keys, edges, source, target, n_genes, rng)
    weight = _scores(len(planned), len(keys), rng) if scored else None
    return Relation.from_edges(
        name,
        keys // n_genes,
        keys % n_genes,
        weight,
        n_genes=n_genes,
        directed=directed,
    )


def _controlled(members: Sequence[Ints], regulators: Ints, rng: Rng) -> Ints:
    """Return the edges to each pathway from two regulators that control it, [edges, 2]."""
    pairs = [_crossed(rng.choice(regulators, 2, replace=False), genes) for genes in members]
    edges = np.concatenate(pairs)
    no_loop: Ints = edges[edges[:, 0] != edges[:, 1]]
    return no_loop


def _pairs_within(members: Sequence[Ints]) -> Ints:
    """Return all pairs of genes of one pathway, [pairs, 2]."""
    pairs = [genes[np.stack(np.triu_indices(len(genes), 1), axis=1)] for genes in members]
    return np.concatenate(pairs)


def _pairs_between(members: Sequence[Ints], plan: SyntheticPlan) -> Ints:
    """Return all pairs of genes of two pathways that back each other up, [pairs, 2]."""
    return np.concatenate([_crossed(members[p], members[q]) for p, q in plan.redundant])


def _among(edges: Ints, genes: Ints, n_genes: int) -> Ints:
    """Return the edges between the given genes, [edges, 2]."""
    is_inside = np.zeros(n_genes, dtype=bool)
    is_inside[genes] = True
    return edges[is_inside[edges].all(axis=1)]


def _edges_of_lonely_genes(
    genes: Ints,
    edges: Ints,
    n_genes: int,
    source: Sampler,
    rng: Rng,
) -> Ints:
    """Draw an edge for each of the genes that has none, [edges, 2]."""
    has_edge = np.zeros(n_genes, dtype=bool)
    has_edge[edges] = True
    lonely = genes[~has_edge[genes]]
    partner = source(len(lonely), rng)
    while (is_itself := partner == lonely).any():
        partner[is_itself] = source(int(is_itself.sum()), rng)
    return np.stack([partner, lonely], axis=1)


def _filled(keys: Ints, n: int, source: Sampler, target: Sampler, n_genes: int, rng: Rng) -> Ints:
    """Draw distinct edges until there are exactly n."""
    while len(keys) < n:
        n_drawn = (n - len(keys)) * 5 // 4 + 16
        drawn = np.stack([source(n_drawn, rng), target(n_drawn, rng)], axis=1)
        drawn = drawn[drawn[:, 0] != drawn[:, 1]]
        more = _keys(drawn, n_genes, directed=source is not target)
        keys = _first_of_each(np.concatenate([keys, more]))[:n]
    return keys


def _crossed(first: Ints, second: Ints) -> Ints:
    """Return all pairs of a gene of each of two lists, [pairs, 2]."""
    return np.stack([np.repeat(first, len(second)), np.tile(second, len(first))], axis=1)


def _some(pairs: Ints, n: float, rng: Rng) -> Ints:
    """Draw n of some pairs, or all if there are fewer."""
    return pairs[rng.permutation(len(pairs))[: round(n)]]


def _keys(pairs: Ints, n_genes: int, directed: bool) -> Ints:
    """Return a number for each pair, the same for both orders unless `directed`."""
    if not directed:
        pairs = np.sort(pairs, axis=1)
    return pairs[:, 0] * n_genes + pairs[:, 1]


def _first_of_each(keys: Ints) -> Ints:
    """Return the distinct keys in the order of their first occurrence."""
    return keys[np.sort(np.unique(keys, return_index=True)[1])]


def _scores(n_planned: int, n: int, rng: Rng) -> Floats:
    """Return weights with three decimals in (0, 1], higher for planned edges."""
    score = 0.15 + 0.85 * rng.beta(1.2, 4.0, n)
    score[:n_planned] = 0.4 + 0.6 * rng.beta(2.0, 2.0, min(n_planned, n))
    return np.round(score, 3).astype(np.float32)


def _metabolism(
    genes: Genes,
    plan: SyntheticPlan,
    rng: Rng,
    *,
    reactions: int,
    metabolites: int,
    ruled: int,
    enzymes: int,
    parts: int,
) -> Metabolism:
    """Draw a metabolism; each enzyme has a rule, if there are as many.

    Args:
        genes: The genes of the cell.
        plan: The pathways.
        rng: The generator of the metabolism.
        reactions: The number of reactions.
        metabolites: The number of metabolites.
        ruled: The number of reactions with a rule.
        enzymes: The number of genes in rules, which are those of whole pathways.
        parts: The number of reactions of the split form, see `Metabolism.split`.
    """
    turn = rng.permutation(plan.n_pathways)
    order = np.lexsort((rng.permutation(len(plan.pathway)), turn[plan.pathway]))
    enzyme = rng.permutation(order[:enzymes])
    rules = [""] * reactions
    pathways: list[list[str]] = [[] for _ in rules]
    n_clauses = np.ones(reactions, dtype=np.int64)
    for i, reaction in enumerate(np.sort(rng.permutation(reactions)[:ruled]).tolist()):
        first = int(enzyme[i % enzymes])
        n_clauses[reaction] = rng.choice(len(_ISOZYMES), p=_ISOZYMES) + 1
        same_pathway = enzyme[plan.pathway[enzyme] == plan.pathway[first]]
        others = rng.choice(enzyme, _N_OTHER_ENZYMES, replace=False)
        pool = dict.fromkeys([first, *rng.permutation(same_pathway).tolist(), *others.tolist()])
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
    """Draw a rule with this number of clauses from the first genes of a pool."""
    form = rng.random()
    if n_clauses == 1:
        n_genes = 1 if form < _ONE_GENE else 2 + int(rng.integers(4))
        return " and ".join(pool[:n_genes])
    if form < _ONLY_ALTERNATIVES:
        return " or ".join(pool[:n_clauses])
    if form < _OR_WITH_A_SHARED_GENE:
        return f"{pool[0]} and ({' or '.join(pool[1 : n_clauses + 1])})"
    pairs = [f"({pool[i]} and {pool[i + 1]})" for i in range(n_clauses - 1)]
    return " or ".join([*pairs, pool[n_clauses]])


def _reversible(n_clauses: Ints, parts: int, rng: Rng) -> Bools:
    """Choose the reversible reactions so that the split form has `parts` reactions."""
    n_missing = parts - int(n_clauses.sum())
    is_reversible = np.zeros(len(n_clauses), dtype=bool)
    for reaction in rng.permutation(len(n_clauses)).tolist():
        if n_clauses[reaction] <= n_missing:
            is_reversible[reaction] = True
            n_missing -= int(n_clauses[reaction])
    return is_reversible


def _stoichiometry(reactions: int, metabolites: int, rng: Rng) -> list[tuple[int, int, float]]:
    """Use every metabolite in a reaction, and a few, like water, in very many."""
    own = rng.permutation(metabolites)
    popularity = rng.normal(size=metabolites)
    common = _sampler(np.arange(metabolites), popularity, 1.0, 2.0)
    further = common(reactions * 24, rng).reshape(reactions, -1).tolist()
    sizes = rng.choice(len(_METABOLITES), reactions, p=_METABOLITES) + 1
    entries = []
    for reaction, size in enumerate(sizes.tolist()):
        first = int(own[reaction % metabolites])
        members = list(dict.fromkeys([first, *further[reaction]]))[:size]
        amounts = np.where(rng.random(len(members)) < _TWICE, 2.0, 1.0)
        amounts[::2] *= -1  # every other one is consumed
        for metabolite, amount in zip(members, amounts.tolist(), strict=True):
            entries.append((reaction, metabolite, amount))
    return entries


def _feature(
    name: str,
    plan: SyntheticPlan,
    rng: Rng,
    width: int,
    noise: float,
    known_share: float,
) -> Feature:
    """Draw numbers that are near to each other for the genes of one pathway."""
    centre = rng.normal(size=(plan.n_pathways, width))
    values = centre[plan.pathway] + noise * rng.normal(size=(len(plan.pathway), width))
    is_known = rng.random(len(plan.pathway)) < known_share
    values[~is_known] = np.nan
    return Feature(name, values.astype(np.float32))
