"""The genes' first vectors: embedding, features and a preprocessor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from deltacell.cell import Cell, Feature
from deltacell.errors import InputError, did_you_mean
from deltacell.models.activation import activation_of

BLOCKS = 2


class GeneEncoder(nn.Module):
    """``x = preprocess(embedding + sum over features of Linear(feature))``.

    The preprocessor is two blocks of Linear(hidden, hidden), norm, activation, dropout, with one
    norm for both. A gene of which a feature is not known gets nothing from it, not even the bias.

    Parameters
    ----------
    n_genes
        Number of genes.
    widths
        The width of each feature, by its name.
    hidden
        Width of a vector.
    activation
        One of `ACTIVATIONS`.
    dropout
        Share of numbers that are dropped while training.
    """

    def __init__(
        self,
        n_genes: int,
        widths: Mapping[str, int],
        hidden: int,
        activation: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.dropout = dropout
        self.embedding = nn.Parameter(torch.empty(n_genes, hidden).normal_(std=0.02))
        self.feature_names = tuple(widths)
        self.features = nn.ModuleList(nn.Linear(width, hidden) for width in widths.values())
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, cell: Cell) -> torch.Tensor:
        """Return the first vectors of the cell's genes, [n_genes, hidden]."""
        x = self.embedding
        for name, linear in zip(self.feature_names, self.features, strict=True):
            values, known = _tensors(cell.features[name], x.device, x.dtype)
            x = x + linear(values) * known
        return self.preprocess(x)

    def preprocess(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [n_genes, hidden] after the two blocks, in the type of x."""
        dtype = x.dtype
        for block in self.blocks:
            x = self.activation(self.norm(block(x).to(dtype)))
            x = functional.dropout(x, self.dropout, self.training)
        return x

    def check(self, cell: Cell) -> None:
        """Raise where the cell's features are not those that the encoder was made for."""
        widths = feature_widths(cell, self.feature_names)
        for (name, width), linear in zip(widths.items(), self.features, strict=True):
            if width != linear.in_features:
                raise InputError(
                    f"feature '{name}' of the cell has the width {width}, and the model was made "
                    f"for {linear.in_features}"
                )


def feature_widths(cell: Cell, names: Sequence[str]) -> dict[str, int]:
    """Return the widths of a cell's features; one it does not have is an error."""
    for name in names:
        if name not in cell.features:
            raise InputError(
                f"the cell has no feature '{name}'{did_you_mean(name, cell.features)}; "
                f"it has {', '.join(cell.features) or 'none'}"
            )
    return {name: cell.features[name].width for name in names}


_Kept = dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]]
_OF_FEATURE: WeakKeyDictionary[Feature, _Kept] = WeakKeyDictionary()


def _tensors(
    feature: Feature, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    kept = _OF_FEATURE.setdefault(feature, {})
    if (device, dtype) not in kept:
        values = torch.from_numpy(np.array(feature.values)).to(device, dtype)
        known = torch.from_numpy(np.array(feature.known)).unsqueeze(1).to(device, dtype)
        kept[device, dtype] = values, known
    return kept[device, dtype]
