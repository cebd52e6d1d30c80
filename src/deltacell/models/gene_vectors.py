"""Vectors of genes from their features: complete, on one scale, and of bounded width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import scipy.sparse.linalg
import torch
from torch import nn

from deltacell.arrays import Floats
from deltacell.cell import Cell, Feature
from deltacell.errors import InputError

DIMENSIONS = 64
"""The most components of one feature that the models take."""

_SMALL_ENOUGH_FOR_DENSE = 512
_NO_SINGULAR_VALUE = 1e-6

_Doubles = npt.NDArray[np.float64]


def feature_vectors(
    features: Iterable[Feature], dimensions: int = DIMENSIONS, seed: int = 0
) -> Floats:
    """Return one vector per gene from features of the same genes, [genes, d].

    Each feature gives at most ``dimensions`` columns and one more, the share of its values that
    the gene lacks. A column is standardised over its present values, and a missing value is 0
    after that, which is the column's mean. A feature wider than ``dimensions`` is reduced to its
    leading components by a truncated singular value decomposition, divided by the deviation of the
    first one; the entry of largest size of each component is positive. The genes may come in any
    order: each has the same vector, bit for bit. ``d`` is `vector_width` summed over the features.

    Parameters
    ----------
    features
        One or several, over the same genes.
    dimensions
        The most components of a feature.
    seed
        Of the vector that the decomposition starts from.
    """
    if dimensions < 1:
        raise InputError(f"dimensions is {dimensions}; expected at least 1")
    columns = [_vectors(feature.values, dimensions, seed) for feature in features]
    if not columns:
        raise InputError("gene vectors need at least one feature, and none was given")
    return np.concatenate(columns, axis=1)


def vector_width(feature: Feature, dimensions: int = DIMENSIONS) -> int:
    """Return how many columns a feature has in `feature_vectors`."""
    return min(feature.width, dimensions) + 1


def chosen_features(cell: Cell, names: Sequence[str] | None) -> list[Feature]:
    """Return features of a cell by name, see `Cell.feature`; all but annotations where None."""
    return [cell.feature(name) for name in (cell.features if names is None else names)]


class FeatureEncoder(nn.Module):
    """``x = sum over features of Linear(feature's vectors)``.

    A gene of which a feature is not known gets nothing from it, not even the bias.

    Parameters
    ----------
    cell
        The wild type, for the widths of its features.
    names
        The features to use.
    hidden
        Width of a vector.
    """

    def __init__(self, cell: Cell, names: Sequence[str], hidden: int) -> None:
        super().__init__()
        if len(set(names)) != len(names):
            raise InputError(f"a feature was given twice: {', '.join(names)}")
        self.names = tuple(names)
        self.linears = nn.ModuleList(
            nn.Linear(vector_width(feature), hidden) for feature in chosen_features(cell, names)
        )

    def forward(self, cell: Cell, x: torch.Tensor) -> torch.Tensor:
        """Return x [n_genes, hidden] with the features of the cell's genes added."""
        for name, linear in zip(self.names, self.linears, strict=True):
            vectors, known = _tensors(cell.feature(name), x.device, x.dtype)
            x = x + linear(vectors) * known
        return x

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}0.weight" in state:
            raise InputError(
                "the model was trained on features as they stood in the cell, before they were "
                "standardised",
                fix="Train it again.",
            )
        super()._load_from_state_dict(state, prefix, *rest)

    def check(self, cell: Cell) -> None:
        """Raise where the cell's features are not those that the encoder was made for."""
        for feature, linear in zip(chosen_features(cell, self.names), self.linears, strict=True):
            if vector_width(feature) != linear.in_features:
                raise InputError(
                    f"feature '{feature.name}' of the cell has the width {feature.width}, which "
                    f"gives vectors of {vector_width(feature)} numbers, and the model was made "
                    f"for {linear.in_features}"
                )


def _vectors(values: Floats, dimensions: int, seed: int) -> Floats:
    n, width = values.shape
    # Sums depend on the order of the rows, so the rows are sorted by what they hold.
    rows = np.where(np.isnan(values), np.float32(np.nan), values)
    order = np.argsort(rows.view(np.dtype((np.void, 4 * width))).ravel(), kind="stable")
    ordered = rows[order]
    absent = np.isnan(ordered)
    complete = _standardised(ordered.astype(np.float64), absent)
    if width > dimensions:
        complete = _reduced(complete, dimensions, seed)
    vectors = np.concatenate([complete, absent.mean(axis=1, keepdims=True)], axis=1)
    # Equal rows may be rounded differently in a product: all take what the first one has.
    new = np.ones(n, dtype=bool)
    new[1:] = ((ordered[1:] != ordered[:-1]) & ~(absent[1:] & absent[:-1])).any(axis=1)
    first = np.maximum.accumulate(np.where(new, np.arange(n), 0))
    found = np.empty_like(vectors, dtype=np.float32)
    found[order] = vectors[first]
    return found


def _standardised(values: _Doubles, absent: npt.NDArray[np.bool_]) -> _Doubles:
    present = np.maximum((~absent).sum(axis=0), 1)
    mean = np.where(absent, 0.0, values).sum(axis=0) / present
    centred = np.where(absent, 0.0, values - mean)
    deviation = np.sqrt((centred**2).sum(axis=0) / present)
    # A column of one value leaves nothing but rounding.
    varies = deviation > 1e-7 * np.abs(mean)
    scaled: _Doubles = np.where(varies, centred / np.where(varies, deviation, 1.0), 0.0)
    return scaled


def _reduced(values: _Doubles, dimensions: int, seed: int) -> _Doubles:
    """Return the leading components [rows, dimensions], 0 where there are fewer."""
    components = np.zeros((len(values), dimensions))
    if not values.any():
        return components
    smaller = min(values.shape)
    if smaller <= _SMALL_ENOUGH_FOR_DENSE or dimensions >= smaller - 1:
        left, singular, _ = np.linalg.svd(values, full_matrices=False)
    else:
        start = np.random.default_rng(seed).uniform(0.5, 1.5, smaller)
        left, singular, _ = scipy.sparse.linalg.svds(values, k=dimensions, v0=start)
    leading = np.argsort(-singular, kind="stable")[:dimensions]
    leading = leading[singular[leading] > _NO_SINGULAR_VALUE * singular.max()]
    vectors = left[:, leading] * (singular[leading] / singular.max() * np.sqrt(len(values)))
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(len(leading))]
    components[:, : len(leading)] = vectors * np.where(largest < 0, -1.0, 1.0)
    return components


_Kept = dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]]
_OF_FEATURE: WeakKeyDictionary[Feature, _Kept] = WeakKeyDictionary()


def _tensors(
    feature: Feature, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    kept = _OF_FEATURE.setdefault(feature, {})
    if (device, dtype) not in kept:
        vectors = torch.from_numpy(feature_vectors([feature])).to(device, dtype)
        known = torch.from_numpy(feature.known).unsqueeze(1).to(device, dtype)
        kept[device, dtype] = vectors, known
    return kept[device, dtype]
