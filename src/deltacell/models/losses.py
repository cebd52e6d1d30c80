"""The losses: log cosh, DANGO's, and point + distribution + contrast."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from deltacell.base.errors import InputError
from deltacell.models.base import check_choice
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
        weights = _checked_weights(prediction, targets, weights)
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
        self.schedule, self.turn, self.factor = schedule, turn, factor

    def __call__(
        self,
        prediction: Prediction,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue:
        weights = _checked_weights(prediction, targets, weights)
        if "reconstruction" not in prediction.intermediate:
            what = "no reconstruction in the prediction; call the model with wanted=loss.reads"
            raise InputError(what, code="no-reconstruction")
        interaction = (weights * log_cosh(prediction.score - targets)).sum()
        reconstruction = prediction.intermediate["reconstruction"].mean() * weights.sum()
        of_reconstruction, of_interaction = self.factors(epoch)
        # Both terms are always added, so that every parameter has a gradient in every epoch.
        total = of_reconstruction * reconstruction + of_interaction * interaction
        parts = {"interaction": interaction, "reconstruction": reconstruction}
        return LossValue(total, {name: part.detach() for name, part in parts.items()})

    def factors(self, epoch: int) -> tuple[float, float]:
        if self.schedule == "additive":
            return self.factor, 1.0
        done = min(epoch / self.turn, 1.0)
        alpha = {
            "pre_then_post": float(done < 1),
            "linear_until_uniform": 1 - 0.5 * done,
            "linear_until_flipped": 1 - done,
        }[self.schedule]
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
        self.lambda_mse, self.lambda_w, self.lambda_c = lambda_mse, lambda_w, lambda_c
        self.warmup, self.stable, self.max_epochs = warmup, stable, max_epochs
        self.first_temperature, self.final_temperature = temperature, final_temperature
        self.gather_interval, self.capacity = gather_interval, buffer
        self.steps = self.written = 0
        for name in ("score", "target"):
            self.register_buffer(name, torch.zeros(buffer))
        if lambda_c:
            self.register_buffer("z", torch.zeros(buffer, width))

    @property
    def reads(self) -> tuple[str, ...]:
        return ("z",) if self.lambda_c else ()

    def forward(
        self,
        prediction: Prediction,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue:
        weights = _checked_weights(prediction, targets, weights)
        dtype = torch.promote_types(prediction.score.dtype, torch.float32)
        rows = {"score": prediction.score.to(dtype), "target": targets.to(dtype)}
        parts = {"mse": (weights * (rows["score"] - rows["target"]).square()).sum()}
        total = self.lambda_mse * parts["mse"]
        if self.lambda_c:
            if "z" not in prediction.intermediate:
                raise InputError("the prediction has no vectors 'z' to compare", code="no-vectors")
            rows["z"] = prediction.intermediate["z"].to(dtype)
        if self.training and (self.lambda_w or self.lambda_c):
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
        """Return the share of rows that come from the buffer in an epoch."""
        if epoch < self.warmup:
            return 0.1 + 0.2 * epoch / self.warmup
        if epoch < self.stable:
            progress = (epoch - self.warmup) / (self.stable - self.warmup)
            return 0.3 + 0.6 / (1 + math.exp(-10 * (progress - 0.5)))
        return 0.9

    def temperature(self, epoch: int) -> float:
        first, done = self.first_temperature, min(epoch, self.max_epochs) / self.max_epochs
        return float(first * (self.final_temperature / first) ** done)

    def recent(self, n: int) -> dict[str, Tensor]:
        """Return the latest n rows of the buffer, or all if there are fewer, the oldest first."""
        n = min(n, self.written, self.capacity)
        return {name: column[self.capacity - n :] for name, column in self.named_buffers()}

    def get_extra_state(self) -> dict[str, int]:
        return {"steps": self.steps, "written": self.written}

    def set_extra_state(self, state: Any) -> None:
        self.steps, self.written = int(state["steps"]), int(state["written"])

    def _with_recent(self, rows: dict[str, Tensor], epoch: int) -> dict[str, Tensor]:
        """Return the rows, gathered if it is time, with those of the buffer, and update it."""
        alone, every = world_size() == 1, self.gather_interval
        gather = not alone and every > 0 and self.steps % every == 0
        if gather:
            rows = dict(zip(rows, gather_rows(*rows.values()), strict=True))
        self.steps += 1
        share = self.buffer_share(epoch)
        recent = self.recent(round(len(rows["score"]) * share / (1 - share)))
        if alone or gather:
            for name, column in self.named_buffers():
                both = torch.cat([column, rows[name].detach().to(column)])
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
        nearness, order = nearness.sort(dim=1)
        nearness, order = nearness[:, :-1].contiguous(), order[:, :-1]
        logits = logits.gather(1, order)
        farther = logits.logcumsumexp(1)
        # For ties take the sum up to the last partner at the same distance.
        last = torch.searchsorted(nearness, nearness, right=True) - 1
        return (farther.gather(1, last) - logits).mean()


def world_size() -> int:
    running = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if running else 1


def gather_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of all ranks, rank after rank, for tensors [n, ...]; n may be 0.

    The gradient of a row is the sum of its gradients on all ranks, as if all losses were computed
    in one process. All ranks must call this function and run its backward.
    """
    from torch.distributed.nn.functional import all_gather

    # One exchange for all tensors, because several would need the same order on every rank.
    widths = [math.prod(t.shape[1:]) for t in tensors]
    flat = torch.cat([t.reshape(len(t), w) for t, w in zip(tensors, widths, strict=True)], dim=1)
    mine = torch.tensor([len(flat)], device=flat.device)
    sizes = [torch.empty_like(mine) for _ in range(world_size())]
    distributed.all_gather(sizes, mine)
    lengths = torch.cat(sizes).tolist()
    padded = functional.pad(flat, (0, 0, 0, max(lengths) - len(flat)))
    gathered = all_gather(padded)  # type: ignore[no-untyped-call]
    rows = torch.cat([part[:n] for part, n in zip(gathered, lengths, strict=True)])
    return tuple(
        part.reshape(len(rows), *t.shape[1:]).to(t.dtype)
        for part, t in zip(torch.split_with_sizes(rows, widths, dim=1), tensors, strict=True)
    )


def _checked_weights(prediction: Prediction, targets: Tensor, weights: Tensor | None) -> Tensor:
    b = len(prediction.score)
    if weights is None:
        weights = torch.full_like(targets, 1 / max(1, b))
    if targets.shape != (b,) or weights.shape != (b,):
        what = f"targets {tuple(targets.shape)} and weights {tuple(weights.shape)}; expected ({b},)"
        raise InputError(what, code="wrong-shape")
    return weights
