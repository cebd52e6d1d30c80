"""What a mutant costs by each way of propagating it, all on the same weights and genotypes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from deltacell.bench.data import random_triples
from deltacell.bench.machine import machine
from deltacell.bench.process import PeakMemory, in_own_process
from deltacell.bench.roofline import roofline
from deltacell.cell import Cell
from deltacell.errors import InputError, did_you_mean
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import STRATEGIES, Deleted, Propagation, strategy
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
REFERENCE = "subgraph"
LADDER = ("subgraph", "edge_mask", "stored_edges", "stored_masks", "device_mask")
LEFT_OUT = ("dense",)
"""Whole N x N matrices: for tests on small cells."""

SLOW_S = 20.0
SLOW_REPEATS = 2
"""A step that takes longer than `SLOW_S` is not measured more often than this."""

NEGLIGIBLE = 1e-5
"""Gradients smaller than this part of the largest are rounding, and not compared."""

Progress = Callable[[str, int, int], None]
Tell = Callable[[dict[str, Any]], None]


def run(
    batch: int = 8,
    layers: int = 3,
    strategies: Sequence[str] | None = None,
    repeats: int = 3,
    progress: Progress | None = None,
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

    Parameters
    ----------
    batch
        Genotypes a step, random triples.
    layers
        Of the model, whose other sizes are those of the reference: 669,917 parameters with three.
    strategies
        Their names; all but `dense` where not given.
    repeats
        Turns. A strategy whose step takes more than 20 s has two at most.
    progress
        Called as ``progress(what, done, total)``.
    max_bytes
        The memory budget of those strategies that take one.
    mutant_layers
        How many of the last layers see the deletion; all where not given.
    quick
        Whether to take the small synthetic cell, where the bars mean nothing.
    seed
        Of the cell, the weights and the batch.
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
    total = (len(names) + 1) * (repeats + 2)
    done = 0

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
    rows = []
    for name in (*names, WILD_TYPE):
        memory = in_own_process(
            "deltacell.bench.propagation:measure_memory", {**settings, "name": name}, told
        )
        rows.append({"strategy": name, **timed["rows"][name], **memory})
    ratios = _ratios(rows, timed["roofline"]["s_per_genotype"])
    return {
        "benchmark": "propagation",
        "command": _command(batch, layers, mutant_layers, strategies, repeats, max_bytes, quick),
        "rows": [_in_order(row) for row in rows],
        "roofline": timed["roofline"],
        "roofline_s_per_genotype": timed["roofline"]["s_per_genotype"],
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


def measure_times(
    *,
    cell: str,
    batch: int,
    layers: int,
    mutant_layers: int | None = None,
    max_bytes: int | None,
    seed: int,
    strategies: Sequence[str],
    repeats: int,
    tell: Tell,
) -> dict[str, Any]:
    """Return the times, scores and gradients of strategies that take turns in this process.

    Parameters
    ----------
    cell
        Name of a synthetic cell.
    batch, layers, mutant_layers, max_bytes, seed, strategies, repeats
        As in `run`.
    tell
        Called with what is being done.
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench.made(cell, batch, layers, mutant_layers, seed)
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
                if taken and taken[0].seconds > SLOW_S and len(taken) >= SLOW_REPEATS:
                    continue
                taken.append(bench.step(name, way, bench.genotypes))
        first = {name: of_turns[0] for name, of_turns in steps.items()}
        reference = first[_reference(strategies)]
        return {
            "rows": {
                name: {
                    **_times(of_turns, 1 if name == WILD_TYPE else batch),
                    **_differences(first[name], None if name == WILD_TYPE else reference),
                }
                for name, of_turns in steps.items()
            },
            "roofline": roofline(bench.model, bench.cell),
            "sizes": bench.sizes(),
        }


def measure_memory(
    *,
    cell: str,
    batch: int,
    layers: int,
    mutant_layers: int | None = None,
    max_bytes: int | None,
    seed: int,
    name: str,
    tell: Tell,
) -> dict[str, Any]:
    """Return the peak of one step above the memory before it, in this process.

    Parameters
    ----------
    cell, batch, layers, mutant_layers, max_bytes, seed
        As in `measure_times`.
    name
        Of the strategy, or ``wild_type``.
    tell
        Called with what is being done.
    """
    tell({"what": f"memory of {name}"})
    with tempfile.TemporaryDirectory() as folder:
        benches = (
            _Bench.made("demo", 2, layers, mutant_layers, seed),
            _Bench.made(cell, batch, layers, mutant_layers, seed),
        )
        for number, bench in enumerate(benches):
            way = (
                strategy("shared")
                if name == WILD_TYPE
                else bench.way(name, Path(folder) / str(number), max_bytes)
            )
            # The first only loads what is loaded once a process.
            memory = PeakMemory()
            bench.step(name, way, bench.genotypes)
    return {"peak_mib": memory.mib()}


class _Step:
    """What one forward and backward pass took and gave."""

    def __init__(
        self,
        seconds_of: tuple[float, float, float],
        score: torch.Tensor,
        gradients: dict[str, torch.Tensor],
        loader_bytes: float,
    ) -> None:
        self.preparation_s, forward_s, self.backward_s = seconds_of
        self.forward_s = self.preparation_s + forward_s
        self.score = score
        self.gradients = gradients
        self.loader_bytes = loader_bytes

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


class _Bench:
    """A cell, a model and a batch."""

    def __init__(self, cell: Cell, model: HeteroCell, genotypes: Genotypes) -> None:
        self.cell = cell
        self.model = model
        self.genotypes = genotypes
        self.targets = torch.randn(len(genotypes))

    @classmethod
    def made(
        cls, name: str, batch: int, layers: int, mutant_layers: int | None, seed: int
    ) -> _Bench:
        cell = Cell.synthetic(name, seed=seed)
        torch.manual_seed(seed)
        model = HeteroCell(
            cell, layers=layers, mutant_layers=mutant_layers, output="global", z_norm="none"
        )
        with torch.no_grad():
            # z is about one n-th of a gene's vector; scores would differ by little but rounding.
            model.global_head.inner.weight.mul_(cell.n_genes)
        return cls(cell, model, random_triples(cell, batch, seed).genotypes)

    def way(self, name: str, folder: Path, max_bytes: int | None) -> Propagation:
        """Make a strategy, and its store where it has one."""
        takes = signature(STRATEGIES[name]).parameters
        options: dict[str, Any] = {}
        if "store" in takes:
            options["store"] = folder / name
        if "max_bytes" in takes and max_bytes is not None:
            options["max_bytes"] = max_bytes
        made = strategy(name, **options)
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
        found = self.model.named_parameters()
        return _Step(
            (clock[1] - clock[0], clock[2] - clock[1], clock[3] - clock[2]),
            prediction.score.detach(),
            {n: p.grad.clone() for n, p in found if p.grad is not None},
            _loader_bytes(prepared),
        )

    def sizes(self) -> dict[str, int]:
        return {
            "genes": self.cell.n_genes,
            "relations": len(self.model.relations),
            "edges": sum(r.n_edges for r in self.cell.relations.values()),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "genes_per_genotype": 3,
        }


def _loader_bytes(prepared: Deleted) -> float:
    """Return what a loader sends for a genotype: its genes, unless the strategy sends more."""
    more = getattr(prepared, "loader_bytes_per_genotype", None)
    genes: float = prepared.genotypes.nbytes / max(len(prepared), 1)
    return genes if more is None else float(more)


def _times(steps: Sequence[_Step], batch: int) -> dict[str, Any]:
    return {
        "batch": batch,
        "forward_s": statistics.median(s.forward_s for s in steps),
        "backward_s": statistics.median(s.backward_s for s in steps),
        "s_per_genotype": statistics.median(s.seconds for s in steps) / batch,
        "preparation_s": statistics.median(s.preparation_s for s in steps),
        "s_of_each_turn": [s.seconds for s in steps],
    }


def _differences(step: _Step, reference: _Step | None) -> dict[str, Any]:
    if reference is None:
        empty = ("score_diff_over_std", "grad_rel_diff", "loader_bytes_per_genotype")
        return dict.fromkeys(empty)
    spread = reference.score.std() if len(reference.score) > 1 else reference.score.abs().max()
    score = (step.score - reference.score).abs().max() / spread
    norms = {name: g.norm() for name, g in reference.gradients.items()}
    largest = max(norms.values())
    gradients = [
        float((step.gradients[name] - reference.gradients[name]).norm() / norm)
        for name, norm in norms.items()
        if norm > NEGLIGIBLE * largest
    ]
    return {
        "score_diff_over_std": float(score),
        "grad_rel_diff": max(gradients),
        "loader_bytes_per_genotype": step.loader_bytes,
    }


def _ratios(rows: Sequence[dict[str, Any]], least: float) -> dict[str, Any]:
    by_name = {row["strategy"]: row for row in rows if row["strategy"] != WILD_TYPE}
    best = min(by_name.values(), key=lambda row: float(row["s_per_genotype"]))
    ratios: dict[str, Any] = {"best": best["strategy"]}
    for name in ("subgraph", "edge_mask"):
        if name in by_name:
            of_it = by_name[name]["s_per_genotype"] / best["s_per_genotype"]
            ratios[f"best_times_faster_than_{name}"] = of_it
    if "edge_mask" in by_name:
        peak = max(by_name["edge_mask"]["peak_mib"], 1e-9)
        ratios["best_peak_over_edge_mask_peak"] = best["peak_mib"] / peak
    ratios["largest_score_diff_over_std"] = max(r["score_diff_over_std"] for r in by_name.values())
    for row in rows:
        row["times_roofline"] = row["s_per_genotype"] / least
    ratios["best_times_roofline"] = best["times_roofline"]
    return ratios


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


def _in_order(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _COLUMNS}


def _held_against(bar: dict[str, float], measured: float) -> dict[str, Any]:
    met = measured >= bar["at_least"] if "at_least" in bar else measured <= bar["at_most"]
    return {**bar, "measured": measured, "met": met}


def _reference(names: Sequence[str]) -> str:
    return REFERENCE if REFERENCE in names else names[0]


def _checked(
    batch: int,
    layers: int,
    strategies: Sequence[str] | None,
    repeats: int,
    mutant_layers: int | None,
) -> list[str]:
    for what, given in (("batch", batch), ("layers", layers), ("repeats", repeats)):
        if given < 1:
            raise InputError(f"{what} is {given}; expected 1 or more")
    if strategies is None:
        ladder = [name for name in STRATEGIES if name in LADDER]
        out = LEFT_OUT if (mutant_layers or layers) == 1 else (*LEFT_OUT, "late")
        return ladder + [n for n in STRATEGIES if n not in (*LADDER, *out)]
    names = list(dict.fromkeys(strategies))
    if not names:
        raise InputError(f"no strategy was given; there are {', '.join(STRATEGIES)}")
    for name in names:
        if name not in STRATEGIES:
            raise InputError(
                f"unknown propagation '{name}'{did_you_mean(name, STRATEGIES)}; "
                f"there are {', '.join(STRATEGIES)}"
            )
    return names


def _command(
    batch: int,
    layers: int,
    mutant_layers: int | None,
    strategies: Sequence[str] | None,
    repeats: int,
    max_bytes: int | None,
    quick: bool,
) -> str:
    command = f"deltacell bench propagation --batch {batch} --layers {layers}"
    if mutant_layers is not None:
        command += f" --mutant-layers {mutant_layers}"
    if strategies is not None:
        command += f" --strategies {','.join(strategies)}"
    if repeats != 3:
        command += f" --repeats {repeats}"
    if max_bytes is not None:
        command += f" --max-bytes {max_bytes}"
    return command + (" --quick" if quick else "")
