"""All that is known of a gene set as columns of numbers: votes, effects, features, networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse.linalg

from deltacell.arrays import AnyArray, Bools, Doubles, Floats, Ints, offsets_of, ragged_positions
from deltacell.cell import Cell
from deltacell.models.baselines.additive import GeneEffects, ridge
from deltacell.models.baselines.baseline import Part
from deltacell.models.baselines.gene_sets import EVERY, GeneOrder, GenePairs, GeneSets, aggregated
from deltacell.models.gene_vectors import chosen_features, feature_vectors
from deltacell.models.pairs.messages import (
    PROFILE_WIDTH,
    SUMS,
    Measured,
    Neighbours,
    alike,
    by_first_gene,
    pair_votes,
    profiles,
    set_votes,
)

# How many factors of the measured pairs each low-rank column has; those averaged over neighbours.
_RANKS, _RANK_AROUND = (8, 24, 48), 24
# Leading components of a profile, and of a gene's place in the networks, that become columns.
_COMPONENTS = 16
# What a vote is shrunk toward 0 by, in units of neighbours that voted.
_FEW_VOTERS, _FEW_BOTH = 0.1, 0.02


@dataclass(frozen=True, eq=False)
class Known:
    """What some measured sets say of the genes: effects, counts, and factors of their pairs."""

    effects: GeneEffects  # the additive model
    count: Doubles  # in how many sets each gene was measured, [genes]
    negative: Doubles  # the share of them with a negative score, NaN if there is none, [genes]
    factors: Doubles  # leading eigenvectors of the residuals of the measured pairs, [genes, k]
    values: Doubles  # their eigenvalues, [k]
    residuals: Measured  # what the additive model leaves of each score

    @classmethod
    def of(cls, part: Part, n_genes: int, penalty: float, *, share: float = 1.0) -> Known:
        """Return what a part says; counts are divided by its share, to be alike for all folds."""
        effects = ridge(part, n_genes, penalty)
        genes = part.sets.genes
        count = np.bincount(genes, minlength=n_genes)
        below = np.bincount(genes, (part.targets < 0)[part.sets.owner], minlength=n_genes)
        negative = np.divide(below, count, out=np.full(n_genes, np.nan), where=count > 0)
        residuals = residuals_of(part, effects, n_genes)
        return cls(effects, count / share, negative, *_factors(residuals), residuals)

    @cached_property
    def alike(self) -> Neighbours:
        return alike(self.residuals.pairs)


def residuals_of(part: Part, effects: GeneEffects, n_genes: int) -> Measured:
    return Measured.of(Part(part.sets, part.targets - effects.score(part.sets)), n_genes)


def _factors(measured: Measured) -> tuple[Doubles, Doubles]:
    """Return the leading eigenvectors of the measured pairs by the size of their eigenvalues."""
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


class Votes(NamedTuple):
    """The votes on some sets, as sums of scores and of weights."""

    pairs: Floats  # `pair_votes` for the pairs within the sets
    larger: Floats | None  # `set_votes` for the sets; None if the columns are for pairs

    def take(self, sets: GeneSets, rows: Ints) -> Votes:
        sizes = sets.sizes
        n_pairs = sizes * (sizes - 1) // 2
        at = ragged_positions(offsets_of(n_pairs)[rows], n_pairs[rows])
        of_genes = ragged_positions(sets.offsets[rows], sizes[rows])
        return Votes(self.pairs[at], None if self.larger is None else self.larger[of_genes])


class PairColumns:
    """The columns of gene sets of a cell; what was measured is given with each call.

    For sets of at most two genes, one number per column says it all; for larger sets each column of
    a pair is taken as the smallest, largest and mean over the pairs of the set.
    """

    def __init__(
        self, cell: Cell, order: GeneOrder, largest: int, features: Sequence[str] | None = None
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
        # In double precision, so that no column depends on how a product is cut into blocks.
        self.profiles = [profiles(f.values[order.gene]).astype(np.float64) for f in wide]
        self._linked = [(weight > 0).astype(np.float32) for weight in self.neighbours.weights]

    def __call__(
        self, known: Known, sets: GeneSets, votes: Votes, fixed: Floats | None = None
    ) -> Floats:
        """Return the columns of sets of one gene or more, [sets, columns].

        The first is the score of the additive model and the third the number of unseen genes.
        """
        pairs, effects = sets.pairs(), known.effects
        means = [mean[:, :1] for mean in self._means_around(known)]
        around = np.concatenate([np.empty((self.n_genes, 0)), *means], axis=1)
        unseen = sets.total((~effects.seen)[sets.genes].astype(np.float32))
        genes = np.column_stack([effects.known, known.count, known.negative, around])
        low_rank = known.factors[pairs.first] * known.factors[pairs.second] * known.values
        of_pairs: list[AnyArray] = [
            _vote_columns(_residual_votes(votes.pairs, pairs, effects, around)),
            _vote_columns(_votes_of_alike(known, pairs)),
            np.stack([low_rank[:, :rank].sum(axis=1) for rank in _RANKS], axis=1),
            self._low_rank_around(known, pairs),
        ]
        own = [
            np.stack([effects.score(sets), sets.sizes, unseen], axis=1),
            aggregated(genes[sets.genes], sets.offsets, ("min", "max")),
            aggregated(np.concatenate(of_pairs, axis=1), pairs.offsets, self.over_pairs),
        ]
        if votes.larger is not None:
            own.append(_set_vote_columns(votes.larger, sets, effects, around))
        own.append(self.fixed(sets) if fixed is None else fixed)
        return np.concatenate(own, axis=1, dtype=np.float32)

    def votes(self, measured: Measured, sets: GeneSets, rows: Bools | None = None) -> Votes:
        """Return the votes on sets of one gene or more; ``rows`` as in `pair_votes`."""
        larger = set_votes(measured, self.neighbours, sets) if self.largest > 2 else None
        return Votes(pair_votes(measured, self.neighbours, sets.pairs(), rows), larger)

    def fixed(self, sets: GeneSets) -> Floats:
        """Return the columns that do not depend on what was measured, [sets, columns]."""
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
        # Once for all blocks of sets that are asked with the same knowledge.
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
        """Return the low-rank part with neighbours in place of one gene, and of both."""
        here_too, values = known.factors[:, :_RANK_AROUND], known.values[:_RANK_AROUND]
        columns = np.zeros((len(pairs.first), 2 * len(self.neighbours.names)), dtype=np.float32)
        around = [mean[:, 1:] for mean in self._means_around(known)]
        for genes, at, here in by_first_gene(pairs):
            second = pairs.second[at]
            own = here_too[genes] * values
            for i, mean in enumerate(around):
                other = mean[genes] * values
                one = other @ here_too.T + own @ mean.T
                # What is 0 is 0 to the last bit, however the product is cut into blocks.
                columns[at, 2 * i] = one[here, second].round(9)
                columns[at, 2 * i + 1] = (other @ mean.T)[here, second].round(9)
        return columns

    def _fixed_pair_columns(self, pairs: GenePairs) -> Floats:
        relations, weights = len(self.neighbours.names), self.neighbours.weights
        width = 2 * relations + len(self.profiles)
        tables = np.zeros((len(pairs.first), width), dtype=np.float32)
        for genes, at, here in by_first_gene(pairs):
            second = pairs.second[at]
            for i, (weight, linked) in enumerate(zip(weights, self._linked, strict=True)):
                tables[at, i] = weight[genes].toarray()[here, second]
                tables[at, relations + i] = (linked[genes] @ linked).toarray()[here, second]
            for i, profile in enumerate(self.profiles):
                tables[at, 2 * relations + i] = (profile[genes] @ profile.T)[here, second]
        values = np.concatenate([self.narrow, self.components], axis=1)
        product = values[pairs.first] * values[pairs.second]
        difference = np.abs(self.components[pairs.first] - self.components[pairs.second])
        return np.concatenate([tables, product, difference], axis=1)


def _vote_columns(votes: Floats) -> Floats:
    """Return seven columns per relation, [pairs, relations * 7], the same for (b, a)."""
    first, first_n, second, second_n, both, both_n = np.moveaxis(votes, 2, 0)
    one, other = first / (first_n + _FEW_VOTERS), second / (second_n + _FEW_VOTERS)
    columns = [
        np.minimum(one, other),
        np.maximum(one, other),
        (first + second) / (first_n + second_n + _FEW_VOTERS),
        np.minimum(first_n, second_n),
        np.maximum(first_n, second_n),
        both / (both_n + _FEW_BOTH),
        both_n,
    ]
    return np.stack(columns, axis=2).reshape(len(votes), -1)


def _residual_votes(
    votes: Floats, pairs: GenePairs, effects: GeneEffects, around: Doubles
) -> Floats:
    """Return the votes less what the additive model expects of the voters.

    Of a neighbour a' of a it expects the mean effect of all neighbours of a, so that what was
    measured can stay as it is when the additive model changes with the fold.
    """
    residual = votes.copy()
    at = (pairs.first, pairs.second)
    for place, (gene, other) in enumerate((at, at[::-1])):
        expected = effects.intercept + effects.effect[other][:, None] + around[gene]
        residual[..., 2 * place] -= votes[..., 2 * place + 1] * expected
    expected = effects.intercept + around[pairs.first] + around[pairs.second]
    residual[..., 4] -= votes[..., 5] * expected
    return residual


def _set_vote_columns(
    votes: Floats, sets: GeneSets, effects: GeneEffects, around: Doubles
) -> Floats:
    """Return the vote on each larger set and its voters, [sets, relations * 2]."""
    rest = effects.score(sets)[sets.owner] - effects.effect[sets.genes]
    expected = rest[:, None] + around[sets.genes]
    scores, voters = sets.total(votes[..., 0] - votes[..., 1] * expected), sets.total(votes[..., 1])
    columns = np.stack([scores / (voters + _FEW_VOTERS), voters], axis=2)
    return columns.reshape(len(sets), -1).astype(np.float32)


def _votes_of_alike(known: Known, pairs: GenePairs) -> Floats:
    """Return the votes of genes that interact alike; those on an unseen gene are 0."""
    votes = np.zeros((len(pairs.first), 1, len(SUMS)), dtype=np.float32)
    seen = np.flatnonzero(known.effects.seen[pairs.first] & known.effects.seen[pairs.second])
    if len(seen):
        some = GenePairs(pairs.first[seen], pairs.second[seen], np.arange(len(seen) + 1))
        votes[seen] = pair_votes(known.residuals, known.alike, some)
    return votes


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
    """Return columns to learn from, as they will be in a prediction, and the set of each row.

    Every set has one row with all of its genes measured: effects, counts and factors come from the
    folds of sets that it is not in. And it has ``rounds`` rows with some of its genes unseen: genes
    are drawn into folds, and a set sees only what was measured without any gene of a fold. Other
    sets, which were tested and had no score, are sets ``len(part.sets)`` and on.
    """
    n, n_part, sets = columns.n_genes, len(part.sets), part.sets
    if others is not None:
        offsets = np.concatenate([sets.offsets, sets.offsets[-1] + others.offsets[1:]])
        sets = GeneSets(np.concatenate([sets.genes, others.genes]), offsets)
    fixed = columns.fixed(sets)
    found: list[tuple[Floats, Ints]] = []
    votes = columns.votes(Measured.of(part, n), sets)
    fold = set_folds(sets, n, folds, seed)
    for k in range(folds):
        rows, kept = np.flatnonzero(fold == k), np.flatnonzero(fold[:n_part] != k)
        known = Known.of(part.take(kept), n, penalty, share=len(kept) / n_part)
        of_fold = columns(known, sets.take(rows), votes.take(sets, rows), fixed[rows])
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
                votes = columns.votes(Measured.of(rest, n), some, left_out)
                found.append((columns(Known.of(rest, n, penalty), some, votes, fixed[rows]), rows))
    tables, rows_of = zip(*found, strict=True)
    return np.concatenate(tables), np.concatenate(rows_of)


def set_folds(sets: GeneSets, n_genes: int, folds: int, seed: int) -> Ints:
    """Return the fold of each set, by its genes alone, so that equal sets share one."""
    return (hashed_sets(sets, n_genes, (seed, 0)) % np.uint64(folds)).astype(np.int64)


def hashed_sets(sets: GeneSets, n_genes: int, seed: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Return 64 random bits per set, by its genes alone."""
    code = np.random.default_rng(seed).integers(2**64, size=n_genes, dtype=np.uint64)
    mixed: npt.NDArray[np.uint64] = sets.total(code[sets.genes])
    # The steps of SplitMix64 mix the bits of the sum.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
