"""What is said about a ranking: its title, what was ranked, what was left out, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deltacell.base.text import capital, listed, printable
from deltacell.ranking.filter import MEASURED, STATUSES, TESTED, UNTESTED
from deltacell.ranking.ranking_file import HIGHEST
from deltacell.ranking.request import PAIRS, TRIPLES, Request
from deltacell.ranking.request_on_runs import RequestOnRuns, RunFacts

DOUBTFUL_PEARSON = 0.1  # on the validation part; below it predictions are called unreliable

_LEFT_OUT = {
    MEASURED: "measured",
    TESTED: "tested and not significant",
    UNTESTED: "not tested",
}
_KINDS = {2: PAIRS, 3: TRIPLES}


def title(subject: RequestOnRuns) -> str:
    """Return the title of a ranking, such as ``Untested pairs ranked by demo (seed 0)``."""
    request = subject.request
    status = " or ".join(request.status or ())
    words = [] if set(request.status or ()) == set(STATUSES) else [status]
    words += [_kind(request), "ranked by", _scored_by(subject.runs)]
    return capital(" ".join(words))


def sets_text(subject: RequestOnRuns) -> str:
    """Return which sets are ranked, such as ``pairs of 128 genes of the screen``."""
    request = subject.request
    if request.file is not None:
        return _kind(request)
    n_free = len(subject.genes) - len(request.given)
    if request.given:
        which = f"and {n_free:,} other"
    else:
        which = f"of {n_free:,}"
    return f"{_kind(request)} {which} genes of {_whose(request.genes)}"


def sentences(subject: RequestOnRuns, counts: Mapping[str, int]) -> list[str]:
    """Return what was ranked, what was left out and why, and warnings.

    ``counts`` are the rows of each end, by its name or under ``listed``.
    """
    return [
        _what_was_ranked(subject, counts),
        *_what_was_left_out(subject),
        *_validation(subject.runs),
        *_warnings(subject),
        *_several_runs(subject),
    ]


def _kind(request: Request) -> str:
    if request.file is not None:
        return f"sets of {printable(request.file.name)}"
    size = request.size or 0
    kind = _KINDS.get(size, f"sets of {size} genes")
    if request.given:
        kind += f" with {printable(' and '.join(request.given))}"
    return kind


def _whose(genes: str | Path) -> str:
    if isinstance(genes, Path):
        return printable(genes.name)
    return {"screen": "the screen", "all": "the cell"}[genes]


def _scored_by(runs: Sequence[RunFacts]) -> str:
    """Return the names of runs with their seeds, such as ``demo (seeds 0 and 1)``."""
    parts = []
    for name in dict.fromkeys(run.name for run in runs):
        seeds = [str(run.seed) for run in runs if run.name == name]
        noun = "seed" if len(seeds) == 1 else "seeds"
        parts.append(f"{printable(name)} ({noun} {listed(seeds)})")
    return " and ".join(parts)


def _what_was_ranked(subject: RequestOnRuns, counts: Mapping[str, int]) -> str:
    request = subject.request
    n_sets = f"{subject.sets.n_sets:,}"
    rest = f"of {n_sets} {sets_text(subject)}, scored by {_scored_by(subject.runs)}"
    if request.ends == (None,):
        return f"{counts['listed']:,} {rest}, in order of increasing score."
    parts = [_rows_of_end(request, end, counts) for end in request.ends if end is not None]
    return f"{capital(' and '.join(parts))} {rest}."


def _rows_of_end(request: Request, end: str, counts: Mapping[str, int]) -> str:
    n_rows = counts[end]
    limit = request.limit(end)
    if limit is None:
        return f"the {n_rows:,} {end}"
    is_all = request.top is None or n_rows < request.top
    which = "all" if is_all else "the first"
    direction = "more" if end == HIGHEST else "less"
    return f"{which} {n_rows:,} with a score of {limit:g} or {direction}"


def _what_was_left_out(subject: RequestOnRuns) -> Iterator[str]:
    request = subject.request
    wanted = request.status or ()
    unwanted = [text for status, text in _LEFT_OUT.items() if status not in wanted]
    if unwanted:
        yield f"Left out: sets that were {' or '.join(unwanted)}."
    if not subject.statuses.complete and UNTESTED in wanted:
        yield (
            "A study in the screen reports only some of the sets it tested, so sets labelled "
            "untested may have been tested."
        )
    n_genes = len(subject.genes)
    n_unplaced = subject.linkage.n_unplaced(subject.genes)
    if not request.linked and n_unplaced < n_genes:
        yield (
            f"Left out: sets with two genes less than {_distance(request.distance)} apart on one "
            "chromosome, which a cross can hardly combine (--linked keeps them)."
        )
    if n_unplaced:
        yield (
            f"The chromosomal position of {n_unplaced:,} of {n_genes:,} genes is unknown, so "
            "whether they are linked is unknown too."
        )


def _distance(base_pairs: int) -> str:
    return f"{base_pairs / 1000:g} kb" if base_pairs >= 1000 else f"{base_pairs} bp"


def _validation(runs: Sequence[RunFacts]) -> Iterator[str]:
    known = [run.validation_pearson for run in runs if run.validation_pearson is not None]
    if len(known) == len(runs):
        whose = "the run's validation part" if len(runs) == 1 else "the runs' validation parts"
        values = " and ".join(f"{value:.3f}" for value in known)
        yield f"The Pearson correlation on {whose} is {values}."


def _warnings(subject: RequestOnRuns) -> Iterator[str]:
    """Yield sentences that begin with Beware, which no page folds away."""
    is_alone = len(subject.runs) == 1
    strange = [str(size) for size in subject.sets.sizes if size not in subject.trained_sizes]
    if strange:
        trained = [str(size) for size in sorted(subject.trained_sizes)]
        yield (
            f"Beware: {'the run was' if is_alone else 'all runs were'} trained on sets of "
            f"{listed(trained) or 'no size in common'} genes, not of {listed(strange)}, so these "
            "scores may be meaningless."
        )
    for run in subject.runs:
        yield from _warnings_of_run(run)
    if subject.untrained:
        yield (
            f"Beware: {subject.untrained:,} of {len(subject.genes):,} genes are in no training set"
            f"{'' if is_alone else ' of one of the runs'}; their scores are based on networks and "
            "features alone."
        )


def _warnings_of_run(run: RunFacts) -> Iterator[str]:
    pearson = run.validation_pearson
    # A correlation that is not a number is doubtful, too.
    if pearson is not None and not pearson >= DOUBTFUL_PEARSON:
        yield (
            f"Beware: {printable(run.name)} (seed {run.seed}) has a correlation of {pearson:.3f} "
            "on its validation part, so its predictions of unseen sets are unreliable."
        )
    if not run.finished:
        yield f"Beware: the training of {printable(run.name)} (seed {run.seed}) did not finish."


def _several_runs(subject: RequestOnRuns) -> Iterator[str]:
    if subject.rescaled:
        yield (
            "The runs use different predictors, so their scores were rescaled to agree on the "
            "validation part."
        )
    sentence = subject.intervals.sentence
    if sentence is not None:
        yield sentence
    elif len(subject.runs) == 1:
        yield "A single run has no spread: rank with several seeds to see the uncertainty."


def to_score_text(subject: RequestOnRuns) -> str:
    """Return how many sets there are to score, without an end of the sentence."""
    return f"{subject.sets.n_sets:,} {sets_text(subject)} to score"
