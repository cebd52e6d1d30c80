"""DANGO as a scorer of gene sets: exact scores, and cheaper numbers near them with a bound."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch

from deltacell.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.models import Dango
from deltacell.models.hyper_sagnn import OthersAttention, PaddedSets
from deltacell.predict.dango_bounds import AttentionBound, PairSum, Rough, UniformTables
from deltacell.predict.gene_sets import Block
from deltacell.propagate.workers import in_any_worker, workers_for
from deltacell.train.data import Standard

CACHED = 2**27  # bytes of tables of pairs of axes that are kept, of each kind
SETS_AT_ONCE = 64  # always as many, so that a product has one shape and rounds in one way
TRIPLES_AT_ONCE = 512  # so that what is made of them stays in cache
PRODUCTS_AT_ONCE = 2**15  # the same, of triples with the attention of one layer
MOST_LOGITS = 80.0  # the largest range of logits whose exponentials single precision can hold
ROUNDING = 2.0**-17  # share of the sum of all terms that single precision may lose in 100 steps


class DangoScorer:
    """Scores of a DANGO: exactly, in double precision, and roughly, with a bound."""

    def __init__(self, model: Dango, cell: Cell, standard: Standard) -> None:
        exact = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._genes = exact.encode(cell).genes
        self._sets = exact.hyper_sagnn.sets
        self._standard = standard
        self._tables: dict[int, UniformTables] = {}
        self._pairs: dict[int, tuple[PairTables, AttentionBound]] = {}
        self._kept: tuple[KeptAttention, AttentionBound] | None = None
        self._double, self._single = (
            Triples(self._sets, self._genes, standard, dtype)
            for dtype in (torch.float64, torch.float32)
        )

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes."""
        device = self._genes.device
        scores = np.empty(len(sets), dtype=np.float64)

        def score(begin: int) -> None:
            part = sets[begin : begin + SETS_AT_ONCE]
            filled = torch.from_numpy(np.resize(part, (SETS_AT_ONCE, sets.shape[1]))).to(device)
            scores[begin : begin + len(part)] = self._scores(filled)[: len(part)].cpu().numpy()

        begins = range(0, len(sets), SETS_AT_ONCE)
        in_any_worker(score, begins, workers_for(device, len(begins)))
        return scores

    def pair_sum(self, block: Block) -> PairSum:
        """Return the scores under uniform attention, with a bound on what that leaves out."""
        pairs, bound = self._of_pairs(block.size)
        return PairSum(pairs.of(block.axes), self._standard.std * bound.of(block.axes))

    def attention_within(self, block: Block) -> float | None:
        """Return how near `with_attention` comes; None for sets other than triples."""
        if block.size != 3 or not len(self._sets.attention):
            return None
        kept, bound = self._of_kept()
        return self._standard.std * bound.of(block.axes) if kept.can(block.axes) else None

    def with_attention(self, block: Block) -> Rough | None:
        """Return the scores of triples with the attention of the layer where it matters most."""
        within = self.attention_within(block)
        if within is None:
            return None
        uniform = self._of_pairs(3)[0].of(block.axes)
        scores, rounding = self._of_kept()[0].scores(block.axes, uniform)
        return Rough(scores, within + rounding)

    def single(self, block: Block, sets: Ints) -> Rough:
        """Return the scores of some triples of a block in single precision."""
        scores = self._single.scores(torch.from_numpy(sets).to(self._genes.device))
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
            layer = tables.strongest_layer()
            kept = KeptAttention(self._sets, tables, layer, self._standard)
            self._kept = kept, AttentionBound(self._sets, tables, layer)
        return self._kept

    def _uniform(self, size: int) -> UniformTables:
        if size not in self._tables:
            self._tables[size] = UniformTables.of(self._sets, self._genes, size)
        return self._tables[size]

    def _scores(self, sets: torch.Tensor) -> torch.Tensor:
        if sets.shape[1] == 3:
            return self._double.scores_at_once(sets)
        if sets.shape[1] == 2:
            # Attention to the only other gene has the weight 1, so it is uniform.
            tables = self._uniform(2)
            moved = (tables.y[sets] + tables.z[sets.flip(1)]).square().sum(1) / 2
            score = (moved * self._sets.score.weight[0]).sum(1) + self._sets.score.bias
        else:
            x = self._genes[sets]
            present = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            score = self._sets(x, present)[0]
        return self._standard.undo(score)


T = TypeVar("T", "torch.Tensor", "PairTerms")


class AxisCache(Generic[T]):
    """The latest results for pairs of axes, up to some bytes; axes are compared by identity."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        # The axes are kept with their results, so that no other array takes their identity.
        self._kept: OrderedDict[tuple[int, ...], tuple[tuple[Ints, ...], T]] = OrderedDict()

    def get(self, axes: tuple[Ints, ...], make: Callable[[], T]) -> T:
        """Return what was made of the axes, or make it."""
        key = tuple(map(id, axes))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        made = make()
        self._kept[key] = axes, made
        self._bytes += made.nbytes
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1].nbytes
        return made


class PairTables:
    r"""Tables whose sum over the pairs of a set is its score under uniform attention.

    With y and z of `UniformTables`, n others and w the weights of the score,

        size * G_ij = 2 w . (y_i z_j + z_i y_j + (n - 1) z_i z_j) + (f_i + f_j) / n + 2 b / n,
        f_i = w . (y_i^2 + n z_i^2),

    in the unit of the screen: one matrix product for all pairs of two axes.
    """

    def __init__(self, sets: PaddedSets, tables: UniformTables, standard: Standard) -> None:
        size, others = tables.size, tables.size - 1
        weight = sets.score.weight[0] * (standard.std / size)
        y, z = tables.y, tables.z
        alone = ((y.square() + others * z.square()) @ weight / others).unsqueeze(1)
        shift = float(standard.undo(sets.score.bias[0])) / (size * others / 2)
        one = torch.ones_like(alone)
        self._left = torch.cat([y, z, alone + shift, one], 1)
        self._right = torch.cat(
            [2 * weight * z, 2 * weight * (y + (others - 1) * z), one, alone], 1
        )
        self._kept: AxisCache[torch.Tensor] = AxisCache(CACHED)

    def of(self, axes: tuple[Ints, ...]) -> tuple[torch.Tensor, ...]:
        """Return the table of each two axes, float32 [len, len]."""
        return tuple(
            self._kept.get(two, partial(self._of_two, *two)) for two in combinations(axes, 2)
        )

    def _of_two(self, first: Ints, second: Ints) -> torch.Tensor:
        return (self._left[first] @ self._right[second].t()).float()


class Triples:
    """The model itself on lists of triples.

    A gene attends to b of its others b and c with ``alpha = sigmoid(q . (k_b - k_c))``, and so to
    the value ``v_c + alpha (v_b - v_c)``: three genes need no padding, no mask and no softmax.
    Queries, keys and values of the first layer depend on one gene and are computed once.
    """

    def __init__(
        self, sets: PaddedSets, genes: torch.Tensor, standard: Standard, dtype: torch.dtype
    ) -> None:
        self._layers = [
            _TripleLayer(cast(OthersAttention, layer), dtype) for layer in sets.attention
        ]
        self._static = torch.relu(sets.static(genes)).to(dtype)
        self._genes = genes.to(dtype)
        self._first = self._layers[0].read(self._genes) if self._layers else None
        self._weight = (sets.score.weight[0] * (standard.std / 3)).to(dtype)
        self._shift = float(standard.undo(sets.score.bias[0]))

    def scores(self, sets: torch.Tensor) -> torch.Tensor:
        """Return the scores in the unit of the screen, [m], of sets [m, 3]."""
        lists = torch.split(sets, TRIPLES_AT_ONCE)
        workers = workers_for(sets.device, len(lists))
        return torch.cat(in_any_worker(self.scores_at_once, lists, workers))

    def scores_at_once(self, sets: torch.Tensor) -> torch.Tensor:
        """Return the same, all computed together."""
        at = sets.t().flatten()
        x = self._genes[at].view(3, len(sets), -1)
        for i, layer in enumerate(self._layers):
            read = layer.read(x) if i or self._first is None else self._first[at]
            x = x + layer.moved(read.view(3, len(sets), 3, layer.heads, -1))
        moved = x.sub_(self._static[at].view_as(x)).square_().sum(0)
        return moved @ self._weight + self._shift


class _TripleLayer:
    """The weights of an attention layer, the scale of logits and beta multiplied in."""

    def __init__(self, layer: OthersAttention, dtype: torch.dtype) -> None:
        self.heads = layer.heads
        weight, bias = layer.query_key_value.weight.clone(), layer.query_key_value.bias.clone()
        hidden = weight.shape[1]
        for part in (weight, bias):
            part[:hidden] /= math.sqrt(hidden // layer.heads)
        self._weight, self._bias = weight.to(dtype), bias.to(dtype)
        self._out = (layer.beta * layer.out.weight).to(dtype).t().contiguous()
        self._out_bias = (layer.beta * layer.out.bias).to(dtype)

    def read(self, x: torch.Tensor) -> torch.Tensor:
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


class PairTerms(NamedTuple):
    """What `KeptAttention` needs of the pairs of two axes, by head, float32 [heads, len, len]."""

    u: torch.Tensor  # exp(logit) of the first gene with the second as a partner
    n: torch.Tensor  # N of the same
    u_back: torch.Tensor  # of the second gene with the first as a partner
    n_back: torch.Tensor
    e: torch.Tensor  # what a third gene's alpha_h is multiplied by: E_h - sum_g F_hg
    f: torch.Tensor  # F_hh and 2 F_hg for g > h, row by row
    constant: torch.Tensor  # sum F / 4 - sum E / 2, [len, len]
    largest: float  # bound on the numbers

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return sum(part.nbytes for part in self[:-1])

    def broadcast(self, missing: int, rows: slice = slice(None)) -> list[torch.Tensor]:
        """Return u, n, u_back, n_back, e and f as they lie in a block of three axes."""
        return [part[..., rows, :].unsqueeze(missing) for part in self[:6]]


class KeptAttention:
    r"""What the attention of one layer adds to the scores of triples under uniform attention.

    A gene a attends to b of its others b and c with the weights
    ``alpha_h = u_b / (u_b + u_c)``, ``u_b = exp(logit_h(a, b))``. With
    ``D_h = beta W^h (p_b - p_c)`` that moves its vector by ``sum_h (alpha_h - 1/2) D_h``, and its
    term of the score, ``w . u_a^2`` with ``u_a = y_a + z_b + z_c``, becomes more by

        sum_h (alpha_h - 1/2) M_h + sum_{h,g} (alpha_h - 1/2) (alpha_g - 1/2) F_hg,
        M_h = 2 w . (u_a D_h) = N_h[a, b] - N_h[a, c] + E_h[b, c],  F_hg = w . (D_h D_g),

    which is elementwise work on numbers of pairs; no vector of a triple is formed.
    """

    def __init__(
        self, sets: PaddedSets, tables: UniformTables, layer: int, standard: Standard
    ) -> None:
        weight = sets.score.weight[0] * (standard.std / tables.size)
        query, key, out = tables.layers[layer].tables(tables.vectors[layer])
        self._range = tables.norms[layer].logits.amax(1).cpu().numpy()
        self._query, self._key = query, key - key.mean(0)
        self._out, self._weighted_out = out, out * weight
        self._y, self._z = tables.y, tables.z
        self._kept: AxisCache[PairTerms] = AxisCache(CACHED)

    def can(self, axes: tuple[Ints, ...]) -> bool:
        """Return whether the logits of some genes are small enough for it."""
        return all(self._range[axis].max() <= MOST_LOGITS for axis in axes)

    def scores(
        self, axes: tuple[Ints, ...], uniform: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, float]:
        """Return the scores of a block, float32 [len, len, len], and what rounding may take."""
        ab, ac, bc = (
            self._kept.get(two, partial(self._of_two, *two)) for two in combinations(axes, 2)
        )
        # What alpha - 1/2 leaves of 1/2, with the sign of the partner's place among the two.
        of_ab = uniform[0] + ab.constant - (ab.n.sum(0) + ab.n_back.sum(0)) / 2
        of_ac = uniform[1] + ac.constant + (ac.n.sum(0) - ac.n_back.sum(0)) / 2
        of_bc = uniform[2] + bc.constant + (bc.n.sum(0) + bc.n_back.sum(0)) / 2
        scores = of_ab.new_empty(*map(len, axes))
        step = max(1, PRODUCTS_AT_ONCE // max(1, of_bc.numel()))
        u_bc, n_bc, u_cb, n_cb, e_bc, f_bc = bc.broadcast(1)

        def fill(begin: int) -> None:
            rows = slice(begin, begin + step)
            part = scores[rows]
            torch.add(of_ac[rows].unsqueeze(1), of_bc, out=part).add_(of_ab[rows].unsqueeze(2))
            u_ab, n_ab, u_ba, n_ba, e_ab, f_ab = ab.broadcast(3, rows)
            u_ac, n_ac, u_ca, n_ca, e_ac, f_ac = ac.broadcast(2, rows)
            room = part.new_empty(len(ab.u) + 1, *part.shape)
            _add(part, (u_ab, n_ab), (u_ac, n_ac), e_bc, f_bc, room)
            _add(part, (u_ba, n_ba), (u_bc, n_bc), e_ac, f_ac, room)
            _add(part, (u_ca, n_ca), (u_cb, n_cb), e_ab, f_ab, room)

        begins = range(0, len(axes[0]), step)
        in_any_worker(fill, begins, workers_for(scores.device, len(begins)))
        largest = sum(float(table.abs().max()) for table in uniform)
        return scores, ROUNDING * (largest + ab.largest + ac.largest + bc.largest)

    def _of_two(self, first: Ints, second: Ints) -> PairTerms:
        x, y = (self._out[axis].transpose(0, 1) for axis in (first, second))
        w_x, w_y = (self._weighted_out[axis].transpose(0, 1) for axis in (first, second))
        heads = len(x)
        # Of both genes' own parts, and of the one with the other.
        own_x, own_y = (torch.einsum("hnd,gnd->hgn", *two) for two in ((w_x, x), (w_y, y)))
        cross = torch.einsum("hid,gjd->hgij", w_x, y)
        f = own_x.unsqueeze(-1) + own_y.unsqueeze(-2) - cross - cross.transpose(0, 1)
        z_x, z_y = self._z[first], self._z[second]
        e = 2 * (
            torch.einsum("hid,id->hi", w_x, z_x).unsqueeze(-1)
            - torch.einsum("hjd,jd->hj", w_y, z_y).unsqueeze(-2)
            + w_x @ z_y.t()
            - (w_y @ z_x.t()).transpose(1, 2)
        )
        constant = f.sum((0, 1)) / 4 - e.sum(0) / 2
        e = e - f.sum(1)
        upper = torch.stack(
            [f[h, g] * (1 if h == g else 2) for h in range(heads) for g in range(h, heads)]
        )
        n = 2 * (w_y @ self._y[first].t()).transpose(1, 2)
        n_back = 2 * w_x @ self._y[second].t()
        largest = sum(float(part.abs().amax((1, 2)).sum()) for part in (upper, e, n, n_back))
        u = torch.einsum("ihx,jhx->hij", self._query[first], self._key[second]).exp()
        u_back = torch.einsum("jhx,ihx->hij", self._query[second], self._key[first]).exp()
        u, n, u_back, n_back = (part.float() for part in (u, n, u_back, n_back))
        return PairTerms(u, n, u_back, n_back, e.float(), upper.float(), constant.float(), largest)


def _add(
    scores: torch.Tensor,
    first: Sequence[torch.Tensor],
    second: Sequence[torch.Tensor],
    e: torch.Tensor,
    f: torch.Tensor,
    room: torch.Tensor,
) -> None:
    """Add what the attention of the genes of one axis to their two partners adds to scores."""
    (u, n), (u2, n2) = first, second
    heads = len(u)
    alpha, factor = room[:heads], room[heads]
    for h in range(heads):
        torch.add(u[h], u2[h], out=factor)
        torch.div(u[h], factor, out=alpha[h])
    at = 0
    for h in range(heads):
        torch.addcmul(e[h], alpha[h], f[at], out=factor)
        for g in range(h + 1, heads):
            at += 1
            factor.addcmul_(alpha[g], f[at])
        at += 1
        scores.addcmul_(alpha[h], factor.add_(n[h]).sub_(n2[h]))
