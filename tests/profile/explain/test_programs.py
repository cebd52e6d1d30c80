"""Programs that are really run and recorded: the sentence is right, or says that it is noise.

That a program is not slower than itself is tested with made-up traces, which no load can change.
"""

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from deltacell.profile.explain import explain

pytestmark = pytest.mark.slow
TURNS = 3
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


class Model(nn.Module):
    """Layers whose forward may take longer than their backward, and that may be recomputed in it.

    ``tries`` is how often a forward is run for nothing, ``small`` a number of small parameters.
    """

    def __init__(self, tries: int = 0, recompute: bool = False, small: int = 0) -> None:
        super().__init__()
        self.small = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(small)])
        self.tries, self.recompute = tries, recompute
        self.layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(4)])

    def apart(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(self.tries):
                layer(x)
        return torch.relu(layer(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            given = self.apart, layer, x
            x = checkpoint(*given, use_reentrant=False) if self.recompute else self.apart(layer, x)
        return x + torch.cat([*self.small]).sum() if len(self.small) else x


def train(batch=32, load_s=0.0, workers=0, foreach=True, items=0, prepare=0, save=0, **model):
    """Train, a step at a time."""
    torch.manual_seed(0)
    model = Model(**model)
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
    # A worker that reads far ahead would have the batches of a whole turn ready.
    ahead = {"num_workers": workers, "prefetch_factor": 1} if workers else {}
    loader: Any = DataLoader(Rows(load_s), batch_size=batch, collate_fn=torch.stack, **ahead)
    kept = np.random.default_rng(0).random(prepare)
    saved = torch.ones(save)
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
            torch.save(saved, io.BytesIO())
        yield


def record(folder: Path, *, stacks: bool = False, **program: Any) -> Iterator[None]:
    """Record a program, a turn at a time, each in a file of its own."""
    folder.mkdir()
    training = train(**program)
    next(training)
    for turn in range(TURNS):
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


NOT_THE_PROGRAM = "no difference beyond noise|every part takes about"
CASES = [
    ("plain,slow loader", "data loading"),
    ("plain,slow loader with a worker", "data loading"),
    ("many parameters,no foreach", "optimizer|aten::(add|mul|addcdiv|lerp|sqrt|div)"),
    ("plain,items", "aten::item"),
    ("plain,larger batch", "batch.*32 -> 4096"),
    ("slow forward,checkpointing", "recomputes"),
    ("plain,numpy", "records nothing, between the loader and aten::"),
    ("with stacks,save", "torch.save"),
]


@pytest.mark.parametrize(("programs", "cause"), CASES)
def test_the_cause_planted_in_a_program_is_named(tmp_path: Path, programs: str, cause: str) -> None:
    """The two take turns, a few steps each, so that what else the machine does slows both."""
    folders = [tmp_path / f"{place} {name}" for place, name in enumerate(programs.split(","))]
    recorded = [record(folder, **PROGRAMS[folder.name[2:]]) for folder in folders]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for turn in range(TURNS):
        # Forwards and backwards, so that a load that grows is shared too.
        for one in recorded[:: -1 if turn % 2 else 1]:
            next(one)
    torch.set_num_threads(threads)
    first = re.split(r"\.\s+(?=[A-Z])", explain(*folders).sentence)[0]
    assert re.search(f"{cause}|{NOT_THE_PROGRAM}", first), first
