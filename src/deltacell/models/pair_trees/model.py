"""Boosted trees on the columns of gene sets, in two parts: the odds of a hit, and its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from deltacell.base.arrays import Doubles, Floats, Ints
from deltacell.cell import Cell
from deltacell.models.baselines.additive import GeneEffects
from deltacell.models.baselines.boosted_trees import boosted, booster, predicted
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.fitted.predictor import FitData, FittedPredictor, Part, Parts, State
from deltacell.models.interface import Vote
from deltacell.models.pairs.columns import Known, PairColumns, training_columns
from deltacell.models.pairs.messages import Measured, Neighbours, voters

_OF_KNOWN = ("count", "negative", "factors", "values")


@dataclass(eq=False)
class PairTrees(FittedPredictor):
    """Gradient-boosted trees (LightGBM) on pair messages, effects, features and networks.

    The columns are those of `PairColumns`, see `training_columns`, and the trees predict the
    residual of the additive model for hits. With zeros, further trees predict which sets are hits,
    calibrated on the grid of tested sets, and the expected score is the product of both parts.
    docs/reference/config.md describes all parameters.
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
    # The training sets of `_columns`, so that loading the state after a fit need not remake them.
    _prepared_for: Ints | None = field(default=None, init=False, repr=False)

    def _fit(self, data: FitData) -> State:
        order, training, report = data.order, data.training, data.report
        zeros = data.draw_zeros(self.zeros)
        n_hits = len(training.sets)
        report("columns", 0, (1 if zeros is None else 2) * self.rounds)
        with data.phase("columns"):
            self._prepare(data.cell, order, training)
        others = None if zeros is None else order.sets(zeros.training)
        folds = {"folds": self.folds, "gene_folds": self.gene_folds, "rounds": self.gene_rounds}
        with data.phase("folds"):
            table, row = training_columns(
                self._columns,
                training,
                others,
                penalty=self.penalty,
                seed=data.seed,
                **folds,
            )
        with data.phase("columns"):
            self._known = Known.of(training, len(order), self.penalty)
        parameters = {
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "feature_fraction": self.column_share,
            "bagging_fraction": self.row_share,
            "bagging_freq": 1,
            "min_data_in_leaf": min(60, max(1, n_hits // 170)),
            "lambda_l2": 5.0,
            "seed": data.seed,
        }
        grown = partial(boosted, rounds=self.rounds, report=report, patience=self.patience)
        checks, held_out = None, table[:0]
        if data.validation is not None:
            with data.phase("columns"):
                held_out = self._table(data.validation.sets)
            checks = held_out, data.validation.targets - held_out[:, 0]
        hits = np.flatnonzero(row < n_hits)
        of_hits = table if zeros is None else table[hits]
        left = training.targets[row[hits]] - of_hits[:, 0].astype(np.float64)
        with data.phase("trees"):
            size = grown(of_hits, left, parameters, validation=checks)
        state = {
            "sets": training.sets.genes,
            "offsets": training.sets.offsets,
            "targets": training.targets,
            **{name: getattr(self._known, name) for name in _OF_KNOWN},
            "components": self._columns.components,
            **vars(self._known.effects),
            "size": size,
            "hit": None,
            "shift": 0.0,
            "slope": 1.0,
        }
        if zeros is None:
            return state
        checks = None
        if len(held_out) and len(zeros.validation):
            with data.phase("columns"):
                none = self._table(order.sets(zeros.validation))
            counts = [len(held_out), len(none)]
            checks = np.concatenate([held_out, none]), np.repeat([1.0, 0.0], counts)
        is_hit, binary = (row < n_hits).astype(np.float64), {**parameters, "objective": "binary"}
        with data.phase("trees"):
            state["hit"] = grown(table, is_hit, binary, validation=checks)
        # The training sets have more hits than the grid; shifting the log odds corrects this.
        state["shift"] = -float(np.log(zeros.each_training))
        if checks is not None:
            with data.phase("calibration"):
                odds = predicted(booster(state["hit"]), checks[0], raw_score=True)
                weight = np.repeat([1.0, zeros.each_validation], counts)
                calibrated = _calibrated(odds, checks[1], weight, state["shift"])
                state["shift"], state["slope"] = calibrated
        return state

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        if self._prepared_for is not state["sets"]:
            training = Part(GeneSets(state["sets"], state["offsets"]), state["targets"])
            self._prepare(cell, order, training)
            # Not recomputed, because a decomposition may round differently on another machine.
            self._columns.components = state["components"]
            effects = GeneEffects.from_state(state)
            left = training.targets - effects.score(training.sets)
            residuals = Measured.of(Part(training.sets, left), len(order))
            numbers = {name: state[name] for name in _OF_KNOWN}
            self._known = Known(effects=effects, residuals=residuals, **numbers)
        self._size = booster(state["size"])
        self._hit = None if state["hit"] is None else booster(state["hit"])
        self._shift, self._slope = state["shift"], state["slope"]

    def _prepare(self, cell: Cell, order: GeneOrder, training: Part) -> None:
        self._columns = PairColumns(cell, order, int(training.sets.sizes.max()), self.features)
        self._measured = Measured.of(training, len(order))
        self._prepared_for = training.sets.genes

    def _table(self, sets: GeneSets) -> Floats:
        return self._columns(self._known, sets, self._columns.votes(self._measured, sets))

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        table = self._table(sets)
        size = predicted(self._size, table) + table[:, 0]
        if self._hit is None:
            return Parts(size)
        odds = predicted(self._hit, table, raw_score=True)
        hit = 1 / (1 + np.exp(-(self._slope * odds + self._shift)))
        return Parts(hit * size, hit, size)

    def evidence(self, cell: Cell, genes: Sequence[int]) -> list[Vote]:
        """Return the measured sets next to a set of two or more genes, by descending weight."""
        order = self._order_for(cell)
        places = tuple(sorted(int(order.place[gene]) for gene in genes))
        both = zip(self._columns.neighbours, self._known.alike, strict=True)
        neighbours = Neighbours(*(one + other for one, other in both))
        return [
            Vote(
                tuple(order.gene[list(voter.genes)].tolist()),
                replaced=int(order.gene[voter.replaced]),
                by=int(order.gene[voter.by]),
                score=voter.score,
                relation=voter.relation,
                weight=voter.weight,
            )
            for voter in voters(self._measured, neighbours, places)
        ]


def _calibrated(
    odds: Doubles,
    label: Doubles,
    weight: Doubles,
    shift: float,
) -> tuple[float, float]:
    """Return the shift and slope of log odds that fit weighted labels best (Platt scaling)."""
    odds = odds + shift
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
