"""Gradient-boosted trees on what the relations say of a genotype."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from deltacell.arrays import Floats
from deltacell.cell import Cell, Relation
from deltacell.errors import InputError
from deltacell.models.baselines.baseline import Baseline, Doubles, Part, Progress
from deltacell.models.baselines.gene_effects import (
    GeneEffects,
    check_penalty,
    cross_fitted,
    ridge,
)
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.models.baselines.network_features import (
    ALL_AGGREGATES,
    Aggregate,
    NetworkFeatures,
    aggregated,
)
from deltacell.models.gene_vectors import chosen_features, feature_vectors

_SETS_A_BLOCK = 65_536
_STAGES = 3
_COMPONENTS_OF_A_FEATURE = 16


class BoostedTrees(Baseline):
    """Gradient-boosted regression trees on networks, features and additive effects of the genes.

    The columns are those of `NetworkFeatures`; the smallest, largest and mean over the set of each
    number of its genes' vectors, see `feature_vectors`, and of the inner product of two of them,
    feature by feature; and the same of the genes' additive effects. The effects of the training
    genotypes are cross-fitted: each is learned from the folds that the genotype is not in, so that
    its own score does not leak into its columns. The number of rounds is fixed, so a validation
    part is not used.

    Parameters
    ----------
    rounds
        Number of trees.
    leaves
        Most leaves of a tree.
    learning_rate
        What share of each tree is added.
    dimensions
        Width of the spectral embedding of each relation.
    penalty
        The penalty of the additive effects, as in `Additive`.
    folds
        Number of folds of the cross-fitting.
    features
        Features of the cell to use, by name; all where not given.
    """

    def __init__(
        self,
        rounds: int = 300,
        leaves: int = 63,
        learning_rate: float = 0.1,
        dimensions: int = 8,
        penalty: float = 3.0,
        folds: int = 5,
        features: Sequence[str] | None = None,
    ) -> None:
        for name, value, least in (
            ("rounds", rounds, 1),
            ("leaves", leaves, 2),
            ("dimensions", dimensions, 1),
            ("folds", folds, 2),
        ):
            if value < least:
                raise InputError(f"{name} is {value}; expected at least {least}")
        if not 0 < learning_rate <= 1:
            raise InputError(f"the learning rate is {learning_rate}; expected above 0, at most 1")
        self.rounds = rounds
        self.leaves = leaves
        self.learning_rate = learning_rate
        self.dimensions = dimensions
        self.penalty = check_penalty(penalty)
        self.folds = folds
        self.features = None if features is None else tuple(features)

    def _fit(
        self,
        cell: Cell,
        order: GeneOrder,
        training: Part,
        validation: Part | None,
        seed: int,
        progress: Progress,
    ) -> None:
        # Loading scikit-learn takes a second that the other baselines need not pay.
        from sklearn.ensemble import HistGradientBoostingRegressor

        n = len(order)
        progress("additive effects", 0, _STAGES)
        self._effects: GeneEffects = ridge(training, n, self.penalty)
        own = cross_fitted(training, n, self.penalty, folds=self.folds, seed=seed)
        progress("network features", 1, _STAGES)
        over_genes, over_pairs = _telling(int(training.sets.sizes.max()))
        self._network = NetworkFeatures(
            _relations(cell, order),
            n,
            dimensions=self.dimensions,
            over_genes=over_genes,
            over_pairs=over_pairs,
            seed=seed,
        )
        self._vectors = self._feature_vectors(cell, order)
        self._fitted_on = weakref.ref(cell)
        features = self._features(training.sets, own.of(training.sets))
        progress("trees", 2, _STAGES)
        self._trees: Any = HistGradientBoostingRegressor(
            max_iter=self.rounds,
            max_leaf_nodes=self.leaves,
            learning_rate=self.learning_rate,
            early_stopping=False,
            random_state=seed,
        )
        equal = bool((training.weights == training.weights[0]).all())
        weights = None if equal else training.weights
        self._trees.fit(features, training.targets, sample_weight=weights)
        progress("trees", 3, _STAGES)

    def _score(self, cell: Cell, sets: GeneSets) -> Doubles:
        self._check_cell(cell)
        score = np.empty(len(sets))
        for start in range(0, len(sets), _SETS_A_BLOCK):
            block = sets.slice(start, min(start + _SETS_A_BLOCK, len(sets)))
            features = self._features(block, self._effects.effect[block.genes])
            score[start : start + len(block)] = self._trees.predict(features)
        return score

    def _features(self, sets: GeneSets, effects: Doubles) -> Floats:
        over_genes, over_pairs = self._network.over_genes, self._network.over_pairs
        columns = [self._network(sets)]
        pairs = sets.pairs()
        for vectors in self._vectors.values():
            columns.append(aggregated(vectors[sets.genes], sets.offsets, over_genes))
            product = np.einsum("pd,pd->p", vectors[pairs.first], vectors[pairs.second])
            columns.append(aggregated(product[:, None], pairs.offsets, over_pairs))
        columns.append(aggregated(effects[:, None], sets.offsets, over_genes))
        return np.concatenate([column.astype(np.float32) for column in columns], axis=1)

    def _feature_vectors(self, cell: Cell, order: GeneOrder) -> dict[str, Floats]:
        """Return the genes' vectors of each feature; the seed is fixed, so that they stay equal."""
        return {
            feature.name: feature_vectors([feature.take(order.gene)], _COMPONENTS_OF_A_FEATURE)
            for feature in chosen_features(cell, self.features)
        }

    def _check_cell(self, cell: Cell) -> None:
        """Raise where the cell has other relations or features than the one it was fitted on."""
        if self._fitted_on() is cell:
            return
        fitted = {r.name: r for r in self._network.relations}
        order = GeneOrder(cell.genes)
        given = {r.name: r for r in _relations(cell, order)}
        if list(fitted) != list(given):
            raise InputError(
                f"fitted on the relations {', '.join(fitted) or 'none'}, "
                f"and given a cell with {', '.join(given) or 'none'}"
            )
        for name, relation in given.items():
            if not relation.equals(fitted[name]):
                raise InputError(
                    f"the relation '{name}' of this cell is not the one it was fitted on",
                    fix="Give the cell it was fitted on, or fit it again.",
                )
        vectors = self._feature_vectors(cell, order)
        for name in [*self._vectors, *vectors]:
            ours, theirs = self._vectors.get(name), vectors.get(name)
            if ours is None or theirs is None or not np.array_equal(ours, theirs):
                raise InputError(
                    f"the feature '{name}' of this cell is not the one it was fitted on",
                    fix="Give the cell it was fitted on, or fit it again.",
                )
        self._fitted_on = weakref.ref(cell)


def _relations(cell: Cell, order: GeneOrder) -> list[Relation]:
    return [relation.take(order.gene) for relation in cell.relations.values()]


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
