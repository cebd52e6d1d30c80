"""What counts as a hit, and how well hits are found among all tested sets, hits or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from deltacell.arrays import Bools, Doubles, Ints
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
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.grid import lists_only_hits
from deltacell.words import Progress, count_text

Side = Literal["below", "above"]

#: How many zeros are drawn by default.
ZEROS = 100_000
#: There are many sets, so that more resamples would take minutes and move no interval visibly.
MOST_RESAMPLES = 400
#: Of how many sets at the head the precision is given.
FIRST = (100, 1000)

_SCORE_BINS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)
_HIT_BINS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


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
        possible = self.side in get_args(Side) and np.isfinite(self.score)
        if not possible or (self.p_value is not None and not 0 < self.p_value <= 1):
            raise InputError(
                f"{self} is not possible: a finite score, the side below or above, and a p-value "
                "above 0 and at most 1 are required",
                code="invalid-threshold",
            )


@dataclass(frozen=True, eq=False)
class Positives:
    """Which rows are positives for AUROC and AUPR."""

    label: Doubles  # 1 for a positive, 0 for another, NaN for a row that is left out, [rows]
    direction: Literal[-1, 1]  # times a prediction, so that larger means positive
    among: Literal["tested", "hits"]  # hits against all else, or one sign of hits against the other
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict without the rows."""
        n, rows = _counts(self.label)
        return {"among": self.among, "rows": rows, "positives": n, "sentence": self.sentence}


def positives(screen: Screen, rows: Ints, threshold: Threshold | None = None) -> Positives:
    """Return which rows of a screen are positives.

    Where the whole screen is a list of hits, a threshold would call all rows positive; then the
    classes are the signs among the significant rows. See `lists_only_hits`.
    """
    threshold = Threshold() if threshold is None else threshold
    below = threshold.side == "below"
    direction: Literal[-1, 1] = -1 if below else 1
    if lists_only_hits(screen, threshold.p_value):
        sign = screen.column("sign")[rows]
        used = sign != 0
        if threshold.p_value is not None:
            used &= ~(screen.column("p_value")[rows] > threshold.p_value)
        label = np.where(used, (sign < 0) == below, np.nan).astype(np.float64)
        one, other = ("negative", "positive") if below else ("positive", "negative")
        n, among = _counts(label)
        sentence = (
            "The screen lists only significant interactions, so AUROC and AUPR tell "
            f"{one} from {other} ones among these ({n:,} of {among:,} test rows "
            f"{'is' if n == 1 else 'are'} {one}), and not interactions from pairs without one."
            + _left_out(~used, "neither sign is known or significant")
        )
        return Positives(label, direction, "hits", sentence)
    score = screen.column("score")[rows]
    # Scores are kept in float32, where a written -0.08 is not the threshold's float64.
    limit = np.float32(threshold.score)
    label, significance, why = _significant(
        screen, rows, score <= limit if below else score >= limit, threshold
    )
    n, among = _counts(label)
    sentence = (
        f"A positive, for AUROC and AUPR, is a score of {threshold.score:g} or {threshold.side}"
        f"{significance} ({n:,} of {among:,} test rows)." + _left_out(np.isnan(label), why)
    )
    return Positives(label, direction, "tested", sentence)


@dataclass(frozen=True, eq=False)
class Columns:
    """What one seed of a predictor says of test rows, and of the zeros after them; [rows]."""

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
    """Tested pairs of a test part that are not hits, each for several."""

    genotypes: Genotypes
    weight: float  # how many pairs each stands for
    sentence: str  # what is assumed about them

    @classmethod
    def draw(cls, grid: Grid, split: Split, n: int = ZEROS, seed: int = 0) -> Zeros:
        """Draw at most `n` zeros of the test part of a split of the grid's screen."""
        if n < 1:
            raise InputError(f"{n} zeros were asked for; expected 1 or more", code="invalid-number")
        there = grid.count("test", split)
        drawn = grid.draw(n, part="test", split=split, seed=seed)
        return cls(drawn, there / max(len(drawn), 1), grid.sentence)


def among_tested(
    screen: Screen,
    split: Split,
    genes: Ints,
    given: Mapping[str, Mapping[int | None, Columns]],
    threshold: Threshold,
    zeros: Zeros | None,
    bootstrap: Bootstrap,
    progress: Progress | None = None,
) -> AmongTested | None:
    """Return how well predictors find hits among all tested sets, and how calibrated they are.

    Where the screen lists only hits, its pairs are the hits, and ``zeros`` the rest; without these
    there is no result. Where it lists all that was tested, a hit is a score beyond the threshold,
    of either sign.

    Hits of either sign are ranked by the probability of a hit of predictors of two parts, and by
    the distance of the score from 0 of others. Negative hits (or positive ones, where the threshold
    is above) are ranked by the score to expect, of all predictors. `genes` are those of each test
    row, [test rows, largest set], padded with -1.
    """
    bootstrap = replace(bootstrap, resamples=min(bootstrap.resamples, MOST_RESAMPLES))
    rows = _Rows(screen, split, genes, threshold, zeros)
    complete = {
        name: by_seed
        for name, by_seed in given.items()
        if all(len(one.score) == len(rows.used) for one in by_seed.values())
    }
    if rows.empty or not complete:
        return None
    below, population = threshold.side == "below", float(rows.weight.sum())
    metrics = _metrics(population, "negative" if below else "positive")
    comparison = Comparison()
    truth = {of: Column(values) for of, values in rows.truth.items()}
    tables = {}
    for name, by_seed in complete.items():
        for one in by_seed.values():
            score = one.score[rows.used]
            columns = {
                "score": Column(score),
                "hit": Column(one.any_hit[rows.used]),
                "negative": Column(-score if below else score),
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
    left_out = ", ".join(name for name in given if name not in complete)
    said = [f"Without predictions of the zeros: {left_out}."] if left_out else []
    return AmongTested(
        rows=int(rows.used[: len(split.test)].sum()),
        zeros=int(rows.used[len(split.test) :].sum()),
        weight=1.0 if zeros is None else zeros.weight,
        hit_share=float(rows.weight @ rows.truth["hit"]) / population,
        metrics={
            name: {"title": m.title, "of": m.of, "better": m.better} for name, m in metrics.items()
        },
        scores=scores,
        differences=differences,
        calibration=tables,
        sentences=(*rows.sentences, *said),
    )


class _Rows:
    """Test rows and zeros: which are used, what is true of these, and how much each counts."""

    def __init__(
        self, screen: Screen, split: Split, genes: Ints, threshold: Threshold, zeros: Zeros | None
    ) -> None:
        wanted = positives(screen, split.test, threshold)
        only_hits = wanted.among == "hits"
        score = screen.column("score").astype(np.float64)[split.test]
        n, n_zeros = len(score), 0 if zeros is None else len(zeros.genotypes)
        weight_of_zero = 1.0 if zeros is None else zeros.weight
        self.sentences: list[str] = []
        usable: Bools = np.isfinite(score)
        if only_hits:
            # A grid is of pairs, so that other sets of a hit list have no zeros to be told from.
            usable &= (genes >= 0).sum(axis=1) == 2
            one_sign = (screen.column("sign")[split.test] < 0) == (threshold.side == "below")
            hit, negative = np.ones(n), one_sign.astype(np.float64)
            if zeros is not None:
                drawn = f"Of the test part, {n_zeros:,} of these pairs were drawn, each for "
                self.sentences += [zeros.sentence, f"{drawn}{zeros.weight:.4g}."]
        else:
            far = np.abs(screen.column("score")[split.test]) >= np.float32(abs(threshold.score))
            hit, negative = _significant(screen, split.test, far, threshold)[0], wanted.label
            usable &= np.isfinite(hit) & np.isfinite(negative)
            significant = f", with a p-value of at most {threshold.p_value:g} where there are any."
            self.sentences.append(
                "A hit, among all tested sets, is a score of "
                f"{abs(threshold.score):g} or more from 0"
                + ("." if threshold.p_value is None else significant)
            )
        self.empty = not usable.any() or (only_hits and not n_zeros)
        self.used: Bools = np.concatenate([usable, np.ones(n_zeros, dtype=bool)])
        self.truth = {
            of: np.concatenate([values, np.zeros(n_zeros)])[self.used]
            for of, values in (("score", score), ("hit", hit), ("negative", negative))
        }
        weight = np.concatenate([np.ones(n), np.full(n_zeros, weight_of_zero)])
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
    kinds: tuple[tuple[Literal["hit", "negative"], str], ...] = (
        ("hit", "hits"),
        ("negative", f"{named} hits"),
    )
    for of, title in kinds:
        found.append(Metric(f"auroc_{of}", f"AUROC, {title}", of, "higher", auroc))
        found.append(Metric(f"aupr_{of}", f"AUPR, {title}", of, "higher", aupr))
        for k in FIRST:
            if k <= population:
                name, what = f"precision_{k}_{of}", f"first {k:,}, {title}"
                found.append(Metric(name, what, of, "higher", precision_of_first(k, population)))
    return {metric.name: metric for metric in found}


def _calibration(columns: Columns, rows: _Rows) -> dict[str, Any]:
    score = columns.score[rows.used]
    hit = None if columns.hit is None else columns.hit[rows.used]
    truth, once = Column(rows.truth["score"]), Weights(rows.weight[None])
    return {
        "slope": float(slope(Column(score), truth, once)[0]) if np.ptp(score) > 0 else None,
        "by_score": _bins(score, _SCORE_BINS, score, hit, rows),
        "by_hit": None if hit is None else _bins(hit, _HIT_BINS, score, hit, rows),
    }


def _bins(
    by: Doubles, shares: tuple[float, ...], score: Doubles, hit: Doubles | None, rows: _Rows
) -> list[dict[str, float | None]]:
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
