"""Runs as predictors: their chosen weights, asked about the test part of their split."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deltacell.errors import InputError
from deltacell.evaluate.baseline_predictions import fitted_baselines
from deltacell.evaluate.evaluation import Evaluation
from deltacell.evaluate.positives import Threshold, lists_only_hits
from deltacell.evaluate.relation_weights import RelationWeights, relation_weights
from deltacell.evaluate.side_by_side import Progress, evaluate
from deltacell.models import Dango
from deltacell.screen import Split
from deltacell.train.config import Config, DataConfig
from deltacell.train.data import TrainingData, load_data
from deltacell.train.loaded_run import LoadedRun, labels_of, load_runs

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


def predict_test(run: LoadedRun, split: Split, progress: Progress | None = None) -> Floats:
    """Return the scores of the test rows, in the unit of the screen.

    Where the screen lists hits only, a predictor of two parts answers with the score to expect of a
    hit.

    Parameters
    ----------
    run
        Loaded.
    split
        Whose test rows.
    progress
        Called as ``progress(what, done, total)``.
    """

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(f"{run.record.name}, seed {run.record.seed}", done, total)

    genotypes = run.data.screen.genotypes.take(torch.from_numpy(np.array(split.test)))
    found = run.predictor.predict(genotypes, report)
    among_hits = found.given_hit is not None and lists_only_hits(run.data.screen)
    score = found.given_hit if among_hits else found.score
    assert score is not None
    return score.float().cpu().numpy()


def evaluate_runs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    baseline_names: Sequence[str] = ("global_mean", "additive", "boosted_trees"),
    which: str = "best",
    samples: int | None = None,
    threshold: Threshold | None = None,
    progress: Progress | None = None,
) -> EvaluatedRuns:
    """Evaluate runs and baselines on the test part that the runs share.

    Runs of one name that differ in their seeds alone are one predictor.

    Parameters
    ----------
    paths
        Directories of runs.
    baseline_names
        Fitted on the same training part, once: they are saved as runs in the folder ``baselines``
        of the first run, and loaded the next time.
    which
        Weights to take: ``best`` by validation, or ``last``.
    samples
        Test rows to look at, the same for all; all where not given.
    threshold
        From where on a score is a hit.
    progress
        Called as ``progress(what, done, total)``.
    """
    runs = load_runs(paths, which)
    data = compared_data(runs)
    split = data.split if samples is None else _fewer(data.split, samples)
    by_name: dict[str, dict[int, Floats]] = {}
    weights = {}
    labels = labels_of(runs)
    for name, run in zip(labels, runs, strict=True):
        seeds = by_name.setdefault(name, {})
        if run.record.seed in seeds:
            raise InputError(
                f"two runs are called '{name}' and differ in more than the seed",
                where=run.record.path,
                fix="Rename the directory of one of them.",
            )
        seeds[run.record.seed] = predict_test(run, split, progress)
        if name not in weights:
            found = _weights(run, split)
            if found is not None:
                weights[name] = found
    models = dict(zip(labels, (run.config.model.name for run in runs), strict=True))
    wanted = [name for name in baseline_names if not _is_given(name, models)]
    fitted = {
        name: predict_test(one, split, progress)
        for name, one in fitted_baselines(runs, data, wanted, progress=progress).items()
    }
    evaluation = evaluate(
        data.cell,
        data.screen,
        split,
        {**by_name, **fitted},
        threshold=threshold,
        repeats=data.repeats,
        progress=progress,
    )
    unfinished = (_unfinished(run) for run in runs if not run.is_finished)
    seen = _relation_notes(labels, runs, data) if fitted else ()
    evaluation = dataclasses.replace(evaluation, notes=(*evaluation.notes, *seen, *unfinished))
    first = {name: next(iter(seeds.values())) for name, seeds in by_name.items()}
    return EvaluatedRuns(evaluation, data, split, {**first, **fitted}, weights)


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
    data = load_data(config)
    if not data.split.equals(runs[0].data.split):
        raise InputError(
            "the data of the runs have changed since the runs were trained",
            where=runs[0].record.path,
            fix="Put back the data as they were.",
        )
    return data


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


def _fewer(split: Split, samples: int) -> Split:
    """Return a split whose other test rows are dropped."""
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


def _weights(run: LoadedRun, split: Split) -> RelationWeights | None:
    model = run.predictor.model
    if not isinstance(model, Dango):
        return None
    genotypes = run.data.screen.genotypes.take(torch.from_numpy(np.array(split.test)))
    with torch.no_grad():
        attention = model.encode(run.data.cell).attention.cpu().numpy()
    return relation_weights(model.relations, attention, genotypes.genes.numpy())
