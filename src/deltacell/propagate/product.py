"""Sparse matrices, and their products with dense rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import sparray, spmatrix
from torch import Tensor
from torch._compile import _disable_dynamo

from deltacell.base.arrays import AnyArray, Ints, offsets_of, ragged_positions
from deltacell.base.caching import kept_with
from deltacell.cell import Relation


@dataclass(frozen=True, eq=False)
class ColumnEntries:
    """The entries of a matrix in some of its columns, column by column; all int64 [e]."""

    column: Ints  # its number among the columns that were asked for
    row: Ints
    value: Ints  # the index of the value in those of the transpose


class SparseMatrix:
    """A constant sparse matrix with its transpose, cached as tensors per device and dtype.

    It is given as compressed sparse rows with ascending, distinct columns. Without values every
    entry is 1; by default the matrix is square.
    """

    def __init__(
        self,
        indptr: ArrayLike,
        indices: ArrayLike,
        values: ArrayLike | None = None,
        *,
        n_columns: int | None = None,
    ) -> None:
        self.indptr: Ints = np.asarray(indptr, dtype=np.int64)
        self.indices: AnyArray = np.asarray(indices)
        self.values: AnyArray | None = None if values is None else np.asarray(values)
        n_rows = len(self.indptr) - 1
        self.shape = (n_rows, n_rows if n_columns is None else n_columns)
        self._transpose: SparseMatrix | None = None
        self._tensors: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    @staticmethod
    @kept_with
    def of(relation: Relation) -> SparseMatrix:
        """Return the 0/1 matrix of a relation, row = target; always the same object."""
        matrix = SparseMatrix(relation.indptr, relation.indices)
        matrix._transpose = None if relation.directed else matrix
        return matrix

    @classmethod
    def from_scipy(cls, matrix: sparray | spmatrix) -> SparseMatrix:
        """Return a matrix of scipy, with the sum of repeated entries."""
        rows = matrix.tocsr(copy=True)
        rows.sum_duplicates()
        return cls(rows.indptr, rows.indices, rows.data, n_columns=rows.shape[1])

    def __deepcopy__(self, memo: dict[int, object]) -> SparseMatrix:
        """Return the matrix itself, which is constant."""
        return self

    @property
    def n_entries(self) -> int:
        """The number of stored entries."""
        return len(self.indices)

    @property
    def transpose(self) -> SparseMatrix:
        """The transpose; the matrix itself for an undirected relation."""
        if self._transpose is None:
            order = _ARRAYS["transpose_order"](self)
            self._transpose = SparseMatrix(
                offsets_of(np.bincount(self.indices, minlength=self.shape[1])),
                _ARRAYS["rows"](self)[order].astype(np.int32),
                None if self.values is None else self.values[order],
                n_columns=self.shape[0],
            )
            self._transpose._transpose = self
        return self._transpose

    def column_sizes(self, columns: Ints) -> Ints:
        """Return the number of entries of each of these columns."""
        return cast(Ints, np.diff(self.transpose.indptr)[columns])

    def entries_in_columns(self, columns: Ints) -> ColumnEntries:
        """Return the entries of some columns, which may repeat."""
        by_column = self.transpose
        starts = by_column.indptr[columns]
        lengths = by_column.indptr[columns + 1] - starts
        positions = ragged_positions(starts, lengths)
        numbers = np.repeat(np.arange(len(columns)), lengths)
        rows = by_column.indices[positions].astype(np.int64)
        return ColumnEntries(numbers, rows, positions)

    def csr(self, *, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Return the matrix as a CSR tensor [n_rows, n_columns], which is cached."""
        key = ("csr", torch.device(device), dtype)
        if key not in self._tensors:
            self._tensors[key] = torch.sparse_csr_tensor(
                self.tensor("indptr", device, self._index_dtype),
                self.tensor("indices", device, self._index_dtype),
                self.tensor("values", device, dtype),
                size=self.shape,
                check_invariants=False,
            )
        return self._tensors[key]

    def tensor(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Return one of `_ARRAYS` as a tensor, which is cached."""
        key = (name, torch.device(device), dtype)
        if key not in self._tensors:
            self._tensors[key] = self._new_tensor(name, torch.device(device), dtype)
        return self._tensors[key]

    def _new_tensor(self, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
        if name == "values" and self.values is None:
            return torch.ones(self.n_entries, device=device, dtype=dtype)
        prepared = self._tensors.get((name, device, torch.float64))
        if prepared is not None:
            return prepared.to(dtype)
        # Copied, because arrays of a cell on disk are not writable.
        array = np.array(_ARRAYS[name](self))
        return torch.from_numpy(array).to(device=device, dtype=dtype)

    def prepare(self) -> None:
        """Make the tensors of products on the host, for `with_tensors` to move."""
        for matrix in (self, self.transpose):
            matrix.tensor("indptr", "cpu", matrix._index_dtype)
            matrix.tensor("indices", "cpu", matrix._index_dtype)
            if matrix.values is not None:
                matrix.tensor("values", "cpu", torch.float64)

    def with_tensors(self, function: Callable[[Tensor], Tensor]) -> SparseMatrix:
        """Return this matrix and its transpose with a function applied to their cached tensors.

        The matrix itself is returned if it has none.
        """
        if not self._tensors:
            return self
        copy = self._with_tensors(function)
        if self._transpose is self:
            copy._transpose = copy
        elif self._transpose is not None:
            copy._transpose = self._transpose._with_tensors(function)
            copy._transpose._transpose = copy
        return copy

    def _with_tensors(self, function: Callable[[Tensor], Tensor]) -> SparseMatrix:
        copy = SparseMatrix(self.indptr, self.indices, self.values, n_columns=self.shape[1])
        for (name, _, dtype), tensor in self._tensors.items():
            if name != "csr":
                mapped = function(tensor)
                copy._tensors[name, mapped.device, dtype] = mapped
        return copy

    @property
    def _index_dtype(self) -> torch.dtype:
        # The kernels use 32-bit indices and would convert 64-bit ones in every product.
        return torch.int32 if max(self.n_entries, *self.shape) < 2**31 else torch.int64


_ARRAYS: Mapping[str, Callable[[SparseMatrix], AnyArray]] = {
    "indptr": lambda m: m.indptr,
    "indices": lambda m: m.indices,
    "values": lambda m: np.ones(m.n_entries, np.float32) if m.values is None else m.values,
    "rows": lambda m: np.repeat(np.arange(m.shape[0]), np.diff(m.indptr)),
    "row_counts": lambda m: np.diff(m.indptr)[:, None],  # entries per row, [n_rows, 1]
    # Indexing the values with it gives those of the transpose.
    "transpose_order": lambda m: np.argsort(m.indices, kind="stable"),
}


def product(matrix: SparseMatrix, x: Tensor) -> Tensor:
    """Return ``matrix @ x`` [n_rows, ...], which can be differentiated any number of times.

    It is computed in float32, or float64 if x is, even inside autocast; the backward is the product
    with the transpose.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    flat = x.to(dtype).reshape(x.shape[0], math.prod(x.shape[1:]))
    return _eager_product(flat, matrix).reshape(matrix.shape[0], *x.shape[1:])


def mean_product(matrix: SparseMatrix, x: Tensor) -> Tensor:
    """Return the `product` with x [n_columns, width], divided by the number of entries per row."""
    total = product(matrix, x)
    return total / matrix.tensor("row_counts", x.device, total.dtype).clamp(min=1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: SparseMatrix) -> Tensor:
        """Return ``matrix @ x``."""
        ctx.matrix = matrix
        # For tensors that require a gradient the kernel computes more than is needed here.
        return _multiply(matrix, x.detach().contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of x."""
        return _apply(gradient, ctx.matrix.transpose), None


def _apply(x: Tensor, matrix: SparseMatrix) -> Tensor:
    return cast(Tensor, _Product.apply(x, matrix))  # type: ignore[no-untyped-call]


# torch.compile cannot trace sparse tensors, so the graph is broken here. Unlike
# `torch.compiler.disable`, this does not load the compiler, which takes seconds, on import.
_eager_product: Callable[[Tensor, SparseMatrix], Tensor] = _disable_dynamo(_apply)


def _multiply(matrix: SparseMatrix, x: Tensor) -> Tensor:
    if matrix.n_entries == 0 or x.shape[1] == 0:
        return x.new_zeros(matrix.shape[0], x.shape[1])
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        csr = matrix.csr(device=x.device, dtype=x.dtype)
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return torch.mm(csr, x)
        # The embedding kernel takes two thirds of the time of torch.mm, because it prefetches.
        return torch.embedding_bag(
            x,
            csr.col_indices(),
            csr.crow_indices(),
            False,
            0,
            False,
            None if matrix.values is None else csr.values(),
            include_last_offset=True,
        )[0]


with warnings.catch_warnings():
    # PyTorch warns about the first CSR tensor of a process, and users cannot act on it.
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
    torch.zeros(1, 1).to_sparse_csr()
