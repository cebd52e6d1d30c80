"""Models and baselines side by side on the test part of a split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import AnyArray, Bools
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.ceiling import replicate_ceiling
from deltacell.evaluate.evaluation import Estimate, Evaluation, GroupResult
from deltacell.evaluate.fits import check_fit
from deltacell.evaluate.groups import Group, groups
from deltacell.evaluate.metrics import METRICS, Metric
from deltacell.evaluate.positives import Positives, Threshold, positives
from deltacell.evaluate.ranking import Column, Weights
from deltacell.evaluate.verdicts import REFERENCE, verdicts
from deltacell.screen import Screen, Split

Doubles = npt.NDArray[np.float64]
Values = npt.ArrayLike | torch.Tensor
Predictions = Mapping[str, Values | Mapping[int, Values]]
Progress = Callable[[str, int, int], None]


def evaluate(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Predictions,
    *,
    threshold: Threshold | None = None,
    repeats: Screen | None = None,
    bootstrap: Bootstrap | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Return how well predictors do on the test part, with intervals, side by side.

    Every metric is of the rows of a group at once. With several seeds of a predictor it is the mean
    over them of each seed's metric, not the metric of their mean. Intervals are over resamples of
    gene sets, the same for all predictors of a group, so that differences are paired; they tell
    the chance of the test rows, and `Estimate.seed_deviation` that of the seeds.

    Parameters
    ----------
    cell
        The wild type.
    screen
        What was measured, over the genes of the cell.
    split
        Its parts.
    predictions
        By name of the predictor, one score a test row in the order of ``split.test`` and in the
        units of the screen; or such scores by seed. The one called ``additive`` is what the others
        are compared with.
    threshold
        From where on a score is a hit, for AUROC and AUPR.
    repeats
        The screen before its repeats were merged, for the replicate ceiling.
    bootstrap
        How intervals are found.
    progress
        Called as ``progress(what, done, total)``.
    """
    bootstrap = Bootstrap() if bootstrap is None else bootstrap
    check_fit(cell, screen, split)
    given = _checked(predictions, screen, split)
    test = _TestRows(screen, split, positives(screen, split.test, threshold))
    results: list[GroupResult] = []
    for group in groups(screen, split):
        if results and group.members.all():
            results.append(replace(results[0], by=group.by, label=group.label))
        else:
            results.append(_group_result(group, test, given, bootstrap, progress))
    return Evaluation(
        cell=cell.checksum,
        screen=screen.checksum,
        split=split.to_json(),
        leakage=split.leakage(screen).sentence,
        predictors={name: tuple(of_name) for name, of_name in given.items()},
        metrics={
            name: {"title": m.title, "of": m.of, "better": m.better} for name, m in METRICS.items()
        },
        bootstrap={
            "resamples": bootstrap.resamples,
            "level": bootstrap.level,
            "seed": bootstrap.seed,
        },
        positives=test.positives.to_json(),
        ceiling=replicate_ceiling(
            screen,
            split.test,
            repeats=repeats,
            only_hits=test.positives.among == "hits",
            bootstrap=bootstrap,
        ),
        groups=tuple(results),
        verdicts=verdicts(results, bootstrap.level),
        notes=_notes(test, given, split),
    )


_Given = dict[str, dict[int | None, Doubles]]


class _TestRows:
    """What was measured in the test rows, and which of them have a score and a class."""

    def __init__(self, screen: Screen, split: Split, labelled: Positives) -> None:
        self.keys: AnyArray = screen.keys[split.test]
        self.score: Doubles = screen.column("score").astype(np.float64)[split.test]
        self.positives = labelled
        self.scored: Bools = np.isfinite(self.score)
        self.labelled: Bools = np.isfinite(labelled.label)


def _checked(predictions: Predictions, screen: Screen, split: Split) -> _Given:
    if not predictions:
        raise InputError("there is nothing to evaluate: no predictions were given")
    given: _Given = {}
    for name, values in predictions.items():
        by_seed: Mapping[Any, Values] = values if isinstance(values, Mapping) else {None: values}
        if not by_seed:
            raise InputError(f"the predictions of '{name}' are of no seed at all")
        given[name] = {
            None if seed is None else int(seed): _column(column, _said(name, seed), screen, split)
            for seed, column in by_seed.items()
        }
    return given


def _column(values: Values, said: str, screen: Screen, split: Split) -> Doubles:
    plain = values.detach().cpu() if isinstance(values, torch.Tensor) else values
    column = np.asarray(plain, dtype=np.float64)
    if column.shape != split.test.shape:
        raise InputError(
            f"the predictions of {said} have the shape {column.shape}, and the test part has "
            f"{len(split.test):,} rows",
            fix="Predict the rows of split.test, in their order.",
        )
    wrong = ~np.isfinite(column)
    if wrong.any():
        first = int(split.test[np.argmax(wrong)])
        genes = screen.genotypes.genes[screen.offsets[first] : screen.offsets[first + 1]]
        named = " ".join(screen.genes[int(gene)] for gene in genes)
        raise InputError(
            f"{int(wrong.sum()):,} of {len(column):,} predictions of {said} "
            f"{'is not a finite number' if wrong.sum() == 1 else 'are not finite numbers'}, "
            f"first that of {named} (row {first} of the screen)"
        )
    return column


def _said(name: str, seed: int | None) -> str:
    return f"'{name}'" if seed is None else f"'{name}' with seed {seed}"


def _group_result(
    group: Group,
    test: _TestRows,
    given: _Given,
    bootstrap: Bootstrap,
    progress: Progress | None,
) -> GroupResult:
    members = group.members
    parts = {of: _Part(of, test, members) for of in ("score", "class")}
    each = {
        (name, seed, metric.name): one
        for name, by_seed in given.items()
        for seed, prediction in by_seed.items()
        for part in parts.values()
        for metric, one in part.metrics(prediction)
    }
    done = 0
    for block in bootstrap.weights(test.keys[members], group.label):
        weights = {of: Weights(part.of_mine(block)) for of, part in parts.items()}
        if all(part.is_all for part in parts.values()):
            # The same ranks then serve both.
            weights["class"] = weights["score"]
        for one in each.values():
            one.resample(weights[one.metric.of])
        done += len(block)
        if progress is not None:
            progress(f"resamples of {group.label}", done, bootstrap.resamples)
    scores: dict[str, dict[str, Estimate]] = {}
    drawn: dict[tuple[str, str], Doubles] = {}
    for name, by_seed in given.items():
        scores[name] = {}
        for metric in METRICS:
            of_seeds = [each[name, seed, metric] for seed in by_seed]
            drawn[name, metric] = np.mean([one.drawn for one in of_seeds], axis=0)
            scores[name][metric] = _estimate(of_seeds, drawn[name, metric], bootstrap)
    return GroupResult(
        by=group.by,
        label=group.label,
        rows=int((test.scored & members).sum()),
        gene_sets=len(np.unique(test.keys[members])),
        labelled=int((test.labelled & members).sum()),
        positives=int(np.nansum(test.positives.label[members])),
        scores=scores,
        differences=_differences(scores, drawn, bootstrap) if REFERENCE in given else {},
    )


class _Part:
    """Those rows of a group that some metrics look at, as they have a score, or a class."""

    def __init__(self, of: str, test: _TestRows, members: Bools) -> None:
        self._of = of
        has = test.scored if of == "score" else test.labelled
        self._direction = 1 if of == "score" else test.positives.direction
        self._used = has & members
        self._among_members = has[members]
        self._truth = Column((test.score if of == "score" else test.positives.label)[self._used])

    @property
    def is_all(self) -> bool:
        return bool(self._among_members.all())

    def of_mine(self, block: Doubles) -> Doubles:
        return block if self.is_all else block[:, self._among_members]

    def metrics(self, prediction: Doubles) -> Iterator[tuple[Metric, _OneSeed]]:
        column = Column(self._direction * prediction[self._used])
        for metric in METRICS.values():
            if metric.of == self._of:
                yield metric, _OneSeed(metric, column, self._truth)


class _OneSeed:
    """One metric of one seed of a predictor on a group, and its values in the resamples."""

    def __init__(self, metric: Metric, prediction: Column, truth: Column) -> None:
        self.metric = metric
        self._prediction = prediction
        self._truth = truth
        self._blocks: list[Doubles] = []
        self.reason = metric.undefined(prediction.values, truth.values)
        self.value = metric(prediction.values, truth.values)

    def resample(self, weights: Weights) -> None:
        if self.reason is None:
            values = self.metric.function(self._prediction, self._truth, weights)
        else:
            values = np.full(len(weights.total), np.nan)
        self._blocks.append(values)

    @property
    def drawn(self) -> Doubles:
        return np.concatenate(self._blocks)


def _estimate(of_seeds: list[_OneSeed], drawn: Doubles, bootstrap: Bootstrap) -> Estimate:
    values = tuple(one.value for one in of_seeds)
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        reason = next(one.reason for one in of_seeds if one.value is None)
        return Estimate(None, None, None, reason=reason or "it is not a number", seeds=values)
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return _with_interval(float(np.mean(known)), drawn, bootstrap, values, deviation)


def _differences(
    scores: Mapping[str, Mapping[str, Estimate]],
    drawn: Mapping[tuple[str, str], Doubles],
    bootstrap: Bootstrap,
) -> dict[str, dict[str, Estimate]]:
    differences: dict[str, dict[str, Estimate]] = {}
    for name in scores:
        if name == REFERENCE:
            continue
        differences[name] = {}
        for metric in METRICS:
            pair = scores[name][metric], scores[REFERENCE][metric]
            if pair[0].value is None or pair[1].value is None:
                whose = name if pair[0].value is None else REFERENCE
                reason = f"{whose}: {pair[pair[0].value is not None].reason}"
                differences[name][metric] = Estimate(None, None, None, reason=reason)
            else:
                between = drawn[name, metric] - drawn[REFERENCE, metric]
                value = pair[0].value - pair[1].value
                differences[name][metric] = _with_interval(value, between, bootstrap)
    return differences


def _with_interval(
    value: float,
    drawn: Doubles,
    bootstrap: Bootstrap,
    seeds: tuple[float | None, ...] = (),
    deviation: float | None = None,
) -> Estimate:
    interval = bootstrap.interval(drawn)
    if interval is None:
        undefined = int((~np.isfinite(drawn)).sum())
        reason = f"it is not defined in {undefined:,} of {len(drawn):,} resamples"
        return Estimate(value, None, None, reason, seeds, deviation)
    return Estimate(value, *interval, None, seeds, deviation)


def _notes(test: _TestRows, given: _Given, split: Split) -> tuple[str, ...]:
    notes = []
    unscored = int((~test.scored).sum())
    if unscored:
        notes.append(
            f"{unscored:,} of {len(test.score):,} test rows {'has' if unscored == 1 else 'have'} "
            "no score; Pearson, Spearman and MSE leave them out."
        )
    if REFERENCE not in given:
        notes.append(
            f"The baseline '{REFERENCE}' is not among the predictions, so nothing is compared "
            "with it."
        )
    if not len(split.unseen):
        notes.append("The split does not say how many genes of a test genotype are unseen.")
    return tuple(notes)
