"""How many measured scores the intervals of predictions hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from deltacell.base.arrays import Bools
from deltacell.base.text import count_text
from deltacell.evaluation.rows import EvaluatedRows
from deltacell.models.interface import Prediction
from deltacell.train.intervals import LEVEL


@dataclass(frozen=True)
class IntervalCoverage:
    """The share of the measured scores of some test rows within their intervals."""

    predictor: str
    label: str  # "test", or such as "1 unseen gene"
    rows: int  # with a score
    level: float  # the share that the intervals are meant to hold
    share: float  # the mean over seeds
    width: float  # the mean distance of the ends


def interval_coverages(
    rows: EvaluatedRows,
    predictions: Mapping[str, Mapping[int, Prediction] | Prediction],
) -> tuple[IntervalCoverage, ...]:
    """Return the coverage of every predictor with intervals, on the test part and by unseen genes.

    Of a predictor of two parts they are intervals of the score of a hit, so they are compared with
    measurements only where these are hits, as in a list of hits; on another screen they are not.
    """
    score = rows.data.screen.column("score")[rows.split.test].astype(np.float64)
    coverages = []
    for name, by_seed in predictions.items():
        if isinstance(by_seed, Prediction):
            continue
        with_ends = [one for one in by_seed.values() if one.low is not None]
        is_of_hits = any(one.given_hit is not None for one in with_ends)
        if not with_ends or (is_of_hits and rows.other is not None):
            continue
        for label, members in _groups(rows):
            is_used = members & np.isfinite(score)
            if is_used.any():
                held = [_held(one, score, is_used) for one in with_ends]
                share = float(np.mean([share for share, _ in held]))
                width = float(np.mean([width for _, width in held]))
                n_rows = int(is_used.sum())
                coverages.append(IntervalCoverage(name, label, n_rows, LEVEL, share, width))
    return tuple(coverages)


def _groups(rows: EvaluatedRows) -> Iterator[tuple[str, Bools]]:
    """Yield the whole test part, and its rows by the number of unseen genes."""
    n_rows = len(rows.split.test)
    yield "test", np.ones(n_rows, dtype=bool)
    unseen = rows.split.unseen
    numbers = np.unique(unseen)
    if len(unseen) == n_rows and len(numbers) > 1:
        for number in numbers.tolist():
            yield count_text(number, "unseen gene"), unseen == number


def _held(prediction: Prediction, score: np.ndarray, is_used: Bools) -> tuple[float, float]:
    """Return the share of scores within the intervals, and the mean width of these."""
    assert prediction.low is not None
    assert prediction.high is not None
    low = prediction.low.numpy()[: len(score)][is_used]
    high = prediction.high.numpy()[: len(score)][is_used]
    is_held = (low <= score[is_used]) & (score[is_used] <= high)
    return float(is_held.mean()), float((high - low).mean())
