"""Times of arms with their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np

from deltacell.profile.explain.noise import log_variance
from deltacell.train.comparing.trials import TrialRow

BETWEEN = 0.03  # the least relative spread between trials of one config that is assumed
DEVIATIONS = 2.9  # half an interval, as of explanations; with a margin for few trials


@dataclass(frozen=True)
class ArmTime:
    """The seconds per sample, or per step, of an arm; the true value is probably within noise."""

    seconds: float
    noise: float  # half of the interval
    samples: float  # of a step
    n_trials: int
    n_steps: int

    @property
    def relative_noise(self) -> float:
        """The noise as a share of the time."""
        return self.noise / self.seconds


def estimate(rows: Sequence[TrialRow], *, per_sample: bool) -> ArmTime | None:
    """Return the median over trials of the median over steps; None if no trial succeeded.

    The variance of its logarithm is the larger one of that between trials and that of steps within
    them, see `log_variance`, and at least that of `BETWEEN`.
    """
    finished = [row for row in rows if row.step_s and (row.samples or not per_sample)]
    if not finished:
        return None
    times = [list(row.per_sample) if per_sample else list(row.step_s) for row in finished]
    medians = [median(of_trial) for of_trial in times]
    every = np.concatenate([np.asarray(of_trial) for of_trial in times])
    n = len(medians)
    spread = BETWEEN
    if n > 1:
        spread = max(spread, stdev(math.log(value) for value in medians))
    variance = max(spread**2 / n, log_variance(every, np.median))
    seconds = median(medians)
    half = math.expm1(DEVIATIONS * math.sqrt(variance)) * seconds
    samples = fmean(row.samples for row in finished)
    return ArmTime(seconds, half, samples, n, len(every))


@dataclass(frozen=True)
class TimeChange:
    """A difference of two times with its noise."""

    seconds: float
    noise: float

    @classmethod
    def between(cls, before: ArmTime, after: ArmTime) -> TimeChange:
        """Return how much longer the second one takes."""
        noise = math.hypot(before.noise, after.noise)
        return cls(after.seconds - before.seconds, noise)

    @property
    def is_beyond_noise(self) -> bool:
        """Whether it is probably not zero."""
        return abs(self.seconds) > self.noise


def ratio_interval(a: ArmTime, b: ArmTime) -> tuple[float, float, float]:
    """Return the ratio of B to A, and its interval."""
    ratio = b.seconds / a.seconds
    half = math.hypot(math.log1p(a.relative_noise), math.log1p(b.relative_noise))
    return ratio, ratio * math.exp(-half), ratio * math.exp(half)
