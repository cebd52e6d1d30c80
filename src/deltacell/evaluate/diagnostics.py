"""More about predictions than a metric: additivity, calibration, density, residuals, weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import lsmr

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.metrics import METRICS
from deltacell.screen import Genotypes
from deltacell.words import count_text

Doubles = npt.NDArray[np.float64]

FEWEST_FREE = 10
"""With fewer degrees of freedom nothing is said about additivity."""


def not_additive(genes: Ints, values: npt.ArrayLike) -> tuple[float | None, str | None]:
    r"""Return the share of the variance over gene sets that is not additive in the genes.

    With a number :math:`x_s` for each of n different sets, and :math:`\hat x_s = \sum_{g \in s}
    \beta_g` their least-squares fit by one effect per gene, which has rank r,

    .. math::

        \frac{\sum_s (x_s - \hat x_s)^2 / (n - r)}{\sum_s (x_s - \bar x)^2 / (n - 1)}

    It is 0 for a sum of gene effects, and 1 on average for noise that has nothing to do with the
    genes, however many genes there are. The second result says why there is no first.

    Parameters
    ----------
    genes
        The sets, [n, largest], padded with -1; of a set that is there again the first counts.
    values
        One number per set, [n].
    """
    sets, first = np.unique(np.sort(genes, axis=1), axis=0, return_index=True)
    x = np.asarray(values, dtype=np.float64)[first]
    x = x - x.mean()
    total = float(x @ x)
    if len(x) < 2 or total <= 1e-12 * len(x) * float(np.abs(np.asarray(values)).max()) ** 2:
        return None, "the predictions are all the same"
    present, column = np.unique(sets, return_inverse=True)
    column = column.reshape(sets.shape)
    inside = sets >= 0
    rows = np.repeat(np.arange(len(sets)), sets.shape[1])[inside.ravel()]
    shift = int(present[0] == -1)
    at = column.ravel()[inside.ravel()] - shift
    n_genes = len(present) - shift
    sizes = inside.sum(axis=1)
    mixed = int(sizes.min() != sizes.max())
    # The mean is a sum of gene effects where all sets have one size, and else a column of its own.
    columns = np.concatenate([at, np.full(mixed * len(sets), n_genes)])
    owners = np.concatenate([rows, np.arange(mixed * len(sets))])
    design = csr_array(
        (np.ones(len(columns)), (owners, columns)), shape=(len(sets), n_genes + mixed)
    )
    free = len(x) - _rank(at, sizes, n_genes) - mixed
    if free < FEWEST_FREE:
        return None, f"{len(x):,} sets of {n_genes:,} genes are too few to tell"
    fit = lsmr(design, x, atol=1e-10, btol=1e-10, maxiter=20_000)[0]
    residual = x - design @ fit
    share = (float(residual @ residual) / free) / (total / (len(x) - 1))
    return share, None


def _rank(genes: Ints, sizes: Ints, n_genes: int) -> int:
    """Return the rank of the sets' gene indicators; where they are not all pairs, a bound."""
    if (sizes != 2).any():
        return n_genes
    # Pairs are the edges of a graph: each connected part without an odd cycle lacks one rank. Such
    # a part, and no other, falls apart in two when every gene is doubled and edges go across.
    a, b = genes.reshape(-1, 2).T
    ones = np.ones(2 * len(a))
    ends = np.concatenate([a, b]), np.concatenate([b, a]) + n_genes
    double = csr_array((ones, ends), shape=(2 * n_genes, 2 * n_genes))
    single = csr_array((ones[: len(a)], (a, b)), shape=(n_genes, n_genes))
    n_double, n_single = (
        int(connected_components(graph, directed=False)[0]) for graph in (double, single)
    )
    return n_genes - (n_double - n_single)


NEXT_TO_NOTHING = 0.01
"""Predictions whose deviation is a smaller share of the measured one count as constant."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Rows in bins of about equally many, by their prediction.

    Parameters
    ----------
    predicted, measured
        The means of each bin, [bins].
    error
        The standard error of each mean that was measured; NaN in a bin of one row.
    rows
        In each bin.
    slope
        Of the line of least squares through measured against predicted: 1 where calibrated, below
        1 where predictions are spread too wide. None where `is_constant`.
    spread
        The deviation of the predictions by that of what was measured; None where the latter is 0.
    """

    predicted: Doubles
    measured: Doubles
    error: Doubles
    rows: Ints
    slope: float | None
    spread: float | None

    @property
    def is_constant(self) -> bool:
        """Whether the predictions are all the same, or next to it, so that a slope says nothing."""
        return self.slope is None


def calibration(
    predicted: npt.ArrayLike, measured: npt.ArrayLike, *, bins: int = 10
) -> Calibration:
    """Compare predictions with what was measured, bin by bin.

    Rows with the same prediction are in the same bin, so there may be fewer bins than asked for.

    Parameters
    ----------
    predicted, measured
        One number a row; rows without a measured score are left out.
    bins
        About how many.
    """
    x, y = _paired(predicted, measured)
    inner = np.unique(np.quantile(x, np.linspace(0, 1, bins + 1)[1:-1]))
    at = np.searchsorted(inner, x, side="right")
    n = np.bincount(at, minlength=bins)
    filled = n > 0
    n_filled = n[filled]
    mean_x, mean_y = (np.bincount(at, v, bins)[filled] / n_filled for v in (x, y))
    full_mean = np.zeros(bins)
    full_mean[filled] = mean_y
    squares = np.bincount(at, (y - full_mean[at]) ** 2, bins)[filled]
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(squares / (n_filled - 1) / n_filled)
    centred = x - x.mean()
    squared = float(centred @ centred)
    spread = float(x.std() / y.std()) if y.std() > 0 else None
    varies = np.ptp(x) > 0 and (spread is None or spread >= NEXT_TO_NOTHING)
    slope = float(centred @ y / squared) if varies else None
    return Calibration(mean_x, mean_y, error, n_filled, slope, spread)


@dataclass(frozen=True, eq=False)
class Density:
    """Counts of rows on a grid of predicted against measured.

    Parameters
    ----------
    predicted_edges, measured_edges
        Of the grid, [bins + 1].
    counts
        Rows in each field, [predicted bins, measured bins].
    outside
        Rows beyond the grid.
    pearson
        Over all rows; None where undefined.
    """

    predicted_edges: Doubles
    measured_edges: Doubles
    counts: Ints
    outside: int
    pearson: float | None


def density(
    predicted: npt.ArrayLike, measured: npt.ArrayLike, *, bins: int = 60, cut: float = 0.001
) -> Density:
    """Count rows on a grid.

    Parameters
    ----------
    predicted, measured
        One number a row; rows without a measured score are left out.
    bins
        Fields a side.
    cut
        The share of rows that may lie beyond each end, so that a few do not squeeze the others.
    """
    x, y = _paired(predicted, measured)
    edges = [_edges(values, bins, cut) for values in (x, y)]
    counts, _, _ = np.histogram2d(x, y, bins=edges)
    return Density(
        edges[0],
        edges[1],
        counts.astype(np.int64),
        len(x) - int(counts.sum()),
        METRICS["pearson"](x, y),
    )


def _edges(values: Doubles, bins: int, cut: float) -> Doubles:
    low, high = np.quantile(values, [cut, 1 - cut])
    if low == high:
        margin = max(abs(low), 1.0) * 0.01
        low, high = low - margin, high + margin
    return np.linspace(low, high, bins + 1)


@dataclass(frozen=True, eq=False)
class ResidualByDegree:
    """Residuals (measured minus predicted) of genotypes, by the degree of each deleted gene.

    Parameters
    ----------
    degree
        The mean degree of each bin, [bins].
    low, mean, high
        Quartiles about, and mean of, the residuals.
    rms
        Root of their mean square.
    genes
        Deleted genes in each bin; a gene counts once for every genotype that deletes it.
    """

    degree: Doubles
    low: Doubles
    mean: Doubles
    high: Doubles
    rms: Doubles
    genes: Ints


def gene_degree(cell: Cell) -> Ints:
    """Return the number of edges of each gene over all relations, in and out, [n_genes].

    Parameters
    ----------
    cell
        The wild type.
    """
    degree: Ints = np.zeros(cell.n_genes, dtype=np.int64)
    for relation in cell.relations.values():
        degree += relation.in_degree
        if relation.directed:
            degree += relation.out_degree
    return degree


def residual_by_degree(
    cell: Cell,
    genotypes: Genotypes,
    predicted: npt.ArrayLike,
    measured: npt.ArrayLike,
    *,
    bins: int = 12,
) -> ResidualByDegree:
    """Return the residuals in bins of about equally many deleted genes, by their degree.

    Genes of the same degree are in the same bin, so there may be fewer bins than asked for.

    Parameters
    ----------
    cell
        The wild type.
    genotypes
        [rows].
    predicted, measured
        One number a row; rows without a measured score are left out.
    bins
        About how many.
    """
    residual = np.asarray(measured, dtype=np.float64) - np.asarray(predicted, dtype=np.float64)
    if residual.shape != (len(genotypes),):
        raise InputError(f"residuals of shape {residual.shape} for {len(genotypes)} genotypes")
    of_gene = residual[genotypes.owner.numpy()]
    known = np.isfinite(of_gene)
    if not known.any():
        raise InputError("no row has a measured score")
    of_gene = of_gene[known]
    degree = gene_degree(cell)[genotypes.genes.numpy()[known]]
    inner = np.unique(np.quantile(degree, np.linspace(0, 1, bins + 1)[1:-1]))
    at = np.searchsorted(inner, degree, side="right")
    parts = [(degree[at == b], of_gene[at == b]) for b in np.unique(at)]
    quartiles = np.array([np.quantile(values, [0.25, 0.75]) for _, values in parts])
    return ResidualByDegree(
        degree=np.array([d.mean() for d, _ in parts]),
        low=quartiles[:, 0],
        mean=np.array([values.mean() for _, values in parts]),
        high=quartiles[:, 1],
        rms=np.array([np.sqrt((values**2).mean()) for _, values in parts]),
        genes=np.array([len(values) for _, values in parts]),
    )


@dataclass(frozen=True, eq=False)
class RelationWeights:
    """The weight of each relation over genes.

    Parameters
    ----------
    names
        Of the relations.
    mean, low, high
        Mean and quartiles over the genes, [relations].
    genes
        How many.
    """

    names: tuple[str, ...]
    mean: Doubles
    low: Doubles
    high: Doubles
    genes: int


def relation_weights(
    names: Sequence[str], weights: npt.ArrayLike, genes: Ints | None = None
) -> RelationWeights:
    """Return the weight of each relation.

    Parameters
    ----------
    names
        Of the relations.
    weights
        Of each relation for each gene, [n_genes, relations], such as the ``attention`` of DANGO; or
        one for all genes, [relations].
    genes
        The genes to look at, each as often as it is given: those that the test genotypes delete;
        all where not given.
    """
    given = np.asarray(weights, dtype=np.float64)
    matrix = given[None] if given.ndim == 1 else given
    if matrix.ndim != 2 or matrix.shape[1] != len(names):
        raise InputError(
            f"weights of shape {given.shape} for {len(names)} relations; expected [relations] or "
            "[genes, relations]"
        )
    if genes is not None and given.ndim == 2:
        matrix = matrix[np.asarray(genes)]
    if not matrix.size or not np.isfinite(matrix).all():
        raise InputError("the weights of relations must be finite numbers, for one gene or more")
    low, high = np.quantile(matrix, [0.25, 0.75], axis=0)
    return RelationWeights(tuple(names), matrix.mean(axis=0), low, high, len(matrix))


def _paired(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> tuple[Doubles, Doubles]:
    """Return both as columns, without the rows that were not measured.

    Parameters
    ----------
    predicted, measured
        One number a row, NaN where it was not measured.
    """
    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(f"predictions of shape {x.shape} for measured scores of shape {y.shape}")
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x):
        raise InputError("no row has a measured score")
    if not np.isfinite(x).all():
        n = int((~np.isfinite(x)).sum())
        not_finite = count_text(
            n, "prediction is not a finite number", "predictions are not finite numbers"
        )
        raise InputError(not_finite)
    return x, y
