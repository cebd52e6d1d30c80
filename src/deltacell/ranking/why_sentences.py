"""What is said about the score of one gene set, in addition to the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltacell.base.text import count_text, listed, printable


def why_sentences(
    result: Mapping[str, Any],
    untrained: Sequence[str],
    trained_sizes: set[int],
) -> list[str]:
    """Return the sentences on an explanation, from `explain_set`.

    ``untrained`` are names of genes that are in no training part, and ``trained_sizes`` the sizes
    of sets that all runs were trained on.
    """
    is_alone = len(result["runs"]) == 1
    return [
        _prediction(result),
        *_probabilities(result["runs"]),
        _measurement(result["measured"], result["part"]),
        *_votes(result["votes"]),
        *_evidence(result["evidence"]),
        *_contributions(result),
        *_doubts(len(result["genes"]), untrained, trained_sizes, is_alone=is_alone),
    ]


def signed(score: float) -> str:
    """Return a score with its sign and three digits."""
    return f"{score:+.3g}"


def _prediction(result: Mapping[str, Any]) -> str:
    runs = result["runs"]
    names = printable(listed(result["names"]))
    if len(runs) == 1:
        return (
            f"{printable(runs[0]['name'])} predicts {signed(result['score'])} for the deletion of "
            f"{names}."
        )
    return (
        f"{len(runs)} runs predict {signed(result['score'])} for the deletion of {names}, with a "
        f"spread of {result['spread']:.2g}."
    )


def _probabilities(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for run in runs:
        if run["hit"] is not None and run["given_hit"] is not None:
            yield (
                f"{printable(run['name'])} predicts a hit with probability {run['hit']:.2g}, and "
                f"a score of {signed(run['given_hit'])} if it is one."
            )


def _measurement(measured: float | None, part: str | None) -> str:
    if measured is None:
        return "The set was not measured in the screen of the run."
    where = f"in the {part} part" if part else "in no part of the split"
    return f"It was measured: {signed(measured)}, {where}."


def _votes(votes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if votes:
        first = votes[0]
        names = printable(" ".join(first["names"]))
        yield (
            f"The score is based on {count_text(len(votes), 'measured set')} next to it, mainly "
            f"on {names} ({signed(first['score'])})."
        )


def _evidence(evidence: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    if not any(evidence.values()):
        yield "No relation joins two of the genes; they share no pathway and no complex."


def _contributions(result: Mapping[str, Any]) -> Iterator[str]:
    if not result["relations"]:
        return
    first = result["relations"][0]
    residual = max(abs(result["relations_residual"]), abs(result["genes_residual"]))
    sentence = (
        f"Without messages over the relations the score would be "
        f"{signed(result['relations_baseline'])}; {printable(first['relation'])} contributes most, "
        f"{signed(first['contribution'])}. Contributions describe the model, not necessarily the "
        f"cell; they add up to the score within {residual:.1g}"
    )
    if not result["complete"]:
        sentence += ", which exceeds the tolerance, so treat them as a hint"
    yield f"{sentence}."


def _doubts(
    n_genes: int,
    untrained: Sequence[str],
    trained_sizes: set[int],
    *,
    is_alone: bool,
) -> Iterator[str]:
    if n_genes not in trained_sizes:
        who = "The run was not" if is_alone else "Not every run was"
        yield f"{who} trained on sets of {count_text(n_genes, 'gene')}."
    if untrained:
        verb = "is" if len(untrained) == 1 else "are"
        whose = "the run" if is_alone else "one of the runs"
        yield (
            f"{printable(listed(untrained))} {verb} in no training set of {whose}, so only "
            "networks and features contribute there."
        )
