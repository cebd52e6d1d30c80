"""What was planted is what the demonstration finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltacell.cli.app import app
from deltacell.demo.recovered import FIRST, recovered
from deltacell.demo.results import head_of_ranking
from deltacell.demo.steps import steps
from deltacell.train.data import load_data
from deltacell.train.run_directory import resumed_config

QUIET = ["trainer.figures_every=0", "trainer.progress=false", "loggers.tensorboard=false"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_head_of_the_ranking_is_planted(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    for step in steps(folder, seed):
        if step.command[0] in ("data", "predict"):
            # The networks take longer, and are not what ranks.
            others = (f"{folder}/dango", f"{folder}/hetero_cell")
            app([w for w in step.command if w not in others], standalone_mode=False)
        elif "experiment=demo_pairs" in step.command:
            app([*step.command, *QUIET], standalone_mode=False)
    data = load_data(resumed_config(folder / "pairs"))
    head = [row["genes"] for row in head_of_ranking(folder)]
    found = recovered(data.cell, data.screen, head, seed)
    assert len(found.planted) == FIRST == 20
    assert found.chance < 2
    assert found.found >= 15
