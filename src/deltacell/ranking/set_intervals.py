"""The 90 % intervals of ranked sets and of an explained one, by all runs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from deltacell.base.arrays import Ints
from deltacell.models.scoring import genotypes_of
from deltacell.ranking.ensemble import are_alike
from deltacell.train.intervals import Interval
from deltacell.train.loaded_runs import LoadedRun


@dataclass(frozen=True, eq=False)
class SetIntervals:
    """The mean ends of the intervals of runs of one kind."""

    runs: Sequence[LoadedRun] = ()

    @cached_property
    def is_known(self) -> bool:
        """Whether every run has intervals, and their scores are on one scale."""
        runs = self.runs
        return bool(runs) and are_alike(runs) and all(run.intervals is not None for run in runs)

    def around(self, sets: Ints) -> Interval:
        """Return the intervals of sets, [m, size]; NaN if they are unknown."""
        if not len(sets) or not self.is_known:
            unknown = np.full(len(sets), np.nan)
            return Interval(unknown, unknown)
        predictions = [run.predict(genotypes_of(np.sort(sets, axis=1))) for run in self.runs]
        low = [prediction.low.numpy() for prediction in predictions if prediction.low is not None]
        high = [
            prediction.high.numpy() for prediction in predictions if prediction.high is not None
        ]
        return Interval(np.mean(low, axis=0), np.mean(high, axis=0))

    @property
    def sentence(self) -> str | None:
        """What the intervals are of, in words; None if they are unknown."""
        if not self.is_known:
            return None
        hit = ", if it is a hit" if any(run.data.grid is not None for run in self.runs) else ""
        return (
            "low and high are the ends of a 90 % interval: a measurement of the set lies within it "
            f"with a probability of 0.9{hit}."
        )
