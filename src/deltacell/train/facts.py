"""What a run records of itself when it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from deltacell.profile.record import CellFacts, Reached, Samples, ScreenFacts, Target
from deltacell.train.build import propagation_record
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.data import TrainingData

if TYPE_CHECKING:
    import lightning

    from deltacell.train.task import Task

METRIC = "validation_pearson"
"""What the best checkpoint is chosen by."""


def facts(
    fabric: lightning.Fabric, config: Config, data: TrainingData, task: Task
) -> dict[str, Any]:
    """Return the fields of the record that are known before the first step.

    Parameters
    ----------
    fabric, config, data, task
        Of the run.
    """
    from deltacell.train.assemble import steps_per_epoch

    model = task.model
    propagation = propagation_record(model)
    return {
        **data_facts(data),
        "device": str(fabric.device),
        "threads": torch.get_num_threads() if fabric.device.type == "cpu" else None,
        "precision": config.trainer.precision,
        "batch_size": config.data.batch_size,
        "accumulate": config.optimizer.accumulate,
        "steps_per_epoch": steps_per_epoch(config, data),
        "epochs": config.trainer.epochs,
        "propagation": propagation,
        "n_parameters": sum(weight.numel() for weight in model.parameters()),
        "target": Target(mean=data.standard.mean, std=data.standard.std),
    }


def data_facts(data: TrainingData) -> dict[str, Any]:
    """Return the fields of the record that say what was trained on."""
    split = data.split
    studies = data.screen.rows["study"].unique().cast("string").to_pylist()
    return {
        "cell": CellFacts(
            checksum=data.cell.checksum,
            n_genes=data.cell.n_genes,
            relations=tuple(data.cell.relations),
        ),
        "screen": ScreenFacts(
            checksum=data.screen.checksum,
            genotypes=len(data.screen),
            studies=tuple(sorted(studies)),
        ),
        "split": split.to_json() | {"leakage": split.leakage(data.screen).sentence},
        "samples": Samples(
            train=len(split.train), validation=len(split.validation), test=len(split.test)
        ),
    }


def reached(checkpoints: Checkpoints) -> dict[str, Reached | None]:
    """Return the best and the last checkpoint as the record has them."""
    best, last = checkpoints.best, checkpoints.last
    return {
        "best": None if best is None else best.reached(METRIC),
        "last": None if last is None else last.reached(METRIC),
    }
