"""Which predictor is best, as values and as a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltacell.base.text import printable
from deltacell.evaluation.bootstrap import Estimate
from deltacell.evaluation.groups import MAIN, GroupResult


@dataclass(frozen=True)
class Verdict:
    """Which predictor is best on a group of the test rows, and which ones it beats."""

    group: str
    best: str | None  # with the highest Pearson correlation
    beats: tuple[str, ...]  # the interval of the difference lies above 0
    level: tuple[str, ...]  # those it does not beat
    above_chance: bool  # the interval of its own correlation lies above 0


def verdicts(groups: Sequence[GroupResult]) -> Iterator[tuple[GroupResult, Verdict]]:
    """Yield the groups that have a verdict, each with its verdict.

    They are the whole test part, the rows beyond a threshold, and, if there are several, the groups
    by number of unseen genes.
    """
    n_groups_by_unseen = sum(group.by == "unseen" for group in groups)
    for group in groups:
        has_verdict = group.by in ("test", "beyond")
        has_verdict |= group.by == "unseen" and n_groups_by_unseen > 1
        if has_verdict:
            yield group, verdict_of(group)


def verdict_of(group: GroupResult) -> Verdict:
    """Return which predictor is best on a group; none if no correlation is defined."""
    own = {name: scores[MAIN] for name, scores in group.scores.items()}
    known = {name: own[name].value or 0.0 for name in own if own[name].value is not None}
    if not known:
        return Verdict(group.label, None, (), (), above_chance=False)
    best = max(known, key=known.__getitem__)
    others = group.differences[best]
    beats = tuple(name for name in others if group.beats(best, name))
    level = tuple(name for name in others if name not in beats)
    return Verdict(group.label, best, beats, level, above_chance=(own[best].low or 0) > 0)


def verdict_sentence(group: GroupResult, verdict: Verdict, level: float) -> str:
    """Return a verdict in words; ``level`` is that of the intervals, such as 0.95."""
    where = "on test" if group.by == "test" else f"on test rows with {group.label}"
    own = {name: scores[MAIN] for name, scores in group.scores.items()}
    best = verdict.best
    if best is None:
        reasons = "; ".join(f"{printable(name)}: {own[name].reason}" for name in own)
        return f"No predictor has a Pearson correlation {where} ({reasons})."
    interval = _interval(own[best], "{:.3f} to {:.3f}", f"{100 * level:g} % interval ")
    value = f"{own[best].value:.3f} ({interval})"
    sentence = f"{printable(best)} has the highest Pearson correlation {where}: {value}"
    sentence += "." if verdict.above_chance else ", which is not above chance."
    if verdict.beats:
        sentence += f" It beats {_ahead_of(verdict.beats, group, best)}."
    if verdict.level:
        sentence += f" It does not beat {_ahead_of(verdict.level, group, best)}."
    return sentence


def _ahead_of(names: Sequence[str], group: GroupResult, best: str) -> str:
    """Return other predictors with how far the best one is ahead of them."""
    parts = []
    for name in names:
        difference = group.differences[best][name][MAIN]
        distance = group.scores[name][MAIN].reason
        if difference.value is not None:
            interval = _interval(difference, "{:+.3f} to {:+.3f}")
            distance = f"{difference.value:+.3f}, {interval}"
        parts.append(f"{printable(name)} ({distance})")
    return ", ".join(parts)


def _interval(estimate: Estimate, form: str, before: str = "") -> str:
    if estimate.low is None:
        return f"no interval: {estimate.reason}"
    return before + form.format(estimate.low, estimate.high)
