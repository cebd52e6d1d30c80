"""What a loss says of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from deltacell.errors import InputError
from deltacell.models.prediction import Prediction


@dataclass(frozen=True, eq=False)
class LossValue:
    """A loss and its parts.

    Parameters
    ----------
    total
        The scalar to differentiate. Its sum over all ranks is the loss of the whole batch.
    parts
        Its parts by name, detached, before their factors; for the record of a run.
    """

    total: torch.Tensor
    parts: dict[str, torch.Tensor] = field(default_factory=dict)


class Loss(Protocol):
    """What every loss is: a function of a prediction, the targets and the weights."""

    def __call__(
        self,
        prediction: Prediction,
        targets: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        epoch: int,
    ) -> LossValue:
        """Return the loss.

        Parameters
        ----------
        prediction
            Of ``b`` genotypes.
        targets
            What was measured, [b].
        weights
            The share of each genotype in the whole batch over all ranks, [b], adding up to 1
            there, as the loader gives them; equal and of one rank where not given.
        epoch
            Counted from 0.
        """
        ...


def checked_weights(
    prediction: Prediction, targets: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """Return the weights [b], equal where none are given; shapes that differ are an error."""
    b = prediction.score.shape[0]
    if weights is None:
        weights = torch.full_like(targets, 1 / max(1, b))
    if targets.shape != (b,) or weights.shape != (b,):
        raise InputError(
            f"{b} scores, targets of shape {tuple(targets.shape)} and weights of shape "
            f"{tuple(weights.shape)}; expected ({b},) for both"
        )
    return weights
