"""Synthetic screens with planted interactions, on which a model can be shown to learn."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import erfc

from deltacell.base.arrays import Doubles, Ints, offsets_of
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.cell.synthetic import N_SOURCES, REDUNDANCY, ROUTES, Plan, generator, plan_of
from deltacell.screen.coverage import Coverage, StudyCoverage
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.screen import Screen

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
    """The truth of a synthetic screen: a function of sets of genes, not a sum over genes.

    With H the pathways that a genotype S hits, its interaction is

    - ``within[p] > 0`` if H = {p} and S has two genes or more: the pathway is already broken;
    - ``between[p, q] * (1 + (|S| - 2) / 2) < 0`` if H = {p, q} and the two back each other up:
      the cell loses both, and a third gene makes it worse;
    - 0 otherwise, also if a gene of an unrelated pathway joins such a set.

    A measured score is the interaction, plus `nuisance` summed over the deleted genes, plus noise.
    """

    pathway: Ints  # of each gene, [n_genes]
    within: Doubles  # [n_pathways]
    between: Doubles  # symmetric, 0 if two do not back each other up, [n_pathways, n_pathways]
    nuisance: Doubles  # added by each gene to the score of any genotype, [n_genes]
    noise: float = _NOISE  # standard deviation over all measurements

    @classmethod
    def of(cls, cell: Cell, seed: int = 0) -> Planted:
        """Return the truth of the screen with this seed on this synthetic cell."""
        plan = plan_of(cell)
        rng = generator("screen", seed, "interactions")
        within = rng.uniform(*_WITHIN, plan.n_pathways)
        between = np.zeros((plan.n_pathways, plan.n_pathways))
        p, q = plan.redundant.T
        between[p, q] = between[q, p] = -rng.uniform(*_BETWEEN, len(plan.redundant))
        return cls(plan.pathway, within, between, _NUISANCE * _per_gene(cell, seed, "nuisance"))

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
        return np.where(lowest == highest, inside, np.where(at_most_two, across, 0.0))


def redundancy_effect(cell: Cell, genotypes: Genotypes) -> Doubles:
    """Return the truth of a screen on the cell ``redundancy``, [batch].

    A set of two or more deletions has an interaction of -0.3 for each gene whose sources in the
    relation ``routes`` are exactly these genes: together they cut all routes to it.
    """
    routes = cell.relation(ROUTES)
    sources = np.split(routes.indices, routes.indptr[1:-1])
    cut = Counter(tuple(sorted(genes.tolist())) for genes in sources if len(genes) > 1)
    times = [cut[tuple(sorted(genes.tolist()))] for genes in genotypes]
    return -_CUT * np.array(times, dtype=np.float64)


def synthetic_screen(cell: Cell, *, n: int | None = None, seed: int = 0) -> Screen:
    """Return a synthetic screen of crosses of query strains with an array, on a synthetic cell.

    On the cell ``redundancy`` it contains pairs of sources, and the truth is `redundancy_effect`.
    On the others the truth is `Planted`: queries of one gene or two and an array from 16 pathways
    that back each other up in turn, so that about a sixth of the crosses is planted and most
    planted sets stay untested. 3 % of the rows repeat the genotype of another row.
    """
    of_routes = (cell.synthetic_recipe or {}).get("name") == REDUNDANCY
    genotypes, coverage, columns = (_source_pairs if of_routes else _crosses)(cell, n, seed)
    columns["p_value"] = erfc(np.abs(columns["score"]) / columns["standard_deviation"] / 2**0.5)
    return Screen.build(
        cell.genes,
        genotypes,
        coverage=Coverage((coverage,)),
        synthetic={"cell": cell.synthetic_recipe, "n": len(genotypes), "seed": seed},
        study=STUDY,
        **columns,
    )


def _crosses(
    cell: Cell,
    n: int | None,
    seed: int,
) -> tuple[Genotypes, StudyCoverage, dict[str, Any]]:
    """Measure most crosses of the queries with the array once, and a few twice."""
    planted = Planted.of(cell, seed)
    queries, arrays, query, array = _possible_crosses(plan_of(cell), n, seed)
    rng = generator("screen", seed, "measurements")
    wanted = min(_DEFAULT_ROWS, len(query)) if n is None else n
    n_distinct = wanted - round(_REPEATED * wanted)
    _check_room(n_distinct, len(query))
    grown = np.sort(rng.permutation(len(query))[:n_distinct])
    row = np.sort(np.concatenate([grown, rng.permutation(grown)[: wanted - n_distinct]]))
    query, array = query[row], array[row]
    query_genes, query_offsets = queries.genes.numpy(), queries.offsets.numpy()
    of_queries = queries.take(torch.from_numpy(query))
    ends = of_queries.offsets[1:].numpy()
    genes = np.insert(of_queries.genes.numpy(), ends, array)
    offsets = of_queries.offsets + torch.arange(len(row) + 1)
    genotypes = Genotypes(torch.from_numpy(genes), offsets)
    deviation = planted.noise * rng.uniform(0.5, 1.5, len(row)) / np.sqrt(13 / 12)
    nuisance = np.bincount(genotypes.owner.numpy(), planted.nuisance[genes])
    fitness = np.clip(1 - 0.12 * np.abs(_per_gene(cell, seed, "fitness")), 0.3, 1.0)
    query_fitness = np.multiply.reduceat(fitness[query_genes], query_offsets[:-1])
    query_fitness = np.clip(query_fitness + planted.effect(queries), 0.05, None)
    return (
        genotypes,
        StudyCoverage(STUDY, query_genes, query_offsets, arrays, complete=True),
        {
            "score": planted.effect(genotypes) + nuisance + deviation * rng.normal(size=len(row)),
            "standard_deviation": deviation,
            "query_fitness": query_fitness[query],
            "array_fitness": fitness[array],
            "role": np.insert(np.full(len(of_queries.genes), "query"), ends, "array"),
        },
    )


def _source_pairs(
    cell: Cell,
    n: int | None,
    seed: int,
) -> tuple[Genotypes, StudyCoverage, dict[str, Any]]:
    """Measure pairs of sources, all or some at random."""
    rng = generator("screen", seed, "redundancy")
    pairs = np.stack(np.triu_indices(N_SOURCES, 1), axis=1)
    wanted = len(pairs) if n is None else n
    _check_room(wanted, len(pairs))
    pairs = pairs[np.sort(rng.permutation(len(pairs))[:wanted])]
    # Either may be the query.
    pairs = np.where(rng.random(len(pairs))[:, None] < 0.5, pairs, pairs[:, ::-1])
    genotypes = Genotypes(torch.from_numpy(pairs.ravel()), torch.arange(len(pairs) + 1) * 2)
    nuisance = _NUISANCE * _per_gene(cell, seed, "nuisance")
    effect = redundancy_effect(cell, genotypes) + nuisance[pairs].sum(1)
    each, offsets = np.arange(N_SOURCES), np.arange(N_SOURCES + 1)
    return (
        genotypes,
        StudyCoverage(STUDY, each, offsets, each, complete=n is None),
        {
            "score": effect + _NOISE * rng.normal(size=len(pairs)),
            "standard_deviation": _NOISE,
            "role": np.tile(["query", "array"], len(pairs)),
        },
    )


def _possible_crosses(plan: Plan, n: int | None, seed: int) -> tuple[Genotypes, Ints, Ints, Ints]:
    """Return query sets, array genes, and each cross as a query's number and an array gene."""
    rng = generator("screen", seed, "crosses")
    genes = _genes_in_use(plan, rng)
    wanted = _DEFAULT_ROWS if n is None else n
    _check_room(wanted, max(wanted, 1))
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
    queries = Genotypes(torch.from_numpy(query_genes), torch.from_numpy(offsets))
    return queries, array, query[possible], crossed[possible]


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
    plan: Plan,
    genes: Ints,
    array: Ints,
    rng: np.random.Generator,
) -> tuple[Ints, Ints]:
    """Return single genes and pairs of genes in the order in which they become queries.

    Of ten pairs, six are of one pathway and three of two that back each other up.
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


def _check_room(distinct: int, room: int) -> None:
    if not 1 <= distinct <= room:
        what = f"cannot make {distinct} rows; this cell has room for 1 to {room}"
        raise InputError(what, code="no-room")


def _per_gene(cell: Cell, seed: int, part: str) -> Doubles:
    """Return a standard normal number per gene that depends only on its name and the seed."""
    return np.array(
        [generator("screen", seed, f"{part} of {name}").normal() for name in cell.genes.systematic],
    )
