"""Small trainings that are really run and recorded, each with one thing that makes it slow.

Run as a program it records some of them: ``python programs.py FOLDER NAME...``.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

STEPS = 8


class Rows(Dataset[torch.Tensor]):
    """Rows that take some time to load."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds
        self.row = torch.ones(256)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return self.row


class Model(nn.Module):
    """Layers that can be recomputed in the backward."""

    def __init__(self, *, recompute: bool, small: int) -> None:
        super().__init__()
        self.small = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(small)])
        self.recompute = recompute
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(12)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
            x = torch.relu(x)
        return x + torch.cat([*self.small]).sum() if len(self.small) else x


def record(
    path: Path,
    *,
    batch: int = 64,
    load_s: float = 0.0,
    workers: int = 0,
    foreach: bool = True,
    items: int = 0,
    small: int = 0,
    recompute: bool = False,
    prepare: int = 0,
    save: int = 0,
    stacks: bool = False,
) -> Path:
    """Train for some steps and write their trace."""
    torch.manual_seed(0)
    model = Model(recompute=recompute, small=small)
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
    rows = Rows(batch * (STEPS + 3), load_s)
    loader: Any = DataLoader(rows, batch_size=batch, num_workers=workers, collate_fn=torch.stack)
    kept = np.random.default_rng(0).random(prepare)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS, repeat=1),
        record_shapes=True,
        with_stack=stacks,
    ) as profiler:
        for x in loader:
            if prepare:
                np.sort(kept)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for _ in range(items):
                loss.item()
            for _ in range(save):
                torch.save(model.state_dict(), io.BytesIO())
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


PROGRAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "slow loader": {"load_s": 4e-4},
    "slow loader with a worker": {"load_s": 4e-4, "workers": 1},
    "many parameters": {"small": 300},
    "no foreach": {"small": 300, "foreach": False},
    "items": {"items": 4000},
    "larger batch": {"batch": 1024},
    "checkpointing": {"recompute": True},
    "numpy": {"prepare": 500_000},
    "save": {"save": 8, "stacks": True},
    "with stacks": {"stacks": True},
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, *names = sys.argv[1:]
    for number, name in enumerate(names):
        record(Path(folder) / f"{number} {name}.json", **PROGRAMS[name])
