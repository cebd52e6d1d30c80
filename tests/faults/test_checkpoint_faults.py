"""A process that saves checkpoints and is killed, for real, whenever it happens."""

from __future__ import annotations

import os
import random
import signal
import time

import torch

from deltacell.store import sha256_of_file
from deltacell.train.checkpoints import Checkpoints


def save_for_ever(folder):
    checkpoints = Checkpoints(folder)
    step = 0 if checkpoints.last is None else checkpoints.load()["step"]
    while True:
        step += 1
        state = {"step": step, "weights": torch.full((20_000,), float(step))}
        checkpoints.save(state, step=step, epoch=0, metric=float(-(step % 7)))


def test_the_last_is_whole_whenever_the_writer_was_killed(tmp_path):
    folder = tmp_path / "checkpoints"
    pause = random.Random(0)
    reached = 0
    for _ in range(12):
        # A fork has PyTorch loaded already.
        writer = os.fork()
        if writer == 0:
            try:
                save_for_ever(folder)
            finally:
                os._exit(1)
        time.sleep(pause.uniform(0.05, 0.4))
        os.kill(writer, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == -signal.SIGKILL
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
    assert reached > 12
