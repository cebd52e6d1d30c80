"""Modes side by side: differences and phases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltacell.errors import DeltacellError
from deltacell.train import run as modes
from deltacell.train.run import ORDER, ModeTime, marginals, run_modes


@dataclass
class Summary:
    """Stands for a `PhaseSummary`."""

    ms_per_step: float
    phases: dict[str, float]

    def of(self, phase: str) -> Any:
        return SimpleNamespace(ms_per_step=self.phases.get(phase, 0.0))


def times() -> list[ModeTime]:
    exposed = {"data_wait": 1, "transfer": 2, "forward": 5, "loss": 1, "backward": 9}
    exposed |= {"communication": 3, "optimizer": 4}
    by = {"empty": 0.5, "data": 3.0, "forward": 10.0, "step": 22.0, "train": 27.0, "fixed": 20.0}
    return [ModeTime(name, Summary(ms, exposed)) for name, ms in by.items()]  # type: ignore[arg-type]


def test_marginal_costs_are_differences_of_neighbours_beside_exposed_times() -> None:
    found = {one.part: (one.marginal_ms, one.exposed_ms) for one in marginals(times())}
    assert found == {
        "data, preparation, transfer": (3.0, 3.0),
        "forward and loss": (7.0, 6.0),
        "backward and communication": (12.0, 12.0),
        "optimizer": (5.0, 4.0),
    }
    # They add up to the whole step, since each mode does all that the one before does.
    assert sum(marginal for marginal, _ in found.values()) == 27.0


def test_every_mode_has_a_process_of_its_own_with_the_same_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []
    told: list[tuple[str, int, int]] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(modes.subprocess, "run", run)
    monkeypatch.setattr(modes, "read_phases", lambda folder: folder)
    monkeypatch.setattr(modes, "summarise", lambda folder: folder)
    found = run_modes(["experiment=demo", "seed=4"], 9, lambda *args: told.append(args))
    assert [one.mode for one in found] == [mode.value for mode in ORDER]
    for mode, command in zip(ORDER, commands, strict=True):
        assert command[1:6] == ["-m", "deltacell", "train", "experiment=demo", "seed=4"]
        assert {f"mode={mode.value}", "mode_steps=9"} <= set(command)
    assert [done for _, done, _ in told] == list(range(6))
    assert not Path(str(found[0].summary)).parent.parent.exists()


def test_a_mode_that_fails_says_which_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        return SimpleNamespace(returncode=2, stdout="", stderr="error: the cell has left\n")

    monkeypatch.setattr(modes.subprocess, "run", run)
    with pytest.raises(DeltacellError, match="the mode 'empty' failed: the cell has left"):
        run_modes(["experiment=demo"])
