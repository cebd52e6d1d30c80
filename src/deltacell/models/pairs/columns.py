"""Gene sets as columns of numbers: votes, effects, features and networks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse.linalg

from deltacell.base.arrays import (
    AnyArray,
    Bools,
    Doubles,
    Floats,
    Ints,
    offsets_of,
    ragged_positions,
)
from deltacell.cell import Cell
from deltacell.models.baselines.additive import GeneEffects, ridge
from deltacell.models.fitted.gene_sets import EVERY, GeneOrder, GenePairs, GeneSets, aggregated
from deltacell.models.fitted.predictor import Part, State
from deltacell.models.gene_vectors import chosen_features, feature_vectors
from deltacell.models.pairs.messages import (
    PROFILE_WIDTH,
    Measured,
    Neighbours,
    PairSums,
    SummedVotes,
    alike,
    by_first_gene,
    larger_set_sums,
    pair_sums,
    profiles,
)

_RANKS = (8, 24, 48)  # of the low-rank columns
_RANK_AROUND = 24  # of the low-rank columns over neighbours
_DENSE_UP_TO = 512  # genes for which all eigenvectors are computed at once
_COMPONENTS = 16  # of a profile, and of a gene's place in the networks, that become columns
_NUMBERS = ("count", "negative", "factors", "values")  # of the statistics, in a saved state
# Added to sums of weights, to shrink mean votes toward 0.
_FEW_VOTERS = 0.1
_FEW_BOTH = 0.02


@dataclass(frozen=True, eq=False)
class Known:
    """Statistics of the genes from measured sets: effects, counts, and factors of their pairs."""

    effects: GeneEffects  # the additive model
    count: Doubles  # the number of measured sets of each gene, [genes]
    negative: Doubles  # the share of these with a negative score, NaN if there is none, [genes]
    factors: Doubles  # leading eigenvectors of the residuals of the measured pairs, [genes, k]
    values: Doubles  # their eigenvalues, [k]
    residuals: Measured  # the scores minus those of the additive model

    @classmethod
    def of(cls, part: Part, n_genes: int, penalty: float, *, share: float = 1.0) -> Known:
        """Compute the statistics; counts are divided by the share of all sets in this part."""
        effects = ridge(part, n_genes, penalty)
        genes = part.sets.genes
        count = np.bincount(genes, minlength=n_genes)
        is_below = part.targets < 0
        n_below = np.bincount(genes, is_below[part.sets.owner], minlength=n_genes)
        negative = np.full(n_genes, np.nan)
        np.divide(n_below, count, out=negative, where=count > 0)
        residuals = _residuals(part, effects, n_genes)
        factors, values = _factors(residuals)
        return cls(effects, count / share, negative, factors, values, residuals)

    @classmethod
    def from_state(cls, state: State, part: Part, n_genes: int) -> Known:
        """Restore what `state` returned, for the same measured sets.

        The decomposition is not computed again, because it may round differently elsewhere.
        """
        effects = GeneEffects.from_state(state)
        residuals = _residuals(part, effects, n_genes)
        numbers = {name: state[name] for name in _NUMBERS}
        return cls(effects=effects, residuals=residuals, **numbers)

    def state(self) -> State:
        """Return the numbers that `from_state` needs beside the measured sets."""
        return {**{name: getattr(self, name) for name in _NUMBERS}, **vars(self.effects)}

    @cached_property
    def alike(self) -> Neighbours:
        """Which genes have similar interactions, see `messages.alike`."""
        return alike(self.residuals.pairs)


def _residuals(part: Part, effects: GeneEffects, n_genes: int) -> Measured:
    """Return the measured sets with their scores minus those of the additive model."""
    residuals = part.targets - effects.score(part.sets)
    return Measured.of(Part(part.sets, residuals), n_genes)


def _factors(measured: Measured) -> tuple[Doubles, Doubles]:
    """Return the leading eigenvectors of the measured pairs, [genes, k], and eigenvalues, [k].

    There are none if no pair was measured.
    """
    n = measured.n_genes
    k = max(_RANKS)
    matrix = measured.pairs.astype(np.float64)
    if not matrix.nnz:
        return np.zeros((n, 0)), np.zeros(0)
    if n <= _DENSE_UP_TO:
        values, vectors = np.linalg.eigh(matrix.toarray())
    else:
        start = np.random.default_rng(0).uniform(0.5, 1.5, n)
        values, vectors = scipy.sparse.linalg.eigsh(matrix, k=k, which="LM", v0=start, tol=1e-6)
    leading = np.argsort(-np.abs(values), kind="stable")[:k]
    return vectors[:, leading], values[leading]


class SetSums(NamedTuple):
    """The summed votes on some sets."""

    pairs: PairSums  # on the pairs within the sets
    larger: SummedVotes | None  # on the sets, by gene; None if no set has three or more genes

    def take(self, sets: GeneSets, rows: Ints) -> SetSums:
        """Return the sums of some of the sets."""
        sizes = sets.sizes
        n_pairs = sizes * (sizes - 1) // 2
        of_pairs = ragged_positions(offsets_of(n_pairs)[rows], n_pairs[rows])
        pairs = self.pairs.take(of_pairs)
        if self.larger is None:
            return SetSums(pairs, None)
        of_genes = ragged_positions(sets.offsets[rows], sizes[rows])
        return SetSums(pairs, self.larger.take(of_genes))


class PairColumns:
    """The columns of gene sets of a cell; each call takes the measured sets.

    For sets of three or more genes, each column of pairs becomes its minimum, maximum and mean over
    the pairs of the set.
    """

    def __init__(
        self,
        cell: Cell,
        order: GeneOrder,
        largest: int,
        features: Sequence[str] | None = None,
    ) -> None:
        self.neighbours = Neighbours.of(cell, order, features)
        self.n_genes = len(order)
        self.largest = largest
        self.over_pairs = EVERY if largest > 2 else ("mean",)
        self._around: tuple[Known, list[Doubles]] | None = None
        chosen = sorted(chosen_features(cell, features), key=lambda feature: feature.name)
        narrow = [feature for feature in chosen if feature.width < PROFILE_WIDTH]
        wide = [feature for feature in chosen if feature.width >= PROFILE_WIDTH]
        no_columns = np.empty((self.n_genes, 0), dtype=np.float32)
        narrow_values = [feature.values[order.gene] for feature in narrow]
        self.narrow: Floats = np.concatenate([no_columns, *narrow_values], axis=1)
        components = [feature_vectors(feature, _COMPONENTS)[order.gene] for feature in wide]
        if self.neighbours.names:
            components.append(self.neighbours.places(_COMPONENTS))
        self.components: Floats = np.concatenate([no_columns, *components], axis=1)
        # In double precision, so that columns do not depend on how products are cut into blocks.
        self.profiles = [
            profiles(feature.values[order.gene]).astype(np.float64) for feature in wide
        ]
        self._linked = [(weight > 0).astype(np.float32) for weight in self.neighbours.weights]

    def __call__(
        self,
        known: Known,
        sets: GeneSets,
        sums: SetSums,
        fixed: Floats | None = None,
    ) -> Floats:
        """Return the columns of sets, [sets, columns].

        The first is the score of the additive model, and the third is the number of unseen genes.
        """
        pairs = sets.pairs()
        around = self._effects_around(known)
        parts = [
            _columns_of_sets(known, sets),
            self._columns_of_genes(known, sets),
            aggregated(self._columns_of_pairs(known, pairs, sums), pairs.offsets, self.over_pairs),
        ]
        if sums.larger is not None:
            parts.append(_larger_set_columns(sums.larger, sets, known.effects, around))
        parts.append(self.fixed(sets) if fixed is None else fixed)
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def _effects_around(self, known: Known) -> Doubles:
        """Return the mean effect of each gene's measured neighbours, [genes, relations]."""
        no_columns = np.empty((self.n_genes, 0))
        effects = [mean[:, :1] for mean in self._means_around(known)]
        return np.concatenate([no_columns, *effects], axis=1)

    def _columns_of_genes(self, known: Known, sets: GeneSets) -> AnyArray:
        """Return the smallest and the largest statistics among the genes of each set."""
        around = self._effects_around(known)
        of_genes = [known.effects.known, known.count, known.negative, around]
        statistics = np.column_stack(of_genes)
        return aggregated(statistics[sets.genes], sets.offsets, ("min", "max"))

    def _columns_of_pairs(self, known: Known, pairs: GenePairs, sums: SetSums) -> AnyArray:
        """Return the votes and the low-rank scores of pairs, [pairs, columns]."""
        around = self._effects_around(known)
        factors = known.factors[pairs.first] * known.factors[pairs.second]
        low_rank = factors * known.values
        columns: list[AnyArray] = [
            _vote_columns(_residual_sums(sums.pairs, pairs, known.effects, around)),
            _vote_columns(_sums_of_alike(known, pairs)),
            np.stack([low_rank[:, :rank].sum(axis=1) for rank in _RANKS], axis=1),
            self._low_rank_around(known, pairs),
        ]
        return np.concatenate(columns, axis=1)

    def for_another_study(self) -> PairColumns:
        """Return the same columns with a cache of their own, for other measured sets."""
        other = copy.copy(self)
        other._around = None
        return other

    def sums(self, measured: Measured, sets: GeneSets, rows: Bools | None = None) -> SetSums:
        """Sum the votes on sets; for ``rows`` see `pair_sums`."""
        pairs = pair_sums(measured, self.neighbours, sets.pairs(), rows)
        if self.largest == 2:
            return SetSums(pairs, None)
        return SetSums(pairs, larger_set_sums(measured, self.neighbours, sets))

    def fixed(self, sets: GeneSets) -> Floats:
        """Return the columns that do not depend on the measured sets, [sets, columns]."""
        pairs = sets.pairs()
        degrees = [np.diff(weight.indptr) for weight in self.neighbours.weights]
        genes = np.column_stack([self.narrow.astype(np.float64), *degrees])
        parts = [
            aggregated(genes[sets.genes], sets.offsets, ("min", "max")),
            aggregated(self.components[sets.genes], sets.offsets, ("mean",)),
            aggregated(self._fixed_pair_columns(pairs), pairs.offsets, self.over_pairs),
        ]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def _means_around(self, known: Known) -> list[Doubles]:
        """Return the mean effect and factors of each gene's measured neighbours, by relation."""
        # Cached, because all blocks of sets are scored with the same statistics.
        if self._around is None or self._around[0] is not known:
            factors = known.factors[:, :_RANK_AROUND]
            values = np.column_stack([known.effects.effect, factors])
            is_seen = known.effects.seen.astype(np.float64)
            means = []
            for matrix in self.neighbours.matrices:
                weight = matrix @ is_seen + _FEW_VOTERS
                means.append((matrix @ values) / weight[:, None])
            self._around = (known, means)
        return self._around[1]

    def _low_rank_around(self, known: Known, pairs: GenePairs) -> Floats:
        """Return the low-rank score with one gene, and with both, replaced by their neighbours."""
        factors = known.factors[:, :_RANK_AROUND]
        values = known.values[:_RANK_AROUND]
        n_columns = 2 * len(self.neighbours.names)
        columns = np.zeros((len(pairs.first), n_columns), dtype=np.float32)
        around = [mean[:, 1:] for mean in self._means_around(known)]
        for block in by_first_gene(pairs):
            own = factors[block.genes] * values
            for i, mean in enumerate(around):
                near_first = mean[block.genes] * values
                one_replaced = near_first @ factors.T + own @ mean.T
                both_replaced = near_first @ mean.T
                # Rounded, so that zeros are exact however the product is cut into blocks.
                columns[block.pairs, 2 * i] = block.entries(one_replaced).round(9)
                columns[block.pairs, 2 * i + 1] = block.entries(both_replaced).round(9)
        return columns

    def _fixed_pair_columns(self, pairs: GenePairs) -> Floats:
        """Return what networks, features and profiles say of pairs, [pairs, columns]."""
        values = np.concatenate([self.narrow, self.components], axis=1)
        product = values[pairs.first] * values[pairs.second]
        difference = np.abs(self.components[pairs.first] - self.components[pairs.second])
        return np.concatenate([self._network_columns(pairs), product, difference], axis=1)

    def _network_columns(self, pairs: GenePairs) -> Floats:
        """Return weights and common neighbours by relation, and cosines of profiles."""
        n_relations = len(self.neighbours.names)
        width = 2 * n_relations + len(self.profiles)
        columns = np.zeros((len(pairs.first), width), dtype=np.float32)
        for block in by_first_gene(pairs):
            weights = zip(self.neighbours.weights, self._linked, strict=True)
            for relation, (weight, linked) in enumerate(weights):
                n_common = (linked[block.genes] @ linked).toarray()
                of_edges = weight[block.genes].toarray()
                columns[block.pairs, relation] = block.entries(of_edges)
                columns[block.pairs, n_relations + relation] = block.entries(n_common)
            for number, profile in enumerate(self.profiles, start=2 * n_relations):
                cosine = profile[block.genes] @ profile.T
                columns[block.pairs, number] = block.entries(cosine)
        return columns


def _columns_of_sets(known: Known, sets: GeneSets) -> AnyArray:
    """Return the additive score, the size and the number of unseen genes of each set."""
    is_unseen = ~known.effects.seen
    n_unseen = sets.total(is_unseen[sets.genes].astype(np.float32))
    return np.stack([known.effects.score(sets), sets.sizes, n_unseen], axis=1)


def _vote_columns(sums: PairSums) -> Floats:
    """Return seven columns per relation, [pairs, relations * 7], symmetric in the two genes."""
    first, second, both = sums
    mean_of_first = first.scores / (first.weights + _FEW_VOTERS)
    mean_of_second = second.scores / (second.weights + _FEW_VOTERS)
    weights = first.weights + second.weights
    columns = [
        np.minimum(mean_of_first, mean_of_second),
        np.maximum(mean_of_first, mean_of_second),
        (first.scores + second.scores) / (weights + _FEW_VOTERS),
        np.minimum(first.weights, second.weights),
        np.maximum(first.weights, second.weights),
        both.scores / (both.weights + _FEW_BOTH),
        both.weights,
    ]
    # The width is stated, since it cannot be inferred if there are no pairs.
    n_pairs, n_relations = both.scores.shape
    return np.stack(columns, axis=2).reshape(n_pairs, n_relations * len(columns))


def _residual_sums(
    sums: PairSums,
    pairs: GenePairs,
    effects: GeneEffects,
    around: Doubles,
) -> PairSums:
    """Return the sums of scores minus the expectation of the additive model.

    The effect of each neighbour of a gene is taken as the mean over all its neighbours, so that the
    sums of scores can be reused when the additive model changes with the fold.
    """
    near_first = around[pairs.first]
    near_second = around[pairs.second]
    effect_of_first = effects.effect[pairs.first][:, None]
    effect_of_second = effects.effect[pairs.second][:, None]
    return PairSums(
        _minus(sums.first, effects.intercept + effect_of_second + near_first),
        _minus(sums.second, effects.intercept + effect_of_first + near_second),
        _minus(sums.both, effects.intercept + near_first + near_second),
    )


def _minus(sums: SummedVotes, expected: Doubles) -> SummedVotes:
    """Return the sums of scores less the expected score, [rows, relations]."""
    residuals = sums.scores - sums.weights * expected
    return SummedVotes(residuals.astype(np.float32), sums.weights)


def _larger_set_columns(
    sums: SummedVotes,
    sets: GeneSets,
    effects: GeneEffects,
    around: Doubles,
) -> Floats:
    """Return the mean vote on each larger set and the sum of weights, [sets, relations * 2]."""
    effects_of_all = effects.score(sets)
    effects_of_rest = effects_of_all[sets.owner] - effects.effect[sets.genes]
    expected = effects_of_rest[:, None] + around[sets.genes]
    scores = sets.total(sums.scores - sums.weights * expected)
    weights = sets.total(sums.weights)
    columns = np.stack([scores / (weights + _FEW_VOTERS), weights], axis=2)
    n_relations = sums.scores.shape[1]
    return columns.reshape(len(sets), 2 * n_relations).astype(np.float32)


def _sums_of_alike(known: Known, pairs: GenePairs) -> PairSums:
    """Sum the votes of genes with similar interactions, 0 for pairs with an unseen gene."""
    is_seen = known.effects.seen[pairs.first] & known.effects.seen[pairs.second]
    seen = np.flatnonzero(is_seen)
    seen_pairs = GenePairs(pairs.first[seen], pairs.second[seen], np.arange(len(seen) + 1))
    sums = pair_sums(known.residuals, known.alike, seen_pairs)
    return sums.spread(seen, len(pairs.first))


def training_columns(
    columns: PairColumns,
    part: Part,
    others: GeneSets | None = None,
    *,
    penalty: float,
    folds: int,
    gene_folds: int,
    rounds: int,
    seed: int,
) -> tuple[Floats, Ints]:
    """Return columns to learn from, distributed as in prediction, and the set of each row.

    Every set has one row in which all its genes are measured: effects, counts and factors come from
    the other folds of sets. In ``rounds`` more rows some of its genes are unseen: genes are drawn
    into folds, and only sets without any gene of one fold count as measured. The other sets, which
    were tested but have no score, are numbered from ``len(part.sets)``.
    """
    source = _TrainingSource(columns, part, others, penalty)
    rows = [*source.with_all_measured(folds, seed)]
    for turn in range(rounds):
        rows += source.with_some_unseen(gene_folds, (seed, turn))
    table = np.concatenate([of_fold.table for of_fold in rows])
    return table, np.concatenate([of_fold.sets for of_fold in rows])


class _TrainingRows(NamedTuple):
    """Columns to learn from."""

    table: Floats  # [rows, columns]
    sets: Ints  # the number of the set of each row


class _TrainingSource:
    """The sets to learn from, of which some count as measured at a time."""

    def __init__(
        self,
        columns: PairColumns,
        part: Part,
        others: GeneSets | None,
        penalty: float,
    ) -> None:
        self._columns = columns
        self._part = part
        self._sets = part.sets if others is None else part.sets.followed_by(others)
        self._penalty = penalty
        self._n_genes = columns.n_genes
        self._fixed = columns.fixed(self._sets)

    def with_all_measured(self, folds: int, seed: int) -> Iterator[_TrainingRows]:
        """Yield the rows of each fold of sets; their statistics come from the other folds."""
        sums = self._columns.sums(Measured.of(self._part, self._n_genes), self._sets)
        fold = set_folds(self._sets, self._n_genes, folds, seed)
        n_measured = len(self._part.sets)
        for number in range(folds):
            rows = np.flatnonzero(fold == number)
            kept = np.flatnonzero(fold[:n_measured] != number)
            share = len(kept) / n_measured
            known = Known.of(self._part.take(kept), self._n_genes, self._penalty, share=share)
            of_fold = sums.take(self._sets, rows)
            table = self._columns(known, self._sets.take(rows), of_fold, self._fixed[rows])
            yield _TrainingRows(table, rows)

    def with_some_unseen(self, gene_folds: int, seed: tuple[int, int]) -> Iterator[_TrainingRows]:
        """Yield the rows of each fold of genes; no set with one of its genes counts as measured.

        A fold without a row, or without measured sets, yields nothing.
        """
        first, turn = seed
        fold_of_gene = np.random.default_rng([first, 1, turn]).integers(
            gene_folds,
            size=self._n_genes,
        )
        fold_of_set = fold_of_gene[self._random_genes((first, 2, turn))]
        for number in range(gene_folds):
            is_unseen = fold_of_gene == number
            kept = np.flatnonzero(~_has_any(self._part.sets, is_unseen))
            rows = np.flatnonzero(fold_of_set == number)
            if not len(kept) or not len(rows):
                continue
            measured = self._part.take(kept)
            sets = self._sets.take(rows)
            sums = self._columns.sums(Measured.of(measured, self._n_genes), sets, is_unseen)
            known = Known.of(measured, self._n_genes, self._penalty)
            yield _TrainingRows(self._columns(known, sets, sums, self._fixed[rows]), rows)

    def _random_genes(self, seed: tuple[int, ...]) -> Ints:
        """Return a gene of each set.

        A set whose genes are in several folds gets a row for one of them.
        """
        sets = self._sets
        place = hashed_sets(sets, self._n_genes, seed) % sets.sizes.astype(np.uint64)
        return sets.genes[sets.offsets[:-1] + place.astype(np.int64)]


def _has_any(sets: GeneSets, is_wanted: Bools) -> Bools:
    """Return which sets have one of the wanted genes or more."""
    has_any: Bools = np.logical_or.reduceat(is_wanted[sets.genes], sets.offsets[:-1])
    return has_any


def set_folds(sets: GeneSets, n_genes: int, folds: int, seed: int) -> Ints:
    """Return the fold of each set, which depends only on its genes."""
    hashes = hashed_sets(sets, n_genes, (seed, 0))
    return (hashes % np.uint64(folds)).astype(np.int64)


def hashed_sets(sets: GeneSets, n_genes: int, seed: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Return 64 random bits per set, which depend only on its genes."""
    code = np.random.default_rng(seed).integers(2**64, size=n_genes, dtype=np.uint64)
    mixed: npt.NDArray[np.uint64] = sets.total(code[sets.genes])
    # Mix the bits of the sum as in SplitMix64.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
