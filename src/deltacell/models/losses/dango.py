"""DANGO's loss: reconstruct the networks first, then predict the interaction."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from deltacell.errors import InputError
from deltacell.models.losses.log_cosh import log_cosh
from deltacell.models.losses.value import LossValue, checked_weights
from deltacell.models.prediction import Prediction

Schedule = Literal["pre_then_post", "linear_until_uniform", "linear_until_flipped", "additive"]


class DangoLoss:
    """``alpha * reconstruction + (1 - alpha) * interaction``.

    The interaction is the weighted mean of ``log cosh(score - target)``, the reconstruction the
    mean over networks of what `Dango` leaves under ``reconstruction``. Every rank has the same
    networks, so each takes its share of that, the sum of its weights.

    Parameters
    ----------
    schedule
        How alpha goes with the epoch: ``pre_then_post`` 1 before epoch ``turn`` and then 0;
        ``linear_until_uniform`` from 1 to 0.5 at ``turn``; ``linear_until_flipped`` from 1 to 0.
        Or ``additive``, ``interaction + factor * reconstruction`` at all times.
    turn
        The epoch at which alpha has reached its last value.
    factor
        Of the reconstruction where additive.
    """

    def __init__(
        self, schedule: Schedule = "linear_until_uniform", *, turn: int = 10, factor: float = 0.001
    ) -> None:
        if schedule not in get_args(Schedule):
            raise InputError(
                f"there is no schedule '{schedule}'; there are {', '.join(get_args(Schedule))}"
            )
        if turn < 1:
            raise InputError(f"turn is {turn}; it is an epoch from 1 on")
        self.schedule = schedule
        self.turn = turn
        self.factor = factor

    def __call__(
        self,
        prediction: Prediction,
        targets: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue:
        """Return the loss; arguments as in `Loss`."""
        weights = checked_weights(prediction, targets, weights)
        if "reconstruction" not in prediction.intermediate:
            raise InputError(
                "the prediction has no reconstruction loss of the networks",
                fix="Call the model with reconstruct=True, and take this loss for DANGO only.",
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
