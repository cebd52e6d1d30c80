"""Similar genes, and the votes of the measured sets next to a set, one by one and summed.

A *vote* is one measured set on which the prediction for another set rests, with its weight and its
score: `deltacell.models.interface.Vote`, which `votes_on` lists for people to read. Predictors read
sums of votes instead, per relation: `SummedVotes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from deltacell.base.arrays import AnyArray, Bools, Doubles, Floats, Ints, ragged_positions
from deltacell.cell import Cell
from deltacell.models.eigenvectors import leading_singular_vectors
from deltacell.models.fitted.gene_sets import GeneOrder, GenePairs, GeneSets, look_up
from deltacell.models.fitted.predictor import Part
from deltacell.models.gene_vectors import largest_signs, standardised
from deltacell.models.interface import Vote
from deltacell.screen.gene_keys import set_keys

PROFILE_WIDTH = 16  # the least number of columns of a feature that serves to compare genes

_NEAREST = 30  # neighbours per gene by features
_NEAREST_ALIKE = 100  # neighbours per gene by interactions
_GENES_COMPARED = 1024
_GENES_PER_BLOCK = 256
_ROWS_PER_BLOCK = 4_096


class Neighbours(NamedTuple):
    """Symmetric weights between genes, one matrix per relation, with an empty diagonal.

    Besides the relations of the cell there is one for each profile (a wide feature), which links
    the genes with the most similar profiles, and one for all networks together, which links the
    genes with the most similar rows. Their order in the cell does not matter.
    """

    names: tuple[str, ...]
    weights: tuple[sp.csr_array, ...]  # W of each relation, [genes, genes]
    matrices: tuple[sp.csr_array, ...]  # D^{-1/2} W D^{-1/2} with D the row sums of W

    def joined(self, others: Neighbours) -> Neighbours:
        """Return these neighbours and others."""
        pairs = zip(self, others, strict=True)
        return Neighbours(*(own + of_others for own, of_others in pairs))

    @classmethod
    def of(cls, cell: Cell, order: GeneOrder, features: Sequence[str] | None = None) -> Neighbours:
        """Return the relations of a cell and those of its profiles; all features if None."""
        n = len(order)
        weights = {}
        for name in sorted(cell.relations):
            relation = cell.relations[name].take(order.gene)
            entries = (relation.weights, relation.indices, relation.indptr)
            weights[name] = _symmetric(sp.csr_array(entries, shape=(n, n)))
        similar = {}
        if len(weights) > 1:
            rows = sp.hstack([_normalised(matrix) for matrix in weights.values()]).tocsr()
            similar["networks"] = _nearest(_unit_rows(rows))
        for name in sorted(cell.features if features is None else features):
            if cell.feature(name).width >= PROFILE_WIDTH:
                similar[name] = _nearest(profiles(cell.feature(name).values[order.gene]))
        weights |= {f"similar {name}": matrix for name, matrix in similar.items()}
        return cls(
            tuple(weights),
            tuple(weights.values()),
            tuple(map(_normalised, weights.values())),
        )

    def places(self, k: int) -> Floats:
        """Return the scaled leading left singular vectors of all matrices together, [genes, k]."""
        n = int(self.weights[0].shape[0])
        places = np.zeros((n, k), dtype=np.float32)
        if n > 1:
            rows = sp.hstack(self.matrices).tocsr().astype(np.float64)
            left, values, _ = leading_singular_vectors(rows, min(k, n - 1))
            places[:, : len(values)] = left * (largest_signs(left) * values)
        return places


def alike(scores: sp.csr_array) -> Neighbours:
    """Return the genes with similar rows of scores; the weight is the squared cosine."""
    weights = _nearest(_unit_rows(scores.astype(np.float64)), _NEAREST_ALIKE)
    weights.data **= 2
    return Neighbours(("similar interactions",), (weights,), (_normalised(weights),))


def profiles(values: Floats) -> Floats:
    """Return standardised profiles as rows of mean 0 and length 1, 0 for a gene without one."""
    absent = np.isnan(values)
    scaled = standardised(values.astype(np.float64), absent)
    scaled -= np.where(absent.all(axis=1), 0, scaled.mean(axis=1))[:, None]
    length = np.linalg.norm(scaled, axis=1)
    unit: Floats = (scaled / np.where(length > 0, length, 1)[:, None]).astype(np.float32)
    return unit


def _symmetric(matrix: sp.csr_array) -> sp.csr_array:
    """Return the larger weight of both directions, if positive, without the diagonal."""
    entries = matrix.maximum(matrix.T).tocoo()
    kept = (entries.row != entries.col) & (entries.data > 0)
    data = entries.data[kept].astype(np.float32)
    clean = sp.csr_array((data, (entries.row[kept], entries.col[kept])), shape=matrix.shape)
    clean.sort_indices()
    return clean


def _normalised(matrix: sp.csr_array) -> sp.csr_array:
    degree = np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
    scale = np.zeros_like(degree)
    np.divide(1.0, np.sqrt(degree), out=scale, where=degree > 0)
    scaled = sp.diags_array(scale) @ matrix @ sp.diags_array(scale)
    return sp.csr_array(scaled, dtype=np.float32)


def _unit_rows(rows: sp.csr_array) -> sp.csr_array:
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    return sp.csr_array(sp.diags_array(1 / np.where(length > 0, length, 1.0)) @ rows)


def _nearest(rows: sp.csr_array | Floats, k: int = _NEAREST) -> sp.csr_array:
    """Return the cosine to the k most similar genes, if positive."""
    n = rows.shape[0]
    k = min(k, n - 1)
    # In double precision, so that the number of threads does not change the float32 result.
    rows = rows.astype(np.float64)
    columns = []
    values = []
    for start in range(0, n, _GENES_COMPARED):
        block: Any = rows[start : start + _GENES_COMPARED] @ rows.T
        cosine = block.toarray() if sp.issparse(block) else block
        cosine[np.arange(len(cosine)), np.arange(start, start + len(cosine))] = -np.inf
        best = torch.from_numpy(cosine).topk(k, sorted=False)
        columns.append(best.indices.numpy())
        values.append(best.values.numpy())
    positive = np.maximum(np.concatenate(values).ravel(), 0)
    starts = np.arange(0, n * k + 1, k)
    return _symmetric(
        sp.csr_array((positive, np.concatenate(columns).ravel(), starts), shape=(n, n)),
    )


class LargerSets(NamedTuple):
    """Measured sets of one size, as a matrix of each gene and the rest of its set."""

    rests: AnyArray  # the key of each rest, ascending, [rests]
    scores: sp.csr_array  # the score of a gene with a rest, [rests, genes]
    is_measured: sp.csr_array  # 1 for measured sets, [rests, genes]


class Means(NamedTuple):
    """The mean scores of measured sets, as the entries of a sparse matrix."""

    scores: sp.csr_array
    is_measured: sp.csr_array  # 1 wherever there is a score

    @classmethod
    def of(cls, scores: Doubles, rows: Ints, columns: Ints, shape: tuple[int, int]) -> Means:
        """Average the scores with the same row and column."""
        count = sp.csr_array((np.ones_like(scores), (rows, columns)), shape)
        total = sp.csr_array((scores, (rows, columns)), shape)
        count.sum_duplicates()
        total.sum_duplicates()
        mean = (total.data / count.data).astype(np.float32)
        return cls(
            sp.csr_array((mean, total.indices, total.indptr), shape),
            sp.csr_array((np.ones_like(mean), total.indices, total.indptr), shape),
        )


@dataclass(frozen=True, eq=False)
class Measured:
    """The measured sets as matrices: pairs between genes, and larger sets, see `LargerSets`."""

    n_genes: int
    pairs: sp.csr_array  # Y, the score of each measured pair, symmetric, [genes, genes]
    is_measured: sp.csr_array  # M, 1 for measured pairs, symmetric, [genes, genes]
    larger: dict[int, LargerSets]  # the measured sets of three or more genes, by size

    @classmethod
    def of(cls, part: Part, n_genes: int) -> Measured:
        """Average the repeats of a set, and ignore sets of one gene."""
        sizes = part.sets.sizes
        larger = {}
        for size in np.unique(sizes[sizes > 2]).tolist():
            of_size = part.take(np.flatnonzero(sizes == size))
            larger[size] = _larger_sets(of_size, size, n_genes)
        of_two = part.take(np.flatnonzero(sizes == 2))
        first, second = of_two.sets.genes.reshape(-1, 2).T
        means = Means.of(of_two.targets, first, second, (n_genes, n_genes))
        # Both directions are summed in the same order, so that Y is symmetric to the last bit.
        scores = sp.csr_array(means.scores + means.scores.T)
        is_measured = sp.csr_array(means.is_measured + means.is_measured.T)
        return cls(n_genes, scores, is_measured, larger)


def _larger_sets(part: Part, size: int, n_genes: int) -> LargerSets:
    rests, rows = np.unique(rest_keys(part.sets, n_genes), return_inverse=True)
    scores = np.repeat(part.targets, size)
    means = Means.of(scores, rows.ravel(), part.sets.genes, (len(rests), n_genes))
    return LargerSets(rests, means.scores, means.is_measured)


def rest_keys(sets: GeneSets, n_genes: int) -> AnyArray:
    """Return, for each gene of each set, the key of the set without it; all sets have one size."""
    size = int(sets.sizes[0])
    matrix = sets.genes.reshape(-1, size)
    without_gene = [np.delete(matrix, i, axis=1) for i in range(size)]
    rests = np.stack(without_gene, axis=1).ravel()
    return set_keys(rests, np.arange(0, len(rests) + 1, size - 1), n_genes)


class PairBlock(NamedTuple):
    """Pairs with few distinct first genes, so that a matrix of these and all genes is small."""

    genes: Ints  # the distinct first genes, [genes]
    pairs: Ints  # which of all pairs are in the block, [pairs]
    row: Ints  # the position in ``genes`` of the first gene of each pair, [pairs]
    second: Ints  # the second gene of each pair, [pairs]

    def entries(self, matrix: AnyArray) -> AnyArray:
        """Return the entry of each pair in a matrix [genes of the block, all genes]."""
        entries: AnyArray = matrix[self.row, self.second]
        return entries


def by_first_gene(pairs: GenePairs) -> Iterator[PairBlock]:
    """Yield all pairs, in blocks of those that share their first genes."""
    order = np.argsort(pairs.first, kind="stable")
    genes, starts = np.unique(pairs.first[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    for begin in range(0, len(genes), _GENES_PER_BLOCK):
        block = slice(begin, begin + _GENES_PER_BLOCK)
        sizes = ends[block] - starts[block]
        of_block = order[starts[begin] : starts[begin] + sizes.sum()]
        row = np.repeat(np.arange(len(sizes)), sizes)
        yield PairBlock(genes[block], of_block, row, pairs.second[of_block])


class SummedVotes(NamedTuple):
    """Votes, summed by relation; their mean is ``scores / weights``."""

    scores: Floats  # the sum of weight times score, [rows, relations]
    weights: Floats  # the sum of the weights, [rows, relations]

    def take(self, rows: Ints) -> SummedVotes:
        """Return some of the rows."""
        return SummedVotes(self.scores[rows], self.weights[rows])

    def spread(self, rows: Ints, n_rows: int) -> SummedVotes:
        """Return the sums as some of ``n_rows`` rows, the others of which are 0."""
        shape = (n_rows, self.scores.shape[1])
        scores = np.zeros(shape, dtype=np.float32)
        weights = np.zeros(shape, dtype=np.float32)
        scores[rows] = self.scores
        weights[rows] = self.weights
        return SummedVotes(scores, weights)

    def where(self, chosen: Bools, otherwise: SummedVotes) -> SummedVotes:
        """Return the chosen rows of these sums, and the other rows of others; [rows]."""
        chosen = chosen[:, None]
        return SummedVotes(
            np.where(chosen, self.scores, otherwise.scores),
            np.where(chosen, self.weights, otherwise.weights),
        )


class PairSums(NamedTuple):
    """The votes on pairs of genes, summed by what differs from the pair; [pairs, relations]."""

    first: SummedVotes  # of pairs with a neighbour in place of the first gene
    second: SummedVotes  # of pairs with a neighbour in place of the second gene
    both: SummedVotes  # of pairs with neighbours in place of both genes

    def take(self, rows: Ints) -> PairSums:
        """Return the sums of some of the pairs."""
        return PairSums(self.first.take(rows), self.second.take(rows), self.both.take(rows))

    def spread(self, rows: Ints, n_rows: int) -> PairSums:
        """Return the sums as some of ``n_rows`` rows, the others of which are 0."""
        return PairSums(
            self.first.spread(rows, n_rows),
            self.second.spread(rows, n_rows),
            self.both.spread(rows, n_rows),
        )

    def turned(self, is_turned: Bools) -> PairSums:
        """Return the sums with the two genes of some pairs exchanged."""
        return PairSums(
            self.second.where(is_turned, self.first),
            self.first.where(is_turned, self.second),
            self.both,
        )


def pair_sums(
    measured: Measured,
    neighbours: Neighbours,
    pairs: GenePairs,
    rows: Bools | None = None,
) -> PairSums:
    r"""Sum the votes on pairs of genes.

    With Y and M of `Measured` and A the matrix of a relation, the sums of scores for a pair (a, b)
    are

    - ``first``: :math:`(A Y)_{ab}`, the scores of a's neighbours with b;
    - ``second``: :math:`(Y A)_{ab}`, the scores of b's neighbours with a;
    - ``both``: :math:`\sum_{a' \ne b, b' \ne a} A_{aa'} Y_{a'b'} A_{b'b}`, the scores between the
      neighbours of a and those of b, where neither gene counts as a neighbour of the other;

    and the sums of weights are the same with M in place of Y. The score of the pair itself enters
    no sum, not even by rounding. In the first two it would have the factor :math:`A_{aa}` or
    :math:`A_{bb}`, which are 0; for the third see `_between_neighbourhoods`.

    Args:
        measured: The measured sets; only the pairs are read.
        neighbours: The relations, with an empty diagonal.
        pairs: The pairs that are voted on.
        rows: Genes [genes] of which every pair has one; the work then grows with their number.

    In this example genes 0 and 1, 2 and 3, and 0 and 3 are linked. For the pair (0, 3), gene 1 may
    take the place of gene 0, and gene 2 that of gene 3; its own score of 9 is nowhere:

    >>> links = np.zeros((4, 4), dtype=np.float32)
    >>> links[[0, 1, 2, 3, 0, 3], [1, 0, 3, 2, 3, 0]] = 1
    >>> matrix = sp.csr_array(links)
    >>> sets = GeneSets(np.array([0, 3, 1, 3, 0, 2, 1, 2]), np.array([0, 2, 4, 6, 8]))
    >>> measured = Measured.of(Part(sets, np.array([9.0, 1.0, 2.0, 4.0])), n_genes=4)
    >>> sums = pair_sums(measured, Neighbours(("links",), (matrix,), (matrix,)), sets.pairs())
    >>> [float(summed.scores[0, 0]) for summed in sums]  # of (1, 3), of (0, 2) and of (1, 2)
    [1.0, 2.0, 4.0]
    >>> [float(summed.weights[0, 0]) for summed in sums]
    [1.0, 1.0, 1.0]
    """
    if rows is not None:
        is_turned = rows[pairs.second] & ~rows[pairs.first]
        first = np.where(is_turned, pairs.second, pairs.first)
        second = np.where(is_turned, pairs.first, pairs.second)
        by_rows = GenePairs(first, second, pairs.offsets)
        return pair_sums(measured, neighbours, by_rows).turned(is_turned)
    scores = _weighted_sums(measured.pairs, neighbours, pairs)
    weights = _weighted_sums(measured.is_measured, neighbours, pairs)
    return PairSums(
        first=SummedVotes(scores.first, weights.first),
        second=SummedVotes(scores.second, weights.second),
        both=SummedVotes(scores.both, weights.both),
    )


class _WeightedSums(NamedTuple):
    """Sums of the entries of one matrix, [pairs, relations] each; see `pair_sums`."""

    first: Floats
    second: Floats
    both: Floats


def _weighted_sums(values: sp.csr_array, neighbours: Neighbours, pairs: GenePairs) -> _WeightedSums:
    shape = (len(pairs.first), len(neighbours.names))
    first = np.zeros(shape, dtype=np.float32)
    second = np.zeros(shape, dtype=np.float32)
    both = np.zeros(shape, dtype=np.float32)
    linked_values = [matrix.multiply(values).tocsr() for matrix in neighbours.matrices]
    for block in by_first_gene(pairs):
        for relation, matrix in enumerate(neighbours.matrices):
            rows = matrix[block.genes]
            near_first = (rows @ values).toarray()
            near_second = (values[block.genes] @ matrix).toarray()
            link = block.entries(rows.toarray())
            first[block.pairs, relation] = block.entries(near_first)
            second[block.pairs, relation] = block.entries(near_second)
            both[block.pairs, relation] = _between_neighbourhoods(
                matrix,
                block,
                near_first,
                link,
                linked_values[relation],
            )
    return _WeightedSums(first, second, both)


def _between_neighbourhoods(
    matrix: sp.csr_array,
    block: PairBlock,
    near_first: Floats,
    link: Floats,
    linked_values: sp.csr_array,
) -> Floats:
    r"""Return the sum over the neighbours of both genes of each pair of a block, [pairs].

    It is :math:`(A Y A)_{ab}` without the terms in which b' is a or a' is b:

    .. math:: \sum_{b' \ne a} (A Y)_{ab'} A_{b'b} - A_{ab} \sum_{b' \ne a} (A \circ Y)_{bb'}

    The own score :math:`Y_{ab}` would enter by the term with a' = b and b' = a. This is part of
    :math:`(A Y)_{aa}`, which is set to 0 before the product, so it is never added, and need not be
    subtracted. What is subtracted, for linked genes only, are the other terms with a' = b.

    Args:
        matrix: A, [genes, genes].
        block: The pairs (a, b).
        near_first: The rows of A Y for the genes of the block, [genes of the block, genes]; their
            diagonal is overwritten.
        link: A at each pair, [pairs].
        linked_values: The product of A and Y entry by entry, [genes, genes].
    """
    near_first[np.arange(len(block.genes)), block.genes] = 0
    of_all_genes = matrix @ np.ascontiguousarray(near_first.T)
    sums: Floats = of_all_genes[block.second, block.row]
    linked = np.flatnonzero(link)
    first = block.genes[block.row[linked]]
    through_second = _sums_without(linked_values, block.second[linked], first)
    sums[linked] -= link[linked] * through_second
    return sums


def _sums_without(matrix: sp.csr_array, rows: Ints, without: Ints) -> Floats:
    """Return the sums of some rows of a matrix, each without the entry in one column, [rows]."""
    sizes = np.diff(matrix.indptr)[rows].astype(np.int64)
    entries = ragged_positions(matrix.indptr[rows].astype(np.int64), sizes)
    owner = np.repeat(np.arange(len(rows)), sizes)
    kept = matrix.indices[entries] != without[owner]
    sums = np.bincount(owner[kept], matrix.data[entries[kept]], minlength=len(rows))
    return sums.astype(np.float32)


def larger_set_sums(measured: Measured, neighbours: Neighbours, sets: GeneSets) -> SummedVotes:
    """Sum the votes on sets of three or more genes, by gene, [total, relations].

    The votes are the measured sets with a neighbour in place of the gene.
    """
    shape = (len(sets.genes), len(neighbours.names))
    sums = SummedVotes(np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32))
    for size, known in measured.larger.items():
        rows = np.flatnonzero(sets.sizes == size)
        if len(rows):
            _add_sets_of_size(sums, known, neighbours, sets, rows)
    return sums


def _add_sets_of_size(
    sums: SummedVotes,
    known: LargerSets,
    neighbours: Neighbours,
    sets: GeneSets,
    rows: Ints,
) -> None:
    """Write the sums of some sets, which have the size of the measured ones."""
    n_genes = known.scores.shape[1]
    positions = ragged_positions(sets.offsets[rows], sets.sizes[rows])
    known_row, is_known = look_up(known.rests, rest_keys(sets.take(rows), n_genes))
    positions = positions[is_known]
    known_row = known_row[is_known]
    for start in range(0, len(positions), _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        scores = known.scores[known_row[block]]
        is_measured = known.is_measured[known_row[block]]
        for relation, matrix in enumerate(neighbours.matrices):
            weights = matrix[sets.genes[positions[block]]]
            sums.scores[positions[block], relation] = _row_sums(weights.multiply(scores))
            sums.weights[positions[block], relation] = _row_sums(weights.multiply(is_measured))


def _row_sums(matrix: sp.csr_array) -> Floats:
    sums: Floats = np.asarray(matrix.sum(axis=1)).ravel()
    return sums


def votes_on(
    measured: Measured,
    neighbours: Neighbours,
    genes: tuple[int, ...],
    most: int = 20,
) -> list[Vote]:
    """Return the measured sets with a neighbour in place of one gene, by descending weight.

    Genes are places in the `GeneOrder`. A measured set that votes by several relations is listed
    with the one of the largest weight.
    """
    votes: dict[tuple[int, ...], Vote] = {}
    for gene in genes:
        rest = tuple(sorted(set(genes) - {gene}))
        partners, scores = _scores_with(measured, rest)
        for name, matrix in zip(neighbours.names, neighbours.matrices, strict=True):
            weights = matrix[[gene]].toarray()[0][partners]
            for i in np.flatnonzero(weights > 0).tolist():
                other = int(partners[i])
                if other in genes:
                    continue
                key = tuple(sorted((*rest, other)))
                weight = float(weights[i])
                if key not in votes or votes[key].weight < weight:
                    votes[key] = Vote(key, gene, other, float(scores[i]), name, weight)
    return sorted(votes.values(), key=lambda vote: (-vote.weight, vote.genes))[:most]


def named_votes(
    measured: Measured,
    neighbours: Neighbours,
    places: tuple[int, ...],
    order: GeneOrder,
) -> list[Vote]:
    """Return `votes_on` a set, given by its places, with the genes of the cell."""
    return [
        replace(
            vote,
            genes=tuple(order.gene[list(vote.genes)].tolist()),
            replaced=int(order.gene[vote.replaced]),
            by=int(order.gene[vote.by]),
        )
        for vote in votes_on(measured, neighbours, places)
    ]


def _scores_with(measured: Measured, rest: tuple[int, ...]) -> tuple[Ints, Floats]:
    """Return the genes that were measured together with the rest of a set, and the scores."""
    rows = measured.pairs[list(rest[:1])]
    if len(rest) > 1:
        known = measured.larger.get(len(rest) + 1)
        if known is None:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        key = set_keys(np.array(rest), np.array([0, len(rest)]), measured.n_genes)
        position, is_known = look_up(known.rests, key)
        rows = known.scores[position[is_known]]
    return rows.indices.astype(np.int64), rows.data
