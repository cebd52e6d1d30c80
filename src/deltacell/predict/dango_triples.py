"""Scores of lists of triples, the first layer from what is known of genes."""

from __future__ import annotations

import math

import torch

from deltacell.models.hyper_sagnn import OthersAttention, PaddedSets
from deltacell.predict.dango_tables import layers_of
from deltacell.propagate.workers import in_any_worker, workers_for
from deltacell.train.standard import Standard

AT_A_TIME = 512
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
        lists = torch.split(sets, AT_A_TIME)
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
