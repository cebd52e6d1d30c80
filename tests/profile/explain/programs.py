"""Small trainings that are really run and recorded, each with one thing that makes it slow.

Run as a program it records groups of them: ``python programs.py FOLDER TURNS NAME,NAME...``. Those
of a group take turns, a few steps each, so that whatever else the machine does slows all of them
alike. A turn waits for a line of the input, and a line of the output says that it is over.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

STEPS = 4  # of a turn; the first of them does not count, because the profiler starts in it


class Rows(Dataset[torch.Tensor]):
    """Rows that take some time to load."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.row = torch.ones(128)

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, row: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return self.row


class Layer(nn.Linear):
    """A layer whose forward takes longer than its backward."""

    def __init__(self, tries: int) -> None:
        super().__init__(128, 128)
        self.tries = tries

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(self.tries):
                super().forward(x)
        return torch.relu(super().forward(x))


class Model(nn.Module):
    """Layers that can be recomputed in the backward."""

    def __init__(self, *, tries: int, recompute: bool, small: int) -> None:
        super().__init__()
        self.small = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(small)])
        self.recompute = recompute
        self.layers = nn.ModuleList([Layer(tries) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x + torch.cat([*self.small]).sum() if len(self.small) else x


def train(
    *,
    batch: int = 32,
    tries: int = 0,
    load_s: float = 0.0,
    workers: int = 0,
    foreach: bool = True,
    items: int = 0,
    small: int = 0,
    recompute: bool = False,
    prepare: int = 0,
    save: int = 0,
) -> Iterator[None]:
    """Train, a step at a time."""
    torch.manual_seed(0)
    model = Model(tries=tries, recompute=recompute, small=small)
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
    # A worker that reads far ahead would have the batches of a whole turn ready.
    ahead = {"num_workers": workers, "prefetch_factor": 1} if workers else {}
    loader: Any = DataLoader(Rows(load_s), batch_size=batch, collate_fn=torch.stack, **ahead)
    kept = np.random.default_rng(0).random(prepare)
    for x in loader:
        if prepare:
            np.sort(kept)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(items):
            loss.item()
        if save:
            torch.save(torch.zeros(save), io.BytesIO())
        yield


def record(folder: Path, turns: int, *, stacks: bool = False, **program: Any) -> Iterator[None]:
    """Record a program, a turn at a time, each in a file of its own."""
    folder.mkdir(parents=True)
    training = train(**program)
    next(training)
    for turn in range(turns):
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
            record_shapes=True,
            with_stack=stacks,
        ) as profiler:
            for _ in range(1 + STEPS):
                next(training)
                profiler.step()
        profiler.export_chrome_trace(str(folder / f"{turn}.json"))
        yield


# What makes a program slow takes several times as long as the rest of its step.
PROGRAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "slow loader": {"load_s": 1e-3},
    "slow loader with a worker": {"load_s": 1e-3, "workers": 1},
    "many parameters": {"small": 100},
    "no foreach": {"small": 100, "foreach": False},
    "items": {"items": 3000},
    "larger batch": {"batch": 4096},
    "slow forward": {"tries": 20, "batch": 256},
    "checkpointing": {"tries": 20, "batch": 256, "recompute": True},
    "numpy": {"prepare": 800_000},
    "save": {"save": 10_000_000, "stacks": True},
    "with stacks": {"stacks": True},
}


def main(folder: Path, turns: int, *groups: str) -> None:
    torch.set_num_threads(1)
    for group in groups:
        names = group.split(",")
        places = [folder / group / f"{place} {name}" for place, name in enumerate(names)]
        recorded = [
            record(path, turns, **PROGRAMS[name]) for path, name in zip(places, names, strict=True)
        ]
        for turn in range(turns):
            sys.stdin.readline()
            # Forwards and backwards, so that a load that grows is shared too.
            for one in recorded[:: -1 if turn % 2 else 1]:
                next(one)
            sys.stdout.write("\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
