"""Whether two programs differ by more than noise, from the times of their steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from deltacell.base.arrays import Doubles

FEW = 5  # with fewer steps, noise is assumed or estimated from repeated calls within them
# The least relative spread of a step that is assumed where repeated calls are steady.
STEADY = {"device": 0.02, "host": 0.05}
# The share by which two runs of one program differ even if their steps hardly vary, by what sets
# the pace.
BETWEEN = {"device": 0.025, "host": 0.08}

Average = Literal["median", "mean"]


@dataclass(frozen=True)
class Difference:
    """The ratio of the time per step of B to that of A, with its interval under noise.

    It is the ratio ``of`` medians, or of means if only these differ, because of a few steps.
    ``detectable`` is the smallest slowdown of B that would have shown, as a share.
    """

    ratio: float
    low: float
    high: float
    of: Average
    steps: tuple[int, int]
    is_beyond: bool  # more than noise
    detectable: float


@dataclass(frozen=True)
class Pace:
    """What sets the pace of a step, and how steady repeated calls of it are, if that is known.

    The spread is the relative standard error of their time, in A and in B.
    """

    by: Literal["device", "host"] = "device"
    spread_a: float | None = None
    spread_b: float | None = None

    def least_variances(self, n_a: int, n_b: int) -> float:
        """Return the variance that is assumed of the ratio of two averages of steps."""
        in_a = _least_variance(n_a, self.spread_a, STEADY[self.by])
        in_b = _least_variance(n_b, self.spread_b, STEADY[self.by])
        return in_a + in_b


def difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    pace: Pace | None = None,
) -> Difference | None:
    """Compare times of steps by a bootstrap; None if there are none or one is 0."""
    pace = pace or Pace()
    times_a = np.asarray(a, dtype=np.float64)
    times_b = np.asarray(b, dtype=np.float64)
    if not _is_positive(times_a) or not _is_positive(times_b):
        return None
    of_medians = _bootstrap(times_a, times_b, "median", pace)
    of_means = _bootstrap(times_a, times_b, "mean", pace)
    only_means_differ = of_means.is_beyond and not of_medians.is_beyond
    return of_means if only_means_differ else of_medians


def _is_positive(times: Doubles) -> bool:
    return len(times) > 0 and bool((times > 0).all())


def _bootstrap(times_a: Doubles, times_b: Doubles, of: Average, pace: Pace) -> Difference:
    """Compare the averages of two lists of times, with an interval of the ratio.

    Half the width of the interval is 2.9 standard deviations, with a margin for few draws.
    """
    average: Callable[..., Doubles] = np.median if of == "median" else np.mean
    measured = log_variance(times_a, average) + log_variance(times_b, average)
    assumed = pace.least_variances(len(times_a), len(times_b))
    half = max(2.9 * math.sqrt(max(measured, assumed)), BETWEEN[pace.by])
    ratio = math.log(float(average(times_b)) / float(average(times_a)))
    low = math.exp(ratio - half)
    high = math.exp(ratio + half)
    return Difference(
        ratio=math.exp(ratio),
        low=low,
        high=high,
        of=of,
        steps=(len(times_a), len(times_b)),
        is_beyond=low > 1 or high < 1,
        detectable=math.exp(half) - 1,
    )


def log_variance(times: Doubles, average: Callable[..., Doubles]) -> float:
    """Return the variance of the logarithm of an average, by a bootstrap over steps.

    Consecutive steps under a varying load resemble each other, so they carry less information than
    independent steps. Every call has the same draws, so that swapping A and B gives the inverse.
    """
    draws = np.random.default_rng(7).integers(0, len(times), (2000, len(times)))
    logs = np.log(times) - np.log(times).mean()
    neighbours = max(float(logs[1:] @ logs[:-1]), 0.0)
    alike = min(neighbours / max(float(logs @ logs), 1e-30), 0.5)
    return float(np.var(np.log(average(times[draws], 1)))) * (1 + alike) / (1 - alike)


def _least_variance(n_steps: int, of_repeats: float | None, steady: float) -> float:
    """Return the variance that is assumed of an average if the steps hardly vary.

    Of a few steps it is that of repeated calls within them, which are many.
    """
    if n_steps < FEW and of_repeats is not None:
        return max(of_repeats, steady / math.sqrt(n_steps)) ** 2
    if n_steps == 1:
        spread = 0.10
    elif n_steps < FEW:
        spread = 0.06
    else:
        spread = 0.015
    return spread**2 / n_steps
