"""90 % intervals for predicted scores: conformal, by the number of unseen genes.

The distances of measured from predicted scores in the validation part, in units of an expected
distance, have quantiles; around a prediction these span an interval. It holds the measured score of
an exchangeable genotype with a probability of at least 90 %, however good the predictor is and
whatever the distribution of errors (locally weighted split conformal prediction, with one group for
each number of unseen genes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.optimize import nnls

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.files import JsonObject
from deltacell.models.interface import Prediction
from deltacell.screen import Genotypes
from deltacell.train.data import TrainingData

LEVEL = 0.9
#: Validation rows from which a group has quantiles of its own.
FEWEST_ROWS = 60
#: Validation rows from which the expected distance is learned; half of them learn it.
FEWEST_TO_LEARN = 400
#: Genotypes with more unseen genes are in one group.
MOST_UNSEEN = 2
_PRIOR_ROWS = 5  # rows of a gene by which its distance is drawn towards that of all genes
_SMALLEST_SHARE = 0.2  # of the mean expected distance, below which no expectation is


class Interval(NamedTuple):
    """The ends of the intervals of some genotypes, [batch] each."""

    low: Doubles
    high: Doubles


@dataclass(frozen=True, eq=False)
class GeneDistances:
    """What the training part says of each gene, [genes] each."""

    is_seen: Bools
    distance: Doubles  # the mean distance of its scores from the mean of all

    @classmethod
    def of(cls, data: TrainingData) -> Self:
        """Return the facts of the genes of a cell."""
        genotypes, scores = data.part(data.split.train)
        distance = np.abs(scores - scores.mean())
        sizes = np.diff(genotypes.offsets.numpy())
        genes = genotypes.genes.numpy()
        n_rows = np.bincount(genes, minlength=data.cell.n_genes)
        total = np.bincount(genes, np.repeat(distance, sizes), minlength=data.cell.n_genes)
        mean = (total + _PRIOR_ROWS * distance.mean()) / (n_rows + _PRIOR_ROWS)
        return cls(n_rows > 0, mean)

    def n_unseen(self, genotypes: Genotypes) -> Ints:
        """Return how many genes of each genotype are unseen, at most `MOST_UNSEEN`, [batch]."""
        is_unseen = ~self.is_seen[genotypes.genes.numpy()]
        n_unseen = np.bincount(genotypes.owner.numpy(), is_unseen, minlength=len(genotypes))
        limited: Ints = np.minimum(n_unseen, MOST_UNSEEN).astype(np.int64)
        return limited

    def columns(self, genotypes: Genotypes, predicted: Doubles, center: float) -> Doubles:
        """Return what the expected distance is a sum of, [batch, 4].

        A constant, how far the prediction is from the mean score, and the largest and the smallest
        distance of a gene.
        """
        begins = genotypes.offsets.numpy()[:-1]
        distance = self.distance[genotypes.genes.numpy()]
        largest = np.maximum.reduceat(distance, begins)
        smallest = np.minimum.reduceat(distance, begins)
        constant = np.ones(len(predicted))
        return np.stack([constant, np.abs(predicted - center), largest, smallest], axis=1)


class Quantiles(NamedTuple):
    """The distances that hold 90 % of the rows of a group, in units of the expected distance."""

    low: float
    high: float

    @classmethod
    def of(cls, distances: Doubles) -> Quantiles | None:
        """Return the ends that hold a further exchangeable row with at least `LEVEL`.

        They are order statistics of the n rows, of which each side leaves out the same number;
        None for too few rows.
        """
        n = len(distances)
        n_outside = int(np.floor((1 - LEVEL) / 2 * (n + 1) + 1e-9))  # of n + 1 rows, on each side
        if n < FEWEST_ROWS or not n_outside:
            return None
        ascending = np.sort(distances)
        return cls(float(ascending[n_outside - 1]), float(ascending[n - n_outside]))


@dataclass(frozen=True, eq=False)
class Intervals:
    """The intervals of one predictor; the weights and quantiles are from the validation part."""

    weights: Doubles  # of the columns of `GeneDistances`
    center: float  # the mean score of the training part
    smallest: float  # expected distance
    by_unseen: Mapping[int, Quantiles]
    unknown: Quantiles  # around the mean score, as if nothing was predicted

    @classmethod
    def calibrated(
        cls,
        genes: GeneDistances,
        genotypes: Genotypes,
        predicted: Doubles,
        measured: Doubles,
        *,
        center: float,
        seed: int,
    ) -> Self | None:
        """Return intervals by what was predicted and measured of validation rows, [rows].

        With enough rows, half of them learn the expected distance, a non-negative sum of columns,
        and the others calibrate. None for too few rows.
        """
        distances = measured - predicted
        columns = genes.columns(genotypes, predicted, center)
        n_rows = len(measured)
        is_calibrating = np.ones(n_rows, dtype=bool)
        weights = np.array([1.0, 0.0, 0.0, 0.0])
        smallest = 1.0
        if n_rows >= FEWEST_TO_LEARN:
            shuffled = np.random.default_rng([seed, n_rows]).permutation(n_rows)
            learning = shuffled[: n_rows // 2]
            weights = nnls(columns[learning], np.abs(distances[learning]))[0]
            is_calibrating[learning] = False
            smallest = _SMALLEST_SHARE * float(np.abs(distances[learning]).mean())
            if not weights.any() or not smallest > 0:
                weights, smallest = np.array([1.0, 0.0, 0.0, 0.0]), 1.0
        expected = np.maximum(columns @ weights, smallest)
        unseen = genes.n_unseen(genotypes)
        by_unseen = {}
        for number in range(MOST_UNSEEN + 1):
            of_group = is_calibrating & (unseen == number)
            quantiles = Quantiles.of(distances[of_group] / expected[of_group])
            if quantiles is not None:
                by_unseen[number] = quantiles
        unknown = Quantiles.of(measured - center)
        if unknown is None:
            return None
        return cls(weights, center, smallest, by_unseen, unknown)

    def around(self, genes: GeneDistances, genotypes: Genotypes, predicted: Doubles) -> Interval:
        """Return the intervals of some genotypes around their predicted scores.

        A group without quantiles has those of the next group with more unseen genes, which are
        wider; beyond all groups, the quantiles of scores around their mean stand for a predictor
        that knows nothing.
        """
        expected = np.maximum(genes.columns(genotypes, predicted, self.center) @ self.weights, 0)
        expected = np.maximum(expected, self.smallest)
        unseen = genes.n_unseen(genotypes)
        low = np.empty(len(predicted))
        high = np.empty(len(predicted))
        for number in range(MOST_UNSEEN + 1):
            rows = unseen == number
            calibrated = [group for group in self.by_unseen if group >= number]
            unit = expected[rows] if calibrated else 1.0
            quantiles = self.by_unseen[min(calibrated)] if calibrated else self.unknown
            low[rows] = predicted[rows] + quantiles.low * unit
            high[rows] = predicted[rows] + quantiles.high * unit
        return Interval(low, high)

    def to_json(self) -> JsonObject:
        """Return a JSON-serialisable dict."""
        return {
            "weights": self.weights.tolist(),
            "center": self.center,
            "smallest": self.smallest,
            "by_unseen": {str(number): list(q) for number, q in self.by_unseen.items()},
            "unknown": list(self.unknown),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the intervals that `to_json` wrote."""
        return cls(
            np.array(values["weights"]),
            values["center"],
            values["smallest"],
            {int(number): Quantiles(*ends) for number, ends in values["by_unseen"].items()},
            Quantiles(*values["unknown"]),
        )


def calibrated_on_validation(data: TrainingData, prediction: Prediction) -> Intervals | None:
    """Return intervals by a prediction of the validation part; None if that is too small.

    Measured sets of a list of hits are hits, so intervals are around the score of a hit.
    """
    genotypes, measured = data.part(data.split.validation)
    if not len(genotypes):
        return None
    _, of_training = data.part(data.split.train)
    return Intervals.calibrated(
        GeneDistances.of(data),
        genotypes,
        prediction.among_hits.double().numpy(),
        measured,
        center=float(of_training.mean()),
        seed=data.split.seed,
    )
