"""The loss of reconstructing networks from vectors, without an N x N matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from deltacell.base.checks import check_range
from deltacell.propagate.product import SparseMatrix, product

ReconstructionLoss = Callable[[Tensor, Tensor, Tensor, SparseMatrix, float], Tensor]


class Reconstruction(nn.Module):
    """One head per network that predicts each gene's row of the adjacency, and its loss."""

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
        heads = cast(Iterable[nn.Linear], self.heads)
        lambdas = self.lambdas.values()
        losses = [
            self.loss(z, head.weight, head.bias, matrix, lambda_)
            for z, head, matrix, lambda_ in zip(networks, heads, matrices, lambdas, strict=True)
        ]
        return torch.stack(losses)


def closed_form_loss(
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    matrix: SparseMatrix,
    lambda_: float,
) -> Tensor:
    """Return the reconstruction loss of one network in O(N H^2 + E H), a scalar.

    With ``R = Z W^T + 1 b^T`` the loss is ``(sum over edges of (R_ij - 1)^2 + lambda * sum over
    non-edges of R_ij^2) / N^2``, which equals ``lambda * sum R^2 + sum over edges of ((1 - lambda)
    R_ij^2 - 2 R_ij + 1)`` over N^2, and ``sum R^2 = <Z^T Z, W^T W> + 2 (1^T Z)(W^T b) + N b^T b``.
    For lambda = 1 only the sum of R over the edges remains, ``<A W, Z> + (1^T A) b``. The dtype is
    float32 or better, that of the sums float64. The adjacency A [N, N] has values 1; z and weight
    are [N, hidden], bias is [N].
    """
    dtype = torch.promote_types(z.dtype, torch.float32)
    z = z.to(dtype)
    weight = weight.to(dtype)
    bias = bias.to(dtype)
    with torch.autocast(z.device.type, enabled=False):
        of_products = _dot(z.t() @ z, weight.t() @ weight)
        of_bias = len(z) * _dot(bias, bias)
        of_both = 2 * _dot(z.sum(0), weight.t() @ bias)
        squares = of_products + of_bias + of_both
        if lambda_ == 1 or not matrix.n_entries:
            counts = matrix.transpose.tensor("row_counts", z.device, z.dtype).squeeze(1)
            sum_predicted = _dot(product(matrix, weight), z) + _dot(counts, bias)
            on_edges = -2 * sum_predicted
        else:
            on_edges = _eager_edge_sum(z, weight, bias, matrix, lambda_)
        total = lambda_ * squares + on_edges + matrix.n_entries
        return (total / (float(matrix.shape[0]) * matrix.shape[1])).to(dtype)


def dense_loss(
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    matrix: SparseMatrix | Tensor,
    lambda_: float,
) -> Tensor:
    """Return `closed_form_loss` from N x N matrices, as a reference; A may be dense."""
    edge = matrix
    if isinstance(edge, SparseMatrix):
        edge = edge.csr(device=z.device, dtype=z.dtype).to_dense()
    predicted = z @ weight.t() + bias
    on_edges = ((predicted - 1).square() * edge).sum()
    elsewhere = (predicted.square() * (1 - edge)).sum()
    return (on_edges + lambda_ * elsewhere) / edge.numel()


class _EdgeSum(torch.autograd.Function):
    """The sum of ``(1 - lambda) R^2 - 2 R`` over the edges, which computes R only there.

    The gradients are linear in that of the scalar, so the forward computes them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        weight: Tensor,
        bias: Tensor,
        matrix: SparseMatrix,
        lambda_: float,
    ) -> Tensor:
        """Return the sum, a scalar in float64, from z and weight [N, hidden] and bias [N]."""
        adjacency = matrix.csr(device=z.device, dtype=z.dtype)
        # In place, starting from the bias, so that nothing as long as the edges is copied.
        on_edges = _with_values(adjacency, bias.index_select(0, adjacency.col_indices()))
        torch.sparse.sampled_addmm(on_edges, z, weight.t(), out=on_edges)
        predicted = on_edges.values()
        sum_predicted = predicted.sum().double()
        if not any(ctx.needs_input_grad):
            return (1 - lambda_) * predicted.square().sum().double() - 2 * sum_predicted
        slope = predicted.mul_(2 * (1 - lambda_)).sub_(2)
        order = matrix.tensor("transpose_order", z.device, torch.int32)
        transpose = matrix.transpose.csr(device=z.device, dtype=z.dtype)
        columns = _with_values(transpose, slope.index_select(0, order))
        by_z = torch.mm(on_edges, weight)
        by_bias = torch.mv(columns, torch.ones_like(bias))
        ctx.save_for_backward(by_z, torch.mm(columns, z), by_bias)
        # The sum of slope * R, without another pass over the edges.
        return (_dot(by_z, z) + _dot(by_bias, bias)) / 2 - sum_predicted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of z, weight and bias."""
        gradients = [(gradient * saved).to(saved.dtype) for saved in ctx.saved_tensors]
        return (*gradients, None, None)


# torch.compile cannot trace sparse tensors.
@_disable_dynamo
def _eager_edge_sum(
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    matrix: SparseMatrix,
    lambda_: float,
) -> Tensor:
    total = _EdgeSum.apply(z, weight, bias, matrix, lambda_)  # type: ignore[no-untyped-call]
    return cast(Tensor, total)


def _with_values(matrix: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(
        matrix.crow_indices(),
        matrix.col_indices(),
        values,
        size=matrix.shape,
        check_invariants=False,
    )


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() * b.double()).sum()
