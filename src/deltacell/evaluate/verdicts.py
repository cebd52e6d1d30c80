"""Whether predictors beat the additive baseline, said plainly."""

from __future__ import annotations

from collections.abc import Sequence

from deltacell.evaluate.evaluation import Estimate, GroupResult, Verdict
from deltacell.evaluate.metrics import CONSTANT

REFERENCE = "additive"
"""The name of the baseline that a predictor has to beat."""

METRIC = "pearson"
"""The metric by which it has to."""


def verdicts(groups: Sequence[GroupResult], level: float) -> tuple[Verdict, ...]:
    """Return for the test part, and by number of unseen genes, whether each predictor beats it.

    Where all test genotypes have the same number, that would be the same twice and is left out.

    It does where the interval of the difference in Pearson correlation lies above 0. Where the
    additive baseline says the same of every row, as it does of genes it has never seen, the
    predictor's own interval has to.

    Parameters
    ----------
    groups
        Of an evaluation, the whole test part first.
    level
        Of its intervals.
    """
    unseen = [group for group in groups if group.by == "unseen"]
    looked_at = [*groups[:1], *(unseen if len(unseen) > 1 else ())]
    return tuple(_verdict(name, group, level) for group in looked_at for name in group.differences)


def _verdict(name: str, group: GroupResult, level: float) -> Verdict:
    own, reference = group.scores[name][METRIC], group.scores[REFERENCE][METRIC]
    where = "on test" if group.by == "test" else f"on test genotypes with {group.label}"
    if own.value is None and own.reason != CONSTANT:
        said = f"Whether {name} beats the additive baseline {where} cannot be said: {own.reason}."
        return Verdict(name, group.label, False, said)
    if own.value is None:
        said = (
            f"{name} does not beat the additive baseline {where}: {CONSTANT}, so there is no "
            "correlation."
        )
        return Verdict(name, group.label, False, said)
    if reference.value is None:
        beats = own.low is not None and own.low > 0
        said = (
            f"{_claim(name, beats)} {where} (which says the same of every row there): "
            f"Pearson {own.value:.3f}{_interval(own, level)}{_why_not(own, beats)}."
        )
        return Verdict(name, group.label, beats, said)
    difference = group.differences[name][METRIC]
    beats = difference.low is not None and difference.low > 0
    said = (
        f"{_claim(name, beats)} {where}: Pearson {own.value:.3f} against {reference.value:.3f}, "
        f"a difference of {difference.value:+.3f}{_interval(difference, level)}"
        f"{_why_not(difference, beats)}."
    )
    return Verdict(name, group.label, beats, said)


def _claim(name: str, beats: bool) -> str:
    return f"{name} {'beats' if beats else 'does not beat'} the additive baseline"


def _interval(estimate: Estimate, level: float) -> str:
    if estimate.low is None:
        return f" (no interval: {estimate.reason})"
    return f" ({100 * level:g} % interval {estimate.low:+.3f} to {estimate.high:+.3f})"


def _why_not(estimate: Estimate, beats: bool) -> str:
    if beats or estimate.high is None:
        return ""
    return ", all of it below 0" if estimate.high < 0 else ", which does not lie above 0"
