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

from deltacell.bench.machine import machine
from deltacell.bench.process import counted, in_own_process, peak_mib
from deltacell.errors import InputError
from deltacell.profile.phase_rows import PHASES, read_phases, steady_steps
from deltacell.profile.phases import PhaseTimer
from deltacell.profile.record import PHASES as PHASES_FOLDER
from deltacell.profile.record import read_run
from deltacell.train.build import make_loop
from deltacell.train.compose import compose
from deltacell.train.data import load_data
from deltacell.train.loop import Hooks
from deltacell.train.run import train
from deltacell.train.task import Validation

AT_MOST = 0.01
"""The share of a step that waiting for data may take, and the share that the timers may."""

LATE_AT_MOST = 5.0
"""Times DANGO's time per sample that HeteroCell with one late layer may take."""

LATE_MIB = 4096.0
"""What the process that trains it may hold at its peak."""

_LATE = ("model.mutant_layers=1", "data.run_length=32")

CONFIGS: Mapping[str, tuple[str, ...]] = {
    "dango": ("experiment=kuzmin2018_dango", "data.batch_size=256"),
    "hetero_cell": ("experiment=kuzmin2018_hetero", "data.batch_size=8"),
    "hetero_cell_late": ("experiment=kuzmin2018_hetero", *_LATE, "data.batch_size=256"),
    "hetero_cell_epistasis": (
        "experiment=kuzmin2018_hetero",
        *_LATE,
        "model.epistasis=true",
        "data.batch_size=256",
    ),
}
"""The models of the reference as the configs that ship have them, and the batch of each."""

QUICK: Mapping[str, tuple[str, ...]] = {
    "dango": ("experiment=demo", "data.batch_size=64"),
    "hetero_cell": ("experiment=demo_hetero", "data.batch_size=8"),
    "hetero_cell_late": ("experiment=demo_hetero", *_LATE, "data.batch_size=64"),
    "hetero_cell_epistasis": (
        "experiment=demo_hetero",
        *_LATE,
        "model.epistasis=true",
        "data.batch_size=64",
    ),
}

WARMUP = 2
"""Steps of a run that are not counted."""

ENOUGH_PAIRS = 5
"""Pairs of runs that must all say the same before a difference counts: 1 in 32 by chance."""

COLD_BYTES = 64 * 2**20
"""More than a processor's caches hold."""

Progress = Callable[[str, int, int], None]
Tell = Callable[[dict[str, Any]], None]


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
    side; what counts is the median over the turns. ``peak_mib`` is the most memory that a process
    held.

    ``samples_per_s`` is the batch over the median time from one step's end to the next, read by a
    callback with a clock of its own. ``data_wait_share`` is what the phases say of waiting for data
    and of transfer, of the wall time of the steady steps.

    The overhead of the phase timers is measured twice. ``interleaved``: pairs of runs with
    ``profiler.phases`` true and false take turns, and the difference of their medians counts.
    ``direct``: the calls of one step are counted, each kind is timed with the caches cold, as it is
    between the parts of a step, and the sum of it is divided by the time of a step; the share of
    the file that holds the rows is in it. The first sees everything and is as good as the machine
    is quiet: steps of the same run differ by percents where the timers take hundredths of one. So
    it counts only where five pairs or more all say that timers make it slower, which would be
    chance 1 in 32 times. Else ``phase_overhead``, which the bar is on, is the direct one, and the
    row says so.

    Parameters
    ----------
    progress
        Called as ``progress(what, done, total)``.
    quick
        Whether to take the small synthetic cell, where no bar applies.
    steps
        Steps of a run that count.
    repeats
        Pairs of runs.
    seed
        Of the data and the weights.
    folder, screen
        An imported folder and one of its screens, in place of the made-up yeast.
    models
        Which of `CONFIGS`.
    """
    if steps < 2 or repeats < 1:
        raise InputError(f"steps {steps}, repeats {repeats}: expected at least 2 and 1")
    unknown = [model for model in models if model not in CONFIGS]
    if unknown or not models:
        raise InputError(f"unknown model '{unknown[:1]}'; there are {', '.join(CONFIGS)}")
    told = counted(progress, len(models) * 2 * repeats)
    turns: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for turn in range(repeats):
        for model in models:
            settings = {
                "model": model,
                "quick": quick,
                "steps": steps,
                "turn": turn,
                "seed": seed,
                "folder": folder,
                "screen": screen,
            }
            turns[model].append(in_own_process("deltacell.bench.train:measure", settings, told))
    rows = [{"model": model, **_row(_joined(of_turns))} for model, of_turns in turns.items()]
    ratios = _ratios(turns)
    return {
        "benchmark": "train",
        "command": _command(quick, steps, repeats, folder, screen, models),
        "rows": rows,
        "ratios": ratios,
        "bars": {} if quick else _bars(rows) | _late_bars(rows, ratios),
        "settings": {
            "cell": folder or ("demo" if quick else "yeast"),
            "configs": {
                model: _words(model, quick, steps, seed, folder, screen) for model in models
            },
            "steps": steps,
            "warmup_steps": WARMUP,
            "repeats": repeats,
            "seed": seed,
        },
        "machine": machine(),
    }


def measure(
    *,
    model: str,
    quick: bool,
    steps: int,
    turn: int,
    seed: int,
    folder: str | None,
    screen: str | None,
    tell: Tell,
) -> dict[str, Any]:
    """Return what a pair of runs of one model took, with and without phases, in this process.

    Parameters
    ----------
    model, quick, steps, seed, folder, screen
        As in `run`.
    turn
        Which pair it is.
    tell
        Called with what is being done.
    """
    words = _words(model, quick, steps, seed, folder, screen)
    medians: dict[bool, float] = {}
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as place:
        # Whichever comes second finds a warmer machine; they take turns at that too.
        for phases in (True, False) if turn % 2 == 0 else (False, True):
            what = "with phases" if phases else "without phases"
            tell({"what": f"{model} {what}, turn {turn + 1}"})
            # What the run before holds is given back, and not while this one is timed.
            gc.collect()
            path = Path(place) / str(phases)
            clock = Clock()
            config = compose(
                [*words, f"directory='{path}'", f"profiler.phases={str(phases).lower()}"]
            )
            train(config, tell=[clock])
            medians[phases] = statistics.median(clock.seconds[WARMUP:])
            if phases:
                facts = {"data_wait_share": _exposed_share(path), **_facts(path)}
    peak = peak_mib()
    return {
        "s_with": medians[True],
        "s_without": medians[False],
        "peak_mib": peak,
        "timers": timer_costs(model, seed),
        **facts,
    }


def _joined(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the turns of one model measured, each number as a list of theirs."""
    return {
        **turns[0],
        "s_with": [turn["s_with"] for turn in turns],
        "s_without": [turn["s_without"] for turn in turns],
        "data_wait_shares": [turn["data_wait_share"] for turn in turns],
        "peak_mib": max(turn["peak_mib"] for turn in turns),
    }


def _ratios(turns: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Return the time per sample of each model over DANGO's, the median over turns."""
    if "dango" not in turns:
        return {}
    found = {}
    for model, of_turns in turns.items():
        if model != "dango":
            pairs = zip(of_turns, turns["dango"], strict=True)
            found[f"{model}_over_dango_s_per_sample"] = statistics.median(
                _s_per_sample(turn) / _s_per_sample(dango) for turn, dango in pairs
            )
    return found


def _s_per_sample(turn: Mapping[str, Any]) -> float:
    return float(min(turn["s_with"], turn["s_without"])) / int(turn["batch_size"])


class Clock:
    """A callback that reads a clock at the end of every batch."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.seconds: list[float] = []

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Forget the last batch: what lies between epochs is no step."""
        self._last = None

    def step(self, loss: torch.Tensor | None, genotypes: int) -> None:
        """Note the time since the batch before."""
        now = time.perf_counter()
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now

    def epoch(self, row: Mapping[str, float], validation: Validation | None, step: int) -> None:
        """Nothing is asked of epochs."""

    def close(self) -> None:
        """Nothing is held."""


def timer_costs(model: str, seed: int = 0) -> dict[str, float]:
    """Return what the phase timers do in a step, and what that costs, each call for itself.

    Parameters
    ----------
    model
        Whose step's calls are counted; the loop makes the same ones on any cell.
    seed
        Of the small run in which they are.

    Returns
    -------
    ``switches_per_step``; ``switch_s`` and ``end_step_s``, medians with cold caches; ``flush_s``,
    the writing of a row, of a file with a thousand; and ``s_per_step``, all of it.
    """
    switches = _switches_per_step(model, seed)
    costs = _cold_costs()
    costs["flush_s"] = _flush_cost()
    whole = switches * costs["switch_s"] + costs["end_step_s"] + costs["flush_s"]
    return {"switches_per_step": switches, **costs, "s_per_step": whole}


class _Counting(PhaseTimer):
    """A timer that counts how often it is asked to switch in training steps."""

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


def _switches_per_step(model: str, seed: int) -> float:
    config = compose(_words(model, True, 4, seed))
    timer = _Counting()
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    loop = make_loop(fabric, config, load_data(config), timer=timer, hooks=Hooks())
    loop.run()
    return statistics.median(timer.of_steps)


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
    # Reading the clock and calling a function is not the timers'.
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
        words += [f"data.folder='{folder}'", kept, "~data.where", "data.relations=null"]
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
    return [
        *words,
        f"seed={seed}",
        "split.method=random",
        f"mode_steps={batches}",
        "trainer.progress=false",
    ]


def _exposed_share(path: Path) -> float:
    """Return the share of waiting for data and of transfer in the steady steps of a run."""
    steady = steady_steps(read_phases(path / PHASES_FOLDER))
    wait, transfer, wall = (
        float(steady[f"{p}_s"].sum()) for p in ("data_wait", "transfer", "wall")
    )
    return (wait + transfer) / wall


def _facts(path: Path) -> dict[str, Any]:
    record = read_run(path)
    propagation = record.propagation
    name = None if propagation is None else propagation["name"]
    if propagation is not None and propagation["choice"] is not None:
        name = f"{name}: {propagation['choice']['choice']['strategy']}"
    return {"batch_size": record.batch_size, "parameters": record.n_parameters, "propagation": name}


def _row(measured: Mapping[str, Any]) -> dict[str, Any]:
    with_, without = measured["s_with"], measured["s_without"]
    step_s = statistics.median(with_)
    pairs = [a / b - 1 for a, b in zip(with_, without, strict=True)]
    interleaved = statistics.median(pairs)
    direct = measured["timers"]["s_per_step"] / statistics.median(without)
    seen = is_resolved(pairs)
    return {
        "samples_per_s": measured["batch_size"] / step_s,
        "data_wait_share": statistics.median(measured["data_wait_shares"]),
        "phase_overhead": interleaved if seen else direct,
        "phase_overhead_by": "interleaved" if seen else "direct",
        "phase_overhead_direct": direct,
        "phase_overhead_interleaved": interleaved,
        "s_per_step": step_s,
        "peak_mib": measured["peak_mib"],
        "batch_size": measured["batch_size"],
        "model_facts": {name: measured[name] for name in ("parameters", "propagation")},
        "phase_overhead_of_each_pair": pairs,
        "data_wait_share_of_each_run": measured["data_wait_shares"],
        "timers": measured["timers"],
    }


def is_resolved(pairs: Sequence[float]) -> bool:
    """Return whether a difference is more than noise: enough pairs, all of them above 0.

    Parameters
    ----------
    pairs
        How much slower each run with timers was than the one without beside it, as a share.
    """
    return len(pairs) >= ENOUGH_PAIRS and all(pair > 0 for pair in pairs)


def _bars(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{row['model']}_{what}": {
            "at_most": AT_MOST,
            "measured": row[what],
            "met": row[what] <= AT_MOST,
        }
        for what in ("data_wait_share", "phase_overhead")
        for row in rows
    }


def _late_bars(
    rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Return the bars on HeteroCell with one late layer, where it and DANGO were measured."""
    peaks = {row["model"]: row["peak_mib"] for row in rows}
    found = {
        "hetero_cell_late_over_dango_s_per_sample": (
            LATE_AT_MOST,
            ratios.get("hetero_cell_late_over_dango_s_per_sample"),
        ),
        "hetero_cell_late_peak_mib": (LATE_MIB, peaks.get("hetero_cell_late")),
    }
    return {
        name: {"at_most": at_most, "measured": measured, "met": measured <= at_most}
        for name, (at_most, measured) in found.items()
        if measured is not None
    }


def _command(
    quick: bool,
    steps: int,
    repeats: int,
    folder: str | None,
    screen: str | None,
    models: Sequence[str],
) -> str:
    command = "deltacell bench train"
    if tuple(models) != tuple(CONFIGS):
        command += f" --models {','.join(models)}"
    if folder is not None:
        command += f" --folder {folder}"
    if screen is not None:
        command += f" --screen {screen}"
    if steps != 12:
        command += f" --steps {steps}"
    if repeats != 5:
        command += f" --repeats {repeats}"
    return command + (" --quick" if quick else "")
