"""Names for the array types used in signatures, and ragged arrays, which NumPy lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]


def ragged_positions(starts: Ints, lengths: Ints) -> Ints:
    """Return the flat positions of many slices ``starts[i] : starts[i] + lengths[i]``, in order."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    positions: Ints = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return positions


def offsets_of(lengths: AnyArray) -> Ints:
    """Return the offsets [n + 1] of consecutive pieces with these lengths [n]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, ascending, and how often each occurs; faster than `np.unique`."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_first)
    return ordered[starts], np.diff(starts, append=len(ordered))


def column_of(table: pa.Table, name: str) -> AnyArray:
    """Return a column of numbers as an array, without a copy if it has one chunk."""
    chunked = table[name]
    whole = chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
    values: AnyArray = whole.to_numpy(zero_copy_only=False)
    return values


def numbered(labels: AnyArray) -> Ints:
    """Return labels as numbers from 0, in order of first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.ravel()]


def commonest(owner: Ints, labels: Ints) -> Ints:
    """Return the position of each owner's most frequent label; the largest of equals."""
    _, label, count = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.lexsort((labels, count[label.ravel()], owner))
    last: Ints = order[np.diff(owner[order], append=-1) != 0]
    return last
