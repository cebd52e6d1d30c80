"""The genes' first vectors: embedding, features and a preprocessor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from deltacell.cell import Cell
from deltacell.models.activation import activation_of
from deltacell.models.gene_vectors import FeatureEncoder

BLOCKS = 2


class GeneEncoder(nn.Module):
    """``x = preprocess(embedding + sum over features of Linear(feature's vectors))``.

    The preprocessor is two blocks of Linear(hidden, hidden), norm, activation, dropout, with one
    norm for both. What a feature adds is told at `FeatureEncoder`.

    Parameters
    ----------
    cell
        The wild type, for its number of genes and the widths of its features.
    features
        The features to use, by name.
    hidden
        Width of a vector.
    activation
        One of `ACTIVATIONS`.
    dropout
        Share of numbers that are dropped while training.
    """

    def __init__(
        self, cell: Cell, features: Sequence[str], hidden: int, activation: str, dropout: float
    ) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.dropout = dropout
        self.embedding = nn.Parameter(torch.empty(cell.n_genes, hidden).normal_(std=0.02))
        self.features = FeatureEncoder(cell, features, hidden)
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, cell: Cell) -> torch.Tensor:
        """Return the first vectors of the cell's genes, [n_genes, hidden]."""
        return self.preprocess(self.features(cell, self.embedding))

    def preprocess(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [n_genes, hidden] after the two blocks, in the type of x."""
        dtype = x.dtype
        for block in self.blocks:
            x = self.activation(self.norm(block(x).to(dtype)))
            x = functional.dropout(x, self.dropout, self.training)
        return x
