"""The part of a network that the vectors of a few genes depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch.nn import functional

from deltacell.arrays import Ints, offsets_of, ragged_positions
from deltacell.cell import Relation
from deltacell.models.sage import SAGE, SAGELayer
from deltacell.propagate.product import SparseMatrix, mean_product


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """What `SAGE` has to compute on one network for a few genes, and nothing else.

    The last layer is needed for these genes alone, the one before for their neighbours too, and so
    on back to the first.

    Parameters
    ----------
    genes
        Those whose first vectors are needed, ascending.
    layers
        Of each layer, the places of its genes among those of the layer before, and the edges
        between the two.
    """

    genes: torch.Tensor
    layers: tuple[tuple[torch.Tensor, SparseMatrix], ...]

    @classmethod
    def of(cls, relation: Relation, genes: Ints, n_layers: int) -> Neighbourhood:
        """Return that of some genes.

        Parameters
        ----------
        relation
            The network.
        genes
            Whose vectors are wanted, ascending.
        n_layers
            Of `SAGE`.
        """
        layers: list[tuple[torch.Tensor, SparseMatrix]] = []
        for _ in range(n_layers):
            starts = np.asarray(relation.indptr[genes], dtype=np.int64)
            lengths = np.asarray(relation.indptr[genes + 1], dtype=np.int64) - starts
            sources = relation.indices[ragged_positions(starts, lengths)].astype(np.int64)
            before = np.union1d(genes, sources)
            edges = SparseMatrix(
                offsets_of(lengths), np.searchsorted(before, sources), n_columns=len(before)
            )
            layers.insert(0, (torch.from_numpy(np.searchsorted(before, genes)), edges))
            genes = before
        return cls(torch.from_numpy(genes), tuple(layers))

    def vectors(self, sage: SAGE, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the wanted genes' vectors, [len(genes), width].

        ``h'_i = relu(g W_n mean over j in N(i) of h_j + b + W_s h_i)`` in every layer; with g = 1
        that is `SAGE`.

        Parameters
        ----------
        sage
            With its weights.
        x
            First vectors of all genes, [n_genes, width].
        gate
            What is received is multiplied by it.
        """
        x = x.index_select(0, self.genes)
        for module, (own, edges) in zip(sage.layers, self.layers, strict=True):
            layer = cast(SAGELayer, module)
            # Not the bias: a gene without neighbours has it too.
            weight = gate * layer.neighbours.weight
            received = functional.linear(mean_product(edges, x), weight, layer.neighbours.bias)
            x = torch.relu(received + layer.own(x.index_select(0, own)))
        return x
