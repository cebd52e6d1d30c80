"""Row-wise functions, computed on a few rows at a time and again in the backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deltacell.propagate.parallel.graphs import Gradients, GraphWork, in_graphs
from deltacell.propagate.parallel.threads import workers_for

Rows = slice | Tensor
"""The nodes that the rows of a tensor belong to."""

ALL = slice(None)

CPU_ROWS_AT_A_TIME = 2208  # rows of 64 numbers, and what is computed of them, in a core's cache


class RowFunction(ABC):
    """A function of tensors [m, ...] whose row i reads row i of each only.

    Attributes
    ----------
    parameters
        The other tensors that it reads and that may need a gradient.
    """

    parameters: Sequence[Tensor]

    @abstractmethod
    def forward(self, rows: Rows, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return one or several tensors with a row per input row."""

    def backward(
        self,
        rows: Rows,
        inputs: Sequence[Tensor],
        gradient: Tensor,
    ) -> Gradients | None:
        """Return the gradients of the inputs and the parameters from that of the only result.

        None, the default, leaves it to automatic differentiation.
        """
        return None


@dataclass(frozen=True)
class Chunks:
    """How rows are divided among the calls of a row-wise function."""

    n_rows: int | None  # rows per call; None is all, and keeps the graph
    workers: int = 1

    @classmethod
    def on(
        cls,
        device: torch.device,
        rows_at_a_time: int | None = None,
        workers: int | None = None,
    ) -> Chunks:
        """Return how to divide the rows of a cell.

        By default a CPU uses all threads of PyTorch, with the rows that fit into a core's cache,
        and other devices compute all rows at once; 0 rows at a time are all, too.
        """
        n_threads = workers or workers_for(device, 1 << 20)
        return cls(rows_per_call(device, rows_at_a_time), n_threads)

    def slices(self, n: int) -> list[slice]:
        """Return slices of n rows of equal length, the same number for each worker, at least 1."""
        count = -(-n // self.n_rows) if self.n_rows else 1
        count = -(-count // self.workers) * self.workers
        length = max(1, -(-n // max(count, 1)))
        return [slice(begin, min(begin + length, n)) for begin in range(0, max(n, 1), length)]


def rows_per_call(device: torch.device, rows_at_a_time: int | None) -> int | None:
    """Return the number of rows per call of a row-wise function; None is all."""
    if rows_at_a_time is None:
        return CPU_ROWS_AT_A_TIME if device.type == "cpu" else None
    return rows_at_a_time or None


def row_wise(
    function: RowFunction,
    rows: Rows,
    inputs: Sequence[Tensor],
    chunks: Chunks,
) -> tuple[Tensor, ...]:
    """Return the function's results for all rows.

    With a few rows at a time, all intermediate results stay in cache; the backward computes them
    again, which takes no longer than reading them from memory.
    """
    if chunks.n_rows is None:
        return function.forward(rows, inputs)
    results = in_graphs(_InChunks(function, rows, inputs, chunks), chunks.workers, kept=0)
    if len(results) == 1:
        return results[0]
    return tuple(torch.cat(parts) for parts in zip(*results, strict=True))


class _InChunks(GraphWork):
    """A row-wise function, each piece of which is a few rows."""

    def __init__(
        self,
        function: RowFunction,
        rows: Rows,
        inputs: Sequence[Tensor],
        chunks: Chunks,
    ) -> None:
        slices = chunks.slices(len(inputs[0]))
        self._function = function
        self._rows = [rows[part] if isinstance(rows, Tensor) else part for part in slices]
        self.parameters = function.parameters
        self.inputs: Sequence[Sequence[Tensor]] = [inputs]
        if len(slices) > 1:
            lengths = [part.stop - part.start for part in slices]
            split = [torch.split_with_sizes(tensor, lengths) for tensor in inputs]
            self.inputs = list(zip(*split, strict=True))

    def forward(self, piece: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the results of a few rows."""
        return self._function.forward(self._rows[piece], inputs)

    def backward(
        self,
        piece: int,
        inputs: Sequence[Tensor],
        gradient: Tensor | None,
    ) -> Gradients | None:
        """Return the gradients of the function, if it has them by hand."""
        if gradient is None:
            return None
        return self._function.backward(self._rows[piece], inputs, gradient)
