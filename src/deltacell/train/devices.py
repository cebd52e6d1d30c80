"""The devices of this machine: which kind a run takes, and whether there are enough."""

from __future__ import annotations

import os

import torch

from deltacell.errors import InputError
from deltacell.train.config import TrainerConfig


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


def set_threads(config: TrainerConfig) -> None:
    """Set the threads of this process on a CPU: the config's, OMP_NUM_THREADS, or its cores."""
    torch.set_num_threads(config.threads or _asked_threads() or max(1, cores() // config.devices))


def _asked_threads() -> int | None:
    """Return what OMP_NUM_THREADS asks for, where a person has set it."""
    from deltacell.train.launch import is_launched

    # torchrun sets it to 1 where it is not set, and nobody can tell the difference.
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and not is_launched()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) and not by_torchrun else None


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
