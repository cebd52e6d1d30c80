"""Names for the array types used in signatures."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]


def ragged_positions(starts: Ints, lengths: Ints) -> Ints:
    """Return the flat positions of many slices ``starts[i] : starts[i] + lengths[i]``, in order."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    shift = np.repeat(starts - (ends - lengths), lengths)
    positions: Ints = np.arange(total, dtype=np.int64) + shift
    return positions


def offsets_of(lengths: npt.NDArray[Any]) -> Ints:
    """Return offsets [n + 1] of consecutive pieces with the given lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
