"""Ranks and precision of a run, through Lightning's Fabric."""

from __future__ import annotations

import os
from datetime import timedelta

import lightning
from lightning.fabric.strategies.ddp import DDPStrategy
from torch.distributed import DistNetworkError

from deltacell.errors import InputError
from deltacell.train.config import Config, DangoLossConfig, HeteroCellConfig
from deltacell.train.devices import accelerator_of, check_devices, set_threads

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}
"""What Fabric calls them."""

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for another, such as while that one writes a checkpoint."""


def make_fabric(whole: Config) -> lightning.Fabric:
    """Return Fabric, launched: this process is one rank from here on.

    Parameters
    ----------
    whole
        The config of the run.
    """
    config = whole.trainer
    kind = accelerator_of(config)
    check_devices(config, kind)
    world = config.devices * config.nodes
    _check_started(world)
    strategy: DDPStrategy | str = "auto"
    if world > 1:
        strategy = DDPStrategy(
            find_unused_parameters=_has_idle_weights(whole),
            process_group_backend="nccl" if kind == "cuda" else "gloo",
            timeout=PATIENCE,
        )
    fabric = lightning.Fabric(
        accelerator=kind,
        devices=config.devices,
        num_nodes=config.nodes,
        strategy=strategy,
        precision=PRECISIONS[config.precision],  # type: ignore[arg-type]
    )
    if kind == "cpu":
        set_threads(config)
    try:
        fabric.launch()
    except DistNetworkError as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise InputError(
            f"the ranks cannot meet at {place}: {str(error).rstrip()}",
            fix="Set MASTER_PORT to a port that is free on the machine of rank 0, for all of them.",
        ) from error
    return fabric


def _has_idle_weights(config: Config) -> bool:
    """Return whether some weights have no gradient, so that nobody may wait for it."""
    if isinstance(config.model, HeteroCellConfig):
        # Of the last metabolic layer no gene hears.
        return config.model.metabolism
    # What reconstructs the networks has no part in other losses.
    return not isinstance(config.loss, DangoLossConfig)


def _check_started(world: int) -> None:
    """Raise where torchrun has started more or fewer processes than the config is for."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    started = int(os.environ["WORLD_SIZE"])
    if started != world:
        raise InputError(
            f"there are {started} processes, and trainer.devices x trainer.nodes is {world}",
            fix="torchrun --nproc-per-node and trainer.devices have to be the same.",
        )
