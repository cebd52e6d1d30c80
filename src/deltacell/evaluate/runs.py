"""Runs as predictors: their chosen weights, asked about the test part of their split."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deltacell.errors import InputError
from deltacell.evaluate.baseline_predictions import baselines
from deltacell.evaluate.evaluation import Evaluation
from deltacell.evaluate.positives import Threshold
from deltacell.evaluate.relation_weights import RelationWeights, relation_weights
from deltacell.evaluate.side_by_side import Progress, evaluate
from deltacell.models import Dango
from deltacell.screen import Split
from deltacell.train.data import TrainingData
from deltacell.train.loaded_run import LoadedRun, labels_of, load_runs
from deltacell.train.predictor import WIDE

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

    Parameters
    ----------
    run
        Loaded.
    split
        Whose test rows.
    progress
        Called as ``progress(what, done, total)``.
    """
    model = run.predictor.model
    size = WIDE if isinstance(model, Dango) else run.config.data.batch_size
    rows = torch.from_numpy(np.array(split.test))
    genotypes = run.data.screen.genotypes
    scores = []
    for begin in range(0, len(rows), size):
        if progress is not None:
            progress(f"{run.record.name}, seed {run.record.seed}", begin, len(rows))
        scores.append(run.predictor(genotypes.take(rows[begin : begin + size])))
    return torch.cat(scores).float().cpu().numpy()


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
        Fitted on the same training part.
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
    data = runs[0].data
    for run in runs:
        _check_split(data.split, run)
    split = data.split if samples is None else _fewer(data.split, samples)
    by_name: dict[str, dict[int, Floats]] = {}
    weights = {}
    for name, run in zip(labels_of(runs), runs, strict=True):
        seeds = by_name.setdefault(name, {})
        if run.record.seed in seeds:
            raise InputError(
                f"two runs are called '{name}', and are no seeds of one another",
                where=run.record.path,
                fix="Rename the directory of one of them.",
            )
        seeds[run.record.seed] = predict_test(run, split, progress)
        if name not in weights:
            found = _weights(run, split)
            if found is not None:
                weights[name] = found
    fitted = baselines(
        data.cell, data.screen, split, baseline_names, seed=data.split.seed, progress=progress
    )
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
    evaluation = dataclasses.replace(evaluation, notes=(*evaluation.notes, *unfinished))
    first = {name: next(iter(seeds.values())) for name, seeds in by_name.items()}
    return EvaluatedRuns(evaluation, data, split, {**first, **fitted}, weights)


def _unfinished(run: LoadedRun) -> str:
    return (
        f"The training of {run.record.name}, seed {run.record.seed}, did not come to its end "
        f"(it is {run.record.status}); its weights are those that there are."
    )


def _check_split(split: Split, run: LoadedRun) -> None:
    if not run.data.split.equals(split):
        raise InputError(
            "this run was trained on another split or screen than the first, so their numbers "
            "cannot stand side by side",
            where=run.record.path,
            fix="Evaluate it by itself.",
        )


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
