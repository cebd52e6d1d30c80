"""All metrics of several predictors on the same resamples, and their paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.text import Progress
from deltacell.evaluation.bootstrap import Bootstrap, Estimate
from deltacell.evaluation.metrics import Column, Metric, Weights

#: By predictor, then metric.
Scores = Mapping[str, Mapping[str, Estimate]]
#: By predictor, other predictor and metric: the first minus the other, paired.
Differences = Mapping[str, Mapping[str, Mapping[str, Estimate]]]
#: By what a metric compares with, see `Metric.of`.
Columns = Mapping[str, Doubles]


def compared(
    metrics: Mapping[str, Metric],
    truth: Columns,
    predictions: Mapping[str, Sequence[Columns]],
    genes: Ints,
    bootstrap: Bootstrap,
    label: str,
    *,
    weight: Doubles | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Scores, Differences]:
    """Return all metrics of predictors, each with its seeds, and all paired differences.

    Rows whose ``truth`` is NaN are left out; `genes` are those of each row, padded with -1, and
    `weight` is how often each row counts.
    """
    comparison = _Comparison(metrics, truth, predictions, bootstrap, weight)
    n_done = 0
    for block in bootstrap.weights(genes, label):
        if weight is not None:
            block *= weight
        comparison.resample(block, n_done)
        n_done += len(block)
        progress(f"resamples of {label}", n_done, bootstrap.resamples)
    return comparison.scores(), comparison.differences()


class _Comparison:
    """The metrics of predictors, and their values in each resample."""

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        truth: Columns,
        predictions: Mapping[str, Sequence[Columns]],
        bootstrap: Bootstrap,
        weight: Doubles | None,
    ) -> None:
        self._metrics = metrics
        self._bootstrap = bootstrap
        self._is_used: dict[str, Bools] = {of: np.isfinite(truth[of]) for of in truth}
        self._truth = self._columns(truth)
        self._predictions = {
            name: [self._columns(columns) for columns in seeds]
            for name, seeds in predictions.items()
        }
        self._points: dict[str, dict[str, Estimate]] = {}
        self._resampled: dict[str, dict[str, Doubles]] = {}
        for name in predictions:
            self._points[name] = {m: self._point(name, m, weight) for m in metrics}
            self._resampled[name] = {m: np.full(bootstrap.resamples, np.nan) for m in metrics}

    def resample(self, block: Doubles, first: int) -> None:
        """Compute all metrics in a block of resamples [b, rows], which begin with number first."""
        weights: dict[str, Weights] = {}
        for of, rows in self._is_used.items():
            weights[of] = Weights(block if rows.all() else block[:, rows])
        numbers = slice(first, first + len(block))
        for name, estimates in self._points.items():
            for m, estimate in estimates.items():
                if estimate.value is not None:
                    values = self._values(name, self._metrics[m], weights)
                    self._resampled[name][m][numbers] = values

    def scores(self) -> Scores:
        """Return all metrics with their intervals."""
        scores: dict[str, dict[str, Estimate]] = {}
        for name, estimates in self._points.items():
            scores[name] = {
                m: self._bootstrap.with_interval(estimate, self._resampled[name][m])
                for m, estimate in estimates.items()
            }
        return scores

    def differences(self) -> Differences:
        """Return the difference of every two predictors, both ways, in all metrics."""
        differences: dict[str, dict[str, dict[str, Estimate]]] = {}
        for name in self._points:
            differences[name] = {}
            for other in self._points:
                if other != name:
                    of_metrics = {m: self._difference(name, other, m) for m in self._metrics}
                    differences[name][other] = of_metrics
        return differences

    def _columns(self, values: Columns) -> dict[str, Column]:
        return {of: Column(column[self._is_used[of]]) for of, column in values.items()}

    def _point(self, name: str, m: str, weight: Doubles | None) -> Estimate:
        metric = self._metrics[m]
        of = metric.of
        counts = None if weight is None else weight[self._is_used[of]]
        seeds = self._predictions[name]
        measured = [metric.measure(columns[of], self._truth[of], counts) for columns in seeds]
        return Estimate.over_seeds(measured)

    def _values(self, name: str, metric: Metric, weights: Mapping[str, Weights]) -> Doubles:
        """Return a metric in each resample of a block: the mean over seeds, [b]."""
        of = metric.of
        truth = self._truth[of]
        seeds = self._predictions[name]
        values = [metric.function(columns[of], truth, weights[of]) for columns in seeds]
        mean: Doubles = np.mean(values, axis=0)
        return mean

    def _difference(self, name: str, other: str, m: str) -> Estimate:
        for either in (name, other):
            if self._points[either][m].value is None:
                return Estimate(None, reason=f"{either}: {self._points[either][m].reason}")
        first = self._points[name][m].value or 0.0
        second = self._points[other][m].value or 0.0
        resampled = self._resampled[name][m] - self._resampled[other][m]
        return self._bootstrap.with_interval(Estimate(first - second), resampled)
