"""For losses that are means over samples, two processes are one with the same global batch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deltacell.profile.phase_rows import read_phases
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config.compose import compose
from deltacell.train.run import train
from deltacell.train.run_directory import metrics_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2,
        reason="two processes need two cores here",
    ),
]
SMALL = (
    *("experiment=demo", "data.synthetic_genotypes=150", "data.batch_size=13", "model.hidden=8"),
    *("trainer.epochs=2", "trainer.threads=1", "trainer.precision=64", "trainer.figures_every=0"),
    *("trainer.progress=false", "loggers.tensorboard=false"),
    "model.relations=[string_fusion,string_database]",
)
HETERO = (*("model=hetero_cell", "model.hidden=8", "model.layers=2", "model.local_heads=2"),)
# 72 genotypes in batches of 71: the second has one, so that one of two ranks has none.
LONELY, CONTRAST = "data.batch_size=71", "point_distribution_contrast"
CASES = {
    "dango": ("loss=log_cosh", "optimizer.accumulate=2", "trainer.checkpoint_every_steps=2"),
    "dango_of_networks": ("loss=dango", "optimizer.clip=0.01", "trainer.ema=0.9", LONELY),
    "hetero_cell_dropout": (*HETERO, "loss=log_cosh", "model.dropout=0.3", LONELY),
    "hetero_cell_gathered": (*HETERO, f"loss={CONTRAST}", "loss.lambda_c=0.1", LONELY),
}
# Both ranks train all cases, and then one of them again from the middle of its last epoch.
RANK = """
import json, shutil, sys
import torch.distributed
from pathlib import Path
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config.compose import compose
from deltacell.train.run import train
from deltacell.train.run_config import resumed_config

for words in json.loads(sys.argv[2]):
    train(compose([*words, "trainer.devices=2"]))
whole, again = Path(sys.argv[1], "dango"), Path(sys.argv[1], "again")
if torch.distributed.get_rank() == 0:
    shutil.copytree(whole, again)
torch.distributed.barrier()
middle = [one.file for one in Checkpoints(again / "checkpoints").kept if one.metric is None]
train(resumed_config(again), resume=again, which=middle[-1])

# The group of the trainings is still there.
import torch
from deltacell.models.interface import Prediction
from deltacell.models.losses import PointDistributionContrast, gather_rows

rank = torch.distributed.get_rank()
# The first rank has two rows, the second has three.
n, first = (2, 0) if rank == 0 else (3, 2)
numbers = torch.arange(first, first + n)
values = numbers.double().requires_grad_()
matrix = torch.stack([numbers, -numbers], dim=1).int()
gathered = gather_rows(numbers, values, matrix)
# Each rank weighs the rows in its own way: their gradients are added up.
(gathered[1] * torch.arange(5) * (rank + 1)).sum().backward()
facts = {
    "types": [str(part.dtype) for part in gathered],
    "rows": [part.tolist() for part in gathered],
    "gradient": values.grad.tolist(),
    "written": {},
}
for interval in (0, 1, 3):
    loss = PointDistributionContrast(0.0, 1.0, warmup=1, stable=1, gather_interval=interval)
    written = facts["written"][interval] = []
    for _ in range(7):
        loss(Prediction(values.detach(), {}), values.detach(), epoch=0)
        written.append(loss.written)
Path(sys.argv[1], f"gathered-{rank}.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of all cases by two processes, of which each is started once."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "rank.py").write_text(RANK)
    cases = [[*SMALL, *words, f"directory={folder / case}"] for case, words in CASES.items()]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *torchrun, folder / "rank.py", folder, json.dumps(cases)],
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def facts_of(folder: Path, rank: int) -> dict[str, Any]:
    """Return what a rank recorded of gathering rows."""
    facts: dict[str, Any] = json.loads((folder / f"gathered-{rank}.json").read_text())
    return facts


def test_rows_of_all_ranks_are_gathered_in_their_order_and_types_with_their_gradients(two):
    for rank in (0, 1):
        facts = facts_of(two, rank)
        assert facts["types"] == ["torch.int64", "torch.float64", "torch.int32"]
        numbers = list(range(5))
        assert facts["rows"] == [numbers, numbers, [[number, -number] for number in numbers]]
    # The weights of the two ranks, 1 and 2, add up.
    assert facts_of(two, 0)["gradient"] == [0, 3]
    assert facts_of(two, 1)["gradient"] == [6, 9, 12]


def test_only_gathered_rows_enter_the_buffer_and_only_every_interval(two):
    """Five rows are gathered in steps 0, 3 and 6 with an interval of three."""
    for rank in (0, 1):
        written = facts_of(two, rank)["written"]
        assert written["0"] == [0] * 7
        assert written["1"] == [5, 10, 15, 20, 25, 30, 35]
        assert written["3"] == [5, 5, 5, 10, 10, 10, 15]


def found(path: Path) -> tuple[dict[str, Any], list[dict[str, float | None]]]:
    return Checkpoints(path / "checkpoints").load("last"), metrics_of(path)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(tmp_path, two, case):
    train(compose([*SMALL, *CASES[case], f"directory={tmp_path / 'one'}"]))
    first, first_rows = found(tmp_path / "one")
    second, second_rows = found(two / case)
    assert first["position"]["step"] == second["position"]["step"]
    for name, weight in first["model"].items():
        torch.testing.assert_close(second["model"][name], weight, rtol=1e-6, atol=1e-8, msg=name)
    assert first["loader"] == second["loader"]
    if first["ema"] is not None:
        torch.testing.assert_close(second["ema"], first["ema"], rtol=1e-6, atol=1e-8)
    for one, other in zip(first_rows, second_rows, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"seconds", "samples_per_s"}:
            if name == "validation_loss" and "gathered" in case:
                continue  # In a validation each rank compares its own rows.
            assert other[name] == pytest.approx(one[name], rel=1e-5, abs=1e-8), name
    samples = read_phases(two / case / "phases")["samples"].sum()
    assert samples == read_phases(tmp_path / "one" / "phases")["samples"].sum()


def test_an_epoch_that_was_stopped_has_the_mean_loss_of_all_ranks(two):
    """One rank's part of the sums is not enough to go on with."""
    whole, again = metrics_of(two / "dango"), metrics_of(two / "again")
    for one, other in zip(whole, again, strict=True):
        for name in ("train_loss", "validation_mse"):
            assert other[name] == pytest.approx(one[name], rel=1e-9)
