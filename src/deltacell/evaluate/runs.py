"""Runs as predictors: their chosen weights, asked about the test part of their split."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from deltacell.errors import InputError
from deltacell.evaluate.baseline_predictions import fitted_baselines
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.diagnostics import RelationWeights, relation_weights
from deltacell.evaluate.evaluation import MAIN, Evaluation
from deltacell.evaluate.figures import plot_metric
from deltacell.evaluate.positives import Threshold
from deltacell.evaluate.side_by_side import Progress, evaluate
from deltacell.evaluate.tested import ZEROS, Zeros
from deltacell.models import Dango, Prediction
from deltacell.report.evaluate import print_evaluation
from deltacell.report.terminal import as_html, as_text
from deltacell.screen import Genotypes, Grid, Split
from deltacell.screen.convert import need
from deltacell.train.config import Config, DataConfig
from deltacell.train.data import TrainingData, load_data
from deltacell.train.loaded_run import AnyRun, LoadedRun, labels_of, load_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class EvaluatedRuns:
    """Runs and baselines on one test part.

    Parameters
    ----------
    evaluation
        Side by side.
    data
        What they were tested on.
    split
        With the test rows that were looked at.
    predictions
        One score a test row, by predictor; of the first seed.
    weights
        Of each relation, by predictor that has such.
    """

    evaluation: Evaluation
    data: TrainingData
    split: Split
    predictions: dict[str, Floats]
    weights: dict[str, RelationWeights]

    def to_pandas(self) -> pd.DataFrame:
        """Return the metrics on the test part: a row per predictor and metric."""
        need("pandas", "A table of metrics", "pandas")
        import pandas as pd

        test = self.evaluation.to_json()["groups"][0]["scores"]
        return pd.DataFrame(
            [
                {
                    "predictor": name,
                    "metric": metric,
                    **{k: one[k] for k in ("value", "low", "high")},
                }
                for name, scores in test.items()
                for metric, one in scores.items()
            ]
        )

    def plot(self, metric: str = MAIN, axes: Axes | None = None) -> Axes:
        """Plot a metric of each predictor with its interval, and return the axes.

        Parameters
        ----------
        metric
            Such as ``pearson`` or ``aupr``.
        axes
            Where to plot; new axes where not given.
        """
        result = self.evaluation.to_json()
        if metric not in result["metrics"]:
            raise InputError(f"unknown metric '{metric}'; there are {', '.join(result['metrics'])}")
        return plot_metric(result, metric, axes)

    def __str__(self) -> str:
        return as_text(lambda: print_evaluation(self.evaluation.to_json()))

    def _repr_html_(self) -> str:
        return as_html(lambda: print_evaluation(self.evaluation.to_json()))


def predict_genotypes(
    run: LoadedRun, genotypes: Genotypes, progress: Progress | None = None
) -> Prediction:
    """Return what a run predicts of genotypes, in the unit of the screen.

    Parameters
    ----------
    run
        Loaded.
    genotypes
        Over the genes of its cell.
    progress
        Called as ``progress(what, done, total)``.
    """

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(f"{run.record.name}, seed {run.record.seed}", done, total)

    return run.predictor.predict(genotypes, report)


@dataclass(frozen=True, eq=False)
class AskedRuns:
    """What runs and baselines predict of the same genotypes.

    Parameters
    ----------
    runs
        As loaded.
    data
        What they are compared on.
    predictions
        By name and seed.
    notes
        Which runs did not finish, and which relations a run does not see.
    """

    runs: Sequence[LoadedRun]
    data: TrainingData
    predictions: dict[str, dict[int, Prediction]]
    notes: tuple[str, ...]

    @property
    def first(self) -> dict[str, Floats]:
        """One score per genotype, by predictor; of the first seed."""
        return {
            name: next(iter(one.values())).score.float().cpu().numpy()
            for name, one in self.predictions.items()
        }

    def weights(self, genotypes: Genotypes) -> dict[str, RelationWeights]:
        """Return the weights of relations over the genes of genotypes, of runs that have such."""
        found = {
            name: _weights(run, genotypes)
            for name, run in reversed(list(zip(labels_of(self.runs), self.runs, strict=True)))
        }
        return {name: weights for name, weights in found.items() if weights is not None}


def predict_runs(
    runs: Sequence[LoadedRun],
    genotypes: Genotypes,
    baseline_names: Sequence[str],
    progress: Progress | None = None,
) -> AskedRuns:
    """Ask runs, and baselines fitted on the same training part, about genotypes.

    Parameters
    ----------
    runs
        As loaded, all of one split.
    genotypes
        Over the genes of their cell.
    baseline_names
        Of `deltacell.models.baselines.BASELINES`.
    progress
        Called as ``progress(what, done, total)``.
    """
    data = compared_data(runs)
    by_name: dict[str, dict[int, Prediction]] = {}
    labels = labels_of(runs)
    for name, run in zip(labels, runs, strict=True):
        seeds = by_name.setdefault(name, {})
        if run.record.seed in seeds:
            raise InputError(
                f"two runs are called '{name}' and differ in more than the seed",
                where=run.record.path,
                fix="Rename the directory of one of them.",
            )
        seeds[run.record.seed] = predict_genotypes(run, genotypes, progress)
    models = dict(zip(labels, (run.config.model.name for run in runs), strict=True))
    wanted = [name for name in baseline_names if not _is_given(name, models)]
    for name, one in fitted_baselines(runs, data, wanted, progress=progress).items():
        by_name[name] = {one.record.seed: predict_genotypes(one, genotypes, progress)}
    unfinished = (_unfinished(run) for run in runs if not run.is_finished)
    seen = _relation_notes(labels, runs, data) if wanted else ()
    return AskedRuns(runs, data, by_name, (*seen, *unfinished))


def evaluate_runs(
    paths: Sequence[AnyRun],
    *,
    baseline_names: Sequence[str] = ("global_mean", "additive", "boosted_trees"),
    which: str = "best",
    samples: int | None = None,
    threshold: Threshold | None = None,
    zeros: int = ZEROS,
    bootstrap: Bootstrap | None = None,
    progress: Progress | None = None,
) -> EvaluatedRuns:
    """Evaluate runs and baselines on the test part that the runs share.

    Runs of one name that differ in their seeds alone are one predictor.

    Parameters
    ----------
    paths
        Directories of runs, or runs that are loaded.
    baseline_names
        Fitted on the same training part, once: they are saved as runs in the folder ``baselines``
        of the first run, and loaded the next time.
    which
        Weights to take: ``best`` by validation, or ``last``.
    samples
        Test rows to look at, the same for all; all where not given.
    threshold
        From where on a score is a hit.
    zeros
        With a list of hits: how many tested pairs that are not hits to draw. This assumes that
        every query gene was crossed with every array gene; 0 turns it off.
    bootstrap
        How intervals are found.
    progress
        Called as ``progress(what, done, total)``.
    """
    runs = load_runs(paths, which)
    data = compared_data(runs)
    split = data.split if samples is None else fewer(data.split, samples)
    drawn = _zeros(data, split, zeros)
    test = data.screen.genotypes.take(torch.from_numpy(np.array(split.test)))
    genotypes = test if drawn is None else Genotypes.concat([test, drawn.genotypes])
    asked = predict_runs(runs, genotypes, baseline_names, progress)
    evaluation = evaluate(
        data.cell,
        data.screen,
        split,
        asked.predictions,
        threshold=threshold,
        repeats=data.repeats,
        zeros=drawn,
        bootstrap=bootstrap,
        progress=progress,
    )
    evaluation = dataclasses.replace(evaluation, notes=(*evaluation.notes, *asked.notes))
    first = {name: scores[: len(test)] for name, scores in asked.first.items()}
    return EvaluatedRuns(evaluation, data, split, first, asked.weights(test))


def _zeros(data: TrainingData, split: Split, n: int) -> Zeros | None:
    """Return tested pairs of the test part that are not hits; None where none are known."""
    grid = Grid.of(data.screen, whole=data.whole, assume_crossed=n > 0)
    if grid is None or not grid.count("test", data.split):
        return None
    drawn = Zeros.draw(grid, data.split, n, seed=data.split.seed)
    # Where only some of the hits are looked at, the zeros stand for as many fewer.
    share = len(split.test) / len(data.split.test)
    return dataclasses.replace(drawn, weight=share * drawn.weight)


def compared_data(runs: Sequence[LoadedRun]) -> TrainingData:
    """Return the data that a comparison of runs is on, whatever the order of the runs.

    It has every relation that the data of some run has. Runs whose test parts differ are an error
    that says which settings do.

    Parameters
    ----------
    runs
        One or more.
    """
    for run in runs:
        _check_split(runs[0], run)
    config = compared_config(runs)
    for run in runs:
        if _relevant(run.config.data) == config.data:
            return run.data
    return load_data(config, runs[0].data.split)


def compared_config(runs: Sequence[LoadedRun]) -> Config:
    """Return a config of the data that `compared_data` is on, with nothing else of the runs."""
    given = sorted((_relevant(run.config.data) for run in runs), key=repr)
    names = [data.relations for data in given]
    relations: list[str] | None = None
    if all(one == names[0] for one in names):
        relations = names[0]
    elif all(one is not None for one in names):
        relations = sorted({name for one in names for name in one or ()})
    merges = [data.merge_relations for data in given]
    data = dataclasses.replace(
        given[0],
        relations=relations,
        # Of runs that differ in this, what was merged for some is there unmerged for all.
        merge_relations=merges[0] if all(one == merges[0] for one in merges) else {},
    )
    return Config(data=data, split=runs[0].config.split)


def _relevant(data: DataConfig) -> DataConfig:
    """Return the settings of data that decide what a fitted predictor sees."""
    plain = DataConfig()
    return dataclasses.replace(
        data,
        batch_size=plain.batch_size,
        samples_per_epoch=plain.samples_per_epoch,
        standardise=plain.standardise,
    )


def _is_given(baseline: str, models: Mapping[str, str]) -> bool:
    """Return whether a baseline is among the runs; another run of its name is an error."""
    if baseline not in models:
        return False
    if models[baseline] != baseline:
        raise InputError(
            f"a run is called '{baseline}', as a baseline is, and is a {models[baseline]}",
            fix="Rename its directory, or leave the baseline out of --baselines.",
        )
    return True


def _relation_notes(
    labels: Sequence[str], runs: Sequence[LoadedRun], data: TrainingData
) -> Iterator[str]:
    """Say of each predictor that sees fewer relations than the baselines how many it sees."""
    told = set()
    for label, run in zip(labels, runs, strict=True):
        chosen = getattr(run.predictor.model, "relations", None)
        seen = set(run.data.cell.relations if chosen is None else chosen)
        missing = set(data.cell.relations) - seen
        if missing and label not in told:
            told.add(label)
            yield (
                f"{label} sees {len(seen)} relations; the baselines also see "
                f"{', '.join(sorted(missing))}."
            )


def _unfinished(run: LoadedRun) -> str:
    return (
        f"The training of {run.record.name}, seed {run.record.seed}, did not come to its end "
        f"(it is {run.record.status}); its weights are those that there are."
    )


def _check_split(first: LoadedRun, run: LoadedRun) -> None:
    if run.data.split.equals(first.data.split):
        return
    differing = [
        f"{part}.{field.name} is {_said(mine)} and {_said(others)}"
        for part in ("data", "split")
        for field in dataclasses.fields(getattr(run.config, part))
        if (mine := getattr(getattr(run.config, part), field.name))
        != (others := getattr(getattr(first.config, part), field.name))
    ]
    how = "; ".join(differing) or "the data behind the same settings differ"
    raise InputError(
        f"this run was trained on another split or screen than {first.record.path}: {how}",
        where=run.record.path,
        fix="Evaluate it by itself, or train it again with the same data.* and split.* settings.",
    )


def _said(value: object) -> str:
    return "null" if value is None else str(value)


def fewer(split: Split, samples: int) -> Split:
    """Return a split with some of its test rows, the others dropped.

    Parameters
    ----------
    split
        Of a screen.
    samples
        How many to draw.
    """
    if samples < 1:
        raise InputError(f"{samples} test rows were asked for; expected 1 or more")
    if samples >= len(split.test):
        return split
    drawn = np.sort(np.random.default_rng(split.seed).permutation(len(split.test))[:samples])
    kept = np.zeros(len(split.test), dtype=bool)
    kept[drawn] = True
    note = f"{samples:,} of {len(split.test):,} test rows were drawn, with seed {split.seed}."
    return dataclasses.replace(
        split,
        test=split.test[kept],
        unseen=split.unseen[kept] if len(split.unseen) else split.unseen,
        dropped=np.concatenate([split.dropped, split.test[~kept]]),
        notes=(*split.notes, note),
    )


def _weights(run: LoadedRun, genotypes: Genotypes) -> RelationWeights | None:
    model = run.predictor.model
    if not isinstance(model, Dango):
        return None
    with torch.no_grad():
        attention = model.encode(run.data.cell).attention.cpu().numpy()
    return relation_weights(model.relations, attention, genotypes.genes.numpy())
