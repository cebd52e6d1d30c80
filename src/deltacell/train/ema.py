"""An average of the weights over the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from deltacell.errors import InputError


class Ema:
    """``average <- decay * average + (1 - decay) * weights`` after every step.

    The decay of step ``t`` is at most ``(1 + t) / (10 + t)``, so that the first weights are soon
    forgotten.

    Parameters
    ----------
    model
        Whose weights.
    decay
        From 0 to 1, without 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise InputError(f"trainer.ema is {decay}; expected 0 or more and less than 1")
        self.decay = decay
        self._weights = dict(model.named_parameters())
        self.average = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(
            list(self.average.values()),
            [weight.detach() for weight in self._weights.values()],
            1 - decay,
        )

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the average while this is open."""
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._put(self.average)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: dict[str, torch.Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the average by the names of the weights."""
        return dict(self.average)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take over an average."""
        for name, average in self.average.items():
            average.copy_(state[name])
