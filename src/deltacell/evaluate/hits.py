"""What counts as a hit, and how well hits are found among all tested sets, hits or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from deltacell.arrays import Bools, Doubles, Floats, Ints
from deltacell.evaluate.metrics import (
    METRICS,
    Bootstrap,
    Differences,
    Metric,
    Scores,
    aupr,
    auroc,
    compared,
    precision_of_first,
    slope,
)
from deltacell.models.baselines.baseline import Parts
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.grid import lists_only_hits
from deltacell.words import Progress

#: A score of so much or less is a hit.
THRESHOLD = -0.08
#: How many zeros are drawn by default.
ZEROS = 100_000
#: The largest p-value of a hit, where a screen has p-values.
LARGEST_P = 0.05
#: There are many sets, so that more resamples would take minutes and move no interval visibly.
MOST_RESAMPLES = 400
#: Of how many sets at the head the precision is given.
FIRST = (100, 1000)

_SCORE_BINS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)
_HIT_BINS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


class Positives(NamedTuple):
    """Which rows are positives for AUROC and AUPR."""

    label: Doubles  # 1 for a positive, 0 for another, NaN for a row that is left out, [rows]
    only_hits: bool  # negative hits against positive ones, and not hits against all else
    threshold: float
    largest_p: float | None = LARGEST_P  # None without p-values

    def to_json(self) -> dict[str, Any]:
        known = self.label[np.isfinite(self.label)]
        return {
            "among": "hits" if self.only_hits else "tested",
            "threshold": self.threshold,
            "largest_p": self.largest_p,
            "rows": len(known),
            "positives": int(known.sum()),
            "left_out": len(self.label) - len(known),
        }


def positives(screen: Screen, rows: Ints, threshold: float) -> Positives:
    """Return which rows of a screen are positives.

    Where the whole screen is a list of hits, a threshold would call all rows positive; then the
    classes are the signs among the significant rows. See `lists_only_hits`.
    """
    score, p_value = screen.column("score")[rows], screen.column("p_value")[rows]
    if lists_only_hits(screen, LARGEST_P):
        sign = screen.column("sign")[rows]
        used = (sign != 0) & ~(p_value > LARGEST_P)
        label = np.where(used, sign < 0, np.nan).astype(np.float64)
        return Positives(label, True, threshold)
    has_p = bool(np.isfinite(p_value).any())
    return Positives(
        _low(score, p_value, threshold), False, threshold, LARGEST_P if has_p else None
    )


def _low(score: Floats, p_value: Floats, threshold: float) -> Doubles:
    """Return whether scores are at most a threshold, and significant where p-values are known."""
    # Scores are kept in float32, where a written -0.08 is not the threshold's float64.
    used, low = np.isfinite(score), score <= np.float32(threshold)
    if np.isfinite(p_value).any():
        used, low = used & np.isfinite(p_value), low & (p_value <= LARGEST_P)
    return np.where(used, low, np.nan).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Zeros:
    """Tested pairs of a test part that are not hits, each for several."""

    genotypes: Genotypes
    weight: float  # how many pairs each stands for
    sentence: str  # what is assumed about them

    @classmethod
    def draw(cls, grid: Grid, split: Split, n: int = ZEROS, seed: int = 0) -> Zeros:
        """Draw at most `n` zeros of the test part of a split of the grid's screen."""
        there = grid.count("test", split)
        drawn = grid.draw(n, part="test", split=split, seed=seed)
        return cls(drawn, there / max(len(drawn), 1), grid.sentence)


@dataclass(frozen=True)
class AmongTested:
    """All predictors among all tested sets, hits or not, at the share of hits that these have."""

    rows: int  # test rows with a score
    zeros: int  # tested pairs that are not listed
    weight: float  # how many tested pairs each of the latter stands for
    hit_share: float
    metrics: Mapping[str, Mapping[str, str]]
    scores: Scores
    differences: Differences
    calibration: Mapping[str, Mapping[str, Any]]  # by predictor: the slope and bins of means
    sentences: tuple[str, ...]  # what counts as tested and as a hit


def among_tested(
    screen: Screen,
    split: Split,
    genes: Ints,
    given: Mapping[str, Mapping[int | None, Parts]],
    wanted: Positives,
    zeros: Zeros | None,
    bootstrap: Bootstrap,
    progress: Progress,
) -> AmongTested | None:
    """Return how well predictors find hits among all tested sets, and how calibrated they are.

    Where the screen lists only hits, its pairs are the hits, and ``zeros`` the rest; without these
    there is no result. Where it lists all that was tested, a hit is a score beyond the threshold,
    of either sign. Hits of either sign are ranked by the probability of a hit, or else by the
    distance of the score from 0, and negative hits by the score to expect. `genes` are those of
    each test row, padded with -1.
    """
    test, score = split.test, screen.column("score")[split.test]
    n_zeros, each = (0, 1.0) if zeros is None else (len(zeros.genotypes), zeros.weight)
    if wanted.only_hits:
        # A grid is of pairs, so that other sets of a hit list have no zeros to be told from.
        hit = np.where((genes >= 0).sum(axis=1) == 2, 1.0, np.nan)
        negative = (screen.column("sign")[test] < 0).astype(np.float64)
        drawn = f"{n_zeros:,} of these pairs were drawn, each for {each:.4g}"
        said = [] if zeros is None else [zeros.sentence, f"Of the test part, {drawn}."]
    else:
        limit = abs(wanted.threshold)
        hit = _low(-np.abs(score), screen.column("p_value")[test], -limit)
        negative = wanted.label
        said = [
            f"A hit, among all tested sets, is a score of {limit:g} or more from 0, "
            f"with a p-value of at most {LARGEST_P:g} where there are any."
        ]
    usable = np.isfinite(score) & np.isfinite(hit) & np.isfinite(negative)
    used: Bools = np.concatenate([usable, np.ones(n_zeros, dtype=bool)])
    complete = {
        name: list(seeds.values())
        for name, seeds in given.items()
        if all(len(one.score) == len(used) for one in seeds.values())
    }
    if not usable.any() or (wanted.only_hits and not n_zeros) or not complete:
        return None
    weight = np.repeat([1.0, each], [len(test), n_zeros])[used]
    truth = {
        of: np.concatenate([values.astype(np.float64), np.zeros(n_zeros)])[used]
        for of, values in (("score", score), ("hit", hit), ("negative", negative))
    }
    if zeros is not None:
        of_zeros = np.full((n_zeros, genes.shape[1]), -1)
        of_zeros[:, -2:] = zeros.genotypes.genes.numpy().reshape(-1, 2)
        genes = np.concatenate([genes, of_zeros])

    def columns(one: Parts) -> dict[str, Doubles]:
        hit = np.abs(one.score) if one.hit is None else one.hit
        return {"score": one.score[used], "hit": hit[used], "negative": -one.score[used]}

    population = float(weight.sum())
    metrics = {"pearson": METRICS["pearson"], "slope": Metric("slope", "score", "one", slope)}
    kinds: dict[Literal["hit", "negative"], str] = {"hit": "hits", "negative": "negative hits"}
    for of, title in kinds.items():
        metrics[f"auroc_{of}"] = Metric(f"AUROC, {title}", of, "higher", auroc)
        metrics[f"aupr_{of}"] = Metric(f"AUPR, {title}", of, "higher", aupr)
        for k in (k for k in FIRST if k <= population):
            first = precision_of_first(k, population)
            metrics[f"precision_{k}_{of}"] = Metric(f"first {k:,}, {title}", of, "higher", first)
    scores, differences = compared(
        metrics,
        truth,
        {name: list(map(columns, seeds)) for name, seeds in complete.items()},
        genes[used],
        replace(bootstrap, resamples=min(bootstrap.resamples, MOST_RESAMPLES)),
        "tested",
        weight=weight,
        progress=progress,
    )
    if left_out := ", ".join(name for name in given if name not in complete):
        said.append(f"Without predictions of the zeros: {left_out}.")
    return AmongTested(
        rows=int(usable.sum()),
        zeros=n_zeros,
        weight=each,
        hit_share=float(weight @ truth["hit"]) / population,
        metrics={name: metric.to_json() for name, metric in metrics.items()},
        scores=scores,
        differences=differences,
        calibration={
            name: {"slope": scores[name]["slope"].seeds[0]}
            | _calibration(seeds[0], used, truth, weight)
            for name, seeds in complete.items()
        },
        sentences=tuple(said),
    )


def _calibration(
    parts: Parts, used: Bools, truth: Mapping[str, Doubles], weight: Doubles
) -> dict[str, Any]:
    """Return means within bins of sets by their predicted score, and by probability of a hit."""
    score, hit = parts.score[used], None if parts.hit is None else parts.hit[used]
    means = {
        "predicted_score": score,
        "measured_score": truth["score"],
        "predicted_hits": np.full(len(score), np.nan) if hit is None else hit,
        "measured_hits": truth["hit"],
    }

    def bins(by: Doubles, shares: tuple[float, ...]) -> list[dict[str, float | None]]:
        # The edges of the bins have given shares of the tested sets below them.
        order = np.argsort(by, kind="stable")
        below = np.cumsum(weight[order])
        edges = np.unique(by[order][np.searchsorted(below, np.array(shares) * below[-1])])
        _, at = np.unique(np.searchsorted(edges, by, side="right"), return_inverse=True)
        sets = np.bincount(at, weight)
        found: dict[str, Any] = {"sets": sets}
        found |= {name: np.bincount(at, weight * one) / sets for name, one in means.items()}
        return [
            {name: None if np.isnan(one[b]) else float(one[b]) for name, one in found.items()}
            for b in range(len(sets))
        ]

    by_hit = None if hit is None else bins(hit, _HIT_BINS)
    return {"by_score": bins(score, _SCORE_BINS), "by_hit": by_hit}
