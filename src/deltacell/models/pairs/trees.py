"""Boosted trees on the columns of gene sets, in two parts: how likely a hit is, and its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from deltacell.arrays import AnyArray, Doubles, Floats
from deltacell.cell import Cell
from deltacell.models.base import check_range
from deltacell.models.baselines.additive import GeneEffects
from deltacell.models.baselines.baseline import (
    FitData,
    FittedPredictor,
    Part,
    Parts,
    State,
    Values,
    loaded,
    saved,
)
from deltacell.models.baselines.boosted_trees import boosted, predicted
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.models.pairs.columns import (
    Known,
    PairColumns,
    TrainingColumns,
    residuals_of,
    training_columns,
)
from deltacell.models.pairs.messages import Measured, voters
from deltacell.screen.genotypes import Genotypes

if TYPE_CHECKING:
    from lightgbm import Booster

_SETS_PER_BLOCK = 32_768
_NONE = GeneSets(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))


class Zeros(NamedTuple):
    """Sets that were tested and are not hits, drawn from all of them."""

    training: Genotypes
    validation: Genotypes
    each_training: float  # how many there are in the part for each one that was drawn
    each_validation: float


@dataclass(eq=False)
class PairTrees(FittedPredictor):
    """Gradient-boosted trees (LightGBM) on pair messages, effects, features and networks.

    The columns are those of `PairColumns`, made so that no score enters the columns of its own set
    and that some genes of the training sets are unseen, see `training_columns`. The trees learn
    what the additive model leaves over.

    From a list of hits they learn the score that a set has if it is a hit. With zeros, further
    trees learn which sets are hits; their probabilities hold on the grid of tested sets, and the
    expected score of a set is the product of both parts.

    Parameters
    ----------
    rounds, patience
        The most trees of each part, and how many may follow the best one by validation.
    leaves
        The most leaves of a tree.
    learning_rate
        Share of each tree that is added.
    column_share, row_share
        Shares of the columns and of the rows that a tree sees.
    penalty
        The penalty of the additive effects, as in `Additive`.
    folds
        Folds of sets, which keep a set's own score out of its columns.
    gene_folds, gene_rounds
        Folds of genes, which are treated as unseen in turn, and how often they are drawn.
    zeros
        Tested sets that are not hits to draw for each hit; 0 for none.
    features
        Features of the cell to use, by name; by default all.
    """

    rounds: int = 400
    patience: int = 40
    leaves: int = 63
    learning_rate: float = 0.05
    column_share: float = 0.3
    row_share: float = 0.6
    penalty: float = 3.0
    folds: int = 5
    gene_folds: int = 5
    gene_rounds: int = 1
    zeros: float = 1.0
    features: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_range("[1, inf)", rounds=self.rounds, patience=self.patience)
        check_range("[2, inf)", leaves=self.leaves, folds=self.folds, gene_folds=self.gene_folds)
        check_range("[0, inf)", gene_rounds=self.gene_rounds, zeros=self.zeros)
        check_range("(0, 1]", learning_rate=self.learning_rate)
        check_range("(0, 1]", column_share=self.column_share, row_share=self.row_share)
        check_range("(0, inf)", penalty=self.penalty)

    def fit(
        self,
        cell: Cell,
        genotypes: Genotypes,
        targets: Values,
        weights: Values | None = None,
        *,
        zeros: Zeros | None = None,
        **options: Any,
    ) -> Self:
        """Learn from the training part of a screen; see `FittedPredictor.fit`."""
        self._given_zeros = zeros
        return super().fit(cell, genotypes, targets, weights, **options)

    def _fit(self, data: FitData) -> None:
        cell, order, training, validation, seed, report = data
        zeros = self._given_zeros
        report("columns", 0, (1 if zeros is None else 2) * self.rounds)
        self._columns = PairColumns(cell, order, int(training.sets.sizes.max()), self.features)
        rows = training_columns(
            self._columns,
            training,
            _NONE if zeros is None else order.sets(zeros.training),
            penalty=self.penalty,
            folds=self.folds,
            gene_folds=self.gene_folds,
            rounds=self.gene_rounds,
            seed=seed,
        )
        self._training = training
        self._known = Known.of(training, len(order), self.penalty)
        self._measured = Measured.of(training, len(order))
        n_hits, checks, held_out = len(training.sets), None, None
        if validation is not None:
            held_out = self._table(validation.sets)
            checks = held_out, validation.targets - held_out[:, 0]
        parameters = {
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "feature_fraction": self.column_share,
            "bagging_fraction": self.row_share,
            "bagging_freq": 1,
            "min_data_in_leaf": min(60, max(1, n_hits // 170)),
            "lambda_l2": 5.0,
            "seed": seed,
        }
        hits = np.flatnonzero(rows.row < n_hits)
        of_hits = rows.row[hits]
        self._size: Booster = boosted(
            rows.columns[hits] if zeros is not None else rows.columns,
            training.targets[of_hits] - rows.offset[hits],
            training.weights[of_hits],
            parameters,
            self.rounds,
            report,
            validation=checks,
            patience=self.patience,
        )
        self._hit: Booster | None = None
        self._shift, self._slope = 0.0, 1.0
        if zeros is not None:
            self._fit_hit(data, zeros, rows, held_out, parameters)

    def _fit_hit(
        self,
        data: FitData,
        zeros: Zeros,
        rows: TrainingColumns,
        held_out: Floats | None,
        parameters: dict[str, Any],
    ) -> None:
        """Learn which sets are hits, and bring the probabilities to the rate of the grid."""
        checks, weight = None, np.zeros(0)
        if held_out is not None and len(zeros.validation):
            none = self._table(data.order.sets(zeros.validation))
            counts = [len(held_out), len(none)]
            checks = np.concatenate([held_out, none]), np.repeat([1.0, 0.0], counts)
            weight = np.repeat([1.0, zeros.each_validation], counts)
        self._hit = boosted(
            rows.columns,
            (rows.row < len(data.training.sets)).astype(np.float64),
            np.ones(len(rows.row)),
            {**parameters, "objective": "binary"},
            self.rounds,
            data.report,
            validation=checks,
            patience=self.patience,
        )
        # The trees saw more hits than the grid has: a shift of the log odds corrects that.
        self._shift = -float(np.log(zeros.each_training))
        if checks is not None:
            odds = predicted(self._hit, checks[0], raw_score=True) + self._shift
            self._shift, self._slope = _calibrated(odds, checks[1], weight, self._shift)

    def _table(self, sets: GeneSets) -> Floats:
        return self._columns(self._known, sets, self._columns.votes(self._measured, sets))

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        return self._parts(cell, sets).score

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        size, hit = np.empty(len(sets)), np.empty(len(sets))
        # Sets that share their first gene share most of the work.
        order = np.argsort(sets.genes[sets.offsets[:-1]], kind="stable")
        for start in range(0, len(sets), _SETS_PER_BLOCK):
            rows = order[start : start + _SETS_PER_BLOCK]
            table = self._table(sets.take(rows))
            size[rows] = predicted(self._size, table) + table[:, 0]
            if self._hit is not None:
                odds = predicted(self._hit, table, raw_score=True)
                hit[rows] = 1 / (1 + np.exp(-(self._slope * odds + self._shift)))
        return Parts(size) if self._hit is None else Parts(hit * size, hit, size)

    def evidence(self, cell: Cell, genotype: Sequence[int]) -> list[dict[str, Any]]:
        """Return the measured sets next to a set of two genes or more, largest weight first."""
        order = self._order_for(cell)
        places = tuple(sorted(int(order.place[gene]) for gene in genotype))
        neighbours = self._columns.neighbours.joined(self._known.alike)
        return [
            voter._asdict()
            | {"genes": order.gene[list(voter.genes)].tolist()}
            | {"replaced": int(order.gene[voter.replaced]), "by": int(order.gene[voter.by])}
            for voter in voters(self._measured, neighbours, places)
        ]

    def _state(self) -> State:
        training, known = self._training, self._known
        arrays: dict[str, AnyArray] = {
            "sets": training.sets.genes,
            "offsets": training.sets.offsets,
            "targets": training.targets,
            "weights": training.weights,
            "count": known.count,
            "negative": known.negative,
            "factors": known.factors,
            "values": known.values,
            "components": self._columns.components,
        }
        return {
            **{name: saved(array) for name, array in arrays.items()},
            **known.effects.state(),
            "size": self._size.model_to_string(),
            "hit": None if self._hit is None else self._hit.model_to_string(),
            "shift": self._shift,
            "slope": self._slope,
        }

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        from lightgbm import Booster

        sets = GeneSets(loaded(state["sets"]), loaded(state["offsets"]))
        self._training = Part(sets, loaded(state["targets"]), loaded(state["weights"]))
        self._measured = Measured.of(self._training, len(order))
        self._columns = PairColumns(cell, order, int(sets.sizes.max()), self.features)
        # A decomposition may round differently elsewhere, and the trees were made for these.
        self._columns.components = loaded(state["components"])
        effects = GeneEffects.from_state(state)
        self._known = Known(
            effects=effects,
            residuals=residuals_of(self._training, effects, len(order)),
            **{name: loaded(state[name]) for name in ("count", "negative", "factors", "values")},
        )
        self._size = Booster(model_str=state["size"])
        self._hit = None if state["hit"] is None else Booster(model_str=state["hit"])
        self._shift, self._slope = float(state["shift"]), float(state["slope"])


def _calibrated(
    odds: Doubles, label: Doubles, weight: Doubles, shift: float
) -> tuple[float, float]:
    """Return the shift and slope of log odds that fit weighted labels best (Platt's scaling).

    ``shift`` has already been added to the log odds.
    """
    a, b = 1.0, 0.0
    for _ in range(50):
        p = 1 / (1 + np.exp(-(a * odds + b)))
        slope = weight * p * (1 - p)
        gradient = np.array([(weight * (label - p) * odds).sum(), (weight * (label - p)).sum()])
        cross = (slope * odds).sum()
        hessian = np.array([[(slope * odds * odds).sum(), cross], [cross, slope.sum()]])
        step = np.linalg.solve(hessian + 1e-9 * np.eye(2), gradient)
        a, b = a + step[0], b + step[1]
        if np.abs(step).max() < 1e-8:
            break
    return float(b + a * shift), float(a)
