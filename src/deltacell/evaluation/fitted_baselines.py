"""Baselines, fitted on the training part that runs were trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version

import numpy as np

from deltacell.base.arrays import Doubles, Floats, Ints
from deltacell.base.checks import check_choice
from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import check_no_links
from deltacell.base.text import Progress
from deltacell.cell import Cell
from deltacell.evaluation.evaluation import check_fit
from deltacell.evaluation.other_screen import taken
from deltacell.models.fitted.predictor import FittedPredictor
from deltacell.models.interface import BuildContext, TargetScale
from deltacell.models.registry import BASELINES, config_class, loss_class
from deltacell.profile.record import RUN_FILE, Status, read_run
from deltacell.screen import Genotypes, Screen, Split
from deltacell.train.config import Config
from deltacell.train.data import TrainingData
from deltacell.train.fit import fit_predictor
from deltacell.train.loaded_runs import LoadedRun, load_run
from deltacell.train.predictor import TrainedPredictor, build_fitted

BASELINES_FOLDER = "baselines"  # in a run directory: the baselines it was compared with


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
    asked_for = taken(screen, split.test) if genotypes is None else genotypes
    predictors = {name: _new_baseline(name, cell, screen) for name in names}
    predictions = {}
    for name, predictor in predictors.items():
        fitted = _fit(predictor, cell, screen, split, seed)
        predictions[name] = fitted(cell, asked_for).score.numpy()
    return predictions


def _new_baseline(name: str, cell: Cell, screen: Screen) -> FittedPredictor:
    check_choice("baseline", name, BASELINES)
    largest_set = int(np.diff(screen.offsets).max(initial=0))
    predictor = config_class(name)().build(BuildContext(cell, largest_set))
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
        with_score = rows[np.isfinite(score[rows])]
        return taken(screen, with_score), score[with_score]

    return model.fit(cell, *part(split.train), validation=part(split.validation), seed=seed)


def fitted_baseline(
    name: str,
    runs: Sequence[LoadedRun],
    data: TrainingData,
    progress: Progress,
) -> TrainedPredictor:
    """Load a baseline that is saved in the first run, or fit it and, if possible, save it there."""
    config = _config_of_baseline(name, runs[0], data)
    folder = f"{name}-{_key(config, data)[:12]}"
    path = runs[0].record.path / BASELINES_FOLDER / folder
    if (path / RUN_FILE).is_file() and read_run(path).status is Status.finished:
        return load_run(path, data=data).predictor

    def report(what: str, done: int, total: int) -> None:
        progress(f"{name}: {what}", done, total)

    config = replace(config, directory=str(path))
    try:
        check_no_links(runs[0].record.path)
        outcome = fit_predictor(config, data=data, progress=report)
    except InputError as error:
        # The run directory may be read-only, or another process may be fitting this baseline.
        if not isinstance(error, StoreError) and not (path / RUN_FILE).exists():
            raise
        return _fitted_in_memory(config, data)
    if outcome.signal:
        raise KeyboardInterrupt
    return load_run(outcome.path, data=data).predictor


def _config_of_baseline(name: str, run: LoadedRun, data: TrainingData) -> Config:
    model = config_class(name)()
    settings = data.config or run.config.data
    if not model.reads_context:
        settings = replace(settings, context=[], orthologues=None)
    return Config(
        name=name,
        seed=data.split.seed,
        model=model,
        loss=loss_class(model.default_loss)(),
        split=run.config.split,
        data=settings,
    )


def _key(config: Config, data: TrainingData) -> str:
    """Return a digest of everything that determines what a baseline learns."""
    decides = (config.model, config.seed, data.cell.checksum, data.screen.checksum)
    digest = hashlib.sha256(repr((*decides, version("deltacell"))).encode())
    for rows in (data.split.train, data.split.validation):
        digest.update(np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()


def _fitted_in_memory(config: Config, data: TrainingData) -> TrainedPredictor:
    predictor = build_fitted(config, data)
    fitted = _fit(predictor, data.cell, data.screen, data.split, config.seed)
    return TrainedPredictor(fitted, data.cell, TargetScale())
