"""The ensemble of runs, a predictor that is fitted like a baseline."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import nnls
from scipy.special import expit

from deltacell.base.arrays import Doubles
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.fitted.predictor import FitData, FittedPredictor, Parts, State
from deltacell.models.interface import Vote
from deltacell.profile.record import FIGURES, TENSORBOARD, TRACES
from deltacell.profile.refitted import ChosenByValidation
from deltacell.screen import Genotypes
from deltacell.train.data import TrainingData
from deltacell.train.loaded_runs import load_run
from deltacell.train.predictor import TrainedPredictor

MEMBERS = "members"  # the directory of copied runs in the run of an ensemble


class Ensemble(FittedPredictor):
    r"""The weighted sum of the scores of other runs on the same data and split.

    .. math:: s = b + \sum_i w_i (s_i - m_i) / d_i, \quad w_i \ge 0

    with m and d the mean and standard deviation of each run's scores over the validation part, and
    b and w the least-squares fit to the scores measured there. For a two-part run, s is the score
    given a hit; the log odds of a hit are the mean over the two-part runs. The run directory has
    copies of the runs.
    """

    def __init__(self, runs: Sequence[str]) -> None:
        if len(runs) < 2:
            what = "an ensemble needs at least two runs: model.runs=[runs/a,runs/b]"
            raise InputError(what, code="too-few-runs")
        self.runs = tuple(runs)
        self._members: list[TrainedPredictor] = []

    def keep_files(self, directory: Path, data: object) -> None:
        """Copy the runs, which must have the same data, into a run directory and load them."""
        shutil.rmtree(directory / MEMBERS, ignore_errors=True)
        not_needed = shutil.ignore_patterns("baselines", FIGURES, TRACES, TENSORBOARD)
        for number, run in enumerate(self.runs):
            copy = directory / MEMBERS / f"{number}-{Path(run).resolve().name}"
            shutil.copytree(run, copy, ignore=not_needed)
        self.open_files(directory, data)

    def open_files(self, directory: Path, data: object) -> None:
        """Load the copied runs, which must be finished."""
        assert isinstance(data, TrainingData)
        copies = sorted((directory / MEMBERS).iterdir(), key=lambda p: int(p.name.split("-")[0]))
        # Raises for a run of other data or another split.
        runs = [load_run(copy, data=data) for copy in copies]
        for run in runs:
            if not run.is_finished:
                what = "the run has not finished"
                raise InputError(what, code="unfinished-run", where=run.record.path)
        self._members = [run.predictor for run in runs]

    def _fit(self, data: FitData) -> State:
        validation = data.validation
        if validation is None:
            what = "an ensemble needs a validation part for its weights"
            raise InputError(what, code="empty-part", fix="Set split.validation above 0.")
        data.report("members", 0, len(self._members))
        scores = self._of_members(validation.sets)[0]
        means = scores.mean(axis=1)
        deviations = scores.std(axis=1)
        # A run with constant scores gets no weight.
        deviations = np.where(deviations > 0, deviations, np.inf)
        units = (scores - means[:, None]) / deviations[:, None]
        weights, _ = nnls(units.T, validation.targets - validation.mean)
        scale = {"means": means, "deviations": deviations}
        return {"weights": weights, "intercept": validation.mean, **scale}

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        scores, odds = self._of_members(sets)
        units = (scores - self._means[:, None]) / self._deviations[:, None]
        size: Doubles = self._intercept + self._weights @ units
        return Parts(size) if odds is None else Parts(expit(odds) * size, expit(odds), size)

    def chosen(self) -> ChosenByValidation:
        """Raise, because the weights are for runs that were fitted on the training part."""
        what = "an ensemble cannot be fitted on all measurements"
        fix = "Refit each of its runs, and rank with these together: deltacell predict RUN RUN ..."
        raise InputError(what, code="cannot-refit", fix=fix)

    def _of_members(self, sets: GeneSets) -> tuple[Doubles, Doubles | None]:
        """Return the score of each run, [runs, sets], and the log odds of a hit, [sets]."""
        gene = GeneOrder(self._members[0].cell.genes).gene
        genotypes = Genotypes(torch.from_numpy(gene[sets.genes]), torch.from_numpy(sets.offsets))
        scores = []
        odds = []
        for member in self._members:
            prediction = member.predict(genotypes)
            scores.append(prediction.among_hits)
            if prediction.hit is not None:
                odds.append(torch.logit(prediction.hit.double(), eps=1e-9).numpy())
        return torch.stack(scores).double().numpy(), np.mean(odds, axis=0) if odds else None

    def evidence(self, cell: Cell, genes: Sequence[int]) -> list[Vote]:
        """Return the measured sets next to a set of genes, from the first run that has evidence."""
        for member in self._members:
            if votes := member.model.evidence(cell, genes):
                return votes
        return []

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._weights = state["weights"]
        self._means = state["means"]
        self._deviations = state["deviations"]
        self._intercept = state["intercept"]
