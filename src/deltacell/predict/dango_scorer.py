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
from deltacell.predict.dango_attention import KeptAttention, strongest_layer
from deltacell.predict.dango_bound import AttentionBound
from deltacell.predict.dango_pairs import PairTables
from deltacell.predict.dango_tables import UniformTables
from deltacell.predict.dango_triples import Triples
from deltacell.predict.pair_sum import PairSum
from deltacell.predict.run_scorer import Doubles, Rough
from deltacell.propagate.workers import in_any_worker, workers_for
from deltacell.train.standard import Standard

AT_A_TIME = 64
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

    bounded = True

    def __init__(self, model: Dango, cell: Cell, standard: Standard) -> None:
        exact = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._genes = exact.encode(cell).genes
        self._sets = exact.hyper_sagnn.sets
        self._standard = standard
        self._tables: dict[int, UniformTables] = {}
        self._pairs: dict[int, tuple[PairTables, AttentionBound]] = {}
        self._kept: tuple[KeptAttention, AttentionBound] | None = None
        self._triples = {
            dtype: Triples(self._sets, self._genes, standard, dtype)
            for dtype in (torch.float32, torch.float64)
        }

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes.

        Parameters
        ----------
        sets
            Gene indices.
        """
        device = self._genes.device
        scores = np.empty(len(sets), dtype=np.float64)

        def score(begin: int) -> None:
            part = sets[begin : begin + AT_A_TIME]
            filled = torch.from_numpy(np.resize(part, (AT_A_TIME, sets.shape[1]))).to(device)
            found = self._scores(filled)
            scores[begin : begin + len(part)] = found[: len(part)].cpu().numpy()

        begins = range(0, len(sets), AT_A_TIME)
        in_any_worker(score, begins, workers_for(device, len(begins)))
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
        pairs, bound = self._of_pairs(block.size)
        of_axes = tuple(pairs.of(*two) for two in combinations(block.axes, 2))
        return PairSum(of_axes, self._standard.std * bound.of(block.axes))

    def attention_within(self, block: Block) -> float | None:
        """Return how near `with_attention` comes; None for sets of other than three genes."""
        if block.size != 3 or not len(self._sets.attention):
            return None
        kept, bound = self._of_kept()
        return self._standard.std * bound.of(block.axes) if kept.can(block.axes) else None

    def with_attention(self, block: Block) -> Rough | None:
        """Return the scores of triples with the attention of the layer where it matters most.

        Parameters
        ----------
        block
            Of sets.
        """
        within = self.attention_within(block)
        if within is None:
            return None
        pairs, kept = self._of_pairs(3)[0], self._of_kept()[0]
        of_axes = tuple(pairs.of(*two) for two in combinations(block.axes, 2))
        scores, rounding = kept.scores(block.axes, of_axes)
        return Rough(scores, within + rounding)

    def single(self, block: Block, sets: Ints) -> Rough | None:
        """Return the scores of some triples of a block in single precision.

        Parameters
        ----------
        block, sets
            Of sets, and some of them.
        """
        if block.size != 3:
            return None
        at = torch.from_numpy(sets).to(self._genes.device)
        scores = self._triples[torch.float32].scores(at)
        rounding = self._of_pairs(3)[1].rounding(block.axes)
        return Rough(scores, self._standard.std * rounding)

    def _of_pairs(self, size: int) -> tuple[PairTables, AttentionBound]:
        if size not in self._pairs:
            tables = self._uniform(size)
            pairs = PairTables(self._sets, tables, self._standard)
            self._pairs[size] = pairs, AttentionBound(self._sets, tables)
        return self._pairs[size]

    def _of_kept(self) -> tuple[KeptAttention, AttentionBound]:
        if self._kept is None:
            tables = self._uniform(3)
            layer = strongest_layer(self._sets, tables)
            kept = KeptAttention(self._sets, tables, layer, self._standard)
            self._kept = kept, AttentionBound(self._sets, tables, layer)
        return self._kept

    def _uniform(self, size: int) -> UniformTables:
        if size not in self._tables:
            self._tables[size] = UniformTables.of(self._sets, self._genes, size)
        return self._tables[size]

    def _scores(self, sets: torch.Tensor) -> torch.Tensor:
        if sets.shape[1] == 3:
            return self._triples[torch.float64].scores_at_once(sets)
        if sets.shape[1] == 2:
            # Attention to the only other gene has the weight 1, so uniform is what it is.
            tables = self._uniform(2)
            moved = (tables.y[sets] + tables.z[sets.flip(1)]).square().sum(1) / 2
            score = (moved * self._sets.score.weight[0]).sum(1) + self._sets.score.bias
        else:
            x = self._genes[sets]
            present = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            score = self._sets(x, present)[0]
        return self._standard.undo(score)
