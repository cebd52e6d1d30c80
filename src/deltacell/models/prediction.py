"""What a predictor returns, and the scale of its targets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from deltacell.base.errors import InputError


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction for a batch of genotypes; all but ``intermediate`` are [batch].

    For predictors of two parts, ``score = hit * given_hit``; docs/why/two-parts.md says which of
    the three is used where.
    """

    score: Tensor  # the expected score of a tested genotype
    intermediate: dict[str, Tensor] = field(default_factory=dict)  # for the losses, by name
    hit: Tensor | None = None  # the probability of a hit, for predictors of two parts
    given_hit: Tensor | None = None  # the expected score of a hit
    spread: Tensor | None = None  # the standard deviation of the score, if it is known
    low: Tensor | None = None  # the ends of a 90 % interval of the measured score
    high: Tensor | None = None  # (of the score of a hit, for predictors of two parts)

    def on_host(self) -> Prediction:
        """Return the prediction on the CPU, without intermediate results."""
        return Prediction(
            self.score.cpu(),
            hit=None if self.hit is None else self.hit.cpu(),
            given_hit=None if self.given_hit is None else self.given_hit.cpu(),
            spread=None if self.spread is None else self.spread.cpu(),
        )

    @property
    def among_hits(self) -> Tensor:
        """The expected score of a genotype that is a hit, as all measured ones are in a list."""
        return self.score if self.given_hit is None else self.given_hit


@dataclass(frozen=True)
class TargetScale:
    """Standardises targets with the mean and standard deviation of the training part."""

    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(cls, targets: npt.NDArray[np.floating]) -> TargetScale:
        """Return the scale of some targets; raise if they do not vary."""
        mean = float(np.mean(targets, dtype=np.float64))
        std = float(np.std(targets, dtype=np.float64))
        if not np.isfinite(mean) or not std > 0:
            what = f"targets with mean {mean:g} and deviation {std:g} cannot be standardised"
            fix = "Check the scores of the screen, or set data.standardise=false."
            raise InputError(what, code="constant-targets", fix=fix)
        return cls(mean, std)

    def undo(self, scores: Tensor) -> Tensor:
        """Return standardised scores in the unit of the screen."""
        return scores * self.std + self.mean
