"""Whether `deltacell compare` promises the speed-up that a training then has."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from deltacell.bench import process
from deltacell.profile.phase_rows import PhaseSummary, read_phases
from deltacell.profile.record import PHASES
from deltacell.train.comparing.compare import compare_trainings
from deltacell.train.comparing.sides import TriedSide
from deltacell.train.config import Config
from deltacell.train.config.compose import compose, with_settings
from deltacell.train.run import train as run_training

GENOTYPES = "data.synthetic_genotypes=4000"
DANGO = ("experiment=demo", GENOTYPES)
SLOW = ("experiment=demo_hetero", GENOTYPES, "model.propagation=subgraph")
TRIED = "model.propagation=auto"
STEPS = 60  # of a training that is measured apart from the comparison


def run(quick: bool = False, minutes: float = 15.0, repeats: int = 3) -> dict[str, Any]:
    """Compare DANGO with HeteroCell, whose propagation is slow, and run what is promised.

    ``promised`` is how many times as fast the comparison found `auto` to be, and ``trained`` is
    that of longer trainings, measured afterwards in turns. ``off_by`` is the larger of both over
    the smaller one, less 1.
    """
    slow = compose(SLOW)
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as folder:
        result = compare_trainings(
            TriedSide("dango", compose(DANGO)),
            TriedSide("hetero_cell", slow),
            Path(folder),
            minutes=minutes,
            turns=1 if quick else repeats,
            steps=12 if quick else 30,
            progress=process.progress,
        )
    promised = {v.settings: v for v in result.variations if v.side == "b"}[TRIED]
    steps = 12 if quick else STEPS
    configs = {"subgraph": slow, "auto": compose([*SLOW, TRIED])}
    ways = {
        name: partial(process.in_own_process, measure, config=config, steps=steps)
        for name, config in configs.items()
    }
    turns = process.in_turns(ways, repeats)
    rows = [{"propagation": name, **process.median_row(of_way)} for name, of_way in turns.items()]
    trained = _ratio(turns)
    off_by = max(promised.speedup, trained) / min(promised.speedup, trained) - 1
    measured = {"promised": promised.speedup, "trained": trained, "off_by": off_by}
    notes = [result.to_json()["sentence"]]
    return {"rows": rows, "ratios": measured, "notes": notes}


def _ratio(turns: Mapping[str, list[dict[str, Any]]]) -> float:
    pairs = zip(turns["subgraph"], turns["auto"], strict=True)
    ratios: list[float] = [slow["s_per_sample"] / fast["s_per_sample"] for slow, fast in pairs]
    return median(ratios)


def measure(config: Config, steps: int) -> dict[str, Any]:
    """Return the time per sample of a training of some steps."""
    with tempfile.TemporaryDirectory(prefix="deltacell-bench-") as folder:
        path = Path(folder) / "run"
        settings = {"directory": str(path), "mode_steps": steps, "trainer.progress": False}
        run_training(with_settings(config, settings))
        summary = PhaseSummary(read_phases(path / PHASES))
    steady = summary.steady
    return {
        "s_per_sample": median((steady["wall_s"] / steady["samples"]).to_list()),
        "steps": summary.steps,
    }
