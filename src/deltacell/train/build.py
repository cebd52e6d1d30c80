"""What a config describes: the predictor, its propagation, the loss and the loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models import (
    STRING_LAMBDAS,
    STRING_RELATIONS,
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
from deltacell.train.config import Config, DangoConfig, HeteroCellConfig, options_of
from deltacell.train.predictor import WIDE

if TYPE_CHECKING:
    from deltacell.train.data import TrainingData

PropagationRecord = dict[str, Any]  # of the propagation, in the record of a run


def build_fitted(config: Config) -> FittedPredictor:
    predictor: FittedPredictor = type(config.model).built()(**options_of(config.model))
    return predictor


def build_model(
    config: Config, cell: Cell, largest: int, recorded: PropagationRecord | None = None
) -> nn.Module:
    """Return the network for genotypes of at most `largest` genes."""
    model, options = config.model, options_of(config.model)
    if isinstance(model, DangoConfig):
        relations = list(STRING_RELATIONS if model.relations is None else model.relations)
        absent = [name for name in relations if name not in cell.relations]
        if absent and model.relations is None:
            there = ",".join(cell.relations)
            what = f"the cell has no relation '{absent[0]}', which DANGO uses by default"
            fix = f"Set model.relations=[{there}] or some of them, and model.lambdas.NAME for each."
            raise InputError(what, code="unknown-relation", fix=fix)
        lambdas = {**STRING_LAMBDAS, **model.lambdas}
        options |= {"relations": relations, "lambdas": lambdas, "largest": largest}
    elif isinstance(model, HeteroCellConfig):
        options |= {"largest": largest, "propagation": build_propagation(config, recorded)}
    network: nn.Module = type(model).built()(cell, **options)
    return network


def build_for(
    config: Config, data: TrainingData, recorded: PropagationRecord | None = None
) -> nn.Module:
    """Return the network, see `build_model`, with what it has to know of the training part."""
    model = build_model(config, data.cell, data.largest, recorded)
    if isinstance(model, PairCell):
        genotypes, _ = data.part(data.split.train)
        model.remember(data.cell, genotypes, torch.from_numpy(data.targets[data.split.train]))
    return model


def build_loss(config: Config) -> Loss:
    options = options_of(config.loss)
    if config.loss.name == "log_cosh":
        return LogCosh()
    if config.loss.name == "dango":
        return DangoLoss(**options)
    width: int = config.model.hidden  # type: ignore[attr-defined]
    return PointDistributionContrast(**options, width=width, max_epochs=config.trainer.epochs)


def build_propagation(config: Config, recorded: PropagationRecord | None = None) -> Propagation:
    """Return the strategy of a config, with the choice that a run has recorded, if any."""
    options = {} if config.max_bytes is None else {"max_bytes": config.max_bytes}
    chosen = recorded and recorded["choice"]
    return strategy(config.propagation, **(chosen or options))


def propagation_record(model: nn.Module) -> PropagationRecord | None:
    """Return what a run records of the propagation; None for a model without one."""
    if not isinstance(model, HeteroCell):
        return None
    way = model.propagation
    if isinstance(way, Auto):
        return {"name": "auto", "choice": dict(vars(way)), "why": way.explain()}
    return {"name": way.name, "choice": None, "why": "set in the config"}


def build_loaders(
    config: Config, data: TrainingData, rank: int, world_size: int
) -> tuple[Loader, Loader | None]:

    def loader(rows: np.ndarray, batch_size: int, **options: Any) -> Loader:
        options |= {"rank": rank, "world_size": world_size, "targets": data.targets}
        return Loader(data.screen, rows, batch_size=batch_size, seed=config.seed, **options)

    asked, rows = config.data, data.split.validation
    training = loader(
        data.split.train,
        asked.batch_size,
        samples_per_epoch=asked.samples_per_epoch,
        run_length=asked.run_length,
    )
    if not len(rows):
        return training, None
    some = config.trainer.validation_samples
    if some is not None and some < len(rows):
        rows = np.sort(np.random.default_rng(config.split.seed).permutation(rows)[:some])
    size = asked.batch_size if isinstance(config.model, HeteroCellConfig) else WIDE
    return training, loader(rows, size, shuffle=False)
