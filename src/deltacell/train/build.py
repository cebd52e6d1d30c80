"""What a config describes: the predictor, the loss, and the loop that trains them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models import (
    STRING_LAMBDAS,
    STRING_RELATIONS,
    Dango,
    DangoLoss,
    HeteroCell,
    LogCosh,
    Loss,
    PointDistributionContrast,
)
from deltacell.models.baselines import FittedPredictor
from deltacell.models.pairs import PairCell
from deltacell.propagate import Propagation, strategy
from deltacell.propagate.auto import Auto
from deltacell.screen import Loader
from deltacell.train.config import (
    Config,
    DangoConfig,
    DangoLossConfig,
    HeteroCellConfig,
    LogCoshConfig,
    NetworkConfig,
    PairCellConfig,
    is_fitted,
    options_of,
)
from deltacell.train.predictor import WIDE
from deltacell.train.processes import from_first_rank
from deltacell.train.task import Task

if TYPE_CHECKING:
    import lightning

    from deltacell.profile.phases import NoTimer, PhaseTimer
    from deltacell.train.data import TrainingData
    from deltacell.train.loop import Hooks, Loop


def build_fitted(config: Config) -> FittedPredictor:
    """Return a predictor that is fitted in one call, before it has learned anything."""
    predictor: FittedPredictor = type(config.model).built()(**options_of(config.model))
    return predictor


def build_model(
    config: Config, cell: Cell, largest: int, propagation: Propagation | None = None
) -> nn.Module:
    """Return the network that the training loop trains.

    `largest` is the largest number of genes of a genotype; `propagation` replaces the config's.
    """
    model, options = config.model, options_of(config.model)
    if isinstance(model, DangoConfig):
        relations = list(STRING_RELATIONS if model.relations is None else model.relations)
        absent = [name for name in relations if name not in cell.relations]
        if absent and model.relations is None:
            there = list(cell.relations)
            raise InputError(
                f"the cell has no relation '{absent[0]}', one of the six of STRING that DANGO uses "
                "by default",
                code="unknown-relation",
                fix=f"Set model.relations=[{','.join(there)}] or some of them, and a weight for "
                f"each, such as model.lambdas.{next(iter(there), 'NAME')}=1.0.",
            )
        options |= {"relations": relations, "lambdas": {**STRING_LAMBDAS, **model.lambdas}}
        return Dango(cell, **options, largest=largest)
    if isinstance(model, HeteroCellConfig):
        chosen = build_propagation(config) if propagation is None else propagation
        return HeteroCell(cell, **options, largest=largest, propagation=chosen)
    assert not is_fitted(model)
    return PairCell(cell, **options)


def build_for(
    config: Config, data: TrainingData, propagation: Propagation | None = None
) -> nn.Module:
    """Return the network, see `build_model`, with what it has to know of the training part."""
    model = build_model(config, data.cell, data.largest, propagation)
    if isinstance(model, PairCell):
        genotypes, _ = data.part(data.split.train)
        model.remember(data.cell, genotypes, torch.from_numpy(data.targets[data.split.train]))
    return model


def build_propagation(config: Config) -> Propagation:
    """Return the propagation of a config."""
    if config.max_bytes is None:
        return strategy(config.propagation)
    return strategy(config.propagation, max_bytes=config.max_bytes)


def recorded_propagation(recorded: dict[str, Any] | None, config: Config) -> Propagation | None:
    """Return the propagation of a run's record, with its choice if it is `auto`."""
    if recorded is not None and recorded["name"] == "auto":
        return Auto.from_json(recorded["choice"])
    return None if recorded is None else build_propagation(config)


def propagation_record(model: nn.Module) -> dict[str, Any] | None:
    """Return what a run records of the propagation; None for a model without one."""
    if not isinstance(model, HeteroCell):
        return None
    way = model.propagation
    if isinstance(way, Auto):
        return {"name": "auto", "choice": way.to_json(), "why": way.explain()}
    return {"name": way.name, "choice": None, "why": "set in the config"}


def build_loss(config: Config) -> Loss:
    """Return the loss."""
    loss, model = config.loss, config.model
    if isinstance(loss, LogCoshConfig):
        return LogCosh()
    if isinstance(loss, DangoLossConfig):
        return DangoLoss(**options_of(loss))
    assert isinstance(model, NetworkConfig | PairCellConfig)
    return PointDistributionContrast(
        **options_of(loss), width=model.hidden, max_epochs=config.trainer.epochs
    )


def make_loop(
    fabric: lightning.Fabric,
    config: Config,
    data: TrainingData,
    *,
    timer: PhaseTimer | NoTimer,
    hooks: Hooks | None = None,
    propagation: Propagation | None = None,
) -> Loop:
    """Return a loop at its beginning.

    Without a recorded propagation the first rank chooses one by the first batch.
    """
    from deltacell.train.loop import Loop

    # Every rank begins with the same weights and draws the same dropout, which is by gene.
    torch.manual_seed(config.seed)
    model = build_for(config, data, propagation)
    task = Task(model, build_loss(config), data.cell, data.standard)

    def loader(rows: Sequence[int] | np.ndarray, batch_size: int, *, train: bool) -> Loader:
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

    training = loader(data.split.train, config.data.batch_size, train=True)
    validation = None
    rows, some = data.split.validation, config.trainer.validation_samples
    if len(rows):
        if some is not None and some < len(rows):
            rows = np.sort(np.random.default_rng(config.split.seed).permutation(rows)[:some])
        wide = isinstance(config.model, DangoConfig | PairCellConfig)
        size = config.trainer.validation_batch_size or (WIDE if wide else config.data.batch_size)
        validation = loader(rows, size, train=False)
    loop = Loop(fabric, config, task, training, validation, timer=timer, hooks=hooks)
    if config.trainer.compile:
        model.compile_row_wise()  # type: ignore[operator]
    if propagation is None and isinstance(model, HeteroCell):
        if fabric.is_global_zero:
            model.prepare(data.cell, next(iter(training)).genotypes)
            training.set_epoch(0)
        record = from_first_rank(propagation_record(model), fabric.device)
        chosen = recorded_propagation(record, config)
        assert chosen is not None
        model.propagation = chosen
    return loop


def samples_per_epoch(config: Config, data: TrainingData) -> int:
    """Return the number of genotypes per epoch."""
    there, asked = len(data.split.train), config.data.samples_per_epoch
    return there if asked is None else min(there, asked)
