"""What counts as a positive for AUROC and AUPR, and a sentence that says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Bools, Ints
from deltacell.errors import InputError
from deltacell.screen import Screen
from deltacell.screen.grid import lists_only_hits
from deltacell.words import count_text

Doubles = npt.NDArray[np.float64]
Side = Literal["below", "above"]


@dataclass(frozen=True)
class Threshold:
    """From where on a score is a hit.

    Parameters
    ----------
    score
        The score itself is a hit.
    side
        Whether hits are ``below`` or ``above``.
    p_value
        The largest p-value of a hit, where the screen has p-values; None to go by the score alone.
    """

    score: float = -0.08
    side: Side = "below"
    p_value: float | None = 0.05

    def __post_init__(self) -> None:
        if self.side not in get_args(Side):
            raise InputError(
                f"hits cannot be '{self.side}'; they are {' or '.join(get_args(Side))}"
            )
        if not np.isfinite(self.score):
            raise InputError(f"the threshold is {self.score}; expected a finite number")
        if self.p_value is not None and not 0 < self.p_value <= 1:
            raise InputError(f"the largest p-value is {self.p_value}; expected above 0, at most 1")


@dataclass(frozen=True, eq=False)
class Positives:
    """Which rows are positives.

    Parameters
    ----------
    label
        1 for a positive, 0 for another, NaN for a row that is left out, [rows].
    direction
        What a prediction is multiplied by so that larger means positive.
    among
        ``tested``: hits against all else that was tested. ``hits``: one sign against the other,
        where only hits are listed.
    sentence
        All of this for a person.
    """

    label: Doubles
    direction: Literal[-1, 1]
    among: Literal["tested", "hits"]
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict without the rows."""
        known = self.label[np.isfinite(self.label)]
        return {
            "among": self.among,
            "rows": len(known),
            "positives": int(known.sum()),
            "sentence": self.sentence,
        }


def positives(screen: Screen, rows: Ints, threshold: Threshold | None = None) -> Positives:
    """Return which rows of a screen are positives.

    Where the whole screen is a list of hits, a threshold would call all rows positive; then the
    classes are the signs among the significant rows. See `lists_only_hits`.

    Parameters
    ----------
    screen
        What was measured.
    rows
        The rows to label.
    threshold
        From where on a score is a hit; below -0.08 with a p-value of at most 0.05 where not given.
    """
    threshold = Threshold() if threshold is None else threshold
    if lists_only_hits(screen, threshold.p_value):
        return _by_sign(screen, rows, threshold)
    return _by_threshold(screen, rows, threshold)


def _by_sign(screen: Screen, rows: Ints, threshold: Threshold) -> Positives:
    below = threshold.side == "below"
    sign = screen.column("sign")[rows]
    used = sign != 0
    p_value = screen.column("p_value")[rows]
    if threshold.p_value is not None:
        used &= ~(p_value > threshold.p_value)
    label = np.where(used, (sign < 0) == below, np.nan).astype(np.float64)
    one, other = ("negative", "positive") if below else ("positive", "negative")
    n, among = _counts(label)
    sentence = (
        "The screen lists only significant interactions, so AUROC and AUPR tell "
        f"{one} from {other} ones among these ({n:,} of {among:,} test rows "
        f"{'is' if n == 1 else 'are'} {one}), "
        "and not interactions from pairs without one."
        + _left_out(~used, "neither sign is known or significant")
    )
    return Positives(label, -1 if below else 1, "hits", sentence)


def _by_threshold(screen: Screen, rows: Ints, threshold: Threshold) -> Positives:
    score = screen.column("score")[rows]
    # Scores are kept in float32, where a written -0.08 is not the threshold's float64.
    limit = np.float32(threshold.score)
    beyond: Bools = score <= limit if threshold.side == "below" else score >= limit
    label, significance, why = _significant(screen, rows, beyond, threshold)
    used = np.isfinite(label)
    n, among = _counts(label)
    sentence = (
        f"A positive, for AUROC and AUPR, is a score of {threshold.score:g} or {threshold.side}"
        f"{significance} ({n:,} of {among:,} test rows)." + _left_out(~used, why)
    )
    return Positives(label, -1 if threshold.side == "below" else 1, "tested", sentence)


def hits_of_either_sign(screen: Screen, rows: Ints, threshold: Threshold) -> Doubles:
    """Return 1 for rows at least as far from 0 as the threshold, else 0; NaN for those left out.

    Parameters
    ----------
    screen
        What was measured, hits or not.
    rows
        The rows to label.
    threshold
        From where on a score is a hit.
    """
    far: Bools = np.abs(screen.column("score")[rows]) >= np.float32(abs(threshold.score))
    return _significant(screen, rows, far, threshold)[0]


def _significant(
    screen: Screen, rows: Ints, beyond: Bools, threshold: Threshold
) -> tuple[Doubles, str, str]:
    """Return the labels, what was asked of p-values, and why rows are left out."""
    used = np.isfinite(screen.column("score")[rows])
    p_value = screen.column("p_value")[rows]
    p_known = np.isfinite(p_value)
    why, significance = "no score", ""
    if threshold.p_value is not None and not p_known.any():
        significance = ", whatever its significance, as these rows have no p-values"
    elif threshold.p_value is not None:
        significance = f" with a p-value of at most {threshold.p_value:g}"
        beyond = beyond & (p_value <= threshold.p_value)
        used &= p_known
        why = "no score or no p-value"
    return np.where(used, beyond, np.nan).astype(np.float64), significance, why


def _counts(label: Doubles) -> tuple[int, int]:
    known = label[np.isfinite(label)]
    return int(known.sum()), len(known)


def _left_out(rows: Bools, why: str) -> str:
    n = int(rows.sum())
    return f" {count_text(n, 'row is', 'rows are')} left out: {why}." if n else ""
