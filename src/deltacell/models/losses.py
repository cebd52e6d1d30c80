"""The losses: log cosh, DANGO's, and point + distribution + contrast."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from deltacell.base.checks import check_choice
from deltacell.base.errors import InputError
from deltacell.models.base import named_range
from deltacell.models.interface import Prediction


@dataclass(frozen=True, eq=False)
class LossValue:
    """A loss, whose sum over ranks is that of the whole batch, and its unweighted parts."""

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


class Loss(Protocol):
    """The loss of a batch; weights are the shares of its genotypes in the batch of all ranks."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The intermediate results of the predictor that it reads."""

    def __call__(
        self,
        prediction: Prediction,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue: ...


class LogCosh:
    """``sum over b of weight_b * log cosh(score_b - target_b)``."""

    reads: tuple[str, ...] = ()

    def __call__(
        self,
        prediction: Prediction,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue:
        """Return this rank's share of the loss."""
        weights = _checked_weights(prediction, targets, weights)
        with named_range("loss.log_cosh", "log cosh"):
            total = (weights * log_cosh(prediction.score - targets)).sum()
        return LossValue(total, {"log_cosh": total.detach()})


Schedule = Literal["pre_then_post", "linear_until_uniform", "linear_until_flipped", "additive"]


class DangoLoss:
    """``alpha * reconstruction + (1 - alpha) * interaction``.

    The interaction is the weighted mean of ``log cosh(score - target)``; the reconstruction is the
    mean over networks of the intermediate result ``reconstruction`` of `Dango`, times the sum of
    the weights, because every rank has the same networks.

    With the schedule ``pre_then_post`` alpha is 1 before epoch ``turn`` and then 0; with
    ``linear_until_uniform`` it falls from 1 to 0.5 at ``turn``, with ``linear_until_flipped`` from
    1 to 0. With ``additive`` the loss is ``interaction + factor * reconstruction``.
    """

    reads: tuple[str, ...] = ("reconstruction",)

    def __init__(
        self,
        schedule: Schedule = "linear_until_uniform",
        *,
        turn: int = 10,
        factor: float = 0.001,
    ) -> None:
        check_choice("schedule", schedule, get_args(Schedule))
        self.schedule = schedule
        self.turn = turn
        self.factor = factor

    def __call__(
        self,
        prediction: Prediction,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue:
        """Return this rank's share of the loss, and its unweighted parts."""
        weights = _checked_weights(prediction, targets, weights)
        if "reconstruction" not in prediction.intermediate:
            message = "no reconstruction in the prediction; call the model with wanted=loss.reads"
            raise InputError(message, code="no-reconstruction")
        with named_range("loss.interaction"):
            errors = log_cosh(prediction.score - targets)
            interaction = (weights * errors).sum()
        with named_range("loss.reconstruction"):
            reconstruction = prediction.intermediate["reconstruction"].mean() * weights.sum()
        of_reconstruction, of_interaction = self.factors(epoch)
        # Both terms are always added, so that every parameter has a gradient in every epoch.
        total = of_reconstruction * reconstruction + of_interaction * interaction
        parts = {"interaction": interaction, "reconstruction": reconstruction}
        return LossValue(total, {name: part.detach() for name, part in parts.items()})

    def factors(self, epoch: int) -> tuple[float, float]:
        """Return what the reconstruction and the interaction are multiplied by in an epoch."""
        if self.schedule == "additive":
            return self.factor, 1.0
        progress = min(epoch / self.turn, 1.0)
        alphas = {
            "pre_then_post": float(progress < 1),
            "linear_until_uniform": 1 - 0.5 * progress,
            "linear_until_flipped": 1 - progress,
        }
        alpha = alphas[self.schedule]
        return alpha, 1 - alpha


class PointDistributionContrast(nn.Module):
    """``lambda_mse * MSE + lambda_w * Wasserstein + lambda_c * SupCR``.

    Only the squared error is weighted. To be meaningful for small batches, the other two terms
    include detached rows of recent batches from a buffer of ``buffer`` rows; their share of all
    rows is at most `buffer_share`. SupCR compares the vectors ``z`` [b, width], at a temperature
    that falls until ``max_epochs``.

    With several ranks the batch is gathered, with its gradient, every ``gather_interval`` steps (0
    for never). Only gathered rows enter the buffer, so that all ranks have the same one. Each rank
    multiplies the two terms by the sum of its weights, so that the sum over the ranks is the loss
    of the whole batch. In evaluation mode a rank uses only its own rows.
    """

    def __init__(
        self,
        lambda_mse: float = 1.0,
        lambda_w: float = 0.1,
        lambda_c: float = 0.0,
        *,
        width: int = 0,
        buffer: int = 256,
        warmup: int = 100,
        stable: int = 500,
        max_epochs: int = 1000,
        temperature: float = 1.0,
        final_temperature: float = 0.1,
        gather_interval: int = 1,
    ) -> None:
        super().__init__()
        self.lambda_mse = lambda_mse
        self.lambda_w = lambda_w
        self.lambda_c = lambda_c
        self.warmup = warmup
        self.stable = stable
        self.max_epochs = max_epochs
        self.first_temperature = temperature
        self.final_temperature = final_temperature
        self.gather_interval = gather_interval
        self.capacity = buffer
        self.steps = 0
        self.written = 0
        self.register_buffer("score", torch.zeros(buffer))
        self.register_buffer("target", torch.zeros(buffer))
        if lambda_c:
            self.register_buffer("z", torch.zeros(buffer, width))

    @property
    def reads(self) -> tuple[str, ...]:
        """The intermediate results of the predictor that it reads."""
        return ("z",) if self.lambda_c else ()

    def forward(
        self,
        prediction: Prediction,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue:
        """Return this rank's share of the loss, and its unweighted parts."""
        weights = _checked_weights(prediction, targets, weights)
        rows = self._rows(prediction, targets)
        with named_range("loss.point"):
            errors = (rows["score"] - rows["target"]).square()
            parts = {"mse": (weights * errors).sum()}
        total = self.lambda_mse * parts["mse"]
        if self.training and (self.lambda_w or self.lambda_c):
            with named_range("loss.buffer"):
                rows = self._with_recent(rows, epoch)
        share = weights.sum()
        if self.lambda_w:
            with named_range("loss.distribution"):
                parts["wasserstein"] = wasserstein(rows["score"], rows["target"]) * share
            total = total + self.lambda_w * parts["wasserstein"]
        if self.lambda_c:
            with named_range("loss.contrast"):
                temperature = self.temperature(epoch)
                parts["supcr"] = supcr(rows["z"], rows["target"], temperature) * share
            total = total + self.lambda_c * parts["supcr"]
        return LossValue(total, {name: part.detach() for name, part in parts.items()})

    def _rows(self, prediction: Prediction, targets: Tensor) -> dict[str, Tensor]:
        """Return the columns that the terms read, of the genotypes of the batch."""
        dtype = torch.promote_types(prediction.score.dtype, torch.float32)
        rows = {"score": prediction.score.to(dtype), "target": targets.to(dtype)}
        if self.lambda_c:
            if "z" not in prediction.intermediate:
                raise InputError("the prediction has no vectors 'z' to compare", code="no-vectors")
            rows["z"] = prediction.intermediate["z"].to(dtype)
        return rows

    def buffer_share(self, epoch: int) -> float:
        """Return the share of rows that come from the buffer in an epoch."""
        if epoch < self.warmup:
            return 0.1 + 0.2 * epoch / self.warmup
        if epoch < self.stable:
            progress = (epoch - self.warmup) / (self.stable - self.warmup)
            return 0.3 + 0.6 / (1 + math.exp(-10 * (progress - 0.5)))
        return 0.9

    def temperature(self, epoch: int) -> float:
        """Return the temperature of SupCR, which falls exponentially until `max_epochs`."""
        progress = min(epoch, self.max_epochs) / self.max_epochs
        ratio = self.final_temperature / self.first_temperature
        return float(self.first_temperature * ratio**progress)

    def recent(self, n: int) -> dict[str, Tensor]:
        """Return the latest n rows of the buffer, or all if there are fewer, the oldest first."""
        n = min(n, self.written, self.capacity)
        return {name: column[self.capacity - n :] for name, column in self.named_buffers()}

    def get_extra_state(self) -> dict[str, int]:
        """Return the numbers of steps and of rows that were written to the buffer."""
        return {"steps": self.steps, "written": self.written}

    def set_extra_state(self, state: Any) -> None:
        """Restore what `get_extra_state` returned."""
        self.steps = int(state["steps"])
        self.written = int(state["written"])

    def _with_recent(self, rows: dict[str, Tensor], epoch: int) -> dict[str, Tensor]:
        """Return the rows, gathered if it is time, with those of the buffer, and update it."""
        is_alone = world_size() == 1
        interval = self.gather_interval
        gathers = not is_alone and interval > 0 and self.steps % interval == 0
        if gathers:
            with named_range("loss.gather"):
                rows = dict(zip(rows, gather_rows(*rows.values()), strict=True))
        self.steps += 1
        share = self.buffer_share(epoch)
        n_recent = round(len(rows["score"]) * share / (1 - share))
        recent = self.recent(n_recent)
        if is_alone or gathers:
            for name, column in self.named_buffers():
                new = rows[name].detach().to(column)
                both = torch.cat([column, new])
                setattr(self, name, both[len(both) - self.capacity :])
            self.written += len(rows["score"])
        return {name: torch.cat([row, recent[name].to(row)]) for name, row in rows.items()}


def log_cosh(x: Tensor) -> Tensor:
    """Return ``log cosh(x)`` element by element, exact for tiny x and without overflow.

    It is ``log1p(2 sinh(x / 2)^2)`` up to 1, and ``|x| + log(1 + exp(-2 |x|)) - log 2`` beyond, in
    float32 or better.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    near = torch.log1p(2 * torch.sinh(x.clamp(-1, 1) / 2).square())
    far = x.abs() + functional.softplus(-2 * x.abs()) - math.log(2)
    return torch.where(x.abs() <= 1, near, far)


def wasserstein(x: Tensor, y: Tensor) -> Tensor:
    """Return ``mean of (sorted x - sorted y)^2 / 2`` for samples [n], 0 if they are empty.

    This is the minimal cost of moving x onto y at ``|x - y|^2 / 2`` per unit, in float32 or better.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    difference = x.to(dtype).sort().values - y.to(dtype).sort().values
    return difference.square().sum() / (2 * max(1, len(x)))


def supcr(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive regression loss of vectors z [n, width] and targets y.

    It is the mean over all i != j of ``-log(exp(s_ij / t) / sum of exp(s_ik / t))``, where s is the
    cosine similarity and the sum is over the k != i with ``|y_i - y_k| >= |y_i - y_j|``; 0 for
    fewer than two vectors. It takes O(n^2 log n) and is computed in float32 or better.
    """
    dtype = torch.promote_types(z.dtype, torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        unit = functional.normalize(z.to(dtype), dim=1)
        if len(z) < 2:
            return unit.sum() * 0
        logits = unit @ unit.t() / temperature
        nearness = -(y.unsqueeze(1) - y).abs()
        # The anchor itself is sorted last and dropped.
        nearness.fill_diagonal_(torch.inf)
        by_distance = nearness.sort(dim=1)
        nearness = by_distance.values[:, :-1].contiguous()
        logits = logits.gather(1, by_distance.indices[:, :-1])
        farther = logits.logcumsumexp(1)
        # For ties take the sum up to the last partner at the same distance.
        last = torch.searchsorted(nearness, nearness, right=True) - 1
        return (farther.gather(1, last) - logits).mean()


def world_size() -> int:
    """Return the number of ranks; 1 without several processes."""
    running = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if running else 1


def gather_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of all ranks, rank after rank, for tensors [n, ...]; n may be 0.

    The gradient of a row is the sum of its gradients on all ranks, as if all losses were computed
    in one process. All ranks must call this function and run its backward.
    """
    from torch.distributed.nn.functional import all_gather

    # One exchange for all tensors, because several would need the same order on every rank.
    widths = [math.prod(tensor.shape[1:]) for tensor in tensors]
    columns = [
        tensor.reshape(len(tensor), width) for tensor, width in zip(tensors, widths, strict=True)
    ]
    flat = torch.cat(columns, dim=1)
    lengths = _lengths_of_ranks(flat)
    n_missing = max(lengths) - len(flat)
    padded = functional.pad(flat, (0, 0, 0, n_missing))
    gathered = all_gather(padded)  # type: ignore[no-untyped-call]
    rows = torch.cat([part[:length] for part, length in zip(gathered, lengths, strict=True)])
    parts = torch.split_with_sizes(rows, widths, dim=1)
    return tuple(
        part.reshape(len(rows), *tensor.shape[1:]).to(tensor.dtype)
        for part, tensor in zip(parts, tensors, strict=True)
    )


def _lengths_of_ranks(rows: Tensor) -> list[int]:
    """Return the number of rows of each rank."""
    own = torch.tensor([len(rows)], device=rows.device)
    lengths = [torch.empty_like(own) for _ in range(world_size())]
    distributed.all_gather(lengths, own)
    return [int(length) for length in torch.cat(lengths).tolist()]


def _checked_weights(prediction: Prediction, targets: Tensor, weights: Tensor | None) -> Tensor:
    b = len(prediction.score)
    if weights is None:
        weights = torch.full_like(targets, 1 / max(1, b))
    if targets.shape != (b,) or weights.shape != (b,):
        shapes = f"targets {tuple(targets.shape)} and weights {tuple(weights.shape)}"
        raise InputError(f"{shapes}; expected ({b},)", code="wrong-shape")
    return weights
