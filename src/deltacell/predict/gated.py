"""A model whose relations and genes can be turned down, each by a gate between 0 and 1."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from deltacell.cell import Cell
from deltacell.models import Dango, HeteroCell
from deltacell.models.hetero_cell import EncodedCell
from deltacell.models.sage import SAGE
from deltacell.predict.neighbourhood import Neighbourhood
from deltacell.propagate import GENE, METABOLITE, REACTION, Deleted, Hop, Message
from deltacell.propagate.hop import Rows
from deltacell.screen import Genotypes

METABOLISM = "metabolism"
"""What the gate of the messages that pass through reactions is called."""


class GatedModel:
    """The score of one genotype as a function of gates, in double precision.

    A relation's gate g_r multiplies what every gene receives over it, in every layer, in the wild
    type and in the mutant: at 1 it is the model, at 0 the same model on a cell in which the
    relation has no edge. With metabolism there is one more gate, of what genes receive from
    reactions. A gene's gate multiplies its first vector: DANGO's embedding, or what HeteroCell's
    encoder makes of embedding and features.

    Parameters
    ----------
    model
        `Dango` or `HeteroCell`, with its weights; it is copied.
    cell
        The wild type.
    genes
        The deleted genes.
    """

    def __init__(self, model: Dango | HeteroCell, cell: Cell, genes: Sequence[int]) -> None:
        self._model = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._cell = cell
        self._genotypes = Genotypes.of([sorted(genes)]).check(cell.n_genes)
        self._near: tuple[Neighbourhood, ...] = ()
        self._deleted: Deleted | None = None
        if isinstance(self._model, Dango):
            deleted = self._genotypes.genes.numpy()
            self._near = tuple(
                Neighbourhood.of(cell.relation(name), deleted, len(cast(SAGE, sage).layers))
                for name, sage in zip(self._model.relations, self._model.sage, strict=True)
            )
        else:
            self._deleted = self._model.prepare(cell, self._genotypes)
            if self._model.local_head is not None:
                self._model.local_head.largest = None
        self.relations: tuple[str, ...] = model.relations
        if isinstance(model, HeteroCell) and model.reactions is not None:
            self.relations = (*self.relations, METABOLISM)
        self.n_genes = cell.n_genes

    def score(self, relations: torch.Tensor, genes: torch.Tensor) -> torch.Tensor:
        """Return the score, of which gradients can be taken, on the scale of the targets.

        Parameters
        ----------
        relations
            The gates of `relations`, float64 [k].
        genes
            The gates of the cell's genes, float64 [n_genes].
        """
        if isinstance(self._model, Dango):
            return self._dango(self._model, relations, genes)
        return self._hetero_cell(self._model, relations, genes)

    def vectors(self) -> torch.Tensor:
        """Return the genes' vectors in the wild type, [n_genes, hidden]."""
        with torch.no_grad():
            if isinstance(self._model, Dango):
                return self._model.encode(self._cell).genes
            return self._model.encode(self._cell).wild_type.last[GENE]

    def _dango(self, model: Dango, relations: torch.Tensor, genes: torch.Tensor) -> torch.Tensor:
        embedding = model.first_vectors(self._cell) * genes.unsqueeze(1)
        vectors = [
            near.vectors(cast(SAGE, sage), embedding, gate)
            for near, sage, gate in zip(self._near, model.sage, relations.unbind(), strict=True)
        ]
        deleted, _ = model.meta_embedding(torch.stack(vectors))
        everyone = torch.ones(1, len(deleted), dtype=torch.bool)
        score: torch.Tensor = model.hyper_sagnn.sets(deleted.unsqueeze(0), everyone)[0]
        return score[0]

    def _hetero_cell(
        self, model: HeteroCell, relations: torch.Tensor, genes: torch.Tensor
    ) -> torch.Tensor:
        state = {GENE: model.encoder(self._cell) * genes.unsqueeze(1)}
        if model.reactions is not None and model.metabolites is not None:
            state |= {REACTION: model.reactions, METABOLITE: model.metabolites}
        hops = [_gated(hop, relations, len(model.relations)) for hop in model.hops(self._cell)]
        encoded = EncodedCell(hops, model.propagation.wild_type(hops, state))
        assert self._deleted is not None
        return model.score(self._cell, encoded, self._deleted).score[0]


def _gated(hop: Hop, gates: torch.Tensor, n_relations: int) -> Hop:
    if hop.target != GENE:
        return hop
    over_relations = hop.aggregates[0].source == GENE
    own = gates[:n_relations] if over_relations else gates[n_relations:]

    def update(vectors: torch.Tensor, aggregated: torch.Tensor, rows: Rows) -> torch.Tensor:
        return hop.update(vectors, aggregated * own.view(-1, 1, 1, 1), rows)

    messages = hop.messages
    if messages is not None:
        pairs = zip(messages, own.unbind(), strict=True)
        messages = tuple(_gated_message(message, gate) for message, gate in pairs)
    return replace(hop, update=update, parameters=(own,), messages=messages)


def _gated_message(message: Message, gate: torch.Tensor) -> Message:
    def function(vectors: torch.Tensor, received: torch.Tensor, rows: Rows) -> torch.Tensor:
        return message.function(vectors, received * gate, rows)

    return Message(function, (gate,))
