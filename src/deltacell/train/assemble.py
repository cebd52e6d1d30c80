"""The loop that a config describes, on the data that it names."""

from __future__ import annotations

from collections.abc import Sequence

import lightning
import numpy as np
import torch

from deltacell.models import HeteroCell
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.propagate import Propagation
from deltacell.screen import Loader
from deltacell.train.build import build_for, build_loss, propagation_record, recorded_propagation
from deltacell.train.communication import from_first_rank
from deltacell.train.config import Config, DangoConfig, Mode, PairCellConfig
from deltacell.train.data import TrainingData
from deltacell.train.ema import Ema
from deltacell.train.loop import Hooks, Limits, Loop
from deltacell.train.predictor import WIDE
from deltacell.train.schedule import Schedule
from deltacell.train.task import Task

MODE_STEPS = 50
"""Batches of a mode other than ``train``."""


def make_loop(
    fabric: lightning.Fabric,
    config: Config,
    data: TrainingData,
    *,
    timer: PhaseTimer | NoTimer,
    hooks: Hooks,
    propagation: Propagation | None = None,
) -> Loop:
    """Return a loop at its beginning.

    Parameters
    ----------
    fabric
        Devices, ranks and precision.
    config
        Of the run.
    data
        What it names.
    timer
        Of the phases.
    hooks
        What the loop leaves to others.
    propagation
        A recorded one; where not given, the first rank chooses by the first batch.
    """
    # Every rank begins with the same weights and draws the same dropout, which is by gene.
    torch.manual_seed(config.seed)
    task = make_task(config, data, propagation)
    model = task.model
    module, optimizer = fabric.setup(task, task.configure_optimizers())
    training = _loader(fabric, config, data, data.split.train, config.data.batch_size, train=True)
    if config.trainer.compile:
        model.compile_row_wise()  # type: ignore[operator]
    if propagation is None:
        _choose(fabric, config, data, model, training)
    trainer = config.trainer
    every_minutes = trainer.checkpoint_every_minutes
    limits = Limits(
        epochs=_epochs(config, len(training)),
        accumulate=config.optimizer.accumulate,
        clip=config.optimizer.clip,
        validate_every=trainer.validate_every,
        patience=trainer.patience,
        save_every_steps=trainer.checkpoint_every_steps,
        save_every_seconds=None if every_minutes is None else 60 * every_minutes,
        batches=most_batches(config),
    )
    steps = steps_per_epoch(config, data)
    return Loop(
        fabric,
        module,
        task,
        optimizer,
        Schedule(optimizer, config.schedule, steps, trainer.epochs),
        training,
        _validation_loader(fabric, config, data),
        limits,
        timer=timer,
        mode=config.mode,
        ema=None if trainer.ema is None else Ema(model, trainer.ema),
        hooks=hooks,
    )


def make_task(config: Config, data: TrainingData, propagation: Propagation | None = None) -> Task:
    """Return the task with new weights.

    Parameters
    ----------
    config
        Of the run.
    data
        What it names.
    propagation
        A recorded one, in place of the config's.
    """
    model = build_for(config, data, propagation)
    return Task(model, build_loss(config), data.cell, data.standard, config.optimizer)


def samples_per_epoch(config: Config, data: TrainingData) -> int:
    """Return the genotypes of an epoch."""
    there, asked = len(data.split.train), config.data.samples_per_epoch
    return there if asked is None else min(there, asked)


def steps_per_epoch(config: Config, data: TrainingData) -> int:
    """Return the optimizer steps of an epoch."""
    batches = -(-samples_per_epoch(config, data) // config.data.batch_size)
    return -(-batches // config.optimizer.accumulate)


def most_batches(config: Config) -> int | None:
    """Return the batches after which a run stops, whatever its epochs; None for no such bound."""
    if config.mode is Mode.train or config.mode_steps is not None:
        return config.mode_steps
    return MODE_STEPS


def _epochs(config: Config, batches: int) -> int:
    """Return the epochs; in a mode other than ``train``, those that its batches are part of."""
    most = most_batches(config)
    if config.mode is Mode.train or most is None:
        return config.trainer.epochs
    return -(-most // batches)


def _validation_loader(
    fabric: lightning.Fabric, config: Config, data: TrainingData
) -> Loader | None:
    rows, some = data.split.validation, config.trainer.validation_samples
    if not len(rows):
        return None
    if some is not None and some < len(rows):
        rows = np.sort(np.random.default_rng(config.split.seed).permutation(rows)[:some])
    wide = (
        WIDE if isinstance(config.model, DangoConfig | PairCellConfig) else config.data.batch_size
    )
    size = config.trainer.validation_batch_size or wide
    return _loader(fabric, config, data, rows, size, train=False)


def _loader(
    fabric: lightning.Fabric,
    config: Config,
    data: TrainingData,
    rows: Sequence[int] | np.ndarray,
    batch_size: int,
    *,
    train: bool,
) -> Loader:
    return Loader(
        data.screen,
        rows,
        batch_size=batch_size,
        shuffle=train,
        seed=config.seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        targets=data.targets,
        samples_per_epoch=config.data.samples_per_epoch if train else None,
        run_length=config.data.run_length if train else None,
    )


def _choose(
    fabric: lightning.Fabric,
    config: Config,
    data: TrainingData,
    model: torch.nn.Module,
    training: Loader,
) -> None:
    """Let the first rank choose the propagation, by the first batch; the others follow."""
    if not isinstance(model, HeteroCell):
        return
    if fabric.is_global_zero:
        model.prepare(data.cell, next(iter(training)).genotypes)
        training.set_epoch(0)
    record = from_first_rank(propagation_record(model), fabric.device)
    model.propagation = recorded_propagation(record, config)
