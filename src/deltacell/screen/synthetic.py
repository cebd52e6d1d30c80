"""Synthetic screens with planted interactions, on which a model can be shown to learn."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import erfc

from deltacell.base.arrays import AnyArray, Doubles, Ints, offsets_of
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.cell.synthetic import (
    N_SOURCES,
    REDUNDANCY,
    ROUTES,
    SyntheticPlan,
    generator,
    plan_of,
)
from deltacell.screen.coverage import Coverage, StudyCoverage
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.screen import Screen

STUDY = "synthetic"

_CUT = 0.3  # the effect of cutting all routes to a gene
_WITHIN = (0.08, 0.20)  # the range of interactions within a pathway
_BETWEEN = (0.20, 0.40)  # and of those between two that back each other up, with a negative sign
_NUISANCE = 0.02
_NOISE = 0.05
_DEFAULT_ROWS = 7_000
_REPEATED = 0.03  # the share of rows that repeat another
_FAILED = 0.04  # the share of crosses that are not measured
_PATHWAYS_IN_USE = 16
_KINDS_OF_PAIRS = (0.6, 0.3, 0.1)  # of queries: of one pathway, of two related ones, of others


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
        first, second = plan.redundant.T
        strength = -rng.uniform(*_BETWEEN, len(plan.redundant))
        between[first, second] = strength
        between[second, first] = strength
        return cls(plan.pathway, within, between, _NUISANCE * _per_gene(cell, seed, "nuisance"))

    def effect(self, genotypes: Genotypes) -> Doubles:
        """Return the interaction of each genotype without nuisance and noise, [batch]."""
        genotypes.check(len(self.pathway))
        if not len(genotypes):
            return np.zeros(0)
        starts = genotypes.offsets.numpy()[:-1]
        sizes = genotypes.sizes.numpy()
        pathway = self.pathway[genotypes.genes.numpy()]
        lowest = np.minimum.reduceat(pathway, starts)
        highest = np.maximum.reduceat(pathway, starts)
        is_third = (pathway != np.repeat(lowest, sizes)) & (pathway != np.repeat(highest, sizes))
        hits_at_most_two = ~np.logical_or.reduceat(is_third, starts)
        inside = np.where(sizes > 1, self.within[lowest], 0.0)
        across = self.between[lowest, highest] * (1 + (sizes - 2) / 2)
        return np.where(lowest == highest, inside, np.where(hits_at_most_two, across, 0.0))


def redundancy_effect(cell: Cell, genotypes: Genotypes) -> Doubles:
    """Return the truth of a screen on the cell ``redundancy``, [batch].

    A set of two or more deletions has an interaction of -0.3 for each gene whose sources in the
    relation ``routes`` are exactly these genes: together they cut all routes to it.
    """
    routes = cell.relation(ROUTES)
    sources = np.split(routes.indices, routes.indptr[1:-1])
    n_cut = Counter(tuple(sorted(genes.tolist())) for genes in sources if len(genes) > 1)
    n_cut_by = [n_cut[tuple(sorted(genes.tolist()))] for genes in genotypes]
    return -_CUT * np.array(n_cut_by, dtype=np.float64)


def synthetic_screen(cell: Cell, *, n: int | None = None, seed: int = 0) -> Screen:
    """Return a synthetic screen of crosses of query strains with an array, on a synthetic cell.

    On the cell ``redundancy`` it contains pairs of sources, and the truth is `redundancy_effect`.
    On the others the truth is `Planted`: queries of one gene or two and an array from 16 pathways
    that back each other up in turn, so that about a sixth of the crosses is planted and most
    planted sets stay untested. 3 % of the rows repeat the genotype of another row.
    """
    has_routes = (cell.synthetic_recipe or {}).get("name") == REDUNDANCY
    measured = (_source_pairs if has_routes else _crosses)(cell, n, seed)
    columns = measured.columns
    deviations_from_0 = np.abs(columns["score"]) / columns["standard_deviation"]
    columns["p_value"] = erfc(deviations_from_0 / 2**0.5)
    return Screen.build(
        cell.genes,
        measured.genotypes,
        coverage=Coverage((measured.coverage,)),
        synthetic={"cell": cell.synthetic_recipe, "n": len(measured.genotypes), "seed": seed},
        study=STUDY,
        **columns,
    )


class _Measured(NamedTuple):
    """What was measured in a synthetic screen, and what was tested."""

    genotypes: Genotypes
    coverage: StudyCoverage
    columns: dict[str, Any]  # of the screen, see `Screen.build`


def _crosses(cell: Cell, n: int | None, seed: int) -> _Measured:
    """Measure most crosses of the queries with the array once, and a few twice."""
    planted = Planted.of(cell, seed)
    crosses = _possible_crosses(plan_of(cell), n, seed)
    rng = generator("screen", seed, "measurements")
    row = _measured_rows(len(crosses.query), n, rng)
    query = crosses.query[row]
    array = crosses.array[row]
    strains = _strains_of(crosses.queries.take(torch.from_numpy(query)), array)
    genotypes = strains.genotypes
    n_rows = len(genotypes)
    deviation = planted.noise * rng.uniform(0.5, 1.5, n_rows) / np.sqrt(13 / 12)
    noise = deviation * rng.normal(size=n_rows)
    fitness = np.clip(1 - 0.12 * np.abs(_per_gene(cell, seed, "fitness")), 0.3, 1.0)
    query_fitness = _query_fitness(fitness, planted, crosses.queries)
    columns = {
        "score": planted.effect(genotypes) + _nuisance_of(planted, genotypes) + noise,
        "standard_deviation": deviation,
        "query_fitness": query_fitness[query],
        "array_fitness": fitness[array],
        "role": strains.role,
    }
    coverage = StudyCoverage(
        STUDY,
        crosses.queries.genes.numpy(),
        crosses.queries.offsets.numpy(),
        crosses.arrays,
        complete=True,
    )
    return _Measured(genotypes, coverage, columns)


def _nuisance_of(planted: Planted, genotypes: Genotypes) -> Doubles:
    """Return the nuisance of each genotype, which is the sum over its genes, [batch]."""
    of_genes = planted.nuisance[genotypes.genes.numpy()]
    return np.bincount(genotypes.owner.numpy(), of_genes).astype(np.float64)


def _measured_rows(n_crosses: int, n: int | None, rng: np.random.Generator) -> Ints:
    """Return the cross of each row, ascending; a few crosses have two rows."""
    n_rows = min(_DEFAULT_ROWS, n_crosses) if n is None else n
    n_distinct = n_rows - round(_REPEATED * n_rows)
    _check_room(n_distinct, n_crosses)
    distinct = np.sort(rng.permutation(n_crosses)[:n_distinct])
    repeated = rng.permutation(distinct)[: n_rows - n_distinct]
    return np.sort(np.concatenate([distinct, repeated]))


class _Strains(NamedTuple):
    """Crossed strains, with the role of each gene."""

    genotypes: Genotypes
    role: AnyArray


def _strains_of(queries: Genotypes, array: Ints) -> _Strains:
    """Return the strains of queries that are crossed with a gene of the array each."""
    ends = queries.offsets[1:].numpy()
    genes = np.insert(queries.genes.numpy(), ends, array)
    role = np.insert(np.full(len(queries.genes), "query"), ends, "array")
    offsets = queries.offsets + torch.arange(len(queries) + 1)
    return _Strains(Genotypes(torch.from_numpy(genes), offsets), role)


def _query_fitness(fitness: Doubles, planted: Planted, queries: Genotypes) -> Doubles:
    """Return the fitness of each query strain: that of its genes multiplied, and their effect."""
    starts = queries.offsets.numpy()[:-1]
    expected = np.multiply.reduceat(fitness[queries.genes.numpy()], starts)
    measured: Doubles = np.clip(expected + planted.effect(queries), 0.05, None)
    return measured


def _source_pairs(cell: Cell, n: int | None, seed: int) -> _Measured:
    """Measure pairs of sources, all or some at random."""
    rng = generator("screen", seed, "redundancy")
    pairs = np.stack(np.triu_indices(N_SOURCES, 1), axis=1)
    n_rows = len(pairs) if n is None else n
    _check_room(n_rows, len(pairs))
    pairs = pairs[np.sort(rng.permutation(len(pairs))[:n_rows])]
    # Either may be the query.
    pairs = np.where(rng.random(len(pairs))[:, None] < 0.5, pairs, pairs[:, ::-1])
    genotypes = Genotypes(torch.from_numpy(pairs.ravel()), torch.arange(len(pairs) + 1) * 2)
    nuisance = _NUISANCE * _per_gene(cell, seed, "nuisance")
    effect = redundancy_effect(cell, genotypes) + nuisance[pairs].sum(1)
    sources = np.arange(N_SOURCES)
    offsets = np.arange(N_SOURCES + 1)
    columns = {
        "score": effect + _NOISE * rng.normal(size=len(pairs)),
        "standard_deviation": _NOISE,
        "role": np.tile(["query", "array"], len(pairs)),
    }
    coverage = StudyCoverage(STUDY, sources, offsets, sources, complete=n is None)
    return _Measured(genotypes, coverage, columns)


class _Crosses(NamedTuple):
    """The crosses of queries with an array that are possible."""

    queries: Genotypes
    arrays: Ints  # the array genes
    query: Ints  # the number of the query of each cross
    array: Ints  # its array gene

    @classmethod
    def of_all(cls, singles: Ints, pairs: Ints, array: Ints) -> _Crosses:
        """Return the crosses of queries, [n] and [n, 2], but none with a gene of the query."""
        query_genes = np.concatenate([singles, pairs.ravel()])
        offsets = offsets_of(np.repeat([1, 2], [len(singles), len(pairs)]))
        n_queries = len(offsets) - 1
        query = np.repeat(np.arange(n_queries), len(array))
        crossed = np.tile(array, n_queries)
        first = query_genes[offsets[:-1]][query]
        last = query_genes[offsets[1:] - 1][query]
        is_possible = (crossed != first) & (crossed != last)
        queries = Genotypes(torch.from_numpy(query_genes), torch.from_numpy(offsets))
        return cls(queries, array, query[is_possible], crossed[is_possible])


def _possible_crosses(plan: SyntheticPlan, n: int | None, seed: int) -> _Crosses:
    """Return the crosses for a screen of n rows, by default of 7,000."""
    rng = generator("screen", seed, "crosses")
    genes = _genes_in_use(plan, rng)
    n_rows = _DEFAULT_ROWS if n is None else n
    _check_room(n_rows, max(n_rows, 1))
    n_distinct = int(np.ceil(n_rows * (1 - _REPEATED) / (1 - _FAILED))) + 4
    n_array = int(min(len(genes) // 2, max(4, round(1.1 * n_distinct**0.5))))
    array = np.sort(rng.permutation(genes)[:n_array])
    singles, pairs = _query_order(plan, genes, array, rng)
    # A query cannot be crossed with its own genes, so it gives up to two crosses fewer.
    n_queries = int(np.ceil(n_distinct / max(n_array - 2, 1)))
    n_single = min(len(singles), max(1, n_queries // 2))
    n_pair = min(len(pairs), max(1, n_queries - n_single))
    return _Crosses.of_all(singles[:n_single], pairs[:n_pair], array)


def _genes_in_use(plan: SyntheticPlan, rng: np.random.Generator) -> Ints:
    """Return the genes of pathways that follow each other in the ring of backups."""
    partners: dict[int, list[int]] = {}
    for first, second in plan.redundant.tolist():
        partners.setdefault(first, []).append(second)
        partners.setdefault(second, []).append(first)
    pathways = set(np.unique(plan.pathway).tolist())
    current = int(rng.choice(sorted(pathways)))
    chosen = [current]
    while len(chosen) < min(_PATHWAYS_IN_USE, len(pathways)):
        onward = [p for p in partners[current] if p in pathways and p not in chosen]
        current = onward[0] if onward else min(pathways.difference(chosen))
        chosen.append(current)
    return np.flatnonzero(np.isin(plan.pathway, chosen))


def _query_order(
    plan: SyntheticPlan,
    genes: Ints,
    array: Ints,
    rng: np.random.Generator,
) -> tuple[Ints, Ints]:
    """Return single genes and pairs of genes in the order in which they become queries.

    Of ten pairs, six are of one pathway and three of two that back each other up.
    """
    pairs = genes[np.stack(np.triu_indices(len(genes), 1), axis=1)]
    n_on_array = np.isin(pairs, array).sum(axis=1)
    kind = _kinds_of_pairs(plan, pairs)
    order = rng.permutation(len(pairs))
    order = order[np.argsort(n_on_array[order], kind="stable")]
    rank = np.empty(len(pairs))
    for number, share in enumerate(_KINDS_OF_PAIRS):
        of_kind = order[kind[order] == number]
        rank[of_kind] = (np.arange(len(of_kind)) + rng.random()) / share
    singles = rng.permutation(genes)
    singles = singles[np.argsort(np.isin(singles, array), kind="stable")]
    return singles, pairs[np.argsort(rank, kind="stable")]


def _kinds_of_pairs(plan: SyntheticPlan, pairs: Ints) -> Ints:
    """Return 0 for a pair of one pathway, 1 for two that back each other up, 2 for others."""
    is_related = np.zeros((plan.n_pathways, plan.n_pathways), dtype=bool)
    is_related[tuple(plan.redundant.T)] = True
    first, second = plan.pathway[pairs].T
    back_each_other_up = is_related[first, second] | is_related[second, first]
    return np.where(first == second, 0, np.where(back_each_other_up, 1, 2))


def _check_room(n_distinct: int, room: int) -> None:
    """Raise if a number of different rows is not from 1 to `room`."""
    if not 1 <= n_distinct <= room:
        message = f"cannot make {n_distinct} rows; this cell has room for 1 to {room}"
        raise InputError(message, code="no-room")


def _per_gene(cell: Cell, seed: int, part: str) -> Doubles:
    """Return a standard normal number per gene that depends only on its name and the seed."""
    generators = [generator("screen", seed, f"{part} of {name}") for name in cell.genes.systematic]
    return np.array([rng.normal() for rng in generators])
