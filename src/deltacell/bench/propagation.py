"""What a mutant costs by each way of propagating it, all on the same weights and genotypes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from deltacell.bench import process
from deltacell.bench.process import silent
from deltacell.cell import Cell
from deltacell.models.base import check_range
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import STRATEGIES, Deleted, Propagation, strategy
from deltacell.propagate.hop import ALL, sizes_of
from deltacell.propagate.ladder import Stored
from deltacell.screen import Genotypes
from deltacell.words import Progress

WILD_TYPE = "wild_type"
LADDER = ("subgraph", "edge_mask", "stored_edges", "stored_masks", "device_mask")
NEGLIGIBLE = 1e-5  # gradients below this part of the largest are rounding, and not compared
GEMM_SIZE = 1024


def run(
    batch: int = 8,
    layers: int = 3,
    mutant_layers: int | None = None,
    strategies: Sequence[str] | None = None,
    repeats: int = 3,
    max_bytes: int | None = None,
    quick: bool = False,
    *,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure a forward and backward pass of HeteroCell by each strategy.

    All see the same cell, weights, batch and targets. For time they take turns in one process, and
    the median counts; `forward_s` includes the wild type and the host's preparation of the batch.
    For memory each has a process of its own. Scores and gradients are compared with those of
    `subgraph`, or of the first strategy where that is not among them.
    """
    check_range("[1, inf)", batch=batch, layers=layers, repeats=repeats)
    if strategies is None:
        out = () if (mutant_layers or layers) == 1 else ("late",)
        strategies = [*LADDER, *(n for n in STRATEGIES if n not in (*LADDER, *out))]
    names = list(dict.fromkeys(strategies))
    for name in names or [""]:
        strategy(name)  # raises an error that lists those there are
    settings: dict[str, Any] = {"cell": "demo" if quick else "yeast", "batch": batch}
    settings |= {"layers": layers, "mutant_layers": mutant_layers, "max_bytes": max_bytes}
    tell = process.counted(progress, len(names) + 2)
    tell("times")
    timed = process.in_own_process(measure_times, strategies=names, repeats=repeats, **settings)
    least = timed["roofline"]["s_per_genotype"]
    rows = []
    for row in timed["rows"]:
        tell(f"memory of {row['strategy']}")
        row |= process.in_own_process(measure_memory, name=row["strategy"], **settings)
        rows.append({**row, "times_roofline": row["s_per_genotype"] / least})
    more = {"roofline_s_per_genotype": least, "roofline": timed["roofline"]}
    return {"rows": rows, "ratios": ratios_of(rows), **more, "cell": timed["cell"]}


def measure_times(
    *, cell: str, strategies: Sequence[str], repeats: int, **settings: Any
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Cell.synthetic(cell), **settings)
        ways = {name: bench.way(name, Path(folder)) for name in (*strategies, WILD_TYPE)}
        for name, way in ways.items():
            bench.step(way, bench.genotypes_of(name, most=1))
        steps = process.in_turns(
            {
                name: partial(bench.step, way, bench.genotypes_of(name))
                for name, way in ways.items()
            },
            repeats,
        )
    reference = steps[LADDER[0] if LADDER[0] in strategies else strategies[0]][0]
    rows = []
    for name, taken in steps.items():
        n = 1 if name == WILD_TYPE else len(bench.genotypes)
        times = process.median_row([step.times for step in taken])
        row = {"strategy": name, "batch": n, **times, "s_per_genotype": times.pop("s_per_step") / n}
        rows.append(row | differences(taken[0], None if name == WILD_TYPE else reference))
    edges = sum(r.n_edges for r in bench.cell.relations.values())
    parameters = sum(p.numel() for p in bench.model.parameters())
    sizes = {"genes": bench.cell.n_genes, "edges": edges, "parameters": parameters}
    return {"rows": rows, "roofline": roofline(bench.model, bench.cell), "cell": sizes}


def measure_memory(*, cell: str, batch: int, name: str, **settings: Any) -> dict[str, Any]:
    """Return the peak of one step above the memory before it, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        # The first only loads what is loaded once per process.
        for size in (("demo", 2), (cell, batch)):
            bench = Bench(Cell.synthetic(size[0]), size[1], **settings)
            way = bench.way(name, Path(tempfile.mkdtemp(dir=folder)))
            memory = process.PeakMemory()
            bench.step(way, bench.genotypes_of(name))
    return {"peak_mib": memory.mib()}


class Step(NamedTuple):
    """What one forward and backward pass took and gave; the forward includes preparation."""

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
        self.cell, self.max_bytes = cell, max_bytes
        torch.manual_seed(0)
        options: dict[str, Any] = {"hidden": hidden, "output": "global", "z_norm": "none"}
        self.model = HeteroCell(cell, layers=layers, mutant_layers=mutant_layers, **options)
        with torch.no_grad():
            # z is about one n-th of a gene's vector; scores would differ by little but rounding.
            self.model.global_head.inner.weight.mul_(cell.n_genes)
        rng = np.random.default_rng(0)
        sets = [rng.choice(cell.n_genes, deleted, replace=False).tolist() for _ in range(batch)]
        self.genotypes, self.targets = Genotypes.of(sets), torch.randn(batch)

    def genotypes_of(self, name: str, most: int | None = None) -> Genotypes:
        n = 0 if name == WILD_TYPE else len(self.genotypes)
        return self.genotypes.take(torch.arange(n)[:most])

    def way(self, name: str, folder: Path) -> Propagation:
        if name == WILD_TYPE:
            return strategy("shared")
        takes = signature(STRATEGIES[name]).parameters
        given = {"store": folder / name, "max_bytes": self.max_bytes}
        made = strategy(name, **{k: v for k, v in given.items() if k in takes and v is not None})
        if isinstance(made, Stored):
            made.fill(self.model.mutant_hops(self.cell), Deleted.of(self.cell, self.genotypes))
        return made

    def step(self, way: Propagation, genotypes: Genotypes) -> Step:
        """Run the batch, or without genotypes the wild type alone, forward and backward."""
        self.model.propagation = way
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
        return Step(times, prediction.score.detach(), gradients, sent)


def differences(step: Step, reference: Step | None) -> dict[str, Any]:
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


def ratios_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_name = {row["strategy"]: row for row in rows if row["strategy"] != WILD_TYPE}
    best = min(by_name.values(), key=lambda row: float(row["s_per_genotype"]))
    ratios: dict[str, Any] = {"best": best["strategy"]}
    for name in [name for name in ("subgraph", "edge_mask") if name in by_name]:
        faster = by_name[name]["s_per_genotype"] / best["s_per_genotype"]
        ratios[f"best_times_faster_than_{name}"] = faster
    if "edge_mask" in by_name:
        peak = max(by_name["edge_mask"]["peak_mib"], 1e-9)
        ratios["best_peak_over_edge_mask_peak"] = best["peak_mib"] / peak
    largest = max(row["score_diff_over_std"] for row in by_name.values())
    ratios["largest_score_diff_over_std"] = largest
    return {**ratios, "best_times_roofline": best["times_roofline"]}


def roofline(model: HeteroCell, cell: Cell, *, repeats: int = 5) -> dict[str, Any]:
    """Return the least time a whole mutant takes forward and backward, and what it is made of.

    ``s_per_genotype = flop / gemm_flop_per_s + entries * hidden / csr_entries_hidden_per_s``: the
    FLOP of the row-wise parts, and the entries of all products in both directions. The rates are
    those of a square dense product, and of the largest relation with one mutant's vectors.
    """
    matrices = [a.matrix for hop in model.hops(cell) for a in hop.aggregates]
    hidden = model.encoder.embedding.shape[1]
    flop, entries = _row_wise_flop(model, cell), 2 * sum(m.n_entries for m in matrices)
    largest = max(matrices, key=lambda m: m.n_entries)
    csr, x = largest.csr(device="cpu", dtype=torch.float32), torch.randn(largest.shape[1], hidden)
    a, b = torch.randn(2, GEMM_SIZE, GEMM_SIZE).unbind()
    gemm_rate = 2 * GEMM_SIZE**3 / _least_time(lambda: a @ b, repeats)
    csr_rate = max(largest.n_entries, 1) * hidden / _least_time(lambda: csr @ x, repeats)
    seconds = flop / gemm_rate + entries * hidden / csr_rate
    found = {"s_per_genotype": seconds, "flop": flop, "gemm_flop_per_s": gemm_rate}
    return {**found, "entries": entries, "hidden": hidden, "csr_entries_hidden_per_s": csr_rate}


def _row_wise_flop(model: HeteroCell, cell: Cell) -> int:
    """Count the FLOP of all updates and of the readout, forward and backward."""
    embedding, hops = model.encoder.embedding, model.hops(cell)
    sizes = sizes_of(hops)
    with FlopCounterMode(display=False) as counter:
        for hop in hops:
            shape = sizes[hop.target], embedding.shape[1]
            vectors = embedding.new_zeros(shape, requires_grad=True)
            received = embedding.new_zeros(len(hop.aggregates), *shape, requires_grad=True)
            torch.autograd.backward(hop.update(vectors, received.unbind(), ALL).sum())
        gate, value = model.pooling.terms(torch.zeros_like(embedding, requires_grad=True), ALL)
        torch.autograd.backward(gate.sum() + value.sum())
    model.zero_grad()
    return int(counter.get_total_flops())


def _least_time(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
