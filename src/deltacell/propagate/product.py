"""Sparse matrices, and their products with dense rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch

from deltacell.arrays import AnyArray, Ints, offsets_of
from deltacell.cell import Relation
from deltacell.errors import InputError

GATHERED_ENTRIES = 16_384
"""Entries taken at a time where rows are gathered."""


class SparseMatrix:
    """A constant sparse matrix with its transpose, kept as tensors per device and dtype.

    Parameters
    ----------
    indptr, indices
        Compressed sparse rows; within a row the columns ascend and none is repeated.
    values
        One number per entry; ones where not given.
    n_columns
        As many as rows where not given.
    """

    def __init__(
        self, indptr: Any, indices: Any, values: Any = None, *, n_columns: int | None = None
    ) -> None:
        self.indptr: Ints = np.asarray(indptr, dtype=np.int64)
        self.indices: AnyArray = np.asarray(indices)
        self.values: AnyArray | None = None if values is None else np.asarray(values)
        n_rows = len(self.indptr) - 1
        self.shape = (n_rows, n_rows if n_columns is None else n_columns)
        self._transpose: SparseMatrix | None = None
        self._tensors: dict[tuple[str, torch.device, torch.dtype], torch.Tensor] = {}
        n, width = len(self.indices), self.shape[1]
        if (
            self.indptr[0] != 0
            or self.indptr[-1] != n
            or (self.values is not None and len(self.values) != n)
            or (n and not 0 <= self.indices.min() <= self.indices.max() < width)
        ):
            raise InputError(
                f"row pointers, columns and values of a matrix with {n} entries and {width} "
                "columns do not fit together",
                code="bad-matrix",
            )

    @classmethod
    def of(cls, relation: Relation, *, weighted: bool = False) -> SparseMatrix:
        """Return the matrix of a relation, row = target; the same object for the same relation.

        The values are ones, or the weights where `weighted` is true.
        """

        def made(r: Relation) -> SparseMatrix:
            return cls(
                r.indptr, r.indices, r.weights if weighted else None, n_columns=relation.n_genes
            )

        kept = _OF_RELATION.setdefault(relation, {})
        if weighted not in kept:
            matrix = made(relation)
            matrix._transpose = made(relation.transpose) if relation.directed else matrix
            matrix._transpose._transpose = matrix
            kept[weighted] = matrix
        return kept[weighted]

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseMatrix:
        """Return the handle of a SciPy sparse matrix or array of any format."""
        rows = matrix.tocsr(copy=True)
        rows.sum_duplicates()
        return cls(rows.indptr, rows.indices, rows.data, n_columns=rows.shape[1])

    @property
    def n_entries(self) -> int:
        """Number of stored entries."""
        return len(self.indices)

    @property
    def transpose(self) -> SparseMatrix:
        """The transpose, itself where the matrix is that of an undirected relation."""
        if self._transpose is None:
            n_rows, n_columns = self.shape
            row = np.repeat(np.arange(n_rows), np.diff(self.indptr))
            order = np.argsort(self.indices, kind="stable")
            self._transpose = SparseMatrix(
                offsets_of(np.bincount(self.indices, minlength=n_columns)),
                row[order].astype(np.int32),
                None if self.values is None else self.values[order],
                n_columns=n_rows,
            )
            self._transpose._transpose = self
        return self._transpose

    def transpose_order(self, device: torch.device | str) -> torch.Tensor:
        """Return the order [n_entries] that turns values of entries into those of the transpose."""
        return self._kept(
            "transpose_order",
            device,
            self._index_type,
            lambda: np.argsort(self.indices, kind="stable"),
        )

    def csr(self, *, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix as a CSR tensor [n_rows, n_columns]; kept for the next call."""
        key = ("csr", torch.device(device), dtype)
        if key not in self._tensors:
            indptr, indices, values = (
                self._kept(name, device, kind, make)
                for name, kind, make in (
                    ("indptr", self._index_type, lambda: self.indptr),
                    ("indices", self._index_type, lambda: self.indices),
                    ("values", dtype, self._values),
                )
            )
            _hear_the_warning()
            self._tensors[key] = torch.sparse_csr_tensor(
                indptr, indices, values, size=self.shape, check_invariants=False
            )
        return self._tensors[key]

    def entries(
        self, *, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows, columns and values of all entries, each [n_entries]."""
        rows, columns, values = (
            self._kept(name, device, kind, make)
            for name, kind, make in (
                ("rows", torch.int64, self._rows),
                ("columns", torch.int64, lambda: self.indices),
                ("values", dtype, self._values),
            )
        )
        return rows, columns, values

    def row_counts(self, *, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
        """Return the number of entries of each row, [n_rows, 1]; kept for the next call."""
        return self._kept("row_counts", device, dtype, lambda: np.diff(self.indptr)[:, None])

    def __repr__(self) -> str:
        return f"SparseMatrix({self.shape[0]:,} x {self.shape[1]:,}, {self.n_entries:,} entries)"

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseMatrix:
        # Constant, and large: a copy of a model shares it.
        return self

    @property
    def _index_type(self) -> torch.dtype:
        # Kernels take 32-bit indices; 64-bit ones would be converted in every product.
        return torch.int32 if max(self.n_entries, *self.shape) < 2**31 else torch.int64

    def _rows(self) -> AnyArray:
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    def _values(self) -> AnyArray:
        if self.values is None:
            return np.ones(self.n_entries, dtype=np.float32)
        return self.values

    def _kept(
        self,
        name: str,
        device: torch.device | str,
        dtype: torch.dtype,
        make: Callable[[], AnyArray],
    ) -> torch.Tensor:
        key = (name, torch.device(device), dtype)
        if key not in self._tensors:
            # Copied, because arrays of a cell on disk are not writable.
            self._tensors[key] = torch.from_numpy(np.array(make())).to(device=device, dtype=dtype)
        return self._tensors[key]


_OF_RELATION: WeakKeyDictionary[Relation, dict[bool, SparseMatrix]] = WeakKeyDictionary()


def product(matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
    """Return ``matrix @ x`` [n_rows, ...], differentiable any number of times.

    Computed in float32, or in float64 where x is, whatever the autocast; the backward is the
    product with the kept transpose.
    """
    if x.shape[0] != matrix.shape[1]:
        raise InputError(
            f"the matrix has {matrix.shape[1]} columns, and x has {x.shape[0]} rows",
            code="bad-shape",
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    flat = x.to(dtype).reshape(x.shape[0], math.prod(x.shape[1:]))
    return _eager_product(flat, matrix).reshape(matrix.shape[0], *x.shape[1:])


def mean_product(matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
    """Return the `product` divided by the number of entries of each row, 0 where there is none."""
    total = product(matrix, x)
    counts = matrix.row_counts(device=x.device, dtype=total.dtype).clamp(min=1)
    return total / counts.reshape(-1, *[1] * (x.dim() - 1))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrix: SparseMatrix) -> torch.Tensor:
        ctx.matrix = matrix
        # Detached, because for others the kernel finds out more than is needed here.
        return _multiply(matrix, x.detach().contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _apply(gradient, ctx.matrix.transpose), None


def _apply(x: torch.Tensor, matrix: SparseMatrix) -> torch.Tensor:
    return cast(torch.Tensor, _Product.apply(x, matrix))  # type: ignore[no-untyped-call]


# torch.compile cannot trace sparse tensors; this makes it break the graph here and nowhere else.
_eager_product: Callable[[torch.Tensor, SparseMatrix], torch.Tensor] = torch.compiler.disable(  # type: ignore[no-untyped-call]
    _apply
)


def _multiply(matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
    """Return ``matrix @ x`` for x [n_columns, width] by the fastest kernel there is."""
    if matrix.n_entries == 0 or x.shape[1] == 0:
        return x.new_zeros(matrix.shape[0], x.shape[1])
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        if not has_sparse_kernels(x.device.type, x.dtype):
            return _gathered_product(matrix, x)
        csr = matrix.csr(device=x.device, dtype=x.dtype)
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return torch.mm(csr, x)
        # The kernel made for embeddings takes two thirds of the time, because it prefetches.
        weights = None if matrix.values is None else csr.values()
        offsets, indices = csr.crow_indices(), csr.col_indices()
        bags = torch.embedding_bag(
            x, indices, offsets, False, 0, False, weights, include_last_offset=True
        )
        return bags[0]


def _gathered_product(matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
    rows, columns, values = matrix.entries(device=x.device, dtype=x.dtype)
    result = x.new_zeros(matrix.shape[0], x.shape[1])
    # Few rows at a time stay in cache, and the memory does not grow with the entries.
    for begin in range(0, matrix.n_entries, GATHERED_ENTRIES):
        part = slice(begin, begin + GATHERED_ENTRIES)
        result.index_add_(0, rows[part], values[part].unsqueeze(1) * x[columns[part]])
    return result


@cache
def has_sparse_kernels(device_type: str, dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch has the sparse products used here.

    They are the product of a CSR tensor and a dense one, and `torch.sparse.sampled_addmm`. Without
    them everything still works, by gathering rows, several times slower.
    """
    try:
        _hear_the_warning()
        one = torch.ones(1, 1, dtype=dtype, device=device_type)
        index = torch.tensor([0, 1], dtype=torch.int32, device=device_type)
        matrix = torch.sparse_csr_tensor(index, index[:1], one[0], (1, 1), check_invariants=False)
        torch.sparse.sampled_addmm(matrix, matrix @ one, one)
    except (RuntimeError, NotImplementedError):
        return False
    return True


@cache
def _hear_the_warning() -> None:
    # Said once per process by PyTorch, of all CSR tensors; nothing a user could act on. Only the
    # first is made with other filters, because those are shared by all threads.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        none = torch.zeros(0, dtype=torch.int32)
        torch.sparse_csr_tensor(
            torch.zeros(1, dtype=torch.int32), none, none.float(), (0, 0), check_invariants=False
        )
