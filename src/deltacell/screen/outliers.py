"""Scores beyond any scale, such as 1e30 among scores around 0."""

from __future__ import annotations

import numpy as np

from deltacell.base.arrays import AnyArray, Bools, Doubles

#: A score that is further from the median than this many robust standard deviations is no
#: measurement. The farthest of real scores is at 30 (Schuldiner 2005; 24 in Collins 2007, 22 in the
#: trigenic scores of Kuzmin 2020, 15 in Horlbeck 2018, 6 in Costanzo 2010). The rest is room for
#: heavier tails: of 300 scores from a Cauchy distribution, one is usually beyond 100. Codes such as
#: 9999 and numbers such as 1e30 are beyond it.
FARTHEST = 1_000

_SHARES = ((25, 75), (5, 95), (1, 99))  # percentiles, in turn, until they differ
_OF_A_NORMAL = (1.349, 3.290, 4.653)  # their distances in standard deviations of a normal


def beyond_any_scale(scores: AnyArray) -> Bools:
    """Return which scores are more than `FARTHEST` robust standard deviations from the median."""
    return np.asarray(deviations_from_median(scores) > FARTHEST, dtype=bool)


def deviations_from_median(scores: AnyArray) -> Doubles:
    """Return the distances of the scores from the median, in robust standard deviations.

    The robust standard deviation is the distance of the quartiles, divided by that of a normal
    distribution. If most scores are equal, wider percentiles are used, and then the median distance
    of the others. The distance of a missing score, or of one without a scale, is 0.
    """
    known = scores[np.isfinite(scores)].astype(np.float64)
    if not len(known):
        return np.zeros(len(scores))
    center = float(np.median(known))
    distance = np.abs(scores.astype(np.float64) - center)
    return np.asarray(np.nan_to_num(distance / _deviation(known, center), posinf=np.inf))


def _deviation(known: AnyArray, center: float) -> float:
    """Return the robust standard deviation of scores around their median; infinite without one."""
    for percentiles, of_a_normal in zip(_SHARES, _OF_A_NORMAL, strict=True):
        low, high = np.percentile(known, percentiles)
        # With few scores a wide range contains the outliers themselves.
        n_outside = len(known) * (100 - percentiles[1] + percentiles[0]) / 100
        if high > low and (percentiles == _SHARES[0] or n_outside > 10):
            return float(high - low) / of_a_normal
    others = np.abs(known[known != center] - center)
    return float(np.median(others)) if len(others) > 2 else np.inf
