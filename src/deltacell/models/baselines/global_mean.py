"""The same score for every genotype."""

from __future__ import annotations

import numpy as np

from deltacell.cell import Cell
from deltacell.models.baselines.baseline import Baseline, Doubles, Part, Progress
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets


class GlobalMean(Baseline):
    r"""The mean of the training scores.

    .. math:: \hat y(S) = \sum_b w_b y_b / \sum_b w_b
    """

    def _fit(
        self,
        cell: Cell,
        order: GeneOrder,
        training: Part,
        validation: Part | None,
        seed: int,
        progress: Progress,
    ) -> None:
        self._mean = training.mean

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        return np.full(len(sets), self._mean)
