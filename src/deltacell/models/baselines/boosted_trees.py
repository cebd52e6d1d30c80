"""Gradient-boosted trees on what the relations and the features say of a genotype."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltacell.arrays import Floats
from deltacell.cell import Cell, Relation
from deltacell.errors import InputError
from deltacell.models.baselines.baseline import (
    Doubles,
    FittedPredictor,
    Part,
    Report,
    State,
    loaded,
    saved,
)
from deltacell.models.baselines.gene_effects import GeneEffects, check_penalty, cross_fitted, ridge
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.models.baselines.network_features import (
    ALL_AGGREGATES,
    Aggregate,
    NetworkFeatures,
    aggregated,
)
from deltacell.models.gene_vectors import chosen_features, feature_vectors

if TYPE_CHECKING:
    from lightgbm import Booster

_SETS_A_BLOCK = 65_536


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
        Most leaves of a tree.
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
        Features of the cell to use, by name; all where not given.
    """

    def __init__(
        self,
        rounds: int = 300,
        leaves: int = 63,
        learning_rate: float = 0.1,
        dimensions: int = 8,
        feature_dimensions: int = 16,
        penalty: float = 3.0,
        folds: int = 5,
        forget: float = 0.1,
        features: Sequence[str] | None = None,
    ) -> None:
        for name, value, least in (
            ("rounds", rounds, 1),
            ("leaves", leaves, 2),
            ("dimensions", dimensions, 1),
            ("feature_dimensions", feature_dimensions, 1),
            ("folds", folds, 2),
        ):
            if value < least:
                raise InputError(f"{name} is {value}; expected at least {least}")
        if not 0 < learning_rate <= 1:
            raise InputError(f"the learning rate is {learning_rate}; expected above 0, at most 1")
        if not 0 <= forget < 1:
            raise InputError(f"forget is {forget}; expected at least 0 and below 1")
        self.rounds = rounds
        self.leaves = leaves
        self.learning_rate = learning_rate
        self.dimensions = dimensions
        self.feature_dimensions = feature_dimensions
        self.penalty = check_penalty(penalty)
        self.folds = folds
        self.forget = forget
        self.features = None if features is None else tuple(features)

    def _fit(
        self,
        cell: Cell,
        order: GeneOrder,
        training: Part,
        validation: Part | None,
        seed: int,
        progress: Report,
    ) -> None:
        n, rng = len(order), np.random.default_rng(seed)
        progress("additive effects", 0, self.rounds)
        self._effects: GeneEffects = ridge(training, n, self.penalty)
        own = cross_fitted(training, n, self.penalty, folds=self.folds, seed=seed)
        effects = own.known_of(training.sets)
        effects[rng.random(len(effects)) < self.forget] = np.nan
        progress("columns", 0, self.rounds)
        self._largest = int(training.sets.sizes.max())
        self._network = self._columns_of(cell, order, seed)
        self._gene_features = self._feature_tables(cell, order)
        self._fitted_on = weakref.ref(cell)
        self._trees = boosted(
            self._columns(training.sets, effects),
            training.targets,
            training.weights,
            {"num_leaves": self.leaves, "learning_rate": self.learning_rate, "seed": seed},
            self.rounds,
            progress,
        )

    def _feature_tables(self, cell: Cell, order: GeneOrder) -> dict[str, Floats]:
        return feature_tables(cell, order, self.features, self.feature_dimensions)

    def _columns_of(self, cell: Cell, order: GeneOrder, seed: int) -> NetworkFeatures:
        over_genes, over_pairs = _telling(self._largest)
        return NetworkFeatures(
            _relations(cell, order),
            len(order),
            dimensions=self.dimensions,
            over_genes=over_genes,
            over_pairs=over_pairs,
            seed=seed,
        )

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        self._check_relations(cell)
        score = np.empty(len(sets))
        effect = self._effects.known
        for start in range(0, len(sets), _SETS_A_BLOCK):
            block = sets.slice(start, min(start + _SETS_A_BLOCK, len(sets)))
            columns = self._columns(block, effect[block.genes])
            score[start : start + len(block)] = predicted(self._trees, columns)
        return score

    def _columns(self, sets: GeneSets, effects: Doubles) -> Floats:
        how, over_pairs, pairs = self._network.over_genes, self._network.over_pairs, sets.pairs()
        of_genes = [table[sets.genes] for table in self._gene_features.values()]
        products = [
            np.nansum(table[pairs.first] * table[pairs.second], axis=1, keepdims=True)
            for table in self._gene_features.values()
        ]
        known = np.add.reduceat(~np.isnan(effects), sets.offsets[:-1], dtype=np.int64)
        columns = [
            self._network(sets),
            *(aggregated(table, sets.offsets, how, skip_missing=True) for table in of_genes),
            *(aggregated(product, pairs.offsets, over_pairs) for product in products),
            aggregated(effects[:, None], sets.offsets, how, skip_missing=True),
            known[:, None],
        ]
        return np.concatenate([column.astype(np.float32) for column in columns], axis=1)

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

        self._effects = GeneEffects.of_state(state)
        self._largest = int(state["largest"])
        self._network = self._columns_of(cell, order, int(state["seed"]))
        given = {relation.name: relation.n_entries for relation in self._network.relations}
        _check_names(list(state["relations"]), list(given))
        for name, entries in given.items():
            if entries != state["relations"][name]:
                raise _other("relation", name)
        # An eigensolver may round differently elsewhere, and the trees were made for these.
        self._network.embeddings = [loaded(embedding) for embedding in state["embeddings"]]
        self._gene_features = {
            name: loaded(table) for name, table in state["gene_features"].items()
        }
        self._trees = Booster(model_str=state["trees"])
        self._fitted_on = weakref.ref(cell)

    def _check_relations(self, cell: Cell) -> None:
        """Raise where the cell has other relations than the one it was fitted on."""
        if self._fitted_on() is cell:
            return
        fitted = {r.name: r for r in self._network.relations}
        given = {r.name: r for r in _relations(cell, GeneOrder(cell.genes))}
        _check_names(list(fitted), list(given))
        for name, relation in given.items():
            if not relation.equals(fitted[name]):
                raise _other("relation", name)
        tables = self._feature_tables(cell, GeneOrder(cell.genes))
        for name, table in self._gene_features.items():
            # A decomposition may round differently elsewhere.
            if not np.allclose(tables[name], table, rtol=1e-3, atol=1e-3, equal_nan=True):
                raise _other("feature", name)
        self._fitted_on = weakref.ref(cell)


def boosted(
    columns: Floats,
    targets: Doubles,
    weights: Doubles,
    parameters: dict[str, Any],
    rounds: int,
    progress: Report,
    *,
    validation: tuple[Floats, Doubles, Doubles | None] | None = None,
    patience: int = 50,
) -> Booster:
    """Return LightGBM trees that were fitted on columns; the same input gives the same trees.

    Parameters
    ----------
    columns
        One row per genotype, [rows, columns]; NaN is missing.
    targets, weights
        What to learn, and how much each row counts, [rows].
    parameters
        LightGBM parameters besides those that make it deterministic.
    rounds
        The most trees.
    progress
        Called after every tree; what it raises stops the training.
    validation
        Columns, targets and weights to stop by.
    patience
        How many trees may follow the best one by validation.
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

    def report(done: Any) -> None:
        results = {name: value for _, name, value, _ in done.evaluation_result_list or ()}
        progress("trees", done.iteration + 1, rounds, **results)

    callbacks: list[Any] = [report]
    checks = []
    if validation is not None:
        checks = [data.create_valid(validation[0], validation[1], weight=validation[2])]
        callbacks.append(lightgbm.early_stopping(patience, verbose=False))
    fitted = lightgbm.train(whole, data, rounds, valid_sets=checks, callbacks=callbacks)
    # What predicts is what can be saved, so that a loaded predictor is the same to the last bit.
    best = fitted.best_iteration if checks else None
    return lightgbm.Booster(model_str=fitted.model_to_string(num_iteration=best))


def predicted(trees: Booster, columns: Floats) -> Doubles:
    """Return the score of each row of columns."""
    return np.asarray(trees.predict(columns, num_threads=torch.get_num_threads()), np.float64)


def feature_tables(
    cell: Cell, order: GeneOrder, names: Sequence[str] | None, widest: int
) -> dict[str, Floats]:
    """Return gene features by name, [genes, columns] each, missing values as NaN.

    Parameters
    ----------
    cell
        The wild type.
    order
        The order of the rows.
    names
        Features of the cell; all where None.
    widest
        A wider feature is reduced to so many components, see `feature_vectors`. A gene without any
        value stays missing.
    """
    tables = {}
    for feature in sorted(chosen_features(cell, names), key=lambda feature: feature.name):
        values = feature.values
        if feature.width > widest:
            values = feature_vectors([feature], widest)
            values[~feature.known] = np.nan
        tables[feature.name] = values[order.gene]
    return tables


def _relations(cell: Cell, order: GeneOrder) -> list[Relation]:
    return [relation.take(order.gene) for relation in cell.relations.values()]


def _check_names(fitted: list[str], given: list[str]) -> None:
    if fitted != given:
        raise InputError(
            f"fitted on the relations {', '.join(fitted) or 'none'}, "
            f"and given a cell with {', '.join(given) or 'none'}"
        )


def _other(what: str, name: str) -> InputError:
    return InputError(
        f"the {what} '{name}' of this cell is not the one it was fitted on",
        fix="Give the cell it was fitted on, or fit it again.",
    )


def _telling(largest: int) -> tuple[tuple[Aggregate, ...], tuple[Aggregate, ...]]:
    """Return which aggregates, over genes and over pairs, do not follow from each other.

    Among one gene, or one pair, smallest, largest and mean are the same; of two genes the mean is
    half the sum of the others. Single genes have no pairs to learn from.
    """
    if largest == 1:
        return ("mean",), ()
    if largest == 2:
        return ("min", "max"), ("mean",)
    return ALL_AGGREGATES, ALL_AGGREGATES
