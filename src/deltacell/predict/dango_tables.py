"""What a DANGO score is made of, worked out once per gene: tables, and what attention adds."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints
from deltacell.models.hyper_sagnn import OthersAttention, PaddedSets
from deltacell.propagate.workers import in_any_worker, workers_for
from deltacell.train.data import Standard


class Sized(Protocol):
    """Something that takes memory."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""


T = TypeVar("T", bound=Sized)


class AxisCache(Generic[T]):
    """The last results for some axes; an axis is the same where it is the same array.

    Parameters
    ----------
    most
        Bytes to keep at most, beside the last result.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        # The axes are kept with their results, so that no other array takes their place in memory.
        self._kept: OrderedDict[tuple[int, ...], tuple[tuple[Ints, ...], T]] = OrderedDict()

    def get(self, axes: tuple[Ints, ...], make: Callable[[], T]) -> T:
        """Return what was made of the axes, or make it.

        Parameters
        ----------
        axes
            One or more.
        make
            Called where there is nothing of them.
        """
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


QUERIES_AT_A_TIME = 128
"""Genes whose logits with all others are looked at together."""


class LayerNorms(NamedTuple):
    """Of each gene and head, what bounds how far an attention layer is from a uniform one.

    A gene's vector before the layer is ``p_i + sum over j of the set of n_j``.

    Parameters
    ----------
    logits
        The range, over all genes of the cell, of its logits by ``p`` alone, [n, heads].
    query
        ``|W_q p_i + b_q|``, [n, heads].
    query_of_others
        ``|W_q n_j|``, [n, heads].
    key
        ``|W_k (p_i - p)|`` with p the mean over genes, [n, heads].
    out
        ``|W_o W_v (p_i - p)|``, [n, heads].
    """

    logits: torch.Tensor
    query: torch.Tensor
    query_of_others: torch.Tensor
    key: torch.Tensor
    out: torch.Tensor


class LayerTables(NamedTuple):
    """Of each gene, what an attention layer reads of it, with ``p`` as in `LayerNorms`.

    Parameters
    ----------
    query
        ``(W_q p_i + b_q) / sqrt(width of a head)``, [n, heads, width].
    key
        ``W_k p_i``, [n, heads, width]. Without its bias, for that moves all logits alike.
    out
        ``beta W_o W_v p_i``, [n, heads, hidden]. Without its bias, which moves all alike.
    """

    query: torch.Tensor
    key: torch.Tensor
    out: torch.Tensor


class LayerWeights(NamedTuple):
    """What of an attention layer's weights bounds it.

    Parameters
    ----------
    beta
        ``|beta|``.
    query, key, out
        Spectral norms of ``W_q``, ``W_k`` and ``W_o W_v``, one a head.
    width, heads
        Of a head, and how many there are.
    """

    beta: float
    query: npt.NDArray[np.float64]
    key: npt.NDArray[np.float64]
    out: npt.NDArray[np.float64]
    width: int
    heads: int


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

    Parameters
    ----------
    size
        Genes of a set.
    y, z, static
        [n_genes, hidden].
    norms
        Of each layer.
    vectors
        ``p`` of each layer, see `LayerNorms`, [n_genes, hidden].
    """

    size: int
    y: torch.Tensor
    z: torch.Tensor
    static: torch.Tensor
    norms: tuple[LayerNorms, ...]
    vectors: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, sets: PaddedSets, genes: torch.Tensor, size: int) -> UniformTables:
        """Make the tables.

        Parameters
        ----------
        sets
            The weights, in double precision.
        genes
            The genes' vectors in the wild type, [n_genes, hidden].
        size
            Genes of a set, 2 or more.
        """
        n, hidden = size - 1, genes.shape[1]
        a = torch.eye(hidden, dtype=genes.dtype, device=genes.device)
        b, c = torch.zeros_like(a), genes.new_zeros(hidden)
        norms, vectors = [], []
        for layer in layers_of(sets):
            others = genes @ b.t()
            own = genes @ a.t() + c - others
            norms.append(_norms(layer, own, others))
            vectors.append(own)
            w, shift = _whole(layer)
            beta = layer.beta
            a, b, c = (
                a + beta * w @ b,
                b + beta / n * w @ (a + (n - 1) * b),
                c + beta * (shift + w @ c),
            )
        static = torch.relu(sets.static(genes))
        y = genes @ a.t() + c - static
        return cls(size, y, genes @ b.t(), static, tuple(norms), tuple(vectors))


def layers_of(sets: PaddedSets) -> list[OthersAttention]:
    """Return the attention layers."""
    return [cast(OthersAttention, layer) for layer in sets.attention]


def layer_weights(layer: OthersAttention) -> LayerWeights:
    """Return what of a layer's weights bounds it."""
    query, key, _ = _parts(layer.query_key_value.weight, layer.heads)
    of_query, of_key, of_out = (
        torch.linalg.matrix_norm(matrices, 2).cpu().numpy()
        for matrices in (query, key, _out_of_value(layer))
    )
    beta = abs(float(layer.beta))
    return LayerWeights(beta, of_query, of_key, of_out, query.shape[1], layer.heads)


def layer_tables(layer: OthersAttention, own: torch.Tensor) -> LayerTables:
    """Return what a layer reads of each gene.

    Parameters
    ----------
    layer
        Of attention.
    own
        ``p`` of each gene, [n_genes, hidden].
    """
    query, key, _ = _parts(layer.query_key_value.weight, layer.heads)
    query_bias = _parts(layer.query_key_value.bias, layer.heads)[0]
    root = math.sqrt(query.shape[1])
    return LayerTables(
        query=(torch.einsum("hxd,nd->nhx", query, own) + query_bias) / root,
        key=torch.einsum("hxd,nd->nhx", key, own),
        out=layer.beta * torch.einsum("hod,nd->nho", _out_of_value(layer), own),
    )


def _norms(layer: OthersAttention, own: torch.Tensor, others: torch.Tensor) -> LayerNorms:
    query, key, _ = _parts(layer.query_key_value.weight, layer.heads)
    tables = layer_tables(layer, own)
    centred = own - own.mean(0)
    ranges = [_range(part, tables.key) for part in torch.split(tables.query, QUERIES_AT_A_TIME)]
    return LayerNorms(
        logits=torch.cat(ranges),
        query=tables.query.norm(dim=-1) * math.sqrt(query.shape[1]),
        query_of_others=torch.einsum("hxd,nd->nhx", query, others).norm(dim=-1),
        key=torch.einsum("hxd,nd->nhx", key, centred).norm(dim=-1),
        out=torch.einsum("hod,nd->nho", _out_of_value(layer), centred).norm(dim=-1),
    )


def _range(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the range of some genes' logits over all genes, [m, heads]."""
    logits = torch.einsum("ihx,jhx->hij", query, key)
    return (logits.amax(-1) - logits.amin(-1)).t()


def _parts(stacked: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    """Return the query's, the key's and the value's part by head, [heads, width, ...]."""
    return tuple(torch.unflatten(part, 0, (heads, -1)) for part in stacked.chunk(3))


def _out_of_value(layer: OthersAttention) -> torch.Tensor:
    """Return ``W_o W_v`` by head, [heads, hidden, hidden]."""
    value = _parts(layer.query_key_value.weight, layer.heads)[2]
    out = torch.unflatten(layer.out.weight, 1, (layer.heads, -1))
    return torch.einsum("ohx,hxd->hod", out, value)


def _whole(layer: OthersAttention) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``W_o W_v`` over all heads, and the shift ``W_o b_v + b_o``."""
    value_bias = layer.query_key_value.bias.chunk(3)[2]
    return _out_of_value(layer).sum(0), layer.out.weight @ value_bias + layer.out.bias


KEPT = 2**27
"""Bytes of tables of pairs of axes that are kept, each 0.5 MiB for axes of 64 genes and 4 heads."""

PRODUCTS_AT_A_TIME = 2**15
"""Triples computed together, so that what is made of them stays in cache."""

MOST_LOGITS = 80.0
"""The largest range of logits whose exponentials are numbers in single precision."""

ROUNDING = 2.0**-17
"""Share of the sum of all terms that single precision may lose in some 100 operations."""


def strongest_layer(sets: PaddedSets, tables: UniformTables) -> int:
    """Return the layer whose attention moves a gene's vector most.

    Parameters
    ----------
    sets
        The weights, of one layer or more.
    tables
        Of sets of three genes.
    """
    moves = [
        layer_weights(layer).beta * float((norms.logits.mean(0).tanh() * norms.out.mean(0)).sum())
        for layer, norms in zip(layers_of(sets), tables.norms, strict=True)
    ]
    return max(range(len(moves)), key=moves.__getitem__)


class KeptAttention:
    r"""What the attention of one layer adds to the scores of triples under uniform attention.

    A gene a attends to b of its others b and c with the weights
    ``alpha_h = u_b / (u_b + u_c)``, ``u_b = exp(logit_h(a, b))``. With
    ``D_h = beta W^h (p_b - p_c)`` that moves its vector by ``sum_h (alpha_h - 1/2) D_h``, and its
    term of the score, ``w . u_a^2`` with ``u_a = y_a + z_b + z_c``, becomes more by

        sum_h (alpha_h - 1/2) M_h + sum_{h,g} (alpha_h - 1/2) (alpha_g - 1/2) F_hg,
        M_h = 2 w . (u_a D_h) = N_h[a, b] - N_h[a, c] + E_h[b, c],  F_hg = w . (D_h D_g),

    which is elementwise work on numbers of pairs; no vector of a triple is formed.

    Parameters
    ----------
    sets
        The weights, in double precision.
    tables
        Of sets of three genes.
    layer
        Whose attention.
    standard
        The scale of the targets.
    """

    def __init__(
        self, sets: PaddedSets, tables: UniformTables, layer: int, standard: Standard
    ) -> None:
        weight = sets.score.weight[0] * (standard.std / tables.size)
        of_genes = layer_tables(layers_of(sets)[layer], tables.vectors[layer])
        self._range = tables.norms[layer].logits.amax(1).cpu().numpy()
        self._query = of_genes.query
        self._key = of_genes.key - of_genes.key.mean(0)
        self._out = of_genes.out
        self._weighted_out = of_genes.out * weight
        self._y, self._z = tables.y, tables.z
        self._kept: AxisCache[_OfTwo] = AxisCache(KEPT)

    def can(self, axes: tuple[Ints, ...]) -> bool:
        """Return whether the logits of some genes are small enough for it."""
        return all(self._range[axis].max() <= MOST_LOGITS for axis in axes)

    def scores(
        self, axes: tuple[Ints, ...], uniform: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, float]:
        """Return the scores of a block, float32 [len, len, len], and what rounding may take.

        Parameters
        ----------
        axes
            Of the block, three of them.
        uniform
            The tables of the sum over pairs, see `PairTables`.
        """
        ab, ac, bc = (
            self._kept.get(two, partial(self._of_two, *two)) for two in combinations(axes, 2)
        )
        # What alpha - 1/2 leaves of 1/2, with the sign of the partner's place among the two.
        of_ab = uniform[0] + ab.constant - (ab.n.sum(0) + ab.n_back.sum(0)) / 2
        of_ac = uniform[1] + ac.constant + (ac.n.sum(0) - ac.n_back.sum(0)) / 2
        of_bc = uniform[2] + bc.constant + (bc.n.sum(0) + bc.n_back.sum(0)) / 2
        n_a, n_b, n_c = map(len, axes)
        scores = of_ab.new_empty(n_a, n_b, n_c)
        step = max(1, PRODUCTS_AT_A_TIME // max(1, n_b * n_c))

        def fill(begin: int) -> None:
            rows = slice(begin, begin + step)
            part = scores[rows]
            torch.add(of_ac[rows].unsqueeze(1), of_bc, out=part).add_(of_ab[rows].unsqueeze(2))
            by_ab, by_ac = _Broadcast(ab.rows(rows), 3), _Broadcast(ac.rows(rows), 2)
            room = part.new_empty(len(ab.u) + 1, *part.shape)
            _add(part, by_ab.forth, by_ac.forth, by_bc, room)
            _add(part, by_ab.back, by_bc.forth, by_ac, room)
            _add(part, by_ac.back, by_bc.back, by_ab, room)

        by_bc = _Broadcast(bc, 1)
        begins = range(0, n_a, step)
        in_any_worker(fill, begins, workers_for(scores.device, len(begins)))
        largest = sum(float(table.abs().max()) for table in uniform)
        largest += ab.largest + ac.largest + bc.largest
        return scores, ROUNDING * largest

    def _of_two(self, first: Ints, second: Ints) -> _OfTwo:
        x, y = (self._out[axis].transpose(0, 1) for axis in (first, second))
        weighted_x, weighted_y = (
            self._weighted_out[axis].transpose(0, 1) for axis in (first, second)
        )
        heads = len(x)
        # Of both genes' own parts, and of the one with the other.
        own_x, own_y = (
            torch.einsum("hnd,gnd->hgn", *two) for two in ((weighted_x, x), (weighted_y, y))
        )
        cross = torch.einsum("hid,gjd->hgij", weighted_x, y)
        f = own_x.unsqueeze(-1) + own_y.unsqueeze(-2) - cross - cross.transpose(0, 1)
        z_x, z_y = self._z[first], self._z[second]
        e = 2 * (
            torch.einsum("hid,id->hi", weighted_x, z_x).unsqueeze(-1)
            - torch.einsum("hjd,jd->hj", weighted_y, z_y).unsqueeze(-2)
            + weighted_x @ z_y.t()
            - (weighted_y @ z_x.t()).transpose(1, 2)
        )
        constant = f.sum((0, 1)) / 4 - e.sum(0) / 2
        e = e - f.sum(1)
        upper = [f[h, g] * (1 if h == g else 2) for h in range(heads) for g in range(h, heads)]
        n = 2 * (weighted_y @ self._y[first].t()).transpose(1, 2)
        n_back = 2 * weighted_x @ self._y[second].t()
        made = [torch.stack(upper), e, n, n_back]
        largest = sum(float(part.abs().amax((1, 2)).sum()) for part in made)
        u = torch.einsum("ihx,jhx->hij", self._query[first], self._key[second]).exp()
        u_back = torch.einsum("jhx,ihx->hij", self._query[second], self._key[first]).exp()
        return _OfTwo(
            u=u.float(),
            n=n.float(),
            u_back=u_back.float(),
            n_back=n_back.float(),
            e=e.float(),
            f=made[0].float(),
            constant=constant.float(),
            largest=largest,
        )


class _OfTwo(NamedTuple):
    """What is known of the pairs of two axes, by head, float32 [heads, len, len].

    Parameters
    ----------
    u, n
        ``exp(logit)`` and N of the first gene with the second as a partner.
    u_back, n_back
        Of the second gene with the first as a partner.
    e
        What a third gene's alpha_h is multiplied by: ``E_h - sum_g F_hg``.
    f
        ``F_hh`` and ``2 F_hg`` for g > h, row by row.
    constant
        ``sum F / 4 - sum E / 2``, [len, len].
    largest
        Bound on the numbers.
    """

    u: torch.Tensor
    n: torch.Tensor
    u_back: torch.Tensor
    n_back: torch.Tensor
    e: torch.Tensor
    f: torch.Tensor
    constant: torch.Tensor
    largest: float

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return sum(part.nbytes for part in self[:-1])

    def rows(self, rows: slice) -> _OfTwo:
        """Return what is known of some genes of the first axis."""
        u, n, u_back, n_back, e, f, constant = (part[..., rows, :] for part in self[:-1])
        return _OfTwo(u, n, u_back, n_back, e, f, constant, self.largest)


class _Broadcast:
    """The tables of two axes as they lie in a block of three.

    Parameters
    ----------
    of_two
        The tables.
    missing
        Where the third axis is, counted from 1.
    """

    def __init__(self, of_two: _OfTwo, missing: int) -> None:
        u, n, u_back, n_back, e, f = (part.unsqueeze(missing) for part in of_two[:6])
        self.forth, self.back = (u, n), (u_back, n_back)
        self.e, self.f = e, f


def _add(
    scores: torch.Tensor,
    first: tuple[torch.Tensor, torch.Tensor],
    second: tuple[torch.Tensor, torch.Tensor],
    partners: _Broadcast,
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
        torch.addcmul(partners.e[h], alpha[h], partners.f[at], out=factor)
        for g in range(h + 1, heads):
            at += 1
            factor.addcmul_(alpha[g], partners.f[at])
        at += 1
        scores.addcmul_(alpha[h], factor.add_(n[h]).sub_(n2[h]))
