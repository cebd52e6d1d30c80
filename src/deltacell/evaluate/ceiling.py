"""The replicate ceiling: what noise between repeats leaves for the best prediction to reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.evaluate.bootstrap import Bootstrap
from deltacell.evaluate.evaluation import Estimate
from deltacell.screen import Screen
from deltacell.screen.keys import sorted_matrix
from deltacell.words import count_text

Doubles = npt.NDArray[np.float64]

FEWEST_SETS = 3
FORMULA = "sqrt(1 - noise / variance)"


@dataclass(frozen=True)
class Ceiling:
    """The Pearson correlation that the true scores themselves would have with the measured ones.

    Parameters
    ----------
    pearson
        ``sqrt(1 - noise / variance)``.
    noise
        Mean variance of a test row's measurement about the truth, from repeats.
    variance
        Of the test rows' scores.
    repeated_sets
        Gene sets that were measured more than once.
    sentence
        All of this for a person.
    """

    pearson: Estimate
    noise: float | None
    variance: float | None
    repeated_sets: int
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "pearson": self.pearson.to_json(),
            "noise": self.noise,
            "variance": self.variance,
            "repeated_sets": self.repeated_sets,
            "formula": FORMULA,
            "sentence": self.sentence,
        }


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
        The screen before its repeats were merged; itself where not given.
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
    score = score[known]
    n_sets = len(squares)
    if n_sets < FEWEST_SETS or len(score) < FEWEST_SETS:
        why = (
            count_text(n_sets, "gene set was", "gene sets were") + " measured more than once"
            if n_sets < FEWEST_SETS
            else count_text(len(score), "test row has a score", "test rows have a score")
        )
        return _none(f"{why}, and at least {FEWEST_SETS} are needed", n_sets)
    share = float((1 / screen.column("replicates")[rows][known]).mean())
    noise = float(squares.sum() / freedom.sum()) * share
    variance = float(score.var())
    if noise >= variance:
        return _none(
            f"repeats differ as much as the test rows do (variance {noise:.3g} and {variance:.3g})",
            n_sets,
            noise,
            variance,
        )
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
    interval = bootstrap.interval(np.sqrt(np.clip(drawn, 0, None)))
    value = float(np.sqrt(1 - noise / variance))
    low, high = interval if interval is not None else (None, None)
    estimate = Estimate(value, low, high)
    caveat = (
        " As only hits are listed, a repeat that was none is missing, so this is too high."
        if only_hits
        else ""
    )
    sentence = (
        f"Replicate ceiling: noise between the repeats of {n_sets:,} gene sets leaves a Pearson "
        f"correlation of {value:.3f} to a perfect prediction, {FORMULA} = "
        f"sqrt(1 - {noise:.3g} / {variance:.3g}).{caveat}"
    )
    return Ceiling(estimate, noise, variance, n_sets, sentence)


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


def _none(
    why: str, n_sets: int, noise: float | None = None, variance: float | None = None
) -> Ceiling:
    estimate = Estimate(None, None, None, reason=why)
    return Ceiling(estimate, noise, variance, n_sets, f"There is no replicate ceiling: {why}.")
