"""What a DANGO step costs: the closed-form reconstruction loss beside the dense one."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from deltacell.bench.data import random_triples
from deltacell.bench.process import PeakMemory, in_own_process
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models import Dango, DangoLoss
from deltacell.models.reconstruction import ReconstructionLoss, closed_form_loss
from deltacell.propagate import SparseMatrix

VARIANTS = ("dense", "closed_form")

#: What the closed form has to reach beside the dense one.
BARS = {
    "times_faster": {"at_least": 10.0},
    "part_of_the_memory": {"at_most": 0.2},
    "relative_difference_of_loss": {"at_most": 1e-5},
}

Progress = Callable[[str, int, int], None]


def run(
    batch: int = 64,
    steps: int = 5,
    *,
    quick: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure full DANGO steps with both forms of the loss, each in a process of its own.

    A step is forward, loss, backward and AdamW on random triples of the synthetic yeast cell. The
    dense form has its adjacencies ready before the first step; they count neither as time nor as
    memory. Both start from the same parameters and see the same batch.

    Parameters
    ----------
    batch
        Genotypes a step.
    steps
        Steps that are measured, after one that is not; the median counts.
    quick
        Whether to take the small synthetic cell, where the bars mean nothing.
    seed
        Of the cell, the parameters and the batch.
    progress
        Called as ``progress(what, done, total)``.
    """
    if batch < 1 or steps < 1:
        raise InputError(f"batch is {batch} and steps {steps}; both must be at least 1")
    total = len(VARIANTS) * (steps + 2)
    rows = []
    for number, variant in enumerate(VARIANTS):
        begin = number * (steps + 2)

        def told(news: dict[str, Any], begin: int = begin, variant: str = variant) -> None:
            if progress is not None:
                progress(f"{variant}: {news['what']}", begin + news["done"], total)

        settings = {
            "variant": variant,
            "cell": "demo" if quick else "yeast",
            "batch": batch,
            "steps": steps,
            "seed": seed,
        }
        rows.append(in_own_process("deltacell.bench.dango:measure", settings, told))
    dense, closed = rows
    ratios = {
        "times_faster": dense["step_s"] / closed["step_s"],
        "part_of_the_memory": closed["peak_mib"] / max(dense["peak_mib"], 1e-9),
        "relative_difference_of_loss": abs(closed["loss"] - dense["loss"]) / abs(dense["loss"]),
    }
    return {
        "benchmark": "dango",
        "command": "deltacell bench dango",
        "rows": rows,
        "ratios": ratios,
        "bars": {}
        if quick
        else {name: _held_against(bar, ratios[name]) for name, bar in BARS.items()},
        "settings": {"batch": batch, "steps": steps, "quick": quick, "seed": seed},
        "machine": _machine(),
    }


def measure(
    *,
    variant: str,
    cell: str,
    batch: int,
    steps: int,
    seed: int,
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Return a row for one variant, measured in this process.

    Parameters
    ----------
    variant
        ``dense`` or ``closed_form``.
    cell
        Name of a synthetic cell.
    batch, steps, seed
        As in `run`.
    tell
        Called with what is being done and how many parts of the whole are done.
    """
    tell({"what": "making the cell", "done": 0})
    wild_type = Cell.synthetic(cell, seed=seed)
    screen = random_triples(wild_type, batch, seed)
    targets = torch.from_numpy(screen.column("score").copy())
    genotypes = screen.genotypes
    torch.manual_seed(seed)
    model = Dango(wild_type)
    model.reconstruction.loss = (
        closed_form_loss if variant == "closed_form" else _dense(model, wild_type)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=1e-6)
    criterion = DangoLoss()
    memory = PeakMemory()
    seconds = []
    for step in range(steps + 1):
        tell({"what": f"step {step} of {steps}" if step else "first step", "done": 1 + step})
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = criterion(model(wild_type, genotypes), targets, epoch=5).total
        torch.autograd.backward(loss)
        optimizer.step()
        last = float(loss.detach())
        seconds.append(time.perf_counter() - began)
    return {
        "variant": variant,
        "step_s": statistics.median(seconds[1:]),
        "peak_mib": memory.mib(),
        "loss": last,
        "step_s_of_each": seconds[1:],
    }


def _dense(model: Dango, cell: Cell) -> ReconstructionLoss:
    """Return the dense loss with the adjacencies made ahead, as a plain program would keep them."""
    matrices = [SparseMatrix.of(cell.relation(name)) for name in model.relations]
    adjacency = {m: m.csr(device="cpu", dtype=torch.float32).to_dense() for m in matrices}

    def loss(
        z: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        matrix: SparseMatrix,
        lambda_: float,
    ) -> torch.Tensor:
        edge = adjacency[matrix]
        predicted = z @ weight.t() + bias
        on_edges = ((predicted - 1).square() * edge).sum()
        elsewhere = (predicted.square() * (1 - edge)).sum()
        return (on_edges + lambda_ * elsewhere) / edge.numel()

    return loss


def _held_against(bar: dict[str, float], measured: float) -> dict[str, Any]:
    met = measured >= bar["at_least"] if "at_least" in bar else measured <= bar["at_most"]
    return {**bar, "measured": measured, "met": met}


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
