"""The score of HeteroCell as a function of gates of its relations and genes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from deltacell.cell import Cell
from deltacell.models.interface import GatedScore
from deltacell.propagate.hop import GENE, Aggregate, Hop, Message
from deltacell.propagate.parallel.chunks import Rows
from deltacell.screen import Genotypes

if TYPE_CHECKING:
    from deltacell.models.hetero_cell.model import HeteroCell

METABOLISM = "metabolism"  # the name of the gate of messages from reactions


class HeteroCellGates(GatedScore):
    """The score of one genotype by a HeteroCell in double precision, see `GatedScore`.

    A relation's gate multiplies messages in every layer, in the wild type and in the mutant. With
    metabolism there is one more gate, of messages from reactions to genes. A gene's gate multiplies
    the output of the encoder. The model's ``largest`` is set: pass a copy.
    """

    def __init__(self, model: HeteroCell, cell: Cell, genes: Sequence[int]) -> None:
        genotypes = Genotypes.of([sorted(genes)]).check(cell.n_genes)
        self._model = model
        self._cell = cell
        self._prepared = model.prepare(cell, genotypes)
        if model.local_head is not None:
            model.local_head.largest = None
        metabolism = () if model.reactions is None else (METABOLISM,)
        self.relations = (*model.relations, *metabolism)

    def score(self, relation_gates: Tensor, gene_gates: Tensor) -> Tensor:
        """Return the score under gates of the relations and the genes, on the host."""
        model = self._model
        relation_gates = relation_gates.to(model.device)
        gene_gates = gene_gates.to(model.device)
        state = model.first_state(self._cell)
        state[GENE] = state[GENE] * gene_gates.unsqueeze(1)
        n_relations = len(model.relations)
        hops = [_gated(hop, relation_gates, n_relations) for hop in model.hops(self._cell)]
        encoded = model.encoded(self._cell, hops, state)
        return model.score(self._cell, encoded, self._prepared).score[0].cpu()


def _gated(hop: Hop, gates: Tensor, n_relations: int) -> Hop:
    """Return a hop whose aggregates are multiplied by gates, if its target are the genes."""
    if hop.target != GENE:
        return hop
    over_relations = hop.aggregates[0].source == GENE
    own = gates[:n_relations] if over_relations else gates[n_relations:]
    remaining = iter(own.unbind())
    messages = []
    for message in hop.messages:
        of_message = tuple(next(remaining) for _ in message.aggregates)
        messages.append(GatedMessage(message.aggregates, of_message, message))
    return replace(hop, messages=tuple(messages))


@dataclass(frozen=True, eq=False)
class GatedMessage(Message):
    """A message whose aggregates are multiplied by gates, which alone need a gradient."""

    aggregates: tuple[Aggregate, ...]
    parameters: tuple[Tensor, ...]  # the gate of each aggregate
    message: Message

    def forward(self, rows: Rows, vectors: Tensor, received: Sequence[Tensor]) -> Tensor:
        """Return the messages [m, hidden] to some genes."""
        gated = [
            aggregate * gate for aggregate, gate in zip(received, self.parameters, strict=True)
        ]
        return self.message.forward(rows, vectors, gated)
