"""Losses: log cosh, DANGO's, and point + distribution + contrast."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, get_args

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from deltacell.errors import InputError
from deltacell.models.base import Prediction, check_choice, check_range


@dataclass(frozen=True, eq=False)
class LossValue:
    """A loss and its parts by name, detached, before their factors.

    The sum of the totals over all ranks is the loss of the whole batch.
    """

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


class Loss(Protocol):
    """What every loss is: a function of a prediction, the targets and the weights."""

    def __call__(
        self, prediction: Prediction, targets: Tensor, weights: Tensor | None = None, *, epoch: int
    ) -> LossValue:
        """Return the loss of a batch in an epoch, counted from 0.

        The weights are the share of each genotype in the whole batch over all ranks, adding up to
        1 there, as the loader gives them; by default equal, on one rank.
        """
        ...


class LogCosh:
    """``sum over b of weight_b * log cosh(score_b - target_b)``."""

    def __call__(
        self,
        prediction: Prediction,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        epoch: int = 0,
    ) -> LossValue:
        """Return the loss; arguments as in `Loss`."""
        weights = _checked_weights(prediction, targets, weights)
        total = (weights * log_cosh(prediction.score - targets)).sum()
        return LossValue(total, {"log_cosh": total.detach()})


Schedule = Literal["pre_then_post", "linear_until_uniform", "linear_until_flipped", "additive"]


class DangoLoss:
    """``alpha * reconstruction + (1 - alpha) * interaction``.

    The interaction is the weighted mean of ``log cosh(score - target)``, the reconstruction the
    mean over networks of what `Dango` leaves under ``reconstruction``. Every rank has the same
    networks, so each takes its share of that, the sum of its weights.

    Parameters
    ----------
    schedule
        How alpha changes with the epoch: ``pre_then_post`` 1 before epoch ``turn`` and then 0;
        ``linear_until_uniform`` from 1 to 0.5 at ``turn``; ``linear_until_flipped`` from 1 to 0.
        Or ``additive``, ``interaction + factor * reconstruction`` in every epoch.
    turn
        The epoch at which alpha has reached its last value.
    factor
        The factor of the reconstruction if additive.
    """

    def __init__(
        self, schedule: Schedule = "linear_until_uniform", *, turn: int = 10, factor: float = 0.001
    ) -> None:
        check_choice("schedule", schedule, get_args(Schedule))
        check_range("[1, inf)", turn=turn)
        self.schedule, self.turn, self.factor = schedule, turn, factor

    def __call__(
        self, prediction: Prediction, targets: Tensor, weights: Tensor | None = None, *, epoch: int
    ) -> LossValue:
        """Return the loss; arguments as in `Loss`."""
        weights = _checked_weights(prediction, targets, weights)
        if "reconstruction" not in prediction.intermediate:
            raise InputError(
                "the prediction has no reconstruction loss of the networks",
                code="no-reconstruction",
                fix="Call the model with reconstruct=True, and use this loss for DANGO only.",
            )
        interaction = (weights * log_cosh(prediction.score - targets)).sum()
        reconstruction = prediction.intermediate["reconstruction"].mean() * weights.sum()
        of_reconstruction, of_interaction = self.factors(epoch)
        # Both always take part, so that every parameter has a gradient in every epoch.
        total = of_reconstruction * reconstruction + of_interaction * interaction
        parts = {"interaction": interaction, "reconstruction": reconstruction}
        return LossValue(total, {name: part.detach() for name, part in parts.items()})

    def factors(self, epoch: int) -> tuple[float, float]:
        """Return the factors of the reconstruction and of the interaction in an epoch."""
        if self.schedule == "additive":
            return self.factor, 1.0
        done = min(epoch / self.turn, 1.0)
        if self.schedule == "pre_then_post":
            alpha = 1.0 if epoch < self.turn else 0.0
        elif self.schedule == "linear_until_uniform":
            alpha = 1 - 0.5 * done
        else:
            alpha = 1 - done
        return alpha, 1 - alpha


class PointDistributionContrast(nn.Module):
    """``lambda_mse * MSE + lambda_w * Wasserstein + lambda_c * SupCR``.

    The squared error is that of the batch, weighted. The other two are of the batch and of recent
    batches, detached, from a ring buffer, so that they mean something for small batches: of all
    the rows they see, the buffer's share is `buffer_share`, as far as it has rows. They are not
    weighted.

    With several ranks the batch is gathered every ``gather_interval`` steps with its gradient,
    and only what was gathered goes into the buffer, so that all ranks have the same one; in the
    steps between, a rank sees its own rows and the buffer. Each rank takes its share, the sum of
    its weights, of the two terms, so that the sum over the ranks is the loss of the whole batch.

    In training mode a call adds the batch to the buffer. In evaluation mode there is no buffer and
    no gathering: a rank sees only its own rows. The buffer is part of ``state_dict``.

    Parameters
    ----------
    lambda_mse, lambda_w, lambda_c
        Factors of the three terms. Of the last two, one with the factor 0 is not computed.
    width
        Width of the vectors that SupCR compares; required if ``lambda_c`` is not 0.
    vectors
        Name of these vectors in the prediction, [b, width].
    buffer
        Rows of the ring buffer; 0 for none.
    warmup, stable, max_epochs
        Epochs at which the buffer's share has grown to 0.3 and to 0.9, and at which the
        temperature has its final value.
    temperature, final_temperature
        Temperature of SupCR in the first epoch and at ``max_epochs``.
    gather_interval
        Steps from one gather to the next; 0 for never.
    """

    def __init__(
        self,
        lambda_mse: float = 1.0,
        lambda_w: float = 0.1,
        lambda_c: float = 0.0,
        *,
        width: int | None = None,
        vectors: str = "z",
        buffer: int = 256,
        warmup: int = 100,
        stable: int = 500,
        max_epochs: int = 1000,
        temperature: float = 1.0,
        final_temperature: float = 0.1,
        gather_interval: int = 1,
    ) -> None:
        super().__init__()
        check_range("[0, inf)", lambda_mse=lambda_mse, lambda_w=lambda_w, lambda_c=lambda_c)
        check_range("[0, inf)", buffer=buffer, gather_interval=gather_interval)
        check_range("(0, inf)", warmup=warmup, max_epochs=max_epochs)
        check_range(f"[{warmup}, inf)", stable=stable)
        check_range("(0, inf)", temperature=temperature, final_temperature=final_temperature)
        if lambda_c and width is None:
            raise InputError(
                f"lambda_c is {lambda_c}, and the width of the vectors is missing",
                code="no-width",
                fix="Give width=..., the model's hidden width, or set lambda_c=0.",
            )
        self.lambda_mse, self.lambda_w, self.lambda_c = lambda_mse, lambda_w, lambda_c
        self.vectors = vectors
        self.warmup, self.stable, self.max_epochs = warmup, stable, max_epochs
        self.first_temperature, self.final_temperature = temperature, final_temperature
        self.gather_interval = gather_interval
        self.steps = 0
        columns = {"score": 0, "target": 0}
        if lambda_c and width is not None:
            columns["z"] = width
        self.buffer = RingBuffer(buffer, columns)

    def forward(
        self, prediction: Prediction, targets: Tensor, weights: Tensor | None = None, *, epoch: int
    ) -> LossValue:
        """Return the loss; arguments as in `Loss`."""
        weights = _checked_weights(prediction, targets, weights)
        dtype = torch.promote_types(prediction.score.dtype, torch.float32)
        score, targets = prediction.score.to(dtype), targets.to(dtype)
        parts = {"mse": (weights * (score - targets).square()).sum()}
        total = self.lambda_mse * parts["mse"]
        if self.lambda_w or self.lambda_c:
            rows = {"score": score, "target": targets}
            if self.lambda_c:
                if self.vectors not in prediction.intermediate:
                    raise InputError(
                        f"the prediction has no vectors '{self.vectors}'; it has "
                        f"{', '.join(prediction.intermediate) or 'none'}",
                        code="no-vectors",
                    )
                rows["z"] = prediction.intermediate[self.vectors].to(dtype)
            if self.training:
                rows = self._with_recent(rows, epoch)
            share = weights.sum()
            if self.lambda_w:
                parts["wasserstein"] = wasserstein(rows["score"], rows["target"]) * share
                total = total + self.lambda_w * parts["wasserstein"]
            if self.lambda_c:
                parts["supcr"] = supcr(rows["z"], rows["target"], self.temperature(epoch)) * share
                total = total + self.lambda_c * parts["supcr"]
        return LossValue(total, {name: part.detach() for name, part in parts.items()})

    def buffer_share(self, epoch: int) -> float:
        """Return the share of the buffer among the rows in an epoch.

        ``0.1 + 0.2 epoch / warmup`` before ``warmup``, ``0.3 + 0.6 sigmoid(10 (p - 0.5))`` until
        ``stable``, with p the progress from the one to the other, then 0.9.
        """
        if epoch < self.warmup:
            return 0.1 + 0.2 * epoch / self.warmup
        if epoch < self.stable:
            progress = (epoch - self.warmup) / (self.stable - self.warmup)
            return 0.3 + 0.6 / (1 + math.exp(-10 * (progress - 0.5)))
        return 0.9

    def temperature(self, epoch: int) -> float:
        """Return the temperature in an epoch, ``first * (final / first)^(epoch / max_epochs)``."""
        ratio = self.final_temperature / self.first_temperature
        return float(
            self.first_temperature * ratio ** (min(epoch, self.max_epochs) / self.max_epochs)
        )

    def get_extra_state(self) -> dict[str, int]:
        """Return the number of steps taken."""
        return {"steps": self.steps}

    def set_extra_state(self, state: Any) -> None:
        """Restore the number of steps taken."""
        self.steps = int(state["steps"])

    def _with_recent(self, rows: dict[str, Tensor], epoch: int) -> dict[str, Tensor]:
        """Gather the rows if it is time, add those of the buffer, and push them to it."""
        alone, every = not gathers(), self.gather_interval
        gather = not alone and every > 0 and self.steps % every == 0
        if gather:
            rows = dict(zip(rows, gather_rows(*rows.values()), strict=True))
        self.steps += 1
        share = self.buffer_share(epoch)
        recent = self.buffer.latest(round(len(rows["score"]) * share / (1 - share)))
        if alone or gather:
            self.buffer.push(**rows)
        return {name: torch.cat([row, recent[name].to(row)]) for name, row in rows.items()}


class RingBuffer(nn.Module):
    """The last ``capacity`` rows of several columns, detached; part of the state of its owner.

    ``widths`` are those of the columns, 0 for a column of plain numbers.
    """

    def __init__(self, capacity: int, widths: dict[str, int]) -> None:
        super().__init__()
        self.capacity = capacity
        self.written = 0
        self.names = tuple(widths)
        for name, width in widths.items():
            self.register_buffer(name, torch.zeros((capacity, width) if width else (capacity,)))

    def push(self, **columns: Tensor) -> None:
        """Append rows; the oldest make room."""
        n = len(next(iter(columns.values())))
        kept = min(n, self.capacity)
        at = self._places(self.written + n - kept, self.written + n)
        with torch.no_grad():
            for name in self.names:
                column = self.get_buffer(name)
                column.index_copy_(0, at, columns[name][n - kept :].to(column))
        self.written += n

    def latest(self, n: int) -> dict[str, Tensor]:
        """Return the latest n rows, or all if there are fewer, the oldest of them first."""
        at = self._places(max(self.written - min(n, self.capacity), 0), self.written)
        return {name: self.get_buffer(name)[at] for name in self.names}

    def _places(self, first: int, end: int) -> Tensor:
        # A list and not a range of tensors, so that nothing is divided by a capacity of 0.
        at = [place % self.capacity for place in range(first, end)]
        return torch.tensor(at, dtype=torch.int64, device=self.get_buffer(self.names[0]).device)

    def get_extra_state(self) -> dict[str, int]:
        """Return the number of rows written."""
        return {"written": self.written}

    def set_extra_state(self, state: Any) -> None:
        """Restore the number of rows written."""
        self.written = int(state["written"])


def log_cosh(x: Tensor) -> Tensor:
    """Return ``log cosh(x)`` element by element, exact for tiny x and without overflow for any.

    ``log1p(2 sinh(x / 2)^2)`` up to 1, and ``|x| + log(1 + exp(-2 |x|)) - log 2`` beyond.
    Computed in float32, or in float64 if x is.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    near = torch.log1p(2 * torch.sinh(x.clamp(-1, 1) / 2).square())
    far = x.abs() + functional.softplus(-2 * x.abs()) - math.log(2)
    return torch.where(x.abs() <= 1, near, far)


def wasserstein(x: Tensor, y: Tensor) -> Tensor:
    """Return the least cost of moving sample x [n] onto y [n] at ``|x - y|^2 / 2`` per unit.

    In one dimension the best plan keeps the order: ``mean of (sorted x - sorted y)^2 / 2``. For
    empty samples it is 0. Computed in float32, or in float64 if x is.
    """
    if x.shape != y.shape or x.dim() != 1:
        raise InputError(
            f"samples of shapes {tuple(x.shape)} and {tuple(y.shape)}; expected (n,) for both",
            code="wrong-shape",
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    difference = x.to(dtype).sort().values - y.to(dtype).sort().values
    return difference.square().sum() / (2 * max(1, len(x)))


def supcr(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return how badly the similarity of vectors z [n, width] follows the nearness of targets y.

    For an anchor i and a partner j != i, ``-log(exp(s_ij / t) / sum of exp(s_ik / t))`` over the
    k != i with ``|y_i - y_k| >= |y_i - y_j|``, with s the cosine similarity; averaged over all
    i != j. For fewer than two vectors it is 0. By sorting each anchor's distances and a running
    log-sum-exp, in O(n^2 log n). Computed in float32, or in float64 if z is.
    """
    n = len(z)
    if y.shape != (n,) or z.dim() != 2:
        raise InputError(
            f"vectors of shape {tuple(z.shape)} and targets of shape {tuple(y.shape)}; "
            "expected (n, width) and (n,)",
            code="wrong-shape",
        )
    dtype = torch.promote_types(z.dtype, torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        unit = functional.normalize(z.to(dtype), dim=1)
        if n < 2:
            return unit.sum() * 0
        logits = unit @ unit.t() / temperature
        nearness = -(y.unsqueeze(1) - y).abs()
        # The anchor itself comes last and is cut off.
        nearness.fill_diagonal_(torch.inf)
        nearness, order = nearness.sort(dim=1)
        nearness, order = nearness[:, :-1].contiguous(), order[:, :-1]
        logits = logits.gather(1, order)
        farther = logits.logcumsumexp(1)
        # Partners at the same distance count for each other: take the sum up to the last of them.
        last = torch.searchsorted(nearness, nearness, right=True) - 1
        return (farther.gather(1, last) - logits).mean()


def gathers() -> bool:
    """Whether there are several ranks to gather from."""
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def gather_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of all ranks, rank after rank, for tensors [n, ...] with the same n.

    Differentiable: the gradient of a row is the sum of its gradients on all ranks, so the sum of
    the ranks' losses has the gradient that it would have in one process. All ranks must call it,
    and run its backward, with the same tensors except for the number of rows, which may be 0. The
    numbers of rows are exchanged first, which waits for the device.
    """
    if not gathers():
        return tensors
    # One exchange for all of them: several would have to come in the same order on every rank.
    widths = [math.prod(t.shape[1:]) for t in tensors]
    flat = torch.cat([t.reshape(len(t), w) for t, w in zip(tensors, widths, strict=True)], dim=1)
    mine = torch.tensor([len(flat)], device=flat.device)
    sizes = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, mine)
    rows = cast(
        Tensor,
        _GatherRows.apply(flat, torch.cat(sizes).tolist()),  # type: ignore[no-untyped-call]
    )
    return tuple(
        part.reshape(len(rows), *t.shape[1:]).to(t.dtype)
        for part, t in zip(torch.split_with_sizes(rows, widths, dim=1), tensors, strict=True)
    )


class _GatherRows(torch.autograd.Function):
    """Rows of all ranks; backward, the sum over the ranks of the gradients of one's own rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int]) -> Tensor:
        rank = distributed.get_rank()
        ctx.begin, ctx.end = sum(sizes[:rank]), sum(sizes[: rank + 1])
        padded = x.new_zeros(max(sizes), *x.shape[1:])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total[ctx.begin : ctx.end], None


def _checked_weights(prediction: Prediction, targets: Tensor, weights: Tensor | None) -> Tensor:
    b = prediction.score.shape[0]
    if weights is None:
        weights = torch.full_like(targets, 1 / max(1, b))
    if targets.shape != (b,) or weights.shape != (b,):
        raise InputError(
            f"{b} scores, targets of shape {tuple(targets.shape)} and weights of shape "
            f"{tuple(weights.shape)}; expected ({b},) for both",
            code="wrong-shape",
        )
    return weights
