"""The base class of fitted predictors: check the input, fit, score genotypes, save and load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from deltacell.base.arrays import AnyArray, Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.base.text import Progress
from deltacell.cell import Cell
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.interface import Prediction, Predictor, Study
from deltacell.profile.refitted import ChosenByValidation
from deltacell.propagate.parallel.threads import in_any_worker, one_core, workers_for
from deltacell.screen.genotypes import Genotypes

Values = Tensor | AnyArray | Sequence[float]
State = dict[str, Any]  # arrays, numbers, text, and lists and dicts of these
Report = Callable[..., None]  # report(what, done, total, **validation_metrics)
# `with phase("trees"):` counts the time within towards a part of the fit.
Phase = Callable[[str], AbstractContextManager[None]]

# Scored at once; the temporary arrays of larger blocks cost more than they save.
SETS_PER_BLOCK = 8_192


def untimed(phase: str) -> AbstractContextManager[None]:
    """Return a context that measures nothing."""
    return nullcontext()


class Zeros(NamedTuple):
    """A random sample of the sets that were tested and are not hits."""

    training: Genotypes
    validation: Genotypes
    each_training: float  # how many such sets the part has for each one in the sample
    each_validation: float


class Parts(NamedTuple):
    """The columns of a `Prediction`, in double precision, [sets] each."""

    score: Doubles
    hit: Doubles | None = None
    given_hit: Doubles | None = None

    @property
    def among_hits(self) -> Doubles:
        """The score given a hit, which is the score if no hit is predicted."""
        return self.score if self.given_hit is None else self.given_hit


@dataclass(frozen=True, eq=False)
class Part:
    """Gene sets with their scores, [sets]."""

    sets: GeneSets
    targets: Doubles

    def take(self, rows: Ints) -> Part:
        """Return some of the sets with their scores."""
        return Part(self.sets.take(rows), self.targets[rows])

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(self.targets.mean())


DrawZeros = Callable[[float], Zeros | None]
"""Draws tested sets that are not hits, so many per measured set; None if they are unknown."""


class FitData(NamedTuple):
    """The checked input of a fit; genes are places in the order."""

    cell: Cell
    order: GeneOrder
    training: Part
    validation: Part | None
    draw_zeros: DrawZeros
    seed: int
    report: Report
    phase: Phase = untimed
    context: Sequence[Study] = ()
    condition: Tensor | None = None  # of each training set, if they differ
    chosen: ChosenByValidation | None = None  # what an earlier fit chose by validation, to be kept


class FittedPredictor(Predictor):
    """A predictor that learns in one call, without the training loop.

    After `fit` or `load_state_dict` it is called like a model, ``predictor(cell, genotypes)``, with
    genotypes of any sizes. A prediction does not depend on the other genotypes of the batch, on the
    order of the genes, or on how the cell numbers them. A subclass defines `_fit`, which returns
    the learned state (kept as ``_learned``), `_parts`, which scores one or more sets, and
    optionally `_load`, which prepares for that.

    ``history`` has one row per validation during the fit: ``step`` and ``validation_*`` metrics.
    """

    sets_per_call = 131_072
    shares_first_gene = True

    history: list[dict[str, float]]
    _order: GeneOrder | None = None
    _context: tuple[Study, ...] = ()
    _learned: State
    _is_warm = False  # whether a first call has filled the caches

    def _fit(self, data: FitData) -> State:
        raise NotImplementedError

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        pass

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        raise NotImplementedError

    def fit(
        self,
        cell: Cell,
        genotypes: Genotypes,
        targets: Values,
        *,
        validation: tuple[Genotypes, Values] | None = None,
        draw_zeros: DrawZeros = lambda ratio: None,
        seed: int = 0,
        progress: Progress | None = None,
        phase: Phase = untimed,
        context: Sequence[Study] = (),
        chosen: ChosenByValidation | None = None,
    ) -> Self:
        """Learn from the genotypes of the training part and their scores, [batch] each.

        The studies of the context are measurements of others, on scales of their own. What an
        earlier fit has ``chosen`` is kept, in place of a choice by the validation part.
        """
        self.check_conditions(genotypes)
        self.check_context(context)
        self._order = None
        self.history = []
        order = GeneOrder(cell.genes)
        training = _part(cell, order, genotypes, targets)
        held_out = None
        if validation is not None and len(validation[0]):
            held_out = _part(cell, order, *validation)

        def report(what: str, done: int, total: int, **metrics: float) -> None:
            if metrics:
                row = {f"validation_{name}": value for name, value in metrics.items()}
                self.history.append({"step": done, **row})
            if progress is not None:
                progress(what, done, total)

        data = FitData(
            cell=cell,
            order=order,
            training=training,
            validation=held_out,
            draw_zeros=draw_zeros,
            seed=seed,
            report=report,
            phase=phase,
            context=context,
            condition=genotypes.condition,
            chosen=chosen,
        )
        self._context = tuple(context)
        learned = self._fit(data)
        with phase("columns"):
            return self._use(cell, order, learned)

    def chosen(self) -> ChosenByValidation:
        """Return what the fit chose by the validation part; a fit on all measurements keeps it.

        A subclass that chooses something by the validation part overrides this, and takes
        `FitData.chosen` for its choice if there is one.
        """
        return ChosenByValidation()

    def keep_files(self, directory: Path, data: object) -> None:
        """Put what it needs beside its state into a run directory, before the fit.

        `data` are the run's, see `deltacell.train.data.TrainingData`.
        """

    def open_files(self, directory: Path, data: object) -> None:
        """Load from a run directory what `keep_files` put there, before `load_state_dict`."""

    def state_dict(self) -> State:
        """Return the learned state, for `load_state_dict`."""
        state = {"genes": self._fitted_order().names, **self._learned}
        tensors: State = tree_map(_as_tensor, state)
        return tensors

    def load_state_dict(self, cell: Cell, state: State, context: Sequence[Study] = ()) -> Self:
        """Load the state of a predictor with the same parameters, for a cell with its genes.

        The context consists of the studies that it was fitted with.
        """
        self.check_context(context)
        self._context = tuple(context)
        self._order = None
        self.history = []
        learned = tree_map(_as_array, dict(state))
        order = _checked_order(cell, learned.pop("genes"))
        return self._use(cell, order, learned)

    def _use(self, cell: Cell, order: GeneOrder, learned: State) -> Self:
        self._load(cell, order, learned)
        self._learned = learned
        self._order = order
        self._is_warm = False
        return self

    def __call__(
        self,
        cell: Cell,
        genotypes: Genotypes,
        *,
        wanted: Collection[str] = (),
    ) -> Prediction:
        """Return the prediction of each genotype, in single precision."""
        device = genotypes.genes.device
        sets = self._order_for(cell).sets(genotypes.check(cell.n_genes))
        if not len(sets):
            return Prediction(torch.zeros(0, device=device))
        # Sets that share their first gene share most of the work.
        rows = np.argsort(sets.genes[sets.offsets[:-1]], kind="stable")
        blocks = np.split(rows, range(SETS_PER_BLOCK, len(rows), SETS_PER_BLOCK))
        parts = self._parts_of_blocks(cell, [sets.take(block) for block in blocks])
        as_given = np.argsort(rows)

        def column(values: Sequence[Doubles | None]) -> Tensor | None:
            present = [block for block in values if block is not None]
            if not present:
                return None
            return torch.from_numpy(np.concatenate(present)[as_given]).float().to(device)

        score = column([part.score for part in parts])
        assert score is not None
        return Prediction(
            score,
            hit=column([part.hit for part in parts]),
            given_hit=column([part.given_hit for part in parts]),
        )

    def _parts_of_blocks(self, cell: Cell, blocks: Sequence[GeneSets]) -> list[Parts]:
        """Return the parts of each block, computed in threads.

        The very first block is scored alone, because it fills caches that all others use.
        """
        n_alone = 0 if self._is_warm else 1
        parts = [self._parts(cell, block) for block in blocks[:n_alone]]
        self._is_warm = True
        others = blocks[n_alone:]
        workers = workers_for(torch.device("cpu"), len(others))
        with one_core(workers):
            parts += in_any_worker(lambda block: self._parts(cell, block), others, workers)
        return parts

    def _fitted_order(self) -> GeneOrder:
        if self._order is None:
            message = f"this {type(self).__name__} has not been fitted"
            fix = "Call fit(cell, genotypes, targets) first."
            raise InputError(message, code="not-fitted", fix=fix)
        return self._order

    def _order_for(self, cell: Cell) -> GeneOrder:
        fitted = self._fitted_order()
        return fitted if cell.genes is fitted.genes else _checked_order(cell, fitted.names)


def _as_tensor(value: object) -> object:
    """Return a copy of an array as a tensor, and anything else as it is."""
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _as_array(value: object) -> object:
    """Return a copy of a tensor as an array, and anything else as it is."""
    return value.numpy().copy() if isinstance(value, Tensor) else value


def other_cell(difference: str) -> InputError:
    """Return the error for a cell that differs from the one of the fit."""
    fix = "Pass the cell it was fitted on, or fit it again."
    return InputError(f"it was fitted on another cell: {difference}", code="other-cell", fix=fix)


def _checked_order(cell: Cell, fitted: Sequence[str]) -> GeneOrder:
    order = GeneOrder(cell.genes)
    if list(fitted) != order.names:
        only = min(set(fitted) ^ set(order.names))
        raise other_cell(f"{len(fitted)} genes then and {len(order)} now, '{only}' in one only")
    return order


def _part(cell: Cell, order: GeneOrder, genotypes: Genotypes, targets: Values) -> Part:
    """Return genotypes with their targets; raise unless there are as many, and all are finite."""
    n = len(genotypes.check(cell.n_genes))
    column = np.asarray(targets, dtype=np.float64)
    if not n:
        raise InputError("there are no genotypes to fit on", code="empty-part")
    if column.shape != (n,):
        raise InputError(f"targets of shape {column.shape}; expected ({n},)", code="wrong-shape")
    wrong = np.flatnonzero(~np.isfinite(column))
    if len(wrong):
        message = f"{len(wrong)} of {n} targets are not finite, the first at index {wrong[0]}"
        fix = "Remove the genotypes without a score."
        raise InputError(message, code="not-finite", fix=fix)
    return Part(order.sets(genotypes), column)
