"""More about predictions than a metric: how additive they are, and what repeats let them reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import lsmr

from deltacell.arrays import Doubles, Ints
from deltacell.evaluate.metrics import CONSTANT
from deltacell.screen import Screen

#: With fewer degrees of freedom nothing is said about additivity.
FEWEST_FREE = 10
#: With fewer repeated sets or fewer test rows there is no ceiling.
FEWEST_SETS = 3


def not_additive(genes: Ints, values: npt.ArrayLike) -> tuple[float | None, str | None]:
    r"""Return the share of the variance over gene sets that is not additive in the genes.

    With a number :math:`x_s` for each of n different sets, and :math:`\hat x_s = \sum_{g \in s}
    \beta_g` their least-squares fit by one effect per gene, which has rank r,

    .. math::

        \frac{\sum_s (x_s - \hat x_s)^2 / (n - r)}{\sum_s (x_s - \bar x)^2 / (n - 1)}

    It is 0 for a sum of gene effects, and 1 on average for noise that has nothing to do with the
    genes, however many genes there are. The second result says why there is no first. The sets
    [n, largest] are padded with -1; of a set that is there again the first counts.
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
    ends = {n_genes: (a, b), 2 * n_genes: (np.r_[a, b], np.r_[b, a] + n_genes)}
    single, double = (
        connected_components(csr_array((np.ones(len(at[0])), at), shape=(n, n)), directed=False)[0]
        for n, at in ends.items()
    )
    return int(n_genes - (double - single))


@dataclass(frozen=True)
class Ceiling:
    """The Pearson correlation that the true scores themselves would have with the measured ones."""

    pearson: float | None
    noise: float | None  # mean variance of a test row's measurement about the truth, from repeats
    variance: float | None  # of the test rows' scores
    repeated_sets: int
    test_rows: int  # with a score


def replicate_ceiling(screen: Screen, rows: Ints, repeats: Screen | None = None) -> Ceiling:
    r"""Return the Pearson correlation attainable given the noise between repeats.

    With :math:`y_{si}` the i-th of :math:`n_s` rows of gene set s, itself the mean of
    :math:`k_{si}` replicates, the variance of one replicate is

    .. math::

        \hat\sigma^2 = \frac{\sum_s \sum_i k_{si} (y_{si} - \bar y_s)^2}{\sum_s (n_s - 1)}

    with :math:`\bar y_s` weighted by k. The noise of the test rows is
    :math:`\hat\sigma^2 \, \mathrm{mean}(1 / k)`, and the ceiling
    :math:`\sqrt{1 - \mathrm{noise} / \mathrm{var}(y)}`. After a merge by ``best-p``, or if the
    screen lists only hits, it is too high. ``repeats`` is the screen before its repeats were
    merged, by default the screen itself.
    """
    squares, freedom = _spread_within_sets(screen if repeats is None else repeats)
    score = screen.column("score").astype(np.float64)[rows]
    known = np.isfinite(score)
    n_sets, n_rows = len(squares), int(known.sum())
    if min(n_sets, n_rows) < FEWEST_SETS:
        return Ceiling(None, None, None, n_sets, n_rows)
    share = float((1 / screen.column("replicates")[rows][known]).mean())
    noise, variance = float(squares.sum() / freedom.sum()) * share, float(score[known].var())
    pearson = float(np.sqrt(1 - noise / variance)) if noise < variance else None
    return Ceiling(pearson, noise, variance, n_sets, n_rows)


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
    return within[n > 1].astype(np.float64), (n[n > 1] - 1).astype(np.float64)
