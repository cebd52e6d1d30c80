"""Products with some rows of a sparse matrix, or with some of its columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deltacell.arrays import AnyArray, Bools, Indices, Ints, offsets_of, ragged_positions
from deltacell.propagate.product import (
    SparseMatrix,
    csr_tensor,
    has_bags,
    has_sparse_kernels,
    sums_of_bags,
)


@dataclass(frozen=True, eq=False)
class Bags:
    """Rows that were picked out of a sparse matrix, each a bag of columns.

    Parameters
    ----------
    offsets
        Where each row begins, and the end, int32 [n_bags + 1].
    indices
        Columns, row after row, int32.
    weights
        One number an entry; ones where not given.
    """

    offsets: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def sums(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows times x, [n_bags, width] for x [n_columns, width], without a gradient."""
        if len(self) == 0 or len(self.indices) == 0:
            return x.new_zeros(len(self), x.shape[1])
        weights = None if self.weights is None else self.weights.to(x.dtype)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            if has_bags(x.device.type, x.dtype):
                return sums_of_bags(x, self.offsets, self.indices, weights)
            if weights is None:
                weights = x.new_ones(len(self.indices))
            if has_sparse_kernels(x.device.type, x.dtype):
                shape = (len(self), x.shape[0])
                return torch.mm(csr_tensor(self.offsets, self.indices, weights, shape), x)
            rows = torch.repeat_interleave(
                torch.arange(len(self), device=x.device),
                self.offsets.diff(),
                output_size=len(self.indices),
            )
            gathered = weights.unsqueeze(1) * x.index_select(0, self.indices)
            return x.new_zeros(len(self), x.shape[1]).index_add_(0, rows, gathered)


def picked_rows(matrix: SparseMatrix, rows: Ints) -> Bags:
    """Return some rows of a matrix, in the given order; the columns stay as they are.

    Whole slices are copied, so that picking costs less than one product with what is picked.
    """
    starts, ends = matrix.indptr[rows], matrix.indptr[rows + 1]
    slices = list(zip(starts.tolist(), ends.tolist(), strict=True))
    return Bags(
        _int32(offsets_of(ends - starts)),
        _int32(_joined(matrix.indices, slices)),
        None if matrix.values is None else torch.from_numpy(_joined(matrix.values, slices)),
    )


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of a matrix between some sources and the nodes that they send to.

    Parameters
    ----------
    source
        Which of the given sources, ascending.
    target
        The node that it sends to.
    values
        One number an entry; ones where not given.
    """

    source: Ints
    target: Ints
    values: AnyArray | None

    @classmethod
    def of(cls, matrix: SparseMatrix, sources: Ints) -> Entries:
        """Return the entries in some columns of a matrix."""
        turned = matrix.transpose
        starts = turned.indptr[sources]
        lengths = turned.indptr[sources + 1] - starts
        at = ragged_positions(starts, lengths)
        return cls(
            np.repeat(np.arange(len(sources)), lengths),
            turned.indices[at].astype(np.int64),
            None if turned.values is None else turned.values[at],
        )

    def kept(self, which: Bools) -> Entries:
        """Return some of the entries."""
        values = None if self.values is None else self.values[which]
        return Entries(self.source[which], self.target[which], values)

    def by_source(self, n_sources: int, target: Ints) -> Bags:
        """Return a bag a source of the targets, each under the number that `target` gives it."""
        offsets = offsets_of(np.bincount(self.source, minlength=n_sources))
        weights = None if self.values is None else torch.from_numpy(self.values)
        return Bags(_int32(offsets), _int32(target), weights)

    def by_target(self, n_targets: int, target: Ints) -> Bags:
        """Return a bag a target of the sources; targets are numbered as `target` gives them."""
        order = np.argsort(target, kind="stable")
        offsets = offsets_of(np.bincount(target, minlength=n_targets))
        weights = None if self.values is None else torch.from_numpy(self.values[order])
        return Bags(_int32(offsets), _int32(self.source[order]), weights)


def _joined(array: AnyArray, slices: list[tuple[int, int]]) -> AnyArray:
    parts = [array[begin:end] for begin, end in slices]
    return np.concatenate(parts) if parts else array[:0].copy()


def _int32(array: Ints | Indices) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int32, copy=False))
