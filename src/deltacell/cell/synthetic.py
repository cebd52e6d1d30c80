"""Made-up cells: a small one to try things on, and one of exactly the yeast reference's sizes.

Every gene belongs to a pathway, and every pathway is backed up by two others. Relations, features
and gene rules are noisy views of that plan. The rest of a relation is background in which the
expected degree of a gene falls with its rank as (rank + 1 + shift)^-exponent, the law of Zipf and
Mandelbrot. A gene's rank is much the same in all relations, so hubs are hubs everywhere, and the
yeast-sized relations share many of their edges, as real ones do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np
import numpy.typing as npt

from deltacell.arrays import AnyArray, Floats, Ints
from deltacell.cell.cell import Cell
from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.relation import Relation
from deltacell.errors import InputError, did_you_mean


@dataclass(frozen=True, eq=False)
class Plan:
    """What a synthetic cell was made from.

    Parameters
    ----------
    pathway
        The pathway of each gene, [n_genes].
    redundant
        Pairs of pathways that back each other up, the smaller first, [n_pairs, 2].
    """

    pathway: Ints
    redundant: Ints

    @property
    def n_pathways(self) -> int:
        """Number of pathways of the whole plan, whether or not a gene of each is left."""
        return int(self.redundant.max()) + 1


def synthetic_cell(name: str, *, seed: int = 0) -> Cell:
    """Return a made-up cell, the same for the same seed.

    Parameters
    ----------
    name
        ``demo``, 300 genes; ``yeast``, the sizes of the reference cell, number for number; or
        ``redundancy``, in which genes are reached by two or three routes, see `redundancy_cell`.
    seed
        Of all that is drawn, 0 or more.
    """
    if name == REDUNDANCY:
        return redundancy_cell(seed)
    recipe = _recipe(name)
    genes, plan = _genes(name, seed), _plan(name, seed)
    background = _background(recipe, _generator(name, seed, "background"))
    return Cell(
        genes,
        [
            _relation(spec, plan, background, _generator(name, seed, spec.name))
            for spec in recipe.relations
        ],
        _metabolism(recipe.metabolism, genes, plan, _generator(name, seed, "metabolism")),
        [
            _feature(spec, plan, _generator(name, seed, f"feature {spec.name}"))
            for spec in recipe.features
        ],
        synthetic={"name": name, "seed": seed},
    )


REDUNDANCY, ROUTES = "redundancy", "routes"
N_SOURCES = 120
_REACHED = {2: 520, 3: 260}
_ELSEWHERE = 2_600


def redundancy_cell(seed: int = 0) -> Cell:
    """Return a cell in which what two deletions do together is written in the graph alone.

    The first 120 genes are sources. Each of the other 780 hears over the relation ``routes`` from
    two sources (520 of them) or three, drawn independently of everything else: which pairs of
    sources are the only routes to a gene follows from no property of either of them. Over
    ``elsewhere``, everybody hears from random genes, which means nothing.

    Parameters
    ----------
    seed
        Of all that is drawn, 0 or more.
    """
    rng = _generator(REDUNDANCY, seed, "routes")
    n_routes = rng.permutation(np.repeat(list(_REACHED), list(_REACHED.values())))
    n_genes = N_SOURCES + len(n_routes)
    source = np.concatenate([rng.choice(N_SOURCES, k, replace=False) for k in n_routes])
    target = np.repeat(np.arange(N_SOURCES, n_genes), n_routes)
    rng = _generator(REDUNDANCY, seed, "elsewhere")
    key = rng.choice(n_genes * n_genes, _ELSEWHERE, replace=False)
    key = key[key // n_genes != key % n_genes]
    return Cell(
        Genes([f"R{i:04d}" for i in range(n_genes)]),
        [
            Relation.from_edges(ROUTES, source, target, n_genes=n_genes, directed=True),
            Relation.from_edges(
                "elsewhere", key // n_genes, key % n_genes, n_genes=n_genes, directed=True
            ),
        ],
        synthetic={"name": REDUNDANCY, "seed": seed},
    )


def plan_of(cell: Cell) -> Plan:
    """Return the plan of a synthetic cell, for the genes it has now and in their order."""
    made_with = cell.synthetic_recipe
    if made_with is None:
        raise InputError(
            "the cell is not a synthetic one, so its pathways are not known",
            fix="Make one with Cell.synthetic('demo').",
        )
    name, seed = str(made_with["name"]), int(made_with["seed"])
    plan, planned = _plan(name, seed), _genes(name, seed)
    index = planned.resolve(cell.genes.systematic).index
    if (index < 0).any():
        stranger = cell.genes[int(np.argmax(index < 0))]
        raise InputError(f"the gene '{stranger}' is not one of the synthetic cell '{name}'")
    return Plan(plan.pathway[index], plan.redundant)


def pathways_of(cell: Cell) -> Ints:
    """Return the pathway of each gene of a synthetic cell, [n_genes]; also of a subset of one."""
    return plan_of(cell).pathway


@dataclass(frozen=True)
class _RelationSpec:
    """How a relation is drawn.

    Parameters
    ----------
    genes, edges
        Genes with an edge, and edges; both are met exactly.
    within, between
        Share of the edges that lie within a pathway, and between two that back each other up. In
        a directed relation, share of the edges from a regulator to the pathways it controls.
    regulators
        In a directed relation, the number of genes that have targets.
    scored
        Whether edges have a weight of their own, like a STRING channel, or all 1.
    """

    name: str
    genes: int
    edges: int
    within: float
    between: float = 0.0
    regulators: int = 0
    scored: bool = True


@dataclass(frozen=True)
class _MetabolismSpec:
    """Sizes of a metabolism; `parts` is the number of reactions after `Metabolism.split`."""

    reactions: int
    metabolites: int
    ruled: int
    genes: int
    parts: int


@dataclass(frozen=True)
class _FeatureSpec:
    """A matrix of pathway centres with noise, and the share of genes that have a row of it."""

    name: str
    width: int
    noise: float
    known: float = 1.0


@dataclass(frozen=True)
class _Recipe:
    n_genes: int
    relations: tuple[_RelationSpec, ...]
    metabolism: _MetabolismSpec
    features: tuple[_FeatureSpec, ...] = ()
    shared_edges: int = 0


_GENES_PER_PATHWAY = 12
_SMALLEST_PATHWAY = 9
_CHROMOSOMES = 16

# Of the background: the exponent of the degrees, one in how many genes is a hub, and the share of
# a relation's edges that is drawn from what all relations share.
_EXPONENT = 0.9
_HUBS = 40
_SHARED = 0.85
_BASES_PER_GENE = 2_000

_RECIPES = {
    "demo": _Recipe(
        300,
        (
            _RelationSpec("regulatory", 230, 480, 0.10, regulators=24, scored=False),
            _RelationSpec("physical", 286, 1_300, 0.70, 0.06, scored=False),
            _RelationSpec("tflink", 270, 1_500, 0.25, regulators=20, scored=False),
            _RelationSpec("string_neighborhood", 190, 700, 0.40, 0.03),
            _RelationSpec("string_fusion", 150, 260, 0.10),
            _RelationSpec("string_cooccurence", 140, 240, 0.02),
            _RelationSpec("string_coexpression", 296, 1_800, 0.68, 0.10),
            _RelationSpec("string_experimental", 290, 1_500, 0.72, 0.08),
            _RelationSpec("string_database", 250, 900, 0.82, 0.05),
        ),
        _MetabolismSpec(150, 110, ruled=100, genes=90, parts=260),
        (_FeatureSpec("expression", 16, noise=1.2), _FeatureSpec("protein", 32, 2.5, known=0.95)),
    ),
    "yeast": _Recipe(
        6_607,
        (
            _RelationSpec("regulatory", 3_632, 9_753, 0.10, regulators=180, scored=False),
            _RelationSpec("physical", 5_721, 139_463, 0.10, 0.02, scored=False),
            _RelationSpec("tflink", 5_092, 201_898, 0.05, regulators=150, scored=False),
            _RelationSpec("string_neighborhood", 2_204, 147_874, 0.01, 0.003),
            _RelationSpec("string_fusion", 3_095, 11_810, 0.10),
            _RelationSpec("string_cooccurence", 2_615, 11_115, 0.02),
            _RelationSpec("string_coexpression", 6_503, 1_002_538, 0.02, 0.005),
            _RelationSpec("string_experimental", 6_036, 825_101, 0.02, 0.005),
            _RelationSpec("string_database", 4_044, 73_818, 0.10, 0.02),
        ),
        _MetabolismSpec(4_131, 2_806, ruled=2_709, genes=1_161, parts=7_122),
        shared_edges=1_100_000,
    ),
}


def _recipe(name: str) -> _Recipe:
    if name not in _RECIPES:
        raise InputError(
            f"there is no synthetic cell '{name}'{did_you_mean(name, [*_RECIPES, REDUNDANCY])}; "
            f"there are {', '.join([*_RECIPES, REDUNDANCY])}"
        )
    return _RECIPES[name]


def _generator(name: str, seed: int, part: str) -> np.random.Generator:
    # Each part draws from a stream of its own, so that changing one leaves the others as they were.
    if seed < 0:
        raise InputError(f"the seed is {seed}, and 0 or more was expected")
    return np.random.default_rng([seed, crc32(f"{name}/{part}".encode())])


@lru_cache(maxsize=8)
def _plan(name: str, seed: int) -> Plan:
    rng = _generator(name, seed, "plan")
    n_genes = _recipe(name).n_genes
    n_pathways = n_genes // _GENES_PER_PATHWAY
    spare = n_genes - _SMALLEST_PATHWAY * n_pathways
    sizes = _SMALLEST_PATHWAY + rng.multinomial(spare, np.full(n_pathways, 1 / n_pathways))
    pathway = rng.permutation(np.repeat(np.arange(n_pathways), sizes))
    ring = rng.permutation(n_pathways)
    redundant = np.sort(np.stack([ring, np.roll(ring, -1)], axis=1), axis=1)
    return Plan(pathway, redundant[np.lexsort(redundant.T[::-1])])


@lru_cache(maxsize=8)
def _genes(name: str, seed: int) -> Genes:
    """Return genes named like yeast's, with one digit more so that none can be taken for a real."""
    rng = _generator(name, seed, "genes")
    n_genes = _recipe(name).n_genes
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


@dataclass(frozen=True, eq=False)
class _Background:
    """How popular each gene is, and pairs of genes [n, 2] that several relations draw from."""

    popularity: AnyArray
    pairs: Ints


def _background(recipe: _Recipe, rng: np.random.Generator) -> _Background:
    n_genes = recipe.n_genes
    popularity = rng.normal(size=n_genes)
    everyone = _Sampler(np.arange(n_genes), _zipf(popularity, _EXPONENT, n_genes / _HUBS))
    none: Ints = np.zeros(0, dtype=np.int64)
    keys = _filled(none, recipe.shared_edges, everyone, everyone, n_genes, rng)
    return _Background(popularity, np.stack([keys // n_genes, keys % n_genes], axis=1))


def _relation(
    spec: _RelationSpec, plan: Plan, background: _Background, rng: np.random.Generator
) -> Relation:
    n_genes, directed = len(plan.pathway), bool(spec.regulators)
    connected = np.sort(rng.permutation(n_genes)[: spec.genes])
    popularity = background.popularity[connected] + 0.4 * rng.normal(size=spec.genes)
    target = _Sampler(connected, _zipf(popularity, _EXPONENT, spec.genes / _HUBS))
    if directed:
        regulators = np.sort(rng.permutation(connected)[: spec.regulators])
        source = _Sampler(regulators, _zipf(rng.normal(size=spec.regulators), 0.8, 5.0))
        controlled = _controlled(plan, connected, regulators, rng)
        planned = [_some(controlled, spec.within * spec.edges, rng)]
        shared = background.pairs[:0]
    else:
        source = target
        planned = [
            _some(_pairs_within(plan, connected), spec.within * spec.edges, rng),
            _some(_pairs_between(plan, connected), spec.between * spec.edges, rng),
        ]
        inside = np.zeros(n_genes, dtype=bool)
        inside[connected] = True
        usable = background.pairs[inside[background.pairs].all(axis=1)]
        shared = _some(usable, _SHARED * spec.edges, rng)
    n_planned = sum(len(pairs) for pairs in planned)
    joined = np.zeros(n_genes, dtype=bool)
    joined[np.concatenate([*planned, shared])] = True
    lonely = connected[~joined[connected]]
    joining = np.stack([source.draw_other_than(lonely, rng), lonely], axis=1)
    keys = _first_of_each(_keys(np.concatenate([*planned, shared, joining]), n_genes, directed))
    keys = _filled(keys, spec.edges, source, target, n_genes, rng)
    return Relation.from_edges(
        spec.name,
        keys // n_genes,
        keys % n_genes,
        _scores(n_planned, len(keys), rng) if spec.scored else None,
        n_genes=n_genes,
        directed=directed,
    )


def _filled(
    keys: Ints, n: int, source: _Sampler, target: _Sampler, n_genes: int, rng: np.random.Generator
) -> Ints:
    """Draw edges, none twice, until there are exactly n of them."""
    while len(keys) < n:
        m = (n - len(keys)) * 5 // 4 + 16
        drawn = np.stack([source.draw(m, rng), target.draw(m, rng)], axis=1)
        drawn = drawn[drawn[:, 0] != drawn[:, 1]]
        more = _keys(drawn, n_genes, directed=source is not target)
        keys = _first_of_each(np.concatenate([keys, more]))[:n]
    return keys


@dataclass(frozen=True, eq=False)
class _Sampler:
    """Draws genes in proportion to their weights."""

    genes: Ints
    weight: npt.NDArray[np.float64]

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        cumulated = np.cumsum(self.weight)
        at = np.searchsorted(cumulated, rng.random(n) * cumulated[-1], side="right")
        drawn: Ints = self.genes[np.minimum(at, len(self.genes) - 1)]
        return drawn

    def draw_other_than(self, avoided: Ints, rng: np.random.Generator) -> Ints:
        drawn = self.draw(len(avoided), rng)
        while (same := drawn == avoided).any():
            drawn[same] = self.draw(int(same.sum()), rng)
        return drawn


def _zipf(popularity: AnyArray, exponent: float, shift: float) -> npt.NDArray[np.float64]:
    rank = np.empty(len(popularity))
    rank[np.argsort(-popularity)] = np.arange(len(popularity))
    weight: npt.NDArray[np.float64] = (rank + 1 + shift) ** -exponent
    return weight


def _pairs_within(plan: Plan, genes: Ints) -> Ints:
    members = _members(plan, genes)
    found = [m[np.stack(np.triu_indices(len(m), 1), axis=1)] for m in members]
    return np.concatenate(found)


def _pairs_between(plan: Plan, genes: Ints) -> Ints:
    members = _members(plan, genes)
    return np.concatenate([_crossed(members[p], members[q]) for p, q in plan.redundant])


def _controlled(plan: Plan, genes: Ints, regulators: Ints, rng: np.random.Generator) -> Ints:
    """Return the pairs of a regulator and a gene of a pathway it controls; a pathway has two."""
    members = _members(plan, genes)
    pairs = [_crossed(rng.choice(regulators, 2, replace=False), m) for m in members]
    found = np.concatenate(pairs)
    others: Ints = found[found[:, 0] != found[:, 1]]
    return others


def _members(plan: Plan, genes: Ints) -> list[Ints]:
    order = genes[np.argsort(plan.pathway[genes], kind="stable")]
    ends = np.searchsorted(plan.pathway[order], np.arange(1, plan.n_pathways))
    return np.split(order, ends)


def _crossed(one: Ints, other: Ints) -> Ints:
    return np.stack([np.repeat(one, len(other)), np.tile(other, len(one))], axis=1)


def _some(pairs: Ints, n: float, rng: np.random.Generator) -> Ints:
    return pairs[rng.permutation(len(pairs))[: round(n)]]


def _keys(pairs: Ints, n_genes: int, directed: bool) -> Ints:
    if not directed:
        pairs = np.sort(pairs, axis=1)
    keys: Ints = pairs[:, 0] * n_genes + pairs[:, 1]
    return keys


def _first_of_each(keys: Ints) -> Ints:
    return keys[np.sort(np.unique(keys, return_index=True)[1])]


def _scores(n_planned: int, n: int, rng: np.random.Generator) -> Floats:
    """Return weights of three decimals in (0, 1], higher where the plan has the edge."""
    score = 0.15 + 0.85 * rng.beta(1.2, 4.0, n)
    score[:n_planned] = 0.4 + 0.6 * rng.beta(2.0, 2.0, min(n_planned, n))
    return np.round(score, 3).astype(np.float32)


def _metabolism(
    spec: _MetabolismSpec, genes: Genes, plan: Plan, rng: np.random.Generator
) -> Metabolism:
    enzymes = _enzymes(spec, plan, rng)
    rules = [""] * spec.reactions
    pathways: list[list[str]] = [[] for _ in rules]
    n_clauses = np.ones(spec.reactions, dtype=np.int64)
    for i, reaction in enumerate(np.sort(rng.permutation(spec.reactions)[: spec.ruled]).tolist()):
        first = int(enzymes[i % spec.genes])
        n_clauses[reaction] = rng.choice(len(_ISOZYMES), p=_ISOZYMES) + 1
        pool = [first, *_colleagues(first, enzymes, plan, rng)]
        rules[reaction] = _rule([genes[g] for g in pool], int(n_clauses[reaction]), rng)
        pathways[reaction].append(f"pathway {int(plan.pathway[first])}")
    reversible = _reversible(n_clauses, spec.parts, rng)
    return Metabolism.build(
        genes,
        [f"r_{i + 1:04d}" for i in range(spec.reactions)],
        [f"s_{i + 1:04d}" for i in range(spec.metabolites)],
        _stoichiometry(spec, rng),
        rules,
        np.where(reversible, -1_000.0, 0.0).tolist(),
        [1_000.0] * spec.reactions,
        pathways=pathways,
    )


#: How many alternatives a rule has, 1 to 8, about as often as in Yeast-GEM.
_ISOZYMES = (0.78, 0.136, 0.046, 0.024, 0.006, 0.004, 0.002, 0.002)

#: How many metabolites a reaction has, 1 to 7, about as often as in Yeast-GEM.
_METABOLITES = (0.066, 0.225, 0.04, 0.33, 0.265, 0.054, 0.02)


def _enzymes(spec: _MetabolismSpec, plan: Plan, rng: np.random.Generator) -> Ints:
    """Return the genes of whole pathways, as many as the rules are to name, in random order."""
    turn = rng.permutation(plan.n_pathways)
    order = np.lexsort((rng.permutation(len(plan.pathway)), turn[plan.pathway]))
    return rng.permutation(order[: spec.genes])


def _colleagues(gene: int, enzymes: Ints, plan: Plan, rng: np.random.Generator) -> list[int]:
    """Return other enzymes, those of the gene's own pathway first."""
    mates = enzymes[plan.pathway[enzymes] == plan.pathway[gene]]
    others = rng.choice(enzymes, 16, replace=False)
    ordered = dict.fromkeys([*rng.permutation(mates).tolist(), *others.tolist()])
    ordered.pop(gene, None)
    return list(ordered)


def _rule(pool: list[str], n_clauses: int, rng: np.random.Generator) -> str:
    """Write a rule with so many alternatives, over the first genes of the pool."""
    form = rng.random()
    if n_clauses == 1:
        return " and ".join(pool[: 1 if form < 0.9 else 2 + int(rng.integers(4))])
    if form < 0.8:
        return " or ".join(pool[:n_clauses])
    if form < 0.9:
        return f"{pool[0]} and ({' or '.join(pool[1 : n_clauses + 1])})"
    pairs = [f"({pool[i]} and {pool[i + 1]})" for i in range(n_clauses - 1)]
    return " or ".join([*pairs, pool[n_clauses]])


def _reversible(n_clauses: Ints, parts: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Choose reactions to run both ways so that the split form has so many reactions."""
    missing = parts - int(n_clauses.sum())
    chosen = np.zeros(len(n_clauses), dtype=bool)
    for reaction in rng.permutation(len(n_clauses)).tolist():
        if n_clauses[reaction] <= missing:
            chosen[reaction] = True
            missing -= int(n_clauses[reaction])
    return chosen


def _stoichiometry(spec: _MetabolismSpec, rng: np.random.Generator) -> list[tuple[int, int, float]]:
    """Let every metabolite take part in a reaction, and a few, like water, in very many."""
    own = rng.permutation(spec.metabolites)
    common = _Sampler(
        np.arange(spec.metabolites), _zipf(rng.normal(size=spec.metabolites), 1.0, 2.0)
    )
    further = common.draw(spec.reactions * 24, rng).reshape(spec.reactions, -1).tolist()
    sizes = rng.choice(len(_METABOLITES), spec.reactions, p=_METABOLITES) + 1
    found = []
    for reaction, size in enumerate(sizes.tolist()):
        first = int(own[reaction % spec.metabolites])
        members = list(dict.fromkeys([first, *further[reaction]]))[:size]
        amounts = np.where(rng.random(len(members)) < 0.08, 2.0, 1.0)
        for i, (metabolite, amount) in enumerate(zip(members, amounts.tolist(), strict=True)):
            found.append((reaction, metabolite, amount if i % 2 else -amount))
    return found


def _feature(spec: _FeatureSpec, plan: Plan, rng: np.random.Generator) -> Feature:
    centre = rng.normal(size=(plan.n_pathways, spec.width))
    values = centre[plan.pathway] + spec.noise * rng.normal(size=(len(plan.pathway), spec.width))
    known = rng.random(len(plan.pathway)) < spec.known
    return Feature(spec.name, np.where(known[:, None], values, np.nan).astype(np.float32))
