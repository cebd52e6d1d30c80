"""What DANGO makes of a set where every gene attends to all others alike: a sum over pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from deltacell.models.hyper_sagnn import OthersAttention, PaddedSets

AT_A_TIME = 128
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
    ranges = [_range(part, tables.key) for part in torch.split(tables.query, AT_A_TIME)]
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
