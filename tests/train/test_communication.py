"""What ranks say to each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from deltacell.train.processes import (
    SAVE,
    STOPPING,
    Agreement,
    GradientSum,
    from_first_rank,
    world_size,
)


def test_alone_everything_is_at_once() -> None:
    assert world_size() == 1
    agreement = Agreement()
    assert [agreement.reached(mine) for mine in (0, 15, 0)] == [0, 15, 0]
    agreement.settle()
    assert from_first_rank({"a": [1, None]}, torch.device("cpu")) == {"a": [1, None]}


def test_gradients_of_one_process_are_left_as_they_are() -> None:
    module = nn.Linear(2, 1)
    gradients = GradientSum(module)
    gradients.begin()
    module(torch.ones(3, 2)).sum().backward()
    assert gradients.exposed() == 0
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [[3, 3]]


def test_exposed_time_begins_with_the_last_gradients() -> None:
    gradients = GradientSum(nn.Linear(1, 1))
    gradients.ready()
    assert 0 <= gradients.exposed() < 1
    gradients.begin()
    assert gradients.exposed() == 0


def test_a_signal_counts_more_than_time_to_save() -> None:
    assert all(number > SAVE for number in STOPPING)


TWO = """
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from deltacell.train.processes import Agreement, GradientSum, from_first_rank, world_size
from deltacell.train.loop import Meter

dist.init_process_group("gloo")
rank, cpu = dist.get_rank(), torch.device("cpu")
assert world_size() == 2

# The first rank's value, whatever its length.
given = {"name": "Δ" * 50, "n": 1} if rank == 0 else None
assert from_first_rank(given, cpu) == {"name": "Δ" * 50, "n": 1}

# All learn of a number one step after any of them gave it.
agreement = Agreement()
mine = [0, 15 if rank == 1 else 0, 2 if rank == 0 else 0, 0, 0]
answers = []
for number in mine:
    answers.append(agreement.reached(number))
    agreement.arrive()
assert answers == [0, 0, 15, 2, 0]
agreement.settle()
agreement.settle()

# Gradients are summed, not averaged.
module = torch.nn.Linear(1, 1, bias=False)
parallel = DistributedDataParallel(module)
gradients = GradientSum(parallel)
for value in (1.0, 2.0):
    module.zero_grad()
    gradients.begin()
    parallel(torch.tensor([[value + rank]])).sum().backward()
    assert module.weight.grad.item() == 2 * value + 1, module.weight.grad
    assert 0 < gradients.exposed() < 60

# Means are of all ranks, and so is the state that a run goes on with.
meter = Meter("cpu")
meter.add({"loss": torch.tensor(1.0 + rank), "part": torch.tensor(2.0)}, 4)
state = meter.state_dict()
assert state["sums"]["loss"].item() == 12 and state["genotypes"] == 4, state
assert meter.means() == {"loss": 3.0, "part": 4.0}
again = Meter("cpu")
again.load_state_dict(state, first=rank == 0)
again.add({"loss": torch.tensor(0.5), "part": torch.tensor(0.0)}, 4)
assert again.means() == {"loss": 2.0, "part": 2.0}
# Not printed: what two ranks print at once is mixed.
open(f"fine-{rank}", "w").close()
dist.destroy_process_group()
# Native thread pools now and then abort while the interpreter ends, after all was done; that
# is not what this is about.
os._exit(0)
"""


@pytest.mark.slow
def test_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "two.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("fine-*")} == {"fine-0", "fine-1"}
