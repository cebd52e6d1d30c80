"""Which test rows are hits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deltacell.base.arrays import Doubles, Ints
from deltacell.screen import Screen
from deltacell.screen.hit_rule import HitRule
from deltacell.screen.screen import lists_only_hits


@dataclass(frozen=True)
class PositiveFacts:
    """What counts as a positive, and how many rows do."""

    among: Literal["hits", "tested"]  # hits: the classes are the signs of hits
    threshold: float | None  # scores at or below it are positives; None if no low score is
    largest_p: float | None  # None if p-values are unknown
    rows: int  # that are positive or negative
    positives: int
    left_out: int
    rule: str  # what a hit of the screen is, and why, in words


@dataclass(frozen=True, eq=False)
class Positives:
    """Which rows are positives for AUROC and AUPR."""

    label: Doubles  # 1 for a positive, 0 for a negative, NaN for a row that is left out, [rows]
    facts: PositiveFacts

    @property
    def only_hits(self) -> bool:
        """Whether the classes are the signs of hits, not hits and the rest."""
        return self.facts.among == "hits"


def positives(screen: Screen, rows: Ints, rule: HitRule) -> Positives:
    """Return which rows of a screen are positives: those with a low score that is a hit.

    If the whole screen is a list of hits (see `lists_only_hits`), the classes are the signs of the
    significant rows, because a threshold would make all rows positive.
    """
    score = screen.column("score")[rows]
    p_value = screen.column("p_value")[rows]
    only_hits = lists_only_hits(screen)
    if only_hits:
        sign = screen.column("sign")[rows]
        is_significant = (sign != 0) & ~(p_value > rule.largest_p)
        label = np.where(is_significant, sign < 0, np.nan)
    else:
        label = rule.is_low(score, p_value)
    classes = label[np.isfinite(label)]
    uses_p_values = only_hits or np.isfinite(p_value).any()
    facts = PositiveFacts(
        among="hits" if only_hits else "tested",
        threshold=rule.low,
        largest_p=rule.largest_p if uses_p_values else None,
        rows=len(classes),
        positives=int(classes.sum()),
        left_out=len(label) - len(classes),
        rule=rule.sentence,
    )
    return Positives(label, facts)
