"""The strategy `delta`: every mutant as an exact difference from the wild type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from deltacell.errors import InputError
from deltacell.propagate.changed import Changes, Places, Rates, Received, Tile
from deltacell.propagate.hop import (
    ALL,
    GENE,
    Aggregate,
    Hop,
    Readout,
    State,
    Terms,
    WildPool,
    place_of,
    pool_changes,
    pool_difference,
    sizes_of,
    wild_pool,
)
from deltacell.propagate.product import SparseMatrix, product
from deltacell.propagate.protocol import Deleted, Mutants, WildType
from deltacell.propagate.shared import (
    NEAR_NUMBERS,
    check_at_least,
    rows_at_a_time,
    wild_type_in_parts,
)
from deltacell.propagate.workers import Pieces, in_graphs, row_wise, workers_for

KEPT_BYTES = 2**30
"""What is kept for the backward where no bound is given; the rest is computed again."""


@dataclass(frozen=True, eq=False)
class DeletedInTiles(Deleted):
    """What a batch deletes, and what is different for it."""

    tiles: tuple[Tile, ...] = ()


@dataclass(frozen=True)
class Delta:
    """The wild type once, and of every mutant only what is different.

    A mutant's vectors are ``X = X_wt + D``, and D is 0 but on changed rows. A hop's sums are
    ``A X = A X_wt + A D``: in the first hop D is the deleted genes, and a few rows change; from hop
    to hop there are more, over each relation those alone that hear from a changed one. Where that
    is nearly all, a whole product takes its place; which of the two is chosen for each relation and
    hop by what they cost. Rows that do not change are the wild type's, in value and in gradient:
    what comes back to them is added up over the batch and goes through the wild type's products
    once. Mutants are shared out to threads that need not wait for each other.

    Parameters
    ----------
    tile
        How many mutants go through one product. Where not given, on a CPU as many as stay in cache,
        1 for a cell of yeast's size; elsewhere the whole batch.
    rows_at_a_time
        How many rows go through a row-wise function together, see `row_wise`. Where not given,
        2,208 on a CPU, and elsewhere all at once; 0 is all at once anywhere.
    workers
        Threads. Where not given, on a CPU as many as PyTorch may use; elsewhere one.
    max_bytes
        Bound on the memory of a batch, beside the model. What does not fit is computed again in the
        backward, with the same result and gradient.
    rates
        What things cost.
    """

    tile: int | None = None
    rows_at_a_time: int | None = None
    workers: int | None = None
    max_bytes: int | None = None
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        check_at_least(
            tile=(self.tile, 1),
            rows_at_a_time=(self.rows_at_a_time, 0),
            workers=(self.workers, 1),
            max_bytes=(self.max_bytes, 1),
        )

    name = "delta"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> DeletedInTiles:
        """Find out on the host what is different in each mutant."""
        host = deleted.to("cpu")
        changes = Changes(hops, self.rates)
        width = min(self.tile or self._width(hops, len(host)), max(len(host), 1))
        if self.max_bytes is not None and len(host):
            # As wide as memory reaches for; one that is too small even for one is an error.
            while width > 1:
                tile = changes.tile(host.nodes, 0, width)
                if self._estimate(hops, [tile]).least <= self.max_bytes:
                    break
                width = -(-width // 2)
        tiles = tuple(
            changes.tile(host.nodes, begin, min(begin + width, len(host)))
            for begin in range(0, len(host), width)
        )
        return DeletedInTiles(deleted.genotypes, deleted.nodes, tiles)

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, and keep what lies between its vectors."""
        device = state[GENE].device
        workers = self.workers or workers_for(device, 1 << 20)
        return wild_type_in_parts(hops, state, Pieces(self._rows(device), workers))

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate what is different in the mutants."""
        genes = wild_type.last[GENE]
        pool = wild_pool(readout.terms(genes, ALL))
        if not isinstance(deleted, DeletedInTiles):
            deleted = self.prepare(hops, deleted).to(genes.device)
        if not deleted.tiles:
            none = genes.new_zeros(0, *genes.shape)
            return Mutants(none[:, 0], pool.pooled, none if vectors else None)
        if len(wild_type.sums) != len(hops):
            wild_type = self.wild_type(hops, wild_type.first)
        kept, workers = self._kept(hops, deleted.tiles)
        wild = wild_type.states, wild_type.sums, wild_type.messages, pool
        given, tree = tree_flatten(wild)
        pieces, tiles = Pieces(self._rows(genes.device)), deleted.tiles

        def run(i: int, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            wild = _Wild(*tree_unflatten(list(given), tree))
            mutants = _Mutants(hops, readout, pieces, tiles[i], wild)
            mutants.propagate()
            return (mutants.read(), mutants.genes()) if vectors else (mutants.read(),)

        parameters = [p for hop in hops for p in _parameters(hop)] + list(readout.parameters())
        found = in_graphs(run, len(tiles), given, parameters, workers, kept)
        z, *per_gene = map(torch.cat, zip(*found, strict=True))
        return Mutants(z, pool.pooled, *per_gene)

    def estimate(self, hops: Sequence[Hop], deleted: Deleted) -> Estimate:
        """Return the bytes that a batch takes forward and backward, beside the model."""
        if not isinstance(deleted, DeletedInTiles):
            deleted = self.prepare(hops, deleted)
        return self._estimate(hops, deleted.tiles)

    def _estimate(self, hops: Sequence[Hop], tiles: Sequence[Tile]) -> Estimate:
        return estimate(hops, tiles, self._rows(place_of(hops)[0]))

    def _kept(self, hops: Sequence[Hop], tiles: Sequence[Tile]) -> tuple[int, int]:
        device = place_of(hops)[0]
        workers = workers_for(device, len(tiles)) if self.workers is None else self.workers
        return self._estimate(hops, tiles).within(self.max_bytes, min(workers, len(tiles)))

    def _width(self, hops: Sequence[Hop], batch: int) -> int:
        device = place_of(hops)[0]
        if device.type != "cpu" or not hops:
            return max(batch, 1)
        near = max(1, NEAR_NUMBERS // (sizes_of(hops)[GENE] * max(hop.width for hop in hops)))
        # Every thread is to have mutants of its own.
        workers = self.workers or workers_for(device, batch)
        return min(near, max(1, -(-batch // workers)))

    def _rows(self, device: torch.device) -> int | None:
        return rows_at_a_time(self.rows_at_a_time, device)


def _parameters(hop: Hop) -> list[torch.Tensor]:
    if hop.messages is None:
        return list(hop.parameters)
    return [p for message in hop.messages for p in message.parameters]


# Tensors of a mutant's size that are alive at once, counted in the code and checked by measuring.
_IN_A_HOP = 9
_PER_NUMBER_OF_A_ROW = 8


@dataclass(frozen=True)
class Estimate:
    """Bytes that a batch takes."""

    wild_type: int  # with its parts, and its backward
    worker: int  # what each thread works in, with its sums of gradients
    tiles: tuple[int, ...]  # each, if it is kept for the backward

    def of(self, kept: int, workers: int) -> int:
        """Return the bytes of a batch of which some tiles are kept for the backward."""
        again = max(self.tiles[kept:], default=0)
        return self.wild_type + workers * (self.worker + again) + sum(self.tiles[:kept])

    @property
    def least(self) -> int:
        """The bytes of one tile after the other, with nothing kept."""
        return self.of(0, 1)

    def within(self, max_bytes: int | None, workers: int) -> tuple[int, int]:
        """Return how many tiles to keep and how many threads to use within a bound."""
        n = len(self.tiles)
        if max_bytes is None:
            return sum(total <= KEPT_BYTES for total in accumulate(self.tiles)), workers
        if self.least > max_bytes:
            raise InputError(
                f"max_bytes is {max_bytes:,}, and one genotype at a time takes {self.least:,}",
                code="max-bytes-too-small",
                fix=f"Give at least {self.least:,} bytes, or use a smaller model.",
                least=self.least,
            )
        while self.of(0, workers) > max_bytes:
            workers -= 1
        return max(k for k in range(n + 1) if self.of(k, workers) <= max_bytes), workers


def estimate(hops: Sequence[Hop], tiles: Sequence[Tile], at_a_time: int | None) -> Estimate:
    """Return the bytes that a batch takes forward and backward, beside the model."""
    sizes, item = sizes_of(hops), place_of(hops)[1].itemsize
    width = max(hop.width for hop in hops)
    t = max((tile.size for tile in tiles), default=1)
    # Vectors after each hop, sums and messages.
    wild = sum((1 + 2 * len(hop.aggregates)) * sizes[hop.target] for hop in hops)
    rows = t * max(sizes.values())
    in_pieces = rows if at_a_time is None else min(rows, at_a_time)
    numbers = max(
        _PER_NUMBER_OF_A_ROW * sum(p.numel() for p in parameters) // width
        for hop in hops
        for parameters in (
            [hop.parameters] if hop.messages is None else [m.parameters for m in hop.messages]
        )
    )
    # A sum of gradients, and the one that is added to it.
    gradients = 2 * wild * width + sum(p.numel() for hop in hops for p in hop.parameters)
    # The wild type, its gradient, and the sums of two threads before they are joined.
    return Estimate(
        4 * wild * width * item,
        (_IN_A_HOP * rows * width + in_pieces * numbers + gradients) * item,
        tuple(_rows_kept(hops, tile, sizes) * width * item for tile in tiles),
    )


def _rows_kept(hops: Sequence[Hop], tile: Tile, sizes: dict[str, int]) -> int:
    """Return the rows of vectors and sums that the backward of a tile starts from."""
    rows = 4 * sizes[GENE] * tile.size
    for hop, changed in zip(hops, tile.hops, strict=True):
        n = sizes[hop.target] * tile.size
        rows += n
        for received in changed.received:
            # A list of rows has a copy of their old vectors too.
            rows += n if received.computed is None else 2 * len(received.computed)
    return rows


class _Wild(NamedTuple):
    states: tuple[State, ...]
    sums: tuple[tuple[torch.Tensor, ...], ...]
    messages: tuple[tuple[torch.Tensor, ...], ...]
    pool: WildPool


class _Mutants:
    """A tile of mutants on its way through the hops; vectors are [n * t, hidden], node by node."""

    def __init__(
        self, hops: Sequence[Hop], readout: Readout, pieces: Pieces, tile: Tile, wild: _Wild
    ) -> None:
        self.hops, self.readout, self.pieces = hops, readout, pieces
        self.tile, self.wild, self.t = tile, wild, tile.size
        self.state = {kind: self._living(kind, self._each(x)) for kind, x in wild.states[0].items()}
        self._moved: dict[str, torch.Tensor] = {}
        self._scales: dict[SparseMatrix, torch.Tensor] = {}

    def propagate(self) -> None:
        for h, hop in enumerate(self.hops):
            with hop.around():
                self._moved.clear()
                new, changed = self._new_rows(h, hop), self.tile.hops[h].changed
                if changed is not None:
                    wild = self._each(self.wild.states[h + 1][hop.target])
                    new = wild.index_copy(0, changed.at, new)
                self.state[hop.target] = self._living(hop.target, new)

    def genes(self) -> torch.Tensor:
        """Return the genes' vectors, [t, n, hidden]."""
        genes = self.state[GENE]
        return genes.view(-1, self.t, genes.shape[1]).transpose(0, 1)

    def _new_rows(self, h: int, hop: Hop) -> torch.Tensor:
        """Return the new vectors at the places that the hop changes."""
        x, hop_change, pieces = self.state[hop.target], self.tile.hops[h], self.pieces
        if hop.messages is None:
            heard = [self._heard(h, a, k) for k, a in enumerate(hop.aggregates)]
            changed = hop_change.changed
            return hop.apply(self._nodes(changed, len(x)), _at(x, changed), heard, pieces)
        n = len(x) if hop_change.changed is None else len(hop_change.changed)
        new = _at(x, hop_change.changed).clone() if hop.residual else x.new_zeros(n, x.shape[1])
        for k, message in enumerate(hop.messages):
            received = hop_change.received[k]
            computed = received.computed
            if computed is None or len(computed):
                heard_k = self._heard(h, hop.aggregates[k], k)
                rows = self._nodes(computed, len(x))
                made = message.apply(rows, _at(x, computed), heard_k, pieces)
                new = (
                    new.add_(made)
                    if received.into is None
                    else new.index_add_(0, received.into, made)
                )
            if received.taken is not None:
                into, nodes = received.taken
                new = new.index_add_(0, into, self.wild.messages[h][k].index_select(0, nodes))
        return new

    def _heard(self, h: int, a: Aggregate, k: int) -> torch.Tensor:
        """Return what is received over an aggregate at the places where it is computed."""
        received: Received = self.tile.hops[h].received[k]
        x = self.state[a.source]
        if received.difference is None:
            sums = product(a.matrix, x.view(-1, self.t, x.shape[1])).view(-1, x.shape[1])
            sums = _at(sums, received.computed)
        else:
            assert received.computed is not None
            sums = self.wild.sums[h][k].index_select(0, received.computed.nodes)
            sums = sums + product(received.difference, self._difference(h, a.source))
        return sums * _at(self._scale(a, x), received.computed) if a.mean else sums

    def _difference(self, h: int, kind: str) -> torch.Tensor:
        """Return how the changed and deleted sources differ from the wild type."""
        if kind not in self._moved:
            places = self.tile.hops[h].sources[kind]
            assert places is not None
            wild = self.wild.states[h][kind].index_select(0, places.nodes)
            self._moved[kind] = self.state[kind].index_select(0, places.at) - wild
        return self._moved[kind]

    def _scale(self, a: Aggregate, like: torch.Tensor) -> torch.Tensor:
        """Return one over the number of living sources of each place, [n * t, 1]."""
        if a.matrix not in self._scales:
            dtype = torch.promote_types(like.dtype, torch.float32)
            counts = self._each(a.matrix.row_counts(device=like.device, dtype=dtype))
            if a.matrix in self.tile.silent:
                at, fewer = self.tile.silent[a.matrix]
                counts = counts.index_add(0, at, fewer.to(dtype).unsqueeze(1), alpha=-1)
            self._scales[a.matrix] = counts.clamp(min=1).reciprocal()
        return self._scales[a.matrix]

    def read(self) -> torch.Tensor:
        """Return z [t, hidden]."""
        genes, readout, wild = self.state[GENE], self.readout, self.wild.pool
        places = None if self.tile.read is None else self.tile.read[0]
        terms = Terms(
            *row_wise(
                readout.terms,
                self._nodes(places, len(genes)),
                [_at(genes, places)],
                list(readout.parameters()),
                self.pieces,
            )
        )
        if self.tile.read is None:
            living = torch.ones_like(terms.gate, dtype=torch.bool)
            if GENE in self.tile.deleted:
                living[self.tile.deleted[GENE]] = False
            each = Terms(terms.gate.view(-1, self.t), terms.value.view(-1, self.t, genes.shape[1]))
            return pool_difference(wild, each, living.view(-1, self.t))
        places, owner, living = self.tile.read
        # In float64, for weights of mutants may be large beside the wild type's.
        terms = Terms(terms.gate, terms.value.double())
        n, d = pool_changes(terms, living, *(x.double() for x in wild.at(places.nodes)))
        n = n.new_zeros(self.t, n.shape[1]).index_add(0, owner, n)
        d = d.new_zeros(self.t).index_add(0, owner, d)
        return (n / (1 + d).unsqueeze(1)).to(genes.dtype)

    def _each(self, x: torch.Tensor) -> torch.Tensor:
        """Return the wild type's rows once per mutant, [n * t, width]."""
        return x.unsqueeze(1).expand(-1, self.t, -1).reshape(-1, x.shape[1])

    def _living(self, kind: str, x: torch.Tensor) -> torch.Tensor:
        """Return x with the rows of deleted nodes 0."""
        if kind not in self.tile.deleted:
            return x
        return x.index_fill(0, self.tile.deleted[kind], 0)

    def _nodes(self, places: Places | None, n: int) -> slice | torch.Tensor:
        if places is not None:
            return places.nodes
        if self.t == 1:
            return ALL
        return torch.arange(n, device=self.state[GENE].device) // self.t


def _at(x: torch.Tensor, places: Places | None) -> torch.Tensor:
    return x if places is None else x.index_select(0, places.at)
