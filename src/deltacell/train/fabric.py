"""Devices, ranks and precision of a run, through Lightning's Fabric."""

from __future__ import annotations

import os
from datetime import timedelta

import lightning
import torch
from lightning.fabric.strategies.ddp import DDPStrategy

from deltacell.errors import InputError
from deltacell.train.config import Config, DangoLossConfig, HeteroCellConfig, TrainerConfig

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
        torch.set_num_threads(config.threads or max(1, cores() // config.devices))
    fabric.launch()
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


def accelerator_of(config: TrainerConfig) -> str:
    """Return ``cpu`` or ``cuda``."""
    if config.accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.accelerator not in ("cpu", "cuda"):
        raise InputError(
            f"there is no accelerator '{config.accelerator}'; there are auto, cpu, cuda"
        )
    if config.accelerator == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "trainer.accelerator is cuda, and torch finds none here",
            fix="Set trainer.accelerator=cpu, or install a build of torch for your GPU.",
        )
    return config.accelerator


def check_devices(config: TrainerConfig, kind: str) -> None:
    """Raise where more devices are asked for than there are."""
    there = torch.cuda.device_count() if kind == "cuda" else cores()
    if config.devices > there:
        what = "GPUs" if kind == "cuda" else "cores"
        raise InputError(
            f"trainer.devices is {config.devices}, and this machine has {there} {what}",
            fix=f"Set trainer.devices to {there} or less.",
        )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
