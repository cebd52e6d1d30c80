"""A screen as a dataset, for people who bring their own DataLoader."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from deltacell.screen.batch import Batch, Columns, Targets, checked_rows
from deltacell.screen.screen import Screen


class GenotypeDataset(Dataset[Batch]):
    """The genotypes of a screen for `torch.utils.data.DataLoader`, which asks for whole batches.

    ``DataLoader(dataset, batch_size=64, shuffle=True, collate_fn=GenotypeDataset.collate)``. The
    `Loader` is much faster; this one works with any sampler.

    Parameters
    ----------
    screen
        What was measured.
    rows
        The rows it holds: indices without repetition, or a mask; all where not given.
    targets
        ``score``, or one number a row of the whole screen.
    sample_weights
        One positive number a row of the whole screen; equal where not given.
    """

    def __init__(
        self,
        screen: Screen,
        rows: npt.ArrayLike | None = None,
        *,
        targets: Targets = "score",
        sample_weights: npt.ArrayLike | None = None,
    ) -> None:
        self.rows = checked_rows(screen, rows)
        self._columns = Columns(screen, self.rows, targets=targets, sample_weights=sample_weights)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Batch:
        """Return one genotype as a batch of one."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the genotypes at the given positions of `rows` as one batch.

        Its weights add up to 1 over this batch alone.
        """
        rows = self.rows[np.asarray(indices, dtype=np.int64)]
        total = self._columns.sample_weights[rows].sum(keepdims=True)
        length = np.array([len(rows)], dtype=np.int64)
        (batch,) = self._columns.gather(rows, length, total, torch.device("cpu"))
        return batch

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """Return what `__getitems__` made, which is a batch already."""
        return batch
