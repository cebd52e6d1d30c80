"""The layers of HeteroCell: messages over the gene relations, and through the metabolism."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor, nn
from torch.func import functional_call

from deltacell.cell import Metabolism
from deltacell.models.base import activation_of, named_range
from deltacell.models.combine import MeanCombination, SumCombination, combination
from deltacell.models.gin import GIN, gin_message, gin_message_gradients
from deltacell.propagate import (
    GENE,
    METABOLITE,
    REACTION,
    Aggregate,
    Hop,
    Message,
    MessageGradients,
    SparseMatrix,
)
from deltacell.propagate.hop import Rows


class GeneLayer(nn.Module):
    """``x' = combine over relations of m_r``, with m_r as in `GIN`; plus x with a residual.

    A profiler shows it under its name. The other parameters are those of `HeteroCell`.
    """

    def __init__(
        self,
        name: str,
        relations: int,
        hidden: int,
        *,
        gin_layers: int,
        combine: str,
        activation: str,
        residual: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.name = name
        self.residual = residual
        self.activation = activation
        self.dropout = dropout
        self.gin = GIN(relations, hidden, gin_layers, activation)
        self.combine = combination(combine, relations, hidden, activation)

    def draw(self, x: Tensor) -> Tensor | None:
        """Draw the factors of this step's messages, [r, n_genes, 1, hidden]; None without dropout.

        The wild type and all mutants share them, so that differences stay differences.
        """
        if not (self.training and self.dropout):
            return None
        kept = x.new_empty(len(self.gin.eps), len(x), 1, x.shape[1])
        return kept.bernoulli_(1 - self.dropout).div_(1 - self.dropout)

    def hop(
        self, aggregates: Sequence[Aggregate], kept: Tensor | None = None, *, double: bool = False
    ) -> Hop:
        """Return the layer as a hop over one aggregate per relation, with factors from `draw`.

        With ``double`` it computes in float64, and the weights still receive gradients.
        """
        weights: dict[str, Tensor] = dict(self.named_parameters())
        groups = self.gin.of_relations()
        if double:
            weights = {name: p.double() for name, p in weights.items()}
            groups = [tuple(p.double() for p in group) for group in groups]
            kept = None if kept is None else kept.double()
        return Hop(
            GENE,
            tuple(aggregates),
            partial(self._with, weights, kept) if double else partial(self.forward, kept=kept),
            tuple(weights.values()),
            partial(named_range, self.name),
            self._messages(kept, groups),
            self.residual,
            None if double else partial(self.hop, aggregates, kept, double=True),
        )

    def _with(
        self,
        weights: dict[str, Tensor],
        kept: Tensor | None,
        vectors: Tensor,
        aggregated: Tensor,
        rows: Rows,
    ) -> Tensor:
        return cast(Tensor, functional_call(self, weights, (vectors, aggregated, rows, kept)))

    def forward(
        self, vectors: Tensor, aggregated: Tensor, rows: Rows, kept: Tensor | None = None
    ) -> Tensor:
        """Return the new vectors [m, t, hidden]; see `RowWise`."""
        messages = self.gin(vectors.flatten(0, 1), aggregated.flatten(1, 2))
        if kept is not None:
            messages = (messages.view_as(aggregated) * kept[:, rows]).view_as(messages)
        with named_range(f"{self.name}.combination"):
            new: Tensor = self.combine(messages).view_as(vectors)
        return vectors + new if self.residual else new

    def compile_row_wise(self, **options: Any) -> None:
        """Compile both parts, with options of `torch.compile`."""
        self.gin.compile(**options)
        self.combine.compile(**options)

    def _messages(
        self, kept: Tensor | None, of_relations: Sequence[tuple[Tensor, ...]]
    ) -> tuple[Message, ...] | None:
        if not isinstance(self.combine, (SumCombination, MeanCombination)):
            return None
        weight = 1.0 if isinstance(self.combine, SumCombination) else 1 / len(self.gin.eps)
        return tuple(
            _message(parameters, self.activation, weight, None if kept is None else kept[k])
            for k, parameters in enumerate(of_relations)
        )


def _message(
    parameters: tuple[Tensor, ...],
    activation: str,
    weight: float,
    kept: Tensor | None,  # [n_genes, 1, hidden]
) -> Message:
    """Return what one relation adds to a sum or a mean over relations."""

    def weighted(x: Tensor, rows: Rows) -> Tensor:
        if kept is not None:
            factors = kept.squeeze(1)
            x = x * (factors[rows] if isinstance(rows, slice) else factors.index_select(0, rows))
        return x if weight == 1 else x * weight

    def message(vectors: Tensor, received: Tensor, rows: Rows) -> Tensor:
        return weighted(gin_message(vectors, received, parameters, activation), rows)

    def gradients(
        vectors: Tensor, received: Tensor, rows: Rows, by_message: Tensor, out: Tensor | None = None
    ) -> MessageGradients:
        by_message = weighted(by_message, rows)
        return gin_message_gradients(vectors, received, parameters, activation, by_message, out)

    return Message(message, parameters, gradients)


class MetabolicEdges(NamedTuple):
    """What reactions, metabolites and genes receive from each other."""

    genes_of_reaction: Aggregate  # the mean over the living genes of a reaction's rule
    metabolites_of_reaction: Aggregate  # sum_m |s_jm| p_m / sum_m |s_jm|
    reactions_of_metabolite: Aggregate  # the mean over living reactions j of s_jm q_j
    reactions_of_gene: Aggregate  # the mean over the living reactions whose rule names the gene

    @classmethod
    def of(cls, metabolism: Metabolism) -> MetabolicEdges:
        """Return the edges of a metabolism; the same object for the same metabolism."""
        if metabolism in _EDGES:
            return _EDGES[metabolism]
        reaction, gene = metabolism.rule_genes
        rules = coo_array(
            (np.ones(len(gene)), (reaction, gene)),
            shape=(metabolism.n_reactions, metabolism.n_genes),
        ).tocsr()
        stoichiometry = coo_array(
            (metabolism.coefficient, (metabolism.reaction, metabolism.metabolite)),
            shape=(metabolism.n_reactions, metabolism.n_metabolites),
        ).tocsr()
        stoichiometry.eliminate_zeros()
        share = abs(stoichiometry)
        share.data /= np.repeat(share.sum(axis=1), np.diff(share.indptr))
        edges = _EDGES[metabolism] = cls(
            Aggregate(GENE, SparseMatrix.from_scipy(rules), mean=True),
            Aggregate(METABOLITE, SparseMatrix.from_scipy(share)),
            Aggregate(REACTION, SparseMatrix.from_scipy(stoichiometry.T), mean=True),
            Aggregate(REACTION, SparseMatrix.from_scipy(rules.T), mean=True),
        )
        return edges


_EDGES: WeakKeyDictionary[Metabolism, MetabolicEdges] = WeakKeyDictionary()


class MetabolicLayer(nn.Module):
    """Genes act on reactions, reactions on metabolites, and both back on the genes.

    - ``q_j' = act(norm(U_q [q_j ; mean of x_g over the living genes of its rule ;
      sum_m |s_jm| p_m / sum_m |s_jm|]))``
    - ``p_m' = act(norm(U_p [p_m ; mean over living reactions j of s_jm q_j']))``
    - ``x_g' = x_g + V(mean of q_j' over the living reactions of g)``

    Lost reactions neither send nor receive; a mean over nothing is 0.
    """

    def __init__(self, name: str, hidden: int, activation: str) -> None:
        super().__init__()
        self.name = name
        self.activation = activation_of(activation)
        self.reaction = nn.Linear(3 * hidden, hidden)
        self.reaction_norm = nn.LayerNorm(hidden)
        self.metabolite = nn.Linear(2 * hidden, hidden)
        self.metabolite_norm = nn.LayerNorm(hidden)
        self.gene = nn.Linear(hidden, hidden)

    def hops(self, edges: MetabolicEdges, *, last: bool) -> tuple[Hop, ...]:
        """Return the layer as hops; after the last layer no one reads the metabolites."""
        around = partial(named_range, self.name)
        reaction = Hop(
            REACTION,
            (edges.genes_of_reaction, edges.metabolites_of_reaction),
            partial(self._mix, self.reaction, self.reaction_norm),
            (*self.reaction.parameters(), *self.reaction_norm.parameters()),
            around,
        )
        metabolite = Hop(
            METABOLITE,
            (edges.reactions_of_metabolite,),
            partial(self._mix, self.metabolite, self.metabolite_norm),
            (*self.metabolite.parameters(), *self.metabolite_norm.parameters()),
            around,
        )
        gene = Hop(
            GENE,
            (edges.reactions_of_gene,),
            self._add_to_genes,
            tuple(self.gene.parameters()),
            around,
        )
        return (reaction, gene) if last else (reaction, metabolite, gene)

    def _mix(
        self, linear: nn.Linear, norm: nn.LayerNorm, vectors: Tensor, aggregated: Tensor, rows: Rows
    ) -> Tensor:
        h = linear(torch.cat([vectors, *aggregated], -1))
        return self.activation(norm(h.to(vectors.dtype)))

    def _add_to_genes(self, vectors: Tensor, aggregated: Tensor, rows: Rows) -> Tensor:
        return vectors + self.gene(aggregated[0]).to(vectors.dtype)  # type: ignore[no-any-return]
