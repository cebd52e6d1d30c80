"""DANGO as a scorer of gene sets: all that is a gene's once, then sets from it."""

from __future__ import annotations

import copy
from itertools import combinations

import numpy as np
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.models import Dango
from deltacell.predict.block import Block
from deltacell.predict.dango_bound import AttentionBound
from deltacell.predict.dango_pairs import PairTables
from deltacell.predict.dango_tables import UniformTables
from deltacell.predict.pair_sum import PairSum
from deltacell.predict.run_scorer import Doubles
from deltacell.train.standard import Standard

AT_A_TIME = 32
"""Sets scored together. Always so many, so that a product has one shape and rounds in one way."""


class DangoScorer:
    """Scores of a DANGO: exactly, in double precision, and roughly, with a bound.

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
        exact = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._genes = exact.encode(cell).genes
        self._sets = exact.hyper_sagnn.sets
        self._standard = standard
        self._tables: dict[int, UniformTables] = {}
        self._pairs: dict[int, tuple[PairTables, AttentionBound]] = {}

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
            filled = torch.from_numpy(np.resize(part, (AT_A_TIME, sets.shape[1]))).to(device)
            found = self._standard.undo(self._scores(filled))
            scores[begin : begin + len(part)] = found[: len(part)].cpu().numpy()
        return scores

    def pair_sum(self, block: Block) -> PairSum | None:
        """Return the scores under uniform attention, with a bound on what that leaves out.

        Parameters
        ----------
        block
            Of sets of two genes or more; there is nothing to say of fewer.
        """
        if block.size < 2:
            return None
        if block.size not in self._pairs:
            tables = self._uniform(block.size)
            pairs = PairTables(self._sets, tables, self._standard)
            self._pairs[block.size] = pairs, AttentionBound(self._sets, tables)
        pairs, bound = self._pairs[block.size]
        of_axes = tuple(pairs.of(*two) for two in combinations(block.axes, 2))
        return PairSum(of_axes, self._standard.std * bound.of(block.axes))

    def _uniform(self, size: int) -> UniformTables:
        if size not in self._tables:
            self._tables[size] = UniformTables.of(self._sets, self._genes, size)
        return self._tables[size]

    def _scores(self, sets: torch.Tensor) -> torch.Tensor:
        if sets.shape[1] == 2:
            # Attention to the only other gene has the weight 1, so uniform is what it is.
            tables = self._uniform(2)
            moved = (tables.y[sets] + tables.z[sets.flip(1)]).square().sum(1) / 2
            weight, bias = self._sets.score.weight[0], self._sets.score.bias
            return (moved * weight).sum(1) + bias
        x = self._genes[sets]
        present = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        score: torch.Tensor = self._sets(x, present)[0]
        return score
