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
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.diagnostics import RelationWeights, relation_weights
from deltacell.evaluate.evaluation import Evaluation
from deltacell.evaluate.positives import Threshold
from deltacell.evaluate.side_by_side import Progress, evaluate
from deltacell.evaluate.tested import ZEROS, Zeros
from deltacell.models import Dango, Prediction
from deltacell.screen import Genotypes, Grid, Split
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
    model = run.predictor.model
    size = WIDE if isinstance(model, Dango) else run.config.data.batch_size
    parts = []
    for begin in range(0, len(genotypes), size):
        if progress is not None:
            progress(f"{run.record.name}, seed {run.record.seed}", begin, len(genotypes))
        rows = torch.arange(begin, min(begin + size, len(genotypes)))
        parts.append(run.predictor.prediction(genotypes.take(rows)))

    def joined(name: str) -> torch.Tensor | None:
        tensors = [getattr(part, name) for part in parts]
        return None if tensors[0] is None else torch.cat(tensors).float().cpu()

    score = joined("score")
    assert score is not None
    return Prediction(score, hit=joined("hit"), given_hit=joined("given_hit"))


@dataclass(frozen=True, eq=False)
class AskedRuns:
    """What runs and baselines predict of the same genotypes.

    Parameters
    ----------
    runs
        As loaded.
    predictions
        By name, and by seed where it is a run's.
    """

    runs: Sequence[LoadedRun]
    predictions: dict[str, dict[int, Prediction] | Floats]

    @property
    def first(self) -> dict[str, Floats]:
        """One score per genotype, by predictor; of the first seed."""
        return {
            name: next(iter(one.values())).score.numpy() if isinstance(one, dict) else one
            for name, one in self.predictions.items()
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """Which runs did not come to their end."""
        return tuple(_unfinished(run) for run in self.runs if not run.is_finished)

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
    data = runs[0].data
    for run in runs:
        _check_split(data.split, run)
    by_name: dict[str, dict[int, Prediction]] = {}
    for name, run in zip(labels_of(runs), runs, strict=True):
        seeds = by_name.setdefault(name, {})
        if run.record.seed in seeds:
            raise InputError(
                f"two runs are called '{name}', and differ in more than the seed",
                where=run.record.path,
                fix="Rename the directory of one of them.",
            )
        seeds[run.record.seed] = predict_genotypes(run, genotypes, progress)
    fitted = baselines(
        data.cell,
        data.screen,
        data.split,
        baseline_names,
        seed=data.split.seed,
        genotypes=genotypes,
        progress=progress,
    )
    return AskedRuns(runs, {**by_name, **fitted})


def evaluate_runs(
    paths: Sequence[str | os.PathLike[str]],
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
        Directories of runs.
    baseline_names
        Fitted on the same training part.
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
    data = runs[0].data
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
