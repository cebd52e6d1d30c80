"""The result of an evaluation: plain data, for several predictors and several seeds of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from deltacell.evaluate.ceiling import Ceiling

SCHEMA = 1

By = Literal["test", "unseen", "kind", "perturbation"]


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, or why there is none.

    Parameters
    ----------
    value
        The number; over several seeds their mean. None where it is not defined.
    low, high
        Its interval over resamples of the test rows. None where too few resamples define it.
    reason
        Why a number or an interval is missing.
    seeds
        The number for each seed, in the order of the predictor's seeds.
    seed_deviation
        Standard deviation over the seeds, with two or more of them.
    """

    value: float | None
    low: float | None
    high: float | None
    reason: str | None = None
    seeds: tuple[float | None, ...] = ()
    seed_deviation: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "reason": self.reason,
            "seeds": list(self.seeds),
            "seed_deviation": self.seed_deviation,
        }


@dataclass(frozen=True)
class GroupResult:
    """All predictors on some of the test rows.

    Parameters
    ----------
    by
        What the rows have in common: all are of the ``test`` part, or have the same number of
        ``unseen`` genes, ``kind`` or ``perturbation``.
    label
        Of the group, such as ``1 unseen gene``.
    rows
        Test rows that have a score.
    gene_sets
        Different gene sets among all its rows.
    labelled, positives
        Rows that AUROC and AUPR look at, and the positives among them.
    scores
        By predictor, then metric.
    differences
        From the additive baseline, by predictor, then metric; paired over resamples.
    """

    by: By
    label: str
    rows: int
    gene_sets: int
    labelled: int
    positives: int
    scores: Mapping[str, Mapping[str, Estimate]]
    differences: Mapping[str, Mapping[str, Estimate]]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "by": self.by,
            "label": self.label,
            "rows": self.rows,
            "gene_sets": self.gene_sets,
            "labelled": self.labelled,
            "positives": self.positives,
            "scores": _nested(self.scores),
            "differences": _nested(self.differences),
        }


@dataclass(frozen=True)
class Verdict:
    """Whether a predictor beats the additive baseline on a group of the test rows.

    Parameters
    ----------
    predictor, group
        Their names.
    beats
        Whether the interval of the difference in Pearson correlation lies above 0.
    sentence
        Says so plainly.
    """

    predictor: str
    group: str
    beats: bool
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "predictor": self.predictor,
            "group": self.group,
            "beats": self.beats,
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class Evaluation:
    """Models and baselines side by side on the test part of one split.

    Parameters
    ----------
    cell, screen
        Their checksums.
    split
        What the split is, in numbers.
    leakage
        What the test part shares with training, in a sentence.
    predictors
        The seeds of each, in order; one None where no seed was given.
    metrics
        Title, direction and what it looks at, by name.
    bootstrap
        Resamples, level and seed.
    positives
        What counts as a positive.
    ceiling
        The replicate ceiling.
    groups
        The whole test part first, then its groups.
    verdicts
        Whether each predictor beats the additive baseline.
    notes
        What else is worth knowing, in sentences.
    """

    cell: str
    screen: str
    split: Mapping[str, Any]
    leakage: str
    predictors: Mapping[str, tuple[int | None, ...]]
    metrics: Mapping[str, Mapping[str, str]]
    bootstrap: Mapping[str, float]
    positives: Mapping[str, Any]
    ceiling: Ceiling
    groups: tuple[GroupResult, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def test(self) -> GroupResult:
        """All predictors on the whole test part."""
        return self.groups[0]

    @property
    def beats_additive(self) -> tuple[str, ...]:
        """Whether each predictor beats the additive baseline, in sentences."""
        return tuple(verdict.sentence for verdict in self.verdicts)

    def by(self, by: By) -> tuple[GroupResult, ...]:
        """Return the groups of one kind."""
        return tuple(group for group in self.groups if group.by == by)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, which `deltacell.report.evaluate` renders."""
        return {
            "schema": SCHEMA,
            "cell": self.cell,
            "screen": self.screen,
            "split": dict(self.split),
            "leakage": self.leakage,
            "predictors": {name: list(seeds) for name, seeds in self.predictors.items()},
            "metrics": {name: dict(metric) for name, metric in self.metrics.items()},
            "bootstrap": dict(self.bootstrap),
            "positives": dict(self.positives),
            "ceiling": self.ceiling.to_json(),
            "groups": [group.to_json() for group in self.groups],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "notes": list(self.notes),
        }


def _nested(scores: Mapping[str, Mapping[str, Estimate]]) -> dict[str, dict[str, Any]]:
    return {
        name: {metric: estimate.to_json() for metric, estimate in of_name.items()}
        for name, of_name in scores.items()
    }
