"""Inputs that are likely to contain the answer: columns and weights that follow the score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import scipy.stats

from deltacell.base.arrays import Doubles, Ints
from deltacell.cell import Cell, Relation
from deltacell.cell.annotation import Feature
from deltacell.models.fitted.gene_sets import GeneSets

LEAST_CORRELATION = 0.95  # no measurement is reproduced that well by another one
FEWEST_ROWS = 20
_MOST_ROWS = 5_000  # of a larger training part, so many are drawn
_AGGREGATES = {"sum": np.add, "minimum": np.minimum, "maximum": np.maximum, "product": np.multiply}


@dataclass(frozen=True)
class Leak:
    """An input that may be the score itself."""

    what: str  # such as "the weight of relation 'net'"
    correlation: float
    n_rows: int
    target: str = "the score"  # or what was computed from it

    @property
    def sentence(self) -> str:
        return (
            f"{self.what[0].upper()}{self.what[1:]} has a correlation of {self.correlation:.3f} "
            f"with {self.target} on {self.n_rows:,} training rows, so it is likely to be "
            f"{self.target} itself (a leak), and metrics would say nothing. Leave it out unless it "
            "was measured independently."
        )


def likely_leaks(cell: Cell, sets: GeneSets, scores: Doubles) -> list[Leak]:
    """Return the relations and feature columns whose correlation with the score is 0.95 or more.

    `sets` are the gene sets of the training rows, as indices into the genes of the cell, and
    `scores` their scores. Pearson's correlation and, for weights, Spearman's are considered, in
    absolute value. A relation is compared by its mean weight among the genes of a set: over all
    rows, and over those with an edge; and also with the absolute score, as weights are often made
    positive. A column of a feature is compared by its sum, minimum,
    maximum and product over the genes of a set.
    """
    if len(sets) > _MOST_ROWS:
        drawn = np.sort(np.random.default_rng(0).permutation(len(sets))[:_MOST_ROWS])
        sets = sets.take(drawn)
        scores = scores[drawn]
    leaks = [leak for r in cell.relations.values() for leak in _of_relation(r, sets, scores)]
    leaks += [leak for f in cell.features.values() for leak in _of_feature(f, sets, scores)]
    return leaks


def _of_relation(relation: Relation, sets: GeneSets, scores: Doubles) -> Iterator[Leak]:
    pairs = sets.pairs()
    n_pairs = np.diff(pairs.offsets)
    has_pairs = n_pairs > 0
    if not has_pairs.any():
        return
    shape = (relation.n_genes, relation.n_genes)
    matrix = sp.csr_array((relation.weights, relation.indices, relation.indptr), shape=shape)
    linked = sp.csr_array(
        (np.ones(len(relation.weights)), relation.indices, relation.indptr), shape
    )
    starts = pairs.offsets[:-1][has_pairs]

    def per_set(of: sp.csr_array) -> Doubles:
        both = of[pairs.first, pairs.second] + of[pairs.second, pairs.first]
        totals: Doubles = np.add.reduceat(np.asarray(both, dtype=np.float64).ravel(), starts)
        return totals / n_pairs[has_pairs]

    weight = per_set(matrix)
    is_linked = per_set(linked) > 0
    score = scores[has_pairs]
    targets = {"the score": score, "the absolute score": np.abs(score)}
    best = Leak(f"the weight of relation '{relation.name}'", 0.0, 0)
    for rows in (np.ones(len(score), dtype=bool), is_linked):
        for target, values in targets.items():
            correlation = _correlation(weight[rows], values[rows])
            if abs(correlation) > abs(best.correlation):
                best = Leak(best.what, correlation, int(rows.sum()), target)
    if abs(best.correlation) >= LEAST_CORRELATION:
        yield best


def _correlation(values: Doubles, scores: Doubles) -> float:
    """Return Pearson's or Spearman's correlation, the larger one; 0 if there are too few rows."""
    if len(values) < FEWEST_ROWS or np.ptp(values) == 0 or np.ptp(scores) == 0:
        return 0.0
    pearson = float(np.corrcoef(values, scores)[0, 1])
    # Ranks with many ties say little of how well the values agree.
    if len(np.unique(values)) * 2 < len(values):
        return pearson
    spearman = float(scipy.stats.spearmanr(values, scores).statistic)
    return max(pearson, spearman, key=abs)


def _of_feature(feature: Feature, sets: GeneSets, scores: Doubles) -> Iterator[Leak]:
    values = feature.values.astype(np.float64)[sets.genes]
    best = np.zeros(feature.width)
    rows = np.zeros(feature.width, dtype=np.int64)
    of_what = np.full(feature.width, "", dtype=object)
    for name, aggregate in _AGGREGATES.items():
        per_set = aggregate.reduceat(values, sets.offsets[:-1], axis=0)
        correlation, n_rows = _correlations(per_set, scores)
        better = np.abs(correlation) > np.abs(best)
        best = np.where(better, correlation, best)
        rows = np.where(better, n_rows, rows)
        of_what[better] = name
    for column in np.flatnonzero(np.abs(best) >= LEAST_CORRELATION).tolist():
        title = f"column '{feature.columns[column]}' of feature '{feature.name}'"
        what = f"the {of_what[column]} of {title} over the genes of a set"
        yield Leak(what, float(best[column]), int(rows[column]))


def _correlations(values: Doubles, scores: Doubles) -> tuple[Doubles, Ints]:
    """Return Pearson's correlation of each column, and its rows without missing values."""
    is_known = ~np.isnan(values)
    n_rows = is_known.sum(axis=0)
    n_divisor = np.maximum(n_rows, 1)
    centred = np.where(is_known, values - np.nansum(values, axis=0) / n_divisor, 0.0)
    mean_score = (is_known * scores[:, None]).sum(axis=0) / n_divisor
    centred_score = np.where(is_known, scores[:, None] - mean_score, 0.0)
    product = (centred * centred_score).sum(axis=0)
    scale = np.sqrt((centred**2).sum(axis=0) * (centred_score**2).sum(axis=0))
    enough = (n_rows >= FEWEST_ROWS) & (scale > 0)
    correlation: Doubles = np.where(enough, product / np.where(enough, scale, 1.0), 0.0)
    return correlation, n_rows
