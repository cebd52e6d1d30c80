"""A process that saves checkpoints and is killed, for real, whenever it happens."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest
import torch

from deltacell.store import sha256_of_file
from deltacell.train.checkpoints import Checkpoints

pytestmark = pytest.mark.slow

ENDLESS = """
import sys
import torch
from deltacell.train.checkpoints import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
last = checkpoints.last
step = 0 if last is None else checkpoints.load()["step"]
print("ready", flush=True)
while True:
    step += 1
    state = {"step": step, "weights": torch.full((20_000,), float(step))}
    checkpoints.save(state, step=step, epoch=0, metric=float(-(step % 7)))
"""


def test_the_last_is_whole_whenever_the_writer_was_killed(tmp_path):
    folder = tmp_path / "checkpoints"
    pause = random.Random(0)
    reached = 0
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, folder], stdout=subprocess.PIPE, text=True
        )
        try:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(pause.uniform(0.05, 0.4))
        finally:
            writer.kill()
            writer.wait()
            writer.stdout.close()
        checkpoints = Checkpoints(folder)
        for one in checkpoints.kept:
            assert sha256_of_file(folder / one.file) == one.sha256
        if checkpoints.last is not None:
            state = checkpoints.load()
            assert state["step"] == checkpoints.last.step
            assert torch.equal(state["weights"], torch.full((20_000,), float(state["step"])))
            # What was the last once is never lost again.
            assert state["step"] >= reached
            reached = state["step"]
    assert reached > 6
