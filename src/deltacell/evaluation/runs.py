"""Runs and baselines evaluated on a test part or on another screen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from deltacell.base.arrays import Floats
from deltacell.base.checks import check_choice
from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.base.frames import data_frame
from deltacell.base.rendering import Shown, report_function
from deltacell.base.text import Progress
from deltacell.evaluation.coverage import interval_coverages
from deltacell.evaluation.evaluation import Evaluation, evaluate_predictions
from deltacell.evaluation.figure_values import PredictorFigures, figure_values
from deltacell.evaluation.fitted_baselines import fitted_baseline
from deltacell.evaluation.given import AnyPredictions, compare_given, is_given
from deltacell.evaluation.groups import MAIN
from deltacell.evaluation.rows import (
    EvaluatedRows,
    EvaluationOptions,
    compared_data,
    evaluated_rows,
    measured_by_context,
)
from deltacell.models.interface import Prediction, RelationWeights
from deltacell.models.registry import BASELINES
from deltacell.profile.accuracy import Accuracy, sentence_of_residual
from deltacell.profile.record import RUN_FILE
from deltacell.screen import Genotypes, Screen, Split
from deltacell.train.accuracy import record_accuracy
from deltacell.train.data import TrainingData
from deltacell.train.loaded_runs import AnyRun, LoadedRun, as_list, labels_of, load_runs
from deltacell.train.predictor import TrainedPredictor

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: A run, the name of a baseline, or predictions of anybody.
AnyPredictor = AnyRun | AnyPredictions

#: By name and seed.
Predictors = dict[str, dict[int, TrainedPredictor]]


@dataclass(frozen=True, eq=False)
class EvaluatedRuns(Shown):
    """Runs and baselines evaluated on one test part."""

    printed_by: ClassVar[str] = "evaluate:print_evaluation"

    evaluation: Evaluation
    data: TrainingData  # what they were tested on
    split: Split  # with the test rows that were used
    predictions: dict[str, Floats]  # by predictor: one score per test row, by the first seed
    # By predictor that weights relations: their weights for the genes of the test part, in order.
    weights: dict[str, RelationWeights]

    def to_json(self) -> JsonObject:
        """Return the evaluation as a JSON-serialisable dict."""
        return self.evaluation.to_json()

    def to_pandas(self) -> pd.DataFrame:
        """Return the metrics on the test part, one row per predictor and metric."""
        rows = []
        for name, scores in self.evaluation.test.scores.items():
            for metric, estimate in scores.items():
                rows.append((name, metric, estimate.value, estimate.low, estimate.high))
        return data_frame(rows, ["predictor", "metric", "value", "low", "high"])

    def plot(self, metric: str = MAIN, axes: Axes | None = None) -> Axes:
        """Plot a metric of each predictor, such as ``aupr``, with its interval."""
        check_choice("metric", metric, self.evaluation.metrics)
        plot_metric = report_function("evaluation_figures:plot_metric")
        plotted: Axes = plot_metric(self.to_json(), metric, axes)
        return plotted

    def figure_values(self) -> list[PredictorFigures]:
        """Return what the figures of each predictor show."""
        return figure_values(self.data.cell, self.data.screen, self.split, self.predictions)


def evaluate_runs(
    predictors: AnyPredictor | Sequence[AnyPredictor],
    screen: Screen | None = None,
    split: Split | None = None,
    *,
    baselines: Sequence[str] = (),
    weights: str = "best",
    device: str = "cpu",
    options: EvaluationOptions | None = None,
    progress: Progress = lambda what, done, total: None,
) -> EvaluatedRuns:
    """Test predictors on the same rows; see `deltacell.evaluate`."""
    options = EvaluationOptions() if options is None else options
    sorted_out = _sorted_out(predictors)
    runs = load_runs(sorted_out.runs, weights, device)
    if options.on is None:
        _check_has_test(runs)
    _check_is_of_runs(runs, screen, split)
    data = compared_data(runs)
    for sentence in data.warnings:
        warnings.warn(sentence, stacklevel=3)
    rows = evaluated_rows(data, options)
    compared = _compared_predictors(runs, data, [*sorted_out.baselines, *baselines], progress)
    given = compare_given(sorted_out.given, data, rows, options.covers)
    for name in given.predictions:
        if name in compared.predictors():
            message = f"two predictors are named '{name}'; rename one"
            raise InputError(message, code="same-name")
    for sentence in given.warnings:
        warnings.warn(sentence, stacklevel=3)
    rows = given.rows
    predictions: dict[str, dict[int, Prediction] | Prediction]
    predictions = {**_predictions(compared, rows.genotypes, progress), **given.predictions}
    evaluation = evaluate_predictions(
        data.cell,
        rows.data.screen,
        rows.split,
        predictions,
        hits=options.hits_of(rows.data.screen),
        bootstrap=options.bootstrap,
        repeats=data.repeats if rows.other is None else None,
        zeros=rows.zeros,
        beyond=None if rows.other is None else options.beyond_in(rows.data.screen),
        in_context=measured_by_context(rows, runs),
        progress=progress,
    )
    notes = (*evaluation.notes, *_notes(runs, data, compared), *given.notes, *given.warnings)
    evaluation = replace(
        evaluation,
        notes=(*data.warnings, *notes),
        intervals=interval_coverages(rows, predictions),
    )
    if rows.other is not None:
        about_other = rows.other.to_json()
        evaluation = replace(evaluation, leakage=rows.other.sentence, on=about_other)
    else:
        headlines = _headlines(compared, evaluation, data)
        is_whole = options.samples is None and weights == "best" and not given.predictions
        if is_whole:
            _record_accuracies(compared, headlines)
        evaluation = replace(evaluation, headline=_best(headlines.values()))
    scores = _first_scores(predictions, len(rows.split.test))
    return EvaluatedRuns(evaluation, rows.data, rows.split, scores, _relation_weights(runs, rows))


@dataclass(frozen=True, eq=False)
class _SortedOut:
    """Predictors by what they are."""

    baselines: list[str]
    runs: list[AnyRun]
    given: list[AnyPredictions]


def _sorted_out(predictors: AnyPredictor | Sequence[AnyPredictor]) -> _SortedOut:
    """Tell names of baselines, runs, and tables and functions of others apart."""
    sorted_out = _SortedOut([], [], [])
    for predictor in as_list(predictors):
        if isinstance(predictor, str) and _is_baseline(predictor):
            sorted_out.baselines.append(predictor)
        elif is_given(predictor):
            sorted_out.given.append(predictor)
        else:
            sorted_out.runs.append(predictor)
    return sorted_out


def _is_baseline(name: str) -> bool:
    """Return whether a name is that of a baseline and not of a directory with a run."""
    return name in BASELINES and not (Path(name) / RUN_FILE).is_file()


def _check_has_test(runs: Sequence[LoadedRun]) -> None:
    """Raise for a run that was fitted on all measurements of its screen."""
    for run in runs:
        if run.data.split.method != "everything":
            continue
        what = "the predictor has seen all measurements of its screen, so none is left to test it"
        refitted = run.record.refitted
        fix = "Evaluate a run with a test part, or test on another screen with on=."
        if refitted is not None:
            source = os.path.normpath(run.record.path / refitted.run)
            fix = f"Evaluate the run that it was refitted from: deltacell evaluate {source}"
        raise InputError(what, code="seen-everything", where=run.record.path, fix=fix)


def _check_is_of_runs(
    runs: Sequence[LoadedRun],
    screen: Screen | None,
    split: Split | None,
) -> None:
    """Raise unless a screen and a split are those of all runs."""
    for run in runs:
        is_other_screen = screen is not None and len(screen) != len(run.data.screen)
        is_other_split = split is not None and not np.array_equal(split.test, run.data.split.test)
        if is_other_screen or is_other_split:
            what = "the run was trained on another screen or split; use on= to test on another"
            raise InputError(what, code="other-split", where=run.record.path)


@dataclass(frozen=True, eq=False)
class _Compared:
    """The predictors of an evaluation, by name and seed."""

    runs: Mapping[str, Mapping[int, LoadedRun]]
    baselines: Mapping[str, Mapping[int, TrainedPredictor]]  # those that are not among the runs

    def predictors(self) -> Predictors:
        """Return all predictors, the runs first."""
        predictors: Predictors = {}
        for name, by_seed in self.runs.items():
            predictors[name] = {seed: run.predictor for seed, run in by_seed.items()}
        for name, fitted in self.baselines.items():
            predictors[name] = dict(fitted)
        return predictors


def _compared_predictors(
    runs: Sequence[LoadedRun],
    data: TrainingData,
    baseline_names: Sequence[str],
    progress: Progress,
) -> _Compared:
    """Return runs by name and seed, with the baselines that are not among them."""
    for name in baseline_names:
        check_choice("baseline", name, BASELINES)
    by_name: dict[str, dict[int, LoadedRun]] = {}
    for name, run in zip(labels_of(runs), runs, strict=True):
        is_other = name in baseline_names and run.config.model.name != name
        if is_other or run.record.seed in by_name.get(name, {}):
            what = f"two predictors are named '{name}' and differ in more than the seed; rename one"
            raise InputError(what, code="same-name", where=run.record.path)
        by_name.setdefault(name, {})[run.record.seed] = run
    fitted = {
        name: {data.split.seed: fitted_baseline(name, runs, data, progress)}
        for name in baseline_names
        if name not in by_name
    }
    return _Compared(by_name, fitted)


def _headlines(
    compared: _Compared,
    evaluation: Evaluation,
    data: TrainingData,
) -> dict[str, Accuracy]:
    """Return the test of each predictor that is a run, beside the baselines, by name."""
    scores = evaluation.test.scores
    of_baselines = {}
    for name in compared.baselines:
        value = scores[name][MAIN].value
        if value is not None:
            of_baselines[name] = value
    headlines = {}
    for name in compared.runs:
        own = scores[name][MAIN]
        headlines[name] = Accuracy(
            predictor=name,
            measurements=evaluation.test.rows,
            pearson=own.value,
            low=own.low,
            high=own.high,
            baselines=of_baselines,
            residual=None if data.config is None else data.config.residual,
        )
    return headlines


def _record_accuracies(compared: _Compared, headlines: Mapping[str, Accuracy]) -> None:
    """Record the tests in the runs; one of several seeds is none of a single run."""
    for name, by_seed in compared.runs.items():
        run = next(iter(by_seed.values()))
        if len(by_seed) == 1 and run.is_finished:
            record_accuracy(run, headlines[name])


def _best(headlines: Iterable[Accuracy]) -> Accuracy | None:
    """Return the test with the highest correlation; None without runs."""

    def correlation(tested: Accuracy) -> float:
        return -np.inf if tested.pearson is None else tested.pearson

    return max(headlines, key=correlation, default=None)


def _predictions(
    compared: _Compared,
    genotypes: Genotypes,
    progress: Progress,
) -> dict[str, dict[int, Prediction]]:
    """Return the predictions of some genotypes, by name and seed; those of runs have intervals."""
    predictions: dict[str, dict[int, Prediction]] = {}
    for by_name in (compared.runs, compared.baselines):
        for name, by_seed in by_name.items():
            predictions[name] = {}
            for seed, predictor in by_seed.items():
                report = partial(progress, f"{name}, seed {seed}")
                predictions[name][seed] = predictor.predict(genotypes, report)
    return predictions


def _notes(runs: Sequence[LoadedRun], data: TrainingData, compared: _Compared) -> Iterator[str]:
    """Yield what makes predictors hard to compare: other relations, an unfinished training."""
    if data.config is not None and data.config.residual is not None:
        yield sentence_of_residual(data.config.residual)
    if compared.baselines:
        if data.context:
            studies = ", ".join(study.name for study in data.context)
            yield f"The baselines do not read the context: {studies}."
        for name, by_seed in compared.runs.items():
            run = next(iter(by_seed.values()))
            chosen = run.predictor.model.relations
            seen = set(run.data.cell.relations if chosen is None else chosen)
            missing = ", ".join(sorted(set(data.cell.relations) - seen))
            if missing:
                yield f"{name} sees {len(seen)} relations; the baselines also see {missing}."
    for run in runs:
        if not run.is_finished:
            name_and_seed = f"{run.record.name}, seed {run.record.seed}"
            yield (
                f"The training of {name_and_seed}, did not finish (it is {run.record.status}); "
                "its latest weights were used."
            )


def _first_scores(
    predictions: Mapping[str, Mapping[int, Prediction] | Prediction],
    n_test: int,
) -> dict[str, Floats]:
    """Return the scores of the test rows by the first seed of each predictor."""
    scores: dict[str, Floats] = {}
    for name, by_seed in predictions.items():
        first = by_seed
        if not isinstance(first, Prediction):
            first = next(iter(first.values()))
        scores[name] = first.score.float().numpy()[:n_test]
    return scores


def _relation_weights(
    runs: Sequence[LoadedRun],
    rows: EvaluatedRows,
) -> dict[str, RelationWeights]:
    """Return the weights of relations by the first run of each name that has some."""
    weights: dict[str, RelationWeights] = {}
    genes = rows.test.genes
    for name, run in zip(labels_of(runs), runs, strict=True):
        of_run = run.predictor.model.relation_weights(run.data.cell, genes)
        if of_run is not None:
            weights.setdefault(name, of_run)
    return weights
