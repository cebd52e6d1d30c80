"""HeteroCell as a scorer of gene sets: the wild type once, then mutants against it."""

from __future__ import annotations

import copy

import numpy as np

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.models import HeteroCell
from deltacell.predict.run_scorer import Doubles, Unbounded, genotypes_of
from deltacell.propagate import Delta
from deltacell.propagate.workers import in_any_worker, one_core, workers_for
from deltacell.train.standard import Standard

AT_A_TIME = 64
"""Mutants propagated together on a device that is no CPU."""


class HeteroScorer(Unbounded):
    """Scores of a HeteroCell, each the same whatever is scored with it.

    On a CPU every mutant is propagated alone, by `Delta`, on one core: it takes no longer than in
    a batch, and rounding has no company to depend on. Elsewhere they go in batches, in double
    precision, whose rounding is gone where a score is rounded once.

    Parameters
    ----------
    model
        With its weights; left as it is.
    cell
        The wild type.
    standard
        The scale of its targets.
    """

    def __init__(self, model: HeteroCell, cell: Cell, standard: Standard) -> None:
        self._device = model.encoder.embedding.device
        self._alone = self._device.type == "cpu"
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        if self._alone:
            # Not by what this machine measures: the numbers are to be the same on another day.
            self._model.propagation = Delta(tile=1)
        else:
            self._model.double()
        if self._model.local_head is not None:
            self._model.local_head.largest = None
        self._cell = cell
        self._standard = standard
        self._encoded = self._model.encode(cell)

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes.

        Parameters
        ----------
        sets
            Gene indices.
        """
        step = 1 if self._alone else AT_A_TIME
        parts = [sets[begin : begin + step] for begin in range(0, len(sets), step)]
        workers = workers_for(self._device, len(parts))
        with one_core(2 if self._alone else 1):
            found = in_any_worker(self._scores, parts, workers)
        return np.concatenate(found) if found else np.empty(0)

    def _scores(self, sets: Ints) -> Doubles:
        found = self._model.score(self._cell, self._encoded, genotypes_of(sets)).score
        scores: Doubles = self._standard.undo(found.double()).cpu().numpy()
        return scores
