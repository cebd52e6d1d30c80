"""A layer of HeteroCell: what the relations tell each gene, combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.func import functional_call

from deltacell.models.combine import MeanCombination, SumCombination, combination
from deltacell.models.gin import GIN
from deltacell.models.gin_message import gin_message, gin_message_gradients
from deltacell.models.ranges import named_range
from deltacell.propagate import GENE, Aggregate, Hop, Message, MessageGradients
from deltacell.propagate.hop import Rows


class GeneLayer(nn.Module):
    """``x' = combine over relations of m_r``, with m_r as in `GIN`; plus x with a residual.

    Parameters
    ----------
    name
        What a profiler shows it as.
    relations
        How many.
    hidden
        Width of a vector.
    gin_layers
        Linear layers of each relation's MLP.
    combine
        One of `COMBINATIONS`.
    activation
        One of `ACTIVATIONS`.
    residual
        Whether to add the old vector.
    dropout
        Share of the messages' numbers that are dropped while training.
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

    def hop(self, aggregates: Sequence[Aggregate], kept: torch.Tensor | None = None) -> Hop:
        """Return the layer as a hop.

        Parameters
        ----------
        aggregates
            One a relation.
        kept
            What `draw` returned for this step.
        """
        return Hop(
            GENE,
            tuple(aggregates),
            partial(self.update, kept=kept),
            tuple(self.parameters()),
            partial(named_range, self.name),
            self._messages(kept, self.gin.of_relations()),
            self.residual,
            partial(self._in_float64, aggregates, kept),
        )

    def draw(self, x: torch.Tensor) -> torch.Tensor | None:
        """Draw what the messages of one step are multiplied by, [r, n_genes, 1, hidden].

        One number a gene, relation and column, the same for the wild type and all mutants, so that
        differences stay differences. None where nothing is dropped.

        Parameters
        ----------
        x
            The genes' vectors, [n_genes, hidden].
        """
        if not (self.training and self.dropout):
            return None
        kept = x.new_empty(len(self.gin.eps), len(x), 1, x.shape[1])
        return kept.bernoulli_(1 - self.dropout).div_(1 - self.dropout)

    def update(
        self,
        vectors: torch.Tensor,
        aggregated: torch.Tensor,
        rows: Rows,
        *,
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the new vectors [m, t, hidden]; see `RowWise`."""
        messages = self.gin(vectors.flatten(0, 1), aggregated.flatten(1, 2))
        if kept is not None:
            messages = (messages.view_as(aggregated) * kept[:, rows]).view_as(messages)
        with named_range(f"{self.name}.combination"):
            new: torch.Tensor = self.combine(messages).view_as(vectors)
        return vectors + new if self.residual else new

    def compile_row_wise(self, **options: Any) -> None:
        """Compile the two parts.

        Parameters
        ----------
        options
            Of `torch.compile`.
        """
        self.gin.compile(**options)
        self.combine.compile(**options)

    def forward(
        self,
        vectors: torch.Tensor,
        aggregated: torch.Tensor,
        rows: Rows,
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return what `update` does."""
        return self.update(vectors, aggregated, rows, kept=kept)

    def _in_float64(self, aggregates: Sequence[Aggregate], kept: torch.Tensor | None) -> Hop:
        weights = {name: p.double() for name, p in self.named_parameters()}
        kept = None if kept is None else kept.double()

        def update(vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows) -> torch.Tensor:
            made = functional_call(self, weights, (vectors, aggregated, rows, kept))
            return cast(torch.Tensor, made)

        of_relations = [tuple(p.double() for p in group) for group in self.gin.of_relations()]
        return Hop(
            GENE,
            tuple(aggregates),
            update,
            tuple(weights.values()),
            partial(named_range, self.name),
            self._messages(kept, of_relations),
            self.residual,
        )

    def _messages(
        self, kept: torch.Tensor | None, of_relations: Sequence[tuple[torch.Tensor, ...]]
    ) -> tuple[Message, ...] | None:
        if not isinstance(self.combine, (SumCombination, MeanCombination)):
            return None
        weight = 1.0 if isinstance(self.combine, SumCombination) else 1 / len(self.gin.eps)
        relations = [
            _OfRelation(parameters, self.activation, weight, None if kept is None else kept[k])
            for k, parameters in enumerate(of_relations)
        ]
        return tuple(Message(one.message, one.parameters, one.gradients) for one in relations)


@dataclass(frozen=True, eq=False)
class _OfRelation:
    """What one relation adds to a sum or a mean over relations.

    Parameters
    ----------
    parameters, activation
        See `gin_message`.
    weight
        Of the relation.
    kept
        What the messages are multiplied by in this step, [n_genes, 1, hidden].
    """

    parameters: tuple[torch.Tensor, ...]
    activation: str
    weight: float
    kept: torch.Tensor | None

    def message(self, vectors: torch.Tensor, received: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Return [m, hidden]; see `MessageFunction`."""
        message = gin_message(vectors, received, self.parameters, self.activation)
        return self._weighted(message, rows)

    def gradients(
        self,
        vectors: torch.Tensor,
        received: torch.Tensor,
        rows: Rows,
        by_message: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> MessageGradients:
        """Return the gradients; see `MessageGradientFunction`."""
        by_message = self._weighted(by_message, rows)
        return gin_message_gradients(
            vectors, received, self.parameters, self.activation, by_message, out
        )

    def _weighted(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        if self.kept is not None:
            kept = self.kept.squeeze(1)
            x = x * (kept[rows] if isinstance(rows, slice) else kept.index_select(0, rows))
        return x if self.weight == 1 else x * self.weight
