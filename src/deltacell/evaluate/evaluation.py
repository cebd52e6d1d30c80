"""The result of an evaluation, as plain data, and which predictor is best by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from deltacell.evaluate.metrics import CONSTANT

if TYPE_CHECKING:
    from deltacell.evaluate.ceiling import Ceiling

SCHEMA = 2

By = Literal["test", "unseen", "kind", "perturbation", "beyond"]

MAIN = "pearson"
"""The metric by which a predictor is best."""


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
        """Return a JSON-serialisable dict."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "reason": self.reason,
            "seeds": list(self.seeds),
            "seed_deviation": self.seed_deviation,
        }


Scores = Mapping[str, Mapping[str, Estimate]]
Differences = Mapping[str, Mapping[str, Mapping[str, Estimate]]]


@dataclass(frozen=True)
class GroupResult:
    """All predictors on some of the test rows.

    Parameters
    ----------
    by
        What the rows have in common: all are of the ``test`` part; they have the same number of
        ``unseen`` genes, ``kind`` or ``perturbation``; or their scores lie ``beyond`` a threshold.
    label
        The name of the group, such as ``1 unseen gene``.
    rows
        Test rows that have a score.
    gene_sets, genes
        Different gene sets and genes among all its rows.
    labelled, positives
        Rows that AUROC and AUPR look at, and the positives among them.
    scores
        By predictor, then metric.
    differences
        By predictor, then the other predictor, then metric: the first minus the other, paired over
        resamples.
    """

    by: By
    label: str
    rows: int
    gene_sets: int
    genes: int
    labelled: int
    positives: int
    scores: Scores
    differences: Differences

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "by": self.by,
            "label": self.label,
            "rows": self.rows,
            "gene_sets": self.gene_sets,
            "genes": self.genes,
            "labelled": self.labelled,
            "positives": self.positives,
            "scores": _nested(self.scores),
            "differences": {name: _nested(others) for name, others in self.differences.items()},
        }


@dataclass(frozen=True)
class AmongTested:
    """All predictors among all tested sets, hits or not, at the share of hits that these have.

    Parameters
    ----------
    rows, zeros
        Test rows with a score, and tested pairs that are not listed.
    weight
        How many tested pairs each of the latter stands for.
    hit_share
        The share of hits among the tested sets.
    metrics
        Title, direction and what it looks at, by name.
    scores, differences
        As in `GroupResult`.
    calibration
        By predictor: the slope, and bins by predicted score with the mean predicted and measured
        score and hit share; ``by_hit`` has bins by the predicted probability of a hit, for
        predictors that give one.
    sentences
        What counts as tested and as a hit.
    """

    rows: int
    zeros: int
    weight: float
    hit_share: float
    metrics: Mapping[str, Mapping[str, str]]
    scores: Scores
    differences: Differences
    calibration: Mapping[str, Mapping[str, Any]]
    sentences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "rows": self.rows,
            "zeros": self.zeros,
            "weight": self.weight,
            "hit_share": self.hit_share,
            "metrics": {name: dict(metric) for name, metric in self.metrics.items()},
            "scores": _nested(self.scores),
            "differences": {name: _nested(others) for name, others in self.differences.items()},
            "calibration": {name: dict(table) for name, table in self.calibration.items()},
            "sentences": list(self.sentences),
        }


@dataclass(frozen=True)
class Verdict:
    """Which predictor is best on a group of the test rows, and whether others are level with it.

    Parameters
    ----------
    group
        Its label.
    best
        The predictor with the highest Pearson correlation; None where none has one.
    beats
        Those it beats: the interval of the difference lies above 0.
    level
        Those it does not beat.
    above_chance
        Whether the interval of its own correlation lies above 0.
    sentence
        All of this for a person.
    """

    group: str
    best: str | None
    beats: tuple[str, ...]
    level: tuple[str, ...]
    above_chance: bool
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "group": self.group,
            "best": self.best,
            "beats": list(self.beats),
            "level": list(self.level),
            "above_chance": self.above_chance,
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
        The best predictor on the whole test part, by number of unseen genes, and beyond a
        threshold.
    not_additive
        By predictor, the share of its variance over the test sets that no sum of gene effects
        explains.
    tested
        Among all tested sets, hits or not; None where these are not known.
    notes
        What else is worth knowing, in sentences.
    on
        Where the test part is another screen: its checksum, and how many of its rows were left out
        and why.
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
    not_additive: Mapping[str, Estimate]
    tested: AmongTested | None = None
    notes: tuple[str, ...] = ()
    on: Mapping[str, Any] | None = None

    @property
    def test(self) -> GroupResult:
        """All predictors on the whole test part."""
        return self.groups[0]

    def beats(self, one: str, other: str, group: str = "test") -> bool:
        """Whether the interval of the difference in Pearson correlation lies above 0.

        Parameters
        ----------
        one, other
            Predictors.
        group
            Label of the group of test rows.
        """
        found = next(result for result in self.groups if result.label == group)
        return beats(found, one, other)

    def by(self, by: By) -> tuple[GroupResult, ...]:
        """Return the groups of one kind."""
        return tuple(group for group in self.groups if group.by == by)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict, which `deltacell.report.evaluate` renders."""
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
            "not_additive": {name: one.to_json() for name, one in self.not_additive.items()},
            "tested": None if self.tested is None else self.tested.to_json(),
            "notes": list(self.notes),
            "on": None if self.on is None else dict(self.on),
        }


def _nested(scores: Scores) -> dict[str, dict[str, Any]]:
    return {
        name: {metric: estimate.to_json() for metric, estimate in of_name.items()}
        for name, of_name in scores.items()
    }


def verdicts(groups: Sequence[GroupResult], level: float) -> tuple[Verdict, ...]:
    """Return the best predictor of the whole test part, by unseen genes, and beyond a threshold.

    Parameters
    ----------
    groups
        All groups of an evaluation, the whole test part first.
    level
        The level of their intervals.
    """
    unseen = [group for group in groups if group.by == "unseen"]
    beyond = [group for group in groups if group.by == "beyond"]
    looked_at = [*groups[:1], *(unseen if len(unseen) > 1 else ()), *beyond]
    return tuple(_verdict(group, level) for group in looked_at)


def beats(group: GroupResult, one: str, other: str) -> bool:
    """Whether a predictor beats another by Pearson correlation.

    It does where the interval of the difference lies above 0. Where the other predicts the same of
    every row, the predictor's own interval has to.

    Parameters
    ----------
    group
        Some of the test rows.
    one, other
        Predictors.
    """
    constant = group.scores[other][MAIN].reason == CONSTANT
    counts = group.scores[one][MAIN] if constant else group.differences[one][other][MAIN]
    return counts.low is not None and counts.low > 0


def _verdict(group: GroupResult, level: float) -> Verdict:
    where = "on test" if group.by == "test" else f"on test rows with {group.label}"
    own = {name: scores[MAIN] for name, scores in group.scores.items()}
    defined = {name: one.value for name, one in own.items() if one.value is not None}
    if not defined:
        why = "; ".join(f"{name}: {one.reason}" for name, one in own.items())
        said = f"No predictor has a Pearson correlation {where} ({why})."
        return Verdict(group.label, None, (), (), False, said)
    best = max(defined, key=lambda name: defined[name])
    others = [name for name in own if name != best]
    beaten = tuple(name for name in others if beats(group, best, name))
    even = tuple(name for name in others if name not in beaten)
    low = own[best].low
    above = low is not None and low > 0
    said = f"{best} has the highest Pearson correlation {where}: {_shown(own[best], level)}"
    said += "." if above else ", which is not above chance."
    if beaten:
        said += f" It beats {_listed(group, best, beaten)}."
    if even:
        said += f" It does not beat {_listed(group, best, even)}."
    return Verdict(group.label, best, beaten, even, above, said)


def _shown(estimate: Estimate, level: float) -> str:
    if estimate.low is None:
        return f"{estimate.value:.3f} (no interval: {estimate.reason})"
    return (
        f"{estimate.value:.3f} ({100 * level:g} % interval {estimate.low:.3f} to "
        f"{estimate.high:.3f})"
    )


def _listed(group: GroupResult, best: str, names: Sequence[str]) -> str:
    said = []
    for name in names:
        difference = group.differences[best][name][MAIN]
        if difference.value is None:
            said.append(f"{name} ({group.scores[name][MAIN].reason})")
        elif difference.low is None:
            said.append(f"{name} ({difference.value:+.3f}, no interval: {difference.reason})")
        else:
            said.append(
                f"{name} ({difference.value:+.3f}, {difference.low:+.3f} to {difference.high:+.3f})"
            )
    return ", ".join(said)
