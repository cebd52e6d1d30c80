"""Log odds of a hit, calibrated on weighted labels (Platt scaling)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deltacell.base.arrays import Doubles

_MOST_STEPS = 50
_SMALL_STEP = 1e-8
_RIDGE = 1e-9  # keeps Newton's steps defined if all labels are equal


@dataclass(frozen=True)
class Calibration:
    """The probability of a hit is the logistic function of ``slope * odds + shift``."""

    shift: float
    slope: float

    def probability(self, odds: Doubles) -> Doubles:
        """Return the probability of a hit for log odds."""
        probability: Doubles = 1 / (1 + np.exp(-(self.slope * odds + self.shift)))
        return probability


def calibrated(odds: Doubles, label: Doubles, weight: Doubles, shift: float) -> Calibration:
    """Return the calibration that fits weighted labels best, by Newton's method.

    It starts from log odds that are moved by ``shift``. All arrays are [rows].
    """
    odds = odds + shift
    slope, offset = 1.0, 0.0
    for _ in range(_MOST_STEPS):
        p = 1 / (1 + np.exp(-(slope * odds + offset)))
        curvature = weight * p * (1 - p)
        error = weight * (label - p)
        gradient = np.array([(error * odds).sum(), error.sum()])
        cross = (curvature * odds).sum()
        hessian = np.array([[(curvature * odds * odds).sum(), cross], [cross, curvature.sum()]])
        step = np.linalg.solve(hessian + _RIDGE * np.eye(2), gradient)
        slope = slope + step[0]
        offset = offset + step[1]
        if np.abs(step).max() < _SMALL_STEP:
            break
    return Calibration(shift=float(offset + slope * shift), slope=float(slope))
