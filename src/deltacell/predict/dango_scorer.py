"""DANGO as a scorer of gene sets: the genes' vectors once, then sets against them."""

from __future__ import annotations

import copy

import numpy as np
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.models import Dango
from deltacell.predict.run_scorer import Doubles
from deltacell.train.standard import Standard

AT_A_TIME = 256
"""Sets scored together. Always so many, so that a product has one shape and rounds in one way."""


class DangoScorer:
    """Scores of a DANGO in double precision.

    Parameters
    ----------
    model
        With its weights.
    cell
        The wild type.
    standard
        The scale of its targets.
    """

    def __init__(self, model: Dango, cell: Cell, standard: Standard) -> None:
        exact = copy.deepcopy(model).double().eval()
        with torch.no_grad():
            self._genes = exact.encode(cell).genes
        self._sets = exact.hyper_sagnn.sets
        self._standard = standard

    @torch.no_grad()
    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes.

        Parameters
        ----------
        sets
            Gene indices.
        """
        device = self._genes.device
        scores = np.empty(len(sets), dtype=np.float64)
        for begin in range(0, len(sets), AT_A_TIME):
            part = sets[begin : begin + AT_A_TIME]
            filled = np.resize(part, (AT_A_TIME, sets.shape[1]))
            x = self._genes[torch.from_numpy(filled).to(device)]
            present = torch.ones(x.shape[:2], dtype=torch.bool, device=device)
            found = self._standard.undo(self._sets(x, present)[0])
            scores[begin : begin + len(part)] = found[: len(part)].cpu().numpy()
        return scores
