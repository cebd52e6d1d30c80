"""Products of sparse matrices, whole or in part, and dense rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch

from deltacell.arrays import AnyArray, Bools, Indices, Ints, offsets_of, ragged_positions
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
        One number an entry; ones where not given.
    n_columns
        Number of columns; as many as rows where not given.
    symmetric
        Whether it is known to be its own transpose.
    """

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        values: Any = None,
        *,
        n_columns: int | None = None,
        symmetric: bool = False,
    ) -> None:
        self.indptr: Ints = np.asarray(indptr, dtype=np.int64)
        self.indices: AnyArray = np.asarray(indices)
        self.values: AnyArray | None = None if values is None else np.asarray(values)
        n_rows = len(self.indptr) - 1
        self.shape = (n_rows, n_rows if n_columns is None else n_columns)
        self._transpose: SparseMatrix | None = self if symmetric else None
        self._tensors: dict[tuple[torch.device, torch.dtype, str], torch.Tensor] = {}
        self._check()

    @classmethod
    def of(cls, relation: Relation, *, weighted: bool = False) -> SparseMatrix:
        """Return the matrix of a relation, row = target; the same object for the same relation.

        Parameters
        ----------
        relation
            The gene network. Its entries are shared, not copied.
        weighted
            Whether the values are the weights; otherwise ones.
        """
        kept = _OF_RELATION.setdefault(relation, {})
        if weighted not in kept:
            matrix = _of_one_direction(relation, weighted)
            matrix._transpose = (
                _of_one_direction(relation.transpose, weighted) if relation.directed else matrix
            )
            matrix._transpose._transpose = matrix
            kept[weighted] = matrix
        return kept[weighted]

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseMatrix:
        """Return the handle of a SciPy sparse matrix or array of any format."""
        rows = matrix.tocsr(copy=True)
        rows.sum_duplicates()
        return cls(rows.indptr, rows.indices, rows.data, n_columns=rows.shape[1])

    @classmethod
    def stacked(cls, matrices: Sequence[SparseMatrix]) -> SparseMatrix:
        """Return the matrices, of equally many columns, one below the other."""
        widths = {m.shape[1] for m in matrices}
        if len(widths) != 1:
            raise InputError(f"matrices to stack have {sorted(widths)} columns; expected one width")
        values = None
        if any(m.values is not None for m in matrices):
            values = np.concatenate([_values(m) for m in matrices])
        return cls(
            offsets_of(np.concatenate([np.diff(m.indptr) for m in matrices])),
            np.concatenate([m.indices for m in matrices]),
            values,
            n_columns=widths.pop(),
        )

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
        """Return the order [n_entries] that turns values of entries into those of the transpose.

        ``transpose.csr(...).values() == csr(...).values()[order]``; kept for the next call.
        """
        key = (torch.device(device), torch.int32, "transpose_order")
        if key not in self._tensors:
            order = np.argsort(self.indices, kind="stable")
            self._tensors[key] = torch.from_numpy(order.astype(self._index_type)).to(device)
        return self._tensors[key]

    def csr(self, *, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix as a CSR tensor [n_rows, n_columns]; kept for the next call."""
        key = (torch.device(device), dtype, "csr")
        if key not in self._tensors:
            index = self._index_type
            self._tensors[key] = csr_tensor(
                torch.from_numpy(self.indptr.astype(index)).to(device),
                torch.from_numpy(self.indices.astype(index)).to(device),
                torch.from_numpy(_values(self)).to(device=device, dtype=dtype),
                self.shape,
            )
        return self._tensors[key]

    def entries(
        self, *, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows, columns and values of all entries, each [n_entries]."""
        place = torch.device(device)
        keys = (
            (place, torch.int64, "rows"),
            (place, torch.int64, "columns"),
            (place, dtype, "values"),
        )
        if keys[-1] not in self._tensors:
            row = np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))
            arrays = (row, self.indices.astype(np.int64), _values(self))
            for key, array in zip(keys, arrays, strict=True):
                self._tensors[key] = torch.from_numpy(array).to(device=place, dtype=key[1])
        rows, columns, values = (self._tensors[key] for key in keys)
        return rows, columns, values

    def row_counts(self, *, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
        """Return the number of entries of each row, [n_rows, 1]; kept for the next call."""
        key = (torch.device(device), dtype, "row_counts")
        if key not in self._tensors:
            counts = torch.from_numpy(np.diff(self.indptr)).unsqueeze(1)
            self._tensors[key] = counts.to(device=device, dtype=dtype)
        return self._tensors[key]

    def __repr__(self) -> str:
        return f"SparseMatrix({self.shape[0]:,} x {self.shape[1]:,}, {self.n_entries:,} entries)"

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseMatrix:
        # Constant, and large: a copy of a model shares it.
        return self

    @property
    def _index_type(self) -> type[np.int32] | type[np.int64]:
        # Kernels take 32-bit indices; 64-bit ones would be converted in every product.
        return np.int32 if max(self.n_entries, *self.shape) < 2**31 else np.int64

    def _check(self) -> None:
        if self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            raise InputError(
                f"row pointers go from {self.indptr[0]} to {self.indptr[-1]}; "
                f"expected 0 to {len(self.indices)}, the number of entries"
            )
        if self.values is not None and len(self.values) != len(self.indices):
            raise InputError(f"{len(self.values)} values for {len(self.indices)} entries")
        if len(self.indices) and not 0 <= self.indices.min() <= self.indices.max() < self.shape[1]:
            raise InputError(f"a column is outside the matrix, 0 to {self.shape[1] - 1}")


def product(matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
    """Return ``matrix @ x``, differentiable in x any number of times.

    ``y[i, ...] = sum over j of matrix[i, j] * x[j, ...]``. Computed in float32, or in float64
    where x is, whatever the autocast; the backward is the product with the kept transpose.

    Parameters
    ----------
    matrix
        [n_rows, n_columns].
    x
        [n_columns, ...], of any float type.

    Returns
    -------
    torch.Tensor
        [n_rows, ...], float32 or float64.
    """
    if x.shape[0] != matrix.shape[1]:
        raise InputError(f"the matrix has {matrix.shape[1]} columns, and x has {x.shape[0]} rows")
    dtype = torch.promote_types(x.dtype, torch.float32)
    flat = x.to(dtype).reshape(x.shape[0], -1)
    return _eager_product(flat, matrix).reshape(matrix.shape[0], *x.shape[1:])


def mean_product(matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
    """Return the mean of x over the entries of each row, 0 where a row has none.

    ``y[i] = sum over j of matrix[i, j] * x[j] / (number of entries of row i)``; shapes and types
    as in `product`.
    """
    total = product(matrix, x)
    counts = matrix.row_counts(device=x.device, dtype=total.dtype).clamp(min=1)
    return total / counts.reshape(-1, *[1] * (x.dim() - 1))


def multiply(matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
    """Return ``matrix @ x``, without a gradient, by the fastest kernel there is.

    Parameters
    ----------
    matrix
        [n_rows, n_columns].
    x
        [n_columns, width], float32 or float64.
    """
    if matrix.n_entries == 0 or x.shape[1] == 0:
        return x.new_zeros(matrix.shape[0], x.shape[1])
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        if not has_sparse_kernels(x.device.type, x.dtype):
            return _gathered_product(matrix, x)
        csr = matrix.csr(device=x.device, dtype=x.dtype)
        if not has_bags(x.device.type, x.dtype):
            return torch.mm(csr, x)
        weights = None if matrix.values is None else csr.values()
        return sums_of_bags(x, csr.crow_indices(), csr.col_indices(), weights)


def sums_of_bags(
    x: torch.Tensor,
    offsets: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the sum of some rows of x for each bag of row indices, [n_bags, width].

    The rows of a sparse matrix are bags. Where it exists, the kernel made for embeddings takes two
    thirds of the time of the one for sparse matrices, because it prefetches.

    Parameters
    ----------
    x
        [n, width].
    offsets
        Where each bag begins, and the end, [n_bags + 1].
    indices
        Of rows, bag after bag, of the type of `offsets`.
    weights
        What each row is multiplied by; 1 where not given.
    """
    return torch.embedding_bag(
        x, indices, offsets, False, 0, False, weights, include_last_offset=True
    )[0]


def csr_tensor(
    indptr: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    """Return a CSR tensor; whether its indices fit is not checked."""
    _hear_the_warning()
    return torch.sparse_csr_tensor(indptr, indices, values, size=shape, check_invariants=False)


@cache
def has_bags(device_type: str, dtype: torch.dtype) -> bool:
    """Whether sums of bags are the fastest sparse product: float32 on a CPU."""
    return device_type == "cpu" and dtype == torch.float32


@cache
def has_sparse_kernels(device_type: str, dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch has the sparse products used here.

    They are the product of a CSR tensor and a dense one, and `torch.sparse.sampled_addmm`. Without
    them everything still works, by gathering rows, several times slower.

    Parameters
    ----------
    device_type
        ``cpu``, ``cuda``, ….
    dtype
        Of the values.
    """
    try:
        one = torch.ones(1, 1, dtype=dtype, device=device_type)
        index = torch.tensor([0, 1], dtype=torch.int32, device=device_type)
        matrix = csr_tensor(index, index[:1], one[0], (1, 1))
        torch.sparse.sampled_addmm(matrix, matrix @ one, one)
    except (RuntimeError, NotImplementedError):
        return False
    return True


@cache
def _hear_the_warning() -> None:
    # Said once a process by PyTorch, of all CSR tensors; nothing a user could act on. Only the
    # first is made with other filters, because those are shared by all threads.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        none = torch.zeros(0, dtype=torch.int32)
        torch.sparse_csr_tensor(
            torch.zeros(1, dtype=torch.int32), none, none.float(), (0, 0), check_invariants=False
        )


class _Product(torch.autograd.Function):
    """``matrix @ x`` for x [n_columns, width], float32 or float64."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrix: SparseMatrix) -> torch.Tensor:
        ctx.matrix = matrix
        return multiply(matrix, x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _apply(gradient, ctx.matrix.transpose), None


def _apply(x: torch.Tensor, matrix: SparseMatrix) -> torch.Tensor:
    return cast(torch.Tensor, _Product.apply(x, matrix))  # type: ignore[no-untyped-call]


# torch.compile cannot trace sparse tensors; this makes it break the graph here and nowhere else.
_eager_product: Callable[[torch.Tensor, SparseMatrix], torch.Tensor] = torch.compiler.disable(  # type: ignore[no-untyped-call]
    _apply
)


def _gathered_product(matrix: SparseMatrix, x: torch.Tensor) -> torch.Tensor:
    rows, columns, values = matrix.entries(device=x.device, dtype=x.dtype)
    result = x.new_zeros(matrix.shape[0], x.shape[1])
    # Few rows at a time stay in cache, and the memory does not grow with the entries.
    for begin in range(0, matrix.n_entries, GATHERED_ENTRIES):
        part = slice(begin, begin + GATHERED_ENTRIES)
        result.index_add_(0, rows[part], values[part].unsqueeze(1) * x[columns[part]])
    return result


_OF_RELATION: WeakKeyDictionary[Relation, dict[bool, SparseMatrix]] = WeakKeyDictionary()


def _of_one_direction(relation: Relation, weighted: bool) -> SparseMatrix:
    return SparseMatrix(
        relation.indptr,
        relation.indices,
        relation.weights if weighted else None,
        n_columns=relation.n_genes,
    )


def _values(matrix: SparseMatrix) -> AnyArray:
    if matrix.values is None:
        return np.ones(matrix.n_entries, dtype=np.float32)
    return np.array(matrix.values)


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
