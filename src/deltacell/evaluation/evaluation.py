"""Predictors side by side on the test part of a split: metrics, verdicts and hits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deltacell.base.arrays import Bools, Doubles, Floats, Ints
from deltacell.base.errors import InputError
from deltacell.base.text import Progress, count_text
from deltacell.cell import Cell
from deltacell.evaluation.metrics import (
    CONSTANT,
    METRICS,
    Bootstrap,
    Ceiling,
    Differences,
    Estimate,
    Metric,
    Scores,
    aupr,
    auroc,
    compared,
    not_additive,
    precision_of_first,
    replicate_ceiling,
    slope,
)
from deltacell.models import Prediction
from deltacell.models.fitted.predictor import Parts
from deltacell.report.page import sentences
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.genotypes import sorted_matrix
from deltacell.screen.grid import LARGEST_P, lists_only_hits
from deltacell.screen.screen import PERTURBATIONS

SCHEMA = 2
MAIN = "pearson"  # the metric by which a predictor is best
THRESHOLD = -0.08  # scores at or below it are hits
ZEROS = 100_000  # drawn by default
FIRST = (100, 1000)  # precision is reported of the first k sets
MOST_RESAMPLES = 400  # over all tested sets; more take minutes and hardly change an interval

_SCORE_BINS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)
_HIT_BINS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)

By = Literal["test", "unseen", "kind", "perturbation", "beyond"]
Values = npt.ArrayLike | torch.Tensor | Prediction
Predictions = Mapping[str, Values | Mapping[int, Values]]


@dataclass(frozen=True)
class GroupResult:
    """All predictors on the ``test`` part or on a group of its rows.

    Rows of a group share the number of ``unseen`` genes, the ``kind`` or the ``perturbation``, or
    their scores lie ``beyond`` a threshold.
    """

    by: By
    label: str  # such as "1 unseen gene"
    rows: int  # test rows that have a score
    gene_sets: int
    genes: int
    labelled: int  # rows that AUROC and AUPR use
    positives: int
    scores: Scores
    differences: Differences

    def beats(self, one: str, other: str) -> bool:
        """Whether the interval of the difference in Pearson correlation lies above 0.

        If the other's predictions are constant, the predictor's own interval has to.
        """
        constant = self.scores[other][MAIN].reason == CONSTANT
        counts = self.scores[one][MAIN] if constant else self.differences[one][other][MAIN]
        return counts.low is not None and counts.low > 0


@dataclass(frozen=True)
class Verdict:
    """Which predictor is best on a group of the test rows, and which ones it beats."""

    group: str
    best: str | None  # with the highest Pearson correlation
    beats: tuple[str, ...]  # the interval of the difference lies above 0
    level: tuple[str, ...]  # those it does not beat
    above_chance: bool  # the interval of its own correlation lies above 0
    sentence: str


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
    calibration: Mapping[str, Mapping[str, Any]]  # by predictor: the slope and bins of means
    sentences: tuple[str, ...]  # what counts as tested and as a hit


@dataclass(frozen=True)
class Evaluation:
    """Models and baselines side by side on the test part of one split."""

    cell: str  # checksum
    screen: str  # checksum
    split: Mapping[str, Any]
    leakage: str  # a sentence on what the test part shares with training
    predictors: Mapping[str, tuple[int | None, ...]]  # the seeds; one None if none was given
    metrics: Mapping[str, Mapping[str, str]]  # title, direction and what it compares with
    bootstrap: Mapping[str, float]
    positives: Mapping[str, Any]
    ceiling: Ceiling
    groups: tuple[GroupResult, ...]  # the whole test part first
    verdicts: tuple[Verdict, ...]  # on the whole test part, by unseen genes, beyond a threshold
    not_additive: Mapping[str, Estimate]  # share of a predictor's variance over the test sets
    tested: AmongTested | None = None  # None if the tested sets are unknown
    notes: tuple[str, ...] = ()
    on: Mapping[str, Any] | None = None  # checksum of another screen, and what was left out

    @property
    def test(self) -> GroupResult:
        return self.groups[0]

    def beats(self, one: str, other: str, group: str = "test") -> bool:
        """Whether one predictor beats another on a group of rows; see `GroupResult.beats`."""
        return next(found for found in self.groups if found.label == group).beats(one, other)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict, which `deltacell.report.evaluate` renders."""
        return {"schema": SCHEMA, **asdict(self)}


@dataclass(frozen=True, eq=False)
class TestedZeros:
    """A sample of the tested pairs of a test part that are not hits."""

    genotypes: Genotypes
    weight: float  # how many pairs each represents
    sentence: str  # how they were determined

    @classmethod
    def draw(cls, grid: Grid, split: Split, n: int = ZEROS, seed: int = 0) -> TestedZeros:
        """Draw at most `n` zeros of the test part of a split of the grid's screen."""
        there = grid.count("test", split)
        drawn = grid.draw(n, part="test", split=split, seed=seed)
        return cls(drawn, there / max(len(drawn), 1), grid.sentence)


def evaluate_predictions(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Predictions,
    *,
    threshold: float = THRESHOLD,
    repeats: Screen | None = None,
    bootstrap: Bootstrap | None = None,
    zeros: TestedZeros | None = None,
    beyond: float | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Evaluation:
    """Return the metrics of predictors on the test part, with intervals.

    On a list of hits, and on rows beyond a threshold, the prediction of a predictor of two parts is
    its score given a hit; otherwise it is the expected score. With several seeds a metric is the
    mean of each seed's metric, not the metric of their mean. Intervals are over the same resamples
    of genes for all predictors of a group, so that differences are paired; they cover the choice of
    test genes, not that of the seeds.
    """
    bootstrap = bootstrap or Bootstrap()
    check_fit(cell, screen, split)
    n_asked = len(split.test) + (0 if zeros is None else len(zeros.genotypes))
    given = _checked(predictions, n_asked)
    hits = positives(screen, split.test, threshold)
    keys, score = screen.keys[split.test], screen.column("score").astype(np.float64)[split.test]
    genes = sorted_matrix(screen.genotypes.genes.numpy(), screen.offsets)[split.test]

    def result(by: By, label: str, members: Bools) -> GroupResult:
        truth = {"score": score[members], "class": hits.label[members]}

        def columns(one: Parts) -> dict[str, Doubles]:
            found = one.among_hits if hits.only_hits or by == "beyond" else one.score
            own = found[: len(members)][members]
            # A positive has a low score.
            return {"score": own, "class": -own}

        predicted = {name: list(map(columns, seeds.values())) for name, seeds in given.items()}
        scores, differences = compared(
            METRICS,
            truth,
            predicted,
            genes[members],
            bootstrap,
            label,
            progress=progress,
        )
        return GroupResult(
            by=by,
            label=label,
            rows=int(np.isfinite(truth["score"]).sum()),
            gene_sets=len(np.unique(keys[members])),
            genes=int((np.unique(genes[members]) >= 0).sum()),
            labelled=int(np.isfinite(truth["class"]).sum()),
            positives=int(np.nansum(truth["class"])),
            scores=scores,
            differences=differences,
        )

    def additivity(seeds: Mapping[int | None, Parts]) -> Estimate:
        found = (one.among_hits if hits.only_hits else one.score for one in seeds.values())
        return Estimate.over_seeds([not_additive(genes, one[: len(genes)]) for one in found])

    groups = [result("test", "test", np.ones(len(split.test), dtype=bool))]
    for by, label, members in _groups(screen, split, beyond):
        same = replace(groups[0], by=by, label=label)
        groups.append(same if members.all() else result(by, label, members))
    notes, unscored = [], int(np.isnan(score).sum())
    if unscored:
        missing = count_text(unscored, "test row")
        notes.append(f"Pearson, Spearman and MSE leave out {missing} without a score.")
    if not len(split.unseen):
        notes.append("The split does not record how many genes of a test genotype are unseen.")
    return Evaluation(
        cell=cell.checksum,
        screen=screen.checksum,
        split=split.to_json(),
        leakage=split.leakage(screen).sentence,
        predictors={name: tuple(seeds) for name, seeds in given.items()},
        metrics={name: metric.to_json() for name, metric in METRICS.items()},
        bootstrap=asdict(bootstrap),
        positives=hits.about,
        ceiling=replicate_ceiling(screen, split.test, repeats),
        groups=tuple(groups),
        verdicts=tuple(_verdicts(groups, bootstrap.level)),
        not_additive={name: additivity(seeds) for name, seeds in given.items()},
        tested=among_tested(screen, split, genes, given, hits, zeros, bootstrap, progress),
        notes=tuple(notes),
    )


def check_fit(cell: Cell, screen: Screen, split: Split) -> None:
    """Raise unless the genes agree and the split is of this screen and has a test part."""
    if cell.genes.systematic != screen.genes.systematic:
        what = "the screen and the cell have different genes; use screen.on(cell)"
        raise InputError(what, code="other-genes")
    split.check(screen)
    if not len(split.test):
        what = "the split has no test part; split the screen with a test share above 0"
        raise InputError(what, code="no-test-part")


def _checked(predictions: Predictions, n_asked: int) -> dict[str, dict[int | None, Parts]]:
    given: dict[str, dict[int | None, Parts]] = {}
    for name, values in predictions.items():
        by_seed: Mapping[Any, Any] = values if isinstance(values, Mapping) else {None: values}
        given[name] = {}
        for seed, one in by_seed.items():
            parts = one if isinstance(one, Prediction) else Prediction(one)
            columns: dict[str, Any] = {
                part: np.asarray(getattr(parts, part), dtype=np.float64)
                for part in Parts._fields
                if getattr(parts, part) is not None
            }
            for column in columns.values():
                if column.shape != (n_asked,) or not np.isfinite(column).all():
                    what = f"'{name}', seed {seed}: expected {n_asked:,} finite predictions, of "
                    what += f"split.test and then of the zeros; got the shape {column.shape}"
                    raise InputError(what, code="wrong-predictions")
            given[name][None if seed is None else int(seed)] = Parts(**columns)
    if not given or not all(given.values()):
        raise InputError("a predictor has no predictions", code="no-predictions")
    return given


def _groups(screen: Screen, split: Split, beyond: float | None) -> Iterator[tuple[By, str, Bools]]:
    """Yield groups of the test rows: what their rows share, a label, and a mask."""
    for number in np.unique(split.unseen):
        yield "unseen", count_text(int(number), "unseen gene"), split.unseen == number
    kind, sizes = np.array(screen.kind)[split.test], np.diff(screen.offsets)[split.test]
    # Ordered by size, not by name, so that digenic comes before trigenic.
    for size in np.unique(sizes):
        yield "kind", str(kind[np.argmax(sizes == size)]), sizes == size
    # One bit for each perturbation among the genes of a row.
    owner, perturbation = screen.genotypes.owner.numpy(), screen.column("perturbation")
    codes: Ints = np.zeros(len(screen), dtype=np.int64)
    for bit, name in enumerate(PERTURBATIONS):
        codes[np.unique(owner[perturbation == name])] |= 1 << bit
    for code in np.unique(codes[split.test]):
        names = [name for bit, name in enumerate(PERTURBATIONS) if code >> bit & 1]
        yield "perturbation", " + ".join(names) or "other", codes[split.test] == code
    if beyond is not None:
        far = np.abs(screen.column("score")[split.test]) >= np.float32(beyond)
        if far.any():
            yield "beyond", f"a score of {beyond:g} or more from 0", far


def _verdicts(groups: Sequence[GroupResult], level: float) -> Iterator[Verdict]:
    by_unseen = sum(group.by == "unseen" for group in groups) > 1
    for group in groups:
        if group.by not in ("test", "beyond") and not (group.by == "unseen" and by_unseen):
            continue
        own = {name: scores[MAIN] for name, scores in group.scores.items()}
        defined = {name: one.value for name, one in own.items() if one.value is not None}
        best = max(defined, key=defined.__getitem__, default=None)
        differences = {} if best is None else group.differences[best]
        beats = tuple(name for name in differences if group.beats(best or "", name))
        found: dict[str, Any] = {"best": best, "beats": beats}
        found["level"] = tuple(name for name in differences if name not in beats)
        found["above_chance"] = best is not None and (own[best].low or 0) > 0
        about = {"own": own, "differences": {name: d[MAIN] for name, d in differences.items()}}
        words = sentences("verdict.txt", group=group, percent=100 * level, **about, **found)
        yield Verdict(group.label, **found, sentence=words[0])


class Positives(NamedTuple):
    """Which rows are positives for AUROC and AUPR."""

    label: Doubles  # 1 for a positive, 0 for a negative, NaN for a row that is left out, [rows]
    only_hits: bool  # the classes are the signs of hits, not hits and the rest
    about: dict[str, Any]


def positives(screen: Screen, rows: Ints, threshold: float) -> Positives:
    """Return which rows of a screen are positives.

    If the whole screen is a list of hits (see `lists_only_hits`), the classes are the signs of the
    significant rows, because a threshold would make all rows positive.
    """
    score, p_value = screen.column("score")[rows], screen.column("p_value")[rows]
    only_hits, sign = lists_only_hits(screen), screen.column("sign")[rows]
    label = _low(score, p_value, threshold)
    if only_hits:
        label = np.where((sign != 0) & ~(p_value > LARGEST_P), sign < 0, np.nan)
    known = label[np.isfinite(label)]
    about = {
        "among": "hits" if only_hits else "tested",
        "threshold": threshold,
        "largest_p": LARGEST_P if only_hits or np.isfinite(p_value).any() else None,
        "rows": len(known),
        "positives": int(known.sum()),
        "left_out": len(label) - len(known),
    }
    return Positives(label, only_hits, about)


def _low(score: Floats, p_value: Floats, threshold: float) -> Doubles:
    """Return whether scores are at most a threshold, and significant if p-values are known."""
    # Scores are float32, in which -0.08 differs from the threshold's float64.
    used, low = np.isfinite(score), score <= np.float32(threshold)
    if np.isfinite(p_value).any():
        used, low = used & np.isfinite(p_value), low & (p_value <= LARGEST_P)
    return np.where(used, low, np.nan).astype(np.float64)


def among_tested(
    screen: Screen,
    split: Split,
    genes: Ints,
    given: Mapping[str, Mapping[int | None, Parts]],
    wanted: Positives,
    zeros: TestedZeros | None,
    bootstrap: Bootstrap,
    progress: Progress,
) -> AmongTested | None:
    """Return how well predictors find hits among all tested sets, and their calibration.

    If the screen lists only hits, its pairs are the hits, and ``zeros``, which are required, the
    rest. Otherwise a hit is a score beyond the threshold, of either sign. Hits of either sign are
    ranked by the probability of a hit, or else by the distance of the score from 0, and negative
    hits by the expected score. `genes` are padded with -1.
    """
    test, score = split.test, screen.column("score")[split.test]
    n_zeros, each = (0, 1.0) if zeros is None else (len(zeros.genotypes), zeros.weight)
    if wanted.only_hits:
        if zeros is None or not n_zeros:
            return None
        # A grid consists of pairs, so there are no zeros for sets of other sizes.
        hit = np.where((genes >= 0).sum(axis=1) == 2, 1.0, np.nan)
        negative = (screen.column("sign")[test] < 0).astype(np.float64)
        drawn = f"{n_zeros:,} of these pairs were drawn, each to represent {each:.4g}"
        said = [zeros.sentence, f"Of the test part, {drawn}."]
    else:
        limit = abs(wanted.about["threshold"])
        hit = _low(-np.abs(score), screen.column("p_value")[test], -limit)
        negative = wanted.label
        said = [
            f"A hit, among all tested sets, is a score of {limit:g} or more from 0, "
            f"with a p-value of at most {LARGEST_P:g} if p-values are known.",
        ]
    usable = np.isfinite(score) & np.isfinite(hit) & np.isfinite(negative)
    used: Bools = np.concatenate([usable, np.ones(n_zeros, dtype=bool)])
    if not usable.any():
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
    predicted = {name: list(map(columns, seeds.values())) for name, seeds in given.items()}
    fewer = replace(bootstrap, resamples=min(bootstrap.resamples, MOST_RESAMPLES))
    scores, differences = compared(
        metrics,
        truth,
        predicted,
        genes[used],
        fewer,
        "tested",
        weight=weight,
        progress=progress,
    )
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
            | _calibration(next(iter(seeds.values())), used, truth, weight)
            for name, seeds in given.items()
        },
        sentences=tuple(said),
    )


def _calibration(
    parts: Parts,
    used: Bools,
    truth: Mapping[str, Doubles],
    weight: Doubles,
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
        # Bin edges are quantiles over the tested sets.
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
