"""What is said about the score of one gene set, in addition to the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deltacell.base.text import count_text, listed, printable
from deltacell.ranking.evidence import SetEvidence, SetVote, StudyKnowledge
from deltacell.ranking.explained_set import ExplainedSet, MeanContributions, RunScore


def why_sentences(
    explained: ExplainedSet,
    untrained: Sequence[str],
    trained_sizes: set[int],
) -> list[str]:
    """Return the sentences on the score of a set.

    ``untrained`` are names of genes that are in no training part, and ``trained_sizes`` the sizes
    of sets that all runs were trained on.
    """
    is_alone = len(explained.runs) == 1
    return [
        _prediction(explained),
        *_probabilities(explained.runs),
        *_interval(explained),
        _measurement(explained.measured, explained.part),
        *_votes(explained.knowledge.votes),
        *_studies(explained.knowledge.studies),
        *_evidence(explained.evidence),
        *_contributions(explained.contributions),
        *_doubts(len(explained.genes), untrained, trained_sizes, is_alone=is_alone),
    ]


def signed(score: float) -> str:
    """Return a score with its sign and three digits."""
    return f"{score:+.3g}"


def _prediction(explained: ExplainedSet) -> str:
    runs = explained.runs
    names = printable(listed(explained.names))
    if explained.spread is None:
        return (
            f"{printable(runs[0].name)} predicts {signed(explained.score)} for the deletion of "
            f"{names}."
        )
    return (
        f"{len(runs)} runs predict {signed(explained.score)} for the deletion of {names}, with a "
        f"spread of {explained.spread:.2g}."
    )


def _probabilities(runs: Sequence[RunScore]) -> Iterator[str]:
    for run in runs:
        if run.hit is not None and run.given_hit is not None:
            yield (
                f"{printable(run.name)} predicts a hit with probability {run.hit:.2g}, and "
                f"a score of {signed(run.given_hit)} if it is one."
            )


def _interval(explained: ExplainedSet) -> Iterator[str]:
    if explained.low is not None and explained.high is not None:
        hit = " if it is a hit" if explained.is_of_hits else ""
        yield (
            f"With a probability of 0.9 a measurement of it{hit} lies between "
            f"{signed(explained.low)} and {signed(explained.high)}."
        )


def _measurement(measured: float | None, part: str | None) -> str:
    if measured is None:
        return "The set was not measured in the screen of the run."
    where = f"in the {part} part" if part else "in no part of the split"
    return f"It was measured: {signed(measured)}, {where}."


def _votes(votes: Sequence[SetVote]) -> Iterator[str]:
    if votes:
        first = votes[0]
        names = printable(" ".join(first.names))
        yield (
            f"The score is based on {count_text(len(votes), 'measured set')} next to it, mainly "
            f"on {names} ({signed(first.score)})."
        )


def _studies(studies: Sequence[StudyKnowledge]) -> Iterator[str]:
    """Yield what each study of the context measured for the set, or next to it."""
    for study in studies:
        name = printable(study.study)
        if study.measured is not None:
            hit = ", a hit there" if study.is_hit else ""
            yield f"{name} measured {signed(study.measured)} for it{hit}."
        elif study.is_tested is False:
            yield f"{name} tested it and lists no interaction."
        elif study.votes:
            first = study.votes[0]
            names = printable(" ".join(first.names))
            n_votes = count_text(len(study.votes), "set")
            yield (
                f"{name} did not measure it, but {n_votes} next to it, "
                f"such as {names} ({signed(first.score)})."
            )
        else:
            yield f"{name} measured neither it nor a set next to it."


def _evidence(evidence: SetEvidence) -> Iterator[str]:
    if not (evidence.links or evidence.pathways or evidence.complexes):
        yield "No relation joins two of the genes; they share no pathway and no complex."


def _contributions(contributions: MeanContributions) -> Iterator[str]:
    baseline = contributions.relations_baseline
    if not contributions.relations or baseline is None:
        return
    first = contributions.relations[0]
    residuals = (contributions.relations_residual, contributions.genes_residual)
    largest_residual = max(abs(residual) for residual in residuals if residual is not None)
    sentence = (
        f"Without messages over the relations the score would be "
        f"{signed(baseline)}; {printable(first.relation)} contributes most, "
        f"{signed(first.contribution)}. Contributions describe the model, not necessarily the "
        f"cell; they add up to the score within {largest_residual:.1g}"
    )
    if not contributions.complete:
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
