"""How the cost of mutants grows with the batch, the edges, the layers, the deletions, the cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from deltacell.arrays import Ints
from deltacell.bench.process import in_turns, median_row, silent
from deltacell.bench.propagation import Bench
from deltacell.cell import Cell, Relation
from deltacell.propagate import strategy
from deltacell.words import Progress

#: For each sweep the size that grows, and its values. Of a cell the genes grow with the edges, up
#: to the size of a human one.
SWEEPS: Mapping[str, tuple[str, Sequence[int]]] = {
    "batch": ("batch", (1, 2, 4, 8, 16)),
    "edges": ("edges", (150_000, 600_000, 2_400_000, 9_600_000)),
    "layers": ("layers", (1, 2, 3, 4, 6)),
    "deleted genes": ("deleted", (1, 3, 10, 30, 100)),
    "cell": ("edges", (1_500_000, 3_000_000, 6_000_000, 12_000_000)),
}
BASE = {"genes": 6_607, "edges": 2_400_000, "layers": 3, "batch": 2, "deleted": 3}
EDGES_PER_GENE, RELATIONS, REPEATS = 600, 9, 2


def run(
    strategies: Sequence[str] = ("shared", "delta"),
    quick: bool = False,
    *,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure a forward and backward pass of HeteroCell while one size grows and all others stay.

    The cells are random, with heavy-tailed degrees; the strategies take turns, and medians count.
    Each fit is the exponent k of ``seconds = factor * size^k`` over the rows of one sweep. With
    ``quick`` the cells are tiny, and exponents mean nothing.
    """
    ways = {name: strategy(name) for name in strategies}
    rows: list[dict[str, Any]] = []
    fits: list[dict[str, Any]] = []
    for done, (sweep, (field, sizes)) in enumerate(SWEEPS.items()):
        sizes = sizes[:2] if quick else sizes
        found: dict[str, list[float]] = {name: [] for name in ways}
        for size in sizes:
            progress(f"{sweep}: {size:,}", done, len(SWEEPS))
            point = {**BASE, field: size}
            genes = size // EDGES_PER_GENE if sweep == "cell" else point["genes"]
            shrunk = (20, 2000) if quick else (1, 1)
            cell = random_cell(genes // shrunk[0], point["edges"] // shrunk[1])
            options = {"deleted": point["deleted"], "hidden": 16 if quick else 64}
            bench = Bench(cell, point["batch"], point["layers"], **options)
            for way in ways.values():
                # This makes what is kept.
                bench.step(way, bench.genotypes.take(torch.arange(1)))
            steps = {name: partial(bench.step, way, bench.genotypes) for name, way in ways.items()}
            for name, taken in in_turns(steps, REPEATS).items():
                times = median_row([step.times for step in taken])
                times["s_per_genotype"] = times["s_per_step"] / point["batch"]
                found[name].append(times["s_per_step"])
                row = {"sweep": sweep, "size": size, "strategy": name, **point, "genes": genes}
                rows.append({**row, **times})
        for name, seconds in found.items():
            exponent, log_factor = np.polyfit(np.log(sizes), np.log(seconds), 1).tolist()
            fit = {"exponent": exponent, "factor": math.exp(log_factor)}
            fits.append({"sweep": sweep, "strategy": name, **fit})
    return {"rows": rows, "fits": fits}


def random_cell(n_genes: int, n_edges: int) -> Cell:
    """Return a cell in which each relation has half the edges of the one before.

    A gene's expected degree falls with the square root of its index, in all relations alike.
    """
    rng, relations = np.random.default_rng(0), []
    for number in range(RELATIONS):
        n = round(n_edges * 2 ** (RELATIONS - 1 - number) / (2**RELATIONS - 1))
        keys: Ints = np.zeros(0, dtype=np.int64)
        while len(keys) < n:
            a, b = np.sort((n_genes * rng.random((2, n + 9)) ** 2).astype(np.int64), axis=0)
            keys = np.unique(np.concatenate([keys, (a * n_genes + b)[a != b]]))
        ends = np.divmod(rng.permutation(keys)[:n], n_genes)
        relations.append(Relation.from_edges(f"r{number}", *ends, n_genes=n_genes, directed=False))
    return Cell([f"g{i}" for i in range(n_genes)], relations)
