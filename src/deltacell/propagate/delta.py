"""The strategies `shared` and `delta`: tiles of mutants on the matrices of the wild type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from deltacell.base.arrays import Bools, Ints, distinct, offsets_of, ragged_positions
from deltacell.base.errors import InputError
from deltacell.profile.record import Messages
from deltacell.propagate.base import Batch, Deleted, Mutants, Propagation, WildType
from deltacell.propagate.hop import GENE, Aggregate, Hop, Message, State, place_of, sizes_of
from deltacell.propagate.pool import Terms, pool_changes, pool_difference
from deltacell.propagate.product import SparseMatrix, product
from deltacell.propagate.workers import ALL, Pieces, in_graphs, one_core, row_wise, workers_for

# What fits into the cache of a core: the numbers that one sparse product reads, and the rows of 64
# numbers for which a row-wise function is computed.
NEAR_NUMBERS = 2**19
CPU_ROWS_AT_A_TIME = 2208
KEPT_BYTES = 2**30  # kept for the backward on a CPU without a bound; the rest is recomputed
COVERED = 8  # entries per row from which on they are assumed to reach every row


@dataclass(frozen=True, eq=False)
class Places:
    """Some nodes of one kind in some mutants of a tile.

    The vectors of a tile of t mutants are one tensor [n * t, hidden], node by node.
    """

    at: Tensor  # node * t + mutant, ascending, int64 [m]
    nodes: Tensor  # int64 [m]

    @classmethod
    def of(cls, at: Ints, t: int) -> Places:
        positions = torch.from_numpy(at)
        return cls(positions, positions if t == 1 else torch.from_numpy(at // t))


@dataclass(frozen=True, eq=False)
class ChangedMessage:
    """Where and how one message of a hop is computed."""

    # Where an aggregate or the node's own vector differs from the wild type; None is everywhere.
    computed: Places | None = None
    # For each aggregate the matrix [m, sources] from the differences of the changed sources to
    # those of the sums at the computed places; None for a whole product.
    differences: tuple[SparseMatrix | None, ...] = ()


@dataclass(frozen=True, eq=False)
class ChangedHop:
    """How one hop is computed."""

    messages: tuple[ChangedMessage, ...]
    # Nodes that are changed or deleted before the hop, by kind; None is all.
    sources: Mapping[str, Places | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Tile:
    """Mutants that are propagated together, and where they differ from the wild type."""

    size: int
    deleted: Mapping[str, Tensor]  # the places of deleted nodes, by kind
    # For each matrix whose rows are averaged, the places with fewer sources than in the wild type,
    # and how many fewer.
    silent: Mapping[SparseMatrix, tuple[Tensor, Tensor]]
    hops: tuple[ChangedHop, ...]
    # The genes that are changed or deleted after the last hop, the mutant of each, and whether it
    # lives; None is all genes.
    read: tuple[Places, Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Shared(Propagation):
    """One sparse product per relation and tile of the batch, with deleted rows zero.

    Deleting a set of genes removes exactly the edges that touch them. With K the diagonal 0/1
    matrix of a mutant's living nodes, its sum over neighbours is ``K A K X``: zero the deleted rows
    of X, multiply by the wild type's A, zero the deleted rows of the product. A mean divides by
    ``A K 1``. There are no edges and no masks per mutant.

    `tile` is the number of mutants per product; by default as many as fit into the cache of a CPU,
    and on other devices the whole batch. `rows_at_a_time` is the number of rows per call of a
    row-wise function, see `row_wise`; 0, the default on other devices, is all. Tiles are computed
    by `workers` threads. `max_bytes` bounds the memory of a batch without the model: mutants are
    computed one at a time, and what does not fit is recomputed in the backward.
    """

    tile: int | None = None
    rows_at_a_time: int | None = None
    workers: int | None = None
    max_bytes: int | None = None
    name: ClassVar[str] = "shared"
    passes: ClassVar[Messages] = Messages.whole_products

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        nodes, batch = deleted.to("cpu").nodes, len(deleted)
        width = self._width(hops, batch)
        tiles = []
        for begin in range(0, batch, width):
            size = min(width, batch - begin)
            lost = {kind: np.zeros(0, dtype=np.int64) for kind in sizes_of(hops)}
            for kind in lost.keys() & nodes.keys():
                owner = nodes[kind].owner.numpy()
                own = slice(*np.searchsorted(owner, (begin, begin + size)))
                lost[kind] = np.sort(nodes[kind].nodes.numpy()[own] * size + owner[own] - begin)
            tiles.append(self._tile(hops, lost, size))
        return replace(deleted, plan=tuple(tiles))

    def _tile(self, hops: Sequence[Hop], lost: Mapping[str, Ints], t: int) -> Tile:
        """Return the tile of t mutants that lose the nodes at some places."""
        whole = tuple(ChangedHop((ChangedMessage(),) * len(hop.messages)) for hop in hops)
        deleted = {kind: torch.from_numpy(places) for kind, places in lost.items() if len(places)}
        silent = {}
        for a in (a for hop in hops for a in hop.aggregates if a.mean and len(lost[a.source])):
            if a.matrix not in silent:
                source, target, _ = entries_of(a.matrix, lost[a.source] // t)
                places, fewer = distinct(target * t + (lost[a.source] % t)[source])
                silent[a.matrix] = torch.from_numpy(places), torch.from_numpy(fewer)
        return Tile(t, deleted, silent, whole)

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        pieces = self._pieces(state[GENE].device)
        states, sums, messages = [state], [], []
        for hop in hops:
            old, x = states[-1], states[-1][hop.target]

            def run(k: int, given: Sequence[Tensor], hop: Hop = hop) -> tuple[Tensor, ...]:
                message, alone = hop.messages[k], Pieces(pieces.at_a_time)
                each = zip(message.aggregates, given[1:], strict=True)
                heard = [product(a.matrix, source) for a, source in each]
                received = [a.scaled(h) for a, h in zip(message.aggregates, heard, strict=True)]
                return *heard, message.apply(ALL, given[0], received, alone)

            with hop.around(), one_core(pieces.workers):
                given = [[x, *(old[a.source] for a in m.aggregates)] for m in hop.messages]
                found = in_graphs(run, given, hop.parameters, pieces.workers)
                made = [message for *_, message in found]
                states.append({**old, hop.target: hop.added_up(x, made)})
            sums.append(tuple(tuple(heard) for *heard, _ in found))
            messages.append(tuple(made))
        return WildType(tuple(states), tuple(sums), tuple(messages))

    def _mutants(self, batch: Batch) -> Mutants:
        hops, tiles, wild = batch.hops, batch.deleted.plan, batch.wild_type
        pieces = Pieces(self._at_a_time(batch.pool.value.device))
        given, tree = tree_flatten((wild.states, wild.sums, wild.messages, batch.pool))

        def run(i: int, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
            *wild, pool = tree_unflatten(list(given), tree)
            own = batch._replace(wild_type=WildType(*wild), pool=pool)
            return (TileMutants(own, tiles[i], pieces).z(),)

        parameters = [*(p for hop in hops for p in hop.parameters), *batch.readout.parameters()]
        kept, workers = self._within_bound(hops, len(tiles), max(tile.size for tile in tiles))
        found = in_graphs(run, [given] * len(tiles), parameters, workers, kept)
        return Mutants(torch.cat([z for (z,) in found]), batch.pool.pooled)

    def _width(self, hops: Sequence[Hop], batch: int) -> int:
        device = place_of(hops)[0]
        if self.tile is not None or self.max_bytes is not None:
            return self.tile or 1
        if device.type != "cpu" or not hops:
            return max(batch, 1)
        near = NEAR_NUMBERS // (sizes_of(hops)[GENE] * max(hop.width for hop in hops))
        # No thread is left without mutants.
        return max(1, min(near, -(-batch // (self.workers or workers_for(device, max(batch, 1))))))

    def _pieces(self, device: torch.device) -> Pieces:
        return Pieces(self._at_a_time(device), self.workers or workers_for(device, 1 << 20))

    def _at_a_time(self, device: torch.device) -> int | None:
        if self.rows_at_a_time is None:
            return CPU_ROWS_AT_A_TIME if device.type == "cpu" else None
        return self.rows_at_a_time or None

    def _within_bound(self, hops: Sequence[Hop], tiles: int, t: int) -> tuple[int, int]:
        """Return the number of tiles to keep for the backward, and the number of threads.

        Memory is counted as if every row changed; measurements confirm the factors.
        """
        device, dtype = place_of(hops)
        workers = min(self.workers or workers_for(device, tiles), tiles)
        if not hops or (self.max_bytes is None and device.type != "cpu"):
            return tiles, workers
        sizes, width = sizes_of(hops), max(hop.width for hop in hops)
        rows, of_row = t * max(sizes.values()), width * dtype.itemsize
        # A tile has the vectors after each hop, their aggregates, and the terms of the pool.
        of_hops = sum((1 + len(hop.aggregates)) * sizes[hop.target] for hop in hops)
        of_tile = t * (4 * sizes[GENE] + of_hops) * of_row
        if self.max_bytes is None:
            return KEPT_BYTES // of_tile, workers
        # Each thread needs tensors of a mutant's size, the rows of a row-wise function, and sums of
        # the wild type's gradients. The wild type has vectors, sums and messages.
        parameters = [[p.numel() for p in m.parameters] for hop in hops for m in hop.messages]
        largest = max(map(sum, parameters))
        at_once = min(rows, self._at_a_time(device) or rows)
        working = 9 * rows * of_row + 8 * at_once * largest * dtype.itemsize // width
        wild = sum((1 + 2 * len(hop.aggregates)) * sizes[hop.target] for hop in hops) * of_row
        of_worker = of_tile + working + 2 * wild + sum(map(sum, parameters)) * dtype.itemsize
        # A tenth is for memory that the allocator does not return at once.
        left, least = self.max_bytes * 10 // 11 - 4 * wild, -(-(4 * wild + of_worker) * 11 // 10)
        if least > self.max_bytes:
            what = f"max_bytes is {self.max_bytes:,}, but one genotype at a time needs {least:,}"
            raise InputError(what, code="max-bytes-too-small", least=least)
        workers = min(workers, left // of_worker)
        return (left - workers * of_worker) // of_tile, workers


@dataclass(frozen=True)
class Delta(Shared):
    """Compute the wild type once, and only the rows of every mutant that differ from it.

    A mutant's vectors are ``X = X_wt + D`` with D = 0 except on changed rows. The sums of a hop are
    ``A X = A X_wt + A D``. In the first hop D consists of the deleted genes, and few rows change;
    each hop adds the targets of changed rows, per relation. Once nearly all rows change, a whole
    product is used as in `Shared`. Unchanged rows are the wild type's, in value and gradient.

    Costs decide between the two ways, both of which are exact. Gathering a row costs as much as
    multiplying it by `moved` columns of weights, and finding an entry of a difference on the host
    as much as multiplying `found` numbers by it.
    """

    moved: float = 22.6
    found: float = 600.0
    name: ClassVar[str] = "delta"
    passes: ClassVar[Messages] = Messages.changes

    def _tile(self, hops: Sequence[Hop], lost: Mapping[str, Ints], t: int) -> Tile:
        sizes = sizes_of(hops)
        # The places that are changed or deleted so far; None is all.
        now: dict[str, Bools | None] = {k: _mask(lost[k], n * t) for k, n in sizes.items()}
        found = []
        for hop in hops:
            finder = _Finder(self, hop, lost[hop.target], now, t)
            found.append(finder.found)
            now[hop.target] = finder.changed
        changed, gone, read = now[GENE], lost[GENE], None
        # An empty pool cannot be written as a difference.
        if changed is not None and (np.bincount(gone % t, minlength=t) < sizes[GENE]).all():
            of = np.flatnonzero(changed)
            living = ~np.isin(of, gone, assume_unique=True)
            read = Places.of(of, t), torch.from_numpy(of % t), torch.from_numpy(living)
        return replace(super()._tile(hops, lost, t), hops=tuple(found), read=read)


class _Finder:
    """Finds how one hop is computed, and the places that are changed or deleted after it."""

    def __init__(
        self,
        costs: Delta,
        hop: Hop,
        gone: Ints,
        now: Mapping[str, Bools | None],
        t: int,
    ) -> None:
        self.costs, self.hop, self.gone, self.t = costs, hop, gone, t
        self.own = now[hop.target]
        kinds = dict.fromkeys(a.source for a in hop.aggregates)
        self.sources = {k: None if (m := now[k]) is None else np.flatnonzero(m) for k in kinds}
        computed = list(map(self._computed, hop.messages))
        messages = tuple(map(self._message, hop.messages, computed))
        places = {k: None if at is None else Places.of(at, t) for k, at in self.sources.items()}
        self.found = ChangedHop(messages, places)
        self.changed: Bools | None = None
        if all(c is not None for c in computed):
            self.changed = np.logical_or.reduce(cast(list[Bools], computed))
            self.changed[gone] = True

    def _computed(self, message: Message) -> Bools | None:
        """Return a mask of where to compute a message; None is everywhere."""
        if self.own is None:
            return None
        mask = np.logical_or.reduce([self.own, *map(self._reached, message.aggregates)])
        mask[self.gone] = False
        columns = sum(p.numel() for p in message.parameters) / self.hop.width
        listed = columns + self.costs.moved * len(message.aggregates)
        return mask if np.count_nonzero(mask) * listed < len(mask) * columns else None

    def _reached(self, a: Aggregate) -> Bools:
        """Return which targets receive from a changed or deleted source."""
        t, sources, hearing = self.t, self.sources[a.source], np.diff(a.matrix.indptr) > 0
        if sources is None or self._entries_from(a, sources) > COVERED * t * hearing.sum():
            return np.repeat(hearing, t)
        source, target, _ = entries_of(a.matrix, sources // t)
        return _mask(target * t + (sources % t)[source], len(hearing) * t)

    def _entries_from(self, a: Aggregate, sources: Ints) -> int:
        return int(np.diff(a.matrix.transpose.indptr)[sources // self.t].sum())

    def _message(self, message: Message, computed: Bools | None) -> ChangedMessage:
        if computed is None:
            return ChangedMessage()
        differences = tuple(self._difference(a, computed) for a in message.aggregates)
        return ChangedMessage(Places.of(np.flatnonzero(computed), self.t), differences)

    def _difference(self, a: Aggregate, computed: Bools) -> SparseMatrix | None:
        """Return the matrix of `ChangedMessage.differences`, or None if a product costs less."""
        t, matrix, sources = self.t, a.matrix, self.sources[a.source]
        if sources is None:
            return None
        n_entries = self._entries_from(a, sources)
        saved = self.hop.width * (matrix.n_entries * t - n_entries)
        if n_entries * self.costs.found >= saved:
            return None
        source, node, value = entries_of(matrix, sources // t)
        target = node * t + (sources % t)[source]
        # Deleted targets are not computed.
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


def _mask(at: Ints, size: int) -> Bools:
    mask = np.zeros(size, dtype=bool)
    mask[at] = True
    return mask


def entries_of(matrix: SparseMatrix, columns: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the entries in some columns: number of the column, row, and index of the value."""
    turned = matrix.transpose
    starts = turned.indptr[columns]
    lengths = turned.indptr[columns + 1] - starts
    at = ragged_positions(starts, lengths)
    return np.repeat(np.arange(len(columns)), lengths), turned.indices[at].astype(np.int64), at


class TileMutants:
    """The propagation of a tile of mutants; vectors are [n * t, hidden], node by node."""

    def __init__(self, batch: Batch, tile: Tile, pieces: Pieces) -> None:
        self.batch, self.tile, self.pieces, self.t = batch, tile, pieces, tile.size
        self.wild = batch.wild_type
        first = self.wild.states[0].items()
        self.state = {kind: self._living(kind, self._each(x)) for kind, x in first}
        self._moved: dict[str, Tensor] = {}
        self._scales: dict[SparseMatrix, Tensor] = {}

    def z(self) -> Tensor:
        for h, hop in enumerate(self.batch.hops):
            with hop.around():
                self._moved.clear()
                self.state[hop.target] = self._living(hop.target, self._new_vectors(h, hop))
        return self._read_out(self.state[GENE])

    def _new_vectors(self, h: int, hop: Hop) -> Tensor:
        x, own, wild = self.state[hop.target], self.tile.hops[h].messages, self.wild.messages[h]
        listed = all(one.computed is not None for one in own)
        if listed:
            before, after = (self.wild.states[i][hop.target] for i in (h, h + 1))
            new = x + self._each(after - before) if hop.residual else self._each(after).clone()
        else:
            new = x.clone() if hop.residual else torch.zeros_like(x)
        for k, message in enumerate(hop.messages):
            computed = own[k].computed
            if computed is not None and not listed:
                new = new.add_(self._each(wild[k]))
            if computed is None or len(computed.at):
                heard = [self._heard(h, k, j, a) for j, a in enumerate(message.aggregates)]
                rows = self._nodes(computed, len(x))
                made = message.apply(rows, _at(x, computed), heard, self.pieces)
                if computed is None:
                    new = new.add_(made)
                else:
                    made = made - wild[k].index_select(0, computed.nodes)
                    new = new.index_add_(0, computed.at, made)
        return new

    def _heard(self, h: int, k: int, j: int, a: Aggregate) -> Tensor:
        """Return aggregate j of message k where the message is computed."""
        own, x = self.tile.hops[h].messages[k], self.state[a.source]
        if own.computed is None or (difference := own.differences[j]) is None:
            sums = product(a.matrix, x.view(-1, self.t, x.shape[1])).view(-1, x.shape[1])
            sums = _at(sums, own.computed)
        else:
            sums = self.wild.sums[h][k][j].index_select(0, own.computed.nodes)
            sums = sums + product(difference, self._difference(h, a.source))
        return sums * _at(self._scale(a, x), own.computed) if a.mean else sums

    def _difference(self, h: int, kind: str) -> Tensor:
        """Return the difference of the changed and deleted sources from the wild type."""
        if kind not in self._moved:
            places = self.tile.hops[h].sources[kind]
            assert places is not None
            wild = self.wild.states[h][kind].index_select(0, places.nodes)
            self._moved[kind] = self.state[kind].index_select(0, places.at) - wild
        return self._moved[kind]

    def _scale(self, a: Aggregate, like: Tensor) -> Tensor:
        """Return one over the number of living sources of each place, [n * t, 1]."""
        if a.matrix not in self._scales:
            counts = self._each(a.counts(like))
            if a.matrix in self.tile.silent:
                at, fewer = self.tile.silent[a.matrix]
                counts = counts.index_add(0, at, fewer.to(counts.dtype).unsqueeze(1), alpha=-1)
            self._scales[a.matrix] = counts.clamp(min=1).reciprocal()
        return self._scales[a.matrix]

    def _read_out(self, genes: Tensor) -> Tensor:
        readout, read = self.batch.readout, self.tile.read
        places = None if read is None else read[0]
        rows, parameters = self._nodes(places, len(genes)), list(readout.parameters())
        gate, value = row_wise(readout.terms, rows, [_at(genes, places)], parameters, self.pieces)
        if read is None:
            living = torch.ones_like(gate, dtype=torch.bool)
            if GENE in self.tile.deleted:
                living[self.tile.deleted[GENE]] = False
            each = Terms(gate.view(-1, self.t), value.view(-1, self.t, value.shape[1]))
            return pool_difference(self.batch.pool, each, living.view(-1, self.t))
        changed, owner, living = read
        # In float64, because a mutant's weights may be much larger than the wild type's.
        own, wild = Terms(gate, value.double()), self.batch.pool.at(changed.nodes)
        n, d = pool_changes(own, living, *(x.double() for x in wild))
        n = n.new_zeros(self.t, n.shape[1]).index_add(0, owner, n)
        d = d.new_zeros(self.t).index_add(0, owner, d)
        return (n / (1 + d).unsqueeze(1)).to(genes.dtype)

    def _each(self, x: Tensor) -> Tensor:
        """Repeat the wild type's rows for each mutant, [n * t, width]."""
        return x.unsqueeze(1).expand(-1, self.t, -1).reshape(-1, x.shape[1])

    def _living(self, kind: str, x: Tensor) -> Tensor:
        if kind not in self.tile.deleted:
            return x
        return x.index_fill(0, self.tile.deleted[kind], 0)

    def _nodes(self, places: Places | None, n: int) -> slice | Tensor:
        if places is not None:
            return places.nodes
        if self.t == 1:
            return ALL
        return torch.arange(n, device=self.state[GENE].device) // self.t


def _at(x: Tensor, places: Places | None) -> Tensor:
    return x if places is None else x.index_select(0, places.at)
