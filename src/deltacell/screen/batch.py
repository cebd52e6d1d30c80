"""One batch as a model sees it: genotypes, targets and weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints, offsets_of, ragged_positions
from deltacell.errors import InputError
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.screen import Screen

Targets = Literal["score"] | npt.ArrayLike


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Genotypes with what is to be predicted for them.

    Parameters
    ----------
    genotypes
        The deleted genes of each of ``b`` genotypes.
    targets
        What was measured, float32 [b].
    weights
        The share of each genotype in the loss, float32 [b]. Over all ranks they add up to 1, so
        ``(weights * loss).sum()`` summed over the ranks is the (weighted) mean of the loss.
    rows
        Rows of the screen, int64 [b].
    """

    genotypes: Genotypes
    targets: torch.Tensor
    weights: torch.Tensor
    rows: torch.Tensor

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
        return Batch(
            self.genotypes.pin_memory(),
            self.targets.pin_memory(),
            self.weights.pin_memory(),
            self.rows.pin_memory(),
        )


class Columns:
    """The columns of a screen that batches are gathered from, checked once.

    Parameters
    ----------
    screen
        What was measured.
    rows
        The rows that will be asked for; only their targets and weights are checked.
    targets
        ``score``, or one number a row of the screen.
    sample_weights
        One positive number a row of the screen; equal where not given.
    """

    def __init__(
        self,
        screen: Screen,
        rows: Ints,
        *,
        targets: Targets = "score",
        sample_weights: npt.ArrayLike | None = None,
    ) -> None:
        self.genes: Ints = screen.genotypes.genes.numpy()
        self.starts: Ints = screen.offsets[:-1]
        self.sizes: Ints = np.diff(screen.offsets)
        self.targets = _checked_targets(screen, rows, targets)
        self.sample_weights = _checked_weights(screen, rows, sample_weights)

    def gather(
        self, rows: Ints, lengths: Ints, totals: npt.NDArray[np.float64], device: torch.device
    ) -> Iterator[Batch]:
        """Yield many batches from one gather; each is a view of its piece.

        Parameters
        ----------
        rows
            The rows of all batches, one after the other.
        lengths
            How many of them each batch has; some may have none.
        totals
            The sum of sample weights that each batch is a part of.
        device
            Where the batches shall be.
        """
        sizes = self.sizes[rows]
        ends = offsets_of(sizes)
        first = np.cumsum(lengths) - lengths
        begin = ends[first]
        flat = (
            self.genes[ragged_positions(self.starts[rows], sizes)],
            ends[ragged_positions(first, lengths + 1)] - np.repeat(begin, lengths + 1),
            self.targets[rows],
            (self.sample_weights[rows] / np.repeat(totals, lengths)).astype(np.float32),
            rows,
        )
        per_batch = lengths.tolist()
        pieces = (
            (ends[first + lengths] - begin).tolist(),
            (lengths + 1).tolist(),
            per_batch,
            per_batch,
            per_batch,
        )
        views = [
            torch.split_with_sizes(_on(device, torch.from_numpy(column)), piece)
            for column, piece in zip(flat, pieces, strict=True)
        ]
        for genes, offsets, target, weight, row in zip(*views, strict=True):
            yield Batch(Genotypes(genes, offsets), target, weight, row)

    def totals(self, rows: Ints, batch_size: int) -> npt.NDArray[np.float64]:
        """Return the sum of sample weights of each ``batch_size`` consecutive rows."""
        first = np.arange(0, len(rows), batch_size)
        total: npt.NDArray[np.float64] = np.add.reduceat(self.sample_weights[rows], first)
        return total


def checked_rows(screen: Screen, rows: Any) -> Ints:
    """Return rows of a screen as indices, all of them where none are given.

    Parameters
    ----------
    screen
        What was measured.
    rows
        Indices without repetition, or a mask with one value a row.
    """
    n = len(screen)
    if rows is None:
        return np.arange(n, dtype=np.int64)
    given = np.array(rows)
    if given.dtype == bool:
        if given.shape != (n,):
            raise InputError(
                f"the mask of rows has the shape {given.shape}, expected ({n},): one value a row"
            )
        given = np.flatnonzero(given)
    if given.ndim != 1 or not (given.size == 0 or np.issubdtype(given.dtype, np.integer)):
        raise InputError(
            f"rows must be a list of row numbers, not {given.dtype} of shape {given.shape}"
        )
    if not given.size:
        raise InputError("no rows were given, so there is nothing to load")
    index: Ints = given.astype(np.int64)
    if index.min() < 0 or index.max() >= n:
        outside = index[(index < 0) | (index >= n)][0]
        raise InputError(f"row {outside} is outside the screen, whose rows are 0 to {n - 1}")
    repeats = len(index) - len(np.unique(index))
    if repeats:
        raise InputError(
            f"{repeats} of {len(index)} rows are repeats of another",
            fix="Give every row once; let a genotype count more with sample_weights.",
        )
    return index


def _on(device: torch.device, column: torch.Tensor) -> torch.Tensor:
    if device.type == "cpu":
        return column
    if device.type == "cuda":
        return column.pin_memory().to(device, non_blocking=True)
    return column.to(device)


def _checked_targets(screen: Screen, rows: Ints, targets: Targets) -> npt.NDArray[np.float32]:
    if isinstance(targets, str):
        if targets != "score":
            raise InputError(f"targets is '{targets}'; expected 'score' or an array")
        values = screen.column("score")
    else:
        values = _one_per_row(screen, "targets", targets)
    column = np.array(values, dtype=np.float32)
    missing = int((~np.isfinite(column[rows])).sum())
    if missing:
        raise InputError(
            f"{missing:,} of {len(rows):,} rows have no target (not a finite number)",
            fix="Leave them out: rows=rows[np.isfinite(targets[rows])], "
            "with targets = screen.column('score') unless you give your own.",
        )
    return column


def _checked_weights(
    screen: Screen, rows: Ints, weights: npt.ArrayLike | None
) -> npt.NDArray[np.float64]:
    if weights is None:
        return np.ones(len(screen))
    column = np.array(_one_per_row(screen, "sample_weights", weights), dtype=np.float64)
    bad = int((~(np.isfinite(column[rows]) & (column[rows] > 0))).sum())
    if bad:
        raise InputError(
            f"{bad:,} of {len(rows):,} sample weights are not positive finite numbers",
            fix="Leave a genotype out by its row, not by a weight of 0.",
        )
    return column


def _one_per_row(screen: Screen, name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.shape != (len(screen),):
        raise InputError(
            f"{name} has the shape {array.shape}, expected ({len(screen)},): "
            "one number a row of the whole screen, whatever rows are loaded"
        )
    return array
