"""Scores beyond any scale, such as 1e30 among scores around 0."""

from __future__ import annotations

import numpy as np

from deltacell.arrays import AnyArray, Bools

#: A score that is further from the median than this many robust standard deviations is no
#: measurement. The largest of the real screens are within 50.
FARTHEST = 1_000

_SHARES = ((25, 75), (5, 95), (1, 99))  # percentiles, in turn, until they differ
_OF_A_NORMAL = (1.349, 3.290, 4.653)  # their distances in standard deviations of a normal


def beyond_any_scale(scores: AnyArray) -> Bools:
    """Return which scores are more than `FARTHEST` robust standard deviations from the median.

    The robust standard deviation is the distance of the quartiles, divided by that of a normal
    distribution. If most scores are equal, wider percentiles are used, and then the median distance
    of the others. Missing scores are not beyond it.
    """
    known = scores[np.isfinite(scores)].astype(np.float64)
    if not len(known):
        return np.zeros(len(scores), dtype=bool)
    center = np.median(known)
    distance = np.abs(scores.astype(np.float64) - center)
    return np.asarray(distance > FARTHEST * _deviation(known, float(center)), dtype=bool)


def _deviation(known: AnyArray, center: float) -> float:
    for percentiles, of_a_normal in zip(_SHARES, _OF_A_NORMAL, strict=True):
        low, high = np.percentile(known, percentiles)
        # With few scores a wide range contains the outliers themselves.
        n_outside = len(known) * (100 - percentiles[1] + percentiles[0]) / 100
        if high > low and (percentiles == _SHARES[0] or n_outside > 10):
            return float(high - low) / of_a_normal
    others = np.abs(known[known != center] - center)
    return float(np.median(others)) if len(others) > 2 else np.inf
