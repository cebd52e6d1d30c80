"""DANGO as a scorer of gene sets: exact scores, and bounds on whole blocks."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.models import Dango
from deltacell.models.hyper_sagnn import OthersAttention, PaddedSets
from deltacell.predict.dango_tables import (
    AxisCache,
    KeptAttention,
    LayerNorms,
    LayerWeights,
    UniformTables,
    layer_weights,
    layers_of,
    strongest_layer,
)
from deltacell.predict.gene_sets import Block
from deltacell.predict.scorers import Doubles, PairSum, Rough
from deltacell.propagate.workers import in_any_worker, workers_for
from deltacell.train.data import Standard

DOUBLE, SINGLE = 1e-9, 1e-4
"""Share of their length that vectors may lose by rounding: 1,000 operations' worth, and more."""

N_LAST = 4
"""Norms of a gene's last vectors: of y and z weighted, of what y is a difference of, and of z."""


class AttentionBound:
    """Bounds of ``|score - surrogate|`` before the scale of the targets, over blocks of sets.

    Parameters
    ----------
    sets
        The weights, in double precision.
    tables
        Of the size of the sets.
    kept
        The layer whose attention the surrogate has, by ``p`` alone; None where it has none. Of
        sets of three genes.
    """

    def __init__(self, sets: PaddedSets, tables: UniformTables, kept: int | None = None) -> None:
        self._size = tables.size
        self._kept = kept
        weight = sets.score.weight[0]
        self._most = float(weight.abs().max())
        self._weights = [layer_weights(layer) for layer in layers_of(sets)]
        before = tables.static.norm(dim=-1) + (tables.y + tables.static).norm(dim=-1)
        last = [
            *((part * weight).norm(dim=-1) for part in (tables.y, tables.z)),
            before,
            tables.z.norm(dim=-1),
        ]
        norms = [norm for of_layer in tables.norms for norm in of_layer]
        self._of_gene = torch.cat([torch.stack(last, 1), *norms], 1).cpu().numpy()

    def of(self, axes: Sequence[Ints]) -> float:
        """Return a bound of ``|score - surrogate|`` for every set of a block.

        Parameters
        ----------
        axes
            Of the block.
        """
        largest = self._largest(axes)
        way = self._way(largest)
        weighted = self._last(largest, 0) + self._most * way.kept
        bound = 2 * weighted * way.error + self._most * way.error**2
        return float(bound.mean()) + self._rounding(largest, way, DOUBLE)

    def rounding(self, axes: Sequence[Ints]) -> float:
        """Return what single precision may take from the score of any set of a block.

        Parameters
        ----------
        axes
            Of the block.
        """
        largest = self._largest(axes)
        return self._rounding(largest, self._way(largest), SINGLE)

    def _largest(self, axes: Sequence[Ints]) -> Doubles:
        return np.stack([self._of_gene[axis].max(0) for axis in axes])

    def _way(self, largest: Doubles) -> _Way:
        way = _Way.beginning(self._size)
        begin = N_LAST
        for i, weights in enumerate(self._weights):
            end = begin + len(LayerNorms._fields) * weights.heads
            norms = largest[:, begin:end].reshape(self._size, -1, weights.heads)
            way = way.through(weights, norms, kept=i == self._kept)
            begin = end
        return way

    def _last(self, largest: Doubles, y: int) -> Doubles:
        """Return bounds of ``|y_i + sum of z_j|``, by axis."""
        last: Doubles = largest[:, y] + _sum_of_others(largest[:, y + 1])
        return last

    def _rounding(self, largest: Doubles, way: _Way, share: float) -> float:
        """Return what a score loses where vectors lose a share of their length."""
        away = way.kept + way.eta
        lost = share * (self._last(largest, 2) + away)
        weighted = self._last(largest, 0) + self._most * away
        return float((weighted * lost + self._most * lost**2).mean())


class _Way(NamedTuple):
    """How far vectors may be from those under uniform attention, one number an axis.

    Parameters
    ----------
    eta
        ``|eta|``.
    error
        ``|eta - kappa|``.
    kept
        ``|kappa|``.
    """

    eta: Doubles
    error: Doubles
    kept: Doubles

    @classmethod
    def beginning(cls, size: int) -> _Way:
        return cls(*np.zeros((3, size)))

    def through(self, weights: LayerWeights, norms: Doubles, *, kept: bool) -> _Way:
        """Return the same after a layer, whose norms by axis are [size, 5, heads]."""
        logits, query, query_of_others, key, out = norms.transpose(1, 0, 2)
        others = len(logits) - 1
        if not others:
            return self
        eta_of_others = _largest_other(self.eta)[:, None]
        keys_apart = _two_largest_others(key)
        moved_keys = 2 * weights.key * eta_of_others
        moved_queries = query_of_others.sum(0) + weights.query * self.eta[:, None]
        moved = moved_queries * (keys_apart + moved_keys) + query * moved_keys
        moved /= math.sqrt(weights.width)
        outs_apart = weights.beta * _two_largest_others(out)
        carried = weights.beta * weights.out.sum() * eta_of_others[:, 0]
        uneven = carried + (_from_uniform(logits + moved, others) * outs_apart).sum(1)
        if not kept:
            return _Way(self.eta + uneven, self.error + uneven, self.kept)
        changed = carried + (np.minimum(moved / 4, 1) * outs_apart).sum(1)
        added = (_from_uniform(logits, others) * outs_apart).sum(1)
        return _Way(self.eta + uneven, self.error + changed, self.kept + added)


def _from_uniform(logits: Doubles, others: int) -> Doubles:
    """Return how far in total variation attention may be from uniform, by its logits' range."""
    if others == 1:
        return np.zeros_like(logits)
    away: Doubles = np.tanh(logits / 2) / 2 if others == 2 else np.tanh(logits / 4)
    return away


def _sum_of_others(of_axis: Doubles) -> Doubles:
    rest: Doubles = of_axis.sum(0) - of_axis
    return rest


def _largest_other(of_axis: Doubles) -> Doubles:
    largest: Doubles = of_axis[_others(len(of_axis))].max(1)
    return largest


def _two_largest_others(of_axis: Doubles) -> Doubles:
    others = of_axis[_others(len(of_axis))]
    if others.shape[1] > 2:
        others = np.sort(others, 1)[:, -2:]
    total: Doubles = others.sum(1)
    return total


@cache
def _others(size: int) -> Ints:
    """Return the axes beside each axis, [size, size - 1]."""
    return np.array([[j for j in range(size) if j != i] for i in range(size)])


KEPT = 2**27
"""Bytes of tables that are kept, 16 KiB each for axes of 64 genes."""


class PairTables:
    r"""Tables whose sum over the pairs of a set is its score under uniform attention.

    With y and z of `UniformTables`, n others and w the weights of the score,

        size * G_ij = 2 w . (y_i z_j + z_i y_j + (n - 1) z_i z_j) + (f_i + f_j) / n + 2 b / n,
        f_i = w . (y_i^2 + n z_i^2),

    in the unit of the screen: one matrix product for all pairs of two axes.

    Parameters
    ----------
    sets
        The weights, in double precision.
    tables
        Of the size of the sets.
    standard
        The scale of the targets.
    """

    def __init__(self, sets: PaddedSets, tables: UniformTables, standard: Standard) -> None:
        size, others = tables.size, tables.size - 1
        weight = sets.score.weight[0] * (standard.std / size)
        y, z = tables.y, tables.z
        alone = (y.square() + others * z.square()) @ weight / others
        shift = float(standard.undo(sets.score.bias[0])) / (size * others / 2)
        one = torch.ones_like(alone).unsqueeze(1)
        alone = alone.unsqueeze(1)
        self._left = torch.cat([y, z, alone + shift, one], 1)
        self._right = torch.cat(
            [2 * weight * z, 2 * weight * (y + (others - 1) * z), one, alone], 1
        )
        self._kept: AxisCache[torch.Tensor] = AxisCache(KEPT)

    def of(self, first: Ints, second: Ints) -> torch.Tensor:
        """Return the table of two axes, float32 [len, len].

        Parameters
        ----------
        first, second
            Gene indices.
        """
        return self._kept.get(
            (first, second), lambda: (self._left[first] @ self._right[second].t()).float()
        )


TRIPLES_AT_A_TIME = 512
"""Triples computed together, so that what is made of them stays in cache."""


class Triples:
    """The model itself on lists of triples.

    A gene attends to b of its others b and c with ``alpha = sigmoid(q . (k_b - k_c))``, and so to
    the value ``v_c + alpha (v_b - v_c)``: three genes need no padding, no mask and no softmax.
    Queries, keys and values of the first layer are a gene's alone and are computed once.

    Parameters
    ----------
    sets
        The weights.
    genes
        The genes' vectors in the wild type, [n_genes, hidden].
    standard
        The scale of the targets.
    dtype
        In which it is computed.
    """

    def __init__(
        self, sets: PaddedSets, genes: torch.Tensor, standard: Standard, dtype: torch.dtype
    ) -> None:
        self._layers = [_Layer(layer, dtype) for layer in layers_of(sets)]
        self._static = torch.relu(sets.static(genes)).to(dtype)
        self._genes = genes.to(dtype)
        self._first = self._layers[0].read(self._genes) if self._layers else None
        self._weight = (sets.score.weight[0] * (standard.std / 3)).to(dtype)
        self._shift = float(standard.undo(sets.score.bias[0]))

    def scores(self, sets: torch.Tensor) -> torch.Tensor:
        """Return the scores in the unit of the screen, [m], of sets [m, 3].

        Parameters
        ----------
        sets
            Gene indices.
        """
        lists = torch.split(sets, TRIPLES_AT_A_TIME)
        return torch.cat(
            in_any_worker(self.scores_at_once, lists, workers_for(sets.device, len(lists)))
        )

    def scores_at_once(self, sets: torch.Tensor) -> torch.Tensor:
        """Return the same, all computed together.

        Parameters
        ----------
        sets
            Gene indices.
        """
        at = sets.t().flatten()
        x = self._genes[at].view(3, len(sets), -1)
        for i, layer in enumerate(self._layers):
            read = layer.read(x) if i or self._first is None else self._first[at]
            x = x + layer.moved(read.view(3, len(sets), 3, layer.heads, -1))
        moved = x.sub_(self._static[at].view_as(x)).square_().sum(0)
        return moved @ self._weight + self._shift


class _Layer:
    """The weights of an attention layer, folded where they can be."""

    def __init__(self, layer: OthersAttention, dtype: torch.dtype) -> None:
        self.heads = layer.heads
        weight, bias = layer.query_key_value.weight.clone(), layer.query_key_value.bias.clone()
        hidden = weight.shape[1]
        # The scale of logits, once instead of for every set.
        for part in (weight, bias):
            part[:hidden] /= math.sqrt(hidden // layer.heads)
        self._weight, self._bias = weight.to(dtype), bias.to(dtype)
        self._out = (layer.beta * layer.out.weight).to(dtype).t().contiguous()
        self._out_bias = (layer.beta * layer.out.bias).to(dtype)

    def read(self, x: torch.Tensor) -> torch.Tensor:
        """Return query, key and value of vectors."""
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def moved(self, read: torch.Tensor) -> torch.Tensor:
        """Return by how much vectors move, [3, m, hidden], from [3, m, 3, heads, width]."""
        query, key, value = read.unbind(2)
        attended = torch.empty_like(query, memory_format=torch.contiguous_format)
        for a, b, c in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
            alpha = (key[b] - key[c]).mul_(query[a]).sum(-1, keepdim=True).sigmoid_()
            torch.addcmul(value[c], value[b] - value[c], alpha, out=attended[a])
        flat = attended.view(-1, self._out.shape[0])
        return torch.addmm(self._out_bias, flat, self._out).view(*attended.shape[:2], -1)


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
