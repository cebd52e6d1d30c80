"""Under several processes the gradients are those of one process with the whole batch."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing, nn

from deltacell.models import PointDistributionContrast, Prediction
from deltacell.models.losses.gather import gather_rows

pytestmark = pytest.mark.slow

STEPS, BATCH, WIDTH = 6, 7, 4
EPOCH = 300


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vector = nn.Linear(3, WIDTH)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> Prediction:
        z = torch.tanh(self.vector(x))
        return Prediction(self.score(z).squeeze(-1), {"z": z})


def _data(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(step)
    x, y = rng.normal(size=(BATCH, 3)), rng.normal(size=BATCH)
    weights = rng.random(BATCH)
    return tuple(torch.from_numpy(a) for a in (x, y, weights / weights.sum()))  # type: ignore[return-value]


def _slice(step: int, rank: int, world_size: int) -> slice:
    # In some steps one rank has nothing at all.
    if step % 3 == 2:
        return slice(0, BATCH if rank == 0 else 0)
    return slice(BATCH * rank // world_size, BATCH * (rank + 1) // world_size)


def _gradients(rank: int, world_size: int, gather_interval: int) -> list[torch.Tensor]:
    """Return the gradients after each step, summed over the ranks, and the buffer at the end."""
    model = _Tiny().double()
    loss = PointDistributionContrast(
        1.0, 0.5, 0.3, width=WIDTH, buffer=16, gather_interval=gather_interval
    ).double()
    found = []
    for step in range(STEPS):
        x, y, weights = _data(step)
        mine = _slice(step, rank, world_size)
        model.zero_grad()
        loss(model(x[mine]), y[mine], weights[mine], epoch=EPOCH).total.backward()
        for parameter in model.parameters():
            gradient = parameter.grad.clone()
            if world_size > 1:
                distributed.all_reduce(gradient)
            found.append(gradient)
    # Every rank must hold the same buffer, or their losses would not be those of one batch.
    return [*found, *loss.buffer.latest(99).values()]


def _rank(rank: int, world_size: int, folder: str, gather_interval: int) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size
    )
    try:
        torch.save(_gradients(rank, world_size, gather_interval), f"{folder}/{rank}.pt")
        rows = torch.full((rank + 1, 2), float(rank))
        numbers, vectors = gather_rows(torch.arange(rank + 1), rows)
        torch.save((numbers, vectors), f"{folder}/rows-{rank}.pt")
    finally:
        distributed.destroy_process_group()


def _spawned(
    world_size: int, gather_interval: int
) -> tuple[list[torch.Tensor], tuple[torch.Tensor]]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank, (world_size, folder, gather_interval), nprocs=world_size)
        per_rank = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world_size)]
        for other in per_rank[1:]:
            torch.testing.assert_close(other, per_rank[0])
        return per_rank[0], torch.load(Path(folder) / "rows-0.pt")


def test_gathering_every_step_is_one_process_with_the_whole_batch() -> None:
    alone = _gradients(0, 1, 1)
    together, (numbers, vectors) = _spawned(2, 1)
    assert len(together) == len(alone) == STEPS * 4 + 3
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    assert numbers.tolist() == [0, 0, 1]
    assert vectors.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]


def test_gathering_now_and_then_is_exact_when_it_happens() -> None:
    alone = _gradients(0, 1, 1)
    together, _ = _spawned(2, 3)
    of_step = [together[4 * step : 4 * step + 4] for step in range(STEPS)]
    torch.testing.assert_close(of_step[0], alone[:4], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(of_step[1][0], alone[4])


def test_never_gathering_is_not_even_the_first_time() -> None:
    alone = _gradients(0, 1, 1)
    together, _ = _spawned(2, 0)
    assert not torch.allclose(together[0], alone[0])
