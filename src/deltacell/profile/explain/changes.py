"""What changed most between two traces, and by which ratio everything did."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from deltacell.profile.explain.account import Waterfall
from deltacell.profile.explain.programs import ProgramPair
from deltacell.profile.explain.view import Seconds, View

UNIFORM = 0.85  # a slowdown is uniform if this share of the time has about the same ratio
MOSTLY = 0.5  # of a gap
# Categories of the host in which the work of the model can change.
OF_MODEL = ("forward", "backward", "loss", "optimizer", "graph preparation", "other")


def step_ratio(a: View, b: View) -> float:
    """Return the ratio of the median time of a step of B to that of A."""
    return float(np.median(b.times) / np.median(a.times))


def ratio_along(pair: ProgramPair, fall: Waterfall) -> float:
    """Return the ratio of a step's times in the direction of the gap between their means.

    It is that of the medians, unless a few slow steps turn the means the other way.
    """
    ratio = step_ratio(pair.a, pair.b)
    is_along = (ratio - 1) * fall.gap > 0
    if is_along or not fall.ratio:
        return ratio
    return fall.ratio


def largest(seconds: Mapping[str, float], *, first_name_wins: bool = False) -> str | None:
    """Return the name with the largest value; of equal ones the last, or the first, by name."""
    if first_name_wins:
        return min(seconds, key=lambda name: (-seconds[name], name), default=None)
    return max(seconds, key=lambda name: (seconds[name], name), default=None)


def most_changed(a: Seconds, b: Seconds, change: float) -> str | None:
    """Return the name that changed most from A to B in the direction of ``change``, if any did."""
    sign = 1 if change >= 0 else -1
    changes = {name: sign * (b.get(name, 0.0) - a.get(name, 0.0)) for name in {**a, **b}}
    return largest({name: more for name, more in changes.items() if more > 0})


def common_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """Return the median ratio of B to A over the operations that both have.

    Each operation counts once, so a single long one does not decide. The ratio is 1 if they have
    too few operations in common.
    """
    least_a = 0.005 * sum(a.values())
    least_b = 0.005 * sum(b.values())
    ratios = [b[name] / a[name] for name in a if a[name] > least_a and b.get(name, 0.0) > least_b]
    return math.exp(float(np.median(np.log(ratios)))) if len(ratios) >= 4 else 1.0


def uniform_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float | None:
    """Return the ratio of B to A if nearly everything changed by it; otherwise None."""
    shared = [name for name in a if name in b and a[name] > 0 and b[name] > 0]
    ratio = sum(b[name] for name in shared) / (sum(a[name] for name in shared) or 1.0)
    if len(shared) < 3 or abs(math.log(ratio)) < 0.03:
        return None
    near = 0.25 * abs(math.log(ratio)) + 0.02
    alike = [name for name in shared if abs(math.log(b[name] / a[name] / ratio)) <= near]
    share_of_a = sum(a[name] for name in alike) / sum(a.values())
    share_of_b = sum(b[name] for name in alike) / sum(b.values())
    return ratio if min(share_of_a, share_of_b) >= UNIFORM else None
