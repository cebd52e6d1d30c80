"""How the cost of mutants grows with the batch, the edges, the layers, the deletions, the cell."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Ints
from deltacell.bench.process import machine
from deltacell.cell import Cell, Relation
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import STRATEGIES, strategy
from deltacell.screen import Genotypes
from deltacell.words import Progress

MEASURED = ("shared", "delta")
"""The engine's strategies; the ladder's would take hours."""

HUMAN = (20_000, 12_000_000)
"""Genes and edges of the largest cell."""


@dataclass(frozen=True)
class Point:
    """What one step is measured on."""

    genes: int
    edges: int  # an undirected edge counts once
    layers: int
    batch: int
    deleted: int  # genes of each genotype


def run(
    progress: Progress | None = None,
    quick: bool = False,
    *,
    strategies: Sequence[str] | None = None,
    repeats: int = 2,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure a forward and backward pass of HeteroCell while one size grows and all others stay.

    The cells are random, with nine relations of the reference's shares and heavy-tailed degrees;
    the model is the reference's. Each row has the median of some steps in which the strategies take
    turns; each fit is the exponent k of ``seconds = c * size^k`` over the rows of one sweep. With
    ``quick`` the cells are tiny, and exponents mean nothing.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; expected at least 1", code="out-of-range")
    names = list(strategies or [name for name in MEASURED if name in STRATEGIES])
    for name in names:
        strategy(name)
    sweeps = _sweeps(quick)
    points = [(sweep, point) for sweep, of_it in sweeps.items() for point in of_it]
    rows = []
    sizes, cell = None, None
    for done, (sweep, point) in enumerate(points):
        if progress is not None:
            progress(f"{sweep}: {getattr(point, _SIZE_OF[sweep]):,}", done, len(points))
        # Most points of a sweep share their cell; the one before is freed first.
        if cell is None or sizes != (point.genes, point.edges):
            cell, sizes = None, (point.genes, point.edges)
            cell = random_cell(*sizes, seed=seed)
        found = _measured(cell, point, names, 16 if quick else 64, repeats, seed)
        rows += [{"sweep": sweep, "size": row[_SIZE_OF[sweep]], **row} for row in found]
    return {
        "benchmark": "scaling",
        "command": "deltacell bench scaling" + (" --quick" if quick else ""),
        "rows": rows,
        "fits": _fits(rows, list(sweeps), names),
        "bars": {},
        "settings": {"quick": quick, "strategies": names, "repeats": repeats, "seed": seed},
        "machine": machine(),
    }


def random_cell(n_genes: int, n_edges: int, seed: int = 0) -> Cell:
    """Return a cell with nine relations that share edges as those of the reference do.

    A gene's expected degree falls with its rank, and its rank is the same in all relations.
    """
    rng = np.random.default_rng(seed)
    rank = rng.permutation(n_genes)
    weight = np.asarray((rank + 1 + n_genes / 40) ** -0.9, dtype=np.float64)
    relations = []
    for name, (share, directed) in _SHARES.items():
        source, target = _drawn(rng, weight, max(1, round(share * n_edges)), directed)
        relations.append(
            Relation.from_edges(name, source, target, n_genes=n_genes, directed=directed)
        )
    return Cell([f"g{i}" for i in range(n_genes)], relations)


_SIZE_OF = {
    "batch": "batch",
    "edges": "edges",
    "layers": "layers",
    "deleted genes": "deleted",
    "cell": "edges",
}

_REFERENCE = {
    "regulatory": (9_753, True),
    "physical": (139_463, False),
    "tflink": (201_898, True),
    "neighborhood": (147_874, False),
    "fusion": (11_810, False),
    "cooccurence": (11_115, False),
    "coexpression": (1_002_538, False),
    "experimental": (825_101, False),
    "database": (73_818, False),
}
_EDGES = sum(edges for edges, _ in _REFERENCE.values())
_SHARES = {name: (edges / _EDGES, directed) for name, (edges, directed) in _REFERENCE.items()}


def _sweeps(quick: bool) -> dict[str, list[Point]]:
    if quick:
        base = Point(120, 900, 2, 2, 2)
        return {
            "batch": [replace(base, batch=n) for n in (1, 2, 4)],
            "edges": [replace(base, edges=n) for n in (450, 900)],
            "layers": [replace(base, layers=n) for n in (1, 2)],
            "deleted genes": [replace(base, deleted=n) for n in (1, 4)],
            "cell": [replace(base, genes=n, edges=8 * n) for n in (60, 120)],
        }
    base = Point(6_607, _EDGES, 3, 2, 3)
    per_gene = HUMAN[1] // HUMAN[0]
    return {
        "batch": [replace(base, batch=n) for n in (1, 2, 4, 8, 16)],
        "edges": [replace(base, edges=n) for n in (150_000, 600_000, _EDGES, 9_600_000)],
        "layers": [replace(base, layers=n) for n in (1, 2, 3, 4, 6)],
        "deleted genes": [replace(base, deleted=n) for n in (1, 3, 10, 30, 100)],
        "cell": [
            replace(base, genes=n, edges=per_gene * n) for n in (2_500, 5_000, 10_000, HUMAN[0])
        ],
    }


def _measured(
    cell: Cell, point: Point, names: Sequence[str], hidden: int, repeats: int, seed: int
) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    model = HeteroCell(cell, hidden=hidden, layers=point.layers, output="global", z_norm="none")
    rng = np.random.default_rng(seed)
    sets = (rng.choice(point.genes, point.deleted, replace=False) for _ in range(point.batch))
    genotypes = Genotypes.of([chosen.tolist() for chosen in sets])
    ways = {name: strategy(name) for name in names}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            model.propagation = way
            model.zero_grad()
            began = time.perf_counter()
            # The first turn only makes what is kept.
            score = model(cell, genotypes if turn else genotypes.take(torch.arange(1))).score
            middle = time.perf_counter()
            torch.autograd.backward(score.square().sum())
            if turn:
                times[name].append((middle - began, time.perf_counter() - middle))
    sizes = {**asdict(point), "edges": sum(r.n_edges for r in cell.relations.values())}
    rows = []
    for name, of_turns in times.items():
        seconds = statistics.median(forward + backward for forward, backward in of_turns)
        rows.append(
            {
                "strategy": name,
                **sizes,
                "forward_s": statistics.median(forward for forward, _ in of_turns),
                "backward_s": statistics.median(backward for _, backward in of_turns),
                "s_per_step": seconds,
                "s_per_genotype": seconds / point.batch,
            }
        )
    return rows


def _fits(
    rows: Sequence[dict[str, Any]], sweeps: Sequence[str], names: Sequence[str]
) -> list[dict[str, Any]]:
    fits = []
    for sweep in sweeps:
        for name in names:
            of_it = [r for r in rows if r["sweep"] == sweep and r["strategy"] == name]
            x = np.log([r["size"] for r in of_it])
            y = np.log([r["s_per_step"] for r in of_it])
            exponent, log_factor = np.polyfit(x, y, 1)
            fit = {"exponent": float(exponent), "factor": float(np.exp(log_factor))}
            fits.append({"sweep": sweep, "strategy": name, **fit})
    return fits


def _drawn(
    rng: np.random.Generator, weight: npt.NDArray[np.float64], n: int, directed: bool
) -> tuple[Ints, Ints]:
    """Draw n different edges, their ends in proportion to the weights."""
    n_genes = len(weight)
    cumulated = np.cumsum(weight)
    possible = n_genes * (n_genes - 1) // (1 if directed else 2)
    if n > possible // 2:
        what = f"{n:,} edges are too many for a relation over {n_genes:,} genes"
        raise InputError(what, code="out-of-range")
    keys: Ints = np.zeros(0, dtype=np.int64)
    while len(keys) < n:
        drawn = rng.random((2, (n - len(keys)) * 5 // 4 + 16)) * cumulated[-1]
        a, b = np.minimum(np.searchsorted(cumulated, drawn, side="right"), n_genes - 1)
        if not directed:
            a, b = np.minimum(a, b), np.maximum(a, b)
        keys = np.unique(np.concatenate([keys, (a * n_genes + b)[a != b]]))
    keys = rng.permutation(keys)[:n]
    return keys // n_genes, keys % n_genes
