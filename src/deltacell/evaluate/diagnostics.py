"""More about predictions than a metric: additivity, calibration, density, residuals, weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import lsmr

from deltacell.arrays import Doubles, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.evaluation import Estimate
from deltacell.evaluate.metrics import CONSTANT, METRICS
from deltacell.screen import Genotypes, Screen
from deltacell.screen.genotypes import sorted_matrix
from deltacell.words import count_text

#: With fewer degrees of freedom nothing is said about additivity.
FEWEST_FREE = 10
#: Predictions whose deviation is a smaller share of the measured one count as constant.
NEXT_TO_NOTHING = 0.01


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
        return None, CONSTANT
    inside = sets >= 0
    sizes = inside.sum(axis=1)
    present, at = np.unique(sets[inside], return_inverse=True)
    n_genes, mixed = len(present), int(sizes.min() != sizes.max())
    # The mean is a sum of gene effects where all sets have one size, and else a column of its own.
    columns = np.concatenate([at, np.full(mixed * len(sets), n_genes)])
    owners = np.concatenate([np.nonzero(inside)[0], np.arange(mixed * len(sets))])
    shape = (len(sets), n_genes + mixed)
    design = csr_array((np.ones(len(columns)), (owners, columns)), shape=shape)
    free = len(x) - _rank(at, sizes, n_genes) - mixed
    if free < FEWEST_FREE:
        return None, f"{len(x):,} sets of {n_genes:,} genes are too few to tell"
    residual = x - design @ lsmr(design, x, atol=1e-10, btol=1e-10, maxiter=20_000)[0]
    return (float(residual @ residual) / free) / (total / (len(x) - 1)), None


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


@dataclass(frozen=True, eq=False)
class Calibration:
    """Rows in bins of about equally many, by their prediction."""

    predicted: Doubles  # means of each bin, [bins]
    measured: Doubles
    error: Doubles  # standard error of each mean that was measured; NaN in a bin of one row
    rows: Ints
    slope: float | None  # of least squares, 1 where calibrated; None for constant predictions
    spread: float | None  # deviation of the predictions by that of what was measured


def calibration(
    predicted: npt.ArrayLike, measured: npt.ArrayLike, *, bins: int = 10
) -> Calibration:
    """Compare predictions with what was measured, in about so many bins.

    Rows with the same prediction are in the same bin. Rows without a measured score are left out.
    """
    x, y = _paired(predicted, measured)
    at = _bins(x, bins)
    n = np.bincount(at)
    mean_x, mean_y = (np.bincount(at, v) / n for v in (x, y))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(np.bincount(at, (y - mean_y[at]) ** 2) / (n - 1) / n)
    spread = float(x.std() / y.std()) if y.std() > 0 else None
    varies = np.ptp(x) > 0 and (spread is None or spread >= NEXT_TO_NOTHING)
    centred = x - x.mean()
    slope = float(centred @ y / float(centred @ centred)) if varies else None
    return Calibration(mean_x, mean_y, error, n, slope, spread)


@dataclass(frozen=True, eq=False)
class Density:
    """Counts of rows on a grid of predicted against measured."""

    predicted_edges: Doubles  # [bins + 1]
    measured_edges: Doubles
    counts: Ints  # [predicted bins, measured bins]
    outside: int  # rows beyond the grid
    pearson: float | None  # over all rows


def density(
    predicted: npt.ArrayLike, measured: npt.ArrayLike, *, bins: int = 60, cut: float = 0.001
) -> Density:
    """Count rows on a grid, beyond each end of which may lie a share `cut` of them.

    So a few rows do not squeeze the others. Rows without a measured score are left out.
    """
    x, y = _paired(predicted, measured)
    edges = []
    for values in (x, y):
        low, high = np.quantile(values, [cut, 1 - cut])
        margin = max(abs(low), 1.0) * 0.01 if low == high else 0.0
        edges.append(np.linspace(low - margin, high + margin, bins + 1))
    counts = np.histogram2d(x, y, bins=edges)[0].astype(np.int64)
    outside = len(x) - int(counts.sum())
    return Density(edges[0], edges[1], counts, outside, METRICS["pearson"](x, y))


@dataclass(frozen=True, eq=False)
class ResidualByDegree:
    """Residuals (measured minus predicted) of genotypes, by the degree of each deleted gene."""

    degree: Doubles  # mean of each bin, [bins]
    low: Doubles  # quartiles and mean of the residuals
    mean: Doubles
    high: Doubles
    rms: Doubles  # root of their mean square
    genes: Ints  # deleted genes; a gene counts once for every genotype that deletes it


def gene_degree(cell: Cell) -> Ints:
    """Return the number of edges of each gene over all relations, in and out, [n_genes]."""
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

    Genes of the same degree are in the same bin. Rows without a measured score are left out.
    """
    residual = np.asarray(measured, dtype=np.float64) - np.asarray(predicted, dtype=np.float64)
    if residual.shape != (len(genotypes),):
        raise InputError(
            f"residuals of shape {residual.shape} for {len(genotypes)} genotypes",
            code="prediction-shape",
        )
    of_gene = residual[genotypes.owner.numpy()]
    known = np.isfinite(of_gene)
    if not known.any():
        raise InputError("no row has a measured score", code="no-scores")
    degree = gene_degree(cell)[genotypes.genes.numpy()[known]]
    at = _bins(degree, bins)
    parts = [(degree[at == b], of_gene[known][at == b]) for b in range(at.max() + 1)]
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
    """The weight of each relation over genes: mean and quartiles, [relations]."""

    names: tuple[str, ...]
    mean: Doubles
    low: Doubles
    high: Doubles
    genes: int


def relation_weights(
    names: Sequence[str], weights: npt.ArrayLike, genes: Ints | None = None
) -> RelationWeights:
    """Return the weight of each relation."""
    given = np.asarray(weights, dtype=np.float64)
    matrix = given[None] if given.ndim == 1 else given
    if matrix.ndim != 2 or matrix.shape[1] != len(names):
        raise InputError(
            f"weights of shape {given.shape} for {len(names)} relations; expected [relations] or "
            "[genes, relations]",
            code="weights-shape",
        )
    if genes is not None and given.ndim == 2:
        matrix = matrix[np.asarray(genes)]
    if not matrix.size or not np.isfinite(matrix).all():
        raise InputError(
            "the weights of relations must be finite numbers, for one gene or more",
            code="weights-not-finite",
        )
    low, high = np.quantile(matrix, [0.25, 0.75], axis=0)
    return RelationWeights(tuple(names), matrix.mean(axis=0), low, high, len(matrix))


def _bins(values: npt.NDArray[np.float64] | Ints, bins: int) -> Ints:
    """Return the bin of each value, of about equally many, from 0 without gaps."""
    inner = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
    _, at = np.unique(np.searchsorted(inner, values, side="right"), return_inverse=True)
    return at


def _paired(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> tuple[Doubles, Doubles]:
    """Return both as columns, without the rows that were not measured."""
    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(
            f"predictions of shape {x.shape} for measured scores of shape {y.shape}",
            code="prediction-shape",
        )
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x):
        raise InputError("no row has a measured score", code="no-scores")
    if not np.isfinite(x).all():
        n = int((~np.isfinite(x)).sum())
        raise InputError(f"{n:,} predictions are not finite numbers", code="prediction-not-finite")
    return x, y


FEWEST_SETS = 3
FORMULA = "sqrt(1 - noise / variance)"


@dataclass(frozen=True)
class Ceiling:
    """The Pearson correlation that the true scores themselves would have with the measured ones."""

    pearson: Estimate
    noise: float | None  # mean variance of a test row's measurement about the truth, from repeats
    variance: float | None  # of the test rows' scores
    repeated_sets: int
    sentence: str
    formula: str = FORMULA


def replicate_ceiling(
    screen: Screen,
    rows: Ints,
    *,
    repeats: Screen | None = None,
    only_hits: bool = False,
    bootstrap: Bootstrap | None = None,
) -> Ceiling:
    r"""Return the Pearson correlation attainable given the noise between repeats.

    With :math:`y_{si}` the i-th of :math:`n_s` rows of gene set s, itself the mean of
    :math:`k_{si}` replicates, the variance of one replicate is

    .. math::

        \hat\sigma^2 = \frac{\sum_s \sum_i k_{si} (y_{si} - \bar y_s)^2}{\sum_s (n_s - 1)}

    with :math:`\bar y_s` weighted by k. The noise of the test rows is
    :math:`\hat\sigma^2 \, \mathrm{mean}(1 / k)`, and the ceiling
    :math:`\sqrt{1 - \mathrm{noise} / \mathrm{var}(y)}`, the correlation of a perfect prediction
    with what was measured. A row that a merge took from one of several counts as their mean, so
    after ``best-p`` the ceiling is too high.

    Parameters
    ----------
    screen
        What was measured.
    rows
        The test rows.
    repeats
        The screen before its repeats were merged; by default itself.
    only_hits
        Whether the screen lists only hits. A repeat that was none is then missing, so the noise is
        too small and the ceiling too high; the sentence says so.
    bootstrap
        How the interval is found.
    """
    bootstrap = Bootstrap() if bootstrap is None else bootstrap
    squares, freedom = _spread_within_sets(screen if repeats is None else repeats)
    score = screen.column("score").astype(np.float64)[rows]
    known = np.isfinite(score)
    score, n_sets = score[known], len(squares)

    def none(why: str, noise: float | None = None, variance: float | None = None) -> Ceiling:
        said = f"There is no replicate ceiling: {why}."
        return Ceiling(Estimate(None, None, None, reason=why), noise, variance, n_sets, said)

    if n_sets < FEWEST_SETS:
        sets = count_text(n_sets, "gene set was", "gene sets were")
        return none(f"{sets} measured more than once, and at least {FEWEST_SETS} are needed")
    if len(score) < FEWEST_SETS:
        scored = count_text(len(score), "test row has a score", "test rows have a score")
        return none(f"{scored}, and at least {FEWEST_SETS} are needed")
    share = float((1 / screen.column("replicates")[rows][known]).mean())
    noise, variance = float(squares.sum() / freedom.sum()) * share, float(score.var())
    if noise >= variance:
        both = f"variance {noise:.3g} and {variance:.3g}"
        return none(f"repeats differ as much as the test rows do ({both})", noise, variance)
    genes = sorted_matrix(screen.genotypes.genes.numpy(), screen.offsets)[rows][known]
    noises = [
        w @ squares / (w @ freedom) * share
        for w in bootstrap.weights(np.arange(n_sets), "noise between repeats")
    ]
    variances = [
        w @ score**2 / w.sum(axis=1) - (w @ score / w.sum(axis=1)) ** 2
        for w in bootstrap.weights(genes, "spread of the test rows")
    ]
    drawn = 1 - np.concatenate(noises) / np.concatenate(variances)
    value = float(np.sqrt(1 - noise / variance))
    low, high = bootstrap.interval(np.sqrt(np.clip(drawn, 0, None))) or (None, None)
    missing = " As only hits are listed, a repeat that was none is missing, so this is too high."
    sentence = (
        f"Replicate ceiling: noise between the repeats of {n_sets:,} gene sets leaves a Pearson "
        f"correlation of {value:.3f} to a perfect prediction, {FORMULA} = "
        f"sqrt(1 - {noise:.3g} / {variance:.3g}).{missing if only_hits else ''}"
    )
    return Ceiling(Estimate(value, low, high), noise, variance, n_sets, sentence)


def _spread_within_sets(screen: Screen) -> tuple[Doubles, Doubles]:
    """Return of each repeated set and phenotype its sum of squares and degrees of freedom."""
    score = screen.column("score").astype(np.float64)
    known = np.isfinite(score)
    score, replicates = score[known], screen.column("replicates")[known].astype(np.float64)
    _, key = np.unique(screen.keys[known], return_inverse=True)
    phenotype = screen.codes("phenotype")[known]
    _, group = np.unique(key * (int(phenotype.max(initial=0)) + 1) + phenotype, return_inverse=True)
    n = np.bincount(group)
    mean = np.bincount(group, replicates * score) / np.bincount(group, replicates)
    within = np.bincount(group, replicates * (score - mean[group]) ** 2)
    repeated = n > 1
    return within[repeated].astype(np.float64), (n[repeated] - 1).astype(np.float64)
