"""What every fitted predictor does: check its input, learn, score genotypes, save and load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from deltacell.arrays import AnyArray, Doubles, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.base import Prediction, Recorded
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.propagate.workers import in_any_worker, one_core, workers_for
from deltacell.screen.genotypes import Genotypes
from deltacell.words import Progress

Values = Tensor | AnyArray | Sequence[float]
State = dict[str, Any]  # tensors, numbers, text, and lists and dicts of them
Report = Callable[..., None]  # report(what, done, total, **validation_metrics)

SETS_PER_BLOCK = 32_768  # scored at once


class Zeros(NamedTuple):
    """Sets that were tested and are not hits, drawn from all of them."""

    training: Genotypes
    validation: Genotypes
    each_training: float  # how many there are in the part for each one that was drawn
    each_validation: float


class Parts(NamedTuple):
    """The columns of a `Prediction`, in double precision, [sets] each."""

    score: Doubles
    hit: Doubles | None = None
    given_hit: Doubles | None = None

    @property
    def among_hits(self) -> Doubles:
        return self.score if self.given_hit is None else self.given_hit


@dataclass(frozen=True, eq=False)
class Part:
    """Gene sets with their scores, [sets]."""

    sets: GeneSets
    targets: Doubles

    def take(self, rows: Ints) -> Part:
        return Part(self.sets.take(rows), self.targets[rows])

    @property
    def mean(self) -> float:
        return float(self.targets.mean())


class FitData(NamedTuple):
    """What a predictor learns from, checked; genes are places in the order."""

    cell: Cell
    order: GeneOrder
    training: Part
    validation: Part | None
    zeros: Zeros | None
    seed: int
    report: Report


class FittedPredictor(Recorded):
    """A predictor that learns in one call, without the training loop.

    After `fit` or `load_state_dict` it is called like a model, ``predictor(cell, genotypes)``, with
    genotypes of any sizes. A prediction depends neither on the other genotypes of the batch, nor on
    the order of the genes, nor on how the cell numbers them. A subclass defines `_fit`, which
    returns what it learned (arrays, numbers, text; genes are places in the order) and is kept as
    ``_learned``, and `_parts`, which scores one set or more; `_load` may prepare for that.

    It may also have a method ``evidence(cell, genes) -> list[dict]``: the measured sets that a
    score rests on, as rows with ``genes``, which gene is ``replaced`` ``by`` which, ``score``,
    ``relation`` and ``weight``; genes are those of the cell. ``history`` has one row per validation
    while it learned: ``step`` and ``validation_*`` metrics.
    """

    history: list[dict[str, float]]
    _order: GeneOrder | None = None
    _learned: State
    _is_warm = False  # whether what all calls share has been made

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
        zeros: Zeros | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from the training part of a screen: genotypes and their scores, [batch] each."""
        self._order, self.history = None, []
        order = GeneOrder(cell.genes)
        training, held_out = _part(cell, order, genotypes, targets), None
        if validation is not None and len(validation[0]):
            held_out = _part(cell, order, *validation)

        def report(what: str, done: int, total: int, **metrics: float) -> None:
            if metrics:
                row = {f"validation_{name}": value for name, value in metrics.items()}
                self.history.append({"step": done, **row})
            if progress is not None:
                progress(what, done, total)

        learned = self._fit(FitData(cell, order, training, held_out, zeros, seed, report))
        return self._use(cell, order, learned)

    def state_dict(self) -> State:
        """Return all that was learned, to be saved; `load_state_dict` is its inverse."""
        state: State = tree_map(
            lambda x: torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x,
            {"genes": self._fitted_order().names, **self._learned},
        )
        return state

    def load_state_dict(self, cell: Cell, state: State) -> Self:
        """Take over what a predictor with the same parameters learned, on a cell of these genes."""
        self._order, self.history = None, []
        learned = tree_map(lambda x: x.numpy().copy() if isinstance(x, Tensor) else x, dict(state))
        return self._use(cell, _checked_order(cell, learned.pop("genes")), learned)

    def _use(self, cell: Cell, order: GeneOrder, learned: State) -> Self:
        self._load(cell, order, learned)
        self._learned, self._order, self._is_warm = learned, order, False
        return self

    def __call__(self, cell: Cell, genotypes: Genotypes) -> Prediction:
        """Return the prediction for each genotype of the cell it was fitted on."""
        order, device = self._order_for(cell), genotypes.genes.device
        sets = order.sets(genotypes.check(cell.n_genes))
        if not len(sets):
            return Prediction(torch.zeros(0, device=device))
        # Sets that share their first gene share most of the work.
        rows = np.argsort(sets.genes[sets.offsets[:-1]], kind="stable")
        blocks = [rows[at : at + SETS_PER_BLOCK] for at in range(0, len(rows), SETS_PER_BLOCK)]
        # The very first one alone, because it makes what all others share.
        alone = 0 if self._is_warm else 1
        found = [self._parts(cell, sets.take(block)) for block in blocks[:alone]]
        self._is_warm, workers = True, workers_for(torch.device("cpu"), len(blocks) - alone)
        with one_core(workers):
            found += in_any_worker(
                lambda block: self._parts(cell, sets.take(block)), blocks[alone:], workers
            )
        as_given = np.argsort(rows)
        columns: dict[str, Any] = {
            name: torch.from_numpy(np.concatenate(column)[as_given]).float().to(device)
            for name, column in zip(Parts._fields, zip(*found, strict=True), strict=True)
            if column[0] is not None
        }
        return Prediction(**columns)

    def _fitted_order(self) -> GeneOrder:
        if self._order is None:
            what, fix = type(self).__name__, "Call fit(cell, genotypes, targets) first."
            raise InputError(f"this {what} has not been fitted", code="not-fitted", fix=fix)
        return self._order

    def _order_for(self, cell: Cell) -> GeneOrder:
        fitted = self._fitted_order()
        return fitted if cell.genes is fitted.genes else _checked_order(cell, fitted.names)


def other_cell(what: str) -> InputError:
    told = f"this cell is not the one it was fitted on: {what}"
    fix = "Give the cell it was fitted on, or fit it again."
    return InputError(told, code="other-cell", fix=fix)


def _checked_order(cell: Cell, fitted: Sequence[str]) -> GeneOrder:
    order = GeneOrder(cell.genes)
    if list(fitted) != order.names:
        only = min(set(fitted) ^ set(order.names))
        raise other_cell(f"{len(fitted)} genes then and {len(order)} now, '{only}' in one only")
    return order


def _part(cell: Cell, order: GeneOrder, genotypes: Genotypes, targets: Values) -> Part:
    n, column = len(genotypes.check(cell.n_genes)), np.asarray(targets, dtype=np.float64)
    if not n:
        raise InputError("there is no genotype to learn from", code="empty-part")
    if column.shape != (n,):
        raise InputError(f"targets of shape {column.shape}; expected ({n},)", code="wrong-shape")
    wrong = np.flatnonzero(~np.isfinite(column))
    if len(wrong):
        what = f"{len(wrong)} of {n} targets are not finite, first that of genotype {wrong[0]}"
        fix = "Leave out the genotypes without a score."
        raise InputError(what, code="not-finite", fix=fix)
    return Part(order.sets(genotypes), column)
