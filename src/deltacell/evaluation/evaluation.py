"""Predictors side by side on the test part of a split: metrics, verdicts and hits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.base.text import Progress, count_text
from deltacell.cell import Cell
from deltacell.evaluation.additivity import not_additive
from deltacell.evaluation.bootstrap import Bootstrap, Estimate
from deltacell.evaluation.ceiling import Ceiling, replicate_ceiling
from deltacell.evaluation.comparison import Columns, compared
from deltacell.evaluation.coverage import IntervalCoverage
from deltacell.evaluation.groups import By, GroupResult, groups_of
from deltacell.evaluation.hits import PositiveFacts, Positives, positives
from deltacell.evaluation.metrics import METRICS
from deltacell.evaluation.tested_pairs import AmongTested, PartsBySeed, TestedZeros, among_tested
from deltacell.evaluation.verdicts import Verdict, verdict_sentence, verdicts
from deltacell.models import Prediction
from deltacell.models.fitted.predictor import Parts
from deltacell.profile.accuracy import Accuracy
from deltacell.screen import Screen, Split
from deltacell.screen.gene_keys import sorted_matrix
from deltacell.screen.hit_rule import HitRule

SCHEMA = 2

Values = npt.ArrayLike | torch.Tensor | Prediction
#: By predictor, or by predictor and seed: a number per test row and then per zero.
Predictions = Mapping[str, Values | Mapping[int, Values]]


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
    positives: PositiveFacts
    ceiling: Ceiling
    groups: tuple[GroupResult, ...]  # the whole test part first
    verdicts: tuple[Verdict, ...]  # on the whole test part, by unseen genes, beyond a threshold
    not_additive: Mapping[str, Estimate]  # share of a predictor's variance over the test sets
    tested: AmongTested | None = None  # None if the tested sets are unknown
    notes: tuple[str, ...] = ()
    on: Mapping[str, Any] | None = None  # checksum of another screen, and what was left out
    intervals: tuple[IntervalCoverage, ...] = ()  # of predictors that have some
    headline: Accuracy | None = None  # the best run beside baselines; None on another screen

    @property
    def test(self) -> GroupResult:
        """The result on the whole test part."""
        return self.groups[0]

    def group(self, label: str) -> GroupResult:
        """Return the result on a group of rows by its label, such as ``test``."""
        return next(group for group in self.groups if group.label == label)

    def beats(self, one: str, other: str, group: str = "test") -> bool:
        """Return whether one predictor beats another on a group; see `GroupResult.beats`."""
        return self.group(group).beats(one, other)

    def sentence_of(self, verdict: Verdict) -> str:
        """Return a verdict in words."""
        return verdict_sentence(self.group(verdict.group), verdict, self.bootstrap["level"])

    def to_json(self) -> JsonObject:
        """Return a JSON-serialisable dict, which `deltacell.report.evaluate` renders."""
        values = asdict(self)
        for row, verdict in zip(values["verdicts"], self.verdicts, strict=True):
            row["sentence"] = self.sentence_of(verdict)
        if self.headline is not None:
            values["headline"]["sentences"] = self.headline.sentences
        return {"schema": SCHEMA, **values}


def evaluate_predictions(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Predictions,
    *,
    hits: HitRule | None = None,
    repeats: Screen | None = None,
    bootstrap: Bootstrap | None = None,
    zeros: TestedZeros | None = None,
    beyond: HitRule | None = None,
    in_context: Bools | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Evaluation:
    """Return the metrics of predictors on the test part, with intervals.

    On a list of hits, and on rows beyond a threshold, the prediction of a predictor of two parts is
    its score given a hit; otherwise it is the expected score. With several seeds a metric is the
    mean of each seed's metric, not the metric of their mean. Intervals are over the same resamples
    of genes for all predictors of a group, so that differences are paired; they cover the choice of
    test genes, not that of the seeds.

    ``hits`` is what a hit is, by default what the screen says; ``in_context`` marks the test rows
    that a study of the context measured.
    """
    rule = screen.hit_rule if hits is None else hits
    bootstrap = bootstrap or Bootstrap()
    check_fit(cell, screen, split)
    n_expected = len(split.test) + (0 if zeros is None else len(zeros.genotypes))
    rows = _TestRows(
        screen,
        split,
        positives(screen, split.test, rule),
        _checked(predictions, n_expected),
        bootstrap,
        progress,
    )
    whole = rows.result("test", "test", np.ones(len(split.test), dtype=bool))
    groups = [whole]
    for group in groups_of(screen, split, beyond, in_context):
        if group.members.all():
            groups.append(replace(whole, by=group.by, label=group.label))
        else:
            groups.append(rows.result(group.by, group.label, group.members))
    return Evaluation(
        cell=cell.checksum,
        screen=screen.checksum,
        split=split.to_json(),
        leakage=split.leakage(screen).sentence,
        predictors={name: tuple(seeds) for name, seeds in rows.predictions.items()},
        metrics={name: metric.to_json() for name, metric in METRICS.items()},
        bootstrap=asdict(bootstrap),
        positives=rows.labels.facts,
        ceiling=replicate_ceiling(screen, split.test, repeats),
        groups=tuple(groups),
        verdicts=tuple(verdict for _, verdict in verdicts(groups)),
        not_additive={name: rows.additivity(name) for name in rows.predictions},
        tested=among_tested(
            screen,
            split,
            rows.genes,
            rows.predictions,
            rows.labels,
            rule,
            zeros,
            bootstrap,
            progress,
        ),
        notes=tuple(_notes(rows)),
    )


class _TestRows:
    """The test rows with what was measured and predicted of them."""

    def __init__(
        self,
        screen: Screen,
        split: Split,
        labels: Positives,
        predictions: PartsBySeed,
        bootstrap: Bootstrap,
        progress: Progress,
    ) -> None:
        self.split = split
        self.labels = labels
        self.predictions = predictions
        self.keys = screen.keys[split.test]
        self.score: Doubles = screen.column("score").astype(np.float64)[split.test]
        every_set = sorted_matrix(screen.genotypes.genes.numpy(), screen.offsets)
        self.genes: Ints = every_set[split.test]  # padded with -1
        self._bootstrap = bootstrap
        self._progress = progress

    def result(self, by: By, label: str, members: Bools) -> GroupResult:
        """Return all predictors on some of the rows."""
        genes = self.genes[members]
        score = self.score[members]
        classes = self.labels.label[members]
        predicted = {
            name: [self._columns(parts, by, members) for parts in by_seed.values()]
            for name, by_seed in self.predictions.items()
        }
        scores, differences = compared(
            METRICS,
            {"score": score, "class": classes},
            predicted,
            genes,
            self._bootstrap,
            label,
            progress=self._progress,
        )
        return GroupResult(
            by=by,
            label=label,
            rows=int(np.isfinite(score).sum()),
            gene_sets=len(np.unique(self.keys[members])),
            genes=int((np.unique(genes) >= 0).sum()),
            labelled=int(np.isfinite(classes).sum()),
            positives=int(np.nansum(classes)),
            scores=scores,
            differences=differences,
        )

    def _columns(self, parts: Parts, by: By, members: Bools) -> Columns:
        """Return predictions of some rows by what a metric compares them with."""
        is_among_hits = self.labels.only_hits or by == "beyond"
        every_score = parts.among_hits if is_among_hits else parts.score
        score = every_score[: len(members)][members]
        # A positive has a low score.
        return {"score": score, "class": -score}

    def additivity(self, name: str) -> Estimate:
        """Return the share of a predictor's variance that is not a sum of gene effects."""
        shares = []
        for parts in self.predictions[name].values():
            score = parts.among_hits if self.labels.only_hits else parts.score
            shares.append(not_additive(self.genes, score[: len(self.genes)]))
        return Estimate.over_seeds(shares)


def _notes(rows: _TestRows) -> list[str]:
    notes = []
    n_without_score = int(np.isnan(rows.score).sum())
    if n_without_score:
        missing = count_text(n_without_score, "test row")
        notes.append(f"Pearson, Spearman and MSE leave out {missing} without a score.")
    if not len(rows.split.unseen):
        notes.append("The split does not record how many genes of a test genotype are unseen.")
    return notes


def check_fit(cell: Cell, screen: Screen, split: Split) -> None:
    """Raise unless the genes agree and the split is of this screen and has a test part."""
    if cell.genes.systematic != screen.genes.systematic:
        what = "the screen and the cell have different genes; use screen.on(cell)"
        raise InputError(what, code="other-genes")
    split.check(screen)
    if not len(split.test):
        what = "the split has no test part; split the screen with a test share above 0"
        raise InputError(what, code="no-test-part")


def _checked(predictions: Predictions, n_expected: int) -> dict[str, dict[int | None, Parts]]:
    """Return predictions by name and seed, as arrays of the expected length."""
    checked: dict[str, dict[int | None, Parts]] = {}
    for name, values in predictions.items():
        by_seed = dict(values) if isinstance(values, Mapping) else {None: values}
        checked[name] = {
            None if seed is None else int(seed): _checked_parts(name, seed, one_seed, n_expected)
            for seed, one_seed in by_seed.items()
        }
    if not checked or not all(checked.values()):
        raise InputError("a predictor has no predictions", code="no-predictions")
    return checked


def _checked_parts(name: str, seed: int | None, values: Values, n_expected: int) -> Parts:
    prediction = values if isinstance(values, Prediction) else Prediction(values)  # type: ignore[arg-type]
    columns: dict[str, Doubles] = {}
    for part in Parts._fields:
        column = getattr(prediction, part)
        if column is None:
            continue
        columns[part] = np.asarray(column, dtype=np.float64)
        is_fine = columns[part].shape == (n_expected,) and np.isfinite(columns[part]).all()
        if not is_fine:
            what = f"'{name}', seed {seed}: expected {n_expected:,} finite predictions, of "
            what += f"split.test and then of the zeros; got the shape {columns[part].shape}"
            raise InputError(what, code="wrong-predictions")
    return Parts(**columns)
