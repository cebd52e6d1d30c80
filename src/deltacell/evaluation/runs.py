"""Runs and baselines evaluated on a test part or on another screen."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltacell.base.arrays import Doubles, Floats, Ints
from deltacell.base.errors import InputError, StoreError, need
from deltacell.base.files import check_no_links
from deltacell.base.text import Progress
from deltacell.cell import Cell
from deltacell.data.import_folder import open_screen
from deltacell.evaluation.evaluation import (
    MAIN,
    THRESHOLD,
    ZEROS,
    Evaluation,
    TestedZeros,
    check_fit,
    evaluate_predictions,
)
from deltacell.evaluation.figures import plot_metric
from deltacell.evaluation.metrics import Bootstrap
from deltacell.models.base import check_choice
from deltacell.models.fitted.predictor import FittedPredictor
from deltacell.models.interface import BuildContext, Prediction, RelationWeights, TargetScale
from deltacell.models.registry import BASELINES, config_class, loss_class
from deltacell.profile.record import RUN_FILE, Status, read_run
from deltacell.report.evaluate import print_evaluation
from deltacell.report.progress import progress_bar
from deltacell.report.terminal import Shown
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.genotypes import comparable_keys, repeats_a_gene, sets_with
from deltacell.screen.outliers import beyond_any_scale
from deltacell.screen.screen import ONE_GENE_TWICE
from deltacell.storage.provenance import UNKNOWN_GENE, Counts
from deltacell.train.config import Config, DataConfig
from deltacell.train.data import TrainingData, load_data
from deltacell.train.fit import fit_predictor
from deltacell.train.predictor import (
    AnyRun,
    LoadedRun,
    TrainedPredictor,
    as_list,
    build_fitted,
    labels_of,
    load_run,
    load_runs,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

BASELINES_FOLDER = "baselines"  # in a run directory: the baselines it was compared with
# Reasons to leave out rows of another screen.
NO_INTERACTION = "no interaction score"
TOO_LARGE = "more genes than the run takes"
IN_TRAINING = "in training or validation"
BEYOND_ANY_SCALE = "a score beyond any scale"


@dataclass(frozen=True, eq=False)
class EvaluatedRuns(Shown):
    """Runs and baselines evaluated on one test part."""

    evaluation: Evaluation
    data: TrainingData  # what they were tested on
    split: Split  # with the test rows that were used
    predictions: dict[str, Floats]  # by predictor: one score per test row, by the first seed
    # By predictor that weights relations: their weights for the genes of the test part, in order.
    weights: dict[str, RelationWeights]

    def to_pandas(self) -> pd.DataFrame:
        """Return the metrics on the test part, one row per predictor and metric."""
        need("pandas", "A table of metrics", "pandas")
        import pandas as pd

        rows = [
            (name, metric, one.value, one.low, one.high)
            for name, scores in self.evaluation.test.scores.items()
            for metric, one in scores.items()
        ]
        return pd.DataFrame(rows, columns=["predictor", "metric", "value", "low", "high"])

    def plot(self, metric: str = MAIN, axes: Axes | None = None) -> Axes:
        """Plot a metric of each predictor, such as ``aupr``, with its interval."""
        check_choice("metric", metric, self.evaluation.metrics)
        return plot_metric(self.evaluation.to_json(), metric, axes)

    def _print(self) -> None:
        print_evaluation(self.evaluation.to_json())


def evaluate_runs(
    predictors: AnyRun | Sequence[AnyRun],
    screen: Screen | None = None,
    split: Split | None = None,
    *,
    baselines: Sequence[str] = (),
    weights: str = "best",
    on: str | os.PathLike[str] | Screen | None = None,
    samples: int | None = None,
    beyond: float = 0.08,
    zeros: int = ZEROS,
    threshold: float = THRESHOLD,
    bootstrap: Bootstrap | None = None,
    progress: bool = True,
) -> EvaluatedRuns:
    """Test runs and baselines on the same rows: metrics with intervals, and which one is best.

    The predictors are runs, directories of runs, whose ``best`` or ``last`` ``weights`` are used,
    and names of baselines such as ``boosted_trees``, which are fitted on the training part of
    the runs. Runs of one name that differ only in the seed are one predictor. ``screen`` and
    ``split`` must be those of the runs; ``samples`` draws some of the test rows.

    A score at or below ``threshold`` is a hit for AUROC and AUPR. ``on`` is another screen to test
    on instead of the test part, without training rows, and also only on its rows at least
    ``beyond`` from 0. For a list of hits, ``zeros`` tested pairs that are not hits are drawn, as if
    every query gene had been crossed with every array gene.
    """
    names: list[Any] = []
    paths: list[Any] = []
    for one in as_list(predictors):
        named = isinstance(one, str) and one in BASELINES and not (Path(one) / RUN_FILE).is_file()
        (names if named else paths).append(one)
    loaded = load_runs(paths, weights)
    for run in loaded:
        other_screen = screen is not None and len(screen) != len(run.data.screen)
        other = split is not None and not np.array_equal(split.test, run.data.split.test)
        if other_screen or other:
            what = "the run was trained on another screen or split; use on= to test on another"
            raise InputError(what, code="other-split", where=run.record.path)
    data = tested = compared_data(loaded)
    for sentence in data.warnings:
        warnings.warn(sentence, stacklevel=2)
    options: dict[str, Any] = {"threshold": threshold, "bootstrap": bootstrap}
    options |= {"repeats": data.repeats} if on is None else {}
    changes: dict[str, Any] = {}
    if on is not None:
        read = on if isinstance(on, Screen) else open_screen(on)
        another, of_another, counts = untrained(read, data)
        tested, options["beyond"] = replace(data, screen=another, split=of_another), beyond
        left_out = ", ".join(f"{n:,} with {why}" for why, n in counts.dropped.items()) or "none"
        changes["leakage"] = (
            f"Tested on another screen: {counts.kept:,} of its {counts.read:,} rows. "
            f"Left out: {left_out.replace('with in', 'in')}."
        )
        changes["on"] = {"screen": another.checksum, **counts.to_json()}
    chosen = tested.split if samples is None else fewer(tested.split, samples)
    genotypes = test = _taken(tested.screen, chosen.test)
    grid = Grid.of(data.screen, whole=data.whole) if on is None and zeros > 0 else None
    if grid is not None and grid.count("test", data.split):
        drawn = TestedZeros.draw(grid, data.split, zeros, seed=data.split.seed)
        # If only some of the hits are used, the zeros represent correspondingly fewer pairs.
        share = len(chosen.test) / len(data.split.test)
        options["zeros"] = replace(drawn, weight=share * drawn.weight)
        genotypes = Genotypes.concat([test, drawn.genotypes])
    with progress_bar() as bar:
        report = bar if progress else lambda what, done, total: None
        predictions, notes = _predict(loaded, data, genotypes, [*names, *baselines], report)
        options["progress"] = report
        found = evaluate_predictions(data.cell, tested.screen, chosen, predictions, **options)
    of_relations: dict[str, RelationWeights] = {}
    for name, run in zip(labels_of(loaded), loaded, strict=True):
        of_run = run.predictor.model.relation_weights(run.data.cell, test.genes)
        if of_run is not None:
            of_relations.setdefault(name, of_run)
    first = {name: next(iter(seeds.values())).score for name, seeds in predictions.items()}
    scores = {name: score.float().numpy()[: len(test)] for name, score in first.items()}
    evaluation = replace(found, notes=(*data.warnings, *found.notes, *notes), **changes)
    return EvaluatedRuns(evaluation, tested, chosen, scores, of_relations)


def _predict(
    runs: Sequence[LoadedRun],
    data: TrainingData,
    genotypes: Genotypes,
    baseline_names: Sequence[str],
    progress: Progress,
) -> tuple[dict[str, dict[int, Prediction]], list[str]]:
    """Return the predictions of runs and baselines, by name and seed, and notes on the runs."""
    for name in baseline_names:
        check_choice("baseline", name, BASELINES)
    models: dict[str, dict[int, LoadedRun]] = {}
    for name, run in zip(labels_of(runs), runs, strict=True):
        is_other = name in baseline_names and run.config.model.name != name
        if is_other or run.record.seed in models.get(name, {}):
            what = f"two predictors are named '{name}' and differ in more than the seed; rename one"
            raise InputError(what, code="same-name", where=run.record.path)
        models.setdefault(name, {})[run.record.seed] = run
    asked = {name: {seed: run.predictor for seed, run in of.items()} for name, of in models.items()}
    wanted = [name for name in baseline_names if name not in models]
    for name in wanted:
        asked[name] = {data.split.seed: _fitted_baseline(name, runs, data, progress)}
    predictions = {
        name: {
            seed: predictor.predict(genotypes, partial(progress, f"{name}, seed {seed}"))
            for seed, predictor in seeds.items()
        }
        for name, seeds in asked.items()
    }
    notes = []
    for name, of_seeds in models.items() if wanted else ():
        run = next(iter(of_seeds.values()))
        chosen = run.predictor.model.relations
        seen = set(run.data.cell.relations if chosen is None else chosen)
        missing = ", ".join(sorted(set(data.cell.relations) - seen))
        if missing:
            notes.append(f"{name} sees {len(seen)} relations; the baselines also see {missing}.")
    notes += [
        f"The training of {run.record.name}, seed {run.record.seed}, did not finish "
        f"(it is {run.record.status}); its latest weights were used."
        for run in runs
        if not run.is_finished
    ]
    return predictions, notes


def baselines(
    cell: Cell,
    screen: Screen,
    split: Split,
    names: Iterable[str] = tuple(BASELINES),
    *,
    seed: int = 0,
    genotypes: Genotypes | None = None,
) -> dict[str, Floats]:
    """Return the predictions of baselines for the test rows, by name.

    They are fitted on the training rows that have a score, and some stop early by the validation
    part; they see only the genotypes of the test part.
    """
    check_fit(cell, screen, split)
    asked = _taken(screen, split.test) if genotypes is None else genotypes
    made = {name: _new_baseline(name, cell, screen) for name in names}
    return {
        name: _fit(one, cell, screen, split, seed)(cell, asked).score.numpy()
        for name, one in made.items()
    }


def _new_baseline(name: str, cell: Cell, screen: Screen) -> FittedPredictor:
    check_choice("baseline", name, BASELINES)
    largest = int(np.diff(screen.offsets).max(initial=0))
    predictor = config_class(name)().build(BuildContext(cell, largest))
    assert isinstance(predictor, FittedPredictor)
    return predictor


def _fit(
    model: FittedPredictor,
    cell: Cell,
    screen: Screen,
    split: Split,
    seed: int,
) -> FittedPredictor:
    score = screen.column("score").astype(np.float64)

    def part(rows: Ints) -> tuple[Genotypes, Doubles]:
        known = rows[np.isfinite(score[rows])]
        return _taken(screen, known), score[known]

    return model.fit(cell, *part(split.train), validation=part(split.validation), seed=seed)


def _fitted_baseline(
    name: str,
    runs: Sequence[LoadedRun],
    data: TrainingData,
    progress: Progress,
) -> TrainedPredictor:
    """Load a baseline that is saved in the first run, or fit it and, if possible, save it there."""
    seed, split = data.split.seed, data.split
    first, model = runs[0].config, config_class(name)()
    loss = loss_class(model.default_loss)()
    config = Config(name=name, seed=seed, model=model, loss=loss, split=first.split)
    config = replace(config, data=data.config or first.data)
    # Everything that determines what a baseline learns.
    decides = (config.model, seed, data.cell.checksum, data.screen.checksum)
    digest = hashlib.sha256(repr((*decides, version("deltacell"))).encode())
    for rows in (split.train, split.validation):
        digest.update(np.ascontiguousarray(rows).tobytes())
    folder = f"{name}-{digest.hexdigest()[:12]}"
    place = runs[0].record.path / BASELINES_FOLDER / folder
    if (place / RUN_FILE).is_file() and read_run(place).status is Status.finished:
        return load_run(place, data=data).predictor

    config = replace(config, directory=str(place))
    try:
        check_no_links(runs[0].record.path)
        outcome = fit_predictor(
            config,
            data=data,
            progress=lambda what, *of: progress(f"{name}: {what}", *of),
        )
    except InputError as error:
        # The run directory may be read-only, or another process may be fitting this baseline.
        if not isinstance(error, StoreError) and not (place / RUN_FILE).exists():
            raise
        fitted = _fit(build_fitted(config, data), data.cell, data.screen, split, seed)
        return TrainedPredictor(fitted, data.cell, TargetScale())
    if outcome.signal:
        raise KeyboardInterrupt
    return load_run(outcome.path, data=data).predictor


def compared_data(runs: Sequence[LoadedRun]) -> TrainingData:
    """Return the data to compare runs on, with the relations of all runs' data."""
    first = runs[0]
    for run in runs:
        if not run.data.split.equals(first.data.split):
            what = f"the run was trained on another split or screen than {first.record.path}"
            fix = "Evaluate it alone, or train it with the same data.* and split.* settings."
            raise InputError(what, code="other-split", where=run.record.path, fix=fix)
    given = sorted((_relevant(run.config.data) for run in runs), key=repr)
    wanted = given[0]
    if any(data.relations != wanted.relations for data in given):
        named = [data.relations for data in given if data.relations is not None]
        every = sorted({name for names in named for name in names})
        wanted = replace(wanted, relations=every if len(named) == len(given) else None)
    if any(data.merge_relations != wanted.merge_relations for data in given):
        # Relations that only some runs merged stay unmerged for all.
        wanted = replace(wanted, merge_relations={})
    for run in runs:
        if _relevant(run.config.data) == wanted:
            return run.data
    return load_data(Config(data=wanted, split=first.config.split), first.data.split)


def _relevant(data: DataConfig) -> DataConfig:
    """Return the settings of the data that determine what a fitted predictor sees."""
    other = ("batch_size", "samples_per_epoch", "standardise")
    return replace(data, **{name: getattr(DataConfig(), name) for name in other})


def fewer(split: Split, samples: int) -> Split:
    """Return a split with a random sample of the test rows; the others are dropped."""
    n = len(split.test)
    kept = np.sort(np.random.default_rng(split.seed).permutation(n)[: max(samples, 0)])
    note = f"{len(kept):,} of {n:,} test rows were drawn, with seed {split.seed}."
    return replace(
        split,
        test=split.test[kept],
        unseen=split.unseen[kept] if len(split.unseen) else split.unseen,
        dropped=np.concatenate([split.dropped, np.delete(split.test, kept)]),
        notes=(*split.notes, note),
    )


def untrained(screen: Screen, data: TrainingData) -> tuple[Screen, Split, Counts]:
    """Return the rows of another screen that can be tested, over the genes of a run's cell."""
    offsets, genes = screen.offsets, screen.genotypes.genes.numpy()
    index = data.cell.genes.resolve(screen.genes.systematic)[genes]
    known = np.isfinite(screen.column("score")) | (screen.column("sign") != 0)
    both = _taken(data.screen, np.concatenate([data.split.train, data.split.validation]))
    keys, of_training = comparable_keys(
        data.cell.n_genes,
        (index, offsets),
        (both.genes.numpy(), both.offsets.numpy()),
    )
    kept, dropped = np.ones(len(screen), dtype=bool), {}
    for why, rows in {
        NO_INTERACTION: ~known | (screen.column("phenotype") != "interaction"),
        UNKNOWN_GENE: sets_with(index < 0, offsets),
        ONE_GENE_TWICE: repeats_a_gene(index, offsets),
        TOO_LARGE: np.diff(offsets) > data.largest,
        BEYOND_ANY_SCALE: beyond_any_scale(screen.column("score")),
        IN_TRAINING: np.isin(keys, of_training),
    }.items():
        dropped[why] = int((kept & rows).sum())
        kept &= ~rows
    counts = Counts(len(screen), int(kept.sum()), dropped)
    if not kept.any():
        said = ", ".join(f"{why}: {n:,}" for why, n in counts.dropped.items())
        what = f"none of {len(screen):,} rows can be tested on ({said})"
        known_as = ", ".join(data.cell.genes.systematic[:3])
        fix = f"Give interaction scores of other sets of the run's genes, such as {known_as}."
        raise InputError(what, code="nothing-to-test", fix=fix)
    matched = screen.take(kept).on(data.cell)
    trained = _taken(data.screen, data.split.train).genes
    unseen = matched.genotypes.owner[~torch.isin(matched.genotypes.genes, trained)].numpy()
    rows, studies = np.arange(len(matched)), sorted(set(matched.column("study").astype(str)))
    split = Split(
        *(rows[:0], rows[:0], rows, "source", 0, matched.checksum),
        options={"test": studies, "validation": 0.0},
        unseen=np.bincount(unseen, minlength=len(matched)),
    )
    return matched, split, counts


def _taken(screen: Screen, rows: Ints) -> Genotypes:
    return screen.genotypes.take(torch.from_numpy(np.array(rows)))
