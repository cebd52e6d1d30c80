"""Targets on a common scale, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deltacell.errors import InputError


@dataclass(frozen=True)
class Standard:
    """``(target - mean) / std``, with the mean and deviation of the training part alone.

    Parameters
    ----------
    mean, std
        Of the training part; 0 and 1 leave targets as they are.
    """

    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(cls, targets: npt.NDArray[np.floating]) -> Standard:
        """Return that of some targets.

        Parameters
        ----------
        targets
            Of the training part.
        """
        mean, std = (
            float(np.mean(targets, dtype=np.float64)),
            float(np.std(targets, dtype=np.float64)),
        )
        if not np.isfinite(mean) or not std > 0:
            raise InputError(
                f"the {len(targets):,} training targets have the mean {mean:g} and the deviation "
                f"{std:g}, so they cannot be standardised",
                fix="Look at the screen's scores, or set data.standardise=false.",
            )
        return cls(mean, std)

    def apply(self, targets: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return targets on the common scale."""
        return (targets - self.mean) / self.std

    def undo(self, scores: torch.Tensor) -> torch.Tensor:
        """Return scores in the unit of the screen."""
        return scores * self.std + self.mean
