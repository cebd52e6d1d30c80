"""What every baseline does: check what it is given, learn, and give a score a genotype."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.models.prediction import Prediction
from deltacell.screen.genotypes import Genotypes

Doubles = npt.NDArray[np.float64]
Values = torch.Tensor | npt.NDArray[Any] | Sequence[float]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Part:
    """Genotypes with what was measured, as a baseline sees them.

    Parameters
    ----------
    sets
        The genes of each genotype.
    targets
        One score a genotype.
    weights
        How much each genotype counts.
    """

    sets: GeneSets
    targets: Doubles
    weights: Doubles

    def take(self, rows: npt.NDArray[np.int64]) -> Part:
        """Return the genotypes at the given positions."""
        return Part(self.sets.take(rows), self.targets[rows], self.weights[rows])

    @property
    def mean(self) -> float:
        """The weighted mean of the targets."""
        return float(np.average(self.targets, weights=self.weights))


class Baseline(ABC):
    """A predictor that a model must beat to be worth its cost.

    After `fit` it is called like a model, ``baseline(cell, genotypes)``. Genotypes may be of any
    size from one gene up, mixed in one batch. A prediction depends neither on the other genotypes
    of the batch, nor on the order of the genes, nor on how the cell numbers its genes.
    """

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
        """Learn from the training part of a screen.

        Parameters
        ----------
        cell
            The wild type.
        genotypes, targets
            The training part: [batch] genotypes and their scores.
        weights
            How much each genotype counts, [batch], none negative; 1 where not given.
        validation
            Genotypes and scores to stop by, for those baselines that stop early.
        seed
            Of all that is drawn; the same seed gives the same predictions.
        progress
            Called as ``progress(what, done, total)`` while it learns.
        """
        self._order = None
        order = GeneOrder(cell.genes)
        training = _part(cell, order, genotypes, targets, weights, "training")
        held_out = (
            None if validation is None else _part(cell, order, *validation, None, "validation")
        )
        self._fit(cell, order, training, held_out, seed, progress or _silent)
        self._order = order
        return self

    def __call__(self, cell: Cell, genotypes: Genotypes) -> Prediction:
        """Return a score a genotype.

        Parameters
        ----------
        cell
            The wild type it was fitted on; its genes may be numbered differently.
        genotypes
            [batch]; may be empty.
        """
        order = self._order_for(cell)
        genotypes.check(cell.n_genes)
        score = np.zeros(0) if not len(genotypes) else self._score(cell, order.sets(genotypes))
        return Prediction(torch.from_numpy(score.astype(np.float32)).to(genotypes.genes.device))

    @abstractmethod
    def _fit(
        self,
        cell: Cell,
        order: GeneOrder,
        training: Part,
        validation: Part | None,
        seed: int,
        progress: Progress,
    ) -> None:
        """Learn; what is given is checked, and genes are places in the order."""

    @abstractmethod
    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        """Return a score a set; there is at least one."""

    def _order_for(self, cell: Cell) -> GeneOrder:
        """Return the order of the cell's genes, which must be those it was fitted on."""
        if self._order is None:
            raise InputError(
                f"this {type(self).__name__} has not learned anything yet",
                fix="Call fit(cell, genotypes, targets) first.",
            )
        if cell.genes.systematic == self._order.cell_names:
            return self._order
        order = GeneOrder(cell.genes)
        fitted, given = set(self._order.names), set(order.names)
        if fitted != given:
            raise InputError(
                f"fitted on a cell of {len(fitted)} genes, and given one of {len(given)} with "
                f"other genes, first '{min(fitted ^ given)}' which only one of them has",
                fix="Give the cell it was fitted on, or fit it again.",
            )
        return order


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


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
        raise InputError(f"the {name} part has no genotype")
    counts = np.ones(n) if weights is None else _column(weights, n, f"{name} weights")
    if (counts < 0).any() or not counts.any():
        raise InputError(f"the {name} weights must not be negative, and not all 0")
    return Part(order.sets(genotypes), _column(targets, n, f"{name} targets"), counts)


def _column(values: Values, n: int, name: str) -> Doubles:
    plain = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    column: Doubles = np.asarray(plain, dtype=np.float64)
    if column.shape != (n,):
        raise InputError(f"{name} of shape {column.shape} for {n} genotypes; expected ({n},)")
    wrong = ~np.isfinite(column)
    if wrong.any():
        raise InputError(
            f"{int(wrong.sum())} of {n} {name} are not finite numbers, "
            f"first that of genotype {int(np.argmax(wrong))}",
            fix="Leave out the genotypes without a score.",
        )
    return column
