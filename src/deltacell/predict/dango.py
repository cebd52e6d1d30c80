"""DANGO as a scorer of gene sets: exact scores, and cheaper numbers near them with a bound."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import combinations
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.nn.functional import linear

from deltacell.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.models import Dango
from deltacell.models.hyper_sagnn import OthersAttention, PaddedSets
from deltacell.predict.gene_sets import Block
from deltacell.propagate.workers import in_any_worker, workers_for
from deltacell.train.data import Standard

# Tables of two axes that are kept of pair sums and of attention, 128 MiB of each at most.
SUMS_KEPT, TERMS_KEPT, LONGEST_KEPT = 8192, 256, 64
SETS_AT_ONCE = 64  # always as many, so that a product has one shape and rounds in one way
TRIPLES_AT_ONCE = 512  # so that what is made of them stays in cache
PRODUCTS_AT_ONCE = 2**15  # the same, of triples with the attention of one layer
MOST_LOGITS = 80.0  # the largest range of logits whose differences single precision can hold
ROUNDING = 2.0**-16  # share of the sum of all terms that single precision may lose in 100 steps
SHARE = 2.0**-21  # of its numbers that single precision may lose in a mean or a comparison
DOUBLE, SINGLE = 1e-9, 1e-4  # share of their length that vectors may lose by rounding
QUERIES_AT_ONCE = 128  # genes whose logits with all others are looked at together
N_LAST = 4  # norms of a gene's last vectors that `Uniform` keeps
OTHERS = np.array([[1, 2], [0, 2], [0, 1]])  # of each gene of a triple

Tensors = Sequence[torch.Tensor]


class DangoScorer:
    """Scores of a DANGO: exactly, in double precision, and roughly, with a bound."""

    def __init__(self, model: Dango, cell: Cell, standard: Standard) -> None:
        exact = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._genes = exact.encode(cell).genes
        self._sets = exact.hyper_sagnn.sets
        self._standard = standard
        # What serves all blocks is made when it is first needed.
        self._uniform = cache(lambda size: Uniform(self._sets, self._genes, size, standard))
        self._kept = cache(lambda: KeptAttention(self._uniform(3)))
        self._triples = cache(lambda dtype: Triples(self._sets, self._genes, standard, dtype))

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes."""
        return self._in_parts(self._scores, sets, SETS_AT_ONCE)

    def pair_sum(self, block: Block) -> Rough:
        """Return the scores under uniform attention, with a bound on what that leaves out."""
        uniform = self._uniform(block.size)
        return Rough(uniform.pair_sums(block.axes), uniform.bound(block.axes))

    def attention_within(self, block: Block) -> float:
        """Return how near `with_attention` comes; inf where it cannot be computed."""
        if block.size != 3 or not len(self._sets.attention) or not self._kept().can(block.axes):
            return math.inf
        return self._uniform(3).bound(block.axes, self._kept().layer)

    def with_attention(self, block: Block) -> Rough:
        """Return the scores of triples with the attention of the layer where it matters most."""
        scores, rounding = self._kept().scores(block.axes)
        return Rough((scores,), self.attention_within(block) + rounding)

    def single(self, block: Block, sets: Ints) -> Rough:
        """Return the scores of some triples of a block in single precision."""
        scores = self._in_parts(self._triples(torch.float32), sets, TRIPLES_AT_ONCE)
        within = self._uniform(3).bound(block.axes, share=SINGLE, rounding=True)
        return Rough((torch.from_numpy(scores),), within)

    def _in_parts(
        self, score: Callable[[torch.Tensor], torch.Tensor], sets: Ints, at_once: int
    ) -> Doubles:
        """Return scores of sets that are computed in parts of one shape, in threads."""
        scores = np.empty(len(sets), dtype=np.float64)

        def fill(begin: int) -> None:
            part = sets[begin : begin + at_once]
            filled = torch.from_numpy(np.resize(part, (at_once, sets.shape[1])))
            scores[begin : begin + len(part)] = score(filled)[: len(part)].numpy()

        begins = range(0, len(sets), at_once)
        in_any_worker(fill, begins, workers_for(self._genes.device, len(begins)))
        return scores

    def _scores(self, sets: torch.Tensor) -> torch.Tensor:
        if sets.shape[1] == 3:
            return self._triples(torch.float64)(sets)
        if sets.shape[1] == 2:
            # Attention to the only other gene has the weight 1, so it is uniform.
            uniform = self._uniform(2)
            moved = (uniform.y[sets] + uniform.z[sets.flip(1)]).square().sum(1)
            return moved @ uniform.weight + uniform.shift
        x = self._genes[sets]
        present = torch.ones(x.shape[:2], dtype=torch.bool)
        return self._standard.undo(self._sets(x, present)[0])


def by_axes(
    make: Callable[[torch.Tensor, torch.Tensor], Any], most: int
) -> Callable[[tuple[Ints, ...]], tuple[Any, ...]]:
    """Return what gives, for axes, what is made of each two of them, and keeps the latest."""

    @lru_cache(most)
    def made(*two: bytes) -> Any:
        return make(*(torch.frombuffer(bytearray(axis), dtype=torch.int64) for axis in two))

    def of_axes(axes: tuple[Ints, ...]) -> tuple[Any, ...]:
        # Large axes are those of pairs, whose blocks do not come again.
        of = made if max(map(len, axes)) <= LONGEST_KEPT else made.__wrapped__
        return tuple(of(*(axis.tobytes() for axis in two)) for two in combinations(axes, 2))

    return of_axes


class Triples:
    """The model itself on triples: from sets [m, 3] to scores [m] in the unit of the screen.

    A gene attends to b of its others b and c with ``alpha = sigmoid(q . (k_b - k_c))``, and so to
    the value ``v_c + alpha (v_b - v_c)``: three genes need no padding, no mask and no softmax.
    Queries, keys and values of the first layer depend on one gene and are computed once.
    """

    def __init__(
        self, sets: PaddedSets, genes: torch.Tensor, standard: Standard, dtype: torch.dtype
    ) -> None:
        self._heads, self._layers = 1, []
        for module in sets.attention:
            layer = cast(OthersAttention, module)
            # The scale of logits and beta are multiplied in.
            read, self._heads = layer.query_key_value, layer.heads
            parts = [read.weight.clone(), read.bias.clone()]
            for part in parts:
                part[: genes.shape[1]] /= math.sqrt(genes.shape[1] // layer.heads)
            parts += [layer.beta * layer.out.weight.t(), layer.beta * layer.out.bias]
            self._layers.append([part.to(dtype).contiguous() for part in parts])
        self._static = torch.relu(sets.static(genes)).to(dtype)
        self._genes = genes.to(dtype)
        self._first = linear(self._genes, *self._layers[0][:2]) if self._layers else None
        self._weight = (sets.score.weight[0] * (standard.std / 3)).to(dtype)
        self._shift = float(standard.undo(sets.score.bias[0]))

    def __call__(self, sets: torch.Tensor) -> torch.Tensor:
        at = sets.t().flatten()
        x = self._genes[at].view(3, len(sets), -1)
        for i, (weight, bias, out, out_bias) in enumerate(self._layers):
            read = linear(x, weight, bias) if i or self._first is None else self._first[at]
            query, key, value = read.view(3, len(sets), 3, self._heads, -1).unbind(2)
            attended = torch.empty_like(query, memory_format=torch.contiguous_format)
            for a, (b, c) in enumerate(OTHERS.tolist()):
                alpha = (key[b] - key[c]).mul_(query[a]).sum(-1, keepdim=True).sigmoid_()
                torch.addcmul(value[c], value[b] - value[c], alpha, out=attended[a])
            x = x + torch.addmm(out_bias, attended.view(-1, len(out)), out).view_as(x)
        moved = x.sub_(self._static[at].view_as(x)).square_().sum(0)
        return moved @ self._weight + self._shift


class Rough(NamedTuple):
    """Numbers that are at most ``within`` away from the scores of sets.

    One table has them itself, of any shape; three are summed over the pairs of a block's axes,
    ``tables[0][a, b] + tables[1][a, c] + tables[2][b, c]``.
    """

    tables: tuple[torch.Tensor, ...]  # float32
    within: float

    @classmethod
    def mean(cls, each: Sequence[Rough]) -> Rough:
        """Return the mean of several; what they lose in rounding may not cancel as they do."""
        if len(each) == 1:
            return each[0]
        by_axes = zip(*(one.tables for one in each), strict=True)
        tables = tuple(torch.stack(of_axes).mean(0) for of_axes in by_axes)
        size = sum(float(table.abs().max()) for one in each for table in one.tables)
        lost = SHARE * (len(each) + 1) * size
        return cls(tables, (sum(one.within for one in each) + lost) / len(each))

    def near(self, above: float, below: float) -> torch.Tensor:
        """Return which numbers of one table may score ``above`` or more, or ``below`` or less."""
        (table,) = self.tables
        slack = self.within + SHARE * float(table.abs().max())
        return _may_reach(table, table, above - slack, below + slack)

    def near_sums(self, shared: Sequence[bool], above: float, below: float) -> torch.Tensor:
        """Return the places [m, size], in order, of sets that may score ``above`` or ``below``.

        Places ascend along axes that are ``shared``, see `Block.shared`.
        """
        ends = [(float(table.min()), float(table.max())) for table in self.tables]
        lowest, highest = (sum(end) for end in zip(*ends, strict=True))
        largest = self.within + sum(max(-low, high) for low, high in ends)
        slack = self.within + SHARE * (len(ends) + 1) * largest
        above, below = above - slack, below + slack
        if highest < above and lowest > below:
            return self.tables[0].new_empty((0, len(shared) + 1), dtype=torch.int64)
        if len(self.tables) == 1:
            places = _may_reach(*self.tables, *self.tables, above, below).nonzero()
        else:
            ab, ac, bc = self.tables
            # The third axis comes first, because the ends over the first axis are found fastest.
            without_ab = ac.t().unsqueeze(2) + bc.t().unsqueeze(1)
            lowest, highest = without_ab.amin(0) + ab, without_ab.amax(0) + ab
            first, second = _may_reach(lowest, highest, above, below).nonzero(as_tuple=True)
            rows = without_ab[:, first, second].t() + ab[first, second].unsqueeze(1)
            row, third = _may_reach(rows, rows, above, below).nonzero(as_tuple=True)
            places = torch.stack([first[row], second[row], third], 1)
        for axis, same in enumerate(shared):
            if same:
                places = places[places[:, axis] < places[:, axis + 1]]
        return places


def _may_reach(
    lowest: torch.Tensor, highest: torch.Tensor, above: float, below: float
) -> torch.Tensor:
    """Return which ranges of scores may come to an end; NaN may, so that its error is seen."""
    return ~((highest < above) & (lowest > below))


class Uniform:
    r"""Pairs or triples under uniform attention, and bounds on what that leaves out.

    With ``n = size - 1`` others and all attention weights 1/n every layer is linear,
    ``x_i = A e_i + B sum_j e_j + c``, from layer to layer

        A' = A + beta W B,  B' = B + beta/n W (A + (n - 1) B),  c' = c + beta (b + W c)

    with ``W = W_o W_v`` and ``b = W_o b_v + b_o``. So the score is
    ``sum_i w . (y_i + sum_{j != i} z_j)^2`` with ``y_i = A e_i + c - static_i`` and
    ``z_j = B e_j``, a sum over the pairs of the set. For a pair it is the score itself, because
    a gene attends to the only other one with weight 1. All is in the unit of the screen.
    """

    def __init__(
        self, sets: PaddedSets, genes: torch.Tensor, size: int, standard: Standard
    ) -> None:
        n, hidden = size - 1, genes.shape[1]
        a = torch.eye(hidden, dtype=genes.dtype)
        b, c = torch.zeros_like(a), genes.new_zeros(hidden)
        self.size = size
        self.weight = sets.score.weight[0] * (standard.std / size)
        self.shift = float(standard.undo(sets.score.bias[0]))
        self.layers = [Layer(cast(OthersAttention, layer)) for layer in sets.attention]
        self.norms: list[torch.Tensor] = []
        self.vectors: list[torch.Tensor] = []  # p of each layer, [n_genes, hidden]
        for layer in self.layers:
            others = genes @ b.t()
            own = genes @ a.t() + c - others
            self.norms.append(layer.norms(own, others))
            self.vectors.append(own)
            w, beta = layer.out.sum(0), layer.beta
            a, b, c = (
                a + beta * w @ b,
                b + beta / n * w @ (a + (n - 1) * b),
                c + beta * (layer.shift + w @ c),
            )
        static, moved = torch.relu(sets.static(genes)), genes @ a.t() + c
        self.y, self.z = moved - static, genes @ b.t()  # [n_genes, hidden]
        self.pair_sums = by_axes(self._pair_sums(), SUMS_KEPT)
        # Norms of y and z weighted, of what y is a difference of, and of z.
        last = [
            *((part * self.weight).norm(dim=-1) for part in (self.y, self.z)),
            static.norm(dim=-1) + moved.norm(dim=-1),
            self.z.norm(dim=-1),
        ]
        norms = [norm for of_layer in self.norms for norm in of_layer]
        self._of_gene = torch.cat([torch.stack(last, 1), *norms], 1).numpy()
        self._most = float(self.weight.abs().max())

    def _pair_sums(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        r"""Return what makes tables [len, len] whose sum over the pairs of a set is its score.

        With n others and ``f_i = w . (y_i^2 + n z_i^2)``,

            G_ij = 2 w . (y_i z_j + z_i y_j + (n - 1) z_i z_j) + (f_i + f_j + 2 b / size) / n,

        one matrix product for all pairs of two axes.
        """
        y, z, n, weight = self.y, self.z, self.size - 1, self.weight
        alone = ((y.square() + n * z.square()) @ weight / n).unsqueeze(1)
        shift, one = self.shift / (self.size * n / 2), torch.ones_like(alone)
        left = torch.cat([y, z, alone + shift, one], 1)
        right = torch.cat([2 * weight * z, 2 * weight * (y + (n - 1) * z), one, alone], 1)
        return lambda a, b: (left[a] @ right[b].t()).float()

    def strongest_layer(self) -> int:
        moves = [
            abs(float(layer.beta)) * float((norms[0].mean(0).tanh() * norms[4].mean(0)).sum())
            for layer, norms in zip(self.layers, self.norms, strict=True)
        ]
        return int(np.argmax(moves))

    def bound(
        self,
        axes: Sequence[Ints],
        kept: int | None = None,
        share: float = DOUBLE,
        *,
        rounding: bool = False,
    ) -> float:
        """Return a bound of ``|score - surrogate|`` for every set of a block.

        The surrogate has uniform attention, but for the layer ``kept`` of triples, which it has by
        ``p`` alone, see `Layer`. The bound has in it, or with ``rounding`` is alone, what a score
        loses where vectors lose a ``share`` of their length by rounding.
        """
        largest = np.stack([self._of_gene[axis].max(0) for axis in axes])
        # Of y and z weighted, and of what they lose a share of: bounds of |y_i + sum of z_j|.
        weighted, last = (
            largest[:, y] + largest[:, y + 1].sum(0) - largest[:, y + 1] for y in (0, 2)
        )
        eta, error, kappa = self._moved(largest, kept)
        away = eta + kappa
        lost = share * (last + away)
        bound = (weighted + self._most * away) * lost + self._most * lost**2
        if not rounding:
            bound += 2 * (weighted + self._most * kappa) * error + self._most * error**2
        return float(bound.sum())

    def _moved(self, largest: Doubles, kept: int | None) -> Doubles:
        """Return how far vectors may be from those under uniform attention, [3, axes].

        ``|eta|``, ``|eta - kappa|`` and ``|kappa|``: how far they are, how far they are from the
        surrogate's, and how far those are.
        """
        eta, error, kappa = np.zeros((3, self.size))
        begin = N_LAST
        for i, layer in enumerate(self.layers if self.size == 3 else ()):
            (of_query, of_key, of_out), beta = layer.spectral, abs(float(layer.beta))
            heads = len(of_query)
            norms = largest[:, begin : begin + 5 * heads].reshape(3, 5, heads)
            logits, query, query_of_others, key, out = norms.transpose(1, 0, 2)
            begin += 5 * heads
            eta_of_others = eta[OTHERS].max(1)[:, None]
            moved_keys = 2 * of_key * eta_of_others
            moved_queries = query_of_others.sum(0) + of_query * eta[:, None]
            moved = moved_queries * (key[OTHERS].sum(1) + moved_keys) + query * moved_keys
            moved /= layer.root
            outs_apart = beta * out[OTHERS].sum(1)
            carried = beta * of_out.sum() * eta_of_others[:, 0]
            uneven = carried + (from_uniform(logits + moved) * outs_apart).sum(1)
            if i == kept:
                error = error + carried + (np.minimum(moved / 4, 1) * outs_apart).sum(1)
                kappa = kappa + (from_uniform(logits) * outs_apart).sum(1)
            else:
                error = error + uneven
            eta = eta + uneven
        return np.stack([eta, error, kappa])


def from_uniform(logits: Doubles) -> Doubles:
    """Return how far the weights of two others may be from 1/2, by the range of their logits."""
    away: Doubles = np.tanh(logits / 2) / 2
    return away


class Layer:
    """The weights of an attention layer by head; a gene's vector before it is ``p_i + sum n_j``."""

    def __init__(self, layer: OthersAttention) -> None:
        heads = (layer.heads, -1)
        weights = layer.query_key_value.weight.chunk(3)
        query_bias, _, value_bias = layer.query_key_value.bias.chunk(3)
        self._query, self._key, value = (torch.unflatten(part, 0, heads) for part in weights)
        self._query_bias = torch.unflatten(query_bias, 0, heads)
        self.out = torch.einsum("ohx,hxd->hod", torch.unflatten(layer.out.weight, 1, heads), value)
        self.shift = layer.out.weight @ value_bias + layer.out.bias
        self.beta, self.root = layer.beta, math.sqrt(self._query.shape[1])
        of_parts = (self._query, self._key, self.out)
        self.spectral = [torch.linalg.matrix_norm(part, 2).numpy() for part in of_parts]

    def read(self, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what the layer reads of each gene, with ``p`` of each gene, [n, hidden].

        ``(W_q p_i + b_q) / root`` and ``W_k p_i``, [n, heads, width], and ``beta W_o W_v p_i``,
        [n, heads, hidden]; without the biases of keys and values, which move all alike.
        """
        query = (torch.einsum("hxd,nd->nhx", self._query, own) + self._query_bias) / self.root
        key = torch.einsum("hxd,nd->nhx", self._key, own)
        return query, key, self.beta * torch.einsum("hod,nd->nho", self.out, own)

    def norms(self, own: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return what bounds how far the layer is from a uniform one, [5, n, heads].

        The range over all genes of a gene's logits by p alone, ``|W_q p_i + b_q|``, ``|W_q n_j|``,
        and with p the mean over genes ``|W_k (p_i - p)|`` and ``|W_o W_v (p_i - p)|``.
        """
        query, key, _ = self.read(own)
        centred = own - own.mean(0)
        ranges = []
        for part in torch.split(query, QUERIES_AT_ONCE):
            logits = torch.einsum("ihx,jhx->hij", part, key)
            ranges.append((logits.amax(-1) - logits.amin(-1)).t())
        read = ((self._query, others), (self._key, centred), (self.out, centred))
        norms = [torch.einsum("hxd,nd->nhx", *one).norm(dim=-1) for one in read]
        return torch.stack([torch.cat(ranges), query.norm(dim=-1) * self.root, *norms])


class PairTerms(NamedTuple):
    """What `KeptAttention` needs of the pairs of two axes, by head, float32 [heads, len, len]."""

    forth: tuple[torch.Tensor, torch.Tensor]  # half the logit of the first gene to the second, N
    back: tuple[torch.Tensor, torch.Tensor]  # the same of the second gene to the first
    e_f: tuple[torch.Tensor, torch.Tensor]  # E; F_hh and 2 F_hg for g > h, row by row
    largest: float  # bound on the numbers


class KeptAttention:
    r"""The scores of triples with the attention of one layer, the others being uniform.

    A gene a attends to its others b and c with the weights ``1/2 + t_h / 2`` and ``1/2 - t_h / 2``,
    ``t_h = tanh((logit_h(a, b) - logit_h(a, c)) / 2)``. With ``D_h = beta W^h (p_b - p_c)`` that
    moves its vector by ``sum_h t_h D_h / 2``, and its term of the score, ``w . u_a^2`` with
    ``u_a = y_a + z_b + z_c``, becomes more by

        sum_h t_h M_h + sum_{h,g} t_h t_g F_hg,  F_hg = w . (D_h D_g) / 4,
        M_h = w . (u_a D_h) = N_h[a, b] - N_h[a, c] + E_h[b, c],

    which is elementwise work on numbers of pairs; no vector of a triple is formed.
    """

    def __init__(self, uniform: Uniform) -> None:
        self.layer = uniform.strongest_layer()
        query, key, out = uniform.layers[self.layer].read(uniform.vectors[self.layer])
        self._range = uniform.norms[self.layer][0].amax(1).numpy()
        self._query, self._key = query, (key - key.mean(0)) / 2
        self._out, self._weighted_out = out, out * uniform.weight
        self._uniform, self._terms = uniform, by_axes(self._of_two, TERMS_KEPT)

    def can(self, axes: tuple[Ints, ...]) -> bool:
        return all(self._range[axis].max() <= MOST_LOGITS for axis in axes)

    def scores(self, axes: tuple[Ints, ...]) -> tuple[torch.Tensor, float]:
        """Return the scores of a block, float32 [len, len, len], and what rounding may take."""
        ab, ac, bc = terms = self._terms(axes)
        of_ab, of_ac, of_bc = tables = self._uniform.pair_sums(axes)
        scores = of_ab.new_empty(*map(len, axes))
        step = max(1, PRODUCTS_AT_ONCE // max(1, of_bc.numel()))

        def fill(begin: int) -> None:
            rows = slice(begin, begin + step)
            part = scores[rows]
            torch.add(of_ac[rows].unsqueeze(1), of_bc, out=part).add_(of_ab[rows].unsqueeze(2))
            # As they lie in a block of three axes.
            b, c = (
                [[one[:, rows].unsqueeze(missing) for one in two] for two in of[:3]]
                for of, missing in ((ab, 3), (ac, 2))
            )
            others = [[one.unsqueeze(1) for one in two] for two in bc[:3]]
            room = part.new_empty(len(bc.e_f[0]) + 1, *part.shape)
            _add(part, b[0], c[0], others[2], room)
            _add(part, b[1], others[0], c[2], room)
            _add(part, c[1], others[1], b[2], room)

        begins = range(0, len(axes[0]), step)
        in_any_worker(fill, begins, workers_for(scores.device, len(begins)))
        largest = sum(float(table.abs().max()) for table in tables)
        return scores, ROUNDING * (largest + sum(one.largest for one in terms))

    def _of_two(self, first: torch.Tensor, second: torch.Tensor) -> PairTerms:
        x, y = (self._out[axis].transpose(0, 1) for axis in (first, second))
        w_x, w_y = (self._weighted_out[axis].transpose(0, 1) for axis in (first, second))
        # Of both genes' own parts, and of the one with the other.
        own_x, own_y = (torch.einsum("hnd,gnd->hgn", *two) for two in ((w_x, x), (w_y, y)))
        cross = torch.einsum("hid,gjd->hgij", w_x, y)
        f = (own_x.unsqueeze(-1) + own_y.unsqueeze(-2) - cross - cross.transpose(0, 1)) / 4
        h, g = torch.triu_indices(len(x), len(x))
        upper = f[h, g] * torch.where(h == g, 1, 2)[:, None, None]
        z_x, z_y = (self._uniform.z[axis] for axis in (first, second))
        e = (
            torch.einsum("hid,id->hi", w_x, z_x).unsqueeze(-1)
            - torch.einsum("hjd,jd->hj", w_y, z_y).unsqueeze(-2)
            + w_x @ z_y.t()
            - (w_y @ z_x.t()).transpose(1, 2)
        )
        n = (w_y @ self._uniform.y[first].t()).transpose(1, 2)
        n_back = w_x @ self._uniform.y[second].t()
        largest = sum(float(part.abs().amax((1, 2)).sum()) for part in (upper, e, n, n_back))
        logit = torch.einsum("ihx,jhx->hij", self._query[first], self._key[second])
        logit_back = torch.einsum("jhx,ihx->hij", self._query[second], self._key[first])
        forth, back, e_f = (
            (one.float(), other.float())
            for one, other in ((logit, n), (logit_back, n_back), (e, upper))
        )
        return PairTerms(forth, back, e_f, 2 * largest)


def _add(
    scores: torch.Tensor, to_one: Tensors, to_other: Tensors, e_f: Tensors, room: torch.Tensor
) -> None:
    """Add what the attention of the genes of one axis to their two partners adds to scores."""
    (logit, n), (logit2, n2), (e, f) = to_one, to_other, e_f
    heads = len(e)
    t, factor = room[:heads], room[heads]
    torch.sub(logit, logit2, out=t).tanh_()
    products = iter(f)
    for h in range(heads):
        torch.sub(n[h], n2[h], out=factor).add_(e[h])
        for g in range(h, heads):
            factor.addcmul_(t[g], next(products))
        scores.addcmul_(t[h], factor)
