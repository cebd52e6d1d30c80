"""What a DANGO step costs: the closed-form reconstruction loss beside the dense one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deltacell.bench.data import random_triples
from deltacell.bench.process import PeakMemory, in_own_process, machine
from deltacell.cell import Cell
from deltacell.models import Dango, DangoLoss
from deltacell.models.base import check_range
from deltacell.models.reconstruction import ReconstructionLoss, loss_by_matrix
from deltacell.propagate import SparseMatrix
from deltacell.words import Progress

VARIANTS = ("dense", "closed_form")

#: What the closed form has to reach beside the dense one.
BARS = {
    "times_faster": {"at_least": 10.0},
    "part_of_the_memory": {"at_most": 0.2},
    "relative_difference_of_loss": {"at_most": 1e-5},
}


def run(
    batch: int = 64,
    steps: int = 5,
    *,
    quick: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure full DANGO steps with both forms of the loss, each in a separate process.

    A step is forward, loss, backward and AdamW on random triples of the synthetic yeast cell, or
    with ``quick`` of the demo cell, where no bar applies. The dense form has its adjacencies ready
    before the first step; they count neither as time nor as memory. Both start from the same
    parameters and see the same batch. The median of the steps after the first one counts.
    """
    check_range("[1, inf)", batch=batch, steps=steps)
    settings = {"batch": batch, "steps": steps, "seed": seed}
    total = len(VARIANTS) * (steps + 2)
    rows = []
    for number, variant in enumerate(VARIANTS):
        begin = number * (steps + 2)

        def told(news: dict[str, Any], begin: int = begin, variant: str = variant) -> None:
            if progress is not None:
                progress(f"{variant}: {news['what']}", begin + news["done"], total)

        of_variant = {**settings, "variant": variant, "cell": "demo" if quick else "yeast"}
        rows.append(in_own_process("deltacell.bench.dango:measure", of_variant, told))
    dense, closed = rows
    ratios = {
        "times_faster": dense["step_s"] / closed["step_s"],
        "part_of_the_memory": closed["peak_mib"] / max(dense["peak_mib"], 1e-9),
        "relative_difference_of_loss": abs(closed["loss"] - dense["loss"]) / abs(dense["loss"]),
    }
    bars: dict[str, dict[str, Any]] = {}
    for name, bar in {} if quick else BARS.items():
        found = ratios[name]
        met = found >= bar["at_least"] if "at_least" in bar else found <= bar["at_most"]
        bars[name] = {**bar, "measured": found, "met": met}
    return {
        "benchmark": "dango",
        "command": "deltacell bench dango",
        "rows": rows,
        "ratios": ratios,
        "bars": bars,
        "settings": {**settings, "quick": quick},
        "machine": machine(),
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
    """Return a row for one of `VARIANTS`, measured in this process on a synthetic cell."""
    tell({"what": "making the cell", "done": 0})
    wild_type = Cell.synthetic(cell, seed=seed)
    screen = random_triples(wild_type, batch, seed)
    targets = torch.from_numpy(screen.column("score").copy())
    torch.manual_seed(seed)
    model = Dango(wild_type)
    if variant == "dense":
        model.reconstruction.loss = dense_loss_of(model, wild_type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=1e-6)
    criterion = DangoLoss()
    memory = PeakMemory()
    seconds = []
    for step in range(steps + 1):
        tell({"what": f"step {step} of {steps}" if step else "first step", "done": 1 + step})
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = criterion(model(wild_type, screen.genotypes), targets, epoch=5).total
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


def dense_loss_of(model: Dango, cell: Cell) -> ReconstructionLoss:
    """Return the dense loss with the adjacencies made ahead, as a plain program would keep them."""
    matrices = [SparseMatrix.of(cell.relation(name)) for name in model.relations]
    adjacency = {m: m.csr(device="cpu", dtype=torch.float32).to_dense() for m in matrices}

    def loss(
        z: Tensor, weight: Tensor, bias: Tensor, matrix: SparseMatrix, lambda_: float
    ) -> Tensor:
        return loss_by_matrix(z, weight, bias, adjacency[matrix], lambda_)

    return loss
