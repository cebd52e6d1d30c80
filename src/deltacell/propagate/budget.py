"""How much memory a batch takes, and what is kept for the backward within a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltacell.errors import InputError
from deltacell.propagate.batch_run import Keeping
from deltacell.propagate.changed import Tile
from deltacell.propagate.hop import GENE, Hop
from deltacell.propagate.places import Places
from deltacell.propagate.sizes import place_of, sizes_of, width_of

KEPT_SUMS = 2**30
"""Bytes of sums that are kept for the backward where no bound is given."""

# Tensors of a mutant's size that are alive at once, counted in the code and checked by measuring.
_IN_A_HOP = 9
_IN_THE_READOUT = 14
_PER_NUMBER_OF_A_ROW = 8


@dataclass(frozen=True)
class Estimate:
    """Bytes that a batch takes.

    Parameters
    ----------
    wild_type
        The wild type with its parts, and its backward.
    worker
        What each thread works in, with its sums of gradients.
    again
        Of a tile whose vectors were not kept, while it is computed again.
    states
        Of each tile, if its vectors are kept for the backward.
    sums
        Of each tile, if its sums are kept too.
    """

    wild_type: int
    worker: int
    again: int
    states: tuple[int, ...]
    sums: tuple[int, ...]

    def of(self, keeping: Keeping) -> int:
        """Return the bytes of a whole batch under what is kept."""
        again = self.again if keeping.states < len(self.states) else 0
        return (
            self.wild_type
            + keeping.workers * (self.worker + again)
            + sum(self.states[: keeping.states])
            + sum(self.sums[: keeping.sums])
        )

    @property
    def least(self) -> int:
        """The bytes of one tile after the other, with nothing kept, whatever the genotypes."""
        return self.wild_type + self.worker + self.again


def estimate(hops: Sequence[Hop], tiles: Sequence[Tile], rows_at_a_time: int | None) -> Estimate:
    """Return the bytes that a batch takes forward and backward, beside the model.

    Parameters
    ----------
    hops
        Message passing.
    tiles
        The mutants, and what is different in them.
    rows_at_a_time
        How many rows go through a row-wise function together; None is all.
    """
    sizes = sizes_of(hops)
    width = max(width_of(hop) for hop in hops)
    item = place_of(hops)[1].itemsize
    number = width * item
    t = max((tile.size for tile in tiles), default=1)
    gene = sizes[GENE] * number
    parts = sum(2 * len(hop.aggregates) * sizes[hop.target] * number for hop in hops)
    states = sum((1 + 2) * sizes[hop.target] * number for hop in hops)
    going_back = max(3 * len(hop.aggregates) * sizes[hop.target] * number for hop in hops)
    in_a_hop = max(
        (_IN_A_HOP + (2 * len(hop.aggregates) if hop.messages is None else 0))
        * t
        * sizes[hop.target]
        * number
        for hop in hops
    )
    rows = t * max(sizes.values())
    if rows_at_a_time is not None:
        rows = min(rows, rows_at_a_time)
    row_wise = rows * max(_numbers_of_a_row(hop, width) for hop in hops) * item
    gradients = parts + states + sum(p.numel() * item for hop in hops for p in hop.parameters)
    return Estimate(
        wild_type=parts + states + going_back,
        worker=max(in_a_hop, _IN_THE_READOUT * t * gene) + row_wise + gradients,
        again=sum(t * sizes[hop.target] for hop in hops) * number,
        states=tuple(_states(hops, tile, sizes) * number for tile in tiles),
        sums=tuple(_sums(hops, tile, sizes) * number for tile in tiles),
    )


def keeping_within(estimated: Estimate, workers: int, max_bytes: int | None) -> Keeping:
    """Return what to keep for the backward; what is not kept is computed again.

    Parameters
    ----------
    estimated
        Of the batch.
    workers
        Threads; fewer are taken where memory does not reach for all.
    max_bytes
        The bound; None is none, and then sums are kept up to `KEPT_SUMS`. One that is too small
        for one tile after the other is an error.
    """
    n_tiles = len(estimated.states)
    if max_bytes is None:
        return Keeping(n_tiles, _fitting(estimated.sums, KEPT_SUMS), workers)
    if estimated.least > max_bytes:
        raise InputError(
            f"max_bytes is {max_bytes:,}, and one genotype after the other takes "
            f"{estimated.least:,}",
            fix=f"Give at least {estimated.least:,} bytes, or take a smaller model.",
        )
    while workers > 1 and estimated.of(Keeping(0, 0, workers)) > max_bytes:
        workers -= 1
    left = max_bytes - estimated.of(Keeping(0, 0, workers))
    states = _fitting(estimated.states, left)
    # Without any that is computed again, there is room for more.
    if estimated.of(Keeping(n_tiles, 0, workers)) <= max_bytes:
        states = n_tiles
    left = max_bytes - estimated.of(Keeping(states, 0, workers))
    sums = _fitting(estimated.sums[:states], left)
    return Keeping(states, sums, workers)


def _fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many fit, one after the other."""
    n = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        n += 1
    return n


def _states(hops: Sequence[Hop], tile: Tile, sizes: dict[str, int]) -> int:
    """Return the rows that are kept of a tile's vectors."""
    return sum(
        _rows(changed.changed, sizes[hop.target] * tile.size)
        for hop, changed in zip(hops, tile.hops, strict=True)
    )


def _sums(hops: Sequence[Hop], tile: Tile, sizes: dict[str, int]) -> int:
    """Return the rows that are kept of a tile's sums."""
    return sum(
        _rows(received.computed, sizes[hop.target] * tile.size)
        for hop, changed in zip(hops, tile.hops, strict=True)
        for received in changed.received
        if received.difference is None
    )


def _rows(places: Places | None, n: int) -> int:
    return n if places is None else len(places)


def _numbers_of_a_row(hop: Hop, width: int) -> int:
    """Return about how many numbers lie between a row's old vector and its new one."""
    if hop.messages is None:
        return _PER_NUMBER_OF_A_ROW * sum(p.numel() for p in hop.parameters) // width
    return max(
        _PER_NUMBER_OF_A_ROW * sum(p.numel() for p in m.parameters) // width for m in hop.messages
    )
