"""The result of an evaluation, as plain data, and which predictor is best by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from deltacell.evaluate.metrics import CONSTANT

if TYPE_CHECKING:
    from deltacell.evaluate.diagnostics import Ceiling

SCHEMA = 2

By = Literal["test", "unseen", "kind", "perturbation", "beyond"]

#: The metric by which a predictor is best.
MAIN = "pearson"


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, or the reason why one of them is missing."""

    value: float | None  # over several seeds their mean
    low: float | None  # interval over resamples; None where too few define it
    high: float | None
    reason: str | None = None
    seeds: tuple[float | None, ...] = ()  # the number for each seed
    seed_deviation: float | None = None  # over two or more seeds


#: By predictor, then metric.
Scores = Mapping[str, Mapping[str, Estimate]]
#: By predictor, then the other predictor, then metric: the first minus the other, paired.
Differences = Mapping[str, Mapping[str, Mapping[str, Estimate]]]


@dataclass(frozen=True)
class GroupResult:
    """All predictors on some of the test rows.

    The rows are all of the ``test`` part; or they have the same number of ``unseen`` genes,
    ``kind`` or ``perturbation``; or their scores lie ``beyond`` a threshold.
    """

    by: By
    label: str  # such as "1 unseen gene"
    rows: int  # test rows that have a score
    gene_sets: int
    genes: int
    labelled: int  # rows that AUROC and AUPR look at
    positives: int
    scores: Scores
    differences: Differences


@dataclass(frozen=True)
class AmongTested:
    """All predictors among all tested sets, hits or not, at the share of hits that these have."""

    rows: int  # test rows with a score
    zeros: int  # tested pairs that are not listed
    weight: float  # how many tested pairs each of the latter stands for
    hit_share: float
    metrics: Mapping[str, Mapping[str, str]]
    scores: Scores
    differences: Differences
    calibration: Mapping[str, Mapping[str, Any]]  # by predictor: the slope and bins of means
    sentences: tuple[str, ...]  # what counts as tested and as a hit


@dataclass(frozen=True)
class Verdict:
    """Which predictor is best on a group of the test rows, and whether others are level with it."""

    group: str
    best: str | None  # with the highest Pearson correlation
    beats: tuple[str, ...]  # the interval of the difference lies above 0
    level: tuple[str, ...]  # those it does not beat
    above_chance: bool  # whether the interval of its own correlation lies above 0
    sentence: str


@dataclass(frozen=True)
class Evaluation:
    """Models and baselines side by side on the test part of one split.

    Parameters
    ----------
    cell, screen
        Their checksums.
    leakage
        What the test part shares with training, in a sentence.
    predictors
        The seeds of each, in order; one None where no seed was given.
    metrics
        Title, direction and what it looks at, by name.
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
        """Whether the interval of the difference in Pearson correlation lies above 0."""
        return beats(next(found for found in self.groups if found.label == group), one, other)

    def by(self, by: By) -> tuple[GroupResult, ...]:
        """Return the groups of one kind."""
        return tuple(group for group in self.groups if group.by == by)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict, which `deltacell.report.evaluate` renders."""
        found: dict[str, Any] = _listed({"schema": SCHEMA, **asdict(self)})
        return found


def verdicts(groups: Sequence[GroupResult], level: float) -> tuple[Verdict, ...]:
    """Return the best predictor of the whole test part, by unseen genes, and beyond a threshold."""
    unseen = [group for group in groups if group.by == "unseen"]
    beyond = [group for group in groups if group.by == "beyond"]
    looked_at = [*groups[:1], *(unseen if len(unseen) > 1 else ()), *beyond]
    return tuple(_verdict(group, level) for group in looked_at)


def beats(group: GroupResult, one: str, other: str) -> bool:
    """Whether a predictor beats another by Pearson correlation on some rows.

    It does where the interval of the difference lies above 0. Where the other predicts the same of
    every row, the predictor's own interval has to.
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
    interval = f"no interval: {own[best].reason}"
    if low is not None:
        interval = f"{100 * level:g} % interval {low:.3f} to {own[best].high:.3f}"
    said = f"{best} has the highest Pearson correlation {where}: {own[best].value:.3f} ({interval})"
    said += "." if above else ", which is not above chance."
    if beaten:
        said += f" It beats {', '.join(_ahead(group, best, name) for name in beaten)}."
    if even:
        said += f" It does not beat {', '.join(_ahead(group, best, name) for name in even)}."
    return Verdict(group.label, best, beaten, even, above, said)


def _ahead(group: GroupResult, best: str, name: str) -> str:
    one = group.differences[best][name][MAIN]
    if one.value is None:
        return f"{name} ({group.scores[name][MAIN].reason})"
    interval = f"no interval: {one.reason}"
    if one.low is not None:
        interval = f"{one.low:+.3f} to {one.high:+.3f}"
    return f"{name} ({one.value:+.3f}, {interval})"


def _listed(value: Any) -> Any:
    """Return plain data with lists for tuples, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _listed(one) for key, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, list | tuple) else value
