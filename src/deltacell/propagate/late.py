r"""The strategy `late`: deletions that only one hop sees, at the cost of the rows they touch.

For a function f of sets, the *interaction* of a set S is
``F(S) = sum over T in S of (-1)^(|S| - |T|) f(T)``, so that ``f(S) = sum over T in S of F(T)``; for
a pair of deletions, ``f(ab) - f(a) - f(b) + f()``. With f = z, F is epistasis: the part of z that
no smaller set of deletions explains.

A row is *touched* by a gene from which it receives over some relation, and by its own deletion. In
a mutant a row depends only on the deleted genes that touch it. So the unit of work is a row
together with deleted genes that touch it: mutants that share a gene share its units, and a set of
genes needs additional units only on rows that two or more of its genes touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor

from deltacell.base.arrays import Ints, offsets_of, ragged_positions
from deltacell.base.errors import InputError
from deltacell.profile.record import Messages
from deltacell.propagate.base import Batch, Deleted, Mutants
from deltacell.propagate.delta import Shared
from deltacell.propagate.hop import GENE, Hop
from deltacell.propagate.pool import pool_changes
from deltacell.propagate.product import SparseMatrix, kept_with
from deltacell.propagate.workers import Pieces, row_wise

MOST_GENES = 5  # per set, because a set of k genes has 2^k subsets


@dataclass(frozen=True, eq=False)
class Removed:
    """The sources that m units lose over one relation; all int64."""

    genes: Tensor  # the lost sources, [e]
    entry: Tensor  # the unit that loses each, ascending, [e]
    left: Tensor  # the number of remaining sources, [m]


@dataclass(frozen=True, eq=False)
class Units:
    """Rows, each with deleted genes that touch it."""

    rows: Tensor  # the gene whose vector it is, int64 [u]
    living: Tensor  # whether that gene is not itself deleted, bool [u]
    # For each message, the units that recompute it, int64 [m], and their losses per relation.
    messages: tuple[tuple[Tensor, tuple[Removed, ...]], ...]


@dataclass(frozen=True, eq=False)
class Touched:
    """The units of a batch, and how they add up to the sums of each genotype.

    A genotype has one place for its sum. For epistasis it has 2^k places, one for the interaction
    of each subset of its genes; bit i of the place stands for gene i.
    """

    single: Units  # of each distinct gene alone
    gene: Tensor  # the number of that gene, ascending, int64 [u]
    members: Tensor  # the numbers of all genes of all genotypes, int64 [total]
    member_places: Tensor  # the place of the sum over the units of that gene, int64 [total]
    # Rows that several genes of a genotype touch, with all of these genes; for epistasis, with each
    # subset.
    shared: Units
    # Further terms: units (counted after the single ones, unless for epistasis), places and signs.
    units: Tensor
    places: Tensor
    signs: Tensor
    sizes: Mapping[int, Tensor]  # for epistasis, the genotypes of two genes and more by size


def is_late(hops: Sequence[Hop]) -> bool:
    """Return whether mutants see one hop, from genes to genes over unweighted relations."""
    # At most 62, because the relations that touch a row are bits of an int64.
    over = [(hop.target, a.source, a.matrix.values is None) for hop in hops for a in hop.aggregates]
    return len(hops) == 1 and len(over) <= 62 and set(over) == {(GENE, GENE, True)}


@dataclass(frozen=True)
class Late(Shared):
    r"""Compute the units of `touched_by` only.

    In ``z = N / (1 + D)``, see `pool_changes`, rows that no deletion touches add nothing to either
    sum, and the terms of a row depend only on the deletions that touch it. So both sums are
    computed once for each gene of the batch; a set adds those of its genes, and the interactions on
    rows that two or more of its genes touch. For `epistasis` these are computed in float64, see
    `interaction_of_quotient`. Only the options `workers` and `rows_at_a_time` are used.
    """

    name: ClassVar[str] = "late"
    passes: ClassVar[Messages] = Messages.changes

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        if not is_late(hops):
            what = "propagation 'late' requires deletions that act in one layer over the relations"
            fix = "Set model.mutant_layers=1 and model.metabolism=false, or propagation=auto."
            raise InputError(what, code="not-late", fix=fix)
        return replace(deleted, plan=touched_by(hops[0], deleted.to("cpu")))

    def _mutants(self, batch: Batch) -> Mutants:
        touched: Touched = batch.deleted.plan
        pieces, wide = self._pieces(batch.pool.value.device), batch.deleted.epistasis
        n_genes, b = len(batch.deleted.lost.genes), len(batch.deleted)
        n_places = b << max(touched.sizes, default=1) if wide else b

        def added_up(single: Tensor, shared: Tensor) -> Tensor:
            of_gene = single.new_zeros(n_genes, single.shape[1]).index_add(0, touched.gene, single)
            values = shared if wide else torch.cat([single, shared])
            of_members = of_gene.index_select(0, touched.members).to(values.dtype)
            others = values.index_select(0, touched.units) * touched.signs.to(values.dtype)
            total = values.new_zeros(n_places, values.shape[1])
            total = total.index_add(0, touched.member_places, of_members)
            return total.index_add(0, touched.places, others).view(b, n_places // b, -1)

        single = _added(batch, touched.single, pieces)
        of_n, of_d = map(added_up, single, _added(batch, touched.shared, pieces, wide=wide))
        z = (of_n.sum(1) / (1 + of_d.sum(1)).to(of_n.dtype)).to(batch.wild_type.last[GENE].dtype)
        if not wide:
            return Mutants(z, batch.pool.pooled)
        epistasis = torch.zeros_like(of_n[:, 0])
        for size, genotypes in touched.sizes.items():
            n, d = (x.index_select(0, genotypes)[:, : 1 << size] for x in (of_n, of_d))
            found = interaction_of_quotient(n, d.squeeze(2))
            epistasis = epistasis.index_copy(0, genotypes, found)
        return Mutants(z, batch.pool.pooled, epistasis)


def _added(
    batch: Batch,
    units: Units,
    pieces: Pieces,
    *,
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the terms of units in N [u, hidden] and D [u, 1]; in float64 if `wide`."""
    terms, parameters = batch.readout.terms, list(batch.readout.parameters())
    device, dtype = batch.pool.value.device.type, batch.wild_type.last[GENE].dtype
    given = [units.living.to(batch.pool.weight.dtype), *batch.pool.at(units.rows)]
    if wide:
        given, dtype = [x.double() for x in given], torch.float64
    with torch.autocast(device, enabled=False) if wide else nullcontext():
        vectors = _new_vectors(batch, units, pieces, dtype)
        n, d = row_wise(
            lambda own, *others: pool_changes(terms(own, others[-1]), *others[:-1]),
            units.rows,
            [vectors, *given],
            parameters,
            pieces,
        )
    return n, d.unsqueeze(1)


def _new_vectors(batch: Batch, units: Units, pieces: Pieces, dtype: torch.dtype) -> Tensor:
    def at(x: Tensor, rows: Tensor) -> Tensor:
        return x.index_select(0, rows).to(dtype)

    wild = batch.wild_type
    x, vectors = wild.states[0][GENE], at(wild.last[GENE], units.rows)
    each = zip(batch.hops[0].messages, units.messages, wild.sums[0], wild.messages[0], strict=True)
    for message, (again, removed), sums, old in each:
        rows, heard = units.rows.index_select(0, again), []
        for a, total, gone in zip(message.aggregates, sums, removed, strict=True):
            left = at(total, rows).index_add_(0, gone.entry, at(x, gone.genes), alpha=-1)
            if a.mean:
                left = left * gone.left.clamp(min=1).to(dtype).reciprocal().unsqueeze(1)
            heard.append(left)
        moved = message.apply(rows, at(x, rows), heard, pieces) - old.index_select(0, rows)
        vectors = vectors.index_add_(0, again, moved.to(dtype))
    return vectors


def interaction_of_quotient(n: Tensor, d: Tensor) -> Tensor:
    r"""Return the interaction of ``N / D`` for whole sets, from the interactions of N and D.

    With u = 1 / D, ``(N u)(S) = sum over A, B with union S of N(A) u(B)``; and as ``u D`` is 1,
    ``u(S) = -1 / D_S * sum over A, B with union S, A not S, of u(A) D(B)`` with
    ``D_S = sum over B in S of D(B)``. No term is a difference of larger numbers.
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
    mask: Ints  # bit r for relation r, and one more bit for the gene itself
    heard: Ints  # the number of sources of each row, [relations, n]


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
    """Return the units of each gene, and those of the rows that several genes touch."""
    index = _index_of(*(a.matrix for a in hop.aggregates))
    offsets = deleted.genotypes.offsets.numpy()
    sizes = np.diff(offsets)
    largest = int(sizes.max(initial=0))
    if largest > min(MOST_GENES, index.n - 1):
        what = f"a genotype deletes {largest} of {index.n} genes; 'late' allows up to {MOST_GENES}"
        fix = "Remove the genotype, or set epistasis=False and propagation=delta."
        raise InputError(f"{what}, and fewer than all", code="too-many-deleted", fix=fix)
    genes, member = np.unique(deleted.lost.genes.numpy(), return_inverse=True)
    lengths = np.diff(index.starts)[genes]
    starts, at = offsets_of(lengths), ragged_positions(index.starts[genes], lengths)
    number, rows, mask = np.repeat(np.arange(len(genes)), lengths), index.rows[at], index.mask[at]
    genotype = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(member)) - offsets[genotype]

    def units(rows: Ints, of: Ints, touching: Ints) -> Units:
        """Return rows, each without the genes of some single units, [u, k], -1 for none.

        A message is recomputed if the row receives over it from one of the genes `touching` it.
        """
        over, gone = (np.where(one >= 0, mask[one], 0) for one in (touching, of))
        living = ((gone >> len(index.heard)) & 1 == 0).all(axis=1)
        messages, first = [], 0
        for message in hop.messages:
            group = range(first, first := first + len(message.aggregates))
            changed = (over & sum(1 << r for r in group) != 0).any(axis=1)
            # The vector of a deleted gene is never read.
            again, removed = np.flatnonzero(living & changed), []
            for r in group:
                silent = (gone[again] >> r) & 1
                entry, place = np.nonzero(silent)
                left = index.heard[r][rows[again]] - silent.sum(axis=1)
                lost = genes[number[of[again[entry], place]]]
                removed.append(Removed(_long(lost), _long(entry), _long(left)))
            messages.append((_long(again), tuple(removed)))
        return Units(_long(rows), torch.from_numpy(living), tuple(messages))

    every = np.arange(len(rows))[:, None]
    single = units(rows, every, every)
    of_member = lengths[member]
    unit = ragged_positions(starts[:-1][member], of_member)
    key = np.repeat(genotype, of_member) * index.n + rows[unit]
    distinct, joint, count = np.unique(key, return_inverse=True, return_counts=True)
    of_genotype, shared_rows = np.divmod(distinct[count > 1], index.n)
    # The single units of the genes of a genotype that touch a row, -1 for those that do not.
    touching = np.full((len(shared_rows), largest), -1, dtype=np.int64)
    several = count[joint] > 1
    joint = (np.cumsum(count > 1) - 1)[joint[several]]
    touching[joint, np.repeat(position, of_member)[several]] = unit[several]
    if not deleted.epistasis:
        # Replace the terms of each gene alone by that of all genes that touch a row.
        one, place = np.nonzero(touching >= 0)
        units_of = [len(rows) + np.arange(len(touching)), touching[one, place]]
        places, signs = [of_genotype, of_genotype[one]], [1.0, -1.0]
        shared, member_places = units(shared_rows, touching, touching), genotype
        by_size = {}
    else:
        # The interaction of each subset of two or more genes is a signed sum over its subsets.
        units_of, places, signs = [], [], []
        bits = (touching >= 0) @ (1 << np.arange(largest))
        subsets = np.arange(1 << largest)
        there = (bits[:, None] & subsets) == subsets
        row, subset = np.nonzero(there)
        table = np.cumsum(there).reshape(there.shape) - 1
        for whole in subsets.tolist():
            inside = np.flatnonzero(there[:, whole] & (whole.bit_count() > 1))
            for part in (p for p in subsets.tolist() if p & whole == p):
                units_of.append(table[inside, part])
                places.append((of_genotype[inside] << largest) + whole)
                signs.append((-1.0) ** (whole.bit_count() - part.bit_count()))
        of = np.where((subset[:, None] >> np.arange(largest)) & 1, touching[row], -1)
        shared = units(shared_rows[row], of, touching[row])
        member_places = (genotype << largest) + (1 << position)
        by_size = {k: np.flatnonzero(sizes == k) for k in range(2, largest + 1)}
    sign = torch.from_numpy(np.repeat(signs, list(map(len, places)))).unsqueeze(1)
    sets = {k: _long(which) for k, which in by_size.items() if len(which)}
    of_members = _long(member), _long(member_places)
    units_at, places_at = (_long(np.concatenate(x)) for x in (units_of, places))
    return Touched(single, _long(number), *of_members, shared, units_at, places_at, sign, sets)


def _long(array: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
