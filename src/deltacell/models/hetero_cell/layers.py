"""The layers of HeteroCell: messages over the gene relations, and through the metabolism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor, nn
from torch.nn import functional

from deltacell.base.caching import kept_with
from deltacell.base.checks import check_choice
from deltacell.cell import Metabolism
from deltacell.models.base import named_range
from deltacell.models.hetero_cell.combinations import (
    COMBINATIONS,
    AttentionCombination,
    PairwiseCombination,
    StackedLinear,
)
from deltacell.models.hetero_cell.gin import GinFunction, GinMessage, gin_message
from deltacell.models.hetero_cell.precision import in_precision_of
from deltacell.propagate.hop import (
    GENE,
    METABOLITE,
    REACTION,
    Aggregate,
    Hop,
    HopShape,
    Message,
    MessageShape,
)
from deltacell.propagate.parallel.chunks import Rows
from deltacell.propagate.product import SparseMatrix


class GeneLayer(nn.Module):
    """``x' = combine over relations of m_r``, plus x with a residual.

    The message of a relation is ``m_r = act(norm(MLP_r((1 + eps_r) x + a_r)))``, see `GinMessage`,
    with a_r the aggregate over the relation and eps_r learned, starting at 0. The MLP has
    activations between its linear layers, and each gene's vector is normalised by itself. Relations
    do not share weights.
    """

    def __init__(
        self,
        name: str,
        relations: int,
        hidden: int,
        gin_layers: int,
        combine: str,
        residual: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        check_choice("combination", combine, COMBINATIONS)
        self.name = name
        self.residual = residual
        self.dropout = dropout
        self.eps = nn.Parameter(torch.zeros(relations))
        self.linears = nn.ModuleList(
            StackedLinear(relations, hidden, hidden) for _ in range(gin_layers)
        )
        self.norm_weight = nn.Parameter(torch.ones(relations, hidden))
        self.norm_bias = nn.Parameter(torch.zeros(relations, hidden))
        self.factor = 1 / relations if combine == "mean" else 1.0
        self.combine: nn.Module | None = None
        if combine == "attention":
            self.combine = AttentionCombination(relations, hidden)
        elif combine == "pairwise":
            self.combine = PairwiseCombination(relations, hidden)
        self._function: GinFunction = gin_message

    def shape(self, aggregates: Sequence[Aggregate]) -> HopShape:
        """Return what the layer reads, with an aggregate for each relation."""
        n_weights = sum(p.numel() for p in self._stacked_parameters()) // len(self.eps)
        messages = tuple(MessageShape((aggregate,), n_weights) for aggregate in aggregates)
        if self.combine is not None:
            n_of_combination = sum(p.numel() for p in self.combine.parameters())
            n_weights = len(messages) * n_weights + n_of_combination
            messages = (MessageShape(tuple(aggregates), n_weights),)
        return HopShape(GENE, messages, self.norm_bias.shape[1], self.residual)

    def draw(self, x: Tensor) -> Tensor | None:
        """Draw the dropout of this step's messages, for all mutants; None without dropout."""
        if not (self.training and self.dropout):
            return None
        kept = x.new_empty(len(self.eps), *x.shape)
        return kept.bernoulli_(1 - self.dropout).div_(1 - self.dropout)

    def hop(self, shape: HopShape, kept: Tensor | None = None) -> Hop:
        """Return the layer as a hop, with the dropout from `draw`."""
        parameters = self.parameters_by_relation()
        messages: tuple[Message, ...] = tuple(
            GinMessage(
                aggregates=(aggregate,),
                parameters=parameters[relation],
                kept=None if kept is None else kept[relation],
                factor=self.factor,
                function=self._function,
            )
            for relation, aggregate in enumerate(shape.aggregates)
        )
        if self.combine is not None:
            messages = (CombinedMessage.of(messages, self.combine, f"{self.name}.combination"),)
        return Hop(shape, messages, partial(named_range, self.name))

    def compile_row_wise(self, **options: Any) -> None:
        """Compile the messages and their combination."""
        self._function = torch.compile(gin_message, **options)
        if self.combine is not None:
            self.combine.compile(**options)

    def parameters_by_relation(self) -> list[tuple[Tensor, ...]]:
        """Return the parameters of each relation, in the order of `gin_message`."""
        unbound = [parameter.unbind(0) for parameter in self._stacked_parameters()]
        return list(zip(*unbound, strict=True))

    def _stacked_parameters(self) -> list[Tensor]:
        stacked: list[Tensor] = [self.eps, self.norm_weight, self.norm_bias]
        for linear in self.linears:
            stacked.append(cast(StackedLinear, linear).weight)
            stacked.append(cast(StackedLinear, linear).bias)
        return stacked


@dataclass(frozen=True, eq=False)
class CombinedMessage(Message):
    """The combination of the messages of all relations."""

    aggregates: tuple[Aggregate, ...]
    parameters: tuple[Tensor, ...]
    messages: tuple[Message, ...]
    combine: nn.Module
    name: str  # in profiles

    @classmethod
    def of(cls, messages: tuple[Message, ...], combine: nn.Module, name: str) -> CombinedMessage:
        """Return the combination of some messages, each over one aggregate."""
        aggregates = chain.from_iterable(message.aggregates for message in messages)
        parameters = chain.from_iterable(message.parameters for message in messages)
        return cls(
            tuple(aggregates),
            (*parameters, *combine.parameters()),
            messages,
            combine,
            name,
        )

    def forward(self, rows: Rows, vectors: Tensor, received: Sequence[Tensor]) -> Tensor:
        """Return the combined messages [m, hidden] to some genes."""
        messages = [
            message.forward(rows, vectors, [aggregate])
            for message, aggregate in zip(self.messages, received, strict=True)
        ]
        with named_range(self.name):
            combined: Tensor = in_precision_of(self.combine, torch.stack(messages))
        return combined


class MetabolicEdges(NamedTuple):
    """The aggregates between genes, reactions and metabolites."""

    genes_of_reaction: Aggregate  # the mean over the living genes of a reaction's rule
    metabolites_of_reaction: Aggregate  # sum_m |s_jm| p_m / sum_m |s_jm|
    reactions_of_metabolite: Aggregate  # the mean over living reactions j of s_jm q_j
    reactions_of_gene: Aggregate  # the mean over the living reactions whose rule names the gene

    @staticmethod
    @kept_with
    def of(metabolism: Metabolism) -> MetabolicEdges:
        """Return the aggregates of a metabolism; always the same object."""
        reaction, gene = metabolism.rule_genes
        n = metabolism.n_reactions
        rules = coo_array((np.ones(len(gene)), (reaction, gene)), (n, metabolism.n_genes)).tocsr()
        stoichiometry = coo_array(
            (metabolism.coefficient, (metabolism.reaction, metabolism.metabolite)),
            (n, metabolism.n_metabolites),
        ).tocsr()
        stoichiometry.eliminate_zeros()
        share = abs(stoichiometry)
        share.data /= np.repeat(share.sum(axis=1), np.diff(share.indptr))
        return MetabolicEdges(
            Aggregate(GENE, SparseMatrix.from_scipy(rules), mean=True),
            Aggregate(METABOLITE, SparseMatrix.from_scipy(share)),
            Aggregate(REACTION, SparseMatrix.from_scipy(stoichiometry.T), mean=True),
            Aggregate(REACTION, SparseMatrix.from_scipy(rules.T), mean=True),
        )


class MetabolicLayer(nn.Module):
    """Messages from genes to reactions, to metabolites, and back to the genes.

    - ``q_j' = act(norm(U_q [q_j ; mean of x_g over the living genes of its rule ;
      sum_m |s_jm| p_m / sum_m |s_jm|]))``
    - ``p_m' = act(norm(U_p [p_m ; mean over living reactions j of s_jm q_j']))``
    - ``x_g' = x_g + V(mean of q_j' over the living reactions of g)``

    Lost reactions neither send nor receive; a mean over nothing is 0.
    """

    def __init__(self, name: str, hidden: int) -> None:
        super().__init__()
        self.name = name
        self.reaction = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.LayerNorm(hidden))
        self.metabolite = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.LayerNorm(hidden))
        self.gene = nn.Linear(hidden, hidden)

    def shapes(self, edges: MetabolicEdges, *, last: bool) -> tuple[HopShape, ...]:
        """Return what the layer reads; the last layer does not update the metabolites."""
        width = self.gene.out_features
        of_reactions = (edges.genes_of_reaction, edges.metabolites_of_reaction)
        reactions = _message_shape(of_reactions, self.reaction)
        metabolites = _message_shape((edges.reactions_of_metabolite,), self.metabolite)
        genes = _message_shape((edges.reactions_of_gene,), self.gene)
        shapes = (
            HopShape(REACTION, (reactions,), width),
            HopShape(METABOLITE, (metabolites,), width),
            HopShape(GENE, (genes,), width, residual=True),
        )
        return shapes[::2] if last else shapes

    def hops(self, shapes: Sequence[HopShape]) -> tuple[Hop, ...]:
        """Return the layer as hops of the shapes that `shapes` returns."""
        around = partial(named_range, self.name)
        return tuple(Hop(shape, (self._message(shape),), around) for shape in shapes)

    def _message(self, shape: HopShape) -> Message:
        if shape.target == GENE:
            return LinearMessage(shape.aggregates, tuple(self.gene.parameters()), self.gene)
        module = self.reaction if shape.target == REACTION else self.metabolite
        return MixedMessage(shape.aggregates, tuple(module.parameters()), module)


def _message_shape(aggregates: tuple[Aggregate, ...], module: nn.Module) -> MessageShape:
    return MessageShape(aggregates, sum(p.numel() for p in module.parameters()))


@dataclass(frozen=True, eq=False)
class MixedMessage(Message):
    """``act(module([x ; a ; ...]))`` of a node's old vector x and its aggregates."""

    aggregates: tuple[Aggregate, ...]
    parameters: tuple[Tensor, ...]
    module: nn.Module

    def forward(self, rows: Rows, vectors: Tensor, received: Sequence[Tensor]) -> Tensor:
        """Return the messages [m, hidden] to some nodes."""
        return functional.gelu(self.module(torch.cat([vectors, *received], -1)))


@dataclass(frozen=True, eq=False)
class LinearMessage(Message):
    """``module(a)`` of a node's one aggregate."""

    aggregates: tuple[Aggregate, ...]
    parameters: tuple[Tensor, ...]
    module: nn.Module

    def forward(self, rows: Rows, vectors: Tensor, received: Sequence[Tensor]) -> Tensor:
        """Return the messages [m, hidden] to some nodes."""
        return self.module(received[0])  # type: ignore[no-any-return]
