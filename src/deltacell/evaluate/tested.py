"""Among all tested sets, hits or not: how well hits are found, and how calibrated scores are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Bools, Ints
from deltacell.errors import InputError
from deltacell.evaluate.bootstrap import Bootstrap, Comparison
from deltacell.evaluate.evaluation import AmongTested
from deltacell.evaluate.metrics import (
    Column,
    Metric,
    Weights,
    aupr,
    auroc,
    pearson,
    precision_of_first,
    slope,
)
from deltacell.evaluate.positives import Threshold, hits_of_either_sign, positives
from deltacell.screen import Genotypes, Grid, Screen, Split

Doubles = npt.NDArray[np.float64]

ZEROS = 100_000
"""How many zeros are drawn unless told otherwise."""

MOST_RESAMPLES = 400
"""There are many sets, so that more resamples would take minutes and move no interval visibly."""

FIRST = (100, 1000)
"""Of how many sets at the head the precision is given."""

_SCORE_BINS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)
_HIT_BINS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


@dataclass(frozen=True, eq=False)
class Columns:
    """What one seed of a predictor says of test rows, and of the zeros after them.

    Parameters
    ----------
    score, hit, given_hit
        As in `Prediction`, [rows].
    """

    score: Doubles
    hit: Doubles | None = None
    given_hit: Doubles | None = None

    @property
    def among_hits(self) -> Doubles:
        """The score to expect of a hit."""
        return self.score if self.given_hit is None else self.given_hit

    @property
    def any_hit(self) -> Doubles:
        """What hits of either sign are ranked by: their probability, else the distance to 0."""
        return np.abs(self.score) if self.hit is None else self.hit


@dataclass(frozen=True, eq=False)
class Zeros:
    """Tested pairs of a test part that are not hits, each for several.

    Parameters
    ----------
    genotypes
        The pairs.
    weight
        How many each stands for, so that all of them are as many as the test part has.
    sentence
        What is assumed about them.
    """

    genotypes: Genotypes
    weight: float
    sentence: str

    @classmethod
    def draw(cls, grid: Grid, split: Split, n: int = ZEROS, seed: int = 0) -> Zeros:
        """Draw zeros of the test part.

        Parameters
        ----------
        grid
            What was tested.
        split
            A split of the grid's screen.
        n
            At most how many.
        seed
            Random seed.
        """
        if n < 1:
            raise InputError(f"{n} zeros were asked for; expected 1 or more")
        there = grid.count("test", split)
        drawn = grid.draw(n, part="test", split=split, seed=seed)
        return cls(drawn, there / max(len(drawn), 1), grid.sentence)


def among_tested(
    screen: Screen,
    split: Split,
    genes: Ints,
    given: Mapping[str, Mapping[int | None, Columns]],
    threshold: Threshold,
    zeros: Zeros | None = None,
    bootstrap: Bootstrap | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> AmongTested | None:
    """Return how well predictors find hits among all tested sets, and how calibrated they are.

    Where the screen lists only hits, its pairs are the hits, and ``zeros`` the rest; without these
    there is no result. Where it lists all that was tested, a hit is a score beyond the threshold,
    of either sign.

    Hits of either sign are ranked by the probability of a hit of predictors of two parts, and by
    the distance of the score from 0 of others. Negative hits (or positive ones, where the threshold
    is above) are ranked by the score to expect, of all predictors.

    Parameters
    ----------
    screen, split
        What was measured, and its parts.
    genes
        Of each test row, [test rows, largest set], padded with -1.
    given
        By predictor and seed.
    threshold
        From where on a score is a hit.
    zeros
        Of the test part.
    bootstrap
        How intervals are found.
    progress
        Called as ``progress(what, done, total)``.
    """
    bootstrap = Bootstrap() if bootstrap is None else bootstrap
    bootstrap = replace(bootstrap, resamples=min(bootstrap.resamples, MOST_RESAMPLES))
    rows = _Rows(screen, split, genes, threshold, zeros)
    if rows.empty:
        return None
    n = len(rows.used)
    complete = {
        name: by_seed
        for name, by_seed in given.items()
        if all(len(one.score) == n for one in by_seed.values())
    }
    if not complete:
        return None
    metrics = _metrics(
        float(rows.weight.sum()), "negative" if threshold.side == "below" else "positive"
    )
    comparison = Comparison()
    truth = {of: Column(values) for of, values in rows.truth.items()}
    direction = -1 if threshold.side == "below" else 1
    tables = {}
    for name, by_seed in complete.items():
        for one in by_seed.values():
            columns = {
                "score": Column(one.score[rows.used]),
                "hit": Column(one.any_hit[rows.used]),
                "negative": Column(direction * one.score[rows.used]),
            }
            for metric in metrics.values():
                comparison.add(name, metric, columns[metric.of], truth[metric.of], rows.weight)
        tables[name] = _calibration(next(iter(by_seed.values())), rows)
    done = 0
    for block in bootstrap.weights(rows.genes, "tested"):
        block *= rows.weight
        comparison.resample(dict.fromkeys(truth, Weights(block)))
        done += len(block)
        if progress is not None:
            progress("resamples of all tested sets", done, bootstrap.resamples)
    scores, differences = comparison.result(bootstrap)
    hits = float(rows.weight @ rows.truth["hit"])
    left_out = [name for name in given if name not in complete]
    sentences = [*rows.sentences]
    if left_out:
        sentences.append(f"Without predictions of the zeros: {', '.join(left_out)}.")
    return AmongTested(
        rows=int(rows.used[: len(split.test)].sum()),
        zeros=int(rows.used[len(split.test) :].sum()),
        weight=1.0 if zeros is None else zeros.weight,
        hit_share=hits / float(rows.weight.sum()),
        metrics={
            name: {"title": m.title, "of": m.of, "better": m.better} for name, m in metrics.items()
        },
        scores=scores,
        differences=differences,
        calibration=tables,
        sentences=tuple(sentences),
    )


class _Rows:
    """Test rows and zeros: which are used, what is true of these, and how much each counts."""

    def __init__(
        self, screen: Screen, split: Split, genes: Ints, threshold: Threshold, zeros: Zeros | None
    ) -> None:
        wanted = positives(screen, split.test, threshold)
        only_hits = wanted.among == "hits"
        score = screen.column("score").astype(np.float64)[split.test]
        scored = np.isfinite(score)
        n, n_zeros = len(score), 0 if zeros is None else len(zeros.genotypes)
        self.sentences: list[str] = []
        # A grid is of pairs, so that other sets of a hit list have no zeros to be told from.
        usable: Bools = scored & ((genes >= 0).sum(axis=1) == 2 if only_hits else True)
        if only_hits:
            one_sign = (screen.column("sign")[split.test] < 0) == (threshold.side == "below")
            hit, negative = np.ones(n), one_sign.astype(np.float64)
            if zeros is not None:
                self.sentences.append(zeros.sentence)
                self.sentences.append(
                    f"Of the test part, {n_zeros:,} of these pairs were drawn, each for "
                    f"{zeros.weight:.4g}."
                )
        else:
            hit, negative = hits_of_either_sign(screen, split.test, threshold), wanted.label
            usable &= np.isfinite(hit) & np.isfinite(negative)
            self.sentences.append(
                "A hit, among all tested sets, is a score of "
                f"{abs(threshold.score):g} or more from 0"
                + (
                    "."
                    if threshold.p_value is None
                    else f", with a p-value of at most {threshold.p_value:g} where there are any."
                )
            )
        self.empty = not usable.any() or (only_hits and not n_zeros)
        self.used: Bools = np.concatenate([usable, np.ones(n_zeros, dtype=bool)])
        truth = {"score": score, "hit": hit, "negative": negative}
        nothing = np.zeros(n_zeros)
        self.truth = {
            of: np.concatenate([values, nothing])[self.used] for of, values in truth.items()
        }
        weight = np.concatenate(
            [np.ones(n), np.full(n_zeros, 1.0 if zeros is None else zeros.weight)]
        )
        self.weight: Doubles = weight[self.used]
        of_zeros = np.full((n_zeros, genes.shape[1]), -1, dtype=np.int64)
        if zeros is not None:
            of_zeros[:, -2:] = zeros.genotypes.genes.numpy().reshape(-1, 2)
        self.genes: Ints = np.concatenate([genes, of_zeros])[self.used]


def _metrics(population: float, named: str) -> dict[str, Metric]:
    found = [
        Metric("pearson", "Pearson", "score", "higher", pearson),
        Metric("slope", "slope", "score", "one", slope),
    ]
    for of, title in (("hit", "hits"), ("negative", f"{named} hits")):
        found.append(Metric(f"auroc_{of}", f"AUROC, {title}", of, "higher", auroc))  # type: ignore[arg-type]
        found.append(Metric(f"aupr_{of}", f"AUPR, {title}", of, "higher", aupr))  # type: ignore[arg-type]
        for k in FIRST:
            if k <= population:
                at_head = precision_of_first(k, population)
                what = f"first {k:,}, {title}"
                found.append(Metric(f"precision_{k}_{of}", what, of, "higher", at_head))  # type: ignore[arg-type]
    return {metric.name: metric for metric in found}


def _calibration(columns: Columns, rows: _Rows) -> dict[str, Any]:
    score = columns.score[rows.used]
    hit = None if columns.hit is None else columns.hit[rows.used]
    once = Weights(rows.weight[None])
    varies = np.ptp(score) > 0
    found = float(slope(Column(score), Column(rows.truth["score"]), once)[0]) if varies else None
    return {
        "slope": found,
        "by_score": _bins(score, _SCORE_BINS, score, hit, rows),
        "by_hit": None if hit is None else _bins(hit, _HIT_BINS, score, hit, rows),
    }


def _bins(
    by: Doubles, shares: tuple[float, ...], score: Doubles, hit: Doubles | None, rows: _Rows
) -> list[dict[str, float | int | None]]:
    """Return means within bins, whose edges have given shares of the tested sets below them."""
    order = np.argsort(by, kind="stable")
    below = np.cumsum(rows.weight[order])
    edges = by[order][np.searchsorted(below, np.array(shares) * below[-1])]
    at = np.searchsorted(np.unique(edges), by, side="right")
    total = np.bincount(at, rows.weight)
    filled = np.flatnonzero(total)

    def mean(values: Doubles) -> Doubles:
        return np.bincount(at, rows.weight * values, len(total))[filled] / total[filled]

    columns: dict[str, Doubles | None] = {
        "sets": total[filled].astype(np.float64),
        "predicted_score": mean(score),
        "measured_score": mean(rows.truth["score"]),
        "predicted_hits": None if hit is None else mean(hit),
        "measured_hits": mean(rows.truth["hit"]),
    }
    return [
        {name: None if values is None else float(values[i]) for name, values in columns.items()}
        for i in range(len(filled))
    ]
