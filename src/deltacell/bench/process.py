"""Parts shared by all benchmarks: separate processes, peak memory, bars, and the machine."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import platform
import re
import resource
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltacell.base.errors import DeltacellError
from deltacell.base.files import JsonObject
from deltacell.base.text import Progress
from deltacell.cell import Cell
from deltacell.screen import Genotypes


def silent(label: str, done: int, total: int) -> None:
    """Show no progress."""


progress: Progress = silent
"""Called by benchmarks; `deltacell bench` replaces it with its progress bar."""


class PeakMemory:
    """Peak memory of this process since the object was created, above what it held then."""

    def __init__(self) -> None:
        gc.collect()
        with contextlib.suppress(OSError):  # Only Linux can reset the peak.
            Path("/proc/self/clear_refs").write_text("5")
        self._before = peak_mib("VmRSS")

    def mib(self) -> float:
        """Return the MiB; 0 if everything fitted into memory that was held before."""
        return max(0.0, peak_mib() - self._before)


def peak_mib(field: str = "VmHWM") -> float:
    """Return the peak memory of this process in MiB, or another field of its status on Linux."""
    status = Path("/proc/self/status")
    if status.exists():
        (kib,) = re.findall(rf"^{field}:\s+(\d+)", status.read_text(), re.MULTILINE)
        return int(kib) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 1024)


def in_own_process(function: Callable[..., JsonObject], **settings: Any) -> JsonObject:
    """Call a function in a new process, so that earlier measurements do not affect it."""
    # All are forked from a server that has imported the module, so this takes its time once.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([function.__module__])
    try:
        with ProcessPoolExecutor(1, server) as pool:
            return pool.submit(function, **settings).result()
    except BrokenProcessPool as error:
        raise DeltacellError(f"the process of {function.__module__} died") from error


def in_turns(ways: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[Any]]:
    """Call every way once per turn, so that a busy moment of the machine affects all alike."""
    results: dict[str, list[Any]] = {name: [] for name in ways}
    for turn in range(repeats):
        for number, (name, work) in enumerate(ways.items()):
            label = f"{name}, {turn + 1} of {repeats}"
            progress(label, turn * len(ways) + number, repeats * len(ways))
            results[name].append(work())
    return results


def median_row(turns: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Return the median of each float over turns, and all other values of the first turn."""
    row = dict(turns[0])
    for name, value in turns[0].items():
        if isinstance(value, float):
            row[name] = statistics.median(turn[name] for turn in turns)
    return row


def random_genotypes(cell: Cell, n: int, size: int = 3) -> Genotypes:
    """Return n genotypes of this many different genes, the same in each call."""
    rng = np.random.default_rng(0)
    sets = [rng.choice(cell.n_genes, size, replace=False).tolist() for _ in range(n)]
    return Genotypes.of(sets)


def bars(
    limits: Mapping[str, Mapping[str, float]],
    measured: Mapping[str, float],
) -> dict[str, JsonObject]:
    """Return for each limit on something measured its kind, the values, and whether it is met."""
    results = {}
    for name, bar in limits.items():
        if name not in measured:
            continue
        [(kind, limit)] = bar.items()
        value = measured[name]
        is_met = value >= limit if kind == "at_least" else value <= limit
        results[name] = {kind: limit, "measured": value, "met": bool(is_met)}
    return results


def machine() -> JsonObject:
    """Return the cores, the system and the versions that a measurement depends on."""
    system = {"machine": platform.machine(), "system": platform.system()}
    packages = {name: version(name) for name in ("numpy", "torch")}
    cores = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return {**cores, **system, "python": platform.python_version(), **packages}
