"""The correlation that even a perfect prediction does not exceed, because repeats differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deltacell.base.arrays import Doubles, Ints
from deltacell.screen import Screen

FEWEST_SETS = 3  # with fewer repeated sets or test rows there is no ceiling


@dataclass(frozen=True)
class Ceiling:
    """The Pearson correlation that the true scores would have with the measured ones."""

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
    :math:`\sqrt{1 - \mathrm{noise} / \mathrm{var}(y)}`. It is too high after a merge by ``best-p``
    or if the screen lists only hits. ``repeats`` is the screen before repeats were merged.
    """
    squares, n_free = _squares_of_repeats(screen if repeats is None else repeats)
    score = screen.column("score").astype(np.float64)[rows]
    has_score = np.isfinite(score)
    n_sets = len(squares)
    n_rows = int(has_score.sum())
    if min(n_sets, n_rows) < FEWEST_SETS:
        return Ceiling(None, None, None, n_sets, n_rows)
    share_per_row = float((1 / screen.column("replicates")[rows][has_score]).mean())
    noise = float(squares.sum() / n_free) * share_per_row
    variance = float(score[has_score].var())
    pearson = float(np.sqrt(1 - noise / variance)) if noise < variance else None
    return Ceiling(pearson, noise, variance, n_sets, n_rows)


def _squares_of_repeats(screen: Screen) -> tuple[Doubles, int]:
    """Return the sum of squares about the mean of each repeated set, and their free rows.

    Only rows of one phenotype repeat each other. A set with n rows has n - 1 free ones.
    """
    score = screen.column("score").astype(np.float64)
    has_score = np.isfinite(score)
    score = score[has_score]
    n_replicates = screen.column("replicates")[has_score].astype(np.float64)
    _, key = np.unique(screen.keys[has_score], return_inverse=True)
    codes = screen.rows["phenotype"].rank("dense").to_numpy()
    phenotype = codes[has_score].astype(np.int64)
    key_and_phenotype = key * (int(phenotype.max(initial=0)) + 1) + phenotype
    _, group = np.unique(key_and_phenotype, return_inverse=True)
    n_rows = np.bincount(group)
    mean = np.bincount(group, n_replicates * score) / np.bincount(group, n_replicates)
    deviation = score - mean[group]
    weighted_squares: Doubles = n_replicates * deviation**2
    squares: Doubles = np.bincount(group, weighted_squares).astype(np.float64)
    is_repeated = n_rows > 1
    return squares[is_repeated], int((n_rows[is_repeated] - 1).sum())
