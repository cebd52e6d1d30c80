"""What training costs from end to end: samples per second, the loader's share, phase timers."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch

from deltacell.bench.process import counted, in_own_process, machine, peak_mib
from deltacell.errors import InputError
from deltacell.profile.phase_rows import PHASES, read_phases, steady_steps
from deltacell.profile.phases import PhaseTimer
from deltacell.profile.record import PHASES as PHASES_FOLDER
from deltacell.profile.record import read_run
from deltacell.train.build import make_loop
from deltacell.train.callbacks import Callback
from deltacell.train.compose import compose, with_settings
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.run import train
from deltacell.words import Progress

AT_MOST = 0.01
"""The share of a step that waiting for data may take, and the share that the timers may."""

LATE_AT_MOST = 5.0
"""Times DANGO's time per sample that HeteroCell with one late layer may take."""

LATE_MIB = 4096.0
"""The peak memory that the process which trains it may hold."""

_LATE = ("model.mutant_layers=1", "data.run_length=32")


def _configs(dango: str, hetero: str, batch: str) -> dict[str, tuple[str, ...]]:
    return {
        "dango": (dango, batch),
        "hetero_cell": (hetero, "data.batch_size=8"),
        "hetero_cell_late": (hetero, *_LATE, batch),
        "hetero_cell_epistasis": (hetero, *_LATE, "model.epistasis=true", batch),
    }


CONFIGS: Mapping[str, tuple[str, ...]] = _configs(
    "experiment=kuzmin2018_dango", "experiment=kuzmin2018_hetero", "data.batch_size=256"
)
"""The models of the reference as the configs that ship have them, and the batch of each."""

QUICK: Mapping[str, tuple[str, ...]] = _configs(
    "experiment=demo", "experiment=demo_hetero", "data.batch_size=64"
)

WARMUP = 2
"""Steps of a run that are not counted."""

ENOUGH_PAIRS = 5
"""Pairs of runs that must all agree before a difference counts: 1 in 32 by chance."""

COLD_BYTES = 64 * 2**20
"""More than a processor's caches hold."""


def run(
    progress: Progress | None = None,
    quick: bool = False,
    *,
    steps: int = 12,
    repeats: int = 5,
    seed: int = 0,
    folder: str | None = None,
    screen: str | None = None,
    models: Sequence[str] = tuple(CONFIGS),
) -> dict[str, Any]:
    """Train models for some steps, by the loop and the configs that users have.

    The models take turns, each in a process of its own, so that a ratio compares what ran side by
    side; what counts is the median over the turns. ``samples_per_s`` is the batch over the median
    time from one step's end to the next, read by a callback with a clock of its own.
    ``data_wait_share`` is what the phases say of waiting for data and of transfer.

    The overhead of the phase timers is measured twice. ``interleaved``: pairs of runs with and
    without ``profiler.phases`` take turns, and the difference of their medians counts. ``direct``:
    the calls of one step are counted and each kind is timed with cold caches, as between the parts
    of a step. The first sees everything, but steps of one run differ by percents while the timers
    take hundredths of one. So it counts only if at least five pairs all say that timers make it
    slower; otherwise ``phase_overhead``, which the bar is on, is the direct one.
    """
    if steps < 2 or repeats < 1:
        what = f"steps {steps}, repeats {repeats}: expected at least 2 and 1"
        raise InputError(what, code="out-of-range")
    unknown = [model for model in models if model not in CONFIGS]
    if unknown or not models:
        what = f"unknown model {unknown[:1]}; expected some of {', '.join(CONFIGS)}"
        raise InputError(what, code="unknown-name")
    options = {"quick": quick, "steps": steps, "seed": seed, "folder": folder, "screen": screen}
    tell = counted(progress, len(models) * 2 * repeats)
    turns: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for turn in range(repeats):
        for model in models:
            settings = {"model": model, "turn": turn, **options}
            turns[model].append(in_own_process("deltacell.bench.train:measure", settings, tell))
    rows = [{"model": model, **_row(of_turns)} for model, of_turns in turns.items()]
    ratios = _ratios(turns)
    given = {
        "models": None if tuple(models) == tuple(CONFIGS) else ",".join(models),
        "folder": folder,
        "screen": screen,
        "steps": None if steps == 12 else str(steps),
        "repeats": None if repeats == 5 else str(repeats),
    }
    typed = [f"--{name} {value}" for name, value in given.items() if value is not None]
    return {
        "benchmark": "train",
        "command": " ".join(["deltacell bench train", *typed, *(["--quick"] if quick else [])]),
        "rows": rows,
        "ratios": ratios,
        "bars": {} if quick else _bars(rows, ratios),
        "settings": {
            "cell": folder or ("demo" if quick else "yeast"),
            "configs": {m: _words(m, quick, steps, seed, folder, screen) for m in models},
            "steps": steps,
            "warmup_steps": WARMUP,
            "repeats": repeats,
            "seed": seed,
        },
        "machine": machine(),
    }


def measure(
    *, model: str, turn: int, tell: Callable[[dict[str, Any]], None], **options: Any
) -> dict[str, Any]:
    """Return what a pair of runs of one model took, with and without phases, in this process."""
    medians: dict[bool, float] = {}
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as place:
        # Whichever comes second finds a warmer machine, so they take turns at that too.
        for phases in (True, False) if turn % 2 == 0 else (False, True):
            what = "with phases" if phases else "without phases"
            tell({"what": f"{model} {what}, turn {turn + 1}"})
            # The memory of the run before is returned now, and not while this one is timed.
            gc.collect()
            path, clock = Path(place) / str(phases), Clock()
            settings = {"directory": str(path), "profiler.phases": phases}
            train(with_settings(_config(model, **options), settings), tell=[clock])
            medians[phases] = statistics.median(clock.seconds[WARMUP:])
            if phases:
                facts = _facts(path)
    peak = peak_mib()
    return {
        "s_with": medians[True],
        "s_without": medians[False],
        "peak_mib": peak,
        "timers": timer_costs(model, options["seed"]),
        **facts,
    }


class Clock(Callback):
    """Reads a clock at the end of every batch."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.seconds: list[float] = []

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Forget the last batch: the time between epochs is not a step's."""
        self._last = None

    def step(self, loss: torch.Tensor | None, genotypes: int) -> None:
        """Note the time since the batch before."""
        now = time.perf_counter()
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


def timer_costs(model: str, seed: int = 0) -> dict[str, float]:
    """Return what the phase timers do per step, and what that costs, each call for itself.

    ``switches_per_step``; ``switch_s`` and ``end_step_s``, medians with cold caches; ``flush_s``,
    the writing of a row, of a file with a thousand; and ``s_per_step``, all of it.
    """
    config, timer = compose(_words(model, True, 4, seed)), _Counting()
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    make_loop(fabric, config, load_data(config), timer=timer).run()
    switches = statistics.median(timer.of_steps)
    costs = {**_cold_costs(), "flush_s": _flush_cost()}
    whole = switches * costs["switch_s"] + costs["end_step_s"] + costs["flush_s"]
    return {"switches_per_step": switches, **costs, "s_per_step": whole}


class _Counting(PhaseTimer):
    """A timer that counts how often it switches in training steps."""

    __slots__ = ("of_steps", "open")

    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self.of_steps: list[int] = []

    def switch(self, phase: str) -> None:
        self.open += 1
        super().switch(phase)

    def end_step(self, epoch: int, step: int, samples: int, kind: str = "train") -> None:
        super().end_step(epoch, step, samples, kind)
        if kind == "train":
            self.of_steps.append(self.open)
        self.open = 0


def _cold_costs(calls: int = 60) -> dict[str, float]:
    timer = PhaseTimer()
    other_data = torch.zeros(COLD_BYTES // 4)
    kinds: dict[str, Callable[[int], None]] = {
        "switch_s": lambda i: timer.switch(PHASES[i % len(PHASES)]),
        "end_step_s": lambda i: timer.end_step(0, i, 1),
        "nothing": lambda i: None,
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for i in range(calls):
        for name, call in kinds.items():
            other_data.add_(1.0)
            began = time.perf_counter()
            call(i)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(of_calls) for name, of_calls in seconds.items()}
    # Reading the clock and calling a function is not a cost of the timers.
    nothing = medians.pop("nothing")
    return {name: max(0.0, median - nothing) for name, median in medians.items()}


def _flush_cost(rows: int = 1000) -> float:
    timer = PhaseTimer()
    for i in range(rows):
        timer.end_step(0, i, 1)
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as folder:
        began = time.perf_counter()
        timer.flush(folder, rank=0, attempt=0)
        return (time.perf_counter() - began) / rows


def _config(model: str, **options: Any) -> Config:
    config = compose(_words(model, **options))
    # Which genotypes an experiment keeps is not for another screen; Hydra would merge the two.
    return with_settings(config, {"data.where": {}} if options["folder"] else {})


def _words(
    model: str,
    quick: bool,
    steps: int,
    seed: int,
    folder: str | None = None,
    screen: str | None = None,
) -> list[str]:
    batches = steps + WARMUP + 1
    words = list((QUICK if quick else CONFIGS)[model])
    batch = int(words[-1].partition("=")[2])
    if folder is not None:
        kept = "data.screen=null" if screen is None else f"data.screen='{screen}'"
        words += [f"data.folder='{folder}'", kept, "data.synthetic=null", "data.relations=null"]
        if model == "dango":
            words.append("model.relations=null")
    else:
        if not quick:
            words += ["data.folder=null", "data.screen=null", "data.synthetic=yeast"]
        # Twice what is trained on, and 1,000: none of the runs comes to the end of an epoch.
        words += [
            f"data.synthetic_genotypes={2 * batches * batch + 1000}",
            f"data.synthetic_seed={seed}",
            "data.merge=null",
        ]
    words += [f"seed={seed}", "split.method=random"]
    return [*words, f"mode_steps={batches}", "trainer.progress=false"]


def _facts(path: Path) -> dict[str, Any]:
    """Return what a run says of itself, and its share of waiting in the steady steps."""
    record, steady = read_run(path), steady_steps(read_phases(path / PHASES_FOLDER))
    wait, transfer, wall = (
        float(steady[f"{p}_s"].sum()) for p in ("data_wait", "transfer", "wall")
    )
    propagation = record.propagation
    name = None if propagation is None else propagation["name"]
    if propagation is not None and propagation["choice"] is not None:
        name = f"{name}: {propagation['choice']['choice']['strategy']}"
    return {
        "data_wait_share": (wait + transfer) / wall,
        "batch_size": record.batch_size,
        "parameters": record.n_parameters,
        "propagation": name,
    }


def _row(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    with_, without = [turn["s_with"] for turn in turns], [turn["s_without"] for turn in turns]
    waits, first = [turn["data_wait_share"] for turn in turns], turns[0]
    step_s = statistics.median(with_)
    pairs = [a / b - 1 for a, b in zip(with_, without, strict=True)]
    interleaved = statistics.median(pairs)
    direct = first["timers"]["s_per_step"] / statistics.median(without)
    seen = is_resolved(pairs)
    return {
        "samples_per_s": first["batch_size"] / step_s,
        "data_wait_share": statistics.median(waits),
        "phase_overhead": interleaved if seen else direct,
        "phase_overhead_by": "interleaved" if seen else "direct",
        "phase_overhead_direct": direct,
        "phase_overhead_interleaved": interleaved,
        "s_per_step": step_s,
        "peak_mib": max(turn["peak_mib"] for turn in turns),
        "batch_size": first["batch_size"],
        "model_facts": {name: first[name] for name in ("parameters", "propagation")},
        "phase_overhead_of_each_pair": pairs,
        "data_wait_share_of_each_run": waits,
        "timers": first["timers"],
    }


def is_resolved(pairs: Sequence[float]) -> bool:
    """Return whether a difference is more than noise: enough pairs, all of them above 0."""
    return len(pairs) >= ENOUGH_PAIRS and all(pair > 0 for pair in pairs)


def _ratios(turns: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Return the time per sample of each model over DANGO's, the median over turns."""

    def s_per_sample(turn: Mapping[str, Any]) -> float:
        return float(min(turn["s_with"], turn["s_without"])) / int(turn["batch_size"])

    return {
        f"{model}_over_dango_s_per_sample": statistics.median(
            s_per_sample(turn) / s_per_sample(dango)
            for turn, dango in zip(of_turns, turns["dango"], strict=True)
        )
        for model, of_turns in turns.items()
        if model != "dango" and "dango" in turns
    }


def _bars(rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]) -> dict[str, Any]:
    late = "hetero_cell_late"
    ratio = f"{late}_over_dango_s_per_sample"
    found = {
        f"{row['model']}_{what}": (AT_MOST, row[what])
        for what in ("data_wait_share", "phase_overhead")
        for row in rows
    }
    found |= {ratio: (LATE_AT_MOST, ratios[ratio])} if ratio in ratios else {}
    peaks = [row["peak_mib"] for row in rows if row["model"] == late]
    found |= {f"{late}_peak_mib": (LATE_MIB, peaks[0])} if peaks else {}
    return {
        name: {"at_most": at_most, "measured": measured, "met": measured <= at_most}
        for name, (at_most, measured) in found.items()
    }
