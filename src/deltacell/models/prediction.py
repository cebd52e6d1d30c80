"""What a model says of a batch of genotypes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, eq=False)
class Prediction:
    """A score a genotype, and the named results on the way to it.

    Parameters
    ----------
    score
        One number a genotype, [batch].
    intermediate
        Results by name, such as per-gene vectors or the two heads' scores; losses read them, so
        that nothing is computed twice in a step.
    """

    score: torch.Tensor
    intermediate: dict[str, torch.Tensor] = field(default_factory=dict)
