"""The threads that a process computes with."""

from __future__ import annotations

import pytest
import torch

from deltacell.train import devices
from deltacell.train import fabric as module
from deltacell.train.config import Config
from deltacell.train.processes import make_fabric


@pytest.mark.parametrize(
    ("environment", "asked", "expected"),
    [
        ({}, None, 6),
        ({}, 3, 3),
        ({"OMP_NUM_THREADS": "2"}, None, 2),
        ({"OMP_NUM_THREADS": "2"}, 3, 3),
        ({"OMP_NUM_THREADS": "2,1"}, None, 6),
        ({"OMP_NUM_THREADS": "0"}, None, 6),
        # What torchrun sets is no wish of the user's.
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1"}, None, 6),
        (
            {
                "OMP_NUM_THREADS": "1",
                "TORCHELASTIC_RUN_ID": "x",
                "WORLD_SIZE": "1",
                "DELTACELL_LAUNCHED": "1",
            },
            None,
            1,
        ),
    ],
)
def test_threads_are_the_configs_or_the_environments_or_all_cores(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], asked: int | None, expected: int
) -> None:
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID", "DELTACELL_LAUNCHED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(devices, "cores", lambda: 6)
    monkeypatch.setattr(module.lightning.Fabric, "launch", lambda self: None)
    config = Config()
    config.trainer.threads, config.trainer.accelerator = asked, "cpu"
    make_fabric(config)
    assert given == [expected]
