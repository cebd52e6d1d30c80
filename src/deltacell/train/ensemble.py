"""Several runs as one predictor: their scores, each on its own scale first, weighted and summed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import nnls

from deltacell.arrays import Doubles
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.baselines import FittedPredictor
from deltacell.models.baselines.baseline import FitData, Parts, State, loaded, saved
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.profile.record import FIGURES, TENSORBOARD, TRACES
from deltacell.screen import Genotypes
from deltacell.train.changes import resumed_config
from deltacell.train.config import Config, EnsembleConfig
from deltacell.train.predictor import Predictor

if TYPE_CHECKING:
    from deltacell.train.data import TrainingData

MEMBERS = "members"
"""Directory of a run that holds copies of the runs it is made of."""

_NOT_NEEDED = shutil.ignore_patterns("baselines", FIGURES, TRACES, TENSORBOARD)


def on_data_of_members(config: Config) -> Config:
    """Return the config of an ensemble with the data and the split of its first run."""
    assert isinstance(config.model, EnsembleConfig)
    if not config.model.runs:
        return config
    first = resumed_config(Path(config.model.runs[0]))
    return replace(config, data=first.data, split=first.split)


class Ensemble(FittedPredictor):
    r"""The weighted sum of the scores of other runs on the same data and split.

    .. math:: s = b + \sum_i w_i (s_i - m_i) / d_i, \quad w_i \ge 0

    with m and d the mean and the deviation of each run's scores over the validation part, and b
    and w the least-squares fit to what was measured there. Of a run of two parts, s is the score
    given a hit; the log odds of a hit are the mean over the runs that have one. The runs are copied
    into the run directory, so that it does not depend on them.

    Parameters
    ----------
    runs
        Directories of two runs or more.
    """

    def __init__(self, runs: Sequence[str]) -> None:
        if len(runs) < 2:
            raise InputError(
                f"an ensemble of {len(runs)} runs; expected at least 2",
                fix="Give them as model.runs=[runs/a,runs/b].",
            )
        self.runs = tuple(runs)
        self._members: list[Predictor] = []

    def adopt(self, directory: Path, data: TrainingData) -> None:
        """Copy the runs into a run directory and load them from there.

        Parameters
        ----------
        directory
            The run directory of the ensemble.
        data
            What it is fitted on, which has to be what the runs were trained on.
        """
        from deltacell.train.loaded_run import load_run

        for run in self.runs:
            # It refuses a run of other data or of another split.
            member = load_run(run, data=data)
            if not member.is_finished:
                raise InputError("the training of the run has not finished", where=run)
        if (directory / MEMBERS).exists():
            shutil.rmtree(directory / MEMBERS)
        for number, run in enumerate(self.runs):
            copy = directory / MEMBERS / f"{number}-{Path(run).resolve().name}"
            shutil.copytree(run, copy, ignore=_NOT_NEEDED)
        self.open(directory, data)

    def open(self, directory: Path, data: TrainingData) -> None:
        """Load the runs that `adopt` copied.

        Parameters
        ----------
        directory
            The run directory of the ensemble.
        data
            What the runs were trained on.
        """
        from deltacell.train.loaded_run import load_run

        copies = sorted((directory / MEMBERS).iterdir(), key=lambda p: int(p.name.split("-")[0]))
        self._members = [load_run(copy, data=data).predictor for copy in copies]

    def _fit(self, data: FitData) -> None:
        validation = data.validation
        if validation is None:
            raise InputError(
                "an ensemble is weighted by the validation part, and there is none",
                fix="Set split.validation above 0.",
            )
        data.report("members", 0, len(self._members))
        scores = self._of_members(validation.sets)[0]
        self._means, deviations = scores.mean(axis=1), scores.std(axis=1)
        # A run that says the same of all sets has no scale, and no weight.
        self._deviations = np.where(deviations > 0, deviations, np.inf)
        self._intercept = validation.mean
        units = (scores - self._means[:, None]) / self._deviations[:, None]
        self._weights, _ = nnls(units.T, validation.targets - self._intercept)

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        return self._parts(cell, sets).score

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        scores, odds = self._of_members(sets)
        units = (scores - self._means[:, None]) / self._deviations[:, None]
        size: Doubles = self._intercept + self._weights @ units
        if odds is None:
            return Parts(size)
        hit = 1 / (1 + np.exp(-odds))
        return Parts(hit * size, hit, size)

    def _of_members(self, sets: GeneSets) -> tuple[Doubles, Doubles | None]:
        """Return the score of each run, [runs, sets], and the log odds of a hit, [sets]."""
        gene = GeneOrder(self._members[0].cell.genes).gene
        genotypes = Genotypes(torch.from_numpy(gene[sets.genes]), torch.from_numpy(sets.offsets))
        scores, odds = [], []
        for member in self._members:
            found = member.predict(genotypes)
            scores.append(found.score if found.given_hit is None else found.given_hit)
            if found.hit is not None:
                odds.append(torch.logit(found.hit.double(), eps=1e-9).numpy())
        mean: Doubles | None = np.mean(odds, axis=0) if odds else None
        return torch.stack(scores).double().numpy(), mean

    def evidence(self, cell: Cell, genotype: Sequence[int]) -> list[dict[str, Any]]:
        """Return the measured sets next to a set of genes, by the first run that names some.

        Parameters
        ----------
        cell
            The wild type.
        genotype
            Genes of the cell, two or more.
        """
        for member in self._members:
            evidence = getattr(member.model, "evidence", None)
            if evidence is not None:
                found: list[dict[str, Any]] = evidence(cell, genotype)
                return found
        return []

    def _state(self) -> State:
        return {
            "weights": saved(self._weights),
            "means": saved(self._means),
            "deviations": saved(self._deviations),
            "intercept": self._intercept,
        }

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._weights, self._means, self._deviations = (
            loaded(state[name]) for name in ("weights", "means", "deviations")
        )
        self._intercept = float(state["intercept"])
