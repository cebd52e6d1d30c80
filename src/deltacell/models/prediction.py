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
        The score to expect of a genotype that is tested, [batch].
    intermediate
        Results by name, such as per-gene vectors or the two heads' scores; losses read them, so
        that nothing is computed twice in a step.
    hit, given_hit
        Of a predictor of two parts: how likely the genotype is a hit, and the score to expect of it
        given that it is one, [batch] each. None for a predictor that has one part only.
    """

    score: torch.Tensor
    intermediate: dict[str, torch.Tensor] = field(default_factory=dict)
    hit: torch.Tensor | None = None
    given_hit: torch.Tensor | None = None
