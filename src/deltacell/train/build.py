"""The model and the loss that a config describes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

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
from deltacell.propagate import Propagation, strategy
from deltacell.propagate.auto import Auto
from deltacell.train.config import (
    Config,
    DangoConfig,
    DangoLossConfig,
    HeteroCellConfig,
    LogCoshConfig,
    PointDistributionContrastConfig,
)


def build_model(
    config: Config, cell: Cell, largest: int, propagation: Propagation | None = None
) -> nn.Module:
    """Return the model.

    Parameters
    ----------
    config
        Of a run.
    cell
        The wild type.
    largest
        The most genes that a genotype has.
    propagation
        A recorded one, in place of the config's.
    """
    model = config.model
    if isinstance(model, DangoConfig):
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
    if isinstance(model, HeteroCellConfig):
        options = _options(model)
        relations_ = options.pop("relations")
        chosen = build_propagation(config) if propagation is None else propagation
        return HeteroCell(cell, relations_, **options, largest=largest, propagation=chosen)
    raise InputError(f"there is no model '{model.name}'; there are dango, hetero_cell")


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
        return DangoLoss(**_options(loss))
    if isinstance(loss, PointDistributionContrastConfig):
        return PointDistributionContrast(
            **_options(loss), width=config.model.hidden, max_epochs=config.trainer.epochs
        )
    raise InputError(
        f"there is no loss '{loss.name}'; there are dango, log_cosh, point_distribution_contrast"
    )


def _options(config: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name != "name"}
