"""How the cost of mutants grows with the batch, the edges, the layers, the deletions, the cell."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
import torch

from deltacell.arrays import Doubles, Ints
from deltacell.bench.process import in_turns, median_row, silent
from deltacell.bench.propagation import Bench
from deltacell.cell import Cell, Relation
from deltacell.propagate import strategy
from deltacell.words import Progress

_RECIPES = tomllib.loads(files("deltacell.cell").joinpath("synthetic.toml").read_text("utf-8"))
#: Edges of the reference's relations, and whether they are directed.
REFERENCE = {
    name: (spec["edges"], "regulators" in spec)
    for name, spec in _RECIPES["yeast"]["relations"].items()
}
EDGES = sum(edges for edges, _ in REFERENCE.values())


#: For each sweep the size that grows, its values, and those of a quick run. Of a cell the genes
#: grow with the edges, up to the size of a human one; an undirected edge counts once.
SWEEPS: Mapping[str, tuple[str, Sequence[int], Sequence[int]]] = {
    "batch": ("batch", (1, 2, 4, 8, 16), (1, 2, 4)),
    "edges": ("edges", (150_000, 600_000, EDGES, 9_600_000), (450, 900)),
    "layers": ("layers", (1, 2, 3, 4, 6), (1, 2)),
    "deleted genes": ("deleted", (1, 3, 10, 30, 100), (1, 4)),
    "cell": ("edges", (1_500_000, 3_000_000, 6_000_000, 12_000_000), (480, 960)),
}
BASE = {"genes": 6_607, "edges": EDGES, "layers": 3, "batch": 2, "deleted": 3}
QUICK_BASE = {"genes": 120, "edges": 900, "layers": 2, "batch": 2, "deleted": 2}
EDGES_PER_GENE, QUICK_EDGES_PER_GENE = 600, 8
REPEATS = 2


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
    all_points = points(quick)
    sizes, cell = None, None
    for done, (sweep, size, point) in enumerate(all_points):
        progress(f"{sweep}: {size:,}", done, len(all_points))
        # Most points of a sweep share their cell; the one before is freed first.
        if cell is None or sizes != (point["genes"], point["edges"]):
            cell, sizes = None, (point["genes"], point["edges"])
            cell = random_cell(*sizes)
        options = {"deleted": point["deleted"], "hidden": 16 if quick else 64}
        bench = Bench(cell, point["batch"], point["layers"], **options)
        for way in ways.values():
            # This makes what is kept.
            bench.step(way, bench.genotypes.take(torch.arange(1)))
        steps = {name: partial(bench.step, way, bench.genotypes) for name, way in ways.items()}
        edges = sum(r.n_edges for r in cell.relations.values())
        for name, taken in in_turns(steps, REPEATS).items():
            times = median_row([step.times for step in taken])
            times["s_per_genotype"] = times["s_per_step"] / point["batch"]
            row = {"sweep": sweep, "size": size, "strategy": name}
            rows.append({**row, **point, "edges": edges, **times})
    return {"rows": rows, "fits": fits_of(rows)}


def points(quick: bool) -> list[tuple[str, int, dict[str, int]]]:
    found = []
    base, per_gene = (QUICK_BASE, QUICK_EDGES_PER_GENE) if quick else (BASE, EDGES_PER_GENE)
    for sweep, (field, full, few) in SWEEPS.items():
        for size in few if quick else full:
            genes = size // per_gene if sweep == "cell" else base["genes"]
            found.append((sweep, size, {**base, "genes": genes, field: size}))
    return found


def random_cell(n_genes: int, n_edges: int, seed: int = 0) -> Cell:
    """Return a cell with nine relations that share edges as those of the reference do.

    A gene's expected degree falls with its rank, and its rank is the same in all relations.
    """
    rng = np.random.default_rng(seed)
    rank = rng.permutation(n_genes)
    cumulated = np.cumsum((rank + 1 + n_genes / 40) ** -0.9)
    relations = []
    for name, (edges, directed) in REFERENCE.items():
        ends = _drawn(rng, cumulated, max(1, round(edges / EDGES * n_edges)), directed)
        relations.append(Relation.from_edges(name, *ends, n_genes=n_genes, directed=directed))
    return Cell([f"g{i}" for i in range(n_genes)], relations)


def _drawn(
    rng: np.random.Generator, cumulated: Doubles, n: int, directed: bool
) -> tuple[Ints, Ints]:
    """Draw n different edges, their ends in proportion to weights."""
    n_genes = len(cumulated)
    keys: Ints = np.zeros(0, dtype=np.int64)
    while len(keys) < n:
        drawn = rng.random((2, (n - len(keys)) * 5 // 4 + 16)) * cumulated[-1]
        a, b = np.minimum(np.searchsorted(cumulated, drawn, side="right"), n_genes - 1)
        if not directed:
            a, b = np.minimum(a, b), np.maximum(a, b)
        keys = np.unique(np.concatenate([keys, (a * n_genes + b)[a != b]]))
    keys = rng.permutation(keys)[:n]
    return keys // n_genes, keys % n_genes


def fits_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    fits = []
    for sweep, name in dict.fromkeys((row["sweep"], row["strategy"]) for row in rows):
        of_it = [r for r in rows if (r["sweep"], r["strategy"]) == (sweep, name)]
        x, y = (np.log([r[key] for r in of_it]) for key in ("size", "s_per_step"))
        exponent, log_factor = np.polyfit(x, y, 1)
        fit = {"exponent": float(exponent), "factor": float(np.exp(log_factor))}
        fits.append({"sweep": sweep, "strategy": name, **fit})
    return fits
