"""What every fitted predictor does: check its input, learn, score genotypes, save and load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from deltacell.arrays import AnyArray, Doubles, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.base import Prediction, Recorded
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.screen.genotypes import Genotypes
from deltacell.words import Progress

Values = Tensor | AnyArray | Sequence[float]
State = dict[str, Any]
"""Tensors, numbers, text, and lists and dicts of them, by name; loads with ``weights_only``."""


Report = Callable[..., None]
"""Called as ``report(what, done, total, **metrics)`` with validation metrics such as ``mse``."""


class Parts(NamedTuple):
    """The columns of a `Prediction`, in double precision, [sets] each."""

    score: Doubles
    hit: Doubles | None = None
    given_hit: Doubles | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """Gene sets with their scores, and how much each of them counts."""

    sets: GeneSets
    targets: Doubles
    weights: Doubles

    def take(self, rows: Ints) -> Part:
        """Return the sets at the given positions."""
        return Part(self.sets.take(rows), self.targets[rows], self.weights[rows])

    @property
    def mean(self) -> float:
        """The weighted mean of the targets."""
        return float(np.average(self.targets, weights=self.weights))


class FitData(NamedTuple):
    """What a predictor learns from, checked; genes are places in the order."""

    cell: Cell
    order: GeneOrder
    training: Part
    validation: Part | None
    seed: int
    report: Report


class FittedPredictor(Recorded, ABC):
    """A predictor that learns in one call, without the training loop.

    After `fit` or `load_state_dict` it is called like a model, ``predictor(cell, genotypes)``.
    Genotypes may have any size from one gene up, mixed in one batch. A prediction depends neither
    on the other genotypes of the batch, nor on the order of the genes, nor on how the cell numbers
    its genes. A subclass defines `_fit`, `_score` (or `_parts`), `_state` and `_load`; what it
    learns must not refer to the cell's own numbering of genes.

    It may also have a method ``evidence(cell, genes) -> list[dict]``: the measured sets that a
    score rests on, as rows with ``genes``, which gene is ``replaced`` ``by`` which, ``score``,
    ``relation`` and ``weight``; genes are those of the cell.

    Attributes
    ----------
    history
        One row per validation while it learned: ``step`` and ``validation_*`` metrics.
    """

    history: list[dict[str, float]]
    _order: GeneOrder | None = None

    def fit(
        self,
        cell: Cell,
        genotypes: Genotypes,
        targets: Values,
        weights: Values | None = None,
        *,
        validation: tuple[Genotypes, Values] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from the training part of a screen: genotypes and their scores, [batch] each."""
        self._order = None
        order = GeneOrder(cell.genes)
        training = _part(cell, order, genotypes, targets, weights, "training")
        held_out = (
            None if validation is None else _part(cell, order, *validation, None, "validation")
        )
        self.history = []

        def report(what: str, done: int, total: int, **metrics: float) -> None:
            if metrics:
                row = {f"validation_{name}": value for name, value in metrics.items()}
                self.history.append({"step": done, **row})
            if progress is not None:
                progress(what, done, total)

        self._fit(FitData(cell, order, training, held_out, seed, report))
        self._order = order
        return self

    def state_dict(self) -> State:
        """Return all that was learned, to be saved; `load_state_dict` is its inverse."""
        return {"genes": self._fitted_order().names, **self._state()}

    def load_state_dict(self, cell: Cell, state: State) -> Self:
        """Take over what a predictor with the same parameters learned, on the same cell.

        The genes of the cell may be numbered differently.
        """
        self._order = None
        order = GeneOrder(cell.genes)
        _check_genes(state["genes"], order.names)
        self.history = []
        self._load(cell, order, state)
        self._order = order
        return self

    def __call__(self, cell: Cell, genotypes: Genotypes) -> Prediction:
        """Return the prediction for each genotype of the cell it was fitted on."""
        order = self._order_for(cell)
        genotypes.check(cell.n_genes)
        device = genotypes.genes.device
        if not len(genotypes):
            return Prediction(torch.zeros(0, device=device))
        score, hit, given_hit = (
            None if column is None else torch.from_numpy(column.astype(np.float32)).to(device)
            for column in self._parts(cell, order.sets(genotypes))
        )
        assert score is not None
        return Prediction(score, hit=hit, given_hit=given_hit)

    @abstractmethod
    def _fit(self, data: FitData) -> None:
        """Learn."""

    @abstractmethod
    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        """Return the expected score of each set; there is at least one."""

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        """Return all columns of the prediction; a predictor of two parts overrides this."""
        return Parts(self._score(cell, sets))

    @abstractmethod
    def _state(self) -> State:
        """Return what was learned; genes are places in the order."""

    @abstractmethod
    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        """Inverse of `_state`."""

    def _fitted_order(self) -> GeneOrder:
        if self._order is None:
            raise InputError(
                f"this {type(self).__name__} has not been fitted",
                code="not-fitted",
                fix="Call fit(cell, genotypes, targets) first.",
            )
        return self._order

    def _order_for(self, cell: Cell) -> GeneOrder:
        """Return the order of the cell's genes, which must be those it was fitted on."""
        fitted = self._fitted_order()
        if cell.genes.systematic == fitted.cell_names:
            return fitted
        order = GeneOrder(cell.genes)
        _check_genes(fitted.names, order.names)
        return order


def other_cell(what: str) -> InputError:
    """Return the error for a cell that is not the one a predictor was fitted on."""
    return InputError(
        f"this cell is not the one it was fitted on: {what}",
        code="other-cell",
        fix="Give the cell it was fitted on, or fit it again.",
    )


def saved(array: AnyArray) -> Tensor:
    """Return an array as the tensor of a state; `loaded` is the inverse."""
    return torch.from_numpy(np.array(array))


def loaded(tensor: Tensor) -> AnyArray:
    """Return the array that a tensor of a state holds."""
    return np.array(tensor.numpy())


def _check_genes(fitted: Sequence[str], given: Sequence[str]) -> None:
    if list(fitted) != list(given):
        only = min(set(fitted) ^ set(given))
        raise other_cell(f"{len(fitted)} genes then and {len(given)} now, '{only}' in one only")


def _part(
    cell: Cell,
    order: GeneOrder,
    genotypes: Genotypes,
    targets: Values,
    weights: Values | None,
    name: str,
) -> Part:
    genotypes.check(cell.n_genes)
    n = len(genotypes)
    if not n:
        raise InputError(f"the {name} part has no genotype", code="empty-part")
    counts = np.ones(n) if weights is None else _column(weights, n, f"{name} weights")
    if (counts < 0).any() or not counts.any():
        raise InputError(
            f"the {name} weights must not be negative, and not all 0", code="wrong-weights"
        )
    return Part(order.sets(genotypes), _column(targets, n, f"{name} targets"), counts)


def _column(values: Values, n: int, name: str) -> Doubles:
    plain = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    column: Doubles = np.asarray(plain, dtype=np.float64)
    if column.shape != (n,):
        raise InputError(
            f"{name} of shape {column.shape} for {n} genotypes; expected ({n},)", code="wrong-shape"
        )
    wrong = ~np.isfinite(column)
    if wrong.any():
        raise InputError(
            f"{int(wrong.sum())} of {n} {name} are not finite numbers, "
            f"first that of genotype {int(np.argmax(wrong))}",
            code="not-finite",
            fix="Leave out the genotypes without a score.",
        )
    return column
