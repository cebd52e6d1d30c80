"""Votes: similar genes, and the scores of the measured sets next to a set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds

from deltacell.base.arrays import AnyArray, Bools, Doubles, Floats, Ints, ragged_positions
from deltacell.cell import Cell
from deltacell.models.fitted.gene_sets import GeneOrder, GenePairs, GeneSets, look_up
from deltacell.models.fitted.predictor import Part
from deltacell.models.gene_vectors import largest_signs, standardised
from deltacell.screen.genotypes import set_keys

PROFILE_WIDTH = 16  # the least number of columns of a feature that serves to compare genes
SUMS = ("first", "first voters", "second", "second voters", "both", "both voters")

_NEAREST, _NEAREST_ALIKE = 30, 100  # neighbours per gene by features, and by interactions
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

    @classmethod
    def of(cls, cell: Cell, order: GeneOrder, features: Sequence[str] | None = None) -> Neighbours:
        weights, n = {}, len(order)
        for name in sorted(cell.relations):
            one = cell.relations[name].take(order.gene)
            matrix = sp.csr_array((one.weights, one.indices, one.indptr), shape=(n, n))
            weights[name] = _symmetric(matrix)
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
        found = np.zeros((n, k), dtype=np.float32)
        if n > 1:
            rows = sp.hstack(self.matrices).tocsr().astype(np.float64)
            start = np.random.default_rng(0).uniform(0.5, 1.5, n)
            left, values, _ = svds(rows, k=min(k, n - 1), v0=start)
            left, values = left[:, ::-1], values[::-1]
            found[:, : len(values)] = left * (largest_signs(left) * values)
        return found


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
    columns, values = [], []
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
    tested: sp.csr_array  # 1 for measured sets


@dataclass(frozen=True, eq=False)
class Measured:
    """The measured sets as matrices: pairs between genes, and larger sets, see `LargerSets`."""

    n_genes: int
    pairs: sp.csr_array  # Y, the score of each measured pair, symmetric, [genes, genes]
    tested: sp.csr_array  # M, 1 for measured pairs, symmetric, [genes, genes]
    larger: dict[int, LargerSets]  # the measured sets of three or more genes, by size

    @classmethod
    def of(cls, part: Part, n_genes: int) -> Measured:
        """Average the repeats of a set, and ignore sets of one gene."""
        sizes, larger = part.sets.sizes, {}
        for size in np.unique(sizes[sizes > 2]).tolist():
            some = part.take(np.flatnonzero(sizes == size))
            rests, row = np.unique(rest_keys(some.sets, n_genes), return_inverse=True)
            at, scores = (row.ravel(), some.sets.genes), np.repeat(some.targets, size)
            larger[size] = LargerSets(rests, *_means(scores, at, (len(rests), n_genes)))
        of_two = part.take(np.flatnonzero(sizes == 2))
        first, second = of_two.sets.genes.reshape(-1, 2).T
        # Both directions are summed in the same order, so that Y is symmetric to the last bit.
        both = _means(of_two.targets, (first, second), (n_genes, n_genes))
        pairs, tested = (sp.csr_array(one_way + one_way.T) for one_way in both)
        return cls(n_genes, pairs, tested, larger)


def _means(
    scores: Doubles,
    at: tuple[Ints, Ints],
    shape: tuple[int, int],
) -> tuple[sp.csr_array, sp.csr_array]:
    """Return the matrix of the mean score at each place, and that of ones."""
    count, total = (sp.csr_array((x, at), shape) for x in (np.ones_like(scores), scores))
    count.sum_duplicates()
    total.sum_duplicates()
    mean = (total.data / count.data).astype(np.float32)
    return (
        sp.csr_array((mean, total.indices, total.indptr), shape),
        sp.csr_array((np.ones_like(mean), total.indices, total.indptr), shape),
    )


def rest_keys(sets: GeneSets, n_genes: int) -> AnyArray:
    """Return, for each gene of each set, the key of the set without it; all sets have one size."""
    size = int(sets.sizes[0])
    matrix = sets.genes.reshape(-1, size)
    rests = np.stack([np.delete(matrix, i, axis=1) for i in range(size)], axis=1).ravel()
    return set_keys(rests, np.arange(0, len(rests) + 1, size - 1), n_genes)


def by_first_gene(pairs: GenePairs) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield blocks of pairs by first gene: the genes, the pairs, and the index of each's gene."""
    order = np.argsort(pairs.first, kind="stable")
    genes, starts = np.unique(pairs.first[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    for begin in range(0, len(genes), _GENES_PER_BLOCK):
        block = slice(begin, begin + _GENES_PER_BLOCK)
        sizes = ends[block] - starts[block]
        at = order[starts[begin] : starts[begin] + sizes.sum()]
        yield genes[block], at, np.repeat(np.arange(len(sizes)), sizes)


def pair_votes(
    measured: Measured,
    neighbours: Neighbours,
    pairs: GenePairs,
    rows: Bools | None = None,
) -> Floats:
    r"""Return the votes on pairs of genes as sums, [pairs, relations, 6]; see `SUMS`.

    With Y and M of `Measured` and A the matrix of a relation, for a pair (a, b):

    - ``first``: :math:`(A Y)_{ab}`, the scores of a's neighbours with b;
    - ``second``: :math:`(Y A)_{ab}`, the scores of b's neighbours with a;
    - ``both``: :math:`\sum A_{aa'} Y_{a'b'} A_{b'b}` over the neighbours a' of a except b and b' of
      b except a: the scores between the two neighbourhoods;

    and the same with M for the voters of each. The score of the pair itself enters no vote, not
    even by rounding. If every pair has one of the genes ``rows``, the work grows with these.
    """
    turned = np.zeros(len(pairs.first), dtype=bool)
    if rows is not None:
        turned = rows[pairs.second] & ~rows[pairs.first]
        first = np.where(turned, pairs.second, pairs.first)
        pairs = GenePairs(first, np.where(turned, pairs.first, pairs.second), pairs.offsets)
    votes = np.zeros((len(pairs.first), len(neighbours.names), len(SUMS)), dtype=np.float32)
    of_what = (measured.pairs, measured.tested)
    with_neighbours = [
        [matrix.multiply(scores).tocsr() for scores in of_what] for matrix in neighbours.matrices
    ]
    for genes, at, here in by_first_gene(pairs):
        first, second = pairs.first[at], pairs.second[at]
        for relation, matrix in enumerate(neighbours.matrices):
            rows_of = matrix[genes]
            link = rows_of.toarray()[here, second]
            linked = np.flatnonzero(link)
            for what, scores in enumerate(of_what):
                one = (rows_of @ scores).toarray()
                votes[at, relation, what] = one[here, second]
                votes[at, relation, 2 + what] = (scores[genes] @ matrix).toarray()[here, second]
                # Only the diagonal contains the pair's own score.
                one[np.arange(len(genes)), genes] = 0
                two = (matrix @ np.ascontiguousarray(one.T))[second, here]
                among = with_neighbours[relation][what]
                two[linked] -= link[linked] * _sums_without(among, second[linked], first[linked])
                votes[at, relation, 4 + what] = two
    votes[turned] = votes[turned][..., [2, 3, 0, 1, 4, 5]]
    return votes


def _sums_without(matrix: sp.csr_array, row: Ints, without: Ints) -> Floats:
    sizes = np.diff(matrix.indptr)[row]
    at = ragged_positions(matrix.indptr[row].astype(np.int64), sizes.astype(np.int64))
    owner = np.repeat(np.arange(len(row)), sizes)
    kept = matrix.indices[at] != without[owner]
    sums = np.bincount(owner[kept], matrix.data[at[kept]], minlength=len(row))
    return sums.astype(np.float32)


def set_votes(measured: Measured, neighbours: Neighbours, sets: GeneSets) -> Floats:
    """Return the votes on sets of three or more genes, by gene, [total, relations, 2].

    They are weighted sums of the scores with a neighbour in place of the gene, and of the weights.
    """
    votes = np.zeros((len(sets.genes), len(neighbours.names), 2), dtype=np.float32)
    for size, known in measured.larger.items():
        rows = np.flatnonzero(sets.sizes == size)
        if not len(rows):
            continue
        places = ragged_positions(sets.offsets[rows], sets.sizes[rows])
        at, found = look_up(known.rests, rest_keys(sets.take(rows), measured.n_genes))
        place, rest = places[found], at[found]
        for start in range(0, len(place), _ROWS_PER_BLOCK):
            at, rests = (x[start : start + _ROWS_PER_BLOCK] for x in (place, rest))
            for relation, matrix in enumerate(neighbours.matrices):
                weights = matrix[sets.genes[at]]
                for what, scores in enumerate((known.scores, known.tested)):
                    vote = np.asarray(weights.multiply(scores[rests]).sum(axis=1)).ravel()
                    votes[at, relation, what] = vote
    return votes


class Voter(NamedTuple):
    """A measured set that votes on another set."""

    genes: tuple[int, ...]  # the measured set
    replaced: int  # the gene of the other set that is not in it
    by: int  # the neighbour in its place
    relation: str
    weight: float
    score: float


def voters(
    measured: Measured,
    neighbours: Neighbours,
    genes: tuple[int, ...],
    most: int = 20,
) -> list[Voter]:
    """Return the measured sets that vote on a set of genes, by descending weight."""
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
    """Return the genes that were measured together with the rest of a set, and the scores."""
    rows = measured.pairs[list(rest[:1])]
    if len(rest) > 1:
        known = measured.larger.get(len(rest) + 1)
        if known is None:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        key = set_keys(np.array(rest), np.array([0, len(rest)]), measured.n_genes)
        at, there = look_up(known.rests, key)
        rows = known.scores[at[there]]
    return rows.indices.astype(np.int64), rows.data
