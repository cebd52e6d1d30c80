"""Synthetic screens with planted interactions, so that a model can be shown to learn something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import erfc

from deltacell.arrays import Bools, Ints, offsets_of, ragged_positions
from deltacell.cell import Cell
from deltacell.cell.synthetic import N_SOURCES, REDUNDANCY, ROUTES, Plan, plan_of
from deltacell.errors import InputError
from deltacell.screen.coverage import Coverage, StudyCoverage
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.screen import Screen

Doubles = npt.NDArray[np.float64]

STUDY = "synthetic"

_CUT = 0.3
_WITHIN = (0.08, 0.20)
_BETWEEN = (0.20, 0.40)
_NUISANCE = 0.02
_NOISE = 0.05
_DEFAULT_ROWS = 7_000
_REPEATED = 0.03
_FAILED = 0.04
_PATHWAYS_IN_USE = 16


@dataclass(frozen=True, eq=False)
class Planted:
    """The truth behind a synthetic screen: a function of sets of genes, not a sum over genes.

    With H the pathways that a genotype S hits, its interaction is

    - ``within[p] > 0`` where H = {p} and S has two genes or more: the pathway is already broken;
    - ``between[p, q] * (1 + (|S| - 2) / 2) < 0`` where H = {p, q} and the two back each other up:
      the cell loses both, and a third gene makes it worse;
    - 0 otherwise, also where a gene of an unrelated pathway joins such a set.

    A measured score is the interaction, plus `nuisance` summed over the deleted genes, plus noise.
    """

    pathway: Ints  # of each gene, [n_genes]
    within: Doubles  # [n_pathways]
    between: Doubles  # symmetric, 0 where two do not back each other up, [n_pathways, n_pathways]
    redundant: tuple[tuple[int, int], ...]  # the pairs of pathways that do
    nuisance: Doubles  # what each gene adds to the score of any genotype, [n_genes]
    noise: float  # standard deviation over all measurements

    @classmethod
    def of(cls, cell: Cell, seed: int = 0) -> Planted:
        """Return what the screen with this seed on this synthetic cell was drawn from."""
        plan = plan_of(cell)
        rng = _generator(seed, "interactions")
        within = rng.uniform(*_WITHIN, plan.n_pathways)
        between = np.zeros((plan.n_pathways, plan.n_pathways))
        p, q = plan.redundant.T
        between[p, q] = between[q, p] = -rng.uniform(*_BETWEEN, len(plan.redundant))
        redundant = tuple((int(p), int(q)) for p, q in plan.redundant)
        nuisance = _NUISANCE * _per_gene(cell, seed, "nuisance")
        return cls(plan.pathway, within, between, redundant, nuisance, _NOISE)

    def effect(self, genotypes: Genotypes) -> Doubles:
        """Return the interaction of each genotype without nuisance and noise, [batch]."""
        genotypes.check(len(self.pathway))
        if not len(genotypes):
            return np.zeros(0)
        offsets, sizes = genotypes.offsets.numpy(), genotypes.sizes.numpy()
        hit = self.pathway[genotypes.genes.numpy()]
        lowest = np.minimum.reduceat(hit, offsets[:-1])
        highest = np.maximum.reduceat(hit, offsets[:-1])
        stray = (hit != np.repeat(lowest, sizes)) & (hit != np.repeat(highest, sizes))
        at_most_two = ~np.logical_or.reduceat(stray, offsets[:-1])
        inside = np.where(sizes > 1, self.within[lowest], 0.0)
        across = self.between[lowest, highest] * (1 + (sizes - 2) / 2)
        effect: Doubles = np.where(lowest == highest, inside, np.where(at_most_two, across, 0.0))
        return effect

    def is_planted(self, genotypes: Genotypes) -> Bools:
        """Return which genotypes have an interaction at all, [batch]."""
        planted: Bools = self.effect(genotypes) != 0
        return planted


@dataclass(frozen=True, eq=False)
class Redundancy:
    """The truth behind a screen on the cell ``redundancy``, a function of routes and not of genes.

    A set of two or more deletions has an interaction of -0.3 for each gene that hears over the
    relation ``routes`` from exactly these genes: together they cut all routes to it, and no
    smaller set does. Two deletions that share a gene with a third route do nothing together.
    """

    cut: Mapping[tuple[int, ...], int]  # by ascending genes, how many genes they cut off
    n_genes: int

    @classmethod
    def of(cls, cell: Cell) -> Redundancy:
        """Read it off the cell."""
        routes = cell.relation(ROUTES)
        sources = np.split(routes.indices, routes.indptr[1:-1])
        sets = (tuple(sorted(genes.tolist())) for genes in sources)
        return cls(Counter(s for s in sets if len(s) > 1), cell.n_genes)

    def effect(self, genotypes: Genotypes) -> Doubles:
        """Return the interaction of each genotype without nuisance and noise, [batch]."""
        genotypes.check(self.n_genes)
        times = [self.cut.get(tuple(sorted(genes.tolist())), 0) for genes in genotypes]
        return -_CUT * np.array(times, dtype=np.float64)

    def is_planted(self, genotypes: Genotypes) -> Bools:
        """Return which genotypes have an interaction at all, [batch]."""
        planted: Bools = self.effect(genotypes) != 0
        return planted


def synthetic_screen(cell: Cell, *, n: int | None = None, seed: int = 0) -> Screen:
    """Return a synthetic screen of crosses, query strains with an array, on a synthetic cell.

    On the cell ``redundancy`` it is pairs of its sources, by default all 7,140, and the truth
    behind it is `Redundancy`. On the others it is `Planted`, and there are 7,000 rows by default,
    or fewer on a cell too small for that.

    Queries are single genes and pairs of genes; half of the crosses or more are trigenic. Queries
    and array come from 16 pathways that back each other up in turn, which makes about a sixth of
    the crosses planted; most planted sets of the cell stay untested. Some crosses give no colony
    and no row. Three in a hundred rows repeat another row's genotype with noise of their own.
    """
    if (cell.synthetic_recipe or {}).get("name") == REDUNDANCY:
        return _redundancy_screen(cell, n, seed)
    planted = Planted.of(cell, seed)
    crosses = _crosses(plan_of(cell), n, seed)
    query_genes, query_offsets = crosses.query_genes, crosses.query_offsets
    rng = _generator(seed, "measurements")
    row = _rows(len(crosses.query), n, rng)
    query, array = crosses.query[row], crosses.array[row]
    sizes = np.diff(query_offsets)[query]
    offsets = offsets_of(sizes + 1)
    is_array = np.zeros(offsets[-1], dtype=bool)
    is_array[offsets[1:] - 1] = True
    genes = np.empty(offsets[-1], dtype=np.int64)
    genes[is_array] = array
    genes[~is_array] = query_genes[ragged_positions(query_offsets[:-1][query], sizes)]
    genotypes = Genotypes(torch.from_numpy(genes), torch.from_numpy(offsets))
    deviation = planted.noise * rng.uniform(0.5, 1.5, len(row)) / np.sqrt(13 / 12)
    score = (
        planted.effect(genotypes)
        + np.bincount(genotypes.owner.numpy(), planted.nuisance[genes])
        + deviation * rng.normal(size=len(row))
    )
    fitness = np.clip(1 - 0.12 * np.abs(_per_gene(cell, seed, "fitness")), 0.3, 1.0)
    query_sets = Genotypes(torch.from_numpy(query_genes), torch.from_numpy(query_offsets))
    query_fitness = np.multiply.reduceat(fitness[query_genes], query_offsets[:-1])
    query_fitness = np.clip(query_fitness + planted.effect(query_sets), 0.05, None)
    coverage = StudyCoverage(STUDY, query_genes, query_offsets, crosses.array_genes, complete=True)
    return Screen.build(
        cell.genes,
        genotypes,
        coverage=Coverage((coverage,)),
        synthetic={"cell": cell.synthetic_recipe, "n": len(row), "seed": seed},
        score=score.astype(np.float32),
        standard_deviation=deviation.astype(np.float32),
        p_value=erfc(np.abs(score) / deviation / np.sqrt(2)),
        query_fitness=query_fitness[query].astype(np.float32),
        array_fitness=fitness[array].astype(np.float32),
        study=STUDY,
        role=np.where(is_array, "array", "query"),
    )


def _redundancy_screen(cell: Cell, n: int | None, seed: int) -> Screen:
    """Return measured pairs of sources, all or some at random."""
    rng = _generator(seed, "redundancy")
    pairs = np.stack(np.triu_indices(N_SOURCES, 1), axis=1)
    wanted = len(pairs) if n is None else n
    _check_room(wanted, wanted, len(pairs))
    pairs = pairs[np.sort(rng.permutation(len(pairs))[:wanted])]
    # Either may be the query.
    pairs = np.where(rng.random(len(pairs))[:, None] < 0.5, pairs, pairs[:, ::-1])
    genes = torch.from_numpy(pairs.ravel().astype(np.int64))
    genotypes = Genotypes(genes, torch.arange(len(pairs) + 1) * 2)
    nuisance = _NUISANCE * _per_gene(cell, seed, "nuisance")
    deviation = np.full(len(pairs), _NOISE)
    effect = Redundancy.of(cell).effect(genotypes)
    score = effect + nuisance[pairs].sum(1) + _NOISE * rng.normal(size=len(pairs))
    sources = np.arange(N_SOURCES)
    coverage = StudyCoverage(STUDY, sources, np.arange(N_SOURCES + 1), sources, complete=n is None)
    return Screen.build(
        cell.genes,
        genotypes,
        coverage=Coverage((coverage,)),
        synthetic={"cell": cell.synthetic_recipe, "n": len(pairs), "seed": seed},
        score=score.astype(np.float32),
        standard_deviation=deviation.astype(np.float32),
        p_value=erfc(np.abs(score) / deviation / np.sqrt(2)),
        study=STUDY,
        role=np.tile(["query", "array"], len(pairs)),
    )


class _Crosses(NamedTuple):
    """Query sets, array genes, and each cross as a position in the one and a gene of the other."""

    query_genes: Ints
    query_offsets: Ints
    array_genes: Ints
    query: Ints
    array: Ints


def _crosses(plan: Plan, n: int | None, seed: int) -> _Crosses:
    rng = _generator(seed, "crosses")
    genes = _genes_in_use(plan, rng)
    wanted = _DEFAULT_ROWS if n is None else n
    _check_room(wanted, wanted, max(wanted, 1))
    distinct = int(np.ceil(wanted * (1 - _REPEATED) / (1 - _FAILED))) + 4
    n_array = int(min(len(genes) // 2, max(4, round(1.1 * distinct**0.5))))
    array = np.sort(rng.permutation(genes)[:n_array])
    singles, pairs = _query_order(plan, genes, array, rng)
    # A query cannot be crossed with its own genes, so it gives up to two crosses fewer.
    n_queries = int(np.ceil(distinct / max(n_array - 2, 1)))
    n_single = min(len(singles), max(1, n_queries // 2))
    n_pair = min(len(pairs), max(1, n_queries - n_single))
    query_genes = np.concatenate([singles[:n_single], pairs[:n_pair].ravel()])
    offsets = offsets_of(np.repeat([1, 2], [n_single, n_pair]))
    query = np.repeat(np.arange(n_single + n_pair), n_array)
    crossed = np.tile(array, n_single + n_pair)
    first = query_genes[offsets[:-1]][query]
    last = query_genes[offsets[1:] - 1][query]
    possible = (crossed != first) & (crossed != last)
    return _Crosses(query_genes, offsets, array, query[possible], crossed[possible])


def _genes_in_use(plan: Plan, rng: np.random.Generator) -> Ints:
    """Return the genes of pathways that follow each other in the ring of backups."""
    partners: dict[int, list[int]] = {}
    for p, q in plan.redundant.tolist():
        partners.setdefault(p, []).append(q)
        partners.setdefault(q, []).append(p)
    there = set(np.unique(plan.pathway).tolist())
    at = int(rng.choice(sorted(there)))
    chosen = [at]
    while len(chosen) < min(_PATHWAYS_IN_USE, len(there)):
        onward = [p for p in partners[at] if p in there and p not in chosen]
        at = onward[0] if onward else min(there.difference(chosen))
        chosen.append(at)
    return np.flatnonzero(np.isin(plan.pathway, chosen))


def _query_order(
    plan: Plan, genes: Ints, array: Ints, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return single genes and pairs of genes in the order in which they become queries.

    Of ten pairs, six are of one pathway, three of two that back each other up, and one of
    two that have nothing to do with each other. Genes that are not on the array come first.
    """
    one, other = genes[np.stack(np.triu_indices(len(genes), 1))]
    on_array = np.isin(one, array).astype(int) + np.isin(other, array)
    p, q = plan.pathway[one], plan.pathway[other]
    related = np.zeros((plan.n_pathways, plan.n_pathways), dtype=bool)
    related[tuple(plan.redundant.T)] = True
    kind = np.where(p == q, 0, np.where(related[p, q] | related[q, p], 1, 2))
    order = rng.permutation(len(one))
    order = order[np.argsort(on_array[order], kind="stable")]
    rank = np.empty(len(one))
    for k, share in enumerate((0.6, 0.3, 0.1)):
        mine = order[kind[order] == k]
        rank[mine] = (np.arange(len(mine)) + rng.random()) / share
    order = np.argsort(rank, kind="stable")
    singles = rng.permutation(genes)
    singles = singles[np.argsort(np.isin(singles, array), kind="stable")]
    return singles, np.stack([one, other], axis=1)[order]


def _rows(n_crosses: int, n: int | None, rng: np.random.Generator) -> Ints:
    """Return the cross that each row measures: most of them once, a few twice."""
    wanted = min(_DEFAULT_ROWS, n_crosses) if n is None else n
    n_distinct = wanted - round(_REPEATED * wanted)
    _check_room(wanted, n_distinct, n_crosses)
    grown = np.sort(rng.permutation(n_crosses)[:n_distinct])
    again = rng.permutation(grown)[: wanted - n_distinct]
    return np.sort(np.concatenate([grown, again]))


def _check_room(wanted: int, distinct: int, room: int) -> None:
    if not 1 <= distinct <= room:
        raise InputError(
            f"{wanted} rows were asked for, and this cell has room for 1 to {room}",
            code="no-room",
            fix="Ask for fewer, or take a cell with more genes.",
        )


def _per_gene(cell: Cell, seed: int, part: str) -> Doubles:
    """Return a standard normal number per gene that depends only on its name and the seed."""
    return np.array(
        [_generator(seed, f"{part} of {name}").normal() for name in cell.genes.systematic]
    )


def _generator(seed: int, part: str) -> np.random.Generator:
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be at least 0", code="invalid-number")
    return np.random.default_rng([seed, crc32(f"screen/{part}".encode())])
