"""Gradient-boosted trees on what the relations and the features say of a genotype."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltacell.arrays import Doubles, Floats
from deltacell.cell import Cell
from deltacell.models.base import check_range
from deltacell.models.baselines.additive import GeneEffects, cross_fitted_effects, ridge
from deltacell.models.baselines.baseline import (
    FitData,
    FittedPredictor,
    Report,
    State,
    loaded,
    other_cell,
    saved,
)
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.models.baselines.network_features import ALL_AGGREGATES, NetworkFeatures, aggregated
from deltacell.models.gene_vectors import chosen_features, feature_vectors

if TYPE_CHECKING:
    from lightgbm import Booster

_SETS_PER_BLOCK = 65_536


@dataclass(eq=False)
class BoostedTrees(FittedPredictor):
    """Gradient-boosted regression trees (LightGBM) on columns that describe a set of genes.

    The columns are those of `NetworkFeatures`; the smallest, largest and mean value of each gene
    feature of the cell, where a feature wider than ``feature_dimensions`` is first reduced, see
    `feature_vectors`, and of the inner product of two genes' values; and the smallest, largest and
    mean additive effect of the genes, and of how many genes it is known. What is missing is missing
    (NaN) and never a zero: a feature that a gene does not have, and the effect of a gene that was
    not in training.

    The effects of the training genotypes are cross-fitted: each is learned from the folds that the
    genotype is not in, so that its own score does not leak into its columns. A share ``forget`` of
    them is hidden, so that training sees what a genotype with an unseen gene looks like. The number
    of rounds is fixed, so a validation part is not used.

    Parameters
    ----------
    rounds
        Number of trees.
    leaves
        The most leaves of a tree.
    learning_rate
        Share of each tree that is added.
    dimensions
        Width of the spectral embedding of each relation.
    feature_dimensions
        Principal components that are kept of a wider gene feature.
    penalty
        The penalty of the additive effects, as in `Additive`.
    folds
        Number of folds of the cross-fitting.
    forget
        Probability that the effect of a gene is hidden while training.
    features
        Features of the cell to use, by name; by default all.
    """

    rounds: int = 300
    leaves: int = 63
    learning_rate: float = 0.1
    dimensions: int = 8
    feature_dimensions: int = 16
    penalty: float = 3.0
    folds: int = 5
    forget: float = 0.1
    features: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_range("[2, inf)", leaves=self.leaves, folds=self.folds)
        check_range("[1, inf)", rounds=self.rounds, dimensions=self.dimensions)
        check_range("[1, inf)", feature_dimensions=self.feature_dimensions)
        check_range("(0, 1]", learning_rate=self.learning_rate)
        check_range("[0, 1)", forget=self.forget)
        check_range("(0, inf)", penalty=self.penalty)

    def _fit(self, data: FitData) -> None:
        cell, order, training, _, seed, report = data
        n, rng = len(order), np.random.default_rng(seed)
        report("additive effects", 0, self.rounds)
        self._effects: GeneEffects = ridge(training, n, self.penalty)
        effects = cross_fitted_effects(training, n, self.penalty, folds=self.folds, seed=seed)
        effects[rng.random(len(effects)) < self.forget] = np.nan
        report("columns", 0, self.rounds)
        self._largest = int(training.sets.sizes.max())
        self._network = self._network_features(cell, order, seed)
        self._gene_features = self._feature_tables(cell, order)
        self._fitted_on = weakref.ref(cell)
        self._trees = boosted(
            self._columns(training.sets, effects),
            training.targets,
            training.weights,
            {"num_leaves": self.leaves, "learning_rate": self.learning_rate, "seed": seed},
            self.rounds,
            report,
        )

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        self._check_cell(cell)
        score, effect = np.empty(len(sets)), self._effects.known
        for start in range(0, len(sets), _SETS_PER_BLOCK):
            block = sets.slice(start, min(start + _SETS_PER_BLOCK, len(sets)))
            columns = self._columns(block, effect[block.genes])
            score[start : start + len(block)] = predicted(self._trees, columns)
        return score

    def _columns(self, sets: GeneSets, effects: Doubles) -> Floats:
        how, over_pairs, pairs = self._network.over_genes, self._network.over_pairs, sets.pairs()
        tables = list(self._gene_features.values())
        products = [
            np.nansum(table[pairs.first] * table[pairs.second], axis=1, keepdims=True)
            for table in tables
        ]
        known = np.add.reduceat(~np.isnan(effects), sets.offsets[:-1], dtype=np.int64)
        columns = [
            self._network(sets),
            *(aggregated(t[sets.genes], sets.offsets, how, skip_missing=True) for t in tables),
            *(aggregated(product, pairs.offsets, over_pairs) for product in products),
            aggregated(effects[:, None], sets.offsets, how, skip_missing=True),
            known[:, None],
        ]
        return np.concatenate([column.astype(np.float32) for column in columns], axis=1)

    def _network_features(self, cell: Cell, order: GeneOrder, seed: int) -> NetworkFeatures:
        over_genes, over_pairs = ALL_AGGREGATES, ALL_AGGREGATES
        # Among one gene, or one pair, all aggregates agree; the mean of two is half their sum.
        if self._largest <= 2:
            over_genes, over_pairs = ("min", "max"), ("mean",)
        if self._largest == 1:
            over_genes, over_pairs = ("mean",), ()
        return NetworkFeatures(
            [relation.take(order.gene) for relation in cell.relations.values()],
            len(order),
            dimensions=self.dimensions,
            over_genes=over_genes,
            over_pairs=over_pairs,
            seed=seed,
        )

    def _feature_tables(self, cell: Cell, order: GeneOrder) -> dict[str, Floats]:
        """Return gene features by name, [genes, columns] each; NaN for a gene without values."""
        tables = {}
        for feature in sorted(chosen_features(cell, self.features), key=lambda f: f.name):
            values = feature.values
            if feature.width > self.feature_dimensions:
                values = feature_vectors([feature], self.feature_dimensions)
                values[~feature.known] = np.nan
            tables[feature.name] = values[order.gene]
        return tables

    def _state(self) -> State:
        relations = self._network.relations
        return {
            **self._effects.state(),
            "largest": self._largest,
            "seed": self._network.seed,
            "relations": {relation.name: relation.n_entries for relation in relations},
            "embeddings": [saved(embedding) for embedding in self._network.embeddings],
            "gene_features": {name: saved(table) for name, table in self._gene_features.items()},
            "trees": self._trees.model_to_string(),
        }

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        from lightgbm import Booster

        self._effects = GeneEffects.from_state(state)
        self._largest = int(state["largest"])
        self._network = self._network_features(cell, order, int(state["seed"]))
        given = {relation.name: relation.n_entries for relation in self._network.relations}
        if list(given.items()) != list(state["relations"].items()):
            raise other_cell("it has other relations")
        # An eigensolver may round differently elsewhere, and the trees were made for these.
        self._network.embeddings = [loaded(embedding) for embedding in state["embeddings"]]
        self._gene_features = {
            name: loaded(table) for name, table in state["gene_features"].items()
        }
        self._trees = Booster(model_str=state["trees"])
        self._fitted_on = weakref.ref(cell)

    def _check_cell(self, cell: Cell) -> None:
        if self._fitted_on() is cell:
            return
        order = GeneOrder(cell.genes)
        fitted = {relation.name: relation for relation in self._network.relations}
        if list(cell.relations) != list(fitted):
            raise other_cell("it has other relations")
        for name, relation in cell.relations.items():
            if not relation.take(order.gene).equals(fitted[name]):
                raise other_cell(f"the relation '{name}' differs")
        tables = self._feature_tables(cell, order)
        for name, table in self._gene_features.items():
            # A decomposition may round differently elsewhere.
            if not np.allclose(tables[name], table, rtol=1e-3, atol=1e-3, equal_nan=True):
                raise other_cell(f"the feature '{name}' differs")
        self._fitted_on = weakref.ref(cell)


def boosted(
    columns: Floats,
    targets: Doubles,
    weights: Doubles,
    parameters: dict[str, Any],
    rounds: int,
    report: Report,
    *,
    validation: tuple[Floats, Doubles] | None = None,
    patience: int = 50,
) -> Booster:
    """Return LightGBM trees fitted on columns [rows, columns]; the same input, the same trees.

    At most ``patience`` trees follow the best one by the validation columns and targets. What
    ``report`` raises stops the training.
    """
    # Loading LightGBM takes a second that the other predictors need not wait for.
    import lightgbm

    whole = {
        "objective": "regression",
        "verbosity": -1,
        "deterministic": True,
        "force_row_wise": True,
        "feature_pre_filter": False,
        "num_threads": torch.get_num_threads(),
        **parameters,
    }
    equal = bool((weights == weights[0]).all())
    data = lightgbm.Dataset(columns, targets, weight=None if equal else weights, params=whole)

    def after_tree(done: Any) -> None:
        results = {name: value for _, name, value, _ in done.evaluation_result_list or ()}
        report("trees", done.iteration + 1, rounds, **results)

    callbacks: list[Any] = [after_tree]
    checks = []
    if validation is not None:
        checks = [data.create_valid(*validation)]
        callbacks.append(lightgbm.early_stopping(patience, verbose=False))
    fitted = lightgbm.train(whole, data, rounds, valid_sets=checks, callbacks=callbacks)
    # What predicts is what can be saved, so that a loaded predictor is the same to the last bit.
    best = fitted.best_iteration if checks else None
    return lightgbm.Booster(model_str=fitted.model_to_string(num_iteration=best))


def predicted(trees: Booster, columns: Floats, **options: Any) -> Doubles:
    """Return the score of each row of columns."""
    found = trees.predict(columns, num_threads=torch.get_num_threads(), **options)
    return np.asarray(found, np.float64)
