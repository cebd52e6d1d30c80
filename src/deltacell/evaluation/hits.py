"""Which test rows are hits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deltacell.base.arrays import Doubles, Floats, Ints
from deltacell.screen import Screen
from deltacell.screen.grid import LARGEST_P, lists_only_hits

THRESHOLD = -0.08  # scores at or below it are hits


@dataclass(frozen=True)
class PositiveFacts:
    """What counts as a positive, and how many rows do."""

    among: Literal["hits", "tested"]  # hits: the classes are the signs of hits
    threshold: float
    largest_p: float | None  # None if p-values are unknown
    rows: int  # that are positive or negative
    positives: int
    left_out: int


@dataclass(frozen=True, eq=False)
class Positives:
    """Which rows are positives for AUROC and AUPR."""

    label: Doubles  # 1 for a positive, 0 for a negative, NaN for a row that is left out, [rows]
    facts: PositiveFacts

    @property
    def only_hits(self) -> bool:
        """Whether the classes are the signs of hits, not hits and the rest."""
        return self.facts.among == "hits"


def positives(screen: Screen, rows: Ints, threshold: float) -> Positives:
    """Return which rows of a screen are positives.

    If the whole screen is a list of hits (see `lists_only_hits`), the classes are the signs of the
    significant rows, because a threshold would make all rows positive.
    """
    score = screen.column("score")[rows]
    p_value = screen.column("p_value")[rows]
    only_hits = lists_only_hits(screen)
    if only_hits:
        sign = screen.column("sign")[rows]
        is_significant = (sign != 0) & ~(p_value > LARGEST_P)
        label = np.where(is_significant, sign < 0, np.nan)
    else:
        label = is_low(score, p_value, threshold)
    classes = label[np.isfinite(label)]
    uses_p_values = only_hits or np.isfinite(p_value).any()
    facts = PositiveFacts(
        among="hits" if only_hits else "tested",
        threshold=threshold,
        largest_p=LARGEST_P if uses_p_values else None,
        rows=len(classes),
        positives=int(classes.sum()),
        left_out=len(label) - len(classes),
    )
    return Positives(label, facts)


def is_low(score: Floats, p_value: Floats, threshold: float) -> Doubles:
    """Return whether scores are at most a threshold, and significant if p-values are known.

    The result is 1, 0, or NaN for a row without a score or, if any is known, without a p-value.
    """
    # Scores are float32, in which -0.08 differs from the threshold's float64.
    low = score <= np.float32(threshold)
    is_usable = np.isfinite(score)
    has_p_value = np.isfinite(p_value)
    if has_p_value.any():
        is_usable &= has_p_value
        low &= p_value <= LARGEST_P
    return np.where(is_usable, low, np.nan).astype(np.float64)
