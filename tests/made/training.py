"""Small training programs that a profiler records in the process of the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from cells import random_cell, random_sets
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

from deltacell.cell import Cell
from deltacell.models import STRING_RELATIONS, Dango, HeteroCell
from deltacell.models.interface import LabelledSets
from deltacell.models.pairs import PairCell
from deltacell.screen import Genotypes

WARMUP_STEPS = 1  # before the profiler, and again within it

# The cell of the programs on genotypes, and the measured sets that PairCell remembers.
N_GENES = 60
N_MEASURED = 200

N_RANKS = 2

Loss = Callable[[], Tensor]
Parameters = list[nn.Parameter]


@dataclass(frozen=True)
class Training:
    """A program: its model, and what it does in a step. All data is drawn with one seed.

    ``tries`` is how often a layer of an MLP is computed for nothing before it counts, and ``work``
    the number of products of matrices that a step computes beside the model.
    """

    model: str = "mlp"
    batch: int = 64
    width: int = 64
    layers: int = 4
    propagation: str = "auto"
    mutant_layers: int | None = None
    accumulate: int = 1
    backwards: int = 1
    validations: int = 0
    tries: int = 0
    work: int = 0
    items: int = 0
    dtype: torch.dtype = torch.float32
    compiled: bool = False
    ranges: bool = False
    foreach: bool = True
    threads: int = 1


@dataclass(frozen=True)
class Recording:
    """How a program is recorded."""

    shapes: bool = True
    stacks: bool = False
    steps: int = 3


def record(
    training: Training,
    recording: Recording,
    file: Path,
    *,
    in_ranks: bool = False,
) -> Path:
    """Run a program and write its trace."""
    threads = torch.get_num_threads()
    torch.set_num_threads(training.threads)
    try:
        step = step_of(training, in_ranks)
        for _ in range(WARMUP_STEPS):
            step()
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=1, active=recording.steps, repeat=1),
            record_shapes=recording.shapes,
            with_stack=recording.stacks,
        ) as profiler:
            for _ in range(1 + recording.steps):
                step()
                profiler.step()
        file.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(file))
    finally:
        torch.set_num_threads(threads)
    return file


def record_ranks(training: Training, recording: Recording, folder: Path) -> Path:
    """Run a program in two processes, which exchange gradients, and write a trace of each."""
    folder.mkdir(parents=True)
    arguments = (training, recording, folder)
    torch.multiprocessing.spawn(_record_rank, args=arguments, nprocs=N_RANKS)
    return folder


def _record_rank(rank: int, training: Training, recording: Recording, folder: Path) -> None:
    meeting = f"file://{folder.parent / folder.name}.meeting"
    distributed.init_process_group("gloo", meeting, rank=rank, world_size=N_RANKS)
    record(training, recording, folder / f"rank{rank}.json", in_ranks=True)
    distributed.destroy_process_group()


def step_of(training: Training, in_ranks: bool = False) -> Callable[[], None]:
    """Return a function that trains a step."""
    torch.manual_seed(0)
    loss, validate, parameters = PROGRAMS[training.model](training, in_ranks)
    optimizer = torch.optim.Adam(parameters, foreach=training.foreach)
    matrix = torch.randn(256, 256)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(training.accumulate):
            value = loss() / training.accumulate
            for place in range(training.backwards):
                value.backward(retain_graph=place + 1 < training.backwards)
            for _ in range(training.items):
                value.item()
        for _ in range(training.work):
            matrix.mm(matrix)
        optimizer.step()
        with torch.no_grad():
            for _ in range(training.validations):
                validate()

    return step


def _mlp(training: Training, in_ranks: bool) -> tuple[Loss, Loss, Parameters]:
    return _dense(_Layers(training), training, in_ranks)


def _transformer(training: Training, in_ranks: bool) -> tuple[Loss, Loss, Parameters]:
    layer = nn.TransformerEncoderLayer(
        training.width,
        nhead=4,
        dim_feedforward=2 * training.width,
        dropout=0.0,
        batch_first=True,
    )
    encoder = nn.TransformerEncoder(layer, training.layers, enable_nested_tensor=False)
    return _dense(encoder, training, in_ranks, (16,))


def _convolutions(training: Training, in_ranks: bool) -> tuple[Loss, Loss, Parameters]:
    layers: list[nn.Module] = [nn.Conv1d(training.width, training.width, 3, padding=1)]
    for _ in range(training.layers):
        layers += [nn.BatchNorm1d(training.width), nn.ReLU()]
        layers.append(nn.Conv1d(training.width, training.width, 3, padding=1))
    return _dense(nn.Sequential(*layers), training, in_ranks, (training.width,))


class _Layers(nn.Module):
    def __init__(self, training: Training) -> None:
        super().__init__()
        widths = [nn.Linear(training.width, training.width) for _ in range(training.layers)]
        self.layers = nn.ModuleList(widths)
        self.tries = training.tries
        self.with_ranges = training.ranges

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.with_ranges:
                with torch.profiler.record_function("mlp.layer"):
                    x = self.apply_layer(layer, x)
            else:
                x = self.apply_layer(layer, x)
        return x

    def apply_layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(self.tries):
                functional.gelu(x)
        return torch.relu(layer(x))


def _dense(
    module: nn.Module,
    training: Training,
    in_ranks: bool,
    inner: tuple[int, ...] = (),
) -> tuple[Loss, Loss, Parameters]:
    module = module.to(training.dtype)
    parameters = [*module.parameters()]
    model = _distributed(module) if in_ranks else module
    if training.compiled:
        model = torch.compile(model)
    x = torch.randn(training.batch, *inner, training.width, dtype=training.dtype)

    def loss() -> Tensor:
        return model(x).square().mean()

    return loss, loss, parameters


@cache
def _cell() -> Cell:
    cell: Cell = random_cell(N_GENES, dict.fromkeys(STRING_RELATIONS, 2 * N_GENES))
    return cell


def _genotypes(n: int) -> Genotypes:
    return Genotypes.of(random_sets(N_GENES, n, sizes=(2, 3)))


def _of_genotypes(training: Training, in_ranks: bool) -> tuple[Loss, Loss, Parameters]:
    cell = _cell()
    model: nn.Module
    if training.model == "dango":
        model = Dango(cell, hidden=training.width)
    elif training.model == "pair_cell":
        model = PairCell(cell, hidden=training.width)
        measured = _genotypes(N_MEASURED)
        model.begin(cell, LabelledSets(measured, torch.randn(N_MEASURED)))
    else:
        model = HeteroCell(
            cell,
            STRING_RELATIONS[:2],
            hidden=training.width,
            layers=training.layers,
            mutant_layers=training.mutant_layers,
            propagation=training.propagation,
        )
    sets = _genotypes(training.batch)
    parameters = [*model.parameters()]
    called = _distributed(model) if in_ranks else model

    def loss() -> Tensor:
        prediction = called(cell, sets)
        value = prediction.score.square().mean()
        reconstruction = prediction.intermediate.get("reconstruction")
        return value if reconstruction is None else value + reconstruction.mean()

    return loss, loss, parameters


def _distributed(module: nn.Module) -> nn.Module:
    # The loss reads the score alone, so the heads of DANGO's reconstruction have no gradient.
    return nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)


PROGRAMS = {
    "mlp": _mlp,
    "transformer": _transformer,
    "convolutions": _convolutions,
    "dango": _of_genotypes,
    "hetero_cell": _of_genotypes,
    "pair_cell": _of_genotypes,
}

MLP = Training()
TRANSFORMER = Training("transformer", batch=16, layers=2)
CONVOLUTIONS = Training("convolutions", batch=16, layers=2)
DANGO = Training("dango", batch=16, width=16)
PAIR_CELL = Training("pair_cell", batch=16, width=16)
HETERO_CELL = Training("hetero_cell", batch=16, width=16, layers=2)
SUBGRAPH = replace(HETERO_CELL, propagation="subgraph")
EDGE_MASK = replace(HETERO_CELL, propagation="edge_mask")
SHARED = replace(HETERO_CELL, propagation="shared")
LATE = replace(HETERO_CELL, propagation="late", mutant_layers=1)
