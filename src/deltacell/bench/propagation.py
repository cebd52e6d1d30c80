"""What a mutant costs by each way of propagating it, all on the same weights and genotypes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from deltacell.bench.data import random_triples
from deltacell.bench.process import PeakMemory, in_own_process, machine
from deltacell.cell import Cell
from deltacell.errors import InputError, did_you_mean
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import STRATEGIES, Deleted, Propagation, strategy
from deltacell.propagate.hop import ALL, sizes_of
from deltacell.propagate.ladder.masks import Stored
from deltacell.screen import Genotypes

#: What the best strategy has to reach beside the ladder, and all strategies beside each other.
BARS = {
    "best_times_faster_than_subgraph": {"at_least": 12.0},
    "best_times_faster_than_edge_mask": {"at_least": 20.0},
    "best_peak_over_edge_mask_peak": {"at_most": 0.3333},
    "largest_score_diff_over_std": {"at_most": 1e-2},
}

WILD_TYPE = "wild_type"
LADDER = ("subgraph", "edge_mask", "stored_edges", "stored_masks", "device_mask")

SLOW_S = 20.0
SLOW_REPEATS = 2
"""A step that takes longer than `SLOW_S` is not measured more often than this."""

NEGLIGIBLE = 1e-5
"""Gradients smaller than this part of the largest are rounding, and not compared."""

Tell = Callable[[dict[str, Any]], None]


def run(
    batch: int = 8,
    layers: int = 3,
    strategies: Sequence[str] | None = None,
    repeats: int = 3,
    progress: Callable[[str, int, int], None] | None = None,
    max_bytes: int | None = None,
    *,
    mutant_layers: int | None = None,
    quick: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure a forward and backward pass of HeteroCell by each strategy.

    All see the same cell, weights, batch and targets. For time they take turns in one process, and
    the median over the turns counts; `forward_s` includes the wild type and the host's preparation
    of the batch, which `preparation_s` gives apart. For memory each has a process of its own, in
    which it has run on a small cell before. The score and the gradients of each are compared with
    those of `subgraph`, or of the first strategy where that is not among them; the weights of the
    global head are scaled so that scores differ between genotypes by far more than rounding.
    """
    names = _checked(batch, layers, strategies, repeats, mutant_layers)
    settings = {
        "cell": "demo" if quick else "yeast",
        "batch": batch,
        "layers": layers,
        "mutant_layers": mutant_layers,
        "max_bytes": max_bytes,
        "seed": seed,
    }
    total, done = (len(names) + 1) * (repeats + 2), 0

    def told(news: dict[str, Any]) -> None:
        nonlocal done
        done = min(done + 1, total - 1)
        if progress is not None:
            progress(news["what"], done, total)

    timed = in_own_process(
        "deltacell.bench.propagation:measure_times",
        {**settings, "strategies": names, "repeats": repeats},
        told,
    )
    done = (len(names) + 1) * (repeats + 1) - 1
    least = timed["roofline"]["s_per_genotype"]
    rows = []
    for name in (*names, WILD_TYPE):
        function = "deltacell.bench.propagation:measure_memory"
        memory = in_own_process(function, {**settings, "name": name}, told)
        times = timed["rows"][name]
        times_roofline = times["s_per_genotype"] / least
        rows.append({"strategy": name, **times, **memory, "times_roofline": times_roofline})
    ratios = _ratios(rows)
    command = f"deltacell bench propagation --batch {batch} --layers {layers}"
    command += "" if mutant_layers is None else f" --mutant-layers {mutant_layers}"
    command += "" if strategies is None else f" --strategies {','.join(strategies)}"
    command += "" if repeats == 3 else f" --repeats {repeats}"
    command += "" if max_bytes is None else f" --max-bytes {max_bytes}"
    return {
        "benchmark": "propagation",
        "command": command + (" --quick" if quick else ""),
        "rows": [{name: row[name] for name in _COLUMNS} for row in rows],
        "roofline": timed["roofline"],
        "roofline_s_per_genotype": least,
        "ratios": ratios,
        "bars": {
            name: _held_against(bar, ratios[name])
            for name, bar in BARS.items()
            if name in ratios and not quick
        },
        "settings": {
            **settings,
            **timed["sizes"],
            "strategies": names,
            "repeats": repeats,
            "reference": _reference(names),
        },
        "machine": machine(),
    }


_COLUMNS = (
    "strategy",
    "batch",
    "forward_s",
    "backward_s",
    "s_per_genotype",
    "peak_mib",
    "score_diff_over_std",
    "grad_rel_diff",
    "loader_bytes_per_genotype",
    "preparation_s",
    "times_roofline",
    "s_of_each_turn",
)


def measure_times(
    *, strategies: Sequence[str], repeats: int, max_bytes: int | None, tell: Tell, **settings: Any
) -> dict[str, Any]:
    """Return the times, scores and gradients of strategies that take turns in this process."""
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(**settings)
        ways = {name: bench.way(name, Path(folder), max_bytes) for name in strategies}
        ways[WILD_TYPE] = strategy("shared")
        steps: dict[str, list[_Step]] = {name: [] for name in ways}
        for name, way in ways.items():
            tell({"what": f"warming up {name}"})
            bench.step(name, way, bench.genotypes.take(torch.arange(1)))
        for turn in range(repeats):
            for name, way in ways.items():
                tell({"what": f"{name}: turn {turn + 1} of {repeats}"})
                taken = steps[name]
                if len(taken) < SLOW_REPEATS or taken[0].seconds <= SLOW_S:
                    taken.append(bench.step(name, way, bench.genotypes))
    reference = steps[_reference(strategies)][0]
    rows = {}
    for name, taken in steps.items():
        batch = 1 if name == WILD_TYPE else len(bench.genotypes)
        rows[name] = {
            "batch": batch,
            "forward_s": statistics.median(s.forward_s for s in taken),
            "backward_s": statistics.median(s.backward_s for s in taken),
            "s_per_genotype": statistics.median(s.seconds for s in taken) / batch,
            "preparation_s": statistics.median(s.preparation_s for s in taken),
            "s_of_each_turn": [s.seconds for s in taken],
            **_differences(taken[0], None if name == WILD_TYPE else reference),
        }
    sizes = {
        "genes": bench.cell.n_genes,
        "relations": len(bench.model.relations),
        "edges": sum(r.n_edges for r in bench.cell.relations.values()),
        "parameters": sum(p.numel() for p in bench.model.parameters()),
        "genes_per_genotype": 3,
    }
    return {"rows": rows, "roofline": roofline(bench.model, bench.cell), "sizes": sizes}


def measure_memory(
    *, name: str, max_bytes: int | None, tell: Tell, **settings: Any
) -> dict[str, Any]:
    """Return the peak of one step above the memory before it, in this process."""
    tell({"what": f"memory of {name}"})
    with tempfile.TemporaryDirectory() as folder:
        # The first only loads what is loaded once per process.
        for number, changed in enumerate(({"cell": "demo", "batch": 2}, {})):
            bench = _Bench(**{**settings, **changed})
            way = (
                strategy("shared")
                if name == WILD_TYPE
                else bench.way(name, Path(folder) / str(number), max_bytes)
            )
            memory = PeakMemory()
            bench.step(name, way, bench.genotypes)
    return {"peak_mib": memory.mib()}


@dataclass(frozen=True, eq=False)
class _Step:
    """What one forward and backward pass took and gave."""

    preparation_s: float
    forward_s: float
    backward_s: float
    score: torch.Tensor
    gradients: dict[str, torch.Tensor]
    loader_bytes: float

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


class _Bench:
    """A cell, a model and a batch."""

    def __init__(
        self, *, cell: str, batch: int, layers: int, mutant_layers: int | None = None, seed: int = 0
    ) -> None:
        self.cell = Cell.synthetic(cell, seed=seed)
        torch.manual_seed(seed)
        self.model = HeteroCell(
            self.cell, layers=layers, mutant_layers=mutant_layers, output="global", z_norm="none"
        )
        with torch.no_grad():
            # z is about one n-th of a gene's vector; scores would differ by little but rounding.
            self.model.global_head.inner.weight.mul_(self.cell.n_genes)
        self.genotypes = random_triples(self.cell, batch, seed).genotypes
        self.targets = torch.randn(batch)

    def way(self, name: str, folder: Path, max_bytes: int | None) -> Propagation:
        """Make a strategy, and its store where it has one."""
        takes = signature(STRATEGIES[name]).parameters
        given = {"store": folder / name, "max_bytes": max_bytes}
        made = strategy(name, **{k: v for k, v in given.items() if k in takes and v is not None})
        if isinstance(made, Stored):
            made.fill(self.model.mutant_hops(self.cell), Deleted.of(self.cell, self.genotypes))
        return made

    def step(self, name: str, way: Propagation, genotypes: Genotypes) -> _Step:
        self.model.propagation = way
        self.model.zero_grad()
        if name == WILD_TYPE:
            genotypes = Genotypes.of([])
        clock = [time.perf_counter()]
        prepared = self.model.prepare(self.cell, genotypes)
        clock.append(time.perf_counter())
        prediction = self.model(self.cell, prepared)
        if name == WILD_TYPE:
            loss = prediction.intermediate["pool"].square().sum()
        else:
            loss = functional.mse_loss(prediction.score, self.targets[: len(genotypes)])
        clock.append(time.perf_counter())
        torch.autograd.backward(loss)
        clock.append(time.perf_counter())
        return _Step(
            clock[1] - clock[0],
            clock[2] - clock[0],
            clock[3] - clock[2],
            prediction.score.detach(),
            {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None},
            prepared.loader_bytes_per_genotype,
        )


def _differences(step: _Step, reference: _Step | None) -> dict[str, Any]:
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


def _ratios(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_name = {row["strategy"]: row for row in rows if row["strategy"] != WILD_TYPE}
    best = min(by_name.values(), key=lambda row: float(row["s_per_genotype"]))
    ratios: dict[str, Any] = {"best": best["strategy"]}
    for name in ("subgraph", "edge_mask"):
        if name in by_name:
            faster = by_name[name]["s_per_genotype"] / best["s_per_genotype"]
            ratios[f"best_times_faster_than_{name}"] = faster
    if "edge_mask" in by_name:
        peak = max(by_name["edge_mask"]["peak_mib"], 1e-9)
        ratios["best_peak_over_edge_mask_peak"] = best["peak_mib"] / peak
    ratios["largest_score_diff_over_std"] = max(r["score_diff_over_std"] for r in by_name.values())
    ratios["best_times_roofline"] = best["times_roofline"]
    return ratios


def _held_against(bar: dict[str, float], measured: float) -> dict[str, Any]:
    met = measured >= bar["at_least"] if "at_least" in bar else measured <= bar["at_most"]
    return {**bar, "measured": measured, "met": met}


def _reference(names: Sequence[str]) -> str:
    return LADDER[0] if LADDER[0] in names else names[0]


def _checked(
    batch: int,
    layers: int,
    strategies: Sequence[str] | None,
    repeats: int,
    mutant_layers: int | None,
) -> list[str]:
    for what, given in (("batch", batch), ("layers", layers), ("repeats", repeats)):
        if given < 1:
            raise InputError(f"{what} is {given}; expected at least 1", code="out-of-range")
    if strategies is None:
        # `dense` has whole N x N matrices, for tests on small cells.
        out = ("dense",) if (mutant_layers or layers) == 1 else ("dense", "late")
        return [*LADDER, *(n for n in STRATEGIES if n not in (*LADDER, *out))]
    for name in strategies or [""]:
        if name not in STRATEGIES:
            raise InputError(
                f"unknown propagation '{name}'{did_you_mean(name, STRATEGIES)}; "
                f"expected one of {', '.join(STRATEGIES)}",
                code="unknown-propagation",
            )
    return list(dict.fromkeys(strategies))


GEMM_SIZE = 1024


def roofline(model: HeteroCell, cell: Cell, *, repeats: int = 5) -> dict[str, Any]:
    """Return the least time a whole mutant takes forward and backward, and what it is made of.

    ``s_per_genotype = flop / gemm_flop_per_s + entries * hidden / csr_entries_hidden_per_s``. The
    FLOP are those of the row-wise parts; the entries are those of all products, in both directions.
    The rates are the best of some tries here and now: a square product of dense matrices, and the
    product of the cell's largest relation with one mutant's vectors.
    """
    matrices = [a.matrix for hop in model.hops(cell) for a in hop.aggregates]
    hidden = model.encoder.embedding.shape[1]
    flop, entries = _row_wise_flop(model, cell), 2 * sum(m.n_entries for m in matrices)
    largest = max(matrices, key=lambda m: m.n_entries)
    csr, x = largest.csr(device="cpu", dtype=torch.float32), torch.randn(largest.shape[1], hidden)
    a, b = torch.randn(2, GEMM_SIZE, GEMM_SIZE).unbind()
    gemm_rate = 2 * GEMM_SIZE**3 / _least_time(lambda: a @ b, repeats)
    csr_rate = max(largest.n_entries, 1) * hidden / _least_time(lambda: csr @ x, repeats)
    return {
        "s_per_genotype": flop / gemm_rate + entries * hidden / csr_rate,
        "flop": flop,
        "gemm_flop_per_s": gemm_rate,
        "entries": entries,
        "hidden": hidden,
        "csr_entries_hidden_per_s": csr_rate,
    }


def _row_wise_flop(model: HeteroCell, cell: Cell) -> int:
    """Count the FLOP of all updates and of the readout, forward and backward."""
    embedding, hops = model.encoder.embedding, model.hops(cell)
    sizes = sizes_of(hops)
    with FlopCounterMode(display=False) as counter:
        for hop in hops:
            shape = sizes[hop.target], 1, embedding.shape[1]
            vectors = embedding.new_zeros(shape, requires_grad=True)
            received = embedding.new_zeros(len(hop.aggregates), *shape, requires_grad=True)
            torch.autograd.backward(hop.update(vectors, received, ALL).sum())
        gate, value = model.pooling.terms(torch.zeros_like(embedding, requires_grad=True), ALL)
        torch.autograd.backward(gate.sum() + value.sum())
    model.zero_grad()
    return int(counter.get_total_flops())


def _least_time(work: Callable[[], object], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
