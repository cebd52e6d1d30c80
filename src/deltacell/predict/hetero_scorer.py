"""HeteroCell as a scorer of gene sets: the wild type once, then mutants against it."""

from __future__ import annotations

import copy

import numpy as np
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.models import HeteroCell
from deltacell.predict.block import Block
from deltacell.predict.pair_sum import PairSum
from deltacell.predict.run_scorer import Doubles, Rough
from deltacell.screen import Genotypes
from deltacell.train.standard import Standard

AT_A_TIME = 64
"""Mutants propagated together."""


class HeteroScorer:
    """Scores of a HeteroCell in double precision.

    Parameters
    ----------
    model
        With its weights.
    cell
        The wild type.
    standard
        The scale of its targets.
    """

    def __init__(self, model: HeteroCell, cell: Cell, standard: Standard) -> None:
        self._model = copy.deepcopy(model).double().eval()
        if self._model.local_head is not None:
            self._model.local_head.largest = None
        self._cell = cell
        self._standard = standard
        with torch.no_grad():
            self._wild_type = self._model.encode(cell)

    @torch.no_grad()
    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes.

        Parameters
        ----------
        sets
            Gene indices.
        """
        scores = np.empty(len(sets), dtype=np.float64)
        for begin in range(0, len(sets), AT_A_TIME):
            part = sets[begin : begin + AT_A_TIME]
            genes = torch.from_numpy(np.ascontiguousarray(part)).flatten()
            offsets = torch.arange(len(part) + 1) * sets.shape[1]
            genotypes = Genotypes(genes, offsets)
            found = self._model.score(self._cell, self._wild_type, genotypes).score
            scores[begin : begin + len(part)] = self._standard.undo(found).cpu().numpy()
        return scores

    def pair_sum(self, block: Block) -> PairSum | None:
        """Return None: no bound is known for a whole cell."""
        return None

    def attention_within(self, block: Block) -> float | None:
        """Return None, as `pair_sum`."""
        return None

    def with_attention(self, block: Block) -> Rough | None:
        """Return None, as `pair_sum`."""
        return None

    def single(self, block: Block, sets: Ints) -> Rough | None:
        """Return None: mutants differ little, and single precision would blur them."""
        return None
