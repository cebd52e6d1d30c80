"""A score as a sum of one effect per gene."""

from __future__ import annotations

from deltacell.cell import Cell
from deltacell.models.baselines.baseline import Doubles, FittedPredictor, Part, Report, State
from deltacell.models.baselines.gene_effects import GeneEffects, check_penalty, ridge
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets


class Additive(FittedPredictor):
    r"""Ridge regression on gene indicators.

    .. math:: \hat y(S) = c + \sum_{g \in S} a_g

    with c and a that minimise
    :math:`\sum_b w_b (y_b - \hat y(S_b))^2 + \lambda \sum_g a_g^2`. A gene that was never seen adds
    nothing.

    Parameters
    ----------
    penalty
        The penalty λ: a gene seen in as many genotypes has its effect about halved.
    """

    def __init__(self, penalty: float = 3.0) -> None:
        self.penalty = check_penalty(penalty)

    @property
    def intercept(self) -> float:
        """The score c of genes without effect."""
        return self._learned.intercept

    def effects(self, cell: Cell) -> Doubles:
        """Return the effect a of every gene of the cell, [genes]."""
        order = self._order_for(cell)
        return self._learned.effect[order.place]

    def _fit(
        self,
        cell: Cell,
        order: GeneOrder,
        training: Part,
        validation: Part | None,
        seed: int,
        progress: Report,
    ) -> None:
        self._learned: GeneEffects = ridge(training, len(order), self.penalty)

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        return self._learned.score(sets)

    def _state(self) -> State:
        return self._learned.state()

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._learned = GeneEffects.of_state(state)
