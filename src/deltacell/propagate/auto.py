"""The strategy `auto`: the faster one, chosen once by what things cost here."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deltacell.errors import InputError
from deltacell.propagate.changed import Changes, Tile
from deltacell.propagate.cost import Rates, rates_here
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.delta import Delta
from deltacell.propagate.hop import Hop, State
from deltacell.propagate.pool import Readout
from deltacell.propagate.predicted import computed_messages, delta_seconds, shared_seconds
from deltacell.propagate.protocol import Mutants, Propagation, WildType
from deltacell.propagate.shared import Shared
from deltacell.propagate.sizes import place_of
from deltacell.propagate.workers import workers_for

LOOKED_AT = 8
"""Genotypes of the first batch from which the rest is judged."""


@dataclass(frozen=True)
class Choice:
    """What was chosen, and by what.

    Parameters
    ----------
    strategy
        ``shared`` or ``delta``.
    tile
        How many mutants go through one product.
    rates
        What things cost where it was chosen.
    seconds
        Of a step with `batch` genotypes, forward and backward, by each strategy at its best tile;
        predicted.
    batch
        Genotypes a step that it was chosen for.
    workers
        Threads that it was chosen for.
    reason
        In words and numbers.
    """

    strategy: str
    tile: int
    rates: Rates
    seconds: dict[str, float]
    batch: int
    workers: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads, for a run's record."""
        return {
            "strategy": self.strategy,
            "tile": self.tile,
            "rates": self.rates.to_json(),
            "seconds": dict(self.seconds),
            "batch": self.batch,
            "workers": self.workers,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Choice:
        """Inverse of `to_json`."""
        try:
            choice = cls(**{**values, "rates": Rates.from_json(values["rates"])})
        except (TypeError, KeyError) as error:
            raise InputError(f"this is not a recorded choice of propagation: {error}") from error
        if choice.strategy not in ("shared", "delta"):
            raise InputError(
                f"the recorded propagation is '{choice.strategy}'; expected shared or delta"
            )
        return choice


class Auto:
    """`shared` or `delta`, whichever takes less time here, at the tile that suits it.

    Chosen with the first batch that is prepared, and the same from then on. With a recorded choice
    nothing is measured or chosen.

    Parameters
    ----------
    max_bytes
        Bound on the memory of a batch, see `Delta`; given one, it is `delta`, which keeps to it.
    choice
        A recorded one: that of the run to resume, or of another rank.
    """

    def __init__(self, max_bytes: int | None = None, choice: Choice | None = None) -> None:
        self.max_bytes = max_bytes
        self.choice = choice
        self._strategy: Propagation | None = None

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "auto"

    @classmethod
    def from_json(cls, recorded: dict[str, Any]) -> Auto:
        """Make it from what `to_json` returned: the same choice again."""
        if set(recorded) != {"max_bytes", "choice"}:
            raise InputError(
                "this is not a recorded propagation; expected 'max_bytes' and 'choice', "
                f"and there are {', '.join(map(repr, recorded)) or 'neither'}"
            )
        choice = recorded["choice"]
        return cls(recorded["max_bytes"], None if choice is None else Choice.from_json(choice))

    def to_json(self) -> dict[str, Any]:
        """Return the choice, for a run's record; None before the first batch."""
        choice = None if self.choice is None else self.choice.to_json()
        return {"max_bytes": self.max_bytes, "choice": choice}

    def explain(self) -> str:
        """Return what was chosen and why."""
        if self.choice is None:
            return "Nothing is chosen yet; that happens with the first batch."
        return self.choice.reason

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Do the host's work for a batch; the first time, choose."""
        return self._chosen(hops, deleted).prepare(hops, deleted)

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type by the chosen strategy."""
        return self._made().wild_type(hops, state)

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the mutants by the chosen strategy."""
        return self._made().mutants(hops, wild_type, deleted, readout, vectors=vectors)

    def _chosen(self, hops: Sequence[Hop], deleted: Deleted) -> Propagation:
        # Batches are prepared in other threads; the first one of them chooses.
        with _CHOOSING:
            if self.choice is None and len(deleted):
                self.choice = choose(hops, deleted, only_delta=self.max_bytes is not None)
        return self._made()

    def _made(self) -> Propagation:
        if self._strategy is None:
            if self.choice is None:
                return Delta(max_bytes=self.max_bytes)
            tile, rates = self.choice.tile, self.choice.rates
            if self.choice.strategy == "shared":
                self._strategy = Shared(tile=tile)
            else:
                self._strategy = Delta(tile=tile, max_bytes=self.max_bytes, rates=rates)
        return self._strategy


_CHOOSING = threading.Lock()


def choose(hops: Sequence[Hop], deleted: Deleted, *, only_delta: bool = False) -> Choice:
    """Choose the strategy and its tile for batches like the given one.

    Parameters
    ----------
    hops
        Message passing.
    deleted
        What a batch of one genotype or more deletes.
    only_delta
        Whether `shared` is out of the question.
    """
    device, dtype = place_of(hops)
    host, batch = deleted.to("cpu"), len(deleted)
    workers = workers_for(device, batch)
    rates = rates_here(device, dtype, workers_for(device, torch.get_num_threads()))
    changes = Changes(hops, rates)
    looked_at = min(batch, LOOKED_AT * workers)
    candidates: list[tuple[float, str, int, list[Tile]]] = []
    for tile in _widths(device, batch):
        if tile * workers <= max(batch, workers):
            tiles = [
                changes.tile(host.nodes, begin, min(begin + tile, looked_at))
                for begin in range(0, looked_at, tile)
            ]
            seconds = delta_seconds(hops, tiles, rates, workers)
            candidates.append((seconds * batch / looked_at, "delta", tile, tiles))
        if not only_delta:
            seconds = shared_seconds(hops, batch, tile, rates, workers)
            candidates.append((seconds, "shared", tile, []))
    best = min(candidates, key=lambda c: c[0])
    least = {
        name: min((c for c in candidates if c[1] == name), key=lambda c: c[0])
        for name in dict.fromkeys(c[1] for c in candidates)
    }
    seconds_by = {name: found[0] for name, found in least.items()}
    reason = _reason(hops, best, least, batch, workers, rates)
    return Choice(best[1], best[2], rates, seconds_by, batch, workers, reason)


def _widths(device: torch.device, batch: int) -> list[int]:
    if device.type != "cpu":
        return [max(batch, 1)]
    widths = [1]
    while widths[-1] * 2 <= batch:
        widths.append(widths[-1] * 2)
    return widths


def _reason(
    hops: Sequence[Hop],
    best: tuple[float, str, int, list[Tile]],
    least: dict[str, tuple[float, str, int, list[Tile]]],
    batch: int,
    workers: int,
    rates: Rates,
) -> str:
    seconds, name, tile, _ = best
    lines = [
        f"{name}, {tile} at a time in {_count(workers, 'thread')}: {seconds:.3g} s predicted for "
        f"{_count(batch, 'genotype')}, forward and backward."
    ]
    lines += [
        f"{other} would take {found[0]:.3g} s, {found[2]} at a time."
        for other, found in least.items()
        if other != name
    ]
    tiles = least["delta"][3] if "delta" in least else []
    for h, (computed, of, differences) in enumerate(computed_messages(hops, tiles)):
        lines.append(
            f"hop {h + 1} ({hops[h].target}): delta computes {computed:,} of {of:,} messages, "
            f"{differences} of {len(hops[h].aggregates) * len(tiles)} sums from differences."
        )
    lines.append(
        f"Rates of a thread: {1e-9 / rates.entry:.3g} G entries x numbers/s "
        f"({1e-9 / rates.far_entry:.3g} out of cache), "
        f"{1e-9 / rates.flop_forward:.3g} GFLOP/s forward and "
        f"{1e-9 / rates.flop_backward:.3g} backward, {1e-9 / rates.moved:.3g} G numbers/s moved, "
        f"{1e6 * rates.call:.3g} µs a call."
    )
    return "\n".join(lines)


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
