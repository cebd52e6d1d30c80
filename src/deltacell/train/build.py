"""The predictor and the loss that a config describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from deltacell.cell import Cell
from deltacell.errors import InputError, did_you_mean
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
from deltacell.train.config import (
    Config,
    DangoConfig,
    DangoLossConfig,
    LogCoshConfig,
    ModelConfig,
    NetworkConfig,
    PairCellConfig,
    PointDistributionContrastConfig,
)
from deltacell.train.registry import MODELS, Registered, options_of

if TYPE_CHECKING:
    from deltacell.train.data import TrainingData


def build_model(
    config: Config, cell: Cell, largest: int, propagation: Propagation | None = None
) -> nn.Module:
    """Return the network that the training loop trains.

    Parameters
    ----------
    config
        The config of a run.
    cell
        The wild type.
    largest
        The most genes that a genotype has.
    propagation
        A recorded one, in place of the config's.
    """
    registered = _registered(config.model)
    if registered.fitted:
        raise InputError(
            f"the model '{config.model.name}' is fitted in one call and is no network",
            fix="Call build_fitted, or choose model=dango or model=hetero_cell.",
        )
    model: nn.Module = registered.load()(config, cell, largest, propagation)
    return model


def build_for(
    config: Config, data: TrainingData, propagation: Propagation | None = None
) -> nn.Module:
    """Return the network, see `build_model`, with what it has to know of the training part.

    Parameters
    ----------
    config
        The config of a run.
    data
        What the config names.
    propagation
        A recorded one, in place of the config's.
    """
    model = build_model(config, data.cell, data.largest, propagation)
    if isinstance(model, PairCell):
        genotypes, _ = data.part(data.split.train)
        model.remember(data.cell, genotypes, torch.from_numpy(data.targets[data.split.train]))
    return model


def build_fitted(config: Config) -> FittedPredictor:
    """Return a predictor that is fitted in one call, before it has learned anything."""
    predictor: FittedPredictor = _registered(config.model).load()(**options_of(config.model))
    return predictor


def _registered(model: ModelConfig) -> Registered:
    if model.name not in MODELS:
        raise InputError(
            f"there is no model '{model.name}'{did_you_mean(model.name, MODELS)}; "
            f"there are {', '.join(MODELS)}"
        )
    return MODELS[model.name]


def build_dango(
    config: Config, cell: Cell, largest: int, propagation: Propagation | None = None
) -> Dango:
    """Return a DANGO, see `build_model`."""
    model = config.model
    assert isinstance(model, DangoConfig)
    relations = list(STRING_RELATIONS if model.relations is None else model.relations)
    absent = [name for name in relations if name not in cell.relations]
    if absent and model.relations is None:
        raise InputError(
            f"the cell has no relation '{absent[0]}', one of the six of STRING that DANGO "
            f"takes by default; it has {', '.join(cell.relations)}",
            fix=f"Set model.relations=[{','.join(cell.relations)}] or some of them, and the "
            "weight of the non-edges of each, such as "
            f"model.lambdas.{next(iter(cell.relations), 'NAME')}=1.0",
        )
    return Dango(
        cell,
        relations,
        {**STRING_LAMBDAS, **model.lambdas},
        features=model.features,
        hidden=model.hidden,
        heads=model.heads,
        layers=model.layers,
        largest=largest,
    )


def build_pair_cell(
    config: Config, cell: Cell, largest: int, propagation: Propagation | None = None
) -> PairCell:
    """Return a PairCell, see `build_model`."""
    return PairCell(cell, **options_of(config.model))


def build_hetero_cell(
    config: Config, cell: Cell, largest: int, propagation: Propagation | None = None
) -> HeteroCell:
    """Return a HeteroCell, see `build_model`."""
    options = options_of(config.model)
    relations = options.pop("relations")
    chosen = build_propagation(config) if propagation is None else propagation
    return HeteroCell(cell, relations, **options, largest=largest, propagation=chosen)


def build_propagation(config: Config) -> Propagation:
    """Return the propagation; a bound on memory is for those that keep to one."""
    if config.max_bytes is None:
        return strategy(config.propagation)
    if config.propagation not in ("delta", "auto"):
        raise InputError(
            f"max_bytes is for the propagations delta and auto, not for '{config.propagation}'"
        )
    return strategy(config.propagation, max_bytes=config.max_bytes)


def recorded_propagation(recorded: dict[str, Any], config: Config) -> Propagation:
    """Return the propagation of a run's record, with its choice where it is `auto`."""
    if recorded["name"] == "auto":
        return Auto.from_json(recorded["choice"])
    return build_propagation(config)


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
    loss = config.loss
    if isinstance(loss, LogCoshConfig):
        return LogCosh()
    if isinstance(loss, DangoLossConfig):
        if not isinstance(config.model, DangoConfig):
            raise InputError(
                f"the loss 'dango' is of DANGO's networks, and the model is '{config.model.name}'",
                fix="Set loss=log_cosh or loss=point_distribution_contrast.",
            )
        return DangoLoss(**options_of(loss))
    if isinstance(loss, PointDistributionContrastConfig):
        assert isinstance(config.model, NetworkConfig | PairCellConfig)
        return PointDistributionContrast(
            **options_of(loss), width=config.model.hidden, max_epochs=config.trainer.epochs
        )
    raise InputError(
        f"there is no loss '{loss.name}'; there are dango, log_cosh, point_distribution_contrast"
    )
