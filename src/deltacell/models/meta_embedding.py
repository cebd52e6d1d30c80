"""The meta-embedding: one vector a gene from its vectors in several networks."""

from __future__ import annotations

import torch
from torch import nn


class MetaEmbedding(nn.Module):
    """Weigh the networks for each gene, ``e_i = sum over k of a_ik h_ki``.

    ``a_i = softmax over k of Linear(hidden / 2, 1)(relu(Linear(hidden, hidden / 2)(h_ki)))``; the
    scorer is shared by the networks.

    Parameters
    ----------
    hidden
        Width of a vector.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        half = max(1, hidden // 2)
        self.scorer = nn.Sequential(nn.Linear(hidden, half), nn.ReLU(), nn.Linear(half, 1))

    def forward(self, networks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors [n_genes, hidden] and the weights of the networks [n_genes, k].

        Parameters
        ----------
        networks
            The genes' vectors in each network, [k, n_genes, hidden].
        """
        attention = self.scorer(networks).softmax(0)
        genes = (attention * networks).sum(0)
        return genes, attention.squeeze(-1).t()
