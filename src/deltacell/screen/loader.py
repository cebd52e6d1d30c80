"""Batches of genotypes with their targets, gathered for many batches at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.base.arrays import Floats, Ints, offsets_of, ragged_positions
from deltacell.base.errors import InputError
from deltacell.screen.genotypes import Genotypes, commonest, numbered
from deltacell.screen.screen import Screen


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Genotypes with their targets."""

    genotypes: Genotypes
    targets: torch.Tensor  # float32 [b]
    # Share of each genotype in the loss, float32 [b]. They add up to 1 over all ranks, so that
    # (weights * loss).sum() summed over the ranks is the mean of the loss.
    weights: torch.Tensor
    rows: torch.Tensor  # of the screen, int64 [b]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        return Batch(*(part.to(device, non_blocking=non_blocking) for part in self._parts))

    def pin_memory(self) -> Batch:
        return Batch(*(part.pin_memory() for part in self._parts))

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.genotypes, self.targets, self.weights, self.rows


class Loader:
    """Iterate over genotypes of a screen in batches, each at most once per epoch.

    The order of an epoch depends only on ``(seed, epoch)``, not on the number of ranks. Each global
    batch is ``batch_size`` consecutive genotypes of that order, divided into one contiguous slice
    per rank, as evenly as possible. An iteration yields the current epoch and then advances to the
    next. After an interrupted iteration, the next one restarts the epoch.

    Parameters
    ----------
    rows
        The rows to use: indices without repetition, or a mask; all by default.
    targets
        One number per row of the whole screen; by default its score.
    samples_per_epoch
        The number of genotypes per epoch, taken from the start of the order; by default all.
    run_length
        If given, genotypes that share a gene follow each other in runs of at most this length,
        see `in_runs`, so that a batch has few distinct genes.
    """

    def __init__(
        self,
        screen: Screen,
        rows: npt.ArrayLike | None = None,
        *,
        batch_size: int = 64,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        targets: npt.ArrayLike | None = None,
        batches_per_gather: int = 256,
        samples_per_epoch: int | None = None,
        run_length: int | None = None,
    ) -> None:
        numbers = (batch_size, samples_per_epoch, run_length, seed + 1)
        if any(number is not None and number < 1 for number in numbers):
            what = (
                "batch_size, samples_per_epoch and run_length must be at least 1, seed at least 0"
            )
            raise InputError(what, code="invalid-number")
        self.screen, self.rows = screen, _checked_rows(screen, rows)
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.rank, self.world_size, self.run_length = rank, world_size, run_length
        self.batches_per_gather = batches_per_gather
        self.samples_per_epoch = min(samples_per_epoch or len(self.rows), len(self.rows))
        self._genes: Ints = screen.genotypes.genes.numpy()
        self._starts, self._sizes = screen.offsets[:-1], np.diff(screen.offsets)
        self._targets = _checked_targets(screen, self.rows, targets)
        self._go_to(0, 0)

    def __len__(self) -> int:
        """Return the number of steps per epoch, the same on every rank."""
        return -(-self.samples_per_epoch // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the current epoch keeps a loaded state."""
        if epoch != self.epoch or self._finished:
            self._go_to(epoch, 0)

    def __iter__(self) -> Iterator[Batch]:
        # A caller that counts the steps never requests a batch after the last.
        if self._finished:
            self._go_to(self.epoch + 1, 0)
        self._handed_out = self._start
        for batch in self._batches(self.epoch, self._start):
            self._handed_out += 1
            yield batch
        self._go_to(self.epoch + 1, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of its batches yielded, the same on every rank."""
        epoch, batch = (self.epoch + 1, 0) if self._finished else (self.epoch, self._handed_out)
        return {"epoch": epoch, "batch": batch, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state, which must be of a loader with the same order."""
        identity = self._identity()
        for name, mine in identity.items():
            if state.get(name, mine) != mine:
                what = f"the state has {name}={state[name]}, but this loader has {mine}"
                raise InputError(what, code="other-order", key=name)
        epoch, batch = state.get("epoch", -1), state.get("batch", -1)
        if not state.keys() >= identity.keys() or epoch < 0 or not 0 <= batch < len(self):
            raise InputError("not a state of this loader", code="not-a-state")
        self._go_to(epoch, batch)

    @property
    def _finished(self) -> bool:
        return self._handed_out == len(self)

    def _go_to(self, epoch: int, batch: int) -> None:
        self.epoch, self._start, self._handed_out = epoch, batch, batch

    def _identity(self) -> dict[str, Any]:
        """Return everything that determines the composition of batches."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "samples_per_epoch": self.samples_per_epoch,
            "run_length": self.run_length or 0,
            "rows": hashlib.sha256(self.rows.astype("<i8").tobytes()).hexdigest(),
            "screen": self.screen.checksum,
        }

    def _order(self, epoch: int) -> Ints:
        if not self.shuffle:
            return self.rows[: self.samples_per_epoch]
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, epoch])))
        order: Ints = rng.permutation(self.rows)[: self.samples_per_epoch]
        if self.run_length is None:
            return order
        sizes = self._sizes[order]
        genes = self._genes[ragged_positions(self._starts[order], sizes)]
        # The most frequent gene of each genotype is usually the query.
        shared = genes[commonest(np.repeat(np.arange(len(order)), sizes), genes)]
        return order[in_runs(shared, self.run_length, rng)]

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield batches as views of columns that are gathered for many batches at once."""
        order = self._order(epoch)
        for first in range(start, len(self), self.batches_per_gather):
            last = min(first + self.batches_per_gather, len(self))
            together = order[first * self.batch_size : last * self.batch_size]
            begin = np.arange(last - first, dtype=np.int64) * self.batch_size
            counts = np.minimum(begin + self.batch_size, len(together)) - begin
            mine = counts * self.rank // self.world_size
            lengths = counts * (self.rank + 1) // self.world_size - mine
            rows = together[ragged_positions(begin + mine, lengths)]
            sizes = self._sizes[rows]
            ends, at = offsets_of(sizes), np.cumsum(lengths) - lengths
            offsets = ends[ragged_positions(at, lengths + 1)] - np.repeat(ends[at], lengths + 1)
            genes = self._genes[ragged_positions(self._starts[rows], sizes)]
            weights = np.repeat((1.0 / counts).astype(np.float32), lengths)
            views = (
                torch.split_with_sizes(torch.from_numpy(column), pieces.tolist())
                for column, pieces in (
                    (genes, ends[at + lengths] - ends[at]),
                    (offsets, lengths + 1),
                    (self._targets[rows], lengths),
                    (weights, lengths),
                    (rows, lengths),
                )
            )
            for gene, offset, target, weight, row in zip(*views, strict=True):
                yield Batch(Genotypes(gene, offset), target, weight, row)


def in_runs(groups: Ints, length: int, rng: np.random.Generator) -> Ints:
    """Return an order in which members of a group follow each other, at most `length` at a time.

    Groups, already in random order, are cut into runs, the first of random length, and the runs are
    shuffled, so that every member of a group is equally likely at every position.
    """
    if not len(groups):
        return groups
    number = numbered(groups)
    order = np.argsort(number, kind="stable")
    size = np.bincount(number)
    within = np.arange(len(groups)) - np.repeat(np.cumsum(size) - size, size)
    run = (within + np.repeat(rng.integers(0, length, len(size)), size)) // length
    first = np.ones(len(groups), dtype=bool)
    first[1:] = (np.diff(run) != 0) | (np.diff(number[order]) != 0)
    of_run = np.cumsum(first) - 1
    place = rng.permutation(int(of_run[-1]) + 1)
    return order[np.argsort(place[of_run], kind="stable")]


def _checked_targets(screen: Screen, rows: Ints, targets: npt.ArrayLike | None) -> Floats:
    values = np.array(screen.column("score") if targets is None else targets, dtype=np.float32)
    if values.shape != (len(screen),):
        what = f"targets has shape {values.shape}; expected one number per row of the whole screen"
        raise InputError(what, code="column-length")
    missing = int((~np.isfinite(values[rows])).sum())
    if missing:
        what = f"{missing:,} of {len(rows):,} rows have no target (not a finite number)"
        raise InputError(what, code="missing-target", fix="Exclude these rows.")
    return values


def _checked_rows(screen: Screen, rows: npt.ArrayLike | None) -> Ints:
    every = np.arange(len(screen))
    chosen = every if rows is None else np.asarray(rows)
    chosen = every[chosen] if chosen.dtype == bool and len(chosen) == len(every) else chosen
    valid = len(chosen) and np.isin(chosen, every).all() and len(np.unique(chosen)) == len(chosen)
    if not valid or chosen.dtype.kind not in "iu":
        what = f"rows must be distinct indices from 0 to {len(every) - 1}, or a mask of all rows"
        raise InputError(what, code="invalid-rows")
    return chosen.astype(np.int64)
