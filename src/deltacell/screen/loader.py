"""The loader: batches of genotypes, gathered for many batches at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints, ragged_positions
from deltacell.errors import InputError
from deltacell.screen.batch import Batch, Columns, Targets, checked_rows
from deltacell.screen.draw import commonest_gene, in_runs
from deltacell.screen.screen import Screen


class Loader:
    """Hands out the genotypes of a screen in batches, every one at most once an epoch.

    An epoch has one order, drawn from ``(seed, epoch)`` and the same for any number of ranks. Each
    global batch is ``batch_size`` consecutive genotypes of that order, cut into one contiguous
    slice a rank, as even as they can be; all ranks take the same number of steps, and where a
    batch has fewer genotypes than there are ranks some slices are empty.

    Iterating hands out the current epoch and, at its end, moves on to the next. After an iteration
    that was given up, the next one starts the epoch over. After `load_state_dict` the first epoch
    starts where the state was taken. Batches are views into one array a gather.

    Parameters
    ----------
    screen
        What was measured.
    rows
        The rows to hand out: indices without repetition, or a mask; all where not given.
    batch_size
        Genotypes a global batch.
    shuffle
        Whether to draw the order; otherwise it is that of ``rows``.
    seed
        Of the order.
    rank, world_size
        Which of how many processes this is.
    device
        Where the batches shall be. On CUDA they go through pinned memory without blocking.
    targets
        ``score``, or one number a row of the whole screen.
    sample_weights
        One positive number a row of the whole screen; equal where not given.
    batches_per_gather
        How many batches are gathered at once.
    samples_per_epoch
        Genotypes an epoch, the first so many of its order; all where not given or where there are
        fewer.
    run_length
        Where given, genotypes that share a gene follow each other in runs of at most this many,
        so that a batch has few distinct genes, see `in_runs`. Which genotypes an epoch has is drawn
        before, and each is equally likely to be in any batch.
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
        device: torch.device | str = "cpu",
        targets: Targets = "score",
        sample_weights: npt.ArrayLike | None = None,
        batches_per_gather: int = 256,
        samples_per_epoch: int | None = None,
        run_length: int | None = None,
    ) -> None:
        if batch_size < 1 or batches_per_gather < 1:
            raise InputError(
                f"batch_size is {batch_size} and batches_per_gather {batches_per_gather}; "
                "both must be at least 1"
            )
        if not 0 <= rank < world_size:
            raise InputError(f"rank {rank} of {world_size}; ranks are 0 to world_size - 1")
        if seed < 0:
            raise InputError(f"the seed is {seed}; it must not be negative")
        if samples_per_epoch is not None and samples_per_epoch < 1:
            raise InputError(f"samples_per_epoch is {samples_per_epoch}; it must be at least 1")
        if run_length is not None and run_length < 1:
            raise InputError(f"run_length is {run_length}; it must be at least 1")
        self.run_length = run_length
        self.screen = screen
        self.rows = checked_rows(screen, rows)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device(device)
        self.batches_per_gather = batches_per_gather
        n = len(self.rows)
        self.samples_per_epoch = n if samples_per_epoch is None else min(samples_per_epoch, n)
        self._columns = Columns(screen, self.rows, targets=targets, sample_weights=sample_weights)
        self._epoch = 0
        self._start = 0
        self._handed_out = 0
        self._current: object = None

    def __len__(self) -> int:
        """Return the steps of an epoch, the same on every rank."""
        return -(-self.samples_per_epoch // self.batch_size)

    @property
    def epoch(self) -> int:
        """The epoch that is being handed out, or is next."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch; going to the one that is under way keeps a loaded state."""
        if epoch < 0:
            raise InputError(f"the epoch is {epoch}; it must not be negative")
        if epoch != self._epoch or self._finished:
            self._go_to(epoch, 0)

    def __iter__(self) -> Iterator[Batch]:
        # A caller that counts the steps never asks for a batch after the last.
        if self._finished:
            self._go_to(self._epoch + 1, 0)
        # Only the newest iteration moves the loader, so that an abandoned one cannot.
        current = self._current = object()
        epoch, start = self._epoch, self._start
        self._handed_out = done = start
        for batch in self._batches(epoch, start):
            done += 1
            if self._current is current:
                self._handed_out = done
            yield batch
        if self._current is current:
            self._go_to(epoch + 1, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is: how many batches of which epoch it has handed out.

        After the last batch of an epoch that is the beginning of the next. The state is the same
        on every rank and can be loaded with another number of ranks.
        """
        return {
            "epoch": self._epoch + self._finished,
            "batch": 0 if self._finished else self._handed_out,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken; one of another order is refused."""
        identity = self._identity()
        absent = sorted({"epoch", "batch", *identity} - set(state))
        if absent:
            raise InputError(f"this is not the state of a loader: it has no {', '.join(absent)}")
        for name, mine in identity.items():
            if state[name] != mine:
                raise InputError(
                    f"the state was taken with another {_SAID[name]}: {state[name]}, "
                    f"and this loader has {mine}",
                    fix="Make the loader as it was, or start the epoch over without the state.",
                )
        epoch, batch = state["epoch"], state["batch"]
        if epoch < 0 or not 0 <= batch < len(self):
            raise InputError(
                f"the state is at batch {batch} of epoch {epoch}; an epoch has {len(self)} batches"
            )
        self._go_to(epoch, batch)

    @property
    def _finished(self) -> bool:
        return self._handed_out == len(self)

    def _go_to(self, epoch: int, batch: int) -> None:
        self._epoch, self._start, self._handed_out, self._current = epoch, batch, batch, None

    def _identity(self) -> dict[str, Any]:
        """Return all that decides which genotypes are in which batch."""
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
        generator = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        rng = np.random.Generator(generator)
        order: Ints = rng.permutation(self.rows)[: self.samples_per_epoch]
        if self.run_length is None:
            return order
        genes, starts, sizes = self._columns.genes, self._columns.starts, self._columns.sizes
        shared = commonest_gene(genes, starts[order], sizes[order])
        return order[in_runs(shared, self.run_length, rng)]

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        order = self._order(epoch)
        for first in range(start, len(self), self.batches_per_gather):
            last = min(first + self.batches_per_gather, len(self))
            together = order[first * self.batch_size : last * self.batch_size]
            totals = self._columns.totals(together, self.batch_size)
            begin = np.arange(last - first, dtype=np.int64) * self.batch_size
            counts = np.minimum(begin + self.batch_size, len(together)) - begin
            mine = counts * self.rank // self.world_size
            lengths = counts * (self.rank + 1) // self.world_size - mine
            rows = together[ragged_positions(begin + mine, lengths)]
            yield from self._columns.gather(rows, lengths, totals, self.device)


_SAID = {
    "seed": "seed",
    "shuffle": "setting of shuffle",
    "batch_size": "batch size",
    "samples_per_epoch": "number of samples an epoch",
    "run_length": "length of runs",
    "rows": "choice of rows",
    "screen": "screen",
}
