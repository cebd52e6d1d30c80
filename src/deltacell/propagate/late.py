r"""The strategy `late`: deletions that a single hop sees, at the price of the rows they touch.

For a function f of sets, the *interaction* of a set S is
``F(S) = sum over T in S of (-1)^(|S| - |T|) f(T)``, so that ``f(S) = sum over T in S of F(T)``; for
a pair of deletions, ``f(ab) - f(a) - f(b) + f()``. With f = z, F is epistasis: the part of z that
no smaller set of deletions explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from deltacell.errors import InputError
from deltacell.propagate.hop import (
    ALL,
    GENE,
    Hop,
    Readout,
    State,
    WildPool,
    pool_changes,
    wild_pool,
)
from deltacell.propagate.protocol import Deleted, Mutants, Smaller, WildType
from deltacell.propagate.shared import CPU_ROWS_AT_A_TIME, check_at_least, wild_type_in_parts
from deltacell.propagate.touched import Interactions, Removed, Shares, Touched, Units, touched_by
from deltacell.propagate.workers import Pieces, row_wise, workers_for
from deltacell.screen import Genotypes


def is_late(hops: Sequence[Hop]) -> bool:
    """Whether mutants see a single hop, in which genes hear from genes over plain relations."""
    return len(hops) == 1 and all(
        a.source == GENE == hops[0].target and a.matrix.values is None for a in hops[0].aggregates
    )


@dataclass(frozen=True)
class Late:
    r"""The units of `touched_by` and nothing else.

    In ``z = N / (1 + D)``, see `pool_changes`, rows that a deletion does not touch add nothing to
    either sum, and what a row adds depends on the deletions that touch it alone. So both sums are
    found once for each gene of the batch; a set adds those of its genes, and corrects them on the
    rows that two or more of them touch. There the interactions of both sums are formed row by row
    in float64, which gives `epistasis`, see `interaction_of_quotient`.

    Parameters
    ----------
    workers
        Threads. Where not given, on a CPU as many as PyTorch may use; elsewhere one.
    rows_at_a_time
        How many rows go through a row-wise function together.
    """

    workers: int | None = None
    rows_at_a_time: int = CPU_ROWS_AT_A_TIME

    def __post_init__(self) -> None:
        check_at_least(workers=(self.workers, 1), rows_at_a_time=(self.rows_at_a_time, 1))

    name = "late"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Touched:
        """Find on the host which rows each deletion touches."""
        if not is_late(hops):
            raise InputError(
                "the propagation 'late' is for mutants that see one layer over the relations",
                code="not-late",
                fix="Set model.mutant_layers=1 and model.metabolism=false, or propagation=auto.",
            )
        return touched_by(hops[0], deleted.to("cpu"))

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, and keep what lies between its vectors."""
        return wild_type_in_parts(hops, state, self._pieces(state[GENE].device))

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate what the deletions touch."""
        last = wild_type.last[GENE]
        if not isinstance(deleted, Touched):
            deleted = self.prepare(hops, deleted).to(last.device)
        if not wild_type.sums:
            wild_type = self.wild_type(hops, wild_type.first)
        units, pieces = deleted.units, self._pieces(last.device)
        pool = wild_pool(readout.terms(last, ALL))
        new = _new_vectors(hops[0], wild_type, units, pieces)

        def added(
            vectors: torch.Tensor, *others: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            *of_wild_type, rows = others
            return pool_changes(readout.terms(vectors, rows), *of_wild_type)

        inputs = [new, units.living.to(pool.weight.dtype), *pool.at(units.rows)]
        n, d = row_wise(added, units.rows, inputs, list(readout.parameters()), pieces)
        gene_n, whole_n = _add_up(n, deleted)
        gene_d, whole_d = _add_up(d, deleted)
        epistasis = None
        if deleted.shares is not None:
            of_gene = gene_n, gene_d
            epistasis = _epistasis(
                hops[0], readout, wild_type, deleted.shares, pool, of_gene, len(deleted), pieces
            )
        total = 1 + whole_d
        if deleted.whole is None:
            z = whole_n / total.to(n.dtype).unsqueeze(1)
        else:
            # A mutant without a living gene has an empty pool.
            z = whole_n / total.masked_fill(deleted.whole, 1).to(n.dtype).unsqueeze(1)
            z = torch.where(deleted.whole.unsqueeze(1), pool.pooled, z)
        return Mutants(z, pool.pooled, _vectors(last, new, deleted) if vectors else None, epistasis)

    def _pieces(self, device: torch.device) -> Pieces:
        return Pieces(self.rows_at_a_time, self.workers or workers_for(device, 1 << 20))


def _new_vectors(hop: Hop, wild: WildType, units: Units, pieces: Pieces) -> torch.Tensor:
    """Return the vectors of units after the hop, [u, hidden]."""
    x, sums, last = wild.first[GENE], wild.sums[0], wild.last[GENE]
    heard = [_heard(hop, k, x, sums[k], removed) for k, removed in enumerate(units.removed)]
    if hop.messages is None:
        received = []
        for a, of_wild, found, removed in zip(
            hop.aggregates, sums, heard, units.removed, strict=True
        ):
            before = (of_wild * a.scale(of_wild) if a.mean else of_wild).index_select(0, units.rows)
            now = found if removed.new is None else found.index_select(0, removed.new)
            received.append(before.index_copy(0, removed.units, now))
        return hop.apply(units.rows, x.index_select(0, units.rows), received, pieces)
    vectors = last.index_select(0, units.rows)
    for k, (message, removed) in enumerate(zip(hop.messages, units.removed, strict=True)):
        new = message.apply(removed.rows, x.index_select(0, removed.rows), heard[k], pieces)
        if removed.new is None or removed.old is None:
            old = wild.messages[0][k].index_select(0, removed.rows)
        else:
            old = new.index_select(0, removed.old)
            new = new.index_select(0, removed.new)
        vectors = vectors.index_add_(0, removed.units, (new - old).to(vectors.dtype))
    return vectors


def _heard(hop: Hop, k: int, x: torch.Tensor, sums: torch.Tensor, removed: Removed) -> torch.Tensor:
    """Return what rows receive over a relation without the deleted genes, [m, hidden]."""
    heard = sums.index_select(0, removed.rows)
    gone = x.index_select(0, removed.genes).to(heard.dtype)
    heard = heard.index_add_(0, removed.entry, gone, alpha=-1)
    if hop.aggregates[k].mean:
        heard = heard * removed.left.clamp(min=1).to(heard.dtype).reciprocal().unsqueeze(1)
    return heard


def _add_up(x: torch.Tensor, touched: Touched) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what units add [u, ...] for each gene [g, ...] and each genotype [b, ...]."""
    singles = len(touched.of_gene)
    of_gene = x.new_zeros(len(touched.genes), *x.shape[1:])
    of_gene = of_gene.index_add(0, touched.of_gene, x[:singles])
    whole = x.new_zeros(len(touched), *x.shape[1:])
    whole = whole.index_add(0, touched.owner, of_gene.index_select(0, touched.members))
    whole = whole.index_add(0, touched.joint_owner, x[singles:])
    instead = x.index_select(0, touched.instead)
    return of_gene, whole.index_add(0, touched.instead_owner, instead, alpha=-1)


def _vectors(last: torch.Tensor, new: torch.Tensor, touched: Touched) -> torch.Tensor:
    """Return the genes' vectors in every mutant, [b, n, hidden]."""
    made = last.expand(len(touched), *last.shape).clone()
    new = new.masked_fill(~touched.units.living.unsqueeze(1), 0)
    for b, member in zip(touched.owner.tolist(), touched.members.tolist(), strict=True):
        units = slice(*touched.gene_starts[member : member + 2].tolist())
        made[b, touched.units.rows[units]] = new[units]
    singles = len(touched.of_gene)
    made[touched.joint_owner, touched.units.rows[singles:]] = new[singles:]
    return made


def _epistasis(
    hop: Hop,
    readout: Readout,
    wild: WildType,
    shares: Shares,
    pool: WildPool,
    of_gene: tuple[torch.Tensor, torch.Tensor],
    batch: int,
    pieces: Pieces,
) -> torch.Tensor:
    """Return the part of z that no smaller set explains, float64 [b, hidden].

    `of_gene` is N [g, hidden] and D [g] of single genes.
    """
    units = shares.units
    states = tuple({GENE: state[GENE].double()} for state in wild.states)
    wide = WildType(states, (tuple(x.double() for x in wild.sums[0]),))
    with torch.autocast(pool.value.device.type, enabled=False):
        vectors = _new_vectors(hop.in_float64(), wide, units, pieces)
        terms = readout.in_float64()(vectors, units.rows)
        weight = (terms.gate - pool.total).exp().masked_fill(~units.living, 0)
        value = weight.unsqueeze(1) * (pool.pooled.double() - terms.value)
        result = value.new_zeros(batch, value.shape[1])
        for sets in shares.of_size:
            d = _interactions(sets, weight.unsqueeze(1), of_gene[1].unsqueeze(1)).squeeze(2)
            n = _interactions(sets, value, of_gene[0].double())
            result = result.index_copy(0, sets.genotypes, interaction_of_quotient(n, d))
    return result


def _interactions(sets: Interactions, x: torch.Tensor, of_gene: torch.Tensor) -> torch.Tensor:
    """Return the interactions of a sum over rows for all subsets, [b, 2^k, width].

    From what units add [u, width], and for single genes from their sums [g, width].
    """
    b, k = sets.genes.shape
    found = x.new_zeros(b << k, x.shape[1])
    for size, (units, places) in enumerate(sets.subsets, 2):
        signs = [(-1.0) ** (size - subset.bit_count()) for subset in range(1 << size)]
        sign = torch.tensor(signs, dtype=x.dtype, device=x.device).view(1, -1, 1)
        found = found.index_add(0, places, (x[units] * sign).sum(1))
    genotype = torch.arange(b, device=x.device).unsqueeze(1)
    at = (genotype * (1 << k) + (1 << torch.arange(k, device=x.device))).flatten()
    found = found.index_copy(0, at, of_gene.index_select(0, sets.genes.flatten()))
    return found.view(b, 1 << k, -1)


def interaction_of_quotient(n: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    r"""Return the interaction of ``N / D`` for whole sets, from the interactions of N and D.

    With u = 1 / D, the interaction of a product is
    ``(N u)(S) = sum over A, B with union S of N(A) u(B)``. That of ``u D``, which is 1, is 0 for
    every set but the empty one, and so ``u(S) = -1 / D_S * sum over A, B with union S, A not S, of
    u(A) D(B)`` with ``D_S = sum over B in S of D(B)``. No term is a difference of larger numbers.
    """
    n_subsets = d.shape[1]
    zero, one = torch.zeros_like(d[:, 0]), torch.ones_like(d[:, 0])
    parts = [one, *d[:, 1:].unbind(1)]
    inverse = [one]
    for s in range(1, n_subsets):
        inside = [b for b in range(n_subsets) if b & s == b]
        pairs = [(a, b) for a in inside if a != s for b in inside if b and a | b == s]
        found = sum((inverse[a] * parts[b] for a, b in pairs), zero)
        inverse.append(-found / sum((parts[b] for b in inside), zero))
    result = torch.zeros_like(n[:, 0])
    for a in range(1, n_subsets):
        weight = sum((inverse[b] for b in range(n_subsets) if a | b == n_subsets - 1), zero)
        result = result + weight.unsqueeze(1) * n[:, a]
    return result


def smaller_sets(genotypes: Genotypes, prepare: Callable[[Genotypes], Deleted]) -> Smaller:
    """Return all non-empty subsets of genotypes, each once, and how they add up to epistasis."""
    number: dict[tuple[int, ...], int] = {}
    subset, owner, sign = [], [], []
    for b, genes in enumerate(genotypes):
        whole = sorted(genes.tolist())
        for size in range(1, len(whole) + 1 if len(whole) > 1 else 1):
            for chosen in combinations(whole, size):
                subset.append(number.setdefault(chosen, len(number)))
                owner.append(b)
                sign.append((-1.0) ** (len(whole) - size))
    return Smaller(
        prepare(Genotypes.of(number)),
        torch.tensor(subset, dtype=torch.int64),
        torch.tensor(owner, dtype=torch.int64),
        torch.tensor(sign, dtype=torch.float64),
    )


def by_difference(z: torch.Tensor, smaller: Smaller, batch: int) -> torch.Tensor:
    """Return epistasis, float64 [batch, hidden], by taking the z of subsets from each other.

    Right in float64. In float32 it is about the size of the rounding of z.
    """
    terms = smaller.sign.unsqueeze(1) * z.double().index_select(0, smaller.subset)
    return terms.new_zeros(batch, z.shape[1]).index_add(0, smaller.owner, terms)
