"""Models and baselines side by side on the test part of a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

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
from deltacell.evaluate.verdicts import REFERENCE, verdicts
from deltacell.screen import Screen, Split

Doubles = npt.NDArray[np.float64]
Predictions = Mapping[str, npt.ArrayLike | Mapping[int, npt.ArrayLike]]
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
    """What was measured in the test rows, and which of them each metric looks at."""

    def __init__(self, screen: Screen, split: Split, labelled: Positives) -> None:
        self.keys: AnyArray = screen.keys[split.test]
        self.score: Doubles = screen.column("score").astype(np.float64)[split.test]
        self.positives = labelled
        self.scored: Bools = np.isfinite(self.score)
        self.labelled: Bools = np.isfinite(labelled.label)

    def rows(self, metric: Metric) -> Bools:
        return self.scored if metric.of == "score" else self.labelled

    def truth(self, metric: Metric) -> Doubles:
        return self.score if metric.of == "score" else self.positives.label

    def turned(self, metric: Metric, prediction: Doubles) -> Doubles:
        return prediction if metric.of == "score" else self.positives.direction * prediction


def _checked(predictions: Predictions, screen: Screen, split: Split) -> _Given:
    if not predictions:
        raise InputError("there is nothing to evaluate: no predictions were given")
    given: _Given = {}
    for name, values in predictions.items():
        by_seed: Mapping[Any, npt.ArrayLike] = (
            values if isinstance(values, Mapping) else {None: values}
        )
        if not by_seed:
            raise InputError(f"the predictions of '{name}' are of no seed at all")
        given[name] = {
            seed: _column(column, _said(name, seed), screen, split)
            for seed, column in by_seed.items()
        }
    return given


def _column(values: npt.ArrayLike, said: str, screen: Screen, split: Split) -> Doubles:
    column = np.asarray(values, dtype=np.float64)
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
            f"{int(wrong.sum()):,} of {len(column):,} predictions of {said} are not finite "
            f"numbers, first that of {named} (row {first} of the screen)"
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
    each = {
        (name, seed, metric.name): _OneSeed(metric, prediction, test, members)
        for name, by_seed in given.items()
        for seed, prediction in by_seed.items()
        for metric in METRICS.values()
    }
    done = 0
    for weights in bootstrap.weights(test.keys[members], group.label):
        for one in each.values():
            one.resample(weights)
        done += weights.shape[1]
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


class _OneSeed:
    """One metric of one seed of a predictor on a group, and its values in the resamples."""

    def __init__(
        self, metric: Metric, prediction: Doubles, test: _TestRows, members: Bools
    ) -> None:
        used = test.rows(metric) & members
        self._function = metric.function
        self._prediction = test.turned(metric, prediction)[used]
        self._truth = test.truth(metric)[used]
        # Weights come for the rows of the group, of which the metric may look at a part.
        self._rows = None if np.array_equal(used, members) else used[members]
        self._blocks: list[Doubles] = []
        self.reason = metric.undefined(self._prediction, self._truth)
        self.value = metric(self._prediction, self._truth)

    def resample(self, weights: Doubles) -> None:
        if self.reason is not None:
            self._blocks.append(np.full(weights.shape[1], np.nan))
            return
        mine = weights if self._rows is None else weights[self._rows]
        empty = mine.sum(axis=0) == 0
        # A resample without any of the rows is undefined; the ones only avoid dividing by 0.
        values = self._function(self._prediction, self._truth, np.where(empty, 1.0, mine))
        self._blocks.append(np.where(empty, np.nan, values))

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
            f"{unscored:,} of {len(test.score):,} test rows have no score; Pearson, Spearman and "
            "MSE leave them out."
        )
    if REFERENCE not in given:
        notes.append(
            f"The baseline '{REFERENCE}' is not among the predictions, so nothing is compared "
            "with it."
        )
    if not len(split.unseen):
        notes.append("The split does not say how many genes of a test genotype are unseen.")
    return tuple(notes)
