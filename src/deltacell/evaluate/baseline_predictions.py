"""The baselines, fitted on the training part of a split: once, and saved as runs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.errors import InputError, StoreError
from deltacell.evaluate.side_by_side import check_fit
from deltacell.models.baselines import BASELINES, baseline, check_baseline
from deltacell.profile.record import RUN_FILE, RunRecord, Status, now, read_run
from deltacell.screen import Genotypes, Screen, Split
from deltacell.train.build import build_fitted
from deltacell.train.config import MODELS, Config, NoLossConfig
from deltacell.train.data import Standard, TrainingData
from deltacell.train.loaded_run import LoadedRun, load_run
from deltacell.train.predictor import Predictor
from deltacell.train.run import fit_run
from deltacell.words import Progress

BASELINES_FOLDER = "baselines"
"""Of a run: the baselines that were fitted to be compared with it."""


def baselines(
    cell: Cell,
    screen: Screen,
    split: Split,
    names: Iterable[str] | None = None,
    *,
    seed: int = 0,
    genotypes: Genotypes | None = None,
    progress: Progress | None = None,
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the predictions of baselines for the test rows, by name.

    They learn from the training rows that have a score. Those that stop early do so by the
    validation part, as a model does; of the test part they see the genotypes only.

    Parameters
    ----------
    cell
        The wild type.
    screen
        What was measured, over the genes of the cell.
    split
        Its parts.
    names
        Of `deltacell.models.baselines.BASELINES`; all where not given.
    seed
        Of all that is drawn.
    genotypes
        What to predict; the test rows where not given.
    progress
        Called as ``progress(what, done, total)``.
    """
    check_fit(cell, screen, split)
    chosen = list(BASELINES if names is None else names)
    made = {name: baseline(name) for name in chosen}
    validation = _part(screen, split.validation)
    if genotypes is None:
        genotypes = screen.genotypes.take(torch.from_numpy(np.array(split.test)))
    predictions = {}
    for name, untrained in made.items():
        fitted = untrained.fit(
            cell,
            *_part(screen, split.train),
            validation=validation if len(validation[0]) else None,
            seed=seed,
            progress=_named(name, progress),
        )
        predictions[name] = fitted(cell, genotypes).score.numpy()
    return predictions


def fitted_baselines(
    runs: Sequence[LoadedRun],
    data: TrainingData,
    names: Iterable[str],
    *,
    progress: Progress | None = None,
) -> dict[str, LoadedRun]:
    """Return baselines as runs: loaded where one of the runs has them, fitted and saved otherwise.

    They are saved in the folder ``baselines`` of the first run, by a key of the data, the split and
    the parameters. Where nothing can be written there, they are fitted and not saved.

    Parameters
    ----------
    runs
        What they are compared with.
    data
        What they learn from.
    names
        Of `deltacell.models.baselines.BASELINES`.
    progress
        Called as ``progress(what, done, total)``.
    """
    chosen = {name: baseline_config(name, runs[0].config, data) for name in names}
    return {name: _fitted(config, runs, data, progress) for name, config in chosen.items()}


def baseline_config(name: str, config: Config, data: TrainingData) -> Config:
    """Return the config of a baseline's run.

    Parameters
    ----------
    name
        One of `deltacell.models.baselines.BASELINES`.
    config
        Names the data and the split.
    data
        Loaded.
    """
    check_baseline(name)
    return Config(
        name=name,
        seed=data.split.seed,
        data=data.config or config.data,
        split=config.split,
        model=MODELS[name](),
        loss=NoLossConfig(),
    )


def _fitted(
    config: Config, runs: Sequence[LoadedRun], data: TrainingData, progress: Progress | None
) -> LoadedRun:
    folder = f"{config.name}-{_key(config, data)[:12]}"
    places = [run.record.path / BASELINES_FOLDER / folder for run in runs]
    for place in places:
        if (place / RUN_FILE).is_file() and read_run(place).status is Status.finished:
            return load_run(place, data=data)
    config = dataclasses.replace(config, directory=str(places[0]))
    report = _named(config.name, progress)
    try:
        outcome = fit_run(config, data=data, progress=report)
    except StoreError:
        # A run may be read where it cannot be written to.
        return _not_saved(config, data, report)
    except InputError:
        if not (places[0] / RUN_FILE).exists():
            raise
        # Another process is fitting it at this moment.
        return _not_saved(config, data, report)
    if outcome.signal:
        raise KeyboardInterrupt
    return load_run(outcome.path, data=data)


def _not_saved(config: Config, data: TrainingData, progress: Progress | None) -> LoadedRun:
    validation = data.part(data.split.validation)
    fitted = build_fitted(config).fit(
        data.cell,
        *data.part(data.split.train),
        validation=validation if len(validation[0]) else None,
        seed=config.seed,
        progress=progress,
    )
    record = RunRecord(
        status=Status.finished,
        name=config.name,
        mode=str(config.mode),
        seed=config.seed,
        command=(),
        started=now(),
    )
    return LoadedRun(record, config, data, Predictor(fitted, data.cell, Standard()))


def _key(config: Config, data: TrainingData) -> str:
    """Return a checksum of all that decides what a baseline learns."""
    digest = hashlib.sha256()
    decides = (config.model, config.seed, data.cell.checksum, data.screen.checksum)
    digest.update(repr((*decides, version("deltacell"))).encode())
    for rows in (data.split.train, data.split.validation):
        digest.update(np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()


def _part(screen: Screen, rows: Ints) -> tuple[Genotypes, npt.NDArray[np.float64]]:
    score = screen.column("score").astype(np.float64)
    known = rows[np.isfinite(score[rows])]
    return screen.genotypes.take(torch.from_numpy(known)), score[known]


def _named(name: str, progress: Progress | None) -> Progress | None:
    if progress is None:
        return None

    def report(what: str, done: int, total: int) -> None:
        progress(f"{name}: {what}", done, total)

    return report
