"""Gene sets as columns of numbers: votes, effects, features and networks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
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

_RANKS, _RANK_AROUND = (8, 24, 48), 24  # of the low-rank columns, and of those over neighbours
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
        below = np.bincount(genes, (part.targets < 0)[part.sets.owner], minlength=n_genes)
        negative = np.divide(below, count, out=np.full(n_genes, np.nan), where=count > 0)
        residuals = Measured.of(Part(part.sets, part.targets - effects.score(part.sets)), n_genes)
        return cls(effects, count / share, negative, *_factors(residuals), residuals)

    @classmethod
    def from_state(cls, state: State, part: Part, n_genes: int) -> Known:
        """Restore what `state` returned, for the same measured sets.

        The decomposition is not computed again, because it may round differently elsewhere.
        """
        effects = GeneEffects.from_state(state)
        residuals = Measured.of(Part(part.sets, part.targets - effects.score(part.sets)), n_genes)
        numbers = {name: state[name] for name in _NUMBERS}
        return cls(effects=effects, residuals=residuals, **numbers)

    def state(self) -> State:
        """Return the numbers that `from_state` needs beside the measured sets."""
        return {**{name: getattr(self, name) for name in _NUMBERS}, **vars(self.effects)}

    @cached_property
    def alike(self) -> Neighbours:
        return alike(self.residuals.pairs)


def _factors(measured: Measured) -> tuple[Doubles, Doubles]:
    n, k = measured.n_genes, max(_RANKS)
    matrix = measured.pairs.astype(np.float64)
    if not matrix.nnz:
        return np.zeros((n, 0)), np.zeros(0)
    if n <= 512:
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
        self.n_genes, self.largest = len(order), largest
        self.over_pairs = EVERY if largest > 2 else ("mean",)
        self._around: tuple[Known, list[Doubles]] | None = None
        chosen = sorted(chosen_features(cell, features), key=lambda f: f.name)
        wide = [f for f in chosen if f.width >= PROFILE_WIDTH]
        none = np.empty((self.n_genes, 0), dtype=np.float32)
        narrow = [f.values[order.gene] for f in chosen if f.width < PROFILE_WIDTH]
        self.narrow: Floats = np.concatenate([none, *narrow], axis=1)
        places = [self.neighbours.places(_COMPONENTS)] if self.neighbours.names else []
        reduced = [feature_vectors(f, _COMPONENTS)[order.gene] for f in wide]
        self.components: Floats = np.concatenate([none, *reduced, *places], axis=1)
        # In double precision, so that columns do not depend on how products are cut into blocks.
        self.profiles = [profiles(f.values[order.gene]).astype(np.float64) for f in wide]
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
        pairs, effects = sets.pairs(), known.effects
        means = [mean[:, :1] for mean in self._means_around(known)]
        around = np.concatenate([np.empty((self.n_genes, 0)), *means], axis=1)
        unseen = sets.total((~effects.seen)[sets.genes].astype(np.float32))
        genes = np.column_stack([effects.known, known.count, known.negative, around])
        low_rank = known.factors[pairs.first] * known.factors[pairs.second] * known.values
        of_pairs: list[AnyArray] = [
            _vote_columns(_residual_sums(sums.pairs, pairs, effects, around)),
            _vote_columns(_sums_of_alike(known, pairs)),
            np.stack([low_rank[:, :rank].sum(axis=1) for rank in _RANKS], axis=1),
            self._low_rank_around(known, pairs),
        ]
        own = [
            np.stack([effects.score(sets), sets.sizes, unseen], axis=1),
            aggregated(genes[sets.genes], sets.offsets, ("min", "max")),
            aggregated(np.concatenate(of_pairs, axis=1), pairs.offsets, self.over_pairs),
        ]
        if sums.larger is not None:
            own.append(_larger_set_columns(sums.larger, sets, effects, around))
        own.append(self.fixed(sets) if fixed is None else fixed)
        return np.concatenate(own, axis=1, dtype=np.float32)

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
            values = np.column_stack([known.effects.effect, known.factors[:, :_RANK_AROUND]])
            seen = known.effects.seen.astype(np.float64)
            means = [
                (matrix @ values) / (matrix @ seen + _FEW_VOTERS)[:, None]
                for matrix in self.neighbours.matrices
            ]
            self._around = known, means
        return self._around[1]

    def _low_rank_around(self, known: Known, pairs: GenePairs) -> Floats:
        """Return the low-rank score with one gene, and with both, replaced by their neighbours."""
        factors = known.factors[:, :_RANK_AROUND]
        values = known.values[:_RANK_AROUND]
        columns = np.zeros((len(pairs.first), 2 * len(self.neighbours.names)), dtype=np.float32)
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
        relations, weights = len(self.neighbours.names), self.neighbours.weights
        width = 2 * relations + len(self.profiles)
        tables = np.zeros((len(pairs.first), width), dtype=np.float32)
        for block in by_first_gene(pairs):
            for i, (weight, linked) in enumerate(zip(weights, self._linked, strict=True)):
                common = (linked[block.genes] @ linked).toarray()
                tables[block.pairs, i] = block.entries(weight[block.genes].toarray())
                tables[block.pairs, relations + i] = block.entries(common)
            for i, profile in enumerate(self.profiles):
                cosine = profile[block.genes] @ profile.T
                tables[block.pairs, 2 * relations + i] = block.entries(cosine)
        values = np.concatenate([self.narrow, self.components], axis=1)
        product = values[pairs.first] * values[pairs.second]
        difference = np.abs(self.components[pairs.first] - self.components[pairs.second])
        return np.concatenate([tables, product, difference], axis=1)


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
    effects_of_rest = effects.score(sets)[sets.owner] - effects.effect[sets.genes]
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
    n, n_part, sets = columns.n_genes, len(part.sets), part.sets
    if others is not None:
        sets = sets.followed_by(others)
    fixed = columns.fixed(sets)
    found: list[tuple[Floats, Ints]] = []
    sums = columns.sums(Measured.of(part, n), sets)
    fold = set_folds(sets, n, folds, seed)
    for k in range(folds):
        rows, kept = np.flatnonzero(fold == k), np.flatnonzero(fold[:n_part] != k)
        known = Known.of(part.take(kept), n, penalty, share=len(kept) / n_part)
        of_fold = columns(known, sets.take(rows), sums.take(sets, rows), fixed[rows])
        found.append((of_fold, rows))
    for turn in range(rounds):
        of_gene = np.random.default_rng([seed, 1, turn]).integers(gene_folds, size=n)
        # A set whose genes are in several folds gets a row for one of them.
        place = hashed_sets(sets, n, (seed, 2, turn)) % sets.sizes.astype(np.uint64)
        chosen = of_gene[sets.genes[sets.offsets[:-1] + place.astype(np.int64)]]
        for k in range(gene_folds):
            left_out = of_gene == k
            has_one = np.logical_or.reduceat(left_out[part.sets.genes], part.sets.offsets[:-1])
            kept, rows = np.flatnonzero(~has_one), np.flatnonzero(chosen == k)
            if len(kept) and len(rows):
                rest, some = part.take(kept), sets.take(rows)
                sums = columns.sums(Measured.of(rest, n), some, left_out)
                found.append((columns(Known.of(rest, n, penalty), some, sums, fixed[rows]), rows))
    tables, rows_of = zip(*found, strict=True)
    return np.concatenate(tables), np.concatenate(rows_of)


def set_folds(sets: GeneSets, n_genes: int, folds: int, seed: int) -> Ints:
    """Return the fold of each set, which depends only on its genes."""
    return (hashed_sets(sets, n_genes, (seed, 0)) % np.uint64(folds)).astype(np.int64)


def hashed_sets(sets: GeneSets, n_genes: int, seed: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Return 64 random bits per set, which depend only on its genes."""
    code = np.random.default_rng(seed).integers(2**64, size=n_genes, dtype=np.uint64)
    mixed: npt.NDArray[np.uint64] = sets.total(code[sets.genes])
    # Mix the bits of the sum as in SplitMix64.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
