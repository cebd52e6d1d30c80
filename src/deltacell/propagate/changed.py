"""What is different in mutants, found on the host from gene lists and degrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from deltacell.arrays import Bools, Ints, distinct, offsets_of, ragged_positions
from deltacell.propagate.hop import GENE, Aggregate, Hop, sizes_of
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import DeletedNodes

COVERED = 8
"""So many times more entries than rows that have one, and they are taken to reach every row."""


@dataclass(frozen=True)
class Rates:
    """Seconds that one unit of each kind of work takes one thread while the others work too.

    The defaults are typical of a server's core. They decide which of two exact ways is taken, and
    never what is found.
    """

    entry: float = 5e-11  # an entry of a sparse matrix times one number of a vector
    flop: float = 6.2e-11  # a floating-point operation of the row-wise part and of its backward
    moved: float = 4e-10  # a number that is gathered from a list of rows, or added to one
    found: float = 6e-8  # an entry of a list of differences, made on the host


@dataclass(frozen=True, eq=False)
class Places:
    """Some nodes of one kind in some mutants of a tile.

    The vectors of a tile of t mutants are one tensor [n * t, hidden], node by node.
    """

    at: torch.Tensor  # node * t + mutant, ascending, int64 [m]
    nodes: torch.Tensor  # int64 [m]

    @classmethod
    def of(cls, at: Ints, t: int) -> Places:
        """Make them from positions on the host."""
        positions = torch.from_numpy(at)
        return cls(positions, positions if t == 1 else torch.from_numpy(at // t))

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, eq=False)
class Received:
    """What is done about one aggregate of a hop."""

    # Where what is received, or the node's own vector, is not the wild type's; None is everywhere.
    computed: Places | None
    # Which of the hop's new rows these are; None is all of them.
    into: torch.Tensor | None
    # Where the hop changes something and this aggregate's message is the wild type's, as new rows
    # and as nodes; None is nowhere.
    taken: tuple[torch.Tensor, torch.Tensor] | None
    # From how the changed sources differ to how the sums at the computed places do,
    # [m, sources]; None is by a whole product.
    difference: SparseMatrix | None


@dataclass(frozen=True, eq=False)
class ChangedHop:
    """What a hop changes."""

    changed: Places | None  # living nodes with new vectors not the wild type's; None is all nodes
    sources: Mapping[str, Places | None]  # changed or deleted before it, by kind; None is all
    received: tuple[Received, ...]  # one per aggregate


@dataclass(frozen=True, eq=False)
class Tile:
    """Some mutants that are propagated together, and what is different in them."""

    begin: int  # which mutants of the batch
    end: int
    deleted: Mapping[str, torch.Tensor]  # the places of deleted nodes, by kind
    # For each matrix whose rows are averaged, the places that hear from fewer sources than in the
    # wild type, and how many fewer.
    silent: Mapping[SparseMatrix, tuple[torch.Tensor, torch.Tensor]]
    hops: tuple[ChangedHop, ...]
    # The genes that are changed or deleted in the end, the mutant that each belongs to, and
    # whether it lives; None is all genes.
    read: tuple[Places, torch.Tensor, torch.Tensor] | None

    @property
    def size(self) -> int:
        """Number of mutants."""
        return self.end - self.begin


class Changes:
    """Finds what is different in mutants, and the cheapest way to compute it.

    A node's new vector is the wild type's unless its own vector or one that it hears from is
    changed. What is found may be more than that, where computing it costs less than leaving it
    out, and never less. Nothing is computed with the hops.
    """

    def __init__(self, hops: Sequence[Hop], rates: Rates) -> None:
        self.hops, self.rates = hops, rates
        self.sizes = sizes_of(hops)
        self._degrees: dict[SparseMatrix, tuple[Bools, Ints]] = {}

    def tile(self, deleted: Mapping[str, DeletedNodes], begin: int, end: int) -> Tile:
        """Return what is different in mutants ``begin`` to ``end`` of a batch, on the host."""
        t = end - begin
        lost = dict.fromkeys(self.sizes, _NONE)
        for kind, nodes in deleted.items():
            if kind in self.sizes:
                own = nodes.tile(begin, end)
                lost[kind] = np.sort(own.nodes.numpy() * t + own.owner.numpy())
        # What is changed or deleted; None is everything.
        now: dict[str, Bools | None] = {k: _mask(lost[k], n * t) for k, n in self.sizes.items()}
        hops = []
        for hop in self.hops:
            gone = lost[hop.target]
            kinds = dict.fromkeys(a.source for a in hop.aggregates)
            sources = {k: None if (m := now[k]) is None else np.flatnonzero(m) for k in kinds}
            computed = self._computed(hop, now[hop.target], sources, gone, t)
            changed: Bools | None = None
            if all(c is not None for c in computed):
                changed = np.logical_or.reduce(cast(list[Bools], computed))
            received = tuple(
                self._received(hop, a, c, changed, sources[a.source], gone, t)
                for a, c in zip(hop.aggregates, computed, strict=True)
            )
            places = {k: None if at is None else Places.of(at, t) for k, at in sources.items()}
            hops.append(ChangedHop(_places(changed, t), places, received))
            if changed is not None:
                changed[gone] = True
            now[hop.target] = changed
        at = {kind: torch.from_numpy(of) for kind, of in lost.items() if len(of)}
        return Tile(begin, end, at, self._silent(lost, t), tuple(hops), self._read(now, lost, t))

    def _computed(
        self, hop: Hop, own: Bools | None, sources: Mapping[str, Ints | None], gone: Ints, t: int
    ) -> list[Bools | None]:
        """Return where the message over each aggregate has to be computed; None is everywhere."""
        if own is None:
            return [None] * len(hop.aggregates)
        masks: list[Bools] = [own | self._reached(a, sources[a.source], t) for a in hop.aggregates]
        if hop.messages is None:
            masks = [np.logical_or.reduce(masks)] * len(masks)
        # Vectors and sums are gathered twice, messages and two gradients are scattered.
        one = 2.0 * sum(p.numel() for p in hop.parameters) / len(masks) * self.rates.flop
        listed = one + 7 * hop.width * self.rates.moved
        for mask in masks:
            mask[gone] = False
        return [m if np.count_nonzero(m) * listed < len(m) * one else None for m in masks]

    def _reached(self, a: Aggregate, sources: Ints | None, t: int) -> Bools:
        """Return which targets hear from a changed or deleted source."""
        hearing, degree = self._degrees_of(a.matrix)
        if sources is None or degree[sources // t].sum() > COVERED * t * np.count_nonzero(hearing):
            return np.repeat(hearing, t)
        source, target, _ = _entries(a.matrix, sources // t)
        return _mask(target * t + (sources % t)[source], len(hearing) * t)

    def _received(
        self,
        hop: Hop,
        a: Aggregate,
        computed: Bools | None,
        changed: Bools | None,
        sources: Ints | None,
        gone: Ints,
        t: int,
    ) -> Received:
        into = taken = difference = None
        if computed is not None:
            into = np.flatnonzero(computed)
            rest = ~computed if changed is None else changed & ~computed
            rest[gone] = False
            at = new_rows = np.flatnonzero(rest)
            if changed is not None:
                number = np.cumsum(changed) - 1
                into, new_rows = number[into], number[at]
            if hop.messages is not None and len(at):
                taken = torch.from_numpy(new_rows), torch.from_numpy(at // t)
            if sources is not None and self._difference_pays(hop, a, sources // t, t):
                difference = _difference(a.matrix, sources, computed, t)
        return Received(
            _places(computed, t),
            None if into is None else torch.from_numpy(into),
            taken,
            difference,
        )

    def _difference_pays(self, hop: Hop, a: Aggregate, sources: Ints, t: int) -> bool:
        n_entries = int(self._degrees_of(a.matrix)[1][sources].sum())
        saved = 2 * hop.width * self.rates.entry * (a.matrix.n_entries * t - n_entries)
        return n_entries * self.rates.found < saved

    def _degrees_of(self, matrix: SparseMatrix) -> tuple[Bools, Ints]:
        """Return which rows have an entry, and how many entries each column has."""
        if matrix not in self._degrees:
            found = np.diff(matrix.indptr) > 0, np.diff(matrix.transpose.indptr)
            self._degrees[matrix] = found
        return self._degrees[matrix]

    def _silent(
        self, lost: Mapping[str, Ints], t: int
    ) -> dict[SparseMatrix, tuple[torch.Tensor, torch.Tensor]]:
        found = {}
        for a in (a for hop in self.hops for a in hop.aggregates):
            if a.mean and a.matrix not in found and len(gone := lost[a.source]):
                source, target, _ = _entries(a.matrix, gone // t)
                at, fewer = distinct(target * t + (gone % t)[source])
                found[a.matrix] = torch.from_numpy(at), torch.from_numpy(fewer)
        return found

    def _read(
        self, now: Mapping[str, Bools | None], lost: Mapping[str, Ints], t: int
    ) -> tuple[Places, torch.Tensor, torch.Tensor] | None:
        changed, gone = now[GENE], lost[GENE]
        left = self.sizes[GENE] - np.bincount(gone % t, minlength=t)
        # The pool of no genes at all is nothing that could be written as a difference.
        if changed is None or not left.all():
            return None
        at = np.flatnonzero(changed)
        living = ~np.isin(at, gone, assume_unique=True)
        return Places.of(at, t), torch.from_numpy(at % t), torch.from_numpy(living)


_NONE: Ints = np.zeros(0, dtype=np.int64)


def _entries(matrix: SparseMatrix, columns: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the entries in some columns: which of these, the row, and the place of its value."""
    turned = matrix.transpose
    starts = turned.indptr[columns]
    lengths = turned.indptr[columns + 1] - starts
    at = ragged_positions(starts, lengths)
    return np.repeat(np.arange(len(columns)), lengths), turned.indices[at].astype(np.int64), at


def _difference(matrix: SparseMatrix, sources: Ints, computed: Bools, t: int) -> SparseMatrix:
    source, node, value = _entries(matrix, sources // t)
    target = node * t + (sources % t)[source]
    # Deleted targets are not computed; nothing goes to them.
    kept = computed[target]
    number = np.cumsum(computed) - 1
    values = matrix.transpose.values
    by_source = SparseMatrix(
        offsets_of(np.bincount(source[kept], minlength=len(sources))),
        number[target[kept]].astype(np.int32),
        None if values is None else values[value[kept]],
        n_columns=int(np.count_nonzero(computed)),
    )
    return by_source.transpose


def _places(mask: Bools | None, t: int) -> Places | None:
    return None if mask is None else Places.of(np.flatnonzero(mask), t)


def _mask(at: Ints, size: int) -> Bools:
    mask = np.zeros(size, dtype=bool)
    mask[at] = True
    return mask
