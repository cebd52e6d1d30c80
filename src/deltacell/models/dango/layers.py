"""The layers of DANGO: GraphSAGE on each network, and the average over networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deltacell.propagate.product import SparseMatrix, mean_product


class SAGE(nn.Module):
    """Two `SAGELayer` layers on the same network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SAGELayer(width) for _ in range(2))

    def forward(self, matrix: SparseMatrix, x: Tensor) -> Tensor:
        """Return the genes' vectors in the network, from x [n_genes, width]."""
        for layer in self.layers:
            x = layer(matrix, x)
        return x


class SAGELayer(nn.Module):
    r"""GraphSAGE with mean aggregation, ``h'_i = relu(W_n mean over N(i) of h_j + b + W_s h_i)``.

    The mean over no neighbours is 0. There are no self loops, since W_s is applied to h_i itself.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(width, width)
        self.own = nn.Linear(width, width, bias=False)

    def forward(self, matrix: SparseMatrix, x: Tensor) -> Tensor:
        """Return the genes' new vectors, [n_genes, width]."""
        return torch.relu(self.neighbours(mean_product(matrix, x)) + self.own(x))


class MetaEmbedding(nn.Module):
    """Average the k networks with weights for each gene, ``e_i = sum over k of a_ik h_ki``.

    ``a_i = softmax over k of Linear(hidden / 2, 1)(relu(Linear(hidden, hidden / 2)(h_ki)))``; all
    networks share the scorer.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        half = max(1, hidden // 2)
        self.scorer = nn.Sequential(nn.Linear(hidden, half), nn.ReLU(), nn.Linear(half, 1))

    def forward(self, networks: Tensor) -> tuple[Tensor, Tensor]:
        """Return e [n_genes, hidden] and a [n_genes, k], from the vectors [k, n_genes, hidden]."""
        attention = self.scorer(networks).softmax(0)
        genes = (attention * networks).sum(0)
        return genes, attention.squeeze(-1).t()
