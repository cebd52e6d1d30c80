"""Which of several readings are warm-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FAR = 1.5  # times the usual reading, or its inverse


def n_warmup(readings: Sequence[float]) -> int:
    """Return how many leading readings differ by more than `FAR` from the median of the 2nd half.

    At most half of the readings are warm-up.
    """
    half = len(readings) // 2
    usual = float(np.median(readings[half:])) if half else 0.0
    for index in range(half):
        if usual / FAR <= readings[index] <= FAR * usual:
            return index
    return half
