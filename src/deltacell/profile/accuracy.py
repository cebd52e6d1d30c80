"""What the record of a run says of its test: how well it and baselines predict the test part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ADDITIVE = "additive"
MOSTLY = 0.9  # the share of a predictor's explained variance that makes it mostly additive
HALF = 0.5  # of the variance of the scores


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Pearson correlations on the test part of a split."""

    predictor: str  # the name of its model
    measurements: int  # of the test part
    pearson: float | None  # None if it is not defined
    low: float | None = None  # an interval over resamples of the genes
    high: float | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)  # by name
    residual: str | None = None  # the expectation that was subtracted from the scores

    @property
    def best_baseline(self) -> str | None:
        """The baseline with the highest correlation; None without a baseline."""
        return max(self.baselines, key=lambda name: self.baselines[name], default=None)

    @property
    def is_mostly_additive(self) -> bool:
        """Whether effects of single genes explain nearly as much as the predictor does."""
        of_genes = self.baselines.get(ADDITIVE)
        if of_genes is None or self.pearson is None or of_genes <= 0 or self.pearson <= 0:
            return False
        return of_genes**2 >= MOSTLY * self.pearson**2

    @property
    def sentences(self) -> list[str]:
        """What has to be said first: that scores are mostly additive, if so, and the test."""
        first = [self._sentence_of_additivity()] if self.is_mostly_additive else []
        return [*first, self._sentence_of_test()]

    def _sentence_of_additivity(self) -> str:
        of_genes = self.baselines[ADDITIVE]
        whole = "The score" if of_genes**2 >= HALF else "What can be predicted of the score"
        sentence = (
            f"{whole} is mostly one number per gene: additive effects of single genes reach a "
            f"Pearson correlation of {of_genes:.3f}, and {self.predictor} {self.pearson:.3f}."
        )
        if self.residual is None:
            sentence += (
                " To learn and rank what single genes do not explain, use data.residual=additive, "
                "or data.residual=multiplicative for fitness."
            )
        return sentence

    def _sentence_of_test(self) -> str:
        where = f"on {self.measurements:,} measurements that {self.predictor} was not fitted on"
        if self.pearson is None:
            return f"No Pearson correlation is defined {where}."
        interval = "" if self.low is None else f" ({self.low:.3f} to {self.high:.3f})"
        value = f"the Pearson correlation is {self.pearson:.3f}{interval}"
        best = self.best_baseline
        if best is None:
            beside = "it was compared with no baseline"
        else:
            beside = f"the best baseline, {best}, reaches {self.baselines[best]:.3f}"
        return f"{where[0].upper()}{where[1:]}, {value}; {beside}."


def sentence_of_residual(kind: str) -> str:
    """Return what scores are if the expectation from single effects was subtracted."""
    operation = {"additive": "sum", "multiplicative": "product"}[kind]
    return (
        f"Scores are residuals: the measured score less the {operation} of single effects, which "
        f"were learned from the training part (data.residual={kind})."
    )
