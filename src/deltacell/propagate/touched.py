"""Which rows the deletion of each gene touches in one hop, found on the host.

A row is *touched* by a gene that it hears from over some relation, and by its own deletion. What a
row becomes in a mutant depends only on those deleted genes that touch it. So the unit of work is a
row together with the deleted genes that touch it: mutants that share a gene share its units, and a
set of genes needs units of its own only on rows that two or more of its genes touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array

from deltacell.arrays import Bools, Ints, offsets_of, ragged_positions
from deltacell.errors import InputError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import Hop
from deltacell.propagate.product import SparseMatrix

MOST_GENES = 5
"""Genes of a set whose epistasis is formed: a set of k has 2^k subsets."""


@dataclass(frozen=True, eq=False)
class Removed:
    """What units no longer receive over one relation.

    Parameters
    ----------
    units
        Which units, ascending, int64 [m].
    rows
        The gene of each, int64 [m].
    genes, entry
        The genes that it no longer hears from, and which of the m that is, ascending, int64 [e].
    left
        How many genes it still hears from, int64 [m].
    """

    units: torch.Tensor
    rows: torch.Tensor
    genes: torch.Tensor
    entry: torch.Tensor
    left: torch.Tensor


@dataclass(frozen=True, eq=False)
class Units:
    """Rows, each with the deleted genes that touch it.

    Parameters
    ----------
    rows
        The gene whose vector it is, int64 [u].
    living
        Whether that gene is not itself deleted, bool [u].
    removed
        What they no longer receive, one per relation.
    """

    rows: torch.Tensor
    living: torch.Tensor
    removed: tuple[Removed, ...]


@dataclass(frozen=True, eq=False)
class Interactions:
    """The rows that deletions share, for sets with equally many genes.

    Parameters
    ----------
    genotypes
        Which genotypes of the batch have k genes, int64 [b].
    genes
        Their genes as numbers of `Touched.genes`, int64 [b, k].
    subsets
        For each size s from 2 to k: the units of a row with all 2^s subsets of the s genes that
        touch it, [m, 2^s], and the place ``genotype * 2^k + subset`` that it adds to, [m].
    """

    genotypes: torch.Tensor
    genes: torch.Tensor
    subsets: tuple[tuple[torch.Tensor, torch.Tensor], ...]


@dataclass(frozen=True, eq=False)
class Shares:
    """What epistasis is formed from.

    Parameters
    ----------
    units
        Rows with every subset of those genes of a set that touch them, the empty one included.
    same
        For each relation, the units whose messages have to be computed, [m], and for every unit
        that the relation changes its place in the list, that of its message and that of the wild
        type's, [p] each.
    of_size
        One per number of genes.
    """

    units: Units
    same: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], ...]
    of_size: tuple[Interactions, ...]


@dataclass(frozen=True, eq=False)
class Touched(Deleted):
    """What a batch deletes, and the units that it takes.

    Parameters
    ----------
    genotypes, nodes
        See `Deleted`.
    genes
        The genes that some genotype deletes, each once, int64 [g].
    units
        First those of single genes, gene after gene, then those of rows that several touch.
    gene_starts
        Where the units of each gene begin, and the end, int64 [g + 1].
    of_gene
        The gene of each unit of a single gene, as a number of `genes`.
    members, owner
        The genes of each genotype as numbers of `genes`, and the genotype, [total].
    joint_owner
        The genotype of each unit that several genes touch.
    instead, instead_owner
        The units of single genes that those take the place of, and the genotype.
    whole
        Whether a genotype deletes every gene, bool [b]; None where none does.
    shares
        What epistasis is formed from, where it was asked for.
    """

    genes: torch.Tensor
    units: Units
    gene_starts: torch.Tensor
    of_gene: torch.Tensor
    members: torch.Tensor
    owner: torch.Tensor
    joint_owner: torch.Tensor
    instead: torch.Tensor
    instead_owner: torch.Tensor
    whole: torch.Tensor | None
    shares: Shares | None


def touched_by(hop: Hop, deleted: Deleted) -> Touched:
    """Find the units of a batch.

    Parameters
    ----------
    hop
        The only one that sees the deletions; genes hear from genes.
    deleted
        What the batch deletes, on the host.
    """
    index = _Index.of(hop)
    given = deleted.genotypes.genes.numpy()
    genes, member = np.unique(given, return_inverse=True)
    starts, lengths = index.starts[genes], np.diff(index.starts)[genes]
    at = ragged_positions(starts, lengths)
    gene_starts = offsets_of(lengths)
    rows, mask = index.rows[at], index.mask[at]
    of_gene = np.repeat(np.arange(len(genes)), lengths)
    sets = _Sets(deleted.genotypes.offsets.numpy(), member.ravel(), gene_starts, rows, index.n)
    joint = sets.several()
    first = joint.first
    units = _Builder(
        np.concatenate([rows, joint.row[first]]),
        np.concatenate([np.arange(len(rows)), len(rows) + joint.number]),
        np.concatenate([of_gene, member.ravel()[joint.member]]),
        np.concatenate([mask, mask[joint.unit]]),
    )
    sizes = np.diff(deleted.genotypes.offsets.numpy())
    whole = sizes == index.n
    if deleted.epistasis and whole.any():
        raise InputError(
            f"genotype {int(whole.argmax())} deletes all {index.n} genes, and has no epistasis",
            fix="Leave it out, or set epistasis=False.",
        )
    return Touched(
        deleted.genotypes,
        deleted.nodes,
        _long(genes),
        units.units(genes, index),
        _long(gene_starts),
        _long(of_gene),
        _long(member.ravel()),
        _long(np.repeat(np.arange(len(sizes)), sizes)),
        _long(joint.genotype[first]),
        _long(joint.unit),
        _long(joint.genotype),
        torch.from_numpy(whole) if whole.any() else None,
        _shares(genes, index, sets, joint, mask) if deleted.epistasis else None,
        epistasis=deleted.epistasis,
    )


class _Index:
    """The rows that each gene of a cell touches, and over which relations.

    Parameters
    ----------
    starts, rows
        Compressed lists of rows, gene after gene, ascending.
    mask
        Bit r where the row hears from the gene over relation r; the bit after the last where it is
        the gene itself.
    heard
        How many genes each row hears from, [r, n].
    """

    def __init__(self, hop: Hop) -> None:
        matrices = [a.matrix for a in hop.aggregates]
        self.n, self.relations = matrices[0].shape[0], len(matrices)
        if self.relations > 62:
            raise InputError(f"{self.relations} relations, and at most 62 can be told apart")
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
        matrices = [a.matrix for a in hop.aggregates]
        kept = _KEPT.setdefault(matrices[0], {})
        # Without the first, which the dictionary must not keep alive.
        key = tuple(matrices[1:])
        if key not in kept:
            kept[key] = cls(hop)
        return kept[key]


_KEPT: WeakKeyDictionary[SparseMatrix, dict[tuple[SparseMatrix, ...], _Index]]
_KEPT = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class _Joint:
    """Rows of genotypes that two or more of its genes touch, one entry per touching gene.

    Parameters
    ----------
    genotype, row
        Of each entry, ascending by both.
    unit
        The unit of the row and the touching gene alone.
    member
        The place of the gene among the members of all genotypes.
    first
        The first entry of each row of a genotype.
    number
        Counts those rows, from 0.
    """

    genotype: Ints
    row: Ints
    unit: Ints
    member: Ints
    first: Ints
    number: Ints


class _Sets:
    """The genotypes of a batch, and the units of single genes that they take."""

    def __init__(self, offsets: Ints, member: Ints, gene_starts: Ints, rows: Ints, n: int) -> None:
        self.offsets, self.member, self.n = offsets, member, n
        self.sizes = np.diff(offsets)
        self._gene_starts, self._rows = gene_starts, rows

    def several(self) -> _Joint:
        """Return the rows that several genes of a genotype touch."""
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        many = np.flatnonzero(self.sizes[owner] > 1)
        lengths = np.diff(self._gene_starts)[self.member[many]]
        unit = ragged_positions(self._gene_starts[self.member[many]], lengths)
        place = np.repeat(many, lengths)
        key = owner[place] * self.n + self._rows[unit]
        # Ascending runs, one per gene: merging them is what a stable sort does.
        order = np.argsort(key, kind="stable")
        key = key[order]
        same = key[1:] == key[:-1]
        shared = np.zeros(len(key), dtype=bool)
        shared[1:] |= same
        shared[:-1] |= same
        key, order = key[shared], order[shared]
        new = np.ones(len(key), dtype=bool)
        new[1:] = key[1:] != key[:-1]
        return _Joint(
            key // self.n,
            key % self.n,
            unit[order],
            place[order],
            np.flatnonzero(new),
            np.cumsum(new) - 1,
        )


class _Builder:
    """Units from entries: a unit, a gene that touches it, and over which relations."""

    def __init__(self, rows: Ints, unit: Ints, gene: Ints, mask: Ints) -> None:
        self.rows, self.unit, self.gene, self.mask = rows, unit, gene, mask

    def units(self, genes: Ints, index: _Index) -> Units:
        """Return the units; `gene` numbers the given genes."""
        dead = np.zeros(len(self.rows), dtype=bool)
        dead[self.unit[(self.mask >> index.relations) & 1 == 1]] = True
        # Nothing reads what a deleted gene would become.
        alive = ~dead[self.unit]
        removed = tuple(
            self._removed(genes, index, r, alive & ((self.mask >> r) & 1 == 1))
            for r in range(index.relations)
        )
        return Units(_long(self.rows), torch.from_numpy(~dead), removed)

    def _removed(self, genes: Ints, index: _Index, relation: int, which: Bools) -> Removed:
        unit, gene = self.unit[which], self.gene[which]
        new = np.ones(len(unit), dtype=bool)
        new[1:] = unit[1:] != unit[:-1]
        entry, units = np.cumsum(new) - 1, unit[new]
        rows = self.rows[units]
        left = index.heard[relation][rows] - np.bincount(entry, minlength=len(units))
        return Removed(_long(units), _long(rows), _long(genes[gene]), _long(entry), _long(left))


def _shares(genes: Ints, index: _Index, sets: _Sets, joint: _Joint, mask: Ints) -> Shares:
    """Enumerate the subsets of the genes that touch each shared row."""
    largest = int(sets.sizes.max(initial=0))
    if largest > MOST_GENES:
        raise InputError(
            f"a genotype deletes {largest} genes, and epistasis is formed for at most {MOST_GENES}",
            fix="Train without such genotypes, or with epistasis=False.",
        )
    rows = joint.row[joint.first]
    genotype = joint.genotype[joint.first]
    position = _position(sets, joint)
    n_rows = len(rows)
    # Which genes of its set touch a row, over each relation and by being it.
    touching = np.bincount(joint.number, 1 << position, minlength=n_rows).astype(np.int64)
    over = np.zeros((index.relations + 1, n_rows), dtype=np.int64)
    for r in range(index.relations + 1):
        bit = (mask[joint.unit] >> r) & 1
        over[r] = np.bincount(joint.number, bit << position, minlength=n_rows)
    member = _members(sets, largest)
    # One number per subset of genes and row, over all genotypes; equal ones are one unit.
    key = np.full((n_rows, 1 << largest), -1, dtype=np.int64)
    for subset in range(1 << largest):
        inside = (subset & touching) == subset
        key[inside, subset] = _subset_key(member[genotype[inside]], subset, len(genes))
    there = key >= 0
    _, subset_number = np.unique(key[there], return_inverse=True)
    unit_key = subset_number.ravel() * index.n + np.broadcast_to(rows[:, None], key.shape)[there]
    _, first, number = np.unique(unit_key, return_index=True, return_inverse=True)
    table = np.full(key.shape, -1, dtype=np.int64)
    table[there] = number.ravel()
    at_row, at_subset = (x[first] for x in np.nonzero(there))
    builders, same = [], []
    for r in range(index.relations):
        effective = at_subset & over[r][at_row]
        dead = (at_subset & over[-1][at_row]) > 0
        changed = np.flatnonzero((effective > 0) & ~dead)
        message, wild = table[at_row, effective][changed], table[at_row, 0][changed]
        needed, place = np.unique(np.concatenate([message, wild]), return_inverse=True)
        place = place.ravel()
        builders.append(
            _removed_of(needed, at_row, at_subset, rows, genotype, member, genes, index.heard[r])
        )
        same.append(
            (
                _long(needed),
                _long(changed),
                _long(place[: len(changed)]),
                _long(place[len(changed) :]),
            )
        )
    dead = (at_subset & over[-1][at_row]) > 0
    units = Units(_long(rows[at_row]), torch.from_numpy(~dead), tuple(builders))
    of_size = tuple(
        _interactions(k, sets, genotype, touching, table, member)
        for k in range(2, largest + 1)
        if (sets.sizes == k).any()
    )
    return Shares(units, tuple(same), of_size)


def _position(sets: _Sets, joint: _Joint) -> Ints:
    """Return the place of each entry's gene in its genotype, genes in ascending order."""
    rank = np.empty(len(sets.member), dtype=np.int64)
    owner = np.repeat(np.arange(len(sets.sizes)), sets.sizes)
    order = np.lexsort((sets.member, owner))
    rank[order] = np.arange(len(order)) - np.repeat(sets.offsets[:-1], sets.sizes)
    return rank[joint.member]


def _members(sets: _Sets, largest: int) -> Ints:
    """Return the genes of each genotype, ascending, [b, largest]; -1 where there are fewer."""
    owner = np.repeat(np.arange(len(sets.sizes)), sets.sizes)
    order = np.lexsort((sets.member, owner))
    column = np.arange(len(order)) - np.repeat(sets.offsets[:-1], sets.sizes)
    members = np.full((len(sets.sizes), largest), -1, dtype=np.int64)
    members[owner, column] = sets.member[order]
    return members


def _subset_key(members: Ints, subset: int, n_genes: int) -> Ints:
    key = np.zeros(len(members), dtype=np.int64)
    for position in _positions(subset):
        key = key * (n_genes + 1) + members[:, position] + 1
    return key


def _positions(subset: int) -> list[int]:
    return [position for position in range(subset.bit_length()) if subset >> position & 1]


def _removed_of(
    units: Ints,
    at_row: Ints,
    at_subset: Ints,
    rows: Ints,
    genotype: Ints,
    member: Ints,
    genes: Ints,
    heard: Ints,
) -> Removed:
    """Return what units no longer receive over a relation over which all of their genes touch."""
    row, subset = at_row[units], at_subset[units]
    inside = (subset[:, None] >> np.arange(member.shape[1])) & 1 == 1
    entry, position = np.nonzero(inside)
    gone = genes[member[genotype[row[entry]], position]]
    left = heard[rows[row]] - inside.sum(1)
    return Removed(_long(units), _long(rows[row]), _long(gone), _long(entry), _long(left))


def _interactions(
    k: int, sets: _Sets, genotype: Ints, touching: Ints, table: Ints, member: Ints
) -> Interactions:
    chosen = np.flatnonzero(sets.sizes == k)
    number = np.full(len(sets.sizes), -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    mine = np.flatnonzero(number[genotype] >= 0)
    of_size = []
    for size in range(2, k + 1):
        units, places = [], []
        for whole in (w for w in range(1 << k) if w.bit_count() == size):
            at = mine[(touching[mine] & whole) == whole]
            units.append(table[at][:, _subsets_of(whole)])
            places.append(number[genotype[at]] * (1 << k) + whole)
        of_size.append((_long(np.concatenate(units)), _long(np.concatenate(places))))
    return Interactions(_long(chosen), _long(member[chosen][:, :k]), tuple(of_size))


def _subsets_of(whole: int) -> list[int]:
    """Return all subsets of a set of positions, in the order of counting over its members."""
    positions = _positions(whole)
    return [
        sum(1 << positions[i] for i in _positions(counted))
        for counted in range(1 << len(positions))
    ]


def signs(size: int) -> torch.Tensor:
    """Return the signs of the subsets of `size` genes in their interaction, float64 [2^size]."""
    counted: Sequence[int] = range(1 << size)
    return torch.tensor([(-1.0) ** (size - c.bit_count()) for c in counted], dtype=torch.float64)


def _long(array: Ints) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
