"""A ring buffer of recent rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class RingBuffer(nn.Module):
    """The last ``capacity`` rows of several columns, detached; part of the state of its owner.

    Parameters
    ----------
    capacity
        The most rows to hold.
    widths
        Of each column; 0 for a column of plain numbers.
    """

    def __init__(self, capacity: int, widths: dict[str, int]) -> None:
        super().__init__()
        self.capacity = capacity
        self.written = 0
        self.names = tuple(widths)
        for name, width in widths.items():
            shape = (capacity, width) if width else (capacity,)
            self.register_buffer(name, torch.zeros(shape))

    def __len__(self) -> int:
        return min(self.written, self.capacity)

    def push(self, **columns: torch.Tensor) -> None:
        """Append rows; the oldest make room."""
        n = len(next(iter(columns.values())))
        kept = min(n, self.capacity)
        at = [place % self.capacity for place in range(self.written + n - kept, self.written + n)]
        with torch.no_grad():
            for name in self.names:
                column = self.get_buffer(name)
                index = torch.tensor(at, dtype=torch.int64, device=column.device)
                column.index_copy_(0, index, columns[name][n - kept :].to(column))
        self.written += n

    def latest(self, n: int) -> dict[str, torch.Tensor]:
        """Return the latest n rows, or all where there are fewer, the oldest of them first."""
        n = min(n, len(self))
        at = [place % self.capacity for place in range(self.written - n, self.written)]
        columns = {name: self.get_buffer(name) for name in self.names}
        return {
            name: column[torch.tensor(at, dtype=torch.int64, device=column.device)]
            for name, column in columns.items()
        }

    def get_extra_state(self) -> dict[str, int]:
        """Return how many rows were written."""
        return {"written": self.written}

    def set_extra_state(self, state: Any) -> None:
        """Take over how many rows were written."""
        self.written = int(state["written"])
