"""The score of HeteroCell as a function of gates of its relations and genes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from deltacell.cell import Cell
from deltacell.models.hetero_cell.layers import EncodedCell
from deltacell.models.interface import GatedScore
from deltacell.propagate import GENE, Hop, Message
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
        self._deleted = model.prepare(cell, genotypes)
        if model.local_head is not None:
            model.local_head.largest = None
        metabolism = () if model.reactions is None else (METABOLISM,)
        self.relations = (*model.relations, *metabolism)

    def score(self, relation_gates: Tensor, gene_gates: Tensor) -> Tensor:
        model = self._model
        state = model.first_state(self._cell)
        state[GENE] = state[GENE] * gene_gates.unsqueeze(1)
        n_relations = len(model.relations)
        hops = [_gated(hop, relation_gates, n_relations) for hop in model.hops(self._cell)]
        wild_type = model.propagation.wild_type(hops, state)
        return model.score(self._cell, EncodedCell(hops, wild_type), self._deleted).score[0]


def _gated(hop: Hop, gates: Tensor, n_relations: int) -> Hop:
    if hop.target != GENE:
        return hop
    over_relations = hop.aggregates[0].source == GENE
    own = iter((gates[:n_relations] if over_relations else gates[n_relations:]).unbind())

    def gated(message: Message) -> Message:
        mine = tuple(next(own) for _ in message.aggregates)

        def function(vectors: Tensor, *others: Any) -> Tensor:
            *received, rows = others
            passed = (a * gate for a, gate in zip(received, mine, strict=True))
            return message.function(vectors, *passed, rows)

        return Message(message.aggregates, function, mine)

    return replace(hop, messages=tuple(map(gated, hop.messages)))
