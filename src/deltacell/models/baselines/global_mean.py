"""The same score for every genotype."""

from __future__ import annotations

import numpy as np

from deltacell.cell import Cell
from deltacell.models.baselines.baseline import Doubles, FittedPredictor, Part, Report, State
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets


class GlobalMean(FittedPredictor):
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
        progress: Report,
    ) -> None:
        self._mean = training.mean

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        return np.full(len(sets), self._mean)

    def _state(self) -> State:
        return {"mean": self._mean}

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._mean = float(state["mean"])
