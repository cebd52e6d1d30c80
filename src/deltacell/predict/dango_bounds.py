"""How far the score of a DANGO may be from what is cheap to compute, over whole blocks of sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import NamedTuple, cast

import numpy as np
import torch

from deltacell.arrays import Doubles, Ints
from deltacell.models.hyper_sagnn import OthersAttention, PaddedSets

SHARE = 2.0**-21  # of its numbers that single precision may lose in a mean or a comparison
DOUBLE, SINGLE = 1e-9, 1e-4  # share of their length that vectors may lose by rounding
QUERIES_AT_ONCE = 128  # genes whose logits with all others are looked at together
N_LAST = 4  # norms of a gene's last vectors that `AttentionBound` keeps


def may_reach(
    lowest: torch.Tensor, highest: torch.Tensor, above: float, below: float
) -> torch.Tensor:
    """Return which ranges of scores may come to ``above`` or more, or ``below`` or less.

    NaN may, so that its sets are scored and the error is seen.
    """
    return ~((highest < above) & (lowest > below))


class Rough(NamedTuple):
    """Numbers that are at most ``within`` away from the scores of sets."""

    scores: torch.Tensor  # float32, of any shape
    within: float

    @classmethod
    def mean(cls, each: Sequence[Rough]) -> Rough:
        """Return the mean of several, which may be small where what is rounded is not."""
        if len(each) == 1:
            return each[0]
        total = torch.stack([one.scores for one in each]).mean(0)
        lost = SHARE * (len(each) + 1) * sum(float(one.scores.abs().max()) for one in each)
        return cls(total, (sum(one.within for one in each) + lost) / len(each))

    def near(self, above: float, below: float) -> torch.Tensor:
        """Return which may score ``above`` or more, or ``below`` or less."""
        slack = self.within + SHARE * float(self.scores.abs().max())
        return may_reach(self.scores, self.scores, above - slack, below + slack)


class PairSum(NamedTuple):
    """``sum over a < b of tables[a, b]``, at most ``within`` away from the scores of a block."""

    tables: tuple[torch.Tensor, ...]  # in the order of itertools.combinations, float32 [len, len]
    within: float

    @classmethod
    def mean(cls, each: Sequence[PairSum]) -> PairSum:
        """Return the mean of several; what they lose in rounding may not cancel as they do."""
        if len(each) == 1:
            return each[0]
        by_axes = zip(*(one.tables for one in each), strict=True)
        tables = tuple(torch.stack(of_axes).mean(0) for of_axes in by_axes)
        size = sum(float(table.abs().max()) for one in each for table in one.tables)
        lost = SHARE * (len(each) + 1) * size
        return cls(tables, (sum(one.within for one in each) + lost) / len(each))

    def near(self, shared: Sequence[bool], above: float, below: float) -> torch.Tensor:
        """Return the places [m, size], in order, of sets that may score ``above`` or ``below``.

        Places ascend along axes that are ``shared``, see `Block.shared`.
        """
        size = len(shared) + 1
        ends = [(float(table.min()), float(table.max())) for table in self.tables]
        lowest, highest = (sum(end) for end in zip(*ends, strict=True))
        largest = self.within + sum(max(-low, high) for low, high in ends)
        slack = self.within + SHARE * (len(ends) + 1) * largest
        above, below = above - slack, below + slack
        if highest < above and lowest > below:
            return self.tables[0].new_empty((0, size), dtype=torch.int64)
        tables = dict(zip(combinations(range(size), 2), self.tables, strict=True))
        places = _near(tables, size, above, below)
        for axis, same in enumerate(shared):
            if same:
                places = places[places[:, axis] < places[:, axis + 1]]
        return places


def _near(
    tables: dict[tuple[int, int], torch.Tensor], size: int, above: float, below: float
) -> torch.Tensor:
    if size == 2:
        return may_reach(tables[0, 1], tables[0, 1], above, below).nonzero()
    if size == 3:
        ab, ac, bc = tables[0, 1], tables[0, 2], tables[1, 2]
        # The third axis comes first, because the ends over the first axis are found fastest.
        without_ab = ac.t().unsqueeze(2) + bc.t().unsqueeze(1)
        lowest, highest = without_ab.amin(0) + ab, without_ab.amax(0) + ab
        first, second = may_reach(lowest, highest, above, below).nonzero(as_tuple=True)
        rows = without_ab[:, first, second].t() + ab[first, second].unsqueeze(1)
        row, third = may_reach(rows, rows, above, below).nonzero(as_tuple=True)
        return torch.stack([first[row], second[row], third], 1)
    found = []
    for gene in range(len(tables[0, 1])):
        # With its gene given, what the first axis adds is a number for each gene of the others.
        rest = {
            (a - 1, b - 1): table + tables[0, b][gene] if a == 1 else table
            for (a, b), table in tables.items()
            if a > 0
        }
        rest[0, 1] = rest[0, 1] + tables[0, 1][gene].unsqueeze(1)
        places = _near(rest, size - 1, above, below)
        found.append(torch.nn.functional.pad(places, (1, 0), value=gene))
    return torch.cat(found)


class LayerTables(NamedTuple):
    """What an attention layer reads of each gene, whose vector before it is ``p_i + sum n_j``."""

    query: torch.Tensor  # (W_q p_i + b_q) / sqrt(width of a head), [n, heads, width]
    key: torch.Tensor  # W_k p_i, without the bias, which moves all logits alike
    out: torch.Tensor  # beta W_o W_v p_i, without the bias, [n, heads, hidden]


class LayerNorms(NamedTuple):
    """What bounds how far an attention layer is from a uniform one, [n, heads] each."""

    logits: torch.Tensor  # the range over all genes of a gene's logits by p alone
    query: torch.Tensor  # |W_q p_i + b_q|
    query_of_others: torch.Tensor  # |W_q n_j|
    key: torch.Tensor  # |W_k (p_i - p)| with p the mean over genes
    out: torch.Tensor  # |W_o W_v (p_i - p)|


class Layer:
    """The weights of an attention layer by head, and what bounds it."""

    def __init__(self, layer: OthersAttention) -> None:
        heads = layer.heads
        self.beta = layer.beta
        query, key, value = (
            torch.unflatten(part, 0, (heads, -1)) for part in layer.query_key_value.weight.chunk(3)
        )
        query_bias, _, value_bias = layer.query_key_value.bias.chunk(3)
        self.query, self.key, self._query_bias = (
            query,
            key,
            torch.unflatten(query_bias, 0, (heads, -1)),
        )
        out = torch.unflatten(layer.out.weight, 1, (heads, -1))
        self.out = torch.einsum("ohx,hxd->hod", out, value)
        self.shift = layer.out.weight @ value_bias + layer.out.bias
        self.root = math.sqrt(query.shape[1])

    def tables(self, own: torch.Tensor) -> LayerTables:
        """Return what the layer reads of each gene, with ``p`` of each gene, [n, hidden]."""
        return LayerTables(
            query=(torch.einsum("hxd,nd->nhx", self.query, own) + self._query_bias) / self.root,
            key=torch.einsum("hxd,nd->nhx", self.key, own),
            out=self.beta * torch.einsum("hod,nd->nho", self.out, own),
        )

    def norms(self, own: torch.Tensor, others: torch.Tensor) -> LayerNorms:
        """Return the norms of each gene, with its ``p`` and ``n``, [n, hidden] each."""
        tables = self.tables(own)
        centred = own - own.mean(0)
        ranges = []
        for part in torch.split(tables.query, QUERIES_AT_ONCE):
            logits = torch.einsum("ihx,jhx->hij", part, tables.key)
            ranges.append((logits.amax(-1) - logits.amin(-1)).t())
        return LayerNorms(
            logits=torch.cat(ranges),
            query=tables.query.norm(dim=-1) * self.root,
            query_of_others=torch.einsum("hxd,nd->nhx", self.query, others).norm(dim=-1),
            key=torch.einsum("hxd,nd->nhx", self.key, centred).norm(dim=-1),
            out=torch.einsum("hod,nd->nho", self.out, centred).norm(dim=-1),
        )

    def spectral(self) -> tuple[Doubles, Doubles, Doubles]:
        """Return the spectral norms of ``W_q``, ``W_k`` and ``W_o W_v``, one per head."""
        query, key, out = (
            torch.linalg.matrix_norm(weights, 2).cpu().numpy()
            for weights in (self.query, self.key, self.out)
        )
        return query, key, out


@dataclass(frozen=True, eq=False)
class UniformTables:
    r"""The per-gene vectors of sets of one size under uniform attention.

    With ``n = size - 1`` others and all attention weights 1/n every layer is linear,
    ``x_i = A e_i + B sum_j e_j + c``, from layer to layer

        A' = A + beta W B,  B' = B + beta/n W (A + (n - 1) B),  c' = c + beta (b + W c)

    with ``W = W_o W_v`` and ``b = W_o b_v + b_o``. So the score is
    ``1/size sum_i w . (y_i + sum_{j != i} z_j)^2`` with ``y_i = A e_i + c - static_i`` and
    ``z_j = B e_j``, a sum over the pairs of the set. For a pair it is the score itself, because
    a gene attends to the only other one with weight 1.
    """

    size: int
    y: torch.Tensor  # [n_genes, hidden], as z and static
    z: torch.Tensor
    static: torch.Tensor
    layers: tuple[Layer, ...]
    norms: tuple[LayerNorms, ...]  # of each layer
    vectors: tuple[torch.Tensor, ...]  # p of each layer, [n_genes, hidden]

    @classmethod
    def of(cls, sets: PaddedSets, genes: torch.Tensor, size: int) -> UniformTables:
        """Make the tables of ``genes``, [n_genes, hidden], in double precision."""
        n, hidden = size - 1, genes.shape[1]
        a = torch.eye(hidden, dtype=genes.dtype, device=genes.device)
        b, c = torch.zeros_like(a), genes.new_zeros(hidden)
        layers = tuple(Layer(cast(OthersAttention, layer)) for layer in sets.attention)
        norms, vectors = [], []
        for layer in layers:
            others = genes @ b.t()
            own = genes @ a.t() + c - others
            norms.append(layer.norms(own, others))
            vectors.append(own)
            w, beta = layer.out.sum(0), layer.beta
            a, b, c = (
                a + beta * w @ b,
                b + beta / n * w @ (a + (n - 1) * b),
                c + beta * (layer.shift + w @ c),
            )
        static = torch.relu(sets.static(genes))
        y, z = genes @ a.t() + c - static, genes @ b.t()
        return cls(size, y, z, static, layers, tuple(norms), tuple(vectors))

    def strongest_layer(self) -> int:
        """Return the layer whose attention moves a gene's vector most."""
        moves = [
            abs(float(layer.beta)) * float((norms.logits.mean(0).tanh() * norms.out.mean(0)).sum())
            for layer, norms in zip(self.layers, self.norms, strict=True)
        ]
        return max(range(len(moves)), key=moves.__getitem__)


class AttentionBound:
    """Bounds of ``|score - surrogate|`` before the scale of the targets, over blocks of sets.

    The surrogate has uniform attention, but for the layer ``kept`` of triples, which it has by
    ``p`` alone.
    """

    def __init__(self, sets: PaddedSets, tables: UniformTables, kept: int | None = None) -> None:
        self._size, self._kept = tables.size, kept
        weight = sets.score.weight[0]
        self._most = float(weight.abs().max())
        self._layers = [
            (abs(float(layer.beta)), *layer.spectral(), layer.root) for layer in tables.layers
        ]
        before = tables.static.norm(dim=-1) + (tables.y + tables.static).norm(dim=-1)
        # Of y and z weighted, of what y is a difference of, and of z.
        last = [
            *((part * weight).norm(dim=-1) for part in (tables.y, tables.z)),
            before,
            tables.z.norm(dim=-1),
        ]
        norms = [norm for of_layer in tables.norms for norm in of_layer]
        self._of_gene = torch.cat([torch.stack(last, 1), *norms], 1).cpu().numpy()

    def of(self, axes: Sequence[Ints]) -> float:
        """Return a bound of ``|score - surrogate|`` for every set of a block."""
        largest = self._largest(axes)
        moved = self._moved(largest)
        _, error, kept = moved
        weighted = self._last(largest, 0) + self._most * kept
        bound = 2 * weighted * error + self._most * error**2
        return float(bound.mean()) + self._rounding(largest, moved, DOUBLE)

    def rounding(self, axes: Sequence[Ints]) -> float:
        """Return what single precision may take from the score of any set of a block."""
        largest = self._largest(axes)
        return self._rounding(largest, self._moved(largest), SINGLE)

    def _largest(self, axes: Sequence[Ints]) -> Doubles:
        return np.stack([self._of_gene[axis].max(0) for axis in axes])

    def _moved(self, largest: Doubles) -> Doubles:
        """Return how far vectors may be from those under uniform attention, [3, axes].

        ``|eta|``, ``|eta - kappa|`` and ``|kappa|``: how far they are, how far they are from the
        surrogate's, and how far those are.
        """
        eta, error, kappa = np.zeros((3, self._size))
        begin, others = N_LAST, self._size - 1
        for i, (beta, of_query, of_key, of_out, root) in enumerate(self._layers if others else ()):
            heads = len(of_query)
            end = begin + len(LayerNorms._fields) * heads
            norms = largest[:, begin:end].reshape(self._size, -1, heads).transpose(1, 0, 2)
            logits, query, query_of_others, key, out = norms
            begin = end
            eta_of_others = eta[_others(self._size)].max(1)[:, None]
            moved_keys = 2 * of_key * eta_of_others
            moved_queries = query_of_others.sum(0) + of_query * eta[:, None]
            moved = moved_queries * (_two_largest_others(key) + moved_keys) + query * moved_keys
            moved /= root
            outs_apart = beta * _two_largest_others(out)
            carried = beta * of_out.sum() * eta_of_others[:, 0]
            uneven = carried + (_from_uniform(logits + moved, others) * outs_apart).sum(1)
            if i == self._kept:
                error = error + carried + (np.minimum(moved / 4, 1) * outs_apart).sum(1)
                kappa = kappa + (_from_uniform(logits, others) * outs_apart).sum(1)
            else:
                error = error + uneven
            eta = eta + uneven
        return np.stack([eta, error, kappa])

    def _last(self, largest: Doubles, y: int) -> Doubles:
        """Return bounds of ``|y_i + sum of z_j|``, by axis."""
        z = largest[:, y + 1]
        last: Doubles = largest[:, y] + z.sum(0) - z
        return last

    def _rounding(self, largest: Doubles, moved: Doubles, share: float) -> float:
        """Return what a score loses where vectors lose a share of their length."""
        away = moved[0] + moved[2]
        lost = share * (self._last(largest, 2) + away)
        weighted = self._last(largest, 0) + self._most * away
        return float((weighted * lost + self._most * lost**2).mean())


def _from_uniform(logits: Doubles, others: int) -> Doubles:
    """Return how far in total variation attention may be from uniform, by its logits' range."""
    if others == 1:
        return np.zeros_like(logits)
    away: Doubles = np.tanh(logits / 2) / 2 if others == 2 else np.tanh(logits / 4)
    return away


def _two_largest_others(of_axis: Doubles) -> Doubles:
    total: Doubles = np.sort(of_axis[_others(len(of_axis))], 1)[:, -2:].sum(1)
    return total


@cache
def _others(size: int) -> Ints:
    """Return the axes beside each axis, [size, size - 1]."""
    return np.array([[j for j in range(size) if j != i] for i in range(size)])
