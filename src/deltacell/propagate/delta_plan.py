"""Which rows of a tile of mutants change in each hop, and how they are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deltacell.base.arrays import Bools, Ints, offsets_of
from deltacell.propagate.hop import GENE, Aggregate, HopShape, MessageShape, sizes_of
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.tiles import LostPlaces, Places, Tile

COVERED = 8  # entries per row from which on they are assumed to reach every row


@dataclass(frozen=True)
class Costs:
    """What decides between computing some rows and computing all; both ways are exact."""

    gather: float  # gathering a row costs as much as multiplying it by so many columns of weights
    entry: float  # finding an entry of a difference on the host, as multiplying so many numbers


@dataclass(frozen=True, eq=False)
class ChangedMessage:
    """Where and how one message of a hop is computed."""

    # Where an aggregate or the node's own vector differs from the wild type.
    computed: Places
    # For each aggregate the matrix [m, sources] from the differences of the changed sources to
    # those of the sums at the computed places; None for a whole product.
    differences: tuple[SparseMatrix | None, ...]


@dataclass(frozen=True, eq=False)
class ChangedHop:
    """How one hop is computed."""

    # For each message; None if it is computed everywhere.
    messages: tuple[ChangedMessage | None, ...]
    # Nodes that are changed or deleted before the hop, by kind; None is all.
    sources: Mapping[str, Places | None]


@dataclass(frozen=True, eq=False)
class ChangedGenes:
    """The genes that are changed or deleted after the last hop."""

    genes: Places
    mutants: Tensor  # the mutant of each, int64 [m]
    living: Tensor  # whether it is not deleted, bool [m]


@dataclass(frozen=True, eq=False)
class DeltaTile(Tile):
    """A tile, and where its mutants differ from the wild type."""

    hops: tuple[ChangedHop, ...]
    read: ChangedGenes | None  # None is all genes


def delta_tile(
    shapes: Sequence[HopShape],
    lost: LostPlaces,
    costs: Costs,
    device: torch.device,
) -> DeltaTile:
    """Return the tile of mutants that lose the nodes at some places, and what changes in them."""
    # A mask over the places that are changed or deleted so far; None is all.
    changed: dict[str, Bools | None] = {
        kind: _mask(lost.by_kind[kind], n * lost.size) for kind, n in sizes_of(shapes).items()
    }
    hops = []
    for shape in shapes:
        finder = _HopFinder(shape, lost, changed, costs, device)
        hops.append(finder.hop)
        changed[shape.target] = finder.changed
    tile = Tile.of(shapes, lost)
    read = _changed_genes(changed[GENE], lost) if shapes else None
    return DeltaTile(tile.size, tile.deleted, tile.deleted_sources, tuple(hops), read)


def _changed_genes(changed: Bools | None, lost: LostPlaces) -> ChangedGenes | None:
    deleted = lost.by_kind[GENE]
    if changed is None:
        return None
    n_genes = len(changed) // lost.size
    n_deleted = np.bincount(deleted % lost.size, minlength=lost.size)
    # An empty pool cannot be written as a difference.
    if (n_deleted == n_genes).any():
        return None
    places = np.flatnonzero(changed)
    living = ~np.isin(places, deleted, assume_unique=True)
    mutants = torch.from_numpy(places % lost.size)
    return ChangedGenes(Places.of(places, lost.size), mutants, torch.from_numpy(living))


class _HopFinder:
    """Finds how one hop is computed, and the places that are changed or deleted after it."""

    def __init__(
        self,
        shape: HopShape,
        lost: LostPlaces,
        changed: Mapping[str, Bools | None],
        costs: Costs,
        device: torch.device,
    ) -> None:
        self._costs = costs
        self._shape = shape
        self._deleted = lost.by_kind[shape.target]
        self._t = lost.size
        self._device = device
        self._own = changed[shape.target]
        self._sources = {
            aggregate.source: _places_in(changed[aggregate.source])
            for aggregate in shape.aggregates
        }
        computed = [self._computed(message) for message in shape.messages]
        self.hop = ChangedHop(
            tuple(
                None if mask is None else self._message(message, mask)
                for message, mask in zip(shape.messages, computed, strict=True)
            ),
            {
                kind: None if places is None else Places.of(places, self._t)
                for kind, places in self._sources.items()
            },
        )
        self.changed = self._changed_after(computed)

    def _changed_after(self, computed: Sequence[Bools | None]) -> Bools | None:
        masks = [mask for mask in computed if mask is not None]
        if len(masks) < len(computed):
            return None
        changed: Bools = np.logical_or.reduce(masks)
        changed[self._deleted] = True
        return changed

    def _computed(self, message: MessageShape) -> Bools | None:
        """Return a mask of where to compute a message; None is everywhere."""
        if self._own is None:
            return None
        reached = [self._reached(aggregate) for aggregate in message.aggregates]
        mask: Bools = np.logical_or.reduce([self._own, *reached])
        mask[self._deleted] = False
        columns = message.n_weights / self._shape.width
        cost_of_row = columns + self._costs.gather * len(message.aggregates)
        is_cheaper = np.count_nonzero(mask) * cost_of_row < len(mask) * columns
        return mask if is_cheaper else None

    def _reached(self, aggregate: Aggregate) -> Bools:
        """Return which targets receive from a changed or deleted source."""
        sources = self._sources[aggregate.source]
        receives = np.diff(aggregate.matrix.indptr) > 0
        limit = COVERED * self._t * receives.sum()
        if sources is None or self._n_entries(aggregate, sources) > limit:
            return np.repeat(receives, self._t)
        entries = aggregate.matrix.entries_in_columns(sources // self._t)
        targets = entries.row * self._t + (sources % self._t)[entries.column]
        return _mask(targets, len(receives) * self._t)

    def _n_entries(self, aggregate: Aggregate, sources: Ints) -> int:
        return int(aggregate.matrix.column_sizes(sources // self._t).sum())

    def _message(self, message: MessageShape, computed: Bools) -> ChangedMessage:
        differences = [self._difference(aggregate, computed) for aggregate in message.aggregates]
        places = Places.of(np.flatnonzero(computed), self._t)
        return ChangedMessage(places, tuple(differences))

    def _difference(self, aggregate: Aggregate, computed: Bools) -> SparseMatrix | None:
        """Return the matrix of `ChangedMessage.differences`, or None if a product costs less."""
        sources = self._sources[aggregate.source]
        if sources is None:
            return None
        n_entries = self._n_entries(aggregate, sources)
        n_saved = aggregate.matrix.n_entries * self._t - n_entries
        if n_entries * self._costs.entry >= self._shape.width * n_saved:
            return None
        matrix = _difference_matrix(aggregate.matrix, sources, computed, self._t)
        if self._device.type != "cpu":
            matrix.prepare()
        return matrix


def _difference_matrix(
    matrix: SparseMatrix,
    sources: Ints,
    computed: Bools,
    t: int,
) -> SparseMatrix:
    """Return the entries of a matrix from the places `sources` to the computed places."""
    entries = matrix.entries_in_columns(sources // t)
    targets = entries.row * t + (sources % t)[entries.column]
    # Deleted targets are not computed.
    is_computed = computed[targets]
    numbers = np.cumsum(computed) - 1
    values = matrix.transpose.values
    by_source = SparseMatrix(
        offsets_of(np.bincount(entries.column[is_computed], minlength=len(sources))),
        numbers[targets[is_computed]].astype(np.int32),
        None if values is None else values[entries.value[is_computed]],
        n_columns=int(np.count_nonzero(computed)),
    )
    return by_source.transpose


def _places_in(mask: Bools | None) -> Ints | None:
    return None if mask is None else np.flatnonzero(mask)


def _mask(places: Ints, size: int) -> Bools:
    mask = np.zeros(size, dtype=bool)
    mask[places] = True
    return mask
