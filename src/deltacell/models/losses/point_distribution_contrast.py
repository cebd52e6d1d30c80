"""A loss of points, of their distribution, and of the order of their vectors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from deltacell.errors import InputError
from deltacell.models.losses.gather import gather_rows, gathers
from deltacell.models.losses.ring_buffer import RingBuffer
from deltacell.models.losses.supcr import supcr
from deltacell.models.losses.value import LossValue, checked_weights
from deltacell.models.losses.wasserstein import wasserstein
from deltacell.models.prediction import Prediction


class PointDistributionContrast(nn.Module):
    """``lambda_mse * MSE + lambda_w * Wasserstein + lambda_c * SupCR``.

    The squared error is of the batch, weighted. The other two are of the batch and of recent
    batches, detached, from a ring buffer, so that they mean something for small batches: of all
    the rows they see, the buffer's share is `buffer_share`, as far as it has rows. They are not
    weighted.

    Under several ranks the batch is gathered every ``gather_interval`` steps with its gradient,
    and only what was gathered goes into the buffer, so that all ranks have the same one; in the
    steps between, a rank sees its own rows and the buffer. Each rank takes its share, the sum of
    its weights, of the two terms, so that the sum over the ranks is the loss of the whole batch.

    In training mode a call adds the batch to the buffer. After `eval` there is no buffer and no
    gathering, and a rank's own rows are all it sees. The buffer is part of ``state_dict``.

    Parameters
    ----------
    lambda_mse, lambda_w, lambda_c
        Factors of the three terms. Of the last two, one with the factor 0 is not computed.
    width
        Of the vectors that SupCR compares; needed where ``lambda_c`` is not 0.
    vectors
        Under which name the prediction has them, [b, width].
    buffer
        Rows of the ring buffer; 0 for none.
    warmup, stable, max_epochs
        Epochs at which the buffer's share has grown to 0.3 and to 0.9, and at which the
        temperature is the final one.
    temperature, final_temperature
        Of SupCR in the first epoch and at ``max_epochs``.
    gather_interval
        Steps from one gather to the next; never where 0.
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
        _check_numbers(
            {
                "lambda_mse": lambda_mse,
                "lambda_w": lambda_w,
                "lambda_c": lambda_c,
                "buffer": buffer,
                "gather_interval": gather_interval,
            },
            above=None,
        )
        _check_numbers(
            {
                "warmup": warmup,
                "stable": stable,
                "max_epochs": max_epochs,
                "temperature": temperature,
                "final_temperature": final_temperature,
            },
            above=0,
        )
        if stable < warmup:
            raise InputError(f"stable is epoch {stable}, before warmup, epoch {warmup}")
        if lambda_c and width is None:
            raise InputError(
                f"lambda_c is {lambda_c}, and the width of the vectors is not given",
                fix="Give width=..., the model's hidden width, or take lambda_c=0.",
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
        self,
        prediction: Prediction,
        targets: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue:
        """Return the loss; arguments as in `Loss`."""
        weights = checked_weights(prediction, targets, weights)
        dtype = torch.promote_types(prediction.score.dtype, torch.float32)
        score, targets = prediction.score.to(dtype), targets.to(dtype)
        parts = {"mse": (weights * (score - targets).square()).sum()}
        total = self.lambda_mse * parts["mse"]
        if self.lambda_w or self.lambda_c:
            rows = self._rows(score, targets, prediction, epoch)
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
        ``stable``, with p how much of the way from the one to the other is done, then 0.9.
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
        """Return how many steps were taken."""
        return {"steps": self.steps}

    def set_extra_state(self, state: Any) -> None:
        """Take over how many steps were taken."""
        self.steps = int(state["steps"])

    def _rows(
        self, score: torch.Tensor, targets: torch.Tensor, prediction: Prediction, epoch: int
    ) -> dict[str, torch.Tensor]:
        rows = {"score": score, "target": targets}
        if self.lambda_c:
            rows["z"] = self._vectors(prediction).to(score.dtype)
        alone = not gathers()
        every = self.gather_interval
        gather = self.training and not alone and every > 0 and self.steps % every == 0
        if gather:
            rows = dict(zip(rows, gather_rows(*rows.values()), strict=True))
        if not self.training:
            return rows
        self.steps += 1
        share = self.buffer_share(epoch)
        recent = self.buffer.latest(round(len(rows["score"]) * share / (1 - share)))
        if alone or gather:
            self.buffer.push(**rows)
        return {name: torch.cat([row, recent[name].to(row)]) for name, row in rows.items()}

    def _vectors(self, prediction: Prediction) -> torch.Tensor:
        if self.vectors not in prediction.intermediate:
            raise InputError(
                f"the prediction has no vectors '{self.vectors}'; it has "
                f"{', '.join(prediction.intermediate) or 'none'}"
            )
        return prediction.intermediate[self.vectors]


def _check_numbers(numbers: dict[str, float], *, above: float | None) -> None:
    for name, number in numbers.items():
        low = number < 0 if above is None else number <= above
        if low or not math.isfinite(number):
            expected = "0 or more" if above is None else f"more than {above}"
            raise InputError(f"{name} is {number}; expected {expected}")
