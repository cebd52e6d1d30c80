"""The score of DANGO as a function of gates of its relations and genes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deltacell.base.arrays import Ints
from deltacell.cell import Cell, Relation
from deltacell.models.dango.layers import SAGE, SAGELayer
from deltacell.models.interface import GatedScore
from deltacell.propagate.product import SparseMatrix, mean_product

if TYPE_CHECKING:
    from deltacell.models.dango.model import Dango


class DangoGates(GatedScore):
    """The score of one genotype by a DANGO in double precision, see `GatedScore`.

    A gene's gate multiplies its embedding. Only the neighbourhood of the deleted genes is computed.
    """

    def __init__(self, model: Dango, cell: Cell, genes: Sequence[int]) -> None:
        self.relations = model.relations
        self._model = model
        self._cell = cell
        deleted: Ints = np.array(sorted(genes), dtype=np.int64)
        self._near = [
            Neighbourhood(cell.relation(name), deleted, len(cast(SAGE, sage).layers))
            for name, sage in zip(model.relations, model.sage, strict=True)
        ]

    def score(self, relation_gates: Tensor, gene_gates: Tensor) -> Tensor:
        """Return the score under gates of the relations and the genes."""
        model = self._model
        first = model.first_vectors(self._cell) * gene_gates.unsqueeze(1)
        gates = relation_gates.unbind()
        vectors = [
            near.vectors(cast(SAGE, sage), first, gate)
            for near, sage, gate in zip(self._near, model.sage, gates, strict=True)
        ]
        deleted, _ = model.meta_embedding(torch.stack(vectors))
        everyone = torch.ones(1, len(deleted), dtype=torch.bool)
        scores: Tensor = model.hyper_sagnn.sets(deleted.unsqueeze(0), everyone)[0]
        return scores[0]


class NeighbourhoodLayer(NamedTuple):
    """What one layer needs for some genes."""

    own: Tensor  # their positions among the genes of the layer before
    edges: SparseMatrix  # from the genes of the layer before


class Neighbourhood:
    """The part of one network that `SAGE` needs for a few ascending genes.

    The last layer is computed for these genes, the one before also for their neighbours, and so on.
    """

    def __init__(self, relation: Relation, genes: Ints, n_layers: int) -> None:
        self._layers: list[NeighbourhoodLayer] = []
        for _ in range(n_layers):
            rows = relation.adjacency()[genes]
            before = np.union1d(genes, rows.indices)
            columns = np.searchsorted(before, rows.indices)
            edges = SparseMatrix(rows.indptr, columns, n_columns=len(before))
            own = torch.from_numpy(np.searchsorted(before, genes))
            self._layers.insert(0, NeighbourhoodLayer(own, edges))
            genes = before
        self._genes = torch.from_numpy(genes)

    def vectors(self, sage: SAGE, x: Tensor, gate: Tensor) -> Tensor:
        """Return the vectors of the genes, [len(genes), width]; the same as `SAGE` if gate is 1."""
        x = x.index_select(0, self._genes)
        for module, near in zip(sage.layers, self._layers, strict=True):
            layer = cast(SAGELayer, module)
            # The gate does not apply to the bias, which a gene without neighbours has, too.
            weight = gate * layer.neighbours.weight
            mean = mean_product(near.edges, x)
            received = functional.linear(mean, weight, layer.neighbours.bias)
            x = torch.relu(received + layer.own(x.index_select(0, near.own)))
        return x
