"""What training costs from end to end: samples per second, the loader's share, phase timers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from deltacell.bench import process
from deltacell.bench.process import silent
from deltacell.models.base import check_choice
from deltacell.profile.phase_rows import PHASES, read_phases, steady_steps
from deltacell.profile.phases import PhaseTimer
from deltacell.profile.record import PHASES as PHASES_FOLDER
from deltacell.profile.record import read_run
from deltacell.train.compose import compose, with_settings
from deltacell.train.config import Config
from deltacell.train.run import train
from deltacell.words import Progress

_LATE = ("model.mutant_layers=1", "data.run_length=32")
#: The genotypes per batch of each model, and its settings beside those of the shipped config.
MODELS: dict[str, tuple[int, tuple[str, ...]]] = {
    "dango": (256, ()),
    "hetero_cell": (8, ()),
    "hetero_cell_late": (256, _LATE),
    "hetero_cell_epistasis": (256, (*_LATE, "model.epistasis=true")),
}
WARMUP = 3  # steps of a run that are trained beside those that are measured


def run(
    quick: bool = False,
    steps: int = 12,
    repeats: int = 5,
    models: Sequence[str] = tuple(MODELS),
    *,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Train models for some steps, by the loop and the configs that users have.

    The models take turns, each in a process of its own, and medians over the turns count.
    ``samples_per_s`` is by the median time of a steady step. ``data_wait_share`` is what the phases
    say of waiting for data and of transfer. ``phase_overhead`` is the share of a step that the
    calls of the phase timers take by themselves: runs with and without them differ by less than
    noise.
    """
    for model in models:
        check_choice("model", model, MODELS)
    own = partial(process.in_own_process, measure, quick=quick, steps=steps)
    turns = process.in_turns({m: partial(own, model=m) for m in models}, repeats, progress)
    rows = [process.median_row(of_model) for of_model in turns.values()]
    ratios = {
        f"{model}_over_dango_s_per_sample": median(
            turn["s_per_sample"] / dango["s_per_sample"]
            for turn, dango in zip(of_model, turns["dango"], strict=True)
        )
        for model, of_model in turns.items()
        if model != "dango" and "dango" in turns
    }
    shares = ("data_wait_share", "phase_overhead", "peak_mib")
    measured = {f"{row['model']}_{what}": row[what] for row in rows for what in shares}
    return {"rows": rows, "ratios": ratios, "measured": measured}


def measure(model: str, quick: bool, steps: int) -> dict[str, Any]:
    batches = steps + WARMUP
    # Twice what is trained on, and 1,000: none of the runs comes to the end of an epoch.
    config = config_of(model, quick, 2 * batches * MODELS[model][0] + 1000)
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as folder:
        path = Path(folder) / "run"
        settings = {"directory": str(path), "mode_steps": batches, "trainer.progress": False}
        train(with_settings(config, settings))
        record, steady = read_run(path), steady_steps(read_phases(path / PHASES_FOLDER))
    peak, seconds, batch_size = process.peak_mib(), median(steady["wall_s"]), record.batch_size or 1
    wait, transfer, wall = (
        float(steady[f"{p}_s"].sum()) for p in ("data_wait", "transfer", "wall")
    )
    choice = record.propagation and record.propagation["choice"]
    return {
        "model": model,
        "samples_per_s": batch_size / seconds,
        "data_wait_share": (wait + transfer) / wall,
        "phase_overhead": timer_cost() / seconds,
        "s_per_step": seconds,
        "s_per_sample": seconds / batch_size,
        "peak_mib": peak,
        "batch_size": batch_size,
        "parameters": record.n_parameters,
        "propagation": choice and choice["choice"],
    }


def timer_cost(steps: int = 1000) -> float:
    """Return the seconds per step that the phase timers take, writing their rows included."""
    timer = PhaseTimer()
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as folder:
        began = time.perf_counter()
        for step in range(steps):
            # A training step switches as often as there are phases.
            for phase in PHASES:
                timer.switch(phase)
            timer.end_step(0, step, 1)
        timer.flush(folder, rank=0, attempt=0)
        return (time.perf_counter() - began) / steps


def config_of(model: str, quick: bool, genotypes: int) -> Config:
    """Return the config that ships for a model, on a synthetic screen; also for `bench predict`."""
    batch, words = MODELS[model]
    if quick:
        batch = min(batch, 64)
        words += (f"experiment={'demo' if model == 'dango' else 'demo_hetero'}",)
    else:
        words += (f"experiment=kuzmin2018_{model.partition('_')[0]}", "data.synthetic=yeast")
        words += ("data.folder=null", "data.screen=null", "data.screen_genes_only=false")
    sizes = (f"data.batch_size={batch}", f"data.synthetic_genotypes={genotypes}")
    return compose([*words, *sizes, "data.merge=null", "split.method=random", "seed=0"])
