"""Runs as one scorer of gene sets: the mean of their scores on one scale, and how they differ."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import nn

from deltacell.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models import Dango, HeteroCell
from deltacell.predict.dango_bounds import PairSum, Rough
from deltacell.predict.dango_scorer import DangoScorer
from deltacell.predict.gene_sets import Block, Scored
from deltacell.predict.status import phenotypes_of
from deltacell.propagate import Delta
from deltacell.propagate.workers import in_any_worker, one_core, workers_for
from deltacell.screen import Genotypes
from deltacell.train.data import Standard
from deltacell.train.loaded_run import LoadedRun, are_alike
from deltacell.train.predictor import Predictor

FEW = 64  # sets scored in double precision at once; of more, single precision leaves few
MANY = 2048  # sets of a block from which on it pays to look at attention before they are scored
SCALED_BY = 4096  # genotypes of the validation part by which predictors are brought to one scale
MUTANTS_AT_ONCE = 64  # propagated together on a device other than the CPU


class Scorer(Protocol):
    """Scores gene sets; the score of a set does not depend on what is scored with it."""

    @property
    def prunes(self) -> bool:
        """Whether `candidates` need not score every set, so that good bounds save work."""

    def score(self, sets: Ints) -> Scored:
        """Return the scores of sets of one size, [m, size], in their order."""

    def candidates(self, block: Block, above: float, below: float) -> Scored:
        """Return the sets of a block that score ``above`` or more, or ``below`` or less.

        All of them, with the numbers that `score` gives, in the order of the block, and those
        whose score is NaN. The bounds are inf and -inf where an end is not wanted.
        """


class RunScorer(Protocol):
    """The scores of one run."""

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes."""


class Ensemble:
    """The mean of runs' scores in double precision, rounded once."""

    def __init__(self, members: Sequence[RunScorer]) -> None:
        self._members = members
        self._dangos = [one for one in members if isinstance(one, DangoScorer)]
        self.prunes = len(self._dangos) == len(members)

    def score(self, sets: Ints) -> Scored:
        """Return the scores of sets of one size, [m, size], in their order."""
        each = self.score_each(sets)
        mean = each.mean(axis=0)
        spread = np.full(len(sets), np.nan) if len(each) == 1 else each.std(axis=0, ddof=1)
        return Scored(sets, mean.astype(np.float32), spread.astype(np.float32))

    def score_each(self, sets: Ints) -> Doubles:
        """Return the scores of sets of one size by each run, [runs, m]."""
        ascending = np.sort(sets, axis=1)
        return np.stack([member.scores(ascending) for member in self._members])

    def candidates(self, block: Block, above: float, below: float) -> Scored:
        """Return the sets of a block that score ``above`` or more, or ``below`` or less."""
        found = self.score(self._near(block, above, below))
        # NaN is passed on too: the caller has to know.
        return found.take(~((found.score < above) & (found.score > below)))

    def _near(self, block: Block, above: float, below: float) -> Ints:
        """Return the sets of a block that may be candidates, by cheap bounds first."""
        if not self.prunes or block.size < 2 or not len(block):
            return block.sets()
        sums = PairSum.mean([one.pair_sum(block) for one in self._dangos])
        places = sums.near(block.shared, above, below)
        if len(places) > MANY and self._attention_pays(sums, block, above, below):
            found = [one.with_attention(block) for one in self._dangos]
            near = Rough.mean([one for one in found if one is not None]).near(above, below)
            places = places[near[tuple(places.t())]]
        at = places.cpu().numpy()
        sets = np.stack([axis[at[:, i]] for i, axis in enumerate(block.axes)], axis=1)
        if len(sets) > FEW and block.size == 3:
            single = Rough.mean([one.single(block, sets) for one in self._dangos])
            sets = sets[single.near(above, below).cpu().numpy()]
        return sets

    def _attention_pays(self, sums: PairSum, block: Block, above: float, below: float) -> bool:
        """Return whether the attention of one layer would leave few of a block's sets."""
        within = 0.0
        for member in self._dangos:
            mine = member.attention_within(block)
            if mine is None:
                return False
            within += mine / len(self._dangos)
        nearer = PairSum(sums.tables, within)
        return 2 * len(nearer.near(block.shared, above, below)) < len(block)


class HeteroScorer:
    """Scores of a HeteroCell, each the same whatever is scored with it.

    On a CPU every mutant is propagated alone, by `Delta`, on one core: it takes no longer than in
    a batch, and rounding has no company to depend on. Elsewhere they are propagated in batches in
    double precision, and rounding the score once removes the difference.
    """

    def __init__(self, model: HeteroCell, cell: Cell, standard: Standard) -> None:
        self._device = model.encoder.embedding.device
        self._alone = self._device.type == "cpu"
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        if self._alone:
            # Not what this machine measures as fastest: the numbers must not depend on the day.
            self._model.propagation = Delta(tile=1)
        else:
            self._model.double()
        if self._model.local_head is not None:
            self._model.local_head.largest = None
        self._cell, self._standard = cell, standard
        self._encoded = self._model.encode(cell)

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes."""
        step = 1 if self._alone else MUTANTS_AT_ONCE
        parts = [sets[begin : begin + step] for begin in range(0, len(sets), step)]
        with one_core(2 if self._alone else 1):
            found = in_any_worker(self._scores, parts, workers_for(self._device, len(parts)))
        return np.concatenate(found) if found else np.empty(0)

    def _scores(self, sets: Ints) -> Doubles:
        found = self._model.score(self._cell, self._encoded, genotypes_of(sets)).score
        scores: Doubles = self._standard.undo(found.double()).cpu().numpy()
        return scores


class PredictorScorer:
    """The scores of any other predictor, which is called with whole blocks of sets.

    A network is called in double precision, so that once rounded a score does not depend on what
    is scored with it.
    """

    def __init__(self, predictor: Predictor) -> None:
        model = predictor.model
        if isinstance(model, nn.Module):
            model = copy.deepcopy(model).double().eval().requires_grad_(False)
        self._predictor = replace(predictor, model=model)

    def scores(self, sets: Ints) -> Doubles:
        """Return the scores [m] in the unit of the screen, of sets [m, size] of ascending genes."""
        found: Doubles = self._predictor(genotypes_of(sets)).double().cpu().numpy()
        return found


def genotypes_of(sets: Ints) -> Genotypes:
    """Return sets of one size, [m, size], as genotypes."""
    genes = torch.from_numpy(np.ascontiguousarray(sets, dtype=np.int64)).flatten()
    return Genotypes(genes, torch.arange(len(sets) + 1) * sets.shape[1])


def scorer_of(runs: Sequence[LoadedRun], predictors: Sequence[Predictor] | None = None) -> Ensemble:
    """Return the scorer of runs of the same genes and phenotypes; ``predictors`` on one scale."""
    phenotypes = [sorted(phenotypes_of(run.data.screen)) for run in runs]
    for run, mine in zip(runs, phenotypes, strict=True):
        if mine != phenotypes[0]:
            raise InputError(
                f"{run.record.path} was trained on the phenotype {' and '.join(mine)} and "
                f"{runs[0].record.path} on {' and '.join(phenotypes[0])}, so their scores have no "
                "mean",
                code="different-phenotypes",
                fix="Give runs of one phenotype.",
            )
    names = [str(run.record.path) for run in runs]
    return scorer_of_predictors(on_one_scale(runs) if predictors is None else predictors, names)


def scorer_of_predictors(
    predictors: Sequence[Predictor], names: Sequence[str] | None = None
) -> Ensemble:
    """Return the scorer of predictors of the same genes; ``names`` are for errors."""
    first = predictors[0].cell.genes.systematic
    for i, predictor in enumerate(predictors):
        genes = predictor.cell.genes.systematic
        if genes != first:
            raise InputError(
                f"{names[i] if names else f'run {i + 1}'} has {len(genes):,} genes and "
                f"{names[0] if names else 'run 1'} has {len(first):,}; "
                f"{len(set(first) ^ set(genes)):,} differ, or their order",
                code="different-genes",
                fix="Give runs that were trained on the same cell and screen.",
            )
    return Ensemble([_scorer_of_one(predictor) for predictor in predictors])


def _scorer_of_one(predictor: Predictor) -> RunScorer:
    model = predictor.model
    if isinstance(model, Dango):
        return DangoScorer(model, predictor.cell, predictor.standard)
    if isinstance(model, HeteroCell):
        return HeteroScorer(model, predictor.cell, predictor.standard)
    return PredictorScorer(predictor)


def on_one_scale(runs: Sequence[LoadedRun]) -> list[Predictor]:
    r"""Return the predictors of runs on one scale, so that none outweighs the others in a mean.

    Each predictor's scores are brought to the mean 0 and the deviation 1 over the validation part,
    and then all to the mean of their deviations and of their means:
    :math:`\bar d (s - m_i) / d_i + \bar m`. Runs that differ in their seeds alone are left as they
    are. A predictor that gives all genotypes one score has no scale, and adds only the mean.
    """
    predictors = [run.predictor for run in runs]
    if are_alike(runs):
        return predictors
    means, deviations = np.array([_scale(run) for run in runs]).T
    telling = deviations > 0
    common = deviations[telling].mean() if telling.any() else 1.0
    factors = np.where(telling, common / np.where(telling, deviations, 1), 0)
    shifts = means.mean() - factors * means
    return [
        one.rescaled(float(factor), float(shift))
        for one, factor, shift in zip(predictors, factors, shifts, strict=True)
    ]


def _scale(run: LoadedRun) -> tuple[float, float]:
    """Return the mean and the deviation of a run's scores over its validation part."""
    split = run.data.split
    rows = split.validation if len(split.validation) else split.train
    if len(rows) > SCALED_BY:
        drawn = np.random.default_rng(split.seed).permutation(len(rows))[:SCALED_BY]
        rows = rows[np.sort(drawn)]
    score = run.predictor(run.data.part(rows)[0]).double()
    return float(score.mean()), float(score.std(correction=0))
