"""Vectors of genes from their features: without gaps, standardised, and of bounded width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from deltacell.base.arrays import Bools, Doubles, Floats
from deltacell.base.caching import kept_with
from deltacell.base.checks import check_distinct
from deltacell.base.errors import InputError
from deltacell.cell import Cell, Feature
from deltacell.models.eigenvectors import leading_singular_vectors

DIMENSIONS = 64  # the largest number of components per feature
_SMALL_ENOUGH_FOR_DENSE = 512
_NO_SINGULAR_VALUE = 1e-6


def feature_vectors(feature: Feature, dimensions: int = DIMENSIONS) -> Floats:
    """Return one vector per gene, [genes, `vector_width`].

    There are at most ``dimensions`` columns, and one more with the share of missing values. Columns
    are standardised over their present values, then missing values are set to 0. A feature wider
    than ``dimensions`` is reduced to its leading singular components, in units of the standard
    deviation of the first one. The order of the genes does not change a bit of any vector.
    """
    values = feature.values
    n, width = values.shape
    # Sums depend on the order of the rows, so the rows are sorted by their content.
    rows = np.where(np.isnan(values), np.float32(np.nan), values)
    order = np.argsort(rows.view(np.dtype((np.void, 4 * width))).ravel(), kind="stable")
    ordered = rows[order]
    absent = np.isnan(ordered)
    complete = standardised(ordered.astype(np.float64), absent)
    if width > dimensions:
        complete = _reduced(complete, dimensions)
    vectors = np.concatenate([complete, absent.mean(axis=1, keepdims=True)], axis=1)
    # A product may round equal rows differently, so all get the vector of the first one.
    both_absent = absent[1:] & absent[:-1]
    differs = (ordered[1:] != ordered[:-1]) & ~both_absent
    is_new = np.ones(n, dtype=bool)
    is_new[1:] = differs.any(axis=1)
    first = np.maximum.accumulate(np.where(is_new, np.arange(n), 0))
    in_given_order = np.empty_like(vectors, dtype=np.float32)
    in_given_order[order] = vectors[first]
    return in_given_order


def vector_width(feature: Feature, dimensions: int = DIMENSIONS) -> int:
    """Return the number of columns of `feature_vectors`."""
    return min(feature.width, dimensions) + 1


def chosen_features(cell: Cell, names: Sequence[str] | None) -> list[Feature]:
    """Return features of a cell by name, see `Cell.feature`; None is all but annotations."""
    return [cell.feature(name) for name in (cell.features if names is None else names)]


class FeatureEncoder(nn.Module):
    """Adds ``sum over features of Linear(feature's vectors)`` to the genes' vectors.

    A feature adds nothing, not even the bias, to genes for which it is unknown. ``names`` are those
    of features of the cell, or None for all of them.
    """

    def __init__(self, cell: Cell, names: Sequence[str] | None, hidden: int) -> None:
        super().__init__()
        check_distinct("feature", names or ())
        chosen = chosen_features(cell, names)
        self.names = tuple(cell.features) if names is None else tuple(names)
        self.linears = nn.ModuleList(nn.Linear(vector_width(f), hidden) for f in chosen)

    def forward(self, cell: Cell, x: Tensor) -> Tensor:
        """Return the vectors x [genes, hidden] with the features added."""
        for name, linear in zip(self.names, self.linears, strict=True):
            vectors, known = _tensors(cell.feature(name), x.device, x.dtype)
            x = x + linear(vectors) * known
        return x

    def check(self, cell: Cell) -> None:
        """Raise unless a cell has the features, of the same width."""
        for feature, linear in zip(chosen_features(cell, self.names), self.linears, strict=True):
            if vector_width(feature) != linear.in_features:
                what = f"the model was made for another width of the feature '{feature.name}'"
                raise InputError(what, code="other-cell")


class GeneEncoder(nn.Module):
    """``x = preprocess(embedding + features)``, see `FeatureEncoder`.

    The preprocessor has two blocks of Linear(hidden, hidden), norm, activation, dropout, which
    share the norm.
    """

    def __init__(
        self,
        cell: Cell,
        features: Sequence[str] | None,
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.embedding = nn.Parameter(torch.empty(cell.n_genes, hidden).normal_(std=0.02))
        self.features = FeatureEncoder(cell, features, hidden)
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, cell: Cell) -> Tensor:
        """Return the vectors of all genes, [genes, hidden]."""
        x: Tensor = self.features(cell, self.embedding)
        for block in self.blocks:
            x = functional.gelu(self.norm(block(x).to(self.embedding.dtype)))
            x = functional.dropout(x, self.dropout, self.training)
        return x


def standardised(values: Doubles, absent: Bools) -> Doubles:
    """Return columns with mean 0 and deviation 1 over the present values, and 0 elsewhere."""
    present = np.maximum((~absent).sum(axis=0), 1)
    mean = np.where(absent, 0.0, values).sum(axis=0) / present
    centred = np.where(absent, 0.0, values - mean)
    deviation = np.sqrt((centred**2).sum(axis=0) / present)
    # The deviation of a constant column is rounding error.
    varies = deviation > 1e-7 * np.abs(mean)
    scaled: Doubles = np.where(varies, centred / np.where(varies, deviation, 1.0), 0.0)
    return scaled


def _reduced(values: Doubles, dimensions: int) -> Doubles:
    components = np.zeros((len(values), dimensions))
    if not values.any():
        return components
    smaller = min(values.shape)
    if smaller <= _SMALL_ENOUGH_FOR_DENSE or dimensions >= smaller - 1:
        left, singular, _ = np.linalg.svd(values, full_matrices=False)
    else:
        left, singular, _ = leading_singular_vectors(values, dimensions)
    leading = np.argsort(-singular, kind="stable")[:dimensions]
    leading = leading[singular[leading] > _NO_SINGULAR_VALUE * singular.max()]
    vectors = left[:, leading] * (singular[leading] / singular.max() * np.sqrt(len(values)))
    components[:, : len(leading)] = vectors * largest_signs(vectors)
    return components


def largest_signs(vectors: Doubles) -> Doubles:
    """Return the sign of the largest entry by magnitude of each column, 1 for 0."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)


@kept_with
def _tensors(feature: Feature, *like: Any) -> tuple[Tensor, Tensor]:
    vectors = torch.from_numpy(feature_vectors(feature))
    is_known = torch.from_numpy(feature.known[:, None])
    return vectors.to(*like), is_known.to(*like)
