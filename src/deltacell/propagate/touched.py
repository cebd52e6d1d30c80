"""Which rows the deletion of each gene touches in one hop, found on the host.

A row is *touched* by a gene that it hears from over some relation, and by its own deletion. What a
row becomes in a mutant depends only on those deleted genes that touch it. So the unit of work is a
row together with the deleted genes that touch it: mutants that share a gene share its units, and a
set of genes needs units of its own only on rows that two or more of its genes touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array

from deltacell.arrays import Ints, offsets_of, ragged_positions
from deltacell.errors import InputError
from deltacell.propagate.hop import Hop
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import Deleted

MOST_GENES = 5
"""Genes of a set whose epistasis is formed: a set of k has 2^k subsets."""


@dataclass(frozen=True, eq=False)
class Removed:
    """Rows that no longer hear from some genes over one relation; all int64."""

    rows: torch.Tensor  # the gene whose row each is, [m]
    genes: torch.Tensor  # the genes no longer heard from, [e]
    entry: torch.Tensor  # and which of the m that is, ascending, [e]
    left: torch.Tensor  # how many genes each row still hears from, [m]
    # Which units change, and the places among the m of what they receive now and before; for
    # single mutants the former are all of the m, and the latter are not listed.
    units: torch.Tensor
    new: torch.Tensor | None = None
    old: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Units:
    """Rows, each with the deleted genes that touch it."""

    rows: torch.Tensor  # the gene whose vector it is, int64 [u]
    living: torch.Tensor  # whether that gene is not itself deleted, bool [u]
    removed: tuple[Removed, ...]  # one per relation


@dataclass(frozen=True, eq=False)
class Interactions:
    """The rows that deletions share, for sets with equally many genes."""

    genotypes: torch.Tensor  # those of the batch with k genes, int64 [b]
    genes: torch.Tensor  # theirs, as numbers of `Touched.genes`, int64 [b, k]
    # For each size s from 2 to k: the units of a row with all 2^s subsets of the s genes that
    # touch it, [m, 2^s], and the place ``genotype * 2^k + subset`` that it adds to, [m].
    subsets: tuple[tuple[torch.Tensor, torch.Tensor], ...]


@dataclass(frozen=True, eq=False)
class Shares:
    """What epistasis is formed from."""

    units: Units  # rows with every subset of those genes of a set that touch them, and with none
    of_size: tuple[Interactions, ...]  # one per number of genes


@dataclass(frozen=True, eq=False)
class Touched(Deleted):
    """What a batch deletes, and the units that it takes; numbers are int64."""

    genes: torch.Tensor  # those that some genotype deletes, each once, [g]
    units: Units  # first those of single genes, gene after gene, then those that several touch
    gene_starts: torch.Tensor  # where the units of each gene begin, and the end, [g + 1]
    of_gene: torch.Tensor  # the gene of each unit of a single gene, as a number of `genes`
    members: torch.Tensor  # the genes of each genotype as numbers of `genes`, [total]
    owner: torch.Tensor  # the genotype of each member, [total]
    joint_owner: torch.Tensor  # the genotype of each unit that several genes touch
    instead: torch.Tensor  # the units of single genes that those take the place of
    instead_owner: torch.Tensor  # and the genotype
    whole: torch.Tensor | None  # whether a genotype deletes every gene, bool [b]; None: none does
    shares: Shares | None  # where epistasis was asked for


def touched_by(hop: Hop, deleted: Deleted) -> Touched:
    """Find the units of a batch on the host, for the only hop that sees the deletions."""
    index = _Index.of(hop)
    offsets = deleted.genotypes.offsets.numpy()
    sizes = np.diff(offsets)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    genes, member = np.unique(deleted.genotypes.genes.numpy(), return_inverse=True)
    member = member.ravel()
    lengths = np.diff(index.starts)[genes]
    at = ragged_positions(index.starts[genes], lengths)
    gene_starts, of_gene = offsets_of(lengths), np.repeat(np.arange(len(genes)), lengths)
    rows, mask = index.rows[at], index.mask[at]
    joint = _joint(owner, sizes, member, gene_starts, rows, index.n)
    units = _units(
        index,
        genes,
        np.concatenate([rows, joint.row[joint.first]]),
        np.concatenate([np.arange(len(rows)), len(rows) + joint.number]),
        np.concatenate([of_gene, member[joint.member]]),
        np.concatenate([mask, mask[joint.unit]]),
    )
    whole = sizes == index.n
    if deleted.epistasis and (whole.any() or sizes.max(initial=0) > MOST_GENES):
        raise InputError(
            f"a genotype deletes {sizes.max()} of {index.n} genes, and epistasis is formed for at "
            f"most {MOST_GENES} and never for all",
            code="too-many-deleted",
            fix="Leave it out, or set epistasis=False.",
        )
    return Touched(
        deleted.genotypes,
        deleted.nodes,
        _long(genes),
        units,
        _long(gene_starts),
        _long(of_gene),
        _long(member),
        _long(owner),
        _long(joint.genotype[joint.first]),
        _long(joint.unit),
        _long(joint.genotype),
        torch.from_numpy(whole) if whole.any() else None,
        _shares(index, genes, owner, sizes, member, joint, mask) if deleted.epistasis else None,
        epistasis=deleted.epistasis,
    )


class _Index:
    """The rows that each gene of a cell touches, ascending, and over which relations.

    A mask has bit r where the row hears from the gene over relation r, and the bit after the last
    where it is the gene itself.
    """

    def __init__(self, hop: Hop) -> None:
        matrices = [a.matrix for a in hop.aggregates]
        self.n, self.relations = matrices[0].shape[0], len(matrices)
        if self.relations > 62:
            raise InputError(
                f"{self.relations} relations; expected at most 62", code="too-many-relations"
            )
        total = eye_array(self.n, dtype=np.int64, format="csr") * np.int64(1 << self.relations)
        for r, matrix in enumerate(matrices):
            turned = matrix.transpose
            bits = np.full(turned.n_entries, 1 << r, dtype=np.int64)
            total = total + csr_array((bits, turned.indices, turned.indptr), shape=(self.n, self.n))
        total.sort_indices()
        self.starts: Ints = total.indptr.astype(np.int64)
        self.rows: Ints = total.indices.astype(np.int64)
        self.mask: Ints = total.data
        self.heard: Ints = np.stack([np.diff(m.indptr) for m in matrices])

    @classmethod
    def of(cls, hop: Hop) -> _Index:
        """Return the index of a hop; the same for the same matrices."""
        first, *others = (a.matrix for a in hop.aggregates)
        kept = _KEPT.setdefault(first, {})
        # Without the first, which the dictionary must not keep alive.
        key = tuple(others)
        if key not in kept:
            kept[key] = cls(hop)
        return kept[key]


_KEPT: WeakKeyDictionary[SparseMatrix, dict[tuple[SparseMatrix, ...], _Index]]
_KEPT = WeakKeyDictionary()


class _Joint(NamedTuple):
    """Rows of genotypes that two or more of its genes touch, one entry per touching gene."""

    genotype: Ints  # of each entry; ascending by this and the row
    row: Ints
    unit: Ints  # the unit of the row and the touching gene alone
    member: Ints  # the place of the gene among the members of all genotypes
    first: Ints  # the first entry of each row of a genotype
    number: Ints  # counts those rows, from 0


def _joint(owner: Ints, sizes: Ints, member: Ints, gene_starts: Ints, rows: Ints, n: int) -> _Joint:
    many = np.flatnonzero(sizes[owner] > 1)
    lengths = np.diff(gene_starts)[member[many]]
    unit = ragged_positions(gene_starts[member[many]], lengths)
    place = np.repeat(many, lengths)
    key = owner[place] * n + rows[unit]
    # Ascending runs, one per gene: merging them is what a stable sort does.
    order = np.argsort(key, kind="stable")
    key = key[order]
    new = np.diff(key, prepend=-1) != 0
    shared = ~(new & np.append(new[1:], True))
    key, order, new = key[shared], order[shared], new[shared]
    return _Joint(
        key // n, key % n, unit[order], place[order], np.flatnonzero(new), np.cumsum(new) - 1
    )


def _units(index: _Index, genes: Ints, rows: Ints, unit: Ints, gene: Ints, mask: Ints) -> Units:
    """Return units from entries: a unit, a gene that touches it, and over which relations."""
    dead = np.zeros(len(rows), dtype=bool)
    dead[unit[(mask >> index.relations) & 1 == 1]] = True
    removed = []
    for r in range(index.relations):
        # Nothing reads what a deleted gene would become.
        which = ~dead[unit] & ((mask >> r) & 1 == 1)
        new = np.diff(unit[which], prepend=-1) != 0
        entry, units = np.cumsum(new) - 1, unit[which][new]
        left = index.heard[r][rows[units]] - np.bincount(entry, minlength=len(units))
        found = rows[units], genes[gene[which]], entry, left, units
        removed.append(Removed(*map(_long, found)))
    return Units(_long(rows), torch.from_numpy(~dead), tuple(removed))


def _shares(
    index: _Index, genes: Ints, owner: Ints, sizes: Ints, member: Ints, joint: _Joint, mask: Ints
) -> Shares:
    """Enumerate the subsets of the genes that touch each shared row."""
    rows, genotype = joint.row[joint.first], joint.genotype[joint.first]
    n_rows, largest = len(rows), int(sizes.max(initial=0))
    # The genes of each genotype in ascending order, [b, largest], and the position of each member.
    order = np.lexsort((member, owner))
    position = np.empty(len(member), dtype=np.int64)
    position[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    members = np.full((len(sizes), largest), -1, dtype=np.int64)
    members[owner, position] = member
    # Which genes of its set touch a row, over each relation and by being it, as bits.
    bits = 1 << position[joint.member]

    def touching(which: Any) -> Ints:
        return np.bincount(joint.number, bits * which, minlength=n_rows).astype(np.int64)

    every = touching(1)
    *over, itself = (touching((mask[joint.unit] >> r) & 1) for r in range(index.relations + 1))
    # One number per subset of genes and row, over all genotypes; equal ones are one unit.
    key = np.full((n_rows, 1 << largest), -1, dtype=np.int64)
    for subset in range(1 << largest):
        inside = (subset & every) == subset
        number = np.zeros(int(inside.sum()), dtype=np.int64)
        for bit in _bits(subset):
            number = number * (len(genes) + 1) + members[genotype[inside], bit] + 1
        key[inside, subset] = number
    there = key >= 0
    subset_number = np.unique(key[there], return_inverse=True)[1].ravel()
    unit_key = subset_number * index.n + np.broadcast_to(rows[:, None], key.shape)[there]
    _, first, unit_number = np.unique(unit_key, return_index=True, return_inverse=True)
    table = np.full(key.shape, -1, dtype=np.int64)
    table[there] = unit_number.ravel()
    at_row, at_subset = (x[first] for x in np.nonzero(there))
    dead = (at_subset & itself[at_row]) > 0
    removed = []
    for r in range(index.relations):
        # What a unit receives depends on those genes of its subset that touch over the relation.
        effective = at_subset & over[r][at_row]
        changed = np.flatnonzero((effective > 0) & ~dead)
        now, before = table[at_row, effective][changed], table[at_row, 0][changed]
        needed, place = np.unique(np.concatenate([now, before]), return_inverse=True)
        row = at_row[needed]
        inside = (at_subset[needed][:, None] >> np.arange(largest)) & 1 == 1
        entry, p = np.nonzero(inside)
        gone = genes[members[genotype[row[entry]], p]]
        left = index.heard[r][rows[row]] - inside.sum(1)
        new, old = np.split(place.ravel(), 2)
        found = rows[row], gone, entry, left, changed, new, old
        removed.append(Removed(*map(_long, found)))
    units = Units(_long(rows[at_row]), torch.from_numpy(~dead), tuple(removed))
    of_size = tuple(
        _interactions(k, sizes, genotype, every, table, members)
        for k in range(2, largest + 1)
        if (sizes == k).any()
    )
    return Shares(units, of_size)


def _interactions(
    k: int, sizes: Ints, genotype: Ints, touching: Ints, table: Ints, members: Ints
) -> Interactions:
    chosen = np.flatnonzero(sizes == k)
    number = np.full(len(sizes), -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    mine = np.flatnonzero(number[genotype] >= 0)
    of_size = []
    for size in range(2, k + 1):
        units, places = [], []
        for whole in (w for w in range(1 << k) if w.bit_count() == size):
            at = mine[(touching[mine] & whole) == whole]
            # All subsets of `whole`, in the order of counting over its members.
            bits = _bits(whole)
            subsets = [sum(1 << bits[i] for i in _bits(c)) for c in range(1 << size)]
            units.append(table[at][:, subsets])
            places.append(number[genotype[at]] * (1 << k) + whole)
        of_size.append((_long(np.concatenate(units)), _long(np.concatenate(places))))
    return Interactions(_long(chosen), _long(members[chosen][:, :k]), tuple(of_size))


def _bits(subset: int) -> list[int]:
    return [p for p in range(subset.bit_length()) if subset >> p & 1]


def _long(array: Ints) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
