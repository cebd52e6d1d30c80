"""The moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


class AveragedWeights:
    r"""The exponential moving average of the parameters of a model.

    After step :math:`t`, :math:`a \leftarrow d a + (1 - d) w` with
    :math:`d = \min(\text{decay}, (1 + t) / (10 + t))`, which starts low, so that the initial
    weights are soon forgotten. The average is validated in place of the weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self.weights = weights_of(model)

    def update(self, step: int) -> None:
        """Take in the weights after a step; the first step is 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [weight.detach() for weight in self.model.parameters()]
        torch._foreach_lerp_(list(self.weights.values()), current, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the average within a block, and its own weights back after it."""
        own = weights_of(self.model)
        self.model.load_state_dict(self.weights, strict=False)
        try:
            yield
        finally:
            self.model.load_state_dict(own, strict=False)

    def load(self, weights: Weights) -> None:
        """Continue from the average of a checkpoint."""
        for name, weight in self.weights.items():
            weight.copy_(weights[name])


def weights_of(model: nn.Module) -> Weights:
    """Return copies of the parameters of a model by name."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}
