"""Runs with phases that are made up, so that what is right is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from deltacell.profile.phase_rows import PHASES
from deltacell.profile.record import RunRecord, Status, write_run

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A function that writes a run: seconds of a step by phase, for each rank.

    After the step ``slow_after`` they are ``slower`` times as many, in all phases or in some.
    """

    def make(
        name: str,
        step: Mapping[str, float] | Sequence[Mapping[str, float]],
        *,
        steps: int = 20,
        samples: int = 64,
        between: Mapping[str, float] | None = None,
        per_epoch: int = 10,
        slow_after: int | None = None,
        slower: Mapping[str, float] | float = 1.0,
        **record: Any,
    ) -> Path:
        path = tmp_path / name
        (path / "phases").mkdir(parents=True)
        ranks = [step] if isinstance(step, Mapping) else list(step)
        told = {
            "status": Status.finished,
            "name": name,
            "mode": "train",
            "seed": 0,
            "command": ("train",),
            "started": "2026-01-31T12:00:00Z",
            "device": "cpu",
            "precision": "32",
            "world_size": len(ranks),
            "batch_size": samples,
            "steps_per_epoch": per_epoch,
            "versions": {"torch": "2.13.0"},
        }
        write_run(path, RunRecord(**(told | record)))
        for rank, spent in enumerate(ranks):
            rows, begin = [], 0.0
            for number in range(1, steps + 1):
                for kind, phases in (("train", spent), ("between", between)):
                    if phases is None or (kind == "between" and number % per_epoch):
                        continue
                    seconds = dict.fromkeys(PHASES, 0.0) | dict(phases)
                    if slow_after is not None and number > slow_after:
                        for phase in seconds:
                            times = slower if isinstance(slower, float) else slower.get(phase, 1.0)
                            seconds[phase] *= times
                    rows.append(
                        {
                            "rank": rank,
                            "attempt": 0,
                            "epoch": (number - 1) // per_epoch,
                            "step": number,
                            "kind": kind,
                            "samples": samples // len(ranks) if kind == "train" else 0,
                            "profiled": False,
                            "begin_s": begin,
                            "wall_s": sum(seconds.values()),
                            **{f"{phase}_s": value for phase, value in seconds.items()},
                        }
                    )
                    begin += sum(seconds.values())
            pl.DataFrame(rows).write_parquet(path / "phases" / f"rank{rank}-attempt0-part0.parquet")
        return path

    return make
