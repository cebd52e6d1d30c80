"""DANGO as a scorer of gene sets: exact scores, and cheap approximations with error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple, cast

import numpy as np
import torch
from torch.nn.functional import linear

from deltacell.base.arrays import Doubles, Ints
from deltacell.models.hyper_sagnn import OthersAttention, PaddedSets
from deltacell.models.interface import TargetScale
from deltacell.models.scoring import ROUNDING, Block, Rough, Scorer
from deltacell.propagate.parallel.threads import in_any_worker, workers_for

SETS_AT_ONCE = 64  # a fixed number, because the rounding of a product depends on its shape
TRIPLES_AT_ONCE = 512  # so that intermediate results stay in cache
DOUBLE = 1e-9  # relative rounding error of vectors in double precision
SINGLE = 1e-4  # in single precision
QUERIES_AT_ONCE = 128  # genes whose logits with all others are computed together
N_LAST = 4  # norms of a gene's last vectors that `Uniform` keeps
OTHERS = np.array([[1, 2], [0, 2], [0, 1]])  # the other two genes of each gene of a triple


class DangoScorer(Scorer):
    """Scores of a DANGO: exact ones in double precision, and approximate ones with a bound.

    `sets` is the model's, and `genes` are the vectors of all genes, [genes, hidden], in double
    precision and without gradients.
    """

    prunes = True

    def __init__(self, sets: PaddedSets, genes: torch.Tensor, standard: TargetScale) -> None:
        self._genes = genes
        self._sets = sets
        self._standard = standard
        # Shared by all blocks, and computed at first use.
        self._uniform = cache(lambda size: Uniform(self._sets, self._genes, size, standard))
        self._triples = cache(lambda dtype: Triples(self._sets, self._genes, standard, dtype))

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m], in the unit of the screen, of sets [m, size], genes ascending."""
        return self._in_parts(self._scores, sets, SETS_AT_ONCE)

    def rough(self, block: Block) -> Rough | None:
        """Return the scores of pairs or triples under uniform attention, by the block's axes."""
        if block.size not in (2, 3):
            return None
        uniform = self._uniform(block.size)
        tables = uniform.pair_sums(block.axes)
        largest = sum(float(table.abs().max()) for table in tables)
        lost = ROUNDING * (len(tables) + 1) * largest
        sums, *others = tables
        if others:
            sums = sums.unsqueeze(2) + others[0].unsqueeze(1) + others[1]
        return Rough(sums, uniform.bound(block.axes) + lost)

    def refined(self, block: Block, sets: Ints) -> Rough | None:
        """Return the scores of some triples of a block in single precision."""
        if block.size != 3:
            return None
        scores = self._in_parts(self._triples(torch.float32), sets, TRIPLES_AT_ONCE)
        within = self._uniform(3).bound(block.axes, share=SINGLE, rounding=True)
        return Rough(torch.from_numpy(scores), within)

    def _in_parts(
        self,
        score: Callable[[torch.Tensor], torch.Tensor],
        sets: Ints,
        at_once: int,
    ) -> Doubles:
        """Return the scores of sets, computed in parts of one shape, in threads."""
        scores = np.empty(len(sets), dtype=np.float64)

        def fill(begin: int) -> None:
            part = sets[begin : begin + at_once]
            n_sets = len(part)
            repeated = torch.from_numpy(np.resize(part, (at_once, sets.shape[1])))
            scores[begin : begin + n_sets] = score(repeated)[:n_sets].numpy()

        begins = range(0, len(sets), at_once)
        in_any_worker(fill, begins, workers_for(self._genes.device, len(begins)))
        return scores

    def _scores(self, sets: torch.Tensor) -> torch.Tensor:
        if sets.shape[1] == 3:
            return self._triples(torch.float64)(sets)
        x = self._genes[sets]
        present = torch.ones(x.shape[:2], dtype=torch.bool)
        return self._standard.undo(self._sets(x, present)[0])


class TripleLayer(NamedTuple):
    """The weights of an attention layer, which include the scale of the logits and beta."""

    weight: torch.Tensor  # of query, key and value
    bias: torch.Tensor
    out: torch.Tensor  # [in, out]
    out_bias: torch.Tensor

    @classmethod
    def of(cls, layer: OthersAttention, hidden: int, dtype: torch.dtype) -> TripleLayer:
        """Return the weights of a layer in a precision."""
        projection = layer.query_key_value
        weight = projection.weight.clone()
        bias = projection.bias.clone()
        root = math.sqrt(hidden // layer.heads)
        weight[:hidden] /= root
        bias[:hidden] /= root
        out = layer.beta * layer.out.weight.t()
        out_bias = layer.beta * layer.out.bias
        return cls(
            weight.to(dtype).contiguous(),
            bias.to(dtype).contiguous(),
            out.to(dtype).contiguous(),
            out_bias.to(dtype).contiguous(),
        )


class Triples:
    """The exact model on triples: from sets [m, 3] to scores [m] in the unit of the screen.

    A gene with the others b and c attends to b with ``alpha = sigmoid(q . (k_b - k_c))``, so its
    value is ``v_c + alpha (v_b - v_c)``: triples need no padding, no mask and no softmax.
    Queries, keys and values of the first layer depend on one gene and are computed once.
    """

    def __init__(
        self,
        sets: PaddedSets,
        genes: torch.Tensor,
        standard: TargetScale,
        dtype: torch.dtype,
    ) -> None:
        layers = [cast(OthersAttention, module) for module in sets.attention]
        self._layers = [TripleLayer.of(layer, genes.shape[1], dtype) for layer in layers]
        self._heads = layers[0].heads if layers else 1
        self._static = torch.relu(sets.static(genes)).to(dtype)
        self._genes = genes.to(dtype)
        self._first = None
        if self._layers:
            first = self._layers[0]
            self._first = linear(self._genes, first.weight, first.bias)
        weight = sets.score.weight[0] * (standard.std / 3)
        self._weight = weight.to(dtype)
        self._shift = float(standard.undo(sets.score.bias[0]))

    def __call__(self, sets: torch.Tensor) -> torch.Tensor:
        genes = sets.t().flatten()
        x = self._genes[genes].view(3, len(sets), -1)
        for number, layer in enumerate(self._layers):
            if number or self._first is None:
                projected = linear(x, layer.weight, layer.bias)
            else:
                projected = self._first[genes]
            by_head = projected.view(3, len(sets), 3, self._heads, -1)
            flat = self._attended(by_head).view(-1, len(layer.out))
            x = x + torch.addmm(layer.out_bias, flat, layer.out).view_as(x)
        distance = x.sub_(self._static[genes].view_as(x)).square_().sum(0)
        return distance @ self._weight + self._shift

    def _attended(self, projected: torch.Tensor) -> torch.Tensor:
        """Return what each gene reads of the other two, [3, m, heads, width]."""
        query, key, value = projected.unbind(2)
        attended = torch.empty_like(query, memory_format=torch.contiguous_format)
        for a, (b, c) in enumerate(OTHERS.tolist()):
            logits = (key[b] - key[c]).mul_(query[a]).sum(-1, keepdim=True)
            share_of_b = logits.sigmoid_()
            torch.addcmul(value[c], value[b] - value[c], share_of_b, out=attended[a])
        return attended


class LinearMaps(NamedTuple):
    """The vectors under uniform attention, ``x_i = A e_i + B sum_j e_j + c``, see `Uniform`."""

    a: torch.Tensor  # [hidden, hidden]
    b: torch.Tensor  # [hidden, hidden]
    c: torch.Tensor  # [hidden]

    @classmethod
    def of_no_layer(cls, genes: torch.Tensor) -> LinearMaps:
        """Return the maps before the first layer, where each vector is that of its gene."""
        hidden = genes.shape[1]
        identity = torch.eye(hidden, dtype=genes.dtype)
        return cls(identity, torch.zeros_like(identity), genes.new_zeros(hidden))

    def after(self, layer: Layer, n: int) -> LinearMaps:
        """Return the maps after a layer, with ``n`` other genes in a set."""
        a, b, c = self
        w = layer.out.sum(0)
        return LinearMaps(
            a=a + layer.beta * w @ b,
            b=b + layer.beta / n * w @ (a + (n - 1) * b),
            c=c + layer.beta * (layer.shift + w @ c),
        )

    def own_part(self, genes: torch.Tensor) -> torch.Tensor:
        """Return ``A e_i + c``, [genes, hidden]."""
        return genes @ self.a.t() + self.c

    def part_of_other(self, genes: torch.Tensor) -> torch.Tensor:
        """Return ``B e_j``, [genes, hidden]."""
        return genes @ self.b.t()


class Uniform:
    r"""Pairs or triples under uniform attention, and bounds of the error of that.

    With ``n = size - 1`` others and all attention weights 1/n every layer is linear,
    ``x_i = A e_i + B sum_j e_j + c``, from layer to layer

        A' = A + beta W B,  B' = B + beta/n W (A + (n - 1) B),  c' = c + beta (b + W c)

    with ``W = W_o W_v`` and ``b = W_o b_v + b_o``. So the score is
    ``sum_i w . (y_i + sum_{j != i} z_j)^2`` with ``y_i = A e_i + c - static_i`` and
    ``z_j = B e_j``. With ``f_i = w . (y_i^2 + n z_i^2)``, that is the sum over the set's pairs of

        G_ij = 2 w . (y_i z_j + z_i y_j + (n - 1) z_i z_j) + (f_i + f_j + 2 b / size) / n.

    For a pair it is exact, because a gene attends to the only other one with weight 1. All numbers
    are in the unit of the screen.
    """

    def __init__(
        self,
        sets: PaddedSets,
        genes: torch.Tensor,
        size: int,
        standard: TargetScale,
    ) -> None:
        n = size - 1
        weight = sets.score.weight[0] * (standard.std / size)
        self._layers = [Layer(cast(OthersAttention, layer)) for layer in sets.attention]
        maps = LinearMaps.of_no_layer(genes)
        norms: list[torch.Tensor] = []
        for layer in self._layers:
            others = maps.part_of_other(genes)
            norms += layer.norms(maps.own_part(genes) - others, others)
            maps = maps.after(layer, n)
        static = torch.relu(sets.static(genes))
        dynamic = maps.own_part(genes)
        z = maps.part_of_other(genes)
        y = dynamic - static
        squares = y.square() + n * z.square()
        alone = (squares @ weight / n).unsqueeze(1)
        shift_of_pair = float(standard.undo(sets.score.bias[0])) / (size * n / 2)
        ones = torch.ones_like(alone)
        # G is the product of these.
        self._left = torch.cat([y, z, alone + shift_of_pair, ones], 1)
        of_both = 2 * weight * (y + (n - 1) * z)
        self._right = torch.cat([2 * weight * z, of_both, ones, alone], 1)
        # Norms of the weighted y and z, of the terms of y, and of z.
        last = [
            (y * weight).norm(dim=-1),
            (z * weight).norm(dim=-1),
            static.norm(dim=-1) + dynamic.norm(dim=-1),
            z.norm(dim=-1),
        ]
        self._of_gene = torch.cat([torch.stack(last, 1), *norms], 1).numpy()
        self._most = float(weight.abs().max())

    def pair_sums(self, axes: Sequence[Ints]) -> list[torch.Tensor]:
        """Return G for each two axes, float32 [len, len]."""
        return [(self._left[a] @ self._right[b].t()).float() for a, b in combinations(axes, 2)]

    def bound(
        self,
        axes: Sequence[Ints],
        share: float = DOUBLE,
        *,
        rounding: bool = False,
    ) -> float:
        """Return a bound of ``|score - sum over pairs|`` for every set of a block.

        It includes the rounding error of a score if vectors have the relative error ``share``; with
        ``rounding`` it is only that error.
        """
        largest = np.stack([self._of_gene[axis].max(0) for axis in axes])
        # Bounds of |y_i + sum of z_j|, weighted, and of the vectors that are rounded.
        weighted = largest[:, 0] + largest[:, 1].sum(0) - largest[:, 1]
        last = largest[:, 2] + largest[:, 3].sum(0) - largest[:, 3]
        distance = self._distance(largest[:, N_LAST:])
        lost = share * (last + distance)
        bound = (weighted + self._most * distance) * lost + self._most * lost**2
        if not rounding:
            bound += 2 * weighted * distance + self._most * distance**2
        return float(bound.sum())

    def _distance(self, largest: Doubles) -> Doubles:
        """Return a bound of the distance of vectors to those under uniform attention, [axes]."""
        distance: Doubles = np.zeros(len(largest))
        if len(distance) != 3:
            return distance
        for layer in self._layers:
            n_of_layer = 5 * layer.heads
            norms, largest = np.split(largest, [n_of_layer], axis=1)
            distance = distance + layer.change(norms, distance)
        return distance


class Layer:
    """The weights of an attention layer by head; a gene's vector before it is ``p_i + sum n_j``."""

    def __init__(self, layer: OthersAttention) -> None:
        heads = (layer.heads, -1)
        weights = layer.query_key_value.weight.chunk(3)
        query_bias, _, value_bias = layer.query_key_value.bias.chunk(3)
        self._query = torch.unflatten(weights[0], 0, heads)
        self._key = torch.unflatten(weights[1], 0, heads)
        value = torch.unflatten(weights[2], 0, heads)
        self._query_bias = torch.unflatten(query_bias, 0, heads)
        out = torch.unflatten(layer.out.weight, 1, heads)
        self.out = torch.einsum("ohx,hxd->hod", out, value)
        self.shift = layer.out.weight @ value_bias + layer.out.bias
        self.beta = layer.beta
        self.root = math.sqrt(self._query.shape[1])
        self.heads = layer.heads
        # Spectral norms by head, [heads].
        self._norm_of_query: Doubles = torch.linalg.matrix_norm(self._query, 2).numpy()
        self._norm_of_key: Doubles = torch.linalg.matrix_norm(self._key, 2).numpy()
        self._norm_of_out: Doubles = torch.linalg.matrix_norm(self.out, 2).numpy()

    def change(self, norms: Doubles, distance: Doubles) -> Doubles:
        """Return by how much the layer increases a bound of the distance to uniform attention.

        All are by gene of a triple: the largest `norms`, [3, 5 * heads], the distance before the
        layer, [3], and its change, [3].
        """
        logits, query, query_of_others, key, out = np.split(norms, 5, axis=1)
        of_others = distance[OTHERS].max(1)
        moved_keys = 2 * self._norm_of_key * of_others[:, None]
        moved_queries = query_of_others.sum(0) + self._norm_of_query * distance[:, None]
        keys = key[OTHERS].sum(1) + moved_keys
        moved_logits = moved_queries * keys + query * moved_keys
        # Attention to two others differs from 1/2 by at most tanh(range of logits / 2) / 2.
        half_range = (logits + moved_logits / self.root) / 2
        uneven = np.tanh(half_range) / 2 * out[OTHERS].sum(1)
        change: Doubles = self._norm_of_out.sum() * of_others + uneven.sum(1)
        return abs(float(self.beta)) * change

    def norms(self, own: torch.Tensor, others: torch.Tensor) -> list[torch.Tensor]:
        """Return norms that bound the layer's distance to uniform attention, five of [n, heads].

        With p in ``own`` and n in ``others``, [n, hidden], they are the range over all genes of a
        gene's logits by p alone, ``|W_q p_i + b_q|``, ``|W_q n_j|``, ``|W_k (p_i - p)|`` and
        ``|W_o W_v (p_i - p)|``, the latter with p the mean over genes.
        """
        query = torch.einsum("hxd,nd->nhx", self._query, own) + self._query_bias
        key = torch.einsum("hxd,nd->nhx", self._key, own) / self.root
        ranges = []
        for part in torch.split(query, QUERIES_AT_ONCE):
            logits = torch.einsum("ihx,jhx->hij", part, key)
            ranges.append((logits.amax(-1) - logits.amin(-1)).t())
        centred = own - own.mean(0)
        return [
            torch.cat(ranges),
            query.norm(dim=-1),
            _norms_by_head(self._query, others),
            _norms_by_head(self._key, centred),
            _norms_by_head(self.out, centred),
        ]


def _norms_by_head(weight: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the norms of the products with the weight of each head, [n, heads]."""
    products = torch.einsum("hxd,nd->nhx", weight, vectors)
    norms: torch.Tensor = torch.linalg.vector_norm(products, dim=-1)
    return norms
