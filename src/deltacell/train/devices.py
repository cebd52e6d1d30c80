"""The devices and threads of a run, and the Fabric that makes a process one of its ranks."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from deltacell.base.errors import InputError, did_you_mean
from deltacell.train.config import Config, TrainerConfig
from deltacell.train.launch import is_launched

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}

# Collectives time out after this; a rank may wait for another that writes a checkpoint.
PATIENCE = timedelta(minutes=30)


def accelerator_of(config: TrainerConfig) -> str:
    """Return ``cpu`` or ``cuda``, or raise if there are too few devices."""
    kind = config.accelerator
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    n_devices = torch.cuda.device_count() if kind == "cuda" else cores()
    if config.devices <= n_devices:
        return kind
    name = "GPUs that torch can use" if kind == "cuda" else "cores"
    what = f"trainer.devices is {config.devices}, but this machine has {n_devices} {name}"
    fix = f"Set trainer.devices={max(1, n_devices)}"
    fix += " or trainer.accelerator=cpu." if kind == "cuda" else "."
    raise InputError(what, code="too-few-devices", fix=fix)


DEVICES = ("auto", "cpu", "cuda")


def device_named(name: str | torch.device) -> torch.device:
    """Return the device of predictions: ``cpu``, ``cuda``, or ``auto``, a GPU if there is one."""
    if isinstance(name, torch.device):
        return name
    if name not in DEVICES:
        hint = did_you_mean(name, DEVICES)
        message = f"unknown device '{name}'{hint}; expected one of {', '.join(DEVICES)}"
        raise InputError(message, code="unknown-device")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        message = "the device is cuda, but PyTorch finds no GPU that it can use"
        raise InputError(message, code="no-gpu", fix="Use --device auto, or cpu.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and has_gpu) else "cpu")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(config: TrainerConfig) -> None:
    """Set the number of threads: the config's, OMP_NUM_THREADS, or this rank's share of cores."""
    # torchrun sets OMP_NUM_THREADS to 1 if it is unset, so there it may not be the user's.
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and not is_launched()
    variable = "" if by_torchrun else os.environ.get("OMP_NUM_THREADS", "")
    by_user = int(variable) if variable.isdecimal() else 0
    torch.set_num_threads(config.threads or by_user or max(1, cores() // config.devices))


def make_fabric(config: Config) -> Fabric:
    """Return a launched Fabric, which makes this process one rank."""
    # Only networks need Lightning, which is slow to import.
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    # Lightning logs a line for every process.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    trainer = config.trainer
    kind = accelerator_of(trainer)
    started = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else config.ranks
    if started != config.ranks:
        what = f"{started} processes, but trainer.devices x trainer.nodes is {config.ranks}"
        fix = "Set trainer.devices to torchrun's --nproc-per-node."
        raise InputError(what, code="wrong-number-of-processes", fix=fix)
    strategy: DDPStrategy | str = "auto"
    if config.ranks > 1:
        unused = config.model.leaves_parameters_unused(config.loss)
        backend = "nccl" if kind == "cuda" else "gloo"
        options: Any = {"find_unused_parameters": unused, "process_group_backend": backend}
        strategy = DDPStrategy(timeout=PATIENCE, **options)
    fabric = Fabric(
        accelerator=kind,
        devices=trainer.devices,
        num_nodes=trainer.nodes,
        strategy=strategy,
        precision=PRECISIONS[trainer.precision],  # type: ignore[arg-type]
    )
    if kind == "cpu":
        set_threads(trainer)
    try:
        fabric.launch()
    except dist.DistNetworkError as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        what = f"the ranks cannot meet at {place}: {str(error).rstrip()}"
        fix = "Set MASTER_PORT to a free port on the machine of rank 0, for all ranks."
        raise InputError(what, code="no-rendezvous", fix=fix) from error
    return fabric
