"""HeteroCell as a scorer of gene sets whose scores do not depend on the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from deltacell.base.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.models.interface import TargetScale
from deltacell.models.scoring import SETS_PER_CALL, Scorer, genotypes_of
from deltacell.propagate.delta import Delta
from deltacell.propagate.late import Late, is_late
from deltacell.propagate.parallel.threads import in_any_worker, one_core, workers_for
from deltacell.propagate.shared import Shared

if TYPE_CHECKING:
    from deltacell.models.hetero_cell.model import HeteroCell


class HeteroCellScorer(Scorer):
    """Scores of a HeteroCell, whose propagation it sets: pass a copy, without gradients.

    On a CPU every mutant is propagated alone, on one core, which takes no longer than in a batch.
    On another device `SETS_PER_CALL` sets are scored at a time, so that a score may differ in its
    last digits with the sets beside it.
    """

    def __init__(self, model: HeteroCell, cell: Cell, scale: TargetScale) -> None:
        # Not the strategy that is measured to be fastest: scores must be reproducible.
        if is_late(model.mutant_shapes(cell)):
            model.propagation = Late()
        else:
            model.propagation = Delta(tile=1) if model.device.type == "cpu" else Shared()
        if model.local_head is not None:
            model.local_head.largest = None
        self._model = model
        self._cell = cell
        self._scale = scale
        self._wild_type = model.encode(cell)

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] of gene sets [m, size]."""
        if self._model.device.type != "cpu":
            return self._scores_on_device(sets)
        with one_core(2):
            workers = workers_for(torch.device("cpu"), len(sets))
            scores = in_any_worker(self._score, list(sets), workers)
        return np.array(scores, dtype=np.float64)

    def _scores_on_device(self, sets: Ints) -> Doubles:
        scores: Doubles = np.empty(len(sets), dtype=np.float64)
        for begin in range(0, len(sets), SETS_PER_CALL):
            part = sets[begin : begin + SETS_PER_CALL]
            genotypes = self._model.on_device(self._cell, genotypes_of(part))
            prediction = self._model.score(self._cell, self._wild_type, genotypes).on_host()
            scores[begin : begin + len(part)] = self._scale.undo(prediction.score.double()).numpy()
        return scores

    def _score(self, genes: Ints) -> float:
        prediction = self._model.score(self._cell, self._wild_type, genotypes_of(genes[None]))
        return float(self._scale.undo(prediction.score.double()))
