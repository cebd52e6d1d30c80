"""A block of gene sets that are scored together and share their genes."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from deltacell.arrays import Ints


@dataclass(frozen=True, eq=False)
class Block:
    """All sets with one gene from each axis.

    Neighbouring axes that are the same array stand for sets of genes of that array: of those every
    set is there once, its genes in the order of the array. Other axes share no gene.

    Parameters
    ----------
    axes
        Gene indices, one array for each gene of a set.
    """

    axes: tuple[Ints, ...]

    def __len__(self) -> int:
        n = 1
        for axis, times in self._runs():
            n *= comb(len(axis), times)
        return n

    @property
    def size(self) -> int:
        """Number of genes of a set."""
        return len(self.axes)

    def sets(self) -> Ints:
        """Return all sets, [len, size], in the order of the axes."""
        if not len(self):
            return np.zeros((0, self.size), dtype=np.int64)
        position = np.indices([len(axis) for axis in self.axes]).reshape(self.size, -1)
        kept = np.ones(position.shape[1], dtype=bool)
        for t in range(1, self.size):
            if self.axes[t] is self.axes[t - 1]:
                kept &= position[t - 1] < position[t]
        rows = position[:, kept]
        return np.stack([axis[at] for axis, at in zip(self.axes, rows, strict=True)], axis=1)

    def _runs(self) -> list[tuple[Ints, int]]:
        """Return the distinct axes in order, with how often each stands in a row."""
        runs: list[tuple[Ints, int]] = []
        for axis in self.axes:
            if runs and runs[-1][0] is axis:
                runs[-1] = (axis, runs[-1][1] + 1)
            else:
                runs.append((axis, 1))
        return runs
