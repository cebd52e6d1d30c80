"""Gradient-boosted trees on the relations and features of the deleted genes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from deltacell.base.arrays import AnyArray, Doubles, Floats, Ints
from deltacell.cell import Cell, Relation
from deltacell.models.baselines.additive import GeneEffects, cross_fitted_effects, ridge
from deltacell.models.baselines.tree_text import damaged_trees, read_trees
from deltacell.models.eigenvectors import leading_eigenvectors, leading_singular_vectors
from deltacell.models.fitted.gene_sets import (
    EVERY,
    GeneOrder,
    GenePairs,
    GeneSets,
    aggregated,
    look_up,
)
from deltacell.models.fitted.predictor import FitData, FittedPredictor, Parts, State, other_cell
from deltacell.models.gene_vectors import chosen_features, feature_vectors, largest_signs

if TYPE_CHECKING:
    from lightgbm import Booster


class Aggregates(NamedTuple):
    """How numbers of the genes, and of the pairs, of a set are aggregated."""

    genes: Sequence[str]
    pairs: Sequence[str]


# By largest set; fewer if some would be redundant.
AGGREGATES: Mapping[int, Aggregates] = {
    1: Aggregates(("mean",), ()),
    2: Aggregates(("min", "max"), ("mean",)),
}
_SETS_PER_BLOCK = 16_384
_SMALL_ENOUGH_FOR_DENSE = 512
_NO_SINGULAR_VALUE = 1e-9


@dataclass(eq=False)
class BoostedTrees(FittedPredictor):
    """Gradient-boosted regression trees (LightGBM) on columns that describe a set of genes.

    The columns are `network_columns` and the minimum, maximum and mean of each gene feature (wide
    ones are reduced by `feature_vectors`), of the inner product of two genes' values, and of the
    additive effects. Missing features and the effects of unseen genes are NaN.

    The effects of the training genotypes are cross-fitted, so that no score leaks into its own
    columns, and a share ``forget`` of them is hidden, so that training includes genotypes with
    unseen genes. docs/reference/config.md describes all parameters.
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

    def _fit(self, data: FitData) -> State:
        training = data.training
        n_genes = len(data.order)
        seed = data.seed
        data.report("additive effects", 0, self.rounds)
        effects = ridge(training, n_genes, self.penalty)
        of_gene = cross_fitted_effects(
            training,
            n_genes,
            self.penalty,
            folds=self.folds,
            seed=seed,
        )
        is_forgotten = np.random.default_rng(seed).random(len(of_gene)) < self.forget
        of_gene[is_forgotten] = np.nan
        data.report("columns", 0, self.rounds)
        with data.phase("columns"):
            relations = _relations(data.cell, data.order)
            embeddings = [
                spectral_embedding(relation, self.dimensions, seed=seed) for relation in relations
            ]
            gene_features = self._feature_tables(data.cell, data.order)
        state = {
            **vars(effects),
            "largest": int(training.sets.sizes.max()),
            "relations": {relation.name: relation.n_entries for relation in relations},
            "embeddings": embeddings,
            "gene_features": gene_features,
        }
        with data.phase("columns"):
            self._prepare(data.cell, data.order, state)
            columns = self._columns(training.sets, of_gene)
        options = {"num_leaves": self.leaves, "learning_rate": self.learning_rate, "seed": seed}
        with data.phase("trees"):
            state["trees"] = boosted(
                columns,
                training.targets,
                options,
                self.rounds,
                data.report,
            )
        return state

    def _load(self, cell: Cell, order: GeneOrder, state: State) -> None:
        n_entries = {relation.name: relation.n_entries for relation in cell.relations.values()}
        if list(n_entries.items()) != list(state["relations"].items()):
            raise other_cell("it has other relations")
        self._prepare(cell, order, state)
        self._trees = booster(state["trees"])

    def _prepare(self, cell: Cell, order: GeneOrder, state: State) -> None:
        self._over = AGGREGATES.get(state["largest"], Aggregates(EVERY, EVERY))
        self._cell = cell
        self._relations = _relations(cell, order)
        # Not recomputed, because a decomposition may round differently on another machine.
        self._embeddings = state["embeddings"]
        self._tables = state["gene_features"]

    def _feature_tables(self, cell: Cell, order: GeneOrder) -> dict[str, Floats]:
        tables = {}
        for feature in sorted(chosen_features(cell, self.features), key=lambda f: f.name):
            values = feature.values
            if feature.width > self.feature_dimensions:
                values = feature_vectors(feature, self.feature_dimensions)
                values[~feature.known] = np.nan
            tables[feature.name] = values[order.gene]
        return tables

    def _columns(self, sets: GeneSets, effects: Doubles) -> Floats:
        pairs = sets.pairs()
        over_genes = self._over.genes
        over_pairs = self._over.pairs
        tables = list(self._tables.values())
        columns: list[AnyArray] = [
            network_columns(sets, self._relations, self._embeddings, over_genes, over_pairs),
        ]
        for table in tables:
            of_genes = table[sets.genes]
            columns.append(aggregated(of_genes, sets.offsets, over_genes, skip_missing=True))
        for table in tables:
            both_known = table[pairs.first] * table[pairs.second]
            product = np.nansum(both_known, axis=1, keepdims=True)
            columns.append(aggregated(product, pairs.offsets, over_pairs))
        columns.append(aggregated(effects[:, None], sets.offsets, over_genes, skip_missing=True))
        is_known = ~np.isnan(effects)
        columns.append(sets.total(is_known.astype(np.int64))[:, None])
        return np.concatenate([column.astype(np.float32) for column in columns], axis=1)

    def _parts(self, cell: Cell, sets: GeneSets) -> Parts:
        if cell is not self._cell:
            self._check_cell(cell)
        effects = GeneEffects.from_state(self._learned).known[sets.genes]
        return Parts(predicted(self._trees, self._columns(sets, effects)))

    def _check_cell(self, cell: Cell) -> None:
        order = GeneOrder(cell.genes)
        relations = _relations(cell, order)
        same = len(relations) == len(self._relations)
        if not same or not all(map(Relation.equals, relations, self._relations)):
            raise other_cell("it has other relations")
        for name, table in self._feature_tables(cell, order).items():
            # A decomposition may round differently on another machine.
            if not np.allclose(table, self._tables[name], rtol=1e-3, atol=1e-3, equal_nan=True):
                raise other_cell(f"the feature '{name}' differs")
        self._cell = cell


def _relations(cell: Cell, order: GeneOrder) -> list[Relation]:
    return [relation.take(order.gene) for relation in cell.relations.values()]


def boosted(
    columns: Floats,
    targets: Doubles,
    parameters: dict[str, Any],
    rounds: int,
    report: Callable[..., None],
    *,
    validation: tuple[Floats, Doubles] | None = None,
    patience: int = 50,
) -> str:
    """Fit LightGBM trees on columns [rows, columns] and return them as text, see `booster`.

    Training stops ``patience`` trees after the best one by validation, or if ``report`` raises.
    """
    lightgbm = import_lightgbm()
    whole = {
        "objective": "regression",
        "verbosity": -1,
        "deterministic": True,
        "force_row_wise": True,
        "feature_pre_filter": False,
        "num_threads": torch.get_num_threads(),
        **parameters,
    }
    data = lightgbm.Dataset(columns, targets, params=whole)

    def after_tree(done: Any) -> None:
        """Report the round, with the metrics of the validation part if there is one."""
        results = {name: value for _, name, value, _ in done.evaluation_result_list or ()}
        report("trees", done.iteration + 1, rounds, **results)

    callbacks: list[Any] = [after_tree]
    checks = []
    if validation is not None:
        checks = [data.create_valid(*validation)]
        callbacks.append(lightgbm.early_stopping(patience, verbose=False))
    fitted = lightgbm.train(whole, data, rounds, valid_sets=checks, callbacks=callbacks)
    # As text, because a loaded predictor should be the same to the last bit.
    text: str = fitted.model_to_string(num_iteration=fitted.best_iteration if checks else None)
    return text


def booster(text: str) -> Booster:
    """Return the trees of a text, which may be from a checkpoint that somebody edited."""
    trees: Booster = import_lightgbm().Booster(model_str=read_trees(text).text)
    return trees


def import_lightgbm() -> Any:
    """Return LightGBM, which takes a second to import, also if Python removes docstrings.

    LightGBM makes its classes for Dask, which are not used here, from docstrings, so that importing
    it fails with ``PYTHONOPTIMIZE=2``. An empty module then takes the place of these classes.
    """
    if sys.flags.optimize >= 2:
        without_dask = ModuleType("lightgbm.dask")
        for name in ("DaskLGBMClassifier", "DaskLGBMRanker", "DaskLGBMRegressor"):
            setattr(without_dask, name, None)
        sys.modules.setdefault("lightgbm.dask", without_dask)
    import lightgbm

    return lightgbm


def predicted(trees: Booster, columns: Floats, **options: Any) -> Doubles:
    """Return the predictions of trees for columns [rows, columns]; options are LightGBM's."""
    if columns.shape[1] != trees.num_feature():
        what = f"they were fitted on {trees.num_feature()} columns, not on {columns.shape[1]}"
        raise damaged_trees(what)
    predictions = trees.predict(columns, num_threads=torch.get_num_threads(), **options)
    return np.asarray(predictions, np.float64)


def network_columns(
    sets: GeneSets,
    relations: Sequence[Relation],
    embeddings: Sequence[Floats],
    over_genes: Sequence[str] = EVERY,
    over_pairs: Sequence[str] = EVERY,
) -> Floats:
    """Return columns that describe sets of genes by their positions in the relations.

    The first is the size of the set. For each relation, the spectral embedding and the degree are
    aggregated over the genes of the set; the weight of the edge (0 without one), the number of
    common neighbours and the inner product of the spectral embeddings are aggregated over its
    pairs, and NaN without a pair.
    """
    blocks = []
    for start in range(0, len(sets), _SETS_PER_BLOCK):
        block = sets.take(np.arange(start, min(start + _SETS_PER_BLOCK, len(sets))))
        pairs = block.pairs()
        of_genes: list[AnyArray] = []
        of_pairs: list[AnyArray] = []
        for relation, embedding in zip(relations, embeddings, strict=True):
            of_genes += [embedding[block.genes], relation.in_degree[block.genes, None]]
            of_pairs += [_edge_weight(relation, pairs), _common_neighbours(relation, pairs)]
            if relation.directed:
                of_genes.append(relation.out_degree[block.genes, None])
                of_pairs.append(_common_neighbours(relation.transpose, pairs))
            product = embedding[pairs.first].astype(np.float64) * embedding[pairs.second]
            of_pairs.append(product.sum(axis=1))
        columns: list[AnyArray] = [block.sizes[:, None]]
        if relations:
            genes = np.concatenate(of_genes, axis=1).astype(np.float32)
            columns.append(aggregated(genes, block.offsets, over_genes))
            table = np.stack(of_pairs, axis=1).astype(np.float32)
            columns.append(aggregated(table, pairs.offsets, over_pairs))
        blocks.append(np.concatenate([c.astype(np.float32) for c in columns], axis=1))
    return np.concatenate(blocks)


def _edge_weight(relation: Relation, pairs: GenePairs) -> Floats:
    """Return the weight of the edge between two genes, 0 without one; the larger of two."""
    n = relation.n_genes
    # The keys ascend, because the rows and the sources within each row do.
    keys = np.repeat(np.arange(n, dtype=np.int64), relation.in_degree) * n + relation.indices
    weight = np.full(len(pairs.first), np.nan, dtype=np.float32)
    ways = ((pairs.first, pairs.second), (pairs.second, pairs.first))
    for target, source in ways if relation.directed else ways[:1]:
        place, is_edge = look_up(keys, target * n + source)
        weight[is_edge] = np.fmax(weight[is_edge], relation.weights[place[is_edge]])
    return np.nan_to_num(weight)


def _common_neighbours(relation: Relation, pairs: GenePairs) -> Ints:
    matrix = _indicators(relation, np.int32)
    common = matrix[pairs.first].multiply(matrix[pairs.second])
    return np.asarray(common.sum(axis=1), dtype=np.int64).ravel()


def _indicators(relation: Relation, dtype: type) -> sp.csr_array:
    ones: AnyArray = np.ones(relation.n_entries, dtype=dtype)
    n = relation.n_genes
    return sp.csr_array((ones, relation.indices, relation.indptr), shape=(n, n))


def spectral_embedding(relation: Relation, dimensions: int, *, seed: int = 0) -> Floats:
    r"""Return the leading singular vectors of the normalised relation, scaled.

    .. math:: (D_t + \bar d)^{-1/2} A (D_s + \bar d)^{-1/2} \approx U \Sigma V^T

    with D the degrees of targets and sources and :math:`\bar d` the mean degree, which keeps small
    components from dominating the leading vectors. A gene's vector is its row of
    :math:`U \sqrt\Sigma` and, for a directed relation, of :math:`V \sqrt\Sigma`. The entry of
    largest magnitude of a column is positive; genes without an edge and missing dimensions are 0.
    """
    n_genes = relation.n_genes
    n_sides = 2 if relation.directed else 1
    embedding: Floats = np.zeros((n_genes, n_sides * dimensions), dtype=np.float32)
    if not relation.n_entries:
        return embedding
    decomposition = _decomposed(relation, dimensions, seed)
    values = np.abs(decomposition.values)
    is_numerical_zero = values <= _NO_SINGULAR_VALUE * values.max()
    scale = np.where(is_numerical_zero, 0.0, np.sqrt(values))
    signed_scale = largest_signs(decomposition.of_targets) * scale
    width = len(values)
    embedding[:, :width] = decomposition.of_targets * signed_scale
    embedding[relation.in_degree == 0, :width] = 0.0
    if relation.directed:
        as_source = slice(dimensions, dimensions + width)
        embedding[:, as_source] = decomposition.of_sources * signed_scale
        embedding[relation.out_degree == 0, as_source] = 0.0
    return embedding


class _Decomposition(NamedTuple):
    """The leading singular values [k] of a matrix, and its vectors [genes, k]."""

    values: Doubles  # eigenvalues, which may be negative, of a symmetric matrix
    of_targets: Doubles
    of_sources: Doubles


def _decomposed(relation: Relation, dimensions: int, seed: int) -> _Decomposition:
    """Decompose the normalised relation, see `spectral_embedding`."""
    n_genes = relation.n_genes
    mean_degree = relation.n_entries / n_genes
    by_target = sp.diags_array(1 / np.sqrt(relation.in_degree + mean_degree))
    by_source = sp.diags_array(1 / np.sqrt(relation.out_degree + mean_degree))
    matrix = (by_target @ _indicators(relation, np.float64) @ by_source).tocsr()
    is_small = n_genes <= _SMALL_ENOUGH_FOR_DENSE or dimensions >= n_genes - 1
    if relation.directed:
        if not is_small:
            left, values, right = leading_singular_vectors(matrix, dimensions, seed)
            return _Decomposition(values, left, right)
        left, values, transposed = np.linalg.svd(matrix.toarray())
        largest = np.argsort(-values, kind="stable")[:dimensions]
        return _Decomposition(values[largest], left[:, largest], transposed[largest].T)
    if is_small:
        values, vectors = np.linalg.eigh(matrix.toarray())
    else:
        values, vectors = leading_eigenvectors(matrix, dimensions, seed)
    largest = np.lexsort((-values, -np.abs(values)))[:dimensions]
    return _Decomposition(values[largest], vectors[:, largest], vectors[:, largest])
