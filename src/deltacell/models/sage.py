"""GraphSAGE with mean aggregation."""

from __future__ import annotations

import torch
from torch import nn

from deltacell.propagate.product import SparseMatrix, mean_product


class SAGE(nn.Module):
    """Layers one after the other on the same network.

    Parameters
    ----------
    width
        Of the vectors.
    layers
        Number of `SAGELayer`.
    """

    def __init__(self, width: int, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SAGELayer(width, width) for _ in range(layers))

    def forward(self, matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
        """Return the new vectors [n_genes, width]; arguments as in `SAGELayer`."""
        for layer in self.layers:
            x = layer(matrix, x)
        return x


class SAGELayer(nn.Module):
    r"""One layer, ``h'_i = relu(W_n mean over j in N(i) of h_j + b + W_s h_i)``.

    The mean over no neighbours is 0. No self loops: a gene sees itself through W_s.

    Parameters
    ----------
    width_in, width_out
        Of the vectors before and after.
    """

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(width_in, width_out)
        self.own = nn.Linear(width_in, width_out, bias=False)

    def forward(self, matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
        """Return the new vectors [n_genes, width_out].

        Parameters
        ----------
        matrix
            Adjacency [n_genes, n_genes], row = target.
        x
            [n_genes, width_in].
        """
        mean = mean_product(matrix, x)
        return torch.relu(self.neighbours(mean) + self.own(x))
