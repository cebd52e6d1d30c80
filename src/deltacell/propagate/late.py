r"""The strategy `late`: deletions that a single hop sees, at the price of the rows they touch.

For a function f of sets, the *interaction* of a set S is
``F(S) = sum over T in S of (-1)^(|S| - |T|) f(T)``, so that ``f(S) = sum over T in S of F(T)``; for
a pair of deletions, ``f(ab) - f(a) - f(b) + f()``. With f = z, F is epistasis: the part of z that
no smaller set of deletions explains.

A row is *touched* by a gene that it hears from over some relation, and by its own deletion. What a
row becomes in a mutant depends only on those deleted genes that touch it. So the unit of work is a
row together with deleted genes that touch it: mutants that share a gene share its units, and a set
of genes needs units of its own only on rows that two or more of its genes touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor
from torch.nn import functional

from deltacell.arrays import Ints, offsets_of, ragged_positions
from deltacell.errors import InputError
from deltacell.propagate.base import Batch, Deleted, Mutants, Propagation, WildType
from deltacell.propagate.delta import CPU_ROWS_AT_A_TIME, wild_type_in_parts
from deltacell.propagate.hop import GENE, Aggregate, Hop, State
from deltacell.propagate.pool import pool_changes
from deltacell.propagate.product import SparseMatrix, kept_with
from deltacell.propagate.workers import Pieces, row_wise, workers_for

MOST_GENES = 5
"""Genes of a set at most: a set of k has 2^k subsets."""


@dataclass(frozen=True, eq=False)
class Removed:
    """What m rows no longer hear over one relation; all int64."""

    genes: Tensor  # the genes no longer heard from, [e]
    entry: Tensor  # and which of the m that is, ascending, [e]
    left: Tensor  # how many genes each row still hears from, [m]


@dataclass(frozen=True, eq=False)
class Again:
    """Rows for which a message is computed again; all int64."""

    rows: Tensor  # the gene whose row each is, [m]
    removed: tuple[Removed, ...]  # one per relation of the message
    units: Tensor  # which units change
    # The places among the m of what they receive now and before; without them, the former are all
    # of the m, and the latter is the wild type's.
    new: Tensor | None = None
    old: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Units:
    """Rows, each with deleted genes that touch it."""

    rows: Tensor  # the gene whose vector it is, int64 [u]
    living: Tensor  # whether that gene is not itself deleted, bool [u]
    messages: tuple[Again, ...]


@dataclass(frozen=True, eq=False)
class Sets:
    """The genotypes of a batch with equally many genes, k; all int64."""

    genotypes: Tensor  # [b]
    genes: Tensor  # theirs, as numbers among those of the batch, [b, k]
    # For each size s from 2 to k: the units of a row with all 2^s subsets of s genes that touch it,
    # as `_shared_units` numbers them, [m, 2^s], and the place ``genotype * 2^k + subset`` that it
    # adds to, [m].
    subsets: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, eq=False)
class Touched:
    """The units that a batch takes."""

    single: Units  # of each deleted gene alone, gene after gene
    starts: Tensor  # where those of each gene begin, and the end, int64 [g + 1]
    # Rows that several genes of a set touch, with each subset of these genes; only with those of
    # two and more where no epistasis is wanted.
    shared: Units
    sets: tuple[Sets, ...]


def is_late(hops: Sequence[Hop]) -> bool:
    """Whether mutants see a single hop, in which genes hear from genes over plain relations.

    At most 62 of them, for the relations that touch a row are bits of one number.
    """
    over = [(hop.target, a.source, a.matrix.values is None) for hop in hops for a in hop.aggregates]
    return len(hops) == 1 and len(over) <= 62 and set(over) == {(GENE, GENE, True)}


@dataclass(frozen=True)
class Late(Propagation):
    r"""The units of `touched_by` and nothing else.

    In ``z = N / (1 + D)``, see `pool_changes`, rows that a deletion does not touch add nothing to
    either sum, and what a row adds depends on the deletions that touch it alone. So both sums are
    found once for each gene of the batch; a set adds those of its genes, and the interactions on
    the rows that two or more of them touch. For `epistasis` these are formed in float64, see
    `interaction_of_quotient`. The options are those of `Shared`.
    """

    workers: int | None = None
    rows_at_a_time: int = CPU_ROWS_AT_A_TIME
    name: ClassVar[str] = "late"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        if not is_late(hops):
            what = "the propagation 'late' is for mutants that see one layer over the relations"
            fix = "Set model.mutant_layers=1 and model.metabolism=false, or propagation=auto."
            raise InputError(what, code="not-late", fix=fix)
        return replace(deleted, plan=touched_by(hops[0], deleted.to("cpu")))

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        return wild_type_in_parts(hops, state, self._pieces(state[GENE].device))

    def _mutants(self, batch: Batch) -> Mutants:
        touched: Touched = batch.deleted.plan
        pieces, wide = self._pieces(batch.pool.value.device), batch.deleted.epistasis
        n, d = _added(batch, touched.single, pieces)
        numbers = torch.arange(len(touched.starts) - 1, device=n.device)
        owner = torch.repeat_interleave(numbers, touched.starts.diff(), output_size=len(n))
        single_n, single_d = (
            x.new_zeros(len(numbers), x.shape[1]).index_add(0, owner, x) for x in (n, d)
        )
        added: Sequence[Tensor] = _added(batch, touched.shared, pieces, wide=wide)
        if not wide:
            each = zip((n, d), added, strict=True)
            added = [functional.pad(torch.cat(both), (0, 0, 0, 1)) for both in each]
        n, d = added
        z, epistasis = n.new_zeros(2, len(batch.deleted), n.shape[1]).unbind()
        for sets in touched.sets:
            of_n, of_d = _interactions(sets, n, single_n), _interactions(sets, d, single_d)
            quotient = of_n.sum(1) / (1 + of_d.sum(1)).to(n.dtype)
            z = z.index_copy(0, sets.genotypes, quotient)
            if wide and sets.subsets:
                found = interaction_of_quotient(of_n, of_d.squeeze(2))
                epistasis = epistasis.index_copy(0, sets.genotypes, found)
        dtype = batch.wild_type.last[GENE].dtype
        return Mutants(z.to(dtype), batch.pool.pooled, epistasis if wide else None)

    def _pieces(self, device: torch.device) -> Pieces:
        return Pieces(self.rows_at_a_time, self.workers or workers_for(device, 1 << 20))


def _added(
    batch: Batch, units: Units, pieces: Pieces, *, wide: bool = False
) -> tuple[Tensor, Tensor]:
    """Return what units add to N, [u, hidden], and D [u, 1]; where it is `wide`, in float64."""
    hop, wild, terms = batch.hops[0], batch.wild_type, batch.readout.terms
    parameters = list(batch.readout.parameters())
    around: AbstractContextManager[object] = nullcontext()
    given = [units.living.to(batch.pool.weight.dtype), *batch.pool.at(units.rows)]
    if wide:
        hop, terms = hop.in_float64(), batch.readout.in_float64()
        given = [x.double() for x in given]
        states = tuple({GENE: state[GENE].double()} for state in wild.states)
        wild = WildType(states, (tuple(tuple(x.double() for x in m) for m in wild.sums[0]),))
        around = torch.autocast(batch.pool.value.device.type, enabled=False)
    with around:
        vectors = _new_vectors(hop, wild, units, pieces)
        n, d = row_wise(
            lambda own, *others: pool_changes(terms(own, others[-1]), *others[:-1]),
            units.rows,
            [vectors, *given],
            parameters,
            Pieces(None) if wide else pieces,
        )
    return n, d.unsqueeze(1)


def _new_vectors(hop: Hop, wild: WildType, units: Units, pieces: Pieces) -> Tensor:
    x, vectors = wild.first[GENE], wild.last[GENE].index_select(0, units.rows)
    for k, (message, again) in enumerate(zip(hop.messages, units.messages, strict=True)):
        each = zip(message.aggregates, wild.sums[0][k], again.removed, strict=True)
        heard = [_heard(a, x, sums.index_select(0, again.rows), gone) for a, sums, gone in each]
        made = message.apply(again.rows, x.index_select(0, again.rows), heard, pieces)
        new = made if again.new is None else made.index_select(0, again.new)
        if again.old is not None:
            old = made.index_select(0, again.old)
        else:
            old = wild.messages[0][k].index_select(0, units.rows.index_select(0, again.units))
        vectors = vectors.index_add_(0, again.units, (new - old).to(vectors.dtype))
    return vectors


def _heard(a: Aggregate, x: Tensor, sums: Tensor, removed: Removed) -> Tensor:
    """Return what rows receive over a relation without the deleted genes, [m, hidden]."""
    gone = x.index_select(0, removed.genes).to(sums.dtype)
    heard = sums.index_add_(0, removed.entry, gone, alpha=-1)
    if a.mean:
        heard = heard * removed.left.clamp(min=1).to(heard.dtype).reciprocal().unsqueeze(1)
    return heard


def _interactions(sets: Sets, x: Tensor, of_gene: Tensor) -> Tensor:
    """Return the interactions of a sum over rows for all subsets, [b, 2^k, width].

    From what shared units add [u, width], and for single genes from their sums [g, width].
    """
    b, k = sets.genes.shape
    found = x.new_zeros(b << k, x.shape[1])
    for size, (units, places) in enumerate(sets.subsets, 2):
        signs = [(-1.0) ** (size - subset.bit_count()) for subset in range(1 << size)]
        sign = torch.tensor(signs, dtype=x.dtype, device=x.device).view(1, -1, 1)
        found = found.index_add(0, places, (x[units] * sign).sum(1))
    genotype = torch.arange(b, device=x.device).unsqueeze(1)
    at = (genotype * (1 << k) + (1 << torch.arange(k, device=x.device))).flatten()
    alone = of_gene.index_select(0, sets.genes.flatten()).to(x.dtype)
    return found.index_copy(0, at, alone).view(b, 1 << k, -1)


def interaction_of_quotient(n: Tensor, d: Tensor) -> Tensor:
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


class _Index(NamedTuple):
    """The rows that each gene of a cell touches, ascending, and over which relations."""

    n: int
    starts: Ints  # where the rows of each gene begin, and the end
    rows: Ints
    mask: Ints  # bit r where over relation r, and the next bit where it is the gene itself
    heard: Ints  # how many genes each row hears from, [relations, n]


@kept_with
def _index_of(*matrices: SparseMatrix) -> _Index:
    n = matrices[0].shape[0]
    total = eye_array(n, dtype=np.int64, format="csr") * np.int64(1 << len(matrices))
    for r, matrix in enumerate(matrices):
        turned = matrix.transpose
        bits = np.full(turned.n_entries, 1 << r, dtype=np.int64)
        total = total + csr_array((bits, turned.indices, turned.indptr), shape=(n, n))
    total.sort_indices()
    starts, rows = (x.astype(np.int64) for x in (total.indptr, total.indices))
    return _Index(n, starts, rows, total.data, np.stack([np.diff(m.indptr) for m in matrices]))


def touched_by(hop: Hop, deleted: Deleted) -> Touched:
    index = _index_of(*(a.matrix for a in hop.aggregates))
    sizes = np.diff(deleted.genotypes.offsets.numpy())
    if sizes.max(initial=0) > min(MOST_GENES, index.n - 1):
        what = f"a genotype deletes {sizes.max()} of {index.n} genes; late mutants lack at most "
        fix = "Leave it out, or set epistasis=False and propagation=delta."
        raise InputError(f"{what}{MOST_GENES} and never all", code="too-many-deleted", fix=fix)
    ends = np.cumsum([len(message.aggregates) for message in hop.messages]).tolist()
    groups = [range(*of_message) for of_message in pairwise([0, *ends])]
    genes, member = np.unique(deleted.lost.genes.numpy(), return_inverse=True)
    lengths = np.diff(index.starts)[genes]
    starts, at = offsets_of(lengths), ragged_positions(index.starts[genes], lengths)
    rows, mask, gene = index.rows[at], index.mask[at], np.repeat(genes, lengths)
    living, messages = (mask >> len(index.heard)) & 1 == 0, []
    for group in groups:
        # Nothing reads what a deleted gene would become.
        which = np.flatnonzero(living & (mask & sum(1 << r for r in group) != 0))
        removed = []
        for r in group:
            over = (mask[which] >> r) & 1
            entry = np.flatnonzero(over)
            removed.append((gene[which][entry], entry, index.heard[r][rows[which]] - over))
        messages.append(_again(rows[which], removed, which))
    single = Units(_long(rows), torch.from_numpy(living), tuple(messages))
    # The genes of each genotype in ascending order, -1 where it has fewer than others.
    members = np.full((len(sizes), sizes.max(initial=0)), len(genes), dtype=np.int64)
    members[np.arange(members.shape[1]) < sizes[:, None]] = member.ravel()
    members.sort(axis=1)
    members[members == len(genes)] = -1
    joint = _Joint.of(members, starts, rows, mask, index)
    # Epistasis is formed in float64, for which those of single genes are no use.
    before = 0 if deleted.epistasis else len(rows)
    shared, table = _shared_units(joint, members, index, groups, genes, before)
    sets = tuple(
        _sets(k, sizes, joint, members, table) for k in np.unique(sizes[sizes > 0]).tolist()
    )
    return Touched(single, _long(starts), shared, sets)


class _Joint(NamedTuple):
    """Rows of genotypes that two or more of their genes touch, and which, as bits."""

    genotype: Ints
    row: Ints
    alone: Ints  # the unit of the row with each gene that touches it, or -1, [m, largest]
    every: Ints  # the genes that touch it
    over: list[Ints]  # those that do over each relation
    itself: Ints  # the one that it is

    @classmethod
    def of(cls, members: Ints, starts: Ints, rows: Ints, mask: Ints, index: _Index) -> _Joint:
        genotype, position = np.nonzero(members >= 0)
        lengths = np.diff(starts)[members[genotype, position]]
        unit = ragged_positions(starts[members[genotype, position]], lengths)
        key = np.repeat(genotype, lengths) * index.n + rows[unit]
        # Ascending runs, one per gene: merging them is what a stable sort does.
        order = np.argsort(key, kind="stable")
        key = key[order]
        new = np.diff(key, prepend=-1) != 0
        several = ~(new & np.append(new[1:], True))
        key, order, new = key[several], order[several], new[several]
        number, unit = np.cumsum(new) - 1, unit[order]
        position = np.repeat(position, lengths)[order]
        alone = np.full((int(new.sum()), members.shape[1]), -1, dtype=np.int64)
        alone[number, position] = unit

        def touching(which: Any) -> Ints:
            return np.bincount(number, (1 << position) * which, len(alone)).astype(np.int64)

        *over, itself = (touching((mask[unit] >> r) & 1) for r in range(len(index.heard) + 1))
        genotype, row = np.divmod(key[new], index.n)
        return cls(genotype, row, alone, touching(1), over, itself)


def _shared_units(
    joint: _Joint, members: Ints, index: _Index, groups: list[range], genes: Ints, single: int
) -> tuple[Units, Ints]:
    """Return the shared units, and which it is for each joint row and subset of genes, or -1.

    Where there are units of single genes, those come first in that numbering, and last comes one
    for no gene, which adds nothing.
    """
    genotype, rows, largest = joint.genotype, joint.row, members.shape[1]
    # One number per subset of genes and row, over all genotypes; equal ones are one unit.
    key = np.full((len(rows), 1 << largest), -1, dtype=np.int64)
    for subset in range(1 << largest):
        if single and subset.bit_count() < 2:
            continue
        inside = (subset & joint.every) == subset
        number = np.zeros(int(inside.sum()), dtype=np.int64)
        for bit in _bits(subset):
            number = number * (len(genes) + 1) + members[genotype[inside], bit] + 1
        key[inside, subset] = number
    there = key >= 0
    subset_number = np.unique(key[there], return_inverse=True)[1].ravel()
    unit_key = subset_number * index.n + np.broadcast_to(rows[:, None], key.shape)[there]
    _, first, unit_number = np.unique(unit_key, return_index=True, return_inverse=True)
    table = np.full(key.shape, -1, dtype=np.int64)
    table[there] = single + unit_number.ravel()
    if single:
        table[:, [1 << p for p in range(largest)]] = joint.alone
        table[:, 0] = single + len(first)
    at_row, at_subset = (x[first] for x in np.nonzero(there))
    dead = (at_subset & joint.itself[at_row]) > 0
    messages = []
    for group in groups:
        # What a unit receives depends on those genes of its subset that touch over the relations.
        over_any = np.bitwise_or.reduce([joint.over[r] for r in group])
        changed = np.flatnonzero((at_subset & over_any[at_row] > 0) & ~dead)
        row, where, removed = at_row[changed], [changed], []
        subset = at_subset[changed] & over_any[row]
        if not single:
            # Each once, and what was received before with them, so that all are rounded alike.
            both = np.concatenate([table[row, subset], table[row, 0]])
            needed, place = np.unique(both, return_inverse=True)
            row, subset = at_row[needed], at_subset[needed]
            where += np.split(place.ravel(), 2)
        for r in group:
            inside = (subset & joint.over[r][row])[:, None] >> np.arange(largest) & 1
            entry, p = np.nonzero(inside)
            gone = genes[members[genotype[row[entry]], p]]
            removed.append((gone, entry, index.heard[r][rows[row]] - inside.sum(1)))
        messages.append(_again(rows[row], removed, *where))
    return Units(_long(rows[at_row]), torch.from_numpy(~dead), tuple(messages)), table


def _sets(k: int, sizes: Ints, joint: _Joint, members: Ints, table: Ints) -> Sets:
    chosen = np.flatnonzero(sizes == k)
    number = np.full(len(sizes), -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    mine = np.flatnonzero(number[joint.genotype] >= 0)
    of_size = []
    for size in range(2, k + 1):
        units, places = [], []
        for whole in (w for w in range(1 << k) if w.bit_count() == size):
            at = mine[(joint.every[mine] & whole) == whole]
            # All subsets of `whole`, in the order of counting over its members.
            bits = _bits(whole)
            subsets = [sum(1 << bits[i] for i in _bits(c)) for c in range(1 << size)]
            units.append(table[at][:, subsets])
            places.append(number[joint.genotype[at]] * (1 << k) + whole)
        of_size.append((_long(np.concatenate(units)), _long(np.concatenate(places))))
    return Sets(_long(chosen), _long(members[chosen][:, :k]), tuple(of_size))


def _again(rows: Ints, removed: Sequence[tuple[Ints, Ints, Ints]], *where: Ints) -> Again:
    each = tuple(Removed(*map(_long, one)) for one in removed)
    return Again(_long(rows), each, *map(_long, where))


def _bits(subset: int) -> list[int]:
    return [p for p in range(subset.bit_length()) if subset >> p & 1]


def _long(array: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
