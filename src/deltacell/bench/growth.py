"""How the cost of a step grows: with one size at a time, and with the cell for each model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import cast

import numpy as np
import torch

from deltacell.base.checks import check_choice
from deltacell.base.files import JsonObject
from deltacell.bench import process, propagation, subjects
from deltacell.bench.propagation import random_cell
from deltacell.cell import Cell
from deltacell.models.interface import Model, TargetScale
from deltacell.models.losses import DangoLoss, LogCosh, Loss
from deltacell.screen import Batch, Genotypes
from deltacell.train.task import Task

#: The numbers of genes, up to a human cell; there are `EDGES_PER_GENE` edges for each.
GENES = (2_500, 5_000, 10_000, 20_000)
QUICK_GENES = (100, 200)
EDGES_PER_GENE = 600
QUICK_EDGES_PER_GENE = 6
BATCH = 64  # triple mutants per step
PAIRS_PER_GENE = 50  # measured pairs, whose columns are computed
REPEATS = 3

SWEEPS = "sweeps"
MODELS = "models"


def run(
    strategies: Sequence[str] = ("shared", "delta"),
    only: str | None = None,
    quick: bool = False,
) -> JsonObject:
    """Measure the sweeps of `propagation.scaling`, and the models on cells that grow."""
    if only is not None:
        check_choice("--only", only, (SWEEPS, MODELS))
    result: JsonObject = {}
    if only != MODELS:
        result |= propagation.scaling(strategies, quick)
    if only != SWEEPS:
        result |= models_on_growing_cells(quick)
    return result


def models_on_growing_cells(quick: bool = False) -> JsonObject:
    """Measure time and memory of each model on random cells, and fit how these grow.

    A step is the preparation of a batch, forward and backward; for messages between pairs it is
    computing the columns of all measured pairs. Each size has a process of its own, whose peak
    memory is that above the cell. The growth of a quantity is the exponent k of
    ``quantity = factor * genes^k``. Processor time is listed beside the time, because it hardly
    depends on what else runs on the machine.
    """
    rows: list[JsonObject] = []
    sizes = QUICK_GENES if quick else GENES
    edges_per_gene = QUICK_EDGES_PER_GENE if quick else EDGES_PER_GENE
    for name in WORK:
        for n_genes in sizes:
            process.progress(f"{name}: {n_genes:,} genes", len(rows), len(WORK) * len(sizes))
            n_edges = n_genes * edges_per_gene
            measured = process.in_own_process(measure, name=name, n_genes=n_genes, n_edges=n_edges)
            rows.append({"model": name, "genes": n_genes, "edges": n_edges, **measured})
    return {"models": rows, "growth": growth_of(rows)}


def growth_of(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the exponents with which the cost of each model grows with the genes."""
    growth: list[JsonObject] = []
    for name in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == name]
        genes = [row["genes"] for row in of_model]
        exponents = {
            f"exponent_of_{quantity}": exponent(genes, [row[quantity] for row in of_model])
            for quantity in ("s_per_step", "processor_s", "peak_mib")
        }
        growth.append({"model": name, **exponents})
    return growth


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return k of ``value = factor * size^k``, by least squares; NaN if a value is not positive."""
    if min(values) <= 0:
        return math.nan
    slope, _ = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(slope)


def measure(*, name: str, n_genes: int, n_edges: int) -> JsonObject:
    """Return seconds per step, processor seconds and peak memory of a model on one cell."""
    # The first step, on a small cell, loads the libraries.
    for genes, edges in ((100, 600), (n_genes, n_edges)):
        cell = random_cell(genes, edges)
        memory = process.PeakMemory()
        began = time.perf_counter()
        step = WORK[name](cell)
        step()
        first = time.perf_counter() - began
    times = []
    processor = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        processor_began = time.process_time()
        step()
        processor.append(time.process_time() - processor_began)
        times.append(time.perf_counter() - began)
    return {
        "first_step_s": first,
        "s_per_step": median(times),
        "processor_s": median(processor),
        "peak_mib": memory.mib(),
    }


def _dango(cell: Cell) -> Callable[[], None]:
    relations = list(cell.relations)
    model = subjects.network(
        "dango", cell, relations=relations, lambdas=dict.fromkeys(relations, 1.0)
    )
    return _training_step(cell, model, DangoLoss())


def _hetero_cell_late(cell: Cell) -> Callable[[], None]:
    model = subjects.network("hetero_cell", cell, layers=3, mutant_layers=1, propagation="late")
    return _training_step(cell, model, LogCosh())


def _training_step(cell: Cell, model: Model, loss: Loss) -> Callable[[], None]:
    """Return a function that prepares a batch of triple mutants, and runs forward and backward."""
    torch.manual_seed(0)
    genotypes = process.random_genotypes(cell, BATCH, 3)
    weights = torch.full((BATCH,), 1 / BATCH)
    batch = Batch(genotypes, torch.randn(BATCH), weights, torch.arange(BATCH))
    task = Task(model, loss, cell, TargetScale())

    def step() -> None:
        """Leave the gradients in the weights."""
        task.zero_grad()
        torch.autograd.backward(task(task.prepare(batch))["loss"])

    return step


def _pair_messages(cell: Cell) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    trees = cast(subjects.ReadsColumns, subjects.fitted("pair_trees", cell))
    ends = rng.integers(0, cell.n_genes, (PAIRS_PER_GENE * cell.n_genes, 2))
    pairs = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1), axis=0)
    genotypes = Genotypes.of(pairs)
    scores = rng.normal(size=len(pairs))

    def step() -> None:
        """Compute the columns of all pairs, from those that were measured next to each."""
        trees.table_of(cell, genotypes, scores)

    return step


#: What makes the step of each model, by its name.
WORK: Mapping[str, Callable[[Cell], Callable[[], None]]] = {
    "dango": _dango,
    "hetero_cell_late": _hetero_cell_late,
    "pair_messages": _pair_messages,
}
