"""Batches of genotypes with their targets, gathered for many batches at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.base.arrays import (
    AnyArray,
    Floats,
    Ints,
    commonest,
    numbered,
    offsets_of,
    ragged_positions,
)
from deltacell.base.errors import InputError
from deltacell.screen.genotypes import Genotypes
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
        """Size in bytes."""
        tensors = (self.targets, self.weights, self.rows)
        return self.genotypes.nbytes + sum(tensor.nbytes for tensor in tensors)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return the batch on a device."""
        return Batch(
            self.genotypes.to(device, non_blocking=non_blocking),
            self.targets.to(device, non_blocking=non_blocking),
            self.weights.to(device, non_blocking=non_blocking),
            self.rows.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        """Return the batch in pinned memory, from which copies to a device do not wait."""
        return Batch(
            self.genotypes.pin_memory(),
            self.targets.pin_memory(),
            self.weights.pin_memory(),
            self.rows.pin_memory(),
        )


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
            message = (
                "batch_size, samples_per_epoch and run_length must be at least 1, seed at least 0"
            )
            raise InputError(message, code="invalid-number")
        self.screen = screen
        self.rows = _checked_rows(screen, rows)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.run_length = run_length
        self.batches_per_gather = batches_per_gather
        self.samples_per_epoch = min(samples_per_epoch or len(self.rows), len(self.rows))
        self._genes: Ints = screen.genotypes.genes.numpy()
        self._starts = screen.offsets[:-1]
        self._sizes = np.diff(screen.offsets)
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
        if self._finished:
            position = {"epoch": self.epoch + 1, "batch": 0}
        else:
            position = {"epoch": self.epoch, "batch": self._handed_out}
        return {**position, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state, which must be of a loader with the same order."""
        identity = self._identity()
        for name, own_value in identity.items():
            if state.get(name, own_value) != own_value:
                message = f"the state has {name}={state[name]}, but this loader has {own_value}"
                raise InputError(message, code="other-order", key=name)
        epoch = state.get("epoch", -1)
        batch = state.get("batch", -1)
        is_complete = state.keys() >= identity.keys()
        if not is_complete or epoch < 0 or not 0 <= batch < len(self):
            raise InputError("not a state of this loader", code="not-a-state")
        self._go_to(epoch, batch)

    @property
    def _finished(self) -> bool:
        return self._handed_out == len(self)

    def _go_to(self, epoch: int, batch: int) -> None:
        self.epoch = epoch
        self._start = batch
        self._handed_out = batch

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
        """Return the rows of an epoch in order, [samples]."""
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
            yield from self._gathered(order[first * self.batch_size : last * self.batch_size])

    def _gathered(self, rows_of_all: Ints) -> Iterator[Batch]:
        """Yield this rank's part of each batch, from the rows of some whole batches."""
        n_batches = -(-len(rows_of_all) // self.batch_size)
        begin = np.arange(n_batches, dtype=np.int64) * self.batch_size
        counts = np.minimum(begin + self.batch_size, len(rows_of_all)) - begin
        skipped = counts * self.rank // self.world_size
        lengths = counts * (self.rank + 1) // self.world_size - skipped
        rows = rows_of_all[ragged_positions(begin + skipped, lengths)]
        sizes = self._sizes[rows]
        ends = offsets_of(sizes)
        first = np.cumsum(lengths) - lengths  # row of each batch
        offsets = ends[ragged_positions(first, lengths + 1)] - np.repeat(ends[first], lengths + 1)
        genes = self._genes[ragged_positions(self._starts[rows], sizes)]
        weights = np.repeat((1.0 / counts).astype(np.float32), lengths)
        genes_of_batches = _split(genes, ends[first + lengths] - ends[first])
        offsets_of_batches = _split(offsets, lengths + 1)
        targets_of_batches = _split(self._targets[rows], lengths)
        weights_of_batches = _split(weights, lengths)
        rows_of_batches = _split(rows, lengths)
        for batch in range(n_batches):
            yield Batch(
                Genotypes(genes_of_batches[batch], offsets_of_batches[batch]),
                targets_of_batches[batch],
                weights_of_batches[batch],
                rows_of_batches[batch],
            )


def _split(values: AnyArray, lengths: Ints) -> Sequence[torch.Tensor]:
    """Return views of consecutive pieces of an array."""
    return torch.split_with_sizes(torch.from_numpy(values), lengths.tolist())


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
    shift = np.repeat(rng.integers(0, length, len(size)), size)
    run_of_group = (within + shift) // length
    is_first = np.ones(len(groups), dtype=bool)
    is_first[1:] = (np.diff(run_of_group) != 0) | (np.diff(number[order]) != 0)
    run = np.cumsum(is_first) - 1
    place = rng.permutation(int(run[-1]) + 1)
    return order[np.argsort(place[run], kind="stable")]


def _checked_targets(screen: Screen, rows: Ints, targets: npt.ArrayLike | None) -> Floats:
    """Return the target of each row of the screen; raise if one of the given rows has none."""
    values = np.array(screen.column("score") if targets is None else targets, dtype=np.float32)
    if values.shape != (len(screen),):
        message = (
            f"targets has shape {values.shape}; expected one number per row of the whole screen"
        )
        raise InputError(message, code="column-length")
    n_missing = int((~np.isfinite(values[rows])).sum())
    if n_missing:
        message = f"{n_missing:,} of {len(rows):,} rows have no target (not a finite number)"
        raise InputError(message, code="missing-target", fix="Exclude these rows.")
    return values


def _checked_rows(screen: Screen, rows: npt.ArrayLike | None) -> Ints:
    """Return rows as distinct indices; raise if they are something else."""
    n_rows = len(screen)
    chosen = np.arange(n_rows) if rows is None else np.asarray(rows)
    if chosen.dtype == bool and len(chosen) == n_rows:
        chosen = np.flatnonzero(chosen)
    is_inside = len(chosen) > 0 and bool(np.isin(chosen, np.arange(n_rows)).all())
    is_distinct = len(np.unique(chosen)) == len(chosen)
    if not is_inside or not is_distinct or chosen.dtype.kind not in "iu":
        message = f"rows must be distinct indices from 0 to {n_rows - 1}, or a mask of all rows"
        raise InputError(message, code="invalid-rows")
    return chosen.astype(np.int64)
