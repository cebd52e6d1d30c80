"""How well predictors find hits among all tested sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.text import Progress
from deltacell.evaluation.bootstrap import Bootstrap
from deltacell.evaluation.comparison import Columns, Differences, Scores, compared
from deltacell.evaluation.hits import Positives
from deltacell.evaluation.metrics import (
    METRICS,
    Metric,
    aupr,
    auroc,
    precision_of_first,
    slope,
)
from deltacell.models.fitted.predictor import Parts
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.hit_rule import HitRule

ZEROS = 100_000  # drawn by default
FIRST = (100, 1000)  # precision is reported of the first k sets
MOST_RESAMPLES = 400  # over all tested sets; more take minutes and hardly change an interval

# Bins are divided at these quantiles of the tested sets.
_SCORE_BINS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)
_HIT_BINS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)

#: By predictor and seed, the predictions of the test rows and then of the zeros.
PartsBySeed = Mapping[str, Mapping[int | None, Parts]]


@dataclass(frozen=True, eq=False)
class TestedZeros:
    """A sample of the tested pairs of a test part that are not hits."""

    genotypes: Genotypes
    weight: float  # how many pairs each represents
    sentence: str  # how they were determined

    @classmethod
    def draw(cls, grid: Grid, split: Split, n: int = ZEROS, seed: int = 0) -> TestedZeros:
        """Draw at most `n` zeros of the test part of a split of the grid's screen."""
        n_zeros = grid.count("test", split)
        drawn = grid.draw(n, part="test", split=split, seed=seed)
        return cls(drawn, n_zeros / max(len(drawn), 1), grid.sentence)


@dataclass(frozen=True)
class CalibrationBin:
    """Tested sets with similar predictions; None if no prediction has the part."""

    sets: float  # how many tested sets the bin stands for
    predicted_score: float | None
    measured_score: float | None
    predicted_hits: float | None  # the mean probability of a hit
    measured_hits: float | None  # the share of hits


@dataclass(frozen=True)
class PredictorCalibration:
    """How the predictions of the first seed of a predictor agree with what was measured."""

    slope: float | None  # of measured on predicted scores
    by_score: list[CalibrationBin]
    by_hit: list[CalibrationBin] | None  # None for a predictor without a probability of a hit


@dataclass(frozen=True)
class AmongTested:
    """All predictors among all tested sets, at the share of hits among these."""

    rows: int  # test rows with a score
    zeros: int  # tested pairs that are not listed
    weight: float  # how many tested pairs each zero represents
    hit_share: float
    metrics: Mapping[str, Mapping[str, str]]
    scores: Scores
    differences: Differences
    calibration: Mapping[str, PredictorCalibration]  # by predictor
    sentences: tuple[str, ...]  # what counts as tested and as a hit


@dataclass(frozen=True, eq=False)
class _TestedSets:
    """The test rows that are used, followed by the zeros."""

    is_used: Bools  # of the test rows and the zeros, [test rows + zeros]
    weight: Doubles  # how many tested sets each represents, [used]
    score: Doubles  # measured, 0 for a zero, [used]
    hit: Doubles  # 1 for a hit of either sign, [used]
    negative: Doubles  # 1 for a hit with a negative score, [used]
    genes: Ints  # padded with -1, [used, largest]
    sentences: tuple[str, ...]

    @property
    def n_tested(self) -> float:
        return float(self.weight.sum())

    @property
    def truth(self) -> Columns:
        return {"score": self.score, "hit": self.hit, "negative": self.negative}

    def columns(self, parts: Parts) -> Columns:
        """Return predictions by what a metric compares them with; a hit has a large one."""
        hit = np.abs(parts.score) if parts.hit is None else parts.hit
        used = self.is_used
        return {"score": parts.score[used], "hit": hit[used], "negative": -parts.score[used]}


def among_tested(
    screen: Screen,
    split: Split,
    genes: Ints,
    predictions: PartsBySeed,
    labels: Positives,
    rule: HitRule,
    zeros: TestedZeros | None,
    bootstrap: Bootstrap,
    progress: Progress,
) -> AmongTested | None:
    """Return how well predictors find hits among all tested sets, and their calibration.

    If the screen lists only hits, its pairs are the hits, and ``zeros``, which are required, the
    rest. Otherwise a hit is what the ``rule`` says, of either sign. Hits of either sign are
    ranked by the probability of a hit, or else by the distance of the score from 0, and negative
    hits by the expected score. `genes` are those of the test rows, padded with -1.

    The result is None if nothing is known of the sets that are not hits.
    """
    tested = _tested_sets(screen, split, genes, labels, rule, zeros)
    if tested is None:
        return None
    metrics = dict(_metrics(tested.n_tested))
    columns = {
        name: [tested.columns(parts) for parts in by_seed.values()]
        for name, by_seed in predictions.items()
    }
    scores, differences = compared(
        metrics,
        tested.truth,
        columns,
        tested.genes,
        replace(bootstrap, resamples=min(bootstrap.resamples, MOST_RESAMPLES)),
        "tested",
        weight=tested.weight,
        progress=progress,
    )
    calibrations = {}
    for name, by_seed in predictions.items():
        slope_of_first = scores[name]["slope"].seeds[0]
        first = next(iter(by_seed.values()))
        calibrations[name] = _calibration(slope_of_first, first, tested)
    n_zeros = 0 if zeros is None else len(zeros.genotypes)
    return AmongTested(
        rows=int(tested.is_used.sum()) - n_zeros,
        zeros=n_zeros,
        weight=1.0 if zeros is None else zeros.weight,
        hit_share=float(tested.weight @ tested.hit) / tested.n_tested,
        metrics={name: metric.to_json() for name, metric in metrics.items()},
        scores=scores,
        differences=differences,
        calibration=calibrations,
        sentences=tested.sentences,
    )


def _tested_sets(
    screen: Screen,
    split: Split,
    genes: Ints,
    labels: Positives,
    rule: HitRule,
    zeros: TestedZeros | None,
) -> _TestedSets | None:
    """Return the tested sets with what was measured; None if there are none to compare."""
    score = screen.column("score")[split.test].astype(np.float64)
    if labels.only_hits:
        if zeros is None or not len(zeros.genotypes):
            return None
        # A grid consists of pairs, so there are no zeros for sets of other sizes.
        is_pair = (genes >= 0).sum(axis=1) == 2
        hit = np.where(is_pair, 1.0, np.nan)
        negative = (screen.column("sign")[split.test] < 0).astype(np.float64)
        sentences: tuple[str, ...] = (zeros.sentence, _sentence_of_zeros(zeros))
    else:
        p_value = screen.column("p_value")[split.test]
        hit = rule.is_hit(screen.column("score")[split.test], p_value)
        negative = labels.label
        sentences = (_sentence_of_hits(rule),)
    is_usable = np.isfinite(score) & np.isfinite(hit) & np.isfinite(negative)
    if not is_usable.any():
        return None
    n_zeros = 0 if zeros is None else len(zeros.genotypes)
    is_used: Bools = np.concatenate([is_usable, np.ones(n_zeros, dtype=bool)])
    weight_of_zero = 1.0 if zeros is None else zeros.weight
    weight = np.repeat([1.0, weight_of_zero], [len(score), n_zeros])
    nothing = np.zeros(n_zeros)
    every_set = genes if zeros is None else np.concatenate([genes, _genes_of(zeros, genes)])
    return _TestedSets(
        is_used,
        weight[is_used],
        score=np.concatenate([score, nothing])[is_used],
        hit=np.concatenate([hit, nothing])[is_used],
        negative=np.concatenate([negative, nothing])[is_used],
        genes=every_set[is_used],
        sentences=sentences,
    )


def _genes_of(zeros: TestedZeros, genes: Ints) -> Ints:
    """Return the pairs of the zeros, padded in front with -1 to the width of other genes."""
    padded = np.full((len(zeros.genotypes), genes.shape[1]), -1)
    padded[:, -2:] = zeros.genotypes.genes.numpy().reshape(-1, 2)
    return padded


def _sentence_of_zeros(zeros: TestedZeros) -> str:
    drawn = f"{len(zeros.genotypes):,} of these pairs were drawn"
    return f"Of the test part, {drawn}, each to represent {zeros.weight:.4g}."


def _sentence_of_hits(rule: HitRule) -> str:
    return (
        f"A hit, among all tested sets, is a score of {rule.limits_text}, "
        f"with a p-value of at most {rule.largest_p:g} if p-values are known."
    )


def _metrics(n_tested: float) -> Iterator[tuple[str, Metric]]:
    """Yield the metrics among all tested sets, by name."""
    yield "pearson", METRICS["pearson"]
    yield "slope", Metric("slope", "score", "one", slope)
    kinds: dict[Literal["hit", "negative"], str] = {"hit": "hits", "negative": "negative hits"}
    for kind, title in kinds.items():
        yield f"auroc_{kind}", Metric(f"AUROC, {title}", kind, "higher", auroc)
        yield f"aupr_{kind}", Metric(f"AUPR, {title}", kind, "higher", aupr)
        for k in FIRST:
            if k <= n_tested:
                precision = precision_of_first(k, n_tested)
                metric = Metric(f"first {k:,}, {title}", kind, "higher", precision)
                yield f"precision_{k}_{kind}", metric


def _calibration(
    slope_of_first: float | None, parts: Parts, tested: _TestedSets
) -> PredictorCalibration:
    score = parts.score[tested.is_used]
    hit = None if parts.hit is None else parts.hit[tested.is_used]
    by_score = _bins(score, _SCORE_BINS, score, hit, tested)
    by_hit = None if hit is None else _bins(hit, _HIT_BINS, score, hit, tested)
    return PredictorCalibration(slope_of_first, by_score, by_hit)


def _bins(
    values: Doubles,
    quantiles: tuple[float, ...],
    score: Doubles,
    hit: Doubles | None,
    tested: _TestedSets,
) -> list[CalibrationBin]:
    """Return the tested sets in bins by a prediction, [used], divided at quantiles of it."""
    order = np.argsort(values, kind="stable")
    n_up_to = np.cumsum(tested.weight[order])
    places = np.searchsorted(n_up_to, np.array(quantiles) * n_up_to[-1])
    limits = np.unique(values[order][places])
    place = np.searchsorted(limits, values, side="right")
    bin_of_set: Ints = np.unique(place, return_inverse=True)[1]
    n_sets = np.bincount(bin_of_set, tested.weight)

    def means(column: Doubles) -> list[float]:
        sums = np.bincount(bin_of_set, tested.weight * column)
        averages: list[float] = (sums / n_sets).tolist()
        return averages

    predicted_scores = means(score)
    measured_scores = means(tested.score)
    predicted_hits = None if hit is None else means(hit)
    measured_hits = means(tested.hit)
    return [
        CalibrationBin(
            n,
            predicted_scores[number],
            measured_scores[number],
            None if predicted_hits is None else predicted_hits[number],
            measured_hits[number],
        )
        for number, n in enumerate(n_sets.tolist())
    ]
