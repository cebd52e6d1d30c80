"""How long a step will take by each strategy, from what is different and what things cost."""

from __future__ import annotations

from collections.abc import Sequence

from deltacell.propagate.changed import ChangedHop, Tile
from deltacell.propagate.common import in_parts
from deltacell.propagate.cost import Rates
from deltacell.propagate.hop import Hop
from deltacell.propagate.places import Places
from deltacell.propagate.sizes import row_flop, sizes_of, width_of

CALLS_OF_A_HOP = 60
"""Calls that a hop makes for a tile, forward and backward, whatever its size."""

CALLS_OF_A_MESSAGE = 40
"""The same for each aggregate, where its messages are computed apart from the others."""


def delta_seconds(hops: Sequence[Hop], tiles: Sequence[Tile], rates: Rates, workers: int) -> float:
    """Return the seconds of a step by `delta`, forward and backward, with the wild type.

    Parameters
    ----------
    hops
        Message passing.
    tiles
        The mutants of the batch, and what is different in them.
    rates
        What things cost.
    workers
        Threads that share the mutants.
    """
    sizes = sizes_of(hops)
    mutants = sum(
        _changed(hop, changed, sizes, tile.size, rates)
        for tile in tiles
        for hop, changed in zip(hops, tile.hops, strict=True)
    )
    wild = sum(_whole(hop, sizes, 1, rates, apart=True) for hop in hops)
    return mutants / max(1, min(workers, len(tiles))) + wild / workers


def shared_seconds(hops: Sequence[Hop], batch: int, tile: int, rates: Rates, workers: int) -> float:
    """Return the seconds of a step by `shared`, forward and backward, with the wild type.

    Parameters
    ----------
    hops, rates, workers
        As in `delta_seconds`.
    batch
        Mutants of the batch.
    tile
        Mutants that go through a product together.
    """
    sizes = sizes_of(hops)
    seconds = sum(_whole(hop, sizes, 1, rates, apart=False) for hop in hops)
    for begin in range(0, batch, tile):
        t = min(tile, batch - begin)
        seconds += sum(_whole(hop, sizes, t, rates, apart=False) for hop in hops)
    return seconds / workers


def _whole(hop: Hop, sizes: dict[str, int], t: int, rates: Rates, *, apart: bool) -> float:
    """Return the seconds of a hop in which everything is computed."""
    width, rows = width_of(hop), sizes[hop.target] * t
    calls = CALLS_OF_A_HOP
    if apart and hop.messages is not None:
        calls += CALLS_OF_A_MESSAGE * len(hop.aggregates)
    products = 0.0
    for a, parts in zip(hop.aggregates, in_parts(hop.aggregates), strict=True):
        n_entries = parts.cost(a.matrix) if apart else a.matrix.n_entries
        numbers = sizes[a.source] * t * width
        products += 2 * rates.product(n_entries * t, width, numbers)
    return rates.row_wise(rows * row_flop(hop)) + products + calls * rates.call


def _changed(hop: Hop, changed: ChangedHop, sizes: dict[str, int], t: int, rates: Rates) -> float:
    """Return the seconds of a hop in which what is different is computed."""
    width, rows = width_of(hop), sizes[hop.target] * t
    apart = hop.messages is not None
    flop = row_flop(hop) / len(hop.aggregates)
    calls = CALLS_OF_A_HOP + CALLS_OF_A_MESSAGE * apart * len(hop.aggregates)
    seconds = calls * rates.call
    for a, parts, received in zip(
        hop.aggregates, in_parts(hop.aggregates), changed.received, strict=True
    ):
        computed = _rows(received.computed, rows)
        seconds += rates.row_wise(computed * flop)
        if received.computed is not None:
            seconds += 7 * computed * width * rates.moved
        if received.taken is not None:
            seconds += 4 * len(received.taken) * width * rates.moved
        numbers = sizes[a.source] * t * width
        whole = rates.product(parts.cost(a.matrix) * t, width, numbers)
        if received.difference is not None:
            n_entries = len(received.difference.by_target.indices)
            seconds += n_entries * rates.found + 2 * rates.product(n_entries, width, numbers)
            continue
        sources = changed.sources[a.source]
        if received.to_changed and sources is not None:
            share = len(sources) / max(1, sizes[a.source] * t)
            seconds += whole * (1 + share) + len(sources) * rates.picked
        else:
            seconds += 2 * whole
    return seconds


def _rows(places: Places | None, n: int) -> int:
    return n if places is None else len(places)


def computed_messages(hops: Sequence[Hop], tiles: Sequence[Tile]) -> list[tuple[int, int, int]]:
    """Return for each hop how many messages are computed, of how many, and sums by differences.

    Parameters
    ----------
    hops, tiles
        As in `delta_seconds`.
    """
    sizes = sizes_of(hops)
    found = []
    for h, hop in enumerate(hops):
        received = [(tile.size, r) for tile in tiles for r in tile.hops[h].received]
        rows = [sizes[hop.target] * t for t, _ in received]
        found.append(
            (
                sum(_rows(r.computed, n) for (_, r), n in zip(received, rows, strict=True)),
                sum(rows),
                sum(r.difference is not None for _, r in received),
            )
        )
    return found
