"""Cost of a mutant with each propagation strategy, and how it grows with the sizes."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from timeit import repeat
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.nn import functional

from deltacell.base.arrays import Ints
from deltacell.base.files import JsonObject
from deltacell.bench import process, subjects
from deltacell.bench.process import random_genotypes
from deltacell.cell import Cell, Relation
from deltacell.models.interface import Model
from deltacell.propagate import NAMES, STRATEGIES, Auto, Deleted, strategy
from deltacell.propagate.hop import sizes_of
from deltacell.propagate.reference import StoredArrays
from deltacell.propagate.strategy import AnyStrategy
from deltacell.screen import Genotypes

WILD_TYPE = "wild_type"
REFERENCES = ("subgraph", "edge_mask")
NEGLIGIBLE = 1e-5  # gradients below this fraction of the largest are not compared
GEMM_SIZE = 1024


def run(
    batch: int = 8,
    layers: int = 3,
    mutant_layers: int | None = None,
    strategies: Sequence[str] | None = None,
    repeats: int = 3,
    max_bytes: int | None = None,
    quick: bool = False,
) -> JsonObject:
    """Measure a forward and backward pass of HeteroCell with each strategy.

    All use the same cell, weights, batch and targets. Times are medians of turns in one process;
    ``forward_s`` includes the wild type and preparing the batch on the host. Memory is measured in
    separate processes. Scores and gradients are compared with those of `subgraph`, or of the first
    strategy if that is not included.
    """
    if strategies is None:
        late = (mutant_layers or layers) == 1
        strategies = [name for name in NAMES if late or name != "late"]
    for name in strategies:
        strategy(name)  # raises an error for an unknown name
    settings: JsonObject = {"cell": "demo" if quick else "yeast", "batch": batch}
    settings |= {"layers": layers, "mutant_layers": mutant_layers, "max_bytes": max_bytes}
    process.progress("times", 0, len(strategies) + 2)
    timed = process.in_own_process(
        measure_times,
        strategies=strategies,
        repeats=repeats,
        **settings,
    )
    least = timed["roofline"]["s_per_genotype"]
    for number, row in enumerate(timed["rows"], 1):
        process.progress(f"memory of {row['strategy']}", number, len(strategies) + 2)
        row |= process.in_own_process(measure_memory, name=row["strategy"], **settings)
        row["times_roofline"] = row["s_per_genotype"] / least
    return {
        **timed,
        "ratios": ratios_of(timed["rows"]),
        "roofline_s_per_genotype": least,
        "notes": notes_of(timed["rows"]),
    }


def notes_of(rows: Sequence[JsonObject]) -> list[str]:
    """Return sentences about what in the rows may look like an error, and is none."""
    notes = []
    if below := [row["strategy"] for row in rows if row["times_roofline"] < 1]:
        notes.append(
            f"The roofline is the least time of one whole mutant. {', '.join(below)} may take less "
            "(a factor below 1): the wild type is one forward and backward pass for all "
            "genotypes, and only the rows that change are computed for each.",
        )
    differences = [row["grad_rel_diff"] for row in rows if row["grad_rel_diff"] is not None]
    if largest := max(differences, default=0.0):
        notes.append(
            f"Gradients differ by up to {largest:.1g} because the strategies add float32 numbers "
            "in different orders; in float64 the tests require agreement to 1e-10.",
        )
    return notes


def measure_times(
    *,
    cell: str,
    strategies: Sequence[str],
    repeats: int,
    **settings: Any,
) -> JsonObject:
    """Return a row of times per strategy, and the roofline."""
    bench = Bench(Cell.synthetic(cell), **settings)
    ways = {}
    for name in (*strategies, WILD_TYPE):
        way, genotypes = bench.way(name)
        bench.step(way, genotypes.take(torch.arange(len(genotypes))[:1]))
        ways[name] = partial(bench.step, way, genotypes)
    steps = process.in_turns(ways, repeats)
    reference = steps["subgraph" if "subgraph" in strategies else strategies[0]][0]
    rows = []
    for name, taken in steps.items():
        n = 1 if name == WILD_TYPE else settings["batch"]
        times = process.median_row([step.times for step in taken])
        row = {"strategy": name, "batch": n, **times, "s_per_genotype": times.pop("s_per_step") / n}
        rows.append(row | differences(taken[0], None if name == WILD_TYPE else reference))
    return {"rows": rows, "roofline": roofline(bench.model, bench.cell)}


def measure_memory(*, cell: str, batch: int, name: str, **settings: Any) -> JsonObject:
    """Return the peak memory of one step, above that before it."""
    # The first step, on a small cell, loads the libraries.
    for kind, size in (("demo", 2), (cell, batch)):
        bench = Bench(Cell.synthetic(kind), size, **settings)
        way = bench.way(name)
        memory = process.PeakMemory()
        bench.step(*way)
    return {"peak_mib": memory.mib()}


class MeasuredStep(NamedTuple):
    """Times and results of one forward and backward pass."""

    times: dict[str, float]
    score: torch.Tensor
    gradients: dict[str, torch.Tensor]
    loader_bytes: float


class Bench:
    """A cell, a model and a batch."""

    def __init__(
        self,
        cell: Cell,
        batch: int,
        layers: int,
        mutant_layers: int | None = None,
        *,
        max_bytes: int | None = None,
        deleted: int = 3,
        hidden: int = 64,
    ) -> None:
        self.cell = cell
        self.max_bytes = max_bytes
        torch.manual_seed(0)
        options: JsonObject = {"hidden": hidden, "output": "global", "z_norm": "none"}
        options |= {"layers": layers, "mutant_layers": mutant_layers}
        self.model = subjects.network("hetero_cell", cell, largest=deleted, **options)
        self.propagating = cast(subjects.PropagatingNetwork, self.model)
        with torch.no_grad():
            # z is about 1/n of a gene's vector, so scores would hardly differ beyond rounding.
            self.model.get_parameter("global_head.inner.weight").mul_(cell.n_genes)
        self.genotypes = random_genotypes(cell, batch, deleted)
        self.targets = torch.randn(batch)
        self._stores = tempfile.TemporaryDirectory()

    def way(self, name: str) -> tuple[AnyStrategy | Auto, Genotypes]:
        """Return a strategy by its name, and what it propagates; none for the wild type alone."""
        if name == WILD_TYPE:
            return strategy("shared"), Genotypes.of([])
        takes = signature(STRATEGIES.get(name, Auto)).parameters
        options: JsonObject = {}
        if "store" in takes:
            options["store"] = Path(self._stores.name, name)
        if "max_bytes" in takes and self.max_bytes is not None:
            options["max_bytes"] = self.max_bytes
        way = strategy(name, **options)
        if isinstance(way, StoredArrays):
            way.fill(
                self.propagating.mutant_shapes(self.cell), Deleted.of(self.cell, self.genotypes)
            )
        return way, self.genotypes

    def step(self, way: AnyStrategy | Auto, genotypes: Genotypes) -> MeasuredStep:
        """Run the batch, or the wild type alone if there are no genotypes."""
        self.propagating.propagation = way
        self.model.zero_grad()
        began = time.perf_counter()
        prepared = self.model.prepare(self.cell, genotypes)
        times = {"preparation_s": time.perf_counter() - began}
        prediction = self.model(self.cell, prepared)
        if len(genotypes):
            loss = functional.mse_loss(prediction.score, self.targets[: len(genotypes)])
        else:
            loss = prediction.intermediate["pool"].square().sum()
        times["forward_s"] = time.perf_counter() - began
        torch.autograd.backward(loss)
        times["s_per_step"] = time.perf_counter() - began
        times["backward_s"] = times["s_per_step"] - times["forward_s"]
        named = self.model.named_parameters()
        gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}
        sent = prepared.loader_bytes_per_genotype
        return MeasuredStep(times, prediction.score.detach(), gradients, sent)


def differences(step: MeasuredStep, reference: MeasuredStep | None) -> JsonObject:
    """Return how far scores and gradients are from those of a reference, None without one."""
    if reference is None:
        return dict.fromkeys(("score_diff_over_std", "grad_rel_diff", "loader_bytes_per_genotype"))
    spread = reference.score.std() if len(reference.score) > 1 else reference.score.abs().max()
    norms = {name: g.norm() for name, g in reference.gradients.items()}
    largest = max(norms.values())
    return {
        "score_diff_over_std": float((step.score - reference.score).abs().max() / spread),
        "grad_rel_diff": max(
            float((step.gradients[name] - reference.gradients[name]).norm() / norm)
            for name, norm in norms.items()
            if norm > NEGLIGIBLE * largest
        ),
        "loader_bytes_per_genotype": step.loader_bytes,
    }


def ratios_of(rows: Sequence[JsonObject]) -> JsonObject:
    """Return how the fastest strategy compares with the references, in time and memory."""
    by_name = {row["strategy"]: row for row in rows if row["strategy"] != WILD_TYPE}
    best = min(by_name.values(), key=lambda row: float(row["s_per_genotype"]))
    ratios: JsonObject = {"best": best["strategy"]}
    for name in [name for name in REFERENCES if name in by_name]:
        other = by_name[name]
        peak = max(other["peak_mib"], 1e-9)
        ratios[f"best_times_faster_than_{name}"] = other["s_per_genotype"] / best["s_per_genotype"]
        ratios[f"best_peak_over_{name}_peak"] = best["peak_mib"] / peak
    largest = max(row["score_diff_over_std"] for row in by_name.values())
    ratios["largest_score_diff_over_std"] = largest
    return {**ratios, "best_times_roofline": best["times_roofline"]}


def roofline(model: Model, cell: Cell, *, repeats: int = 5) -> JsonObject:
    """Return a lower bound on the time of a whole mutant, forward and backward, and its terms.

    ``s_per_genotype = flop / gemm_flop_per_s + entries * hidden / csr_entries_hidden_per_s``: the
    FLOP of the row-wise parts, and the entries of all sparse products in both directions. The rates
    are measured on a square dense product, and on the largest relation with one mutant's vectors.
    """

    def least_time(work: Callable[[], object]) -> float:
        """Return the least seconds of several calls, the first of which may load libraries."""
        return min(repeat(work, number=1, repeat=repeats + 1))

    def weights(parameters: Iterable[torch.Tensor]) -> int:
        """Return the number of weights in matrices."""
        return sum(p.numel() for p in parameters if p.dim() > 1)

    hops = cast(subjects.PropagatingNetwork, model).hops(cell)
    hidden = model.get_parameter("encoder.embedding").shape[1]
    sizes = sizes_of(hop.shape for hop in hops)
    matrices = [a.matrix for hop in hops for a in hop.aggregates]
    products = sum(sizes[hop.target] * weights(hop.parameters) for hop in hops)
    products += cell.n_genes * weights(model.get_submodule("pooling").parameters())
    # A product and its two gradients have two FLOP per term each.
    flop = 6 * products
    entries = 2 * sum(m.n_entries for m in matrices)
    largest = max(matrices, key=lambda m: m.n_entries)
    csr = largest.csr(device="cpu", dtype=torch.float32)
    x = torch.randn(largest.shape[1], hidden)
    a, b = torch.randn(2, GEMM_SIZE, GEMM_SIZE).unbind()
    gemm_rate = 2 * GEMM_SIZE**3 / least_time(lambda: a @ b)
    csr_rate = largest.n_entries * hidden / least_time(lambda: csr @ x)
    seconds = flop / gemm_rate + entries * hidden / csr_rate
    return {
        "s_per_genotype": seconds,
        "flop": flop,
        "gemm_flop_per_s": gemm_rate,
        "entries": entries,
        "hidden": hidden,
        "csr_entries_hidden_per_s": csr_rate,
    }


#: For each sweep the size that grows, and its values. In the sweep over cells the genes grow with
#: the edges, up to the size of a human cell.
SWEEPS: Mapping[str, tuple[str, Sequence[int]]] = {
    "batch": ("batch", (1, 2, 4, 8, 16)),
    "edges": ("edges", (150_000, 600_000, 2_400_000, 9_600_000)),
    "layers": ("layers", (1, 2, 3, 4, 6)),
    "deleted genes": ("deleted", (1, 3, 10, 30, 100)),
    "cell": ("edges", (1_500_000, 3_000_000, 6_000_000, 12_000_000)),
}
BASE = {"genes": 6_607, "edges": 2_400_000, "layers": 3, "batch": 2, "deleted": 3}
EDGES_PER_GENE = 600
RELATIONS = 9
REPEATS = 2


def scaling(strategies: Sequence[str] = ("shared", "delta"), quick: bool = False) -> JsonObject:
    """Measure a forward and backward pass of HeteroCell while one size grows.

    The cells are random, with heavy-tailed degrees; the strategies take turns, and medians count.
    Each fit is the exponent k of ``seconds = factor * size^k`` over the rows of one sweep. With
    ``quick`` the cells are tiny, and the exponents are meaningless.
    """
    ways = {name: strategy(name) for name in strategies}
    rows: list[JsonObject] = []
    fits: list[JsonObject] = []
    for done, (sweep, (field, sizes)) in enumerate(SWEEPS.items()):
        sizes = sizes[:2] if quick else sizes
        seconds_of: dict[str, list[float]] = {name: [] for name in ways}
        for size in sizes:
            process.progress(f"{sweep}: {size:,}", done, len(SWEEPS))
            point = {**BASE, field: size}
            if sweep == "cell":
                point["genes"] = size // EDGES_PER_GENE
            if quick:
                point |= {"genes": point["genes"] // 20, "edges": point["edges"] // 2000}
            cell = random_cell(point["genes"], point["edges"])
            options = {"deleted": point["deleted"], "hidden": 16 if quick else 64}
            bench = Bench(cell, point["batch"], point["layers"], **options)
            for way in ways.values():
                bench.step(way, bench.genotypes.take(torch.arange(1)))  # fills the caches
            steps = {name: partial(bench.step, way, bench.genotypes) for name, way in ways.items()}
            for name, taken in process.in_turns(steps, REPEATS).items():
                times = process.median_row([step.times for step in taken])
                times["s_per_genotype"] = times["s_per_step"] / point["batch"]
                seconds_of[name].append(times["s_per_step"])
                rows.append({"sweep": sweep, "size": size, "strategy": name, **point, **times})
        for name, seconds in seconds_of.items():
            exponent, log_factor = np.polyfit(np.log(sizes), np.log(seconds), 1).tolist()
            fit = {"exponent": exponent, "factor": math.exp(log_factor)}
            fits.append({"sweep": sweep, "strategy": name, **fit})
    return {"rows": rows, "fits": fits}


def random_cell(n_genes: int, n_edges: int) -> Cell:
    """Return a cell whose relations halve in size and whose degrees fall with the gene's index."""
    rng = np.random.default_rng(0)
    relations = []
    for number in range(RELATIONS):
        n = max(1, round(n_edges * 2 ** (RELATIONS - 1 - number) / (2**RELATIONS - 1)))
        keys: Ints = np.zeros(0, dtype=np.int64)
        while len(keys) < n:
            a, b = np.sort((n_genes * rng.random((2, n + 9)) ** 2).astype(np.int64), axis=0)
            keys = np.unique(np.concatenate([keys, (a * n_genes + b)[a != b]]))
        ends = np.divmod(rng.permutation(keys)[:n], n_genes)
        relations.append(Relation.from_edges(f"r{number}", *ends, n_genes=n_genes, directed=False))
    return Cell([f"g{i}" for i in range(n_genes)], relations)
