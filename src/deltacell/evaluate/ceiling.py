"""The replicate ceiling: what noise between repeats leaves for the best prediction to reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deltacell.arrays import Doubles, Ints
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.evaluation import Estimate
from deltacell.screen import Screen
from deltacell.screen.keys import sorted_matrix
from deltacell.words import count_text

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
