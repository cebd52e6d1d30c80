"""What a DANGO step costs: the closed-form reconstruction loss beside the dense one."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from deltacell.bench import process
from deltacell.bench.process import random_genotypes, silent
from deltacell.cell import Cell
from deltacell.models import Dango, DangoLoss
from deltacell.models.reconstruction import dense_loss
from deltacell.propagate import SparseMatrix
from deltacell.words import Progress

VARIANTS = ("dense", "closed_form")


def run(
    batch: int = 64, steps: int = 5, quick: bool = False, *, progress: Progress = silent
) -> dict[str, Any]:
    """Measure full DANGO steps with both forms of the loss, each in a separate process.

    A step is forward, loss, backward and AdamW on random triples of a synthetic cell, the same for
    both. The dense form has its adjacencies ready before the first step; they count neither as time
    nor as memory. The median of the steps after the first one counts.
    """
    settings = {"cell": "demo" if quick else "yeast", "batch": batch, "steps": steps}
    rows = []
    for number, variant in enumerate(VARIANTS):
        progress(variant, number, len(VARIANTS))
        rows.append(process.in_own_process(measure, variant=variant, **settings))
    dense, closed = rows
    ratios = {
        "times_faster": dense["step_s"] / closed["step_s"],
        "part_of_the_memory": closed["peak_mib"] / max(dense["peak_mib"], 1e-9),
        "relative_difference_of_loss": abs(closed["loss"] - dense["loss"]) / abs(dense["loss"]),
    }
    return {"rows": rows, "ratios": ratios}


def measure(*, variant: str, cell: str, batch: int, steps: int) -> dict[str, Any]:
    wild_type = Cell.synthetic(cell)
    genotypes = random_genotypes(wild_type, batch)
    torch.manual_seed(0)
    targets = 0.05 * torch.randn(batch)
    model = Dango(wild_type)
    if variant == "dense":
        matrices = [SparseMatrix.of(wild_type.relation(name)) for name in model.relations]
        adjacency = {m: m.csr(device="cpu", dtype=torch.float32).to_dense() for m in matrices}
        model.reconstruction.loss = lambda z, w, b, m, x: dense_loss(z, w, b, adjacency[m], x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=1e-6)
    criterion = DangoLoss()
    memory, seconds = process.PeakMemory(), []
    for _ in range(steps + 1):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = criterion(model(wild_type, genotypes), targets, epoch=5).total
        torch.autograd.backward(loss)
        optimizer.step()
        last = float(loss.detach())
        seconds.append(time.perf_counter() - began)
    step_s, peak = statistics.median(seconds[1:]), memory.mib()
    return {"variant": variant, "step_s": step_s, "peak_mib": peak, "loss": last}
