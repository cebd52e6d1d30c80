"""What an evaluation says in words, from its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from deltacell.base.rendering import Values
from deltacell.base.text import count_text


class PositiveValues(TypedDict):
    """Which rows are positives for AUROC and AUPR, and how many."""

    among: str  # "hits" if the screen lists only hits
    threshold: float | None  # None if no low score is a hit
    largest_p: float | None  # None if the rows have no p-values
    rows: int
    positives: int
    left_out: int
    rule: str  # what a hit of the screen is, and why


class CeilingValues(TypedDict):
    """The highest Pearson correlation that the noise of the measurements allows."""

    pearson: float | None
    noise: float | None
    variance: float | None
    repeated_sets: int
    test_rows: int


def evaluation_sentences(result: Values) -> list[str]:
    """Return the sentences below the tables of an evaluation, from `Evaluation.to_json`."""
    tested = result["tested"]
    sentences = [
        *(verdict["sentence"] for verdict in result["verdicts"]),
        sentence_of_positives(result["positives"]),
        *(tested["sentences"] if tested else ()),
        sentence_of_ceiling(result["ceiling"], only_hits=result["positives"]["among"] == "hits"),
        result["leakage"],
        *result["notes"],
        *_sentences_of_missing(result),
    ]
    return [sentence for sentence in sentences if sentence]


def sentence_of_positives(positives: PositiveValues) -> str:
    """Return which rows are positives, how many there are, and why others are left out."""
    n_positives = positives["positives"]
    counts = f"{n_positives:,} of {positives['rows']:,} test rows"
    if positives["among"] == "hits":
        verb = "is" if n_positives == 1 else "are"
        sentence = (
            "The screen lists only significant interactions, so AUROC and AUPR separate negative "
            f"from positive interactions ({counts} {verb} negative), not interactions from pairs "
            "without one."
        )
        reason = "the sign is unknown or the interaction is not significant"
    else:
        sentence = _sentence_of_threshold(positives, counts)
        has_p_values = positives["largest_p"] is not None
        reason = "no score or no p-value" if has_p_values else "no score"
    if positives["left_out"]:
        sentence += (
            f" {count_text(positives['left_out'], 'row is', 'rows are')} left out: {reason}."
        )
    return sentence


def _sentence_of_threshold(positives: PositiveValues, counts: str) -> str:
    if positives["threshold"] is None:
        return f"{positives['rule']} AUROC and AUPR need low scores that are hits."
    return (
        f"{positives['rule']} A positive, for AUROC and AUPR, is a score of "
        f"{positives['threshold']:.3g} or below{_significance(positives)} ({counts})."
    )


def _significance(positives: PositiveValues) -> str:
    if positives["largest_p"] is None:
        return " regardless of significance, because these rows have no p-values"
    return f" with a p-value of at most {positives['largest_p']:g}"


def sentence_of_ceiling(ceiling: CeilingValues, *, only_hits: bool) -> str:
    """Return the correlation of a perfect prediction, or why it is unknown.

    It is sqrt(1 - noise / variance). Of ``only_hits``, it is too high.
    """
    if ceiling["pearson"] is not None:
        sentence = (
            f"Replicate ceiling: given the noise between repeats of {ceiling['repeated_sets']:,} "
            "gene sets, a perfect prediction has a Pearson correlation of "
            f"{ceiling['pearson']:.3f} = sqrt(1 - noise / variance) = "
            f"sqrt(1 - {ceiling['noise']:.3g} / {ceiling['variance']:.3g})."
        )
        warning = " The screen lists only hits, so other repeats are missing and this is too high."
        return sentence + (warning if only_hits else "")
    if ceiling["noise"] is not None:
        return (
            "There is no replicate ceiling: repeats differ as much as the test rows do (variance "
            f"{ceiling['noise']:.3g} and {ceiling['variance']:.3g})."
        )
    sets = count_text(ceiling["repeated_sets"], "gene set was", "gene sets were")
    rows = count_text(ceiling["test_rows"], "test row has", "test rows have")
    return (
        f"There is no replicate ceiling: {sets} measured more than once and {rows} a score; at "
        "least 3 of each are needed."
    )


def _sentences_of_missing(result: Values) -> Iterator[str]:
    """Yield which metrics on the test part lack a value or an interval, and why."""
    titles: dict[tuple[bool, str], list[str]] = {}
    for name, scores in result["groups"][0]["scores"].items():
        for metric, estimate in scores.items():
            if estimate["reason"] is not None:
                has_value = estimate["value"] is not None
                key = (has_value, f"{name}: {estimate['reason']}")
                titles.setdefault(key, []).append(result["metrics"][metric]["title"])
    for (has_value, cause), metrics in titles.items():
        what_lacks = "Without an interval" if has_value else "Not available"
        yield f"{what_lacks} on test: {', '.join(metrics)} of {cause}."
