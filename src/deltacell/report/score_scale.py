"""How the scores of a list are written and drawn: with as many decimals, on one scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from deltacell.report.page import percent


class ScoreScale:
    """From the lowest to the highest of the scores, and 0 among them.

    Parameters
    ----------
    scores
        Of the list; those that are None or not finite do not count.
    """

    def __init__(self, scores: Iterable[float | None]) -> None:
        known = [score for score in scores if is_known(score)]
        largest = max((abs(score) for score in known), default=1.0) or 1.0
        self._decimals = min(max(2 - math.floor(math.log10(largest)), 0), 8)
        self._low, self._high = min([*known, 0.0]), max([*known, 0.0])
        if self._low == self._high:
            self._high = 1.0

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> ScoreScale:
        """Return a scale with room for the ``score`` of every row and its ``spread``."""
        return cls(
            row["score"] + sign * (row["spread"] or 0.0)
            for row in rows
            for sign in (-1, 1)
            if is_known(row["score"])
        )

    def text(self, score: float | None, *, sign: bool = True) -> str:
        """Return a score as it is read.

        Parameters
        ----------
        score
            In the unit of the list.
        sign
            Whether one above 0 has its sign too.
        """
        if not is_known(score):
            return "–"
        # Adding 0 leaves no zero with a minus.
        rounded = round(score, self._decimals) + 0.0
        return f"{rounded:{'+' if sign and rounded else ''},.{self._decimals}f}".replace("-", "−")

    def bar(self, score: float | None, spread: float | None) -> dict[str, str] | None:
        """Return where the bar of a score is, from 0 to it, and its spread on both sides."""
        if not is_known(score):
            return None
        left, right = sorted((self._at(0.0), self._at(score)))
        around = spread if is_known(spread) else 0.0
        return {
            "zero": percent(self._at(0.0)),
            "x": percent(left),
            "width": percent(right - left),
            "side": "less" if score < 0 else "more",
            "from": percent(self._at(score - around)),
            "to": percent(self._at(score + around)),
        }

    def _at(self, score: float) -> float:
        share = (score - self._low) / (self._high - self._low)
        return min(max(share, 0.0), 1.0)


def is_known(value: float | None) -> TypeGuard[float]:
    """Return whether there is a number to write and draw."""
    return value is not None and math.isfinite(value)
