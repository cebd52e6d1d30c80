"""Whether two sets of steps differ by more than noise: a bootstrap over steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BETWEEN = {"device": 0.025, "host": 0.08}
"""The share by which two runs of one program differ even where their steps hardly vary: of steps
that a device paces, and of those that a host does, which has other things to do."""

FEW = 5
"""With fewer steps than this, noise is assumed and not measured."""

_DRAWS = 2000


@dataclass(frozen=True)
class Difference:
    """The time per step of B by that of A.

    Parameters
    ----------
    ratio
        Of the medians, or of the means where only these differ: then a few steps do.
    low, high
        The interval that noise leaves for the ratio.
    of
        ``median`` or ``mean``.
    steps
        How many there were in A and in B.
    """

    ratio: float
    low: float
    high: float
    of: str
    steps: tuple[int, int]

    @property
    def is_beyond(self) -> bool:
        """Whether it is more than noise."""
        return self.low > 1 or self.high < 1

    @property
    def detectable(self) -> float:
        """The smallest share by which B could have been slower for it to show."""
        return math.sqrt(self.high / self.low) - 1

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        return {
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "of": self.of,
            "steps": list(self.steps),
            "is_beyond": self.is_beyond,
            "detectable": self.detectable,
        }


def difference(
    a: npt.ArrayLike, b: npt.ArrayLike, *, paced_by: str = "device"
) -> Difference | None:
    """Compare the times of steps; None where there is none, or one takes no time.

    Parameters
    ----------
    a, b
        Of each step, in any unit.
    paced_by
        ``device`` or ``host``.
    """
    times = [np.asarray(one, dtype=np.float64) for one in (a, b)]
    if any(not len(one) or not (one > 0).all() for one in times):
        return None
    found = _compare(times[0], times[1], "median", BETWEEN[paced_by])
    if found.is_beyond:
        return found
    means = _compare(times[0], times[1], "mean", BETWEEN[paced_by])
    return means if means.is_beyond else found


def _compare(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], of: str, between: float
) -> Difference:
    middle: Callable[..., Any] = np.median if of == "median" else np.mean
    ratio = math.log(float(middle(b)) / float(middle(a)))
    # The same draws for A and B the other way round: what is said of one is said of the other.
    drawn = [
        np.log(middle(one[np.random.default_rng(7).integers(0, len(one), (_DRAWS, len(one)))], 1))
        for one in (a, b)
    ]
    spread = math.hypot(*(float(np.std(one)) for one in drawn))
    assumed = math.hypot(*(_assumed(len(one)) / math.sqrt(len(one)) for one in (a, b)))
    half = max(_WIDE * max(spread, assumed), between)
    return Difference(
        math.exp(ratio), math.exp(ratio - half), math.exp(ratio + half), of, (len(a), len(b))
    )


# Half the width of the interval in standard deviations, with something for few draws.
_WIDE = 2.9


def _assumed(steps: int) -> float:
    """Return the spread of a step that is assumed at least."""
    return 0.10 if steps == 1 else 0.06 if steps < FEW else 0.015
