"""Boosted trees on the columns of gene sets, in two parts: the odds of a hit, and its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deltacell.base.arrays import Bools, Doubles, Floats, Ints
from deltacell.cell import Cell
from deltacell.models.baselines.boosted_trees import boosted, booster, predicted
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.fitted.predictor import (
    FitData,
    FittedPredictor,
    Part,
    Parts,
    State,
    Zeros,
)
from deltacell.models.interface import StudyEvidence, Vote
from deltacell.models.pair_trees.calibration import Calibration, calibrated
from deltacell.models.pairs.columns import Known, PairColumns, training_columns
from deltacell.models.pairs.context import ContextColumns
from deltacell.models.pairs.messages import Measured, named_votes
from deltacell.profile.refitted import ChosenByValidation
from deltacell.screen import Genotypes

# With the columns of other studies, 15 leaves were better than 7 by validation for 5,000 pairs of
# Collins 2007 (mean Pearson of three seeds 0.595, and 0.578 with 7).
CONTEXT_LEAVES = 15
# Small screens with context: the mean of three fits was better than one (0.590, and 0.578).
CONTEXT_FITS = 3
_NEXT_SEED = 1_000_003
_SMALL = 20_000  # sets of the training part; with more, one fit is enough


@dataclass(eq=False)
class PairTrees(FittedPredictor):
    """Gradient-boosted trees (LightGBM) on pair messages, effects, features and networks.

    The columns are those of `PairColumns`, see `training_columns`, and the trees predict the
    residual of the additive model for hits. With zeros, further trees predict which sets are hits,
    calibrated on the grid of tested sets, and the expected score is the product of both parts.
    docs/reference/config.md describes all parameters.

    With context, the columns of each study follow, see `StudyColumns`, trees have at least
    ``CONTEXT_LEAVES`` leaves, and scores of small screens are the mean of ``CONTEXT_FITS`` fits.
    """

    reads_context = True

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
    _studies: ContextColumns = field(default=ContextColumns(), init=False, repr=False)
    # The training sets of `_columns`, so that loading the state after a fit need not remake them.
    _prepared_for: Ints | None = field(default=None, init=False, repr=False)

    def _fit(self, data: FitData) -> State:
        zeros = data.draw_zeros(self.zeros)
        data.report("columns", 0, (1 if zeros is None else 2) * self.rounds)
        with data.phase("columns"):
            self._prepare(data.cell, data.order, data.training)
        rows = self._training_rows(data, zeros)
        validation = None if data.validation is None else self._validation_rows(data)
        with data.phase("trees"):
            sizes = [
                self._trees_for_scores(data, rows.of_hits, validation, repeat)
                for repeat in range(self._n_fits(data))
            ]
        state = {
            "sets": data.training.sets.genes,
            "offsets": data.training.sets.offsets,
            "targets": data.training.targets,
            **self._known.state(),
            "components": self._columns.components,
            "size": sizes[0],
            "hit": None,
            "shift": 0.0,
            "slope": 1.0,
        }
        if self._studies.columns:
            state["context"] = self._studies.state()
            state["more_sizes"] = sizes[1:]
        if zeros is not None:
            state |= self._trees_for_hits(data, rows, zeros, validation)
        return state

    def _training_rows(self, data: FitData, zeros: Zeros | None) -> _Rows:
        """Return what the trees learn from: each set in several rows, and zeros without a score."""
        training, sets = data.training, data.training.sets
        others = None if zeros is None else data.order.sets(zeros.training)
        with data.phase("folds"):
            table, set_of_row = training_columns(
                self._columns,
                training,
                others,
                penalty=self.penalty,
                folds=self.folds,
                gene_folds=self.gene_folds,
                rounds=self.gene_rounds,
                seed=data.seed,
            )
        with data.phase("columns"):
            self._known = Known.of(training, len(data.order), self.penalty)
            self._studies = ContextColumns.of(
                self._context,
                data.cell,
                data.order,
                self._columns,
                self.penalty,
            )
            if self._studies.columns:
                every = sets if others is None else sets.followed_by(others)
                of_sets = self._studies(data.cell, data.order, every)
                table = np.concatenate([table, of_sets[set_of_row]], axis=1)
        is_hit = set_of_row < len(sets)
        scores = np.full(len(set_of_row), np.nan)
        scores[is_hit] = training.targets[set_of_row[is_hit]]
        return _Rows(table, scores, is_hit)

    def _validation_rows(self, data: FitData) -> _Rows:
        assert data.validation is not None
        sets, scores = data.validation.sets, data.validation.targets
        with data.phase("columns"):
            table = self._table(data.cell, data.order, sets)
        return _Rows(table, scores, np.ones(len(sets), dtype=bool))

    def _n_fits(self, data: FitData) -> int:
        if data.chosen is not None:
            return len(data.chosen.rounds)
        has_context = bool(self._studies.columns)
        return CONTEXT_FITS if has_context and len(data.training.sets) <= _SMALL else 1

    def _trees_for_scores(
        self,
        data: FitData,
        rows: _Rows,
        validation: _Rows | None,
        repeat: int,
    ) -> str:
        """Fit the score of a hit, less that of the additive model; repeats draw other samples."""
        checks = None if validation is None else (validation.table, validation.residuals)
        rounds = self.rounds if data.chosen is None else data.chosen.rounds[repeat]
        return boosted(
            rows.table,
            rows.residuals,
            {**self._parameters(data), "seed": data.seed + repeat * _NEXT_SEED},
            rounds,
            data.report,
            validation=checks,
            patience=self.patience,
        )

    def _trees_for_hits(
        self,
        data: FitData,
        rows: _Rows,
        zeros: Zeros,
        validation: _Rows | None,
    ) -> State:
        """Fit which sets are hits, calibrated on the grid of tested sets."""
        kept = data.chosen
        rounds = self.rounds
        if kept is not None and kept.rounds_of_hits is not None:
            rounds = kept.rounds_of_hits
        checks = None
        if validation is not None and len(zeros.validation):
            with data.phase("columns"):
                none = self._table(data.cell, data.order, data.order.sets(zeros.validation))
            counts = [len(validation.table), len(none)]
            checks = np.concatenate([validation.table, none]), np.repeat([1.0, 0.0], counts)
        with data.phase("trees"):
            hit = boosted(
                rows.table,
                rows.is_hit.astype(np.float64),
                {**self._parameters(data), "objective": "binary"},
                rounds,
                data.report,
                validation=checks,
                patience=self.patience,
            )
        # The training sets have more hits than the grid; shifting the log odds corrects this.
        calibration = Calibration(-float(np.log(zeros.each_training)), 1.0)
        if checks is not None:
            table, label = checks
            with data.phase("calibration"):
                odds = predicted(booster(hit), table, raw_score=True)
                weight = np.repeat([1.0, zeros.each_validation], counts)
                calibration = calibrated(odds, label, weight, calibration.shift)
        if kept is not None and kept.shift is not None and kept.slope is not None:
            calibration = Calibration(kept.shift, kept.slope)
        return {"hit": hit, "shift": calibration.shift, "slope": calibration.slope}

    def chosen(self) -> ChosenByValidation:
        """Return the numbers of trees and, with trees for hits, their calibration."""
        rounds = tuple(trees.num_trees() for trees in self._sizes)
        if self._hit is None:
            return ChosenByValidation(rounds=rounds)
        return ChosenByValidation(
            rounds=rounds,
            rounds_of_hits=self._hit.num_trees(),
            shift=self._calibration.shift,
            slope=self._calibration.slope,
        )

    def _parameters(self, data: FitData) -> dict[str, Any]:
        """Return the parameters of LightGBM."""
        n_hits = len(data.training.sets)
        fewest_leaves = CONTEXT_LEAVES if self._studies.columns else 0
        return {
            "num_leaves": max(self.leaves, fewest_leaves),
            "learning_rate": self.learning_rate,
            "feature_fraction": self.column_share,
            "bagging_fraction": self.row_share,
            "bagging_freq": 1,
            "min_data_in_leaf": min(60, max(1, n_hits // 170)),
            "lambda_l2": 5.0,
            "seed": data.seed,
        }

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        if self._prepared_for is not state["sets"]:
            training = Part(GeneSets(state["sets"], state["offsets"]), state["targets"])
            self._prepare(cell, order, training)
            # Not recomputed, because a decomposition may round differently on another machine.
            self._columns.components = state["components"]
            self._known = Known.from_state(state, training, len(order))
            of_studies = state.get("context", [])
            self._studies = ContextColumns.from_state(
                self._context,
                cell,
                order,
                self._columns,
                of_studies,
            )
        self._sizes = [booster(text) for text in (state["size"], *state.get("more_sizes", ()))]
        self._hit = None if state["hit"] is None else booster(state["hit"])
        self._calibration = Calibration(state["shift"], state["slope"])

    def _prepare(self, cell: Cell, order: GeneOrder, training: Part) -> None:
        self._columns = PairColumns(cell, order, int(training.sets.sizes.max()), self.features)
        self._measured = Measured.of(training, len(order))
        self._prepared_for = training.sets.genes

    def table_of(self, cell: Cell, genotypes: Genotypes, scores: Doubles) -> Floats:
        """Return the columns of genotypes with these scores, without those of other studies.

        Nothing is kept, so a benchmark can measure how long it takes.
        """
        order = GeneOrder(cell.genes)
        sets = order.sets(genotypes)
        measured = Part(sets, scores)
        columns = PairColumns(cell, order, int(sets.sizes.max()), self.features)
        sums = columns.sums(Measured.of(measured, len(order)), sets)
        return columns(Known.of(measured, len(order), self.penalty), sets, sums)

    def _table(self, cell: Cell, order: GeneOrder, sets: GeneSets) -> Floats:
        table = self._columns(self._known, sets, self._columns.sums(self._measured, sets))
        if not self._studies.columns:
            return table
        return np.concatenate([table, self._studies(cell, order, sets)], axis=1)

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        table = self._table(cell, self._order_for(cell), sets)
        size = self._mean_residual(table) + table[:, 0]
        if self._hit is None:
            return Parts(size)
        hit = self._calibration.probability(predicted(self._hit, table, raw_score=True))
        return Parts(hit * size, hit, size)

    def _mean_residual(self, table: Floats) -> Doubles:
        residuals = [predicted(trees, table) for trees in self._sizes]
        if len(residuals) == 1:
            return residuals[0]
        mean: Doubles = np.mean(residuals, axis=0)
        return mean

    def evidence(self, cell: Cell, genes: Sequence[int]) -> list[Vote]:
        """Return the measured sets that differ from a set in one gene, by descending weight.

        These are most of what the score rests on, but not all: the sums over pairs with neighbours
        in place of *both* genes (``both`` of `PairSums`) enter the score too and are not listed.
        """
        order = self._order_for(cell)
        places = tuple(sorted(int(order.place[gene]) for gene in genes))
        neighbours = self._columns.neighbours.joined(self._known.alike)
        return named_votes(self._measured, neighbours, places, order)

    def context_evidence(self, cell: Cell, genes: Sequence[int]) -> list[StudyEvidence]:
        """Return what each study of the context says of a set, by the name of the study."""
        order = self._order_for(cell)
        evidence = [study.evidence(cell, order, genes) for study in self._studies.columns]
        return sorted(evidence, key=lambda of_study: of_study.study)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows to learn from or to validate on, [rows] each."""

    table: Floats  # the columns; the first is the score of the additive model, [rows, columns]
    scores: Doubles  # NaN for a tested set that is no hit
    is_hit: Bools

    @property
    def of_hits(self) -> _Rows:
        if self.is_hit.all():
            return self
        return _Rows(self.table[self.is_hit], self.scores[self.is_hit], self.is_hit[self.is_hit])

    @property
    def residuals(self) -> Doubles:
        """The scores less those of the additive model."""
        return self.scores - self.table[:, 0].astype(np.float64)
