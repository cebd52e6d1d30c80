"""What is different in mutants, found on the host from gene lists and degrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from deltacell.arrays import Bools, Ints, distinct
from deltacell.propagate.deleted import DeletedNodes
from deltacell.propagate.hop import GENE, Aggregate, Hop, Rows, row_flop, sizes_of, slices, width_of
from deltacell.propagate.product import Bags, Entries, SparseMatrix
from deltacell.propagate.wild import in_parts


@dataclass(frozen=True, eq=False)
class Places:
    """Some nodes of one kind in some mutants of a tile.

    The vectors of a tile of t mutants are one tensor [n * t, hidden], node by node.

    Parameters
    ----------
    at
        ``node * t + mutant``, ascending, int64 [m].
    nodes
        The node of each, int64 [m].
    """

    at: torch.Tensor
    nodes: torch.Tensor

    @classmethod
    def of(cls, at: Ints, t: int) -> Places:
        """Make them from positions on the host."""
        positions = torch.from_numpy(at)
        return cls(positions, positions if t == 1 else torch.from_numpy(at // t))

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, eq=False)
class Piece:
    """A few places: a slice of a list of them, or of all.

    Parameters
    ----------
    part
        The slice.
    at
        The places, where they are from a list.
    nodes
        Their nodes.
    """

    part: slice
    at: torch.Tensor | None
    nodes: Rows

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of x [n * t, width] at these places."""
        return x[self.part] if self.at is None else x.index_select(0, self.at)

    def add(self, x: torch.Tensor, rows: torch.Tensor) -> None:
        """Add to the rows of x at these places."""
        if self.at is None:
            x[self.part].add_(rows)
        else:
            x.index_add_(0, self.at, rows.to(x.dtype))

    def put(self, x: torch.Tensor, rows: torch.Tensor) -> None:
        """Set the rows of x at these places."""
        if self.at is None:
            x[self.part].copy_(rows)
        else:
            x.index_copy_(0, self.at, rows.to(x.dtype))


def pieces(
    places: Places | None, n: int, t: int, at_a_time: int | None, device: torch.device
) -> Iterator[Piece]:
    """Go through places, or through all, a few at a time and equally many each time.

    Parameters
    ----------
    places
        None is all.
    n
        How many rows there are in all.
    t
        How many mutants.
    at_a_time
        At most so many; None is no bound.
    device
        Of the rows.
    """
    length = n if places is None else len(places)
    for part in slices(length, at_a_time):
        if places is not None:
            yield Piece(part, places.at[part], places.nodes[part])
        elif t == 1:
            yield Piece(part, None, part)
        else:
            yield Piece(part, None, torch.arange(part.start, part.stop, device=device) // t)


COVERED = 8
"""So many times more entries than rows that have one, and they are taken to reach every row."""


NEAR_NUMBERS = 2**19
"""Vectors of so many numbers stay in a core's cache while a sparse matrix is gone through."""


@dataclass(frozen=True)
class Rates:
    """Seconds that one unit of each kind of work takes one thread while the others work too.

    The defaults are typical of a server's core. They decide which of two exact ways is taken, and
    never what is found.

    Parameters
    ----------
    entry
        An entry of a sparse matrix times one number of a vector, where the vectors stay in cache.
    far_entry
        The same where they do not.
    flop_forward
        A floating-point operation of the row-wise part, with all that lies between those.
    flop_backward
        One of the same in the backward, where it is computed again, and both its gradients.
    moved
        A number that is gathered from a list of rows, or added to one.
    picked
        A row picked out of a sparse matrix, on the host.
    found
        An entry of a list of differences, made on the host.
    """

    entry: float = 3.7e-11
    far_entry: float = 1e-10
    flop_forward: float = 1.7e-11
    flop_backward: float = 4.5e-11
    moved: float = 4e-10
    picked: float = 8e-7
    found: float = 6e-8

    def product(self, n_entries: float, width: int, numbers: int) -> float:
        """Return the seconds of a product of a sparse matrix and vectors.

        Parameters
        ----------
        n_entries
            Of the matrix.
        width
            Of the vectors, those of all mutants of a tile side by side.
        numbers
            In all vectors.
        """
        return n_entries * width * (self.entry if numbers <= NEAR_NUMBERS else self.far_entry)

    def row_wise(self, flop: float) -> float:
        """Return the seconds of the row-wise part, forward and backward."""
        return flop * (self.flop_forward + self.flop_backward)


@dataclass(frozen=True, eq=False)
class Difference:
    """How the sums of mutants come from the wild type's and the changed sources alone.

    Parameters
    ----------
    by_target
        For each place that is computed, which of the changed sources it hears from.
    by_source
        For each changed source, which of the computed places hear from it.
    """

    by_target: Bags
    by_source: Bags


@dataclass(frozen=True, eq=False)
class Received:
    """What is done about one aggregate of a hop.

    Parameters
    ----------
    computed
        Where what is received, or the node's own vector, is not the wild type's; None is
        everywhere.
    taken
        Where the hop changes something, and this aggregate's message is the wild type's; None is
        nowhere.
    difference
        How to find the sums from the wild type's; None is by a whole product.
    to_changed
        Whether gradients go only to the changed sources and to the wild type's sums; otherwise
        they go back through a whole product.
    """

    computed: Places | None
    taken: Places | None
    difference: Difference | None
    to_changed: bool


@dataclass(frozen=True, eq=False)
class ChangedHop:
    """What a hop changes.

    Parameters
    ----------
    changed
        The living nodes whose new vectors are not the wild type's; None is all nodes.
    sources
        The changed and deleted nodes before the hop, of each kind that it reads; None is all.
    received
        One an aggregate.
    """

    changed: Places | None
    sources: Mapping[str, Places | None]
    received: tuple[Received, ...]


@dataclass(frozen=True, eq=False)
class ReadGenes:
    """The genes that make the pool of a mutant another than the wild type's.

    Parameters
    ----------
    places
        Which genes, m of them.
    owner
        The mutant of the tile that each belongs to, int64 [m].
    living
        Whether it is not deleted, bool [m].
    """

    places: Places
    owner: torch.Tensor
    living: torch.Tensor


@dataclass(frozen=True, eq=False)
class Tile:
    """Some mutants that are propagated together, and what is different in them.

    Parameters
    ----------
    begin, end
        Which mutants of the batch.
    deleted
        The deleted nodes of each kind of which there are any.
    silent
        For each matrix whose rows are averaged, the places that hear from fewer sources than in
        the wild type, and how many fewer, [m].
    hops
        One a hop.
    read
        The genes that are changed or deleted in the end; None is all genes.
    """

    begin: int
    end: int
    deleted: Mapping[str, Places]
    silent: Mapping[SparseMatrix, tuple[Places, torch.Tensor]]
    hops: tuple[ChangedHop, ...]
    read: ReadGenes | None

    @property
    def size(self) -> int:
        """Number of mutants."""
        return self.end - self.begin


class Changes:
    """Finds what is different in mutants, and the cheapest way to compute it.

    A node's new vector is the wild type's unless its own vector or one that it hears from is
    changed. What is found may be more than that, where computing it costs less than leaving it
    out, and never less.

    Parameters
    ----------
    hops
        For their targets, matrices and sizes; nothing is computed with them.
    rates
        What things cost.
    """

    def __init__(self, hops: Sequence[Hop], rates: Rates) -> None:
        self.hops, self.rates = hops, rates
        self.sizes = sizes_of(hops)
        self.steps = [_Step.of(hop) for hop in hops]

    def tile(self, deleted: Mapping[str, DeletedNodes], begin: int, end: int) -> Tile:
        """Return what is different in mutants ``begin`` to ``end`` of a batch.

        Parameters
        ----------
        deleted
            The deleted nodes of the batch, on the host.
        begin, end
            Which mutants.
        """
        found = _Changed(self, deleted, begin, end)
        hops = tuple(found.after(step) for step in self.steps)
        return Tile(begin, end, found.deleted_places(), found.silent(), hops, found.read())


@dataclass(frozen=True, eq=False)
class _Step:
    """A hop, with what is the same in every mutant."""

    hop: Hop
    width: int
    flop: float
    sources: tuple[_Source, ...]

    @classmethod
    def of(cls, hop: Hop) -> _Step:
        parts = in_parts(hop.aggregates)
        sources = tuple(
            _Source.of(a, p.cost(a.matrix)) for a, p in zip(hop.aggregates, parts, strict=True)
        )
        return cls(hop, width_of(hop), row_flop(hop) / len(sources), sources)


@dataclass(frozen=True, eq=False)
class _Source:
    """An aggregate, with who hears from it and how many hear from each source."""

    aggregate: Aggregate
    n_entries: float
    hearing: Bools
    n_hearing: int
    out_degree: Ints

    @classmethod
    def of(cls, a: Aggregate, n_entries: float) -> _Source:
        hearing = np.diff(a.matrix.indptr) > 0
        degree = np.diff(a.matrix.transpose.indptr)
        return cls(a, n_entries, hearing, int(np.count_nonzero(hearing)), degree)


class _Set:
    """Places as a mask, or all; deleted ones may be among them."""

    def __init__(self, mask: Bools | None, t: int) -> None:
        self.mask, self.t = mask, t
        self.at: Ints | None = None if mask is None else np.flatnonzero(mask)

    @property
    def nodes(self) -> Ints:
        assert self.at is not None
        return self.at if self.t == 1 else self.at // self.t

    @property
    def mutants(self) -> Ints:
        assert self.at is not None
        return self.at % self.t

    def places(self) -> Places | None:
        return None if self.at is None else Places.of(self.at, self.t)


class _Changed:
    """The changed and deleted nodes of each kind, on the way through the hops."""

    def __init__(
        self, changes: Changes, deleted: Mapping[str, DeletedNodes], begin: int, end: int
    ) -> None:
        self.changes, self.rates, self.t = changes, changes.rates, end - begin
        self.deleted: dict[str, Ints] = {}
        for kind, nodes in deleted.items():
            tile = nodes.tile(begin, end)
            if tile.starts[-1] and kind in changes.sizes:
                self.deleted[kind] = np.sort(tile.nodes.numpy() * self.t + tile.owner.numpy())
        self.now = {
            kind: _Set(_mask(self._lost(kind), n * self.t), self.t)
            for kind, n in changes.sizes.items()
        }

    def after(self, step: _Step) -> ChangedHop:
        """Go through a hop."""
        hop = step.hop
        own = self.now[hop.target].mask
        if own is None:
            computed: list[Bools | None] = [None] * len(step.sources)
        else:
            masks: list[Bools] = [own | self._reached(s) for s in step.sources]
            if hop.messages is None:
                masks = [np.logical_or.reduce(masks)] * len(masks)
            for mask in masks:
                mask[self._lost(hop.target)] = False
            computed = [m if self._listing_pays(step, m) else None for m in masks]
        changed = None
        if all(c is not None for c in computed):
            changed = np.logical_or.reduce(cast(list[Bools], computed))
        sources = {s.aggregate.source: self.now[s.aggregate.source].places() for s in step.sources}
        received = tuple(
            self._received(step, s, c, changed) for s, c in zip(step.sources, computed, strict=True)
        )
        found = ChangedHop(_Set(changed, self.t).places(), sources, received)
        if changed is not None:
            changed = changed.copy()
            changed[self._lost(hop.target)] = True
        self.now[hop.target] = _Set(changed, self.t)
        return found

    def deleted_places(self) -> dict[str, Places]:
        """Return the deleted nodes."""
        return {kind: Places.of(at, self.t) for kind, at in self.deleted.items()}

    def silent(self) -> dict[SparseMatrix, tuple[Places, torch.Tensor]]:
        """Return who hears from fewer sources than in the wild type, where that matters."""
        found = {}
        for a in (s.aggregate for step in self.changes.steps for s in step.sources):
            if a.mean and a.matrix not in found and a.source in self.deleted:
                lost = self.deleted[a.source]
                entries = Entries.of(a.matrix, lost // self.t)
                at, times = distinct(entries.target * self.t + (lost % self.t)[entries.source])
                found[a.matrix] = (Places.of(at, self.t), torch.from_numpy(times))
        return found

    def read(self) -> ReadGenes | None:
        """Return the genes that are changed or deleted after all hops."""
        at, lost = self.now[GENE].at, self._lost(GENE)
        # The pool of no genes at all is nothing that could be written as a difference.
        left = self.changes.sizes[GENE] - np.bincount(lost % self.t, minlength=self.t)
        if at is None or not left.all():
            return None
        living = ~np.isin(at, lost, assume_unique=True)
        owner = torch.from_numpy(at % self.t)
        return ReadGenes(Places.of(at, self.t), owner, torch.from_numpy(living))

    def _reached(self, s: _Source) -> Bools:
        """Return which targets hear from a changed or deleted source, as a mask of its own."""
        now = self.now[s.aggregate.source]
        if now.at is None or self._n_entries(s) > COVERED * self.t * s.n_hearing:
            return np.repeat(s.hearing, self.t)
        entries = Entries.of(s.aggregate.matrix, now.nodes)
        at = entries.target
        if self.t > 1:
            at = at * self.t + now.mutants[entries.source]
        return _mask(at, len(s.hearing) * self.t)

    def _n_entries(self, s: _Source) -> int:
        """Return how many entries the changed and deleted sources have."""
        return int(s.out_degree[self.now[s.aggregate.source].nodes].sum())

    def _received(
        self, step: _Step, s: _Source, computed: Bools | None, changed: Bools | None
    ) -> Received:
        taken = None
        if computed is not None and step.hop.messages is not None:
            rest = ~computed if changed is None else changed & ~computed
            rest[self._lost(step.hop.target)] = False
            taken = _Set(rest, self.t).places()
            taken = None if taken is None or len(taken) == 0 else taken
        places = _Set(computed, self.t).places()
        sources = self.now[s.aggregate.source]
        if sources.at is None:
            return Received(places, taken, None, to_changed=False)
        n_entries, width = self._n_entries(s), step.width
        whole = self._product(s.n_entries * self.t, s, width)
        some = self._product(n_entries, s, width)
        if computed is not None and n_entries * self.rates.found + some < whole:
            difference = self._difference(s.aggregate.matrix, sources, computed)
            return Received(places, taken, difference, to_changed=True)
        # Rows are picked and added, and all sums are added to the wild type's.
        picked = len(sources.at) * (self.rates.picked + 2 * width * self.rates.moved)
        added = len(s.hearing) * self.t * width * self.rates.moved / 2
        return Received(places, taken, None, to_changed=picked + added + some < whole)

    def _difference(self, matrix: SparseMatrix, sources: _Set, computed: Bools) -> Difference:
        assert sources.at is not None
        entries = Entries.of(matrix, sources.nodes)
        target = entries.target * self.t + sources.mutants[entries.source]
        # Deleted targets are not computed; nothing goes to them.
        kept = computed[target]
        entries, target = entries.kept(kept), target[kept]
        number = np.cumsum(computed) - 1
        return Difference(
            entries.by_target(int(np.count_nonzero(computed)), number[target]),
            entries.by_source(len(sources.at), number[target]),
        )

    def _listing_pays(self, step: _Step, places: Bools) -> bool:
        """Whether to compute a list of places instead of all."""
        one = self.rates.row_wise(step.flop)
        # Vectors and sums are gathered twice, messages and two gradients are scattered.
        listed = one + 7 * step.width * self.rates.moved
        return int(np.count_nonzero(places)) * listed < len(places) * one

    def _product(self, n_entries: float, s: _Source, width: int) -> float:
        numbers = len(s.out_degree) * self.t * width
        return self.rates.product(n_entries, width, numbers)

    def _lost(self, kind: str) -> Ints:
        return self.deleted.get(kind, _NONE)


_NONE: Ints = np.zeros(0, dtype=np.int64)


def _mask(at: Ints, size: int) -> Bools:
    mask = np.zeros(size, dtype=bool)
    mask[at] = True
    return mask
