"""Batches of genotypes with their targets, gathered for many batches at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints, offsets_of, ragged_positions
from deltacell.errors import InputError
from deltacell.screen.draw import numbered
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.screen import Screen

Targets = Literal["score"] | npt.ArrayLike


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Genotypes with what is to be predicted for them."""

    genotypes: Genotypes
    targets: torch.Tensor  # float32 [b]
    # Share of each genotype in the loss, float32 [b]. Over all ranks they add up to 1, so that
    # (weights * loss).sum() summed over the ranks is the mean of the loss.
    weights: torch.Tensor
    rows: torch.Tensor  # of the screen, int64 [b]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.genotypes.nbytes + self.targets.nbytes + self.weights.nbytes + self.rows.nbytes

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return the batch on a device."""
        return Batch(
            self.genotypes.to(device, non_blocking=non_blocking),
            self.targets.to(device, non_blocking=non_blocking),
            self.weights.to(device, non_blocking=non_blocking),
            self.rows.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        """Return a copy in pinned memory, for transfers that do not block."""
        columns = (c.pin_memory() for c in (self.targets, self.weights, self.rows))
        return Batch(self.genotypes.pin_memory(), *columns)


class Loader:
    """Hands out the genotypes of a screen in batches, every one at most once per epoch.

    An epoch has one order, drawn from ``(seed, epoch)`` and the same for any number of ranks. Each
    global batch is ``batch_size`` consecutive genotypes of that order, cut into one contiguous
    slice per rank, as even as they can be; all ranks take the same number of steps, and where a
    batch has fewer genotypes than there are ranks some slices are empty.

    Iterating hands out the current epoch and, at its end, moves on to the next. After an iteration
    that was abandoned, the next one starts the epoch over. After `load_state_dict` the first epoch
    starts where the state was taken. Batches are views into one array per gather.

    Parameters
    ----------
    rows
        The rows to hand out: indices without repetition, or a mask; all by default.
    shuffle
        Whether to draw the order; otherwise it is that of ``rows``.
    device
        Where the batches go. On CUDA they go through pinned memory without blocking.
    targets
        ``score``, or one number per row of the whole screen.
    samples_per_epoch
        Genotypes per epoch, the first so many of its order; at most, and by default, all.
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
        batches_per_gather: int = 256,
        samples_per_epoch: int | None = None,
        run_length: int | None = None,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("batches_per_gather", batches_per_gather, 1),
            ("samples_per_epoch", samples_per_epoch, 1),
            ("run_length", run_length, 1),
            ("seed", seed, 0),
        ):
            if value is not None and value < least:
                raise InputError(
                    f"{name} is {value}; it must be at least {least}", code="invalid-number"
                )
        if not 0 <= rank < world_size:
            raise InputError(
                f"rank {rank} of {world_size}; ranks are 0 to world_size - 1", code="invalid-rank"
            )
        self.screen, self.rows = screen, _checked_rows(screen, rows)
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.rank, self.world_size, self.device = rank, world_size, torch.device(device)
        self.batches_per_gather, self.run_length = batches_per_gather, run_length
        n = len(self.rows)
        self.samples_per_epoch = n if samples_per_epoch is None else min(samples_per_epoch, n)
        self._genes: Ints = screen.genotypes.genes.numpy()
        self._starts, self._sizes = screen.offsets[:-1], np.diff(screen.offsets)
        self._targets = _checked_targets(screen, self.rows, targets)
        self._current: object = None
        self._go_to(0, 0)

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
            raise InputError(f"epoch is {epoch}; it must be at least 0", code="invalid-number")
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
        """Resume where a state was taken; one of another order is refused."""
        identity = self._identity()
        absent = sorted({"epoch", "batch", *identity} - set(state))
        if absent:
            raise InputError(
                f"not the state of a loader: it lacks {', '.join(absent)}", code="not-a-state"
            )
        for name, mine in identity.items():
            if state[name] != mine:
                raise InputError(
                    f"the state was taken with another {name}: {state[name]}, and this loader has "
                    f"{mine}",
                    code="other-order",
                    fix="Make the loader as it was, or start the epoch over without the state.",
                    key=name,
                )
        epoch, batch = state["epoch"], state["batch"]
        if epoch < 0 or not 0 <= batch < len(self):
            raise InputError(
                f"the state is at batch {batch} of epoch {epoch}; an epoch has {len(self)} batches",
                code="not-a-state",
            )
        self._go_to(epoch, batch)

    @property
    def _finished(self) -> bool:
        return self._handed_out == len(self)

    def _go_to(self, epoch: int, batch: int) -> None:
        self._epoch, self._start, self._handed_out = epoch, batch, batch
        self._current = None

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
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, epoch])))
        order: Ints = rng.permutation(self.rows)[: self.samples_per_epoch]
        if self.run_length is None:
            return order
        shared = commonest_gene(self._genes, self._starts[order], self._sizes[order])
        return order[in_runs(shared, self.run_length, rng)]

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield batches that are views of columns gathered for many of them."""
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
                torch.split_with_sizes(_on(self.device, torch.from_numpy(column)), pieces.tolist())
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


def commonest_gene(genes: Ints, starts: Ints, sizes: Ints) -> Ints:
    """Return for each genotype that one of its genes that most of the genotypes have.

    In a screen that crosses queries with an array this is mostly the query.
    """
    mine = genes[ragged_positions(starts, sizes)]
    count = np.bincount(mine)[mine] if len(mine) else mine
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((mine, count, owner))
    return mine[order[np.cumsum(sizes) - 1]]


def in_runs(groups: Ints, length: int, rng: np.random.Generator) -> Ints:
    """Return an order in which members of a group stand together, at most `length` at a time.

    The members of each group, already in random order, are cut into runs, the first of which is of
    random length, and the runs are shuffled; every member of a group is equally likely at every
    position of the order.
    """
    if not len(groups):
        return np.zeros(0, dtype=np.int64)
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


def _on(device: torch.device, column: torch.Tensor) -> torch.Tensor:
    if device.type == "cuda":
        return column.pin_memory().to(device, non_blocking=True)
    return column.to(device)


def _checked_targets(screen: Screen, rows: Ints, targets: Targets) -> npt.NDArray[np.float32]:
    if isinstance(targets, str) and targets != "score":
        raise InputError(f"unknown targets '{targets}'; use 'score' or an array", code="targets")
    values = screen.column("score") if isinstance(targets, str) else np.asarray(targets)
    if values.shape != (len(screen),):
        raise InputError(
            f"targets has the shape {values.shape}, expected ({len(screen)},): one number per row "
            "of the whole screen, whatever rows are loaded",
            code="column-length",
        )
    column = np.array(values, dtype=np.float32)
    missing = int((~np.isfinite(column[rows])).sum())
    if missing:
        raise InputError(
            f"{missing:,} of {len(rows):,} rows have no target (not a finite number)",
            code="missing-target",
            fix="Leave them out: rows=rows[np.isfinite(screen.column('score')[rows])].",
        )
    return column


def _checked_rows(screen: Screen, rows: Any) -> Ints:
    """Return rows of a screen as distinct indices; a mask is accepted, and None for all."""
    n = len(screen)
    if rows is None:
        return np.arange(n, dtype=np.int64)
    given = np.array(rows)
    if given.dtype == bool and given.shape == (n,):
        given = np.flatnonzero(given)
    if given.ndim != 1 or not (given.size == 0 or np.issubdtype(given.dtype, np.integer)):
        raise InputError(
            f"rows must be row numbers or a mask of {n} values, not {given.dtype} of shape "
            f"{given.shape}",
            code="invalid-rows",
        )
    if not given.size:
        raise InputError("no rows were given", code="no-rows")
    index: Ints = given.astype(np.int64)
    outside = index[(index < 0) | (index >= n)]
    if len(outside):
        raise InputError(
            f"row {outside[0]} is outside the screen, whose rows are 0 to {n - 1}",
            code="row-outside-screen",
        )
    repeats = len(index) - len(np.unique(index))
    if repeats:
        raise InputError(
            f"{repeats} of {len(index)} rows are repeats of another",
            code="repeated-rows",
            fix="Give every row once.",
        )
    return index
