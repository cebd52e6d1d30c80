"""The predictors that benchmarks measure, by their names in the registry.

A benchmark imports no model. What it needs of one besides the interface is a protocol here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from deltacell.base.arrays import Doubles, Floats
from deltacell.cell import Cell
from deltacell.models import registry
from deltacell.models.fitted.predictor import FittedPredictor
from deltacell.models.interface import BuildContext, Model
from deltacell.propagate.choose import Auto
from deltacell.propagate.hop import Hop, HopShape
from deltacell.propagate.strategy import AnyStrategy
from deltacell.screen import Genotypes

LARGEST_SET = 3


class PropagatingNetwork(Protocol):
    """A network that passes messages on mutants by a strategy."""

    propagation: AnyStrategy | Auto

    def hops(self, cell: Cell) -> list[Hop]:
        """Return message passing as hops."""

    def mutant_shapes(self, cell: Cell) -> list[HopShape]:
        """Return the shapes of the hops that see a deletion."""


class ReconstructingNetwork(Protocol):
    """A network whose loss reconstructs relations, and whose attention depends on the genes."""

    def with_dense_loss(self, cell: Cell) -> Model:
        """Return a copy that forms every genes x genes reconstruction."""

    def with_spread_attention(self, cell: Cell, betas: Sequence[float]) -> Model:
        """Return a copy whose attention differs between genes, as after a training."""


class ReadsColumns(Protocol):
    """A predictor that reads a table of columns."""

    def table_of(self, cell: Cell, genotypes: Genotypes, scores: Doubles) -> Floats:
        """Return the columns of measured genotypes."""


def network(name: str, cell: Cell, *, largest: int = LARGEST_SET, **settings: Any) -> Model:
    """Return a new network by its name, with settings of its config."""
    model = registry.config_class(name)(**settings).build(BuildContext(cell, largest))
    assert isinstance(model, Model), f"{name} is not trained by the loop"
    return model


def fitted(name: str, cell: Cell, **settings: Any) -> FittedPredictor:
    """Return a predictor that is not fitted yet, by its name, with settings of its config."""
    predictor = registry.config_class(name)(**settings).build(BuildContext(cell, LARGEST_SET))
    assert isinstance(predictor, FittedPredictor), f"{name} is not fitted in one call"
    return predictor
