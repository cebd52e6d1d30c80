"""What a ranking says of the runs it was made with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deltacell.arrays import Bools, Ints
from deltacell.profile.record import CHECKPOINTS
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.loaded_run import LoadedRun


def run_facts(run: LoadedRun, label: str, weights: str) -> dict[str, Any]:
    """Return what a run is called, its model and the checkpoint that was loaded, as plain data.

    Parameters
    ----------
    run
        As loaded.
    label
        See `labels_of`.
    weights
        Which checkpoint: as in `load_run`.
    """
    checkpoints = Checkpoints(run.record.path / CHECKPOINTS)
    named = {"best": checkpoints.best or checkpoints.last, "last": checkpoints.last}
    chosen = named.get(weights) or next(c for c in checkpoints.kept if c.file == weights)
    return {
        "name": label,
        "seed": run.record.seed,
        "model": run.config.model.name,
        "finished": run.is_finished,
        "checkpoint": chosen.file,
        "sha256": chosen.sha256,
        "validation_pearson": chosen.metric,
    }


def screen_genes(runs: Sequence[LoadedRun]) -> Ints:
    """Return the genes that some genotype of a run's screen deletes, ascending."""
    genes = [np.unique(run.data.screen.genotypes.genes.numpy()) for run in runs]
    return np.unique(np.concatenate(genes))


def trained_sizes(runs: Sequence[LoadedRun]) -> set[int]:
    """Return how many genes the genotypes have that every run was trained on."""
    each = [set(_training_sizes(run).tolist()) for run in runs]
    return set.intersection(*each)


def trained_genes(runs: Sequence[LoadedRun]) -> Bools:
    """Return which genes of the cell every run had in its training part, [n_genes]."""
    seen: Bools = np.ones(runs[0].data.cell.n_genes, dtype=bool)
    for run in runs:
        mine: Bools = np.zeros(len(seen), dtype=bool)
        in_training = np.zeros(len(run.data.screen), dtype=bool)
        in_training[run.data.split.train] = True
        genotypes = run.data.screen.genotypes
        mine[genotypes.genes.numpy()[in_training[genotypes.owner.numpy()]]] = True
        seen &= mine
    return seen


def _training_sizes(run: LoadedRun) -> Ints:
    sizes: Ints = np.unique(np.diff(run.data.screen.offsets)[run.data.split.train])
    return sizes
