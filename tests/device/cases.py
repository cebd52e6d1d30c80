"""Training steps on the pretend device, in a process of their own: ``python cases.py [NAME...]``.

Prints a line of JSON for each case: the differences from the CPU, and what a step did. With
``--yeast`` first, the cases are steps of 32 triples at the sizes of the yeast cell, in single
precision and without a comparison: what `auto` is chosen by.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from pretend import GPU, LOG, OnPretendDevice
from torch import nn

from deltacell.cell import Cell
from deltacell.models.dango.config import STRING_RELATIONS
from deltacell.models.dango.model import Dango
from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.models.interface import LabelledSets, TargetScale
from deltacell.models.losses import DangoLoss, LogCosh, PointDistributionContrast
from deltacell.models.pair_cell.model import PairCell
from deltacell.propagate import Delta
from deltacell.screen import Batch, Genotypes, Loader, Screen
from deltacell.train.predictor import TrainedPredictor
from deltacell.train.task import Task

N_GENOTYPES = 8
HIDDEN = 8


@dataclass
class Case:
    """A model and a loss; `fault` changes the model, to see that the device finds it."""

    model: Callable[..., nn.Module]
    loss: Callable[[], Any] = LogCosh
    options: dict[str, Any] = field(default_factory=dict)
    fault: Callable[[nn.Module], None] | None = None


def contrast() -> PointDistributionContrast:
    """Return all three terms, with a buffer."""
    return PointDistributionContrast(lambda_c=0.1, width=HIDDEN, buffer=16)


def hetero(**options: Any) -> Case:
    """Return a HeteroCell with every term of its loss."""
    return Case(HeteroCell, contrast, {"hidden": HIDDEN, "layers": 2, "local_heads": 2, **options})


LATE = {"mutant_layers": 1}
CASES: dict[str, Case] = {
    "dango": Case(Dango, DangoLoss, {"hidden": HIDDEN}),
    "pair_cell": Case(PairCell, LogCosh, {"hidden": HIDDEN}),
    "shared": hetero(propagation="shared"),
    "delta": hetero(propagation="delta"),
    "delta, sparse": hetero(propagation=Delta(gather_cost=0.0, entry_cost=0.0)),
    "delta, bounded": hetero(propagation=Delta(max_bytes=2**28)),
    "late": hetero(propagation="late", **LATE),
    "late, epistasis": hetero(propagation="late", epistasis=True, **LATE),
    "auto": hetero(),
    "auto, late": hetero(**LATE),
    "matched": hetero(propagation="shared", mutants="matched"),
    "none": Case(HeteroCell, LogCosh, {"hidden": HIDDEN, "mutants": "none", "local_heads": 2}),
    "metabolism": hetero(propagation="shared", metabolism=True, aggregation="mean"),
    "metabolism, delta": hetero(propagation="delta", metabolism=True, epistasis=True),
    "pairwise": hetero(propagation="shared", combine="pairwise", output="gate"),
    "attention": hetero(propagation="late", combine="attention", residual=True, **LATE),
    "edge_mask": hetero(propagation="edge_mask"),
    "subgraph": hetero(propagation="subgraph"),
    "device_mask": hetero(propagation="device_mask"),
}


def _item_per_sample(model: nn.Module) -> None:
    score = model.score

    def slow(*args: Any) -> Any:
        prediction = score(*args)
        sum(value.item() for value in prediction.score)
        return prediction

    model.score = slow  # type: ignore[assignment]


def _host_copy(model: nn.Module) -> None:
    encode = model.encode

    def slow(cell: Cell) -> Any:
        encoded = encode(cell)
        encoded.wild_type.last["gene"].detach().cpu()
        return encoded

    model.encode = slow  # type: ignore[assignment]


def _double_forward(model: nn.Module) -> None:
    encode = model.encode

    def slow(cell: Cell) -> Any:
        encode(cell)
        return encode(cell)

    model.encode = slow  # type: ignore[assignment]


def _unpinned_gather(model: nn.Module) -> None:
    encode = model.encode

    def slow(cell: Cell) -> Any:
        encoded = encode(cell)
        torch.arange(cell.n_genes).to(GPU)
        return encoded

    model.encode = slow  # type: ignore[assignment]


def _mask_per_step(model: nn.Module) -> None:
    encode = model.encode

    def slow(cell: Cell) -> Any:
        encoded = encode(cell)
        genes = encoded.wild_type.last["gene"].detach()
        genes[genes[:, 0] > 0].sum()
        return encoded

    model.encode = slow  # type: ignore[assignment]


def _needless_gather(model: nn.Module) -> None:
    encode = model.encode

    def slow(cell: Cell) -> Any:
        encoded = encode(cell)
        genes = encoded.wild_type.last["gene"].detach()
        rows = torch.zeros(100 * len(genes), dtype=torch.int64, device=genes.device)
        genes.index_select(0, rows)
        return encoded

    model.encode = slow  # type: ignore[assignment]


FAULTS = {
    "mask per step": _mask_per_step,
    "needless gather": _needless_gather,
    "item per sample": _item_per_sample,
    "host copy": _host_copy,
    "double forward": _double_forward,
    "pageable copy": _unpinned_gather,
}
for _name, _fault in FAULTS.items():
    CASES[f"fault: {_name}"] = hetero(propagation="shared")
    CASES[f"fault: {_name}"].fault = _fault


def batches(cell: Cell) -> tuple[Batch, LabelledSets]:
    """Return a batch and the training part that it is from."""
    sets = [[i, i + 1, (7 * i) % 50 + 60] for i in range(N_GENOTYPES - 2)] + [[3, 9], [5, 8]]
    genotypes = Genotypes.of([sorted(s) for s in sets])
    targets = torch.linspace(-1, 1, N_GENOTYPES)
    weights = torch.full((N_GENOTYPES,), 1 / N_GENOTYPES)
    batch = Batch(genotypes, targets, weights, torch.arange(N_GENOTYPES))
    return batch, LabelledSets(genotypes, targets)


def build(case: Case, cell: Cell) -> Task:
    """Return the task of a case on the CPU."""
    torch.manual_seed(0)
    options = dict(case.options)
    if case.model is Dango:
        options["relations"] = [name for name in STRING_RELATIONS if name in cell.relations]
    options["largest"] = 3
    if case.model is PairCell:
        del options["largest"]
        options |= {"drop_genes": 0.0, "dropout": 0.0}
    model: Any = case.model(cell, **options)
    model.begin(cell, batches(cell)[1])
    # In double precision, where the results of a device differ from the CPU's by rounding only.
    return Task(model, case.loss(), cell, TargetScale()).double()


def step(task: Task, batch: Batch, device: torch.device, optimizer: torch.optim.Optimizer) -> float:
    """Run a whole training step and return its loss on the host."""
    prepared = task.prepare(batch).to(device)
    loss = task(prepared)["loss"]
    loss.backward()
    nn.utils.clip_grad_norm_(task.parameters(), 10.0, foreach=True)
    optimizer.step()
    LOG_OF_STEP.update(read_log())
    return float(loss.detach())


LOG_OF_STEP: dict[str, Any] = {}


def read_log() -> dict[str, Any]:
    """Return what the log has counted so far."""
    return {
        "waits": LOG.of_kind("wait"),
        "pageable": LOG.of_kind("pageable"),
        "copies": sum(LOG.of_kind("copy").values()),
        "launches": LOG.launches,
        "mb": LOG.n_bytes / 1e6,
    }


def run(name: str, cell: Cell) -> dict[str, Any]:
    """Return the differences of a case from the CPU, and what its second step does."""
    case = CASES[name]
    batch, _ = batches(cell)
    reference = build(case, cell)
    task = copy.deepcopy(reference)
    losses = []
    for one, device in ((reference, torch.device("cpu")), (task, GPU)):
        one.to(device)
        if case.fault is not None and device is GPU:
            case.fault(one.model)
        optimizer = torch.optim.AdamW(one.parameters(), lr=1e-3, foreach=True)
        of_device = []
        for _ in range(2):
            optimizer.zero_grad()
            LOG.clear()
            of_device.append(step(one, batch, device, optimizer))
        losses.append(of_device)
    gradients = zip(reference.parameters(), task.parameters(), strict=True)
    pairs = [(a.grad, b.grad.inner) for a, b in gradients if a.grad is not None]
    differences = [float((a - b).norm() / a.norm().clamp(min=1e-6)) for a, b in pairs]
    found = {
        "case": name,
        "loss": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "gradients": max(differences),
        "n_gradients": len(differences),
        **LOG_OF_STEP,
    }
    facts = task.model.facts().get("propagation")
    return {**found, "propagation": facts and (facts["choice"] or {}).get("choice")}


PREDICTED = ["dango", "pair_cell", "shared", "delta", "late, epistasis", "metabolism", "none"]
SETS = np.array([[0, 1], [2, 9], [5, 61]])


def predict(name: str, cell: Cell) -> dict[str, Any]:
    """Return how far predictions on the device are from the CPU's, after a checkpoint."""
    reference = build(CASES[name], cell).model.eval()
    model = build(CASES[name], cell).to(GPU).model.eval()
    # As a checkpoint holds the weights: they come from one device and go to another.
    model.load_state_dict({k: v.to(GPU) for k, v in reference.state_dict().items()})
    saved = {k: v.cpu() for k, v in model.state_dict().items()}
    reference.load_state_dict(saved)
    genotypes = batches(cell)[0].genotypes
    scale = TargetScale(0.5, 2.0)
    both = [TrainedPredictor(m, cell, scale, batch_size=3) for m in (reference, model)]
    scores = [predictor.predict(genotypes).score for predictor in both]
    exact = [predictor.scorer().scores(SETS) for predictor in both]
    screen = Screen.synthetic(cell, n=40)
    tasks = [Task(m, LogCosh(), cell, TargetScale()) for m in (reference, model)]
    LOG.clear()
    validations = [
        task.validate(Loader(screen, batch_size=16, shuffle=False)).predicted for task in tasks
    ]
    waits = LOG.of_kind("wait")
    result = {
        "case": f"predict: {name}",
        "scores": float((scores[0] - scores[1]).abs().max()),
        "scorer": float(np.abs(exact[0] - exact[1]).max()),
        "validation": float(np.abs(validations[0] - validations[1]).max()),
        "spread": float(scores[0].std()),
        "waits_of_validation": waits,
        "device": str(scores[1].device),
    }
    gated = [m.gated(cell, [2, 9]) for m in (reference, model)]
    if gated[0] is not None and gated[1] is not None:
        gates = (torch.ones(len(gated[0].relations)), torch.ones(cell.n_genes))
        gradients = [_gradient_of_gates(g, *gates) for g in gated]
        result["gates"] = float((gradients[0] - gradients[1]).abs().max())
    return result


def _gradient_of_gates(gated: Any, relations: torch.Tensor, genes: torch.Tensor) -> torch.Tensor:
    leaf = relations.double().requires_grad_()
    (gradient,) = torch.autograd.grad(gated.score(leaf, genes.double()), leaf)
    return gradient


def work_at_yeast_size(name: str, cell: Cell) -> dict[str, Any]:
    """Return the launches and the bytes of a step of 32 triples."""
    case = CASES[name]
    case.loss = LogCosh
    case.options |= {"hidden": 64, "layers": 3, "local_heads": 8}
    genes = np.random.default_rng(0).permutation(cell.n_genes)[:96].reshape(32, 3)
    genotypes = Genotypes.of(np.sort(genes, axis=1).tolist())
    weights = torch.full((32,), 1 / 32)
    batch = Batch(genotypes, torch.zeros(32), weights, torch.arange(32))
    task = build(case, cell).float().to(GPU)
    LOG.clear()
    task(task.prepare(batch).to(GPU))["loss"].backward()
    return {"case": name, "launches": LOG.launches, "gb": LOG.n_bytes / 1e9}


def main() -> None:
    """Run the named cases, or all."""
    if sys.argv[1:2] == ["--yeast"]:
        yeast = Cell.synthetic("yeast")
        with OnPretendDevice():
            for name in sys.argv[2:]:
                sys.stdout.write(json.dumps(work_at_yeast_size(name, yeast)) + "\n")
                sys.stdout.flush()
        return
    cell = Cell.synthetic("demo")
    with OnPretendDevice():
        for name in sys.argv[1:] or [*CASES, *(f"predict: {name}" for name in PREDICTED)]:
            result: dict[str, Any] = {"case": name}
            kind, _, rest = name.partition(": ")
            try:
                result = predict(rest, cell) if kind == "predict" else run(name, cell)
            except Exception as error:
                result["error"] = f"{type(error).__name__}: {error}"
                if len(sys.argv) > 1:
                    raise
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
