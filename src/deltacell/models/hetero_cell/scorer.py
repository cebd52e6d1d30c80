"""HeteroCell as a scorer of gene sets whose scores do not depend on the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from deltacell.base.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.models.interface import TargetScale
from deltacell.models.scoring import Scorer, genotypes_of
from deltacell.propagate.delta import Delta
from deltacell.propagate.late import Late, is_late
from deltacell.propagate.parallel.threads import in_any_worker, one_core, workers_for

if TYPE_CHECKING:
    from deltacell.models.hetero_cell.model import HeteroCell


class HeteroCellScorer(Scorer):
    """Scores of a HeteroCell, whose propagation it sets: pass a copy, without gradients.

    Every mutant is propagated alone, on one core, which takes no longer than in a batch.
    """

    def __init__(self, model: HeteroCell, cell: Cell, scale: TargetScale) -> None:
        # Not the strategy that is measured to be fastest: scores must be reproducible.
        model.propagation = Late() if is_late(model.mutant_shapes(cell)) else Delta(tile=1)
        if model.local_head is not None:
            model.local_head.largest = None
        self._model = model
        self._cell = cell
        self._scale = scale
        self._wild_type = model.encode(cell)

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] of gene sets [m, size]."""
        with one_core(2):
            workers = workers_for(torch.device("cpu"), len(sets))
            scores = in_any_worker(self._score, list(sets), workers)
        return np.array(scores, dtype=np.float64)

    def _score(self, genes: Ints) -> float:
        prediction = self._model.score(self._cell, self._wild_type, genotypes_of(genes[None]))
        return float(self._scale.undo(prediction.score.double()))
