"""How well vectors reconstruct networks, without ever forming an N x N matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from deltacell.errors import InputError
from deltacell.models.base import check_range
from deltacell.propagate.product import GATHERED_ENTRIES, SparseMatrix, has_sparse_kernels

ReconstructionLoss = Callable[[Tensor, Tensor, Tensor, SparseMatrix, float], Tensor]


class Reconstruction(nn.Module):
    """One head per network that predicts each gene's row of the adjacency, and its loss.

    ``lambdas`` holds the weight of a non-edge by name of the network, in the order of the networks.
    """

    def __init__(self, n_genes: int, hidden: int, lambdas: Mapping[str, float]) -> None:
        super().__init__()
        check_range("[0, inf)", **{f"lambda of '{name}'": x for name, x in lambdas.items()})
        self.lambdas = dict(lambdas)
        self.loss: ReconstructionLoss = closed_form_loss
        self.heads = nn.ModuleList(nn.Linear(hidden, n_genes) for _ in lambdas)
        for head in self.heads:
            nn.init.normal_(cast(nn.Linear, head).weight, std=0.1)

    def forward(self, networks: Tensor, matrices: Sequence[SparseMatrix]) -> Tensor:
        """Return the loss of each network [k], for vectors [k, n_genes, hidden] and adjacencies."""
        losses = [
            self.loss(z, cast(nn.Linear, head).weight, cast(nn.Linear, head).bias, matrix, value)
            for z, head, matrix, value in zip(
                networks, self.heads, matrices, self.lambdas.values(), strict=True
            )
        ]
        return torch.stack(losses)


def closed_form_loss(
    z: Tensor, weight: Tensor, bias: Tensor, matrix: SparseMatrix, lambda_: float
) -> Tensor:
    """Return the reconstruction loss of one network in O(N H^2 + E H), a scalar.

    With ``R = Z W^T + 1 b^T`` the loss is ``(sum over edges of (R_ij - 1)^2 + lambda * sum over
    non-edges of R_ij^2) / N^2``, which equals ``lambda * sum R^2 + sum over edges of ((1 - lambda)
    R_ij^2 - 2 R_ij + 1)`` over N^2, and ``sum R^2 = <Z^T Z, W^T W> + 2 (1^T Z)(W^T b) + N b^T b``.
    Where lambda is 1 only the sum of R over the edges is left, ``<A W, Z> + (1^T A) b``.

    Computed in float32, or in float64 if z is, whatever the autocast; the sums in float64.
    The gradients are found along the way, so that nothing as long as the edges is kept.

    The adjacency A [N, N] has values 1, row = target; z and weight are [N, hidden], bias [N].
    """
    if matrix.values is not None:
        raise InputError("the reconstruction loss needs an unweighted adjacency", code="weighted")
    dtype = torch.promote_types(z.dtype, torch.float32)
    return _eager_closed_form(z.to(dtype), weight.to(dtype), bias.to(dtype), matrix, lambda_)


def dense_loss(
    z: Tensor, weight: Tensor, bias: Tensor, matrix: SparseMatrix, lambda_: float
) -> Tensor:
    """Return `closed_form_loss` by N x N matrices, as a reference for tests."""
    edge = matrix.csr(device=z.device, dtype=z.dtype).to_dense()
    return loss_by_matrix(z, weight, bias, edge, lambda_)


def loss_by_matrix(z: Tensor, weight: Tensor, bias: Tensor, edge: Tensor, lambda_: float) -> Tensor:
    """Return the loss for a dense adjacency."""
    predicted = z @ weight.t() + bias
    on_edges = ((predicted - 1).square() * edge).sum()
    elsewhere = (predicted.square() * (1 - edge)).sum()
    return (on_edges + lambda_ * elsewhere) / edge.numel()


_Three = tuple[Tensor, Tensor, Tensor]
"""z, weight and bias, or their gradients."""

_Sums = tuple[Tensor, _Three | None]
"""A sum, and its gradients if asked for."""


class _ClosedForm(torch.autograd.Function):
    """The closed form; its gradients are linear in that of the scalar, so they are found ahead."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor, matrix: SparseMatrix, lambda_: float
    ) -> Tensor:
        differentiate = any(ctx.needs_input_grad)
        n = float(matrix.shape[0]) * matrix.shape[1]
        head = z, weight, bias
        with torch.autocast(z.device.type, enabled=False):
            everywhere, by_all = _sum_of_squares(head, differentiate)
            if matrix.n_entries == 0:
                on_edges, by_edges = z.new_zeros(()), _zeros(head) if differentiate else None
            elif not has_sparse_kernels(z.device.type, z.dtype):
                on_edges, by_edges = _gathered_edge_sums(head, matrix, lambda_, differentiate)
            elif lambda_ == 1:
                on_edges, by_edges = _linear_edge_sums(head, matrix, differentiate)
            else:
                on_edges, by_edges = _sampled_edge_sums(head, matrix, lambda_, differentiate)
            if by_all is not None and by_edges is not None:
                both = zip(by_all, by_edges, strict=True)
                ctx.save_for_backward(*(e.mul_(lambda_).add_(on).div_(n) for e, on in both))
            total = (lambda_ * everywhere + on_edges + matrix.n_entries) / n
            return total.to(z.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(gradient * saved for saved in ctx.saved_tensors), None, None


def _apply(z: Tensor, weight: Tensor, bias: Tensor, matrix: SparseMatrix, lambda_: float) -> Tensor:
    result = _ClosedForm.apply(z, weight, bias, matrix, lambda_)  # type: ignore[no-untyped-call]
    return cast(Tensor, result)


# torch.compile cannot trace sparse tensors.
_eager_closed_form: ReconstructionLoss = torch.compiler.disable(  # type: ignore[no-untyped-call]
    _apply
)


def _sum_of_squares(head: _Three, differentiate: bool) -> _Sums:
    """Sum R^2 over all pairs."""
    z, weight, bias = head
    n = z.shape[0]
    gram_z, gram_weight = z.t() @ z, weight.t() @ weight
    sum_z, weight_bias = z.sum(0), weight.t() @ bias
    value = _dot(gram_z, gram_weight) + 2 * _dot(sum_z, weight_bias) + n * _dot(bias, bias)
    if not differentiate:
        return value, None
    return value, (
        torch.addmm(weight_bias, z, gram_weight).mul_(2),
        torch.addmm(torch.outer(bias, sum_z), weight, gram_z).mul_(2),
        torch.addmv(n * bias, weight, sum_z).mul_(2),
    )


# The next three sum ``(1 - lambda) R^2 - 2 R`` over the edges.


def _linear_edge_sums(head: _Three, matrix: SparseMatrix, differentiate: bool) -> _Sums:
    """Sum by two sparse products, where lambda is 1 and only ``-2 R`` is left."""
    z, weight, bias = head
    device, dtype = z.device, z.dtype
    column_counts = matrix.transpose.row_counts(device=device, dtype=dtype).squeeze(1)
    sources = torch.mm(matrix.csr(device=device, dtype=dtype), weight)
    value = -2 * (_wide(sources * z).sum() + _dot(column_counts, bias))
    if not differentiate:
        return value, None
    targets = torch.mm(matrix.transpose.csr(device=device, dtype=dtype), z)
    return value, (sources.mul_(-2), targets.mul_(-2), -2 * column_counts)


def _sampled_edge_sums(
    head: _Three, matrix: SparseMatrix, lambda_: float, differentiate: bool
) -> _Sums:
    """Sum by computing R on the edges and nowhere else."""
    z, weight, bias = head
    adjacency = matrix.csr(device=z.device, dtype=z.dtype)
    # In place on what starts as the bias, so that nothing as long as the edges is copied.
    on_edges = _with_values(adjacency, bias.index_select(0, adjacency.col_indices()))
    torch.sparse.sampled_addmm(on_edges, z, weight.t(), out=on_edges)
    predicted = on_edges.values()
    sum_predicted = _wide(predicted.sum())
    if not differentiate:
        return (1 - lambda_) * _wide(predicted.square().sum()) - 2 * sum_predicted, None
    slope = predicted.mul_(2 * (1 - lambda_)).sub_(2)
    turned = slope.index_select(0, matrix.transpose_order(z.device))
    columns = _with_values(matrix.transpose.csr(device=z.device, dtype=z.dtype), turned)
    by_z = torch.mm(on_edges, weight)
    by_bias = torch.mv(columns, torch.ones_like(bias))
    # The sum of slope * R, without another pass over the edges.
    slope_predicted = _wide(by_z * z).sum() + _dot(by_bias, bias)
    return slope_predicted / 2 - sum_predicted, (by_z, torch.mm(columns, z), by_bias)


def _gathered_edge_sums(
    head: _Three, matrix: SparseMatrix, lambda_: float, differentiate: bool
) -> _Sums:
    """Sum by gathering the two vectors of each edge, some of the edges at a time."""
    z, weight, bias = head
    rows, columns, _ = matrix.entries(device=z.device, dtype=z.dtype)
    value = _wide(z.new_zeros(()))
    gradients = _zeros(head) if differentiate else None
    for begin in range(0, matrix.n_entries, GATHERED_ENTRIES):
        row, column = (t[begin : begin + GATHERED_ENTRIES] for t in (rows, columns))
        z_row, weight_column = z[row], weight[column]
        predicted = torch.linalg.vecdot(z_row, weight_column) + bias[column]
        value += _wide(((1 - lambda_) * predicted.square() - 2 * predicted).sum())
        if gradients is not None:
            slope = 2 * (1 - lambda_) * predicted - 2
            gradients[0].index_add_(0, row, slope.unsqueeze(1) * weight_column)
            gradients[1].index_add_(0, column, slope.unsqueeze(1) * z_row)
            gradients[2].index_add_(0, column, slope)
    return value, gradients


def _zeros(head: _Three) -> _Three:
    return torch.zeros_like(head[0]), torch.zeros_like(head[1]), torch.zeros_like(head[2])


def _with_values(matrix: Tensor, values: Tensor) -> Tensor:
    crow, col = matrix.crow_indices(), matrix.col_indices()
    return torch.sparse_csr_tensor(crow, col, values, size=matrix.shape, check_invariants=False)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (_wide(a) * _wide(b)).sum()


def _wide(t: Tensor) -> Tensor:
    # The only device without float64.
    return t if t.device.type == "mps" else t.double()
