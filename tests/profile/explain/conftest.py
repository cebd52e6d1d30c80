"""Runs with phases that are made up, so that what is right is known."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from deltacell.profile.phase_rows import PHASES
from deltacell.profile.record import RunRecord, Status, write_run

MakeRun = Callable[..., Path]
TOLD = {
    **{"status": Status.finished, "mode": "train", "seed": 0, "command": ("train",)},
    **{"started": "2026-01-31T12:00:00Z", "device": "cpu", "precision": "32"},
    "versions": {"torch": "2.13.0"},
}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A function that writes a run: seconds of a step by phase, for each rank.

    After the step ``slow_after`` they are as many times more as ``slower`` says of a phase.
    """

    def make(
        name: str,
        step: Mapping[str, float] | Sequence[Mapping[str, float]],
        *,
        steps: int = 20,
        samples: int = 64,
        between: Mapping[str, float] | None = None,
        per_epoch: int = 10,
        slow_after: int = 10**9,
        slower: Mapping[str, float] | None = None,
        **record: Any,
    ) -> Path:
        path = tmp_path / name
        (path / "phases").mkdir(parents=True)
        ranks = [step] if isinstance(step, Mapping) else list(step)
        sizes = {"world_size": len(ranks), "batch_size": samples, "steps_per_epoch": per_epoch}
        write_run(path, RunRecord(**{**TOLD, "name": name, **sizes, **record}))
        for rank, spent in enumerate(ranks):
            rows, begin = [], 0.0
            for number in range(1, steps + 1):
                kinds = [("train", spent, samples // len(ranks))]
                if between is not None and number % per_epoch == 0:
                    kinds.append(("between", between, 0))
                for kind, phases, count in kinds:
                    times = (slower or {}) if number > slow_after else {}
                    seconds = {p: phases.get(p, 0.0) * times.get(p, 1.0) for p in PHASES}
                    facts = {"rank": rank, "attempt": 0, "epoch": (number - 1) // per_epoch}
                    facts |= {"step": number, "kind": kind, "samples": count, "profiled": False}
                    wall = sum(seconds.values())
                    timed = {f"{phase}_s": value for phase, value in seconds.items()}
                    rows.append({**facts, "begin_s": begin, "wall_s": wall, **timed})
                    begin += wall
            pl.DataFrame(rows).write_parquet(path / "phases" / f"rank{rank}-attempt0-part0.parquet")
        return path

    return make
