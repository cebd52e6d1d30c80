"""Votes: what the measured sets next to a set say of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from deltacell.arrays import AnyArray, Bools, Doubles, Floats, Ints, ragged_positions
from deltacell.models.baselines.baseline import Part
from deltacell.models.baselines.gene_sets import GenePairs, GeneSets, look_up
from deltacell.models.baselines.network_features import blocks_of
from deltacell.models.pairs.neighbours import Neighbours
from deltacell.screen.genotypes import set_keys

SUMS = ("first", "first voters", "second", "second voters", "both", "both voters")
"""What `pair_votes` returns for each relation."""

_GENES_PER_BLOCK = 256
_ENTRIES_PER_BLOCK = 2_000_000


class LargerSets(NamedTuple):
    """Measured sets of one size, by each gene and the rest of the set."""

    rests: AnyArray  # the key of each rest, ascending, [rests]
    scores: sp.csr_array  # the score of a gene with a rest, [rests, genes]
    tested: sp.csr_array  # 1 where that set was measured


@dataclass(frozen=True, eq=False)
class Measured:
    """The measured sets as matrices: pairs as a relation between genes, larger sets by their rest.

    Y is the score of each measured pair, and M is 1 where a pair was measured; both symmetric.
    """

    n_genes: int
    pairs: sp.csr_array  # Y, [genes, genes]
    tested: sp.csr_array  # M, [genes, genes]
    larger: dict[int, LargerSets]  # the measured sets of three genes and more, by size

    @classmethod
    def of(cls, part: Part, n_genes: int) -> Measured:
        """Return what was measured; the score of a set measured repeatedly is the weighted mean.

        Sets of one gene are ignored.
        """
        sets, scores, weights, sizes = part.sets, part.targets, part.weights, part.sets.sizes
        larger = {}
        for size in np.unique(sizes[(sizes > 2) & (weights > 0)]).tolist():
            rows = np.flatnonzero((sizes == size) & (weights > 0))
            some = sets.take(rows)
            rests, row = np.unique(rest_keys(some, n_genes), return_inverse=True)
            at, owner, shape = (row.ravel(), some.genes), rows[some.owner], (len(rests), n_genes)
            larger[size] = LargerSets(rests, *_means(scores[owner], weights[owner], at, shape))
        rows = np.flatnonzero((sizes == 2) & (weights > 0))
        first, second = sets.take(rows).genes.reshape(-1, 2).T
        # Both directions are summed in the same order, so that Y is symmetric to the last bit.
        both = _means(scores[rows], weights[rows], (first, second), (n_genes, n_genes))
        pairs, tested = (sp.csr_array(one_way + one_way.T) for one_way in both)
        return cls(n_genes, pairs, tested, larger)


def _means(
    scores: Doubles, weights: Doubles, at: tuple[Ints, Ints], shape: tuple[int, int]
) -> tuple[sp.csr_array, sp.csr_array]:
    """Return the weighted mean score at each place of a matrix, and 1 where there is one."""
    weight = sp.csr_array((weights, at), shape)
    total = sp.csr_array((weights * scores, at), shape)
    weight.sum_duplicates()
    total.sum_duplicates()
    mean = (total.data / weight.data).astype(np.float32)
    return (
        sp.csr_array((mean, total.indices, total.indptr), shape),
        sp.csr_array((np.ones_like(mean), total.indices, total.indptr), shape),
    )


def rest_keys(sets: GeneSets, n_genes: int) -> AnyArray:
    """Return, for each gene of each set, the key of the set without it; all of one size."""
    size = int(sets.sizes[0])
    matrix = sets.genes.reshape(-1, size)
    rests = np.stack([np.delete(matrix, i, axis=1) for i in range(size)], axis=1).ravel()
    return set_keys(rests, np.arange(0, len(rests) + 1, size - 1), n_genes)


def by_first_gene(pairs: GenePairs) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield blocks of pairs that share their first genes.

    Each is the first genes of the block, [g]; the pairs, as positions, [p]; and for each of those
    the position of its first gene among the g.
    """
    order = np.argsort(pairs.first, kind="stable")
    genes, starts = np.unique(pairs.first[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    for begin in range(0, len(genes), _GENES_PER_BLOCK):
        block = slice(begin, begin + _GENES_PER_BLOCK)
        sizes = ends[block] - starts[block]
        at = order[starts[begin] : starts[begin] + sizes.sum()]
        yield genes[block], at, np.repeat(np.arange(len(sizes)), sizes)


def pair_votes(
    measured: Measured, neighbours: Neighbours, pairs: GenePairs, rows: Bools | None = None
) -> Floats:
    r"""Return the votes on pairs of genes as sums, [pairs, relations, 6]; see `SUMS`.

    With Y and M of `Measured` and A the matrix of a relation, for a pair (a, b):

    - ``first``: :math:`(A Y)_{ab}`, the scores of a's neighbours with b, and ``first voters``,
      :math:`(A M)_{ab}`;
    - ``second``: :math:`(Y A)_{ab}`, the scores of b's neighbours with a, and its voters;
    - ``both``: :math:`\sum A_{aa'} Y_{a'b'} A_{b'b}` over the neighbours a' of a except b and b' of
      b except a: the scores between the two neighbourhoods, and its voters.

    The score of the pair itself enters none of them, not even by rounding: A has an empty
    diagonal, and the genes of the pair are left out of each other's neighbourhoods.

    If every pair has one of the genes ``rows``, the work grows with their number only.
    """
    turned = np.zeros(len(pairs.first), dtype=bool)
    if rows is not None:
        turned = rows[pairs.second] & ~rows[pairs.first]
        first = np.where(turned, pairs.second, pairs.first)
        pairs = GenePairs(first, np.where(turned, pairs.first, pairs.second), pairs.offsets)
    votes = np.zeros((len(pairs.first), len(neighbours.names), len(SUMS)), dtype=np.float32)
    for relation, matrix in enumerate(neighbours.matrices):
        link = np.zeros(len(pairs.first), dtype=np.float32)
        for what, scores in enumerate((measured.pairs, measured.tested)):
            for genes, at, here in by_first_gene(pairs):
                second = pairs.second[at]
                one = (matrix[genes] @ scores).toarray()
                votes[at, relation, what] = one[here, second]
                votes[at, relation, 2 + what] = (scores[genes] @ matrix).toarray()[here, second]
                # Only this diagonal contains the pair's own score.
                one[np.arange(len(genes)), genes] = 0
                two = matrix @ np.ascontiguousarray(one.T)
                votes[at, relation, 4 + what] = two[second, here]
                link[at] = matrix[genes].toarray()[here, second]
            linked = np.flatnonzero(link)
            among = _scores_among_neighbours(
                matrix, scores, pairs.second[linked], pairs.first[linked]
            )
            votes[linked, relation, 4 + what] -= link[linked] * among
    votes[turned] = votes[turned][..., [2, 3, 0, 1, 4, 5]]
    return votes


def _scores_among_neighbours(
    matrix: sp.csr_array, scores: sp.csr_array, gene: Ints, without: Ints
) -> Floats:
    """Return the weighted sum of each gene's scores with its neighbours, leaving one out."""
    both = matrix.multiply(scores).tocsr()
    sizes = np.diff(both.indptr)[gene]
    at = ragged_positions(both.indptr[gene].astype(np.int64), sizes.astype(np.int64))
    owner = np.repeat(np.arange(len(gene)), sizes)
    kept = both.indices[at] != without[owner]
    sums = np.bincount(owner[kept], both.data[at[kept]], minlength=len(gene))
    return sums.astype(np.float32)


def set_votes(measured: Measured, neighbours: Neighbours, sets: GeneSets) -> Floats:
    """Return the votes on sets of three genes and more, by gene, [total, relations, 2].

    For each gene of a set they are the sum, over the neighbours of the gene, of the score of the
    set with the neighbour in place of the gene, and of the weights of those that were measured.
    Smaller sets, and sets of a size that was never measured, have none.
    """
    votes = np.zeros((len(sets.genes), len(neighbours.names), 2), dtype=np.float32)
    for size, known in measured.larger.items():
        rows = np.flatnonzero(sets.sizes == size)
        if not len(rows):
            continue
        places = ragged_positions(sets.offsets[rows], sets.sizes[rows])
        at, found = look_up(known.rests, rest_keys(sets.take(rows), measured.n_genes))
        place, rest = places[found], at[found]
        for relation, matrix in enumerate(neighbours.matrices):
            sizes = np.diff(matrix.indptr)[sets.genes[place]]
            for part in blocks_of(sizes, _ENTRIES_PER_BLOCK):
                weights = matrix[sets.genes[place[part]]]
                for what, scores in enumerate((known.scores, known.tested)):
                    vote = np.asarray(weights.multiply(scores[rest[part]]).sum(axis=1)).ravel()
                    votes[place[part], relation, what] = vote
    return votes


class Voter(NamedTuple):
    """One measured set next to another: what stands in for what, and what was measured."""

    genes: tuple[int, ...]  # the measured set
    replaced: int  # the gene of the voted set that is not in it
    by: int  # the neighbour in its place
    relation: str
    weight: float
    score: float


def voters(
    measured: Measured, neighbours: Neighbours, genes: tuple[int, ...], most: int = 20
) -> list[Voter]:
    """Return the measured sets that vote on a set of genes, those with the largest weight first."""
    found: dict[tuple[int, ...], Voter] = {}
    for gene in genes:
        rest = tuple(sorted(set(genes) - {gene}))
        partners, scores = _scores_with(measured, rest)
        for name, matrix in zip(neighbours.names, neighbours.matrices, strict=True):
            row = matrix[[gene]].toarray()[0][partners]
            for i in np.flatnonzero(row > 0).tolist():
                other = int(partners[i])
                key = tuple(sorted((*rest, other)))
                voter = Voter(key, gene, other, name, float(row[i]), float(scores[i]))
                if other not in genes and (key not in found or found[key].weight < voter.weight):
                    found[key] = voter
    return sorted(found.values(), key=lambda v: (-v.weight, v.genes))[:most]


def _scores_with(measured: Measured, rest: tuple[int, ...]) -> tuple[Ints, Floats]:
    """Return the genes that were measured together with some others, and the scores."""
    table, row = measured.pairs, rest[0]
    if len(rest) > 1:
        known = measured.larger.get(len(rest) + 1)
        key = set_keys(np.array(rest), np.array([0, len(rest)]), measured.n_genes)
        at, there = look_up(key[:0] if known is None else known.rests, key)
        if known is None or not there[0]:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        table, row = known.scores, int(at[0])
    entries = slice(table.indptr[row], table.indptr[row + 1])
    return table.indices[entries].astype(np.int64), table.data[entries]
