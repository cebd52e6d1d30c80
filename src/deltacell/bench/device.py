"""Training steps on a GPU: waits of the host, kernels, throughput, memory, and two GPUs together.

This is what a test on a pretend device cannot show. ``deltacell bench device --json device.json``
is one command for those who have a GPU.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from deltacell.base.errors import DeltacellError
from deltacell.bench import process
from deltacell.bench.process import random_genotypes
from deltacell.bench.subjects import network
from deltacell.cell import Cell
from deltacell.models.interface import LabelledSets, Model, TargetScale
from deltacell.models.losses import DangoLoss, LogCosh, Loss
from deltacell.screen import Batch
from deltacell.train.devices import device_named
from deltacell.train.task import Task

WARM_UP_STEPS = 2
NCCL_NUMBERS = 25_000_000  # of the tensor that two GPUs add up, 100 MB
PORT = "29577"


@dataclass(frozen=True)
class DeviceRow:
    """What a training step of one case costs on a device."""

    case: str
    s_per_step: float
    genotypes_per_s: float
    device_mib: float | None  # the peak of its memory; None on a CPU
    kernels: int | None  # launches per step; None on a CPU
    waits: int | None  # of the host for the device, per step; None on a CPU
    score_difference: float  # from the CPU in float64, relative to the deviation of the scores
    places: tuple[str, ...]  # where the host waited


def run(
    device: str = "cuda",
    batch: int = 64,
    repeats: int = 5,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure a training step of each model and strategy on a device.

    With `device` ``cpu`` the same steps run without what only a GPU has, which shows that the
    command works.
    """
    place = device_named(device)
    cell = Cell.synthetic("demo" if quick else "yeast")
    cases = _cases(cell)
    rows = []
    for number, (name, make) in enumerate(cases.items()):
        process.progress(name, number, len(cases))
        rows.append(_measured(name, make, cell, batch, repeats, place))
    fastest = {row.case: row.genotypes_per_s for row in rows}
    ratios = {
        "shared_over_delta": fastest["shared"] / fastest["delta"],
        "largest_score_difference": max(row.score_difference for row in rows),
    }
    notes = [f"Waits of {row.case}: {'; '.join(row.places)}." for row in rows if row.places]
    notes.append(
        "propagation=auto uses shared on a GPU; this is right while shared_over_delta is above 1."
    )
    result: dict[str, object] = {
        "rows": [asdict(row) for row in rows],
        "ratios": ratios,
        "notes": notes,
        "device": _description(place),
    }
    if place.type == "cuda" and torch.cuda.device_count() > 1:
        process.progress("two GPUs", len(cases), len(cases))
        result["two_gpus"] = [two_gpus()]
    return result


def _description(device: torch.device) -> dict[str, object]:
    if device.type == "cpu":
        return {"name": "cpu", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "memory_mib": properties.total_memory / 2**20,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
    }


class Learner(NamedTuple):
    """A model with its loss."""

    model: Model
    loss: Loss


def _cases(cell: Cell) -> Mapping[str, Callable[[], Learner]]:
    """Return what makes the model and the loss of each case."""
    hetero = partial(network, "hetero_cell", cell)
    late = partial(hetero, propagation="late", mutant_layers=1)
    lambdas = dict.fromkeys(cell.relations, 0.5)
    dango = partial(network, "dango", cell, relations=list(lambdas), lambdas=lambdas)
    return {
        "dango": lambda: Learner(dango(), DangoLoss()),
        "pair_cell": lambda: Learner(network("pair_cell", cell), LogCosh()),
        "shared": lambda: Learner(hetero(propagation="shared"), LogCosh()),
        "delta": lambda: Learner(hetero(propagation="delta"), LogCosh()),
        "late": lambda: Learner(late(), LogCosh()),
        "late, epistasis": lambda: Learner(late(epistasis=True), LogCosh()),
        "edge_mask": lambda: Learner(hetero(propagation="edge_mask", layers=1), LogCosh()),
    }


class DeviceBench:
    """A task on a device, and a batch on the host."""

    def __init__(
        self,
        make: Callable[[], Learner],
        cell: Cell,
        n_genotypes: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(0)
        model, loss = make()
        genotypes = random_genotypes(cell, n_genotypes)
        targets = torch.randn(n_genotypes)
        weights = torch.full((n_genotypes,), 1 / n_genotypes)
        self.device = device
        self.batch = Batch(genotypes, targets, weights, torch.arange(n_genotypes))
        model.begin(cell, LabelledSets(genotypes, targets))
        self.task = Task(model, loss, cell, TargetScale()).to(device=device, dtype=dtype)
        is_gpu = device.type == "cuda"
        parameters = self.task.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=is_gpu, foreach=not is_gpu)

    def step(self) -> None:
        """Run a whole training step, without reading anything back."""
        losses = self.task(self.task.prepare(self.batch).to(self.device))
        losses["loss"].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self) -> float:
        """Return the time of a step, to the end of its last kernel."""
        _finish(self.device)
        began = time.perf_counter()
        self.step()
        _finish(self.device)
        return time.perf_counter() - began

    @torch.no_grad()
    def scores(self) -> Tensor:
        """Return the scores of the batch on the host, in float64."""
        self.task.eval()
        prepared = self.task.prepare(self.batch).to(self.device)
        scores = self.task.model(self.task.cell, prepared.genotypes).score.double().cpu()
        self.task.train()
        return scores


def _measured(
    name: str,
    make: Callable[[], Learner],
    cell: Cell,
    n_genotypes: int,
    repeats: int,
    device: torch.device,
) -> DeviceRow:
    exact = DeviceBench(make, cell, n_genotypes, torch.device("cpu"), torch.float64).scores()
    bench = DeviceBench(make, cell, n_genotypes, device)
    difference = (bench.scores() - exact).abs().max() / exact.std().clamp(min=1e-12)
    for _ in range(WARM_UP_STEPS):
        bench.step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = statistics.median(bench.seconds() for _ in range(repeats))
    is_gpu = device.type == "cuda"
    places = waits_of(bench.step) if is_gpu else ()
    return DeviceRow(
        case=name,
        s_per_step=seconds,
        genotypes_per_s=n_genotypes / seconds,
        device_mib=torch.cuda.max_memory_allocated(device) / 2**20 if is_gpu else None,
        kernels=kernels_of(bench.step) if is_gpu else None,
        waits=len(places) if is_gpu else None,
        score_difference=float(difference),
        places=tuple(sorted(set(places))),
    )


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def waits_of(step: Callable[[], object]) -> tuple[str, ...]:
    """Return where PyTorch warns that a step makes the host wait for the GPU, once per wait."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return tuple(
        f"{warning.filename.split('deltacell/')[-1]}:{warning.lineno}"
        for warning in caught
        if "synchronizing" in str(warning.message)
    )


def kernels_of(step: Callable[[], object]) -> int:
    """Return the number of kernels that a step launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages())


def two_gpus() -> dict[str, object]:
    """Return the time that two GPUs take to add up 100 MB with NCCL, as DDP adds up gradients."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [context.Process(target=_add_up, args=(rank, 2, results)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise DeltacellError("a process of the two GPUs failed; its error is above")
    seconds = results.get()
    n_bytes = NCCL_NUMBERS * 4
    return {"backend": "nccl", "seconds": seconds, "gb_per_s": n_bytes / seconds / 1e9}


def _add_up(rank: int, world_size: int, results: Any) -> None:
    address = f"tcp://127.0.0.1:{PORT}"
    distributed.init_process_group("nccl", address, rank=rank, world_size=world_size)
    numbers = torch.ones(NCCL_NUMBERS, device=torch.device("cuda", rank))
    times: list[float] = []
    for _ in range(WARM_UP_STEPS + 5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        distributed.all_reduce(numbers)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    _check_sum(numbers, world_size, len(times))
    if rank == 0:
        results.put(statistics.median(times[WARM_UP_STEPS:]))
    distributed.destroy_process_group()


def _check_sum(numbers: Tensor, world_size: int, n_sums: int) -> None:
    expected = float(world_size**n_sums)
    if not bool((numbers == expected).all()):
        raise DeltacellError("two GPUs added up to a wrong sum")
