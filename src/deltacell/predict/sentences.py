"""What a ranking holds and how far to trust it, and what carries a prediction, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltacell.predict.ranking_file import HIGHEST
from deltacell.predict.status import MEASURED, STATUSES, TESTED, UNTESTED
from deltacell.words import capital, count_text, listed

if TYPE_CHECKING:
    from deltacell.predict.request import Subject

TELLING = 0.1  # the correlation on its validation part below which a ranking warns of a run


def ranking_title(subject: Subject) -> str:
    """Return what is ranked, in a few words."""
    statuses = subject.request.statuses
    status = " or ".join(statuses) + " " if statuses != STATUSES else ""
    return capital(f"{status}{_kind(subject)} ranked by {_runs(subject)}")


def ranking_sentences(subject: Subject, counts: Mapping[str, int]) -> list[str]:
    """Return what was ranked, what was left out and why, and caveats.

    ``counts`` has the rows of each end: ``lowest``, ``highest``, ``listed``.
    """
    said = [_found(subject, counts)]
    if subject.request.cautious:
        said.append(
            "The order is by the score less extreme by its spread over the runs, so that sets on "
            "which they disagree do not come first."
        )
    return [*said, *_left_out(subject), *_caveats(subject)]


def sets_text(subject: Subject) -> str:
    """Return which sets are ranked, and of which genes."""
    request, n = subject.request, len(subject.genes)
    if request.file is not None:
        return _kind(subject)
    whose = {"screen": "the screen", "all": "the cell"}
    of = whose[request.genes] if isinstance(request.genes, str) else request.genes.name
    if request.given:
        return f"{_kind(subject)} and {n - len(request.given):,} other genes of {of}"
    return f"{_kind(subject)} of {n:,} genes of {of}"


def _kind(subject: Subject) -> str:
    request = subject.request
    if request.file is not None:
        return f"sets of {request.file.name}"
    kind = {2: "pairs", 3: "triples"}.get(request.n_genes, f"sets of {request.n_genes} genes")
    return f"{kind} with {' and '.join(request.given)}" if request.given else kind


def _runs(subject: Subject) -> str:
    seeds: dict[str, list[str]] = {}
    for run in subject.runs:
        seeds.setdefault(str(run["name"]), []).append(str(run["seed"]))
    return " and ".join(
        f"{name} ({'seed' if len(of) == 1 else 'seeds'} {listed(of)})" for name, of in seeds.items()
    )


def _found(subject: Subject, counts: Mapping[str, int]) -> str:
    request = subject.request
    rest = f"of {subject.sets.n_sets:,} {sets_text(subject)}, scored by {_runs(subject)}"
    if request.ends == (None,):
        return f"{counts['listed']:,} {rest}, from the lowest score up."
    parts = []
    for end in request.ends:
        n, limit = counts[str(end)], request.limit(end)
        if limit is None:
            parts.append(f"the {n:,} {end}")
            continue
        score = "a score less extreme by its spread" if request.cautious else "a score"
        which = "all" if request.most is None or n < request.most else "the first"
        sign = "more" if end == HIGHEST else "less"
        parts.append(f"{which} {n:,} with {score} of {limit:g} or {sign}")
    said = capital(f"{' and '.join(parts)} {rest}.")
    there = sum(counts[str(end)] for end in request.ends)
    limited = any(request.limit(end) is not None for end in request.ends)
    if request.most is not None and not limited and 0 < there < 2 * request.most:
        said += " A set that belongs to both ends is listed in the one where it comes sooner."
    return said


def _left_out(subject: Subject) -> list[str]:
    request, genes, said = subject.request, subject.genes, []
    gone = [one for one in STATUSES if one not in request.statuses]
    all_sets = request.file is None and not request.given
    if gone:
        words = {MEASURED: "measured", TESTED: "tested and not significant", UNTESTED: "not tested"}
        n = 0
        if MEASURED in gone and all_sets:
            n = sum(subject.statuses.n_measured(size, genes) for size in subject.sets.sizes)
        number = f" ({count_text(n, 'was measured', 'were measured')})" if n else ""
        said.append(f"Left out: sets that were {' or '.join(words[g] for g in gone)}{number}.")
    if not subject.statuses.complete and UNTESTED in request.statuses:
        said.append(
            "A study of the screen shows only part of what it tested, so some sets that are called "
            "untested may have been tested."
        )
    linked = 0 if request.keeps_linked else subject.linkage.n_pairs(genes)
    if linked:
        # Sets with given genes have few of these pairs.
        number = count_text(linked, "pair of genes is", "pairs of genes are") + "; "
        distance = request.distance
        length = f"{distance / 1000:g} kb" if distance >= 1000 else f"{distance} bp"
        said.append(
            f"Left out: sets with two genes less than {length} apart on one chromosome, which a "
            f"cross can hardly combine ({number if all_sets else ''}--linked keeps them)."
        )
    unplaced = subject.linkage.n_unplaced(genes)
    if unplaced:
        said.append(
            f"The chromosomal position of {unplaced:,} of {len(genes):,} genes is unknown, so "
            "whether they are linked is unknown too."
        )
    return said


def _caveats(subject: Subject) -> list[str]:
    runs, said = subject.runs, []
    alone = len(runs) == 1
    known = [run["validation_pearson"] for run in runs]
    if None not in known:
        values = " and ".join(f"{value:.3f}" for value in known)
        whose = "the run's validation part" if alone else "the runs' validation parts"
        said.append(f"The Pearson correlation on {whose} is {values}.")
    trained = listed([str(size) for size in sorted(subject.trained_sizes)]) or "no size in common"
    strange = [str(size) for size in subject.sets.sizes if size not in subject.trained_sizes]
    if strange:
        said.append(
            f"Beware: {'the run was' if alone else 'all runs were'} trained on sets of {trained} "
            f"genes, not of {listed(strange)}, so nothing shows that these scores mean anything."
        )
    for run in runs:
        label = f"{run['name']} (seed {run['seed']})"
        reached = run["validation_pearson"]
        if reached is not None and not reached >= TELLING:
            said.append(
                f"Beware: {label} has a correlation of {reached:.3f} on its validation part, so it "
                "says next to nothing about sets it has not seen."
            )
        if not run["finished"]:
            said.append(f"Beware: the training of {label} did not finish.")
    if subject.untrained:
        said.append(
            f"Beware: {subject.untrained:,} of {len(subject.genes):,} genes are in no training set"
            f"{'' if alone else ' of one of the runs'}; their scores rest on networks and features "
            "alone."
        )
    if subject.rescaled:
        said.append(
            "The runs are of unlike predictors, so they were brought to one scale by their scores "
            "of the validation part."
        )
    if alone:
        said.append("One run has no spread: rank with several seeds to see how sure it is.")
    return said


def explanation_sentences(
    result: Mapping[str, Any], untrained: Sequence[str], sizes: Collection[int]
) -> list[str]:
    """Return what `explain_set` found in a few sentences; its tables say the rest.

    ``untrained`` names the deleted genes that some run never had in training, and ``sizes`` are
    the numbers of genes of the sets that all runs were trained on.
    """
    runs, alone = result["runs"], len(result["runs"]) == 1
    who = f"{runs[0]['name']} predicts" if alone else f"{len(runs)} runs predict"
    spread = "" if alone else f", with a spread of {result['spread']:.2g}"
    genes = listed(result["names"])
    said = [f"{who} {_signed(result['score'])} for the deletion of {genes}{spread}."]
    said += [
        f"{run['name']} gives a probability of {run['hit']:.2g} that it is a hit, and then expects "
        f"{_signed(run['given_hit'])}."
        for run in runs
        if run["hit"] is not None and run["given_hit"] is not None
    ]
    if result["measured"] is None:
        said.append("The set was not measured in the screen of the run.")
    else:
        part = f"in the {result['part']} part" if result["part"] else "in no part of the split"
        said.append(f"It was measured: {_signed(result['measured'])}, {part}.")
    if result["votes"]:
        first, n = result["votes"][0], count_text(len(result["votes"]), "measured set")
        said.append(
            f"It rests on {n} next to it, most of all on {' '.join(first['names'])} "
            f"({_signed(first['score'])})."
        )
    if not any(result["evidence"].values()):
        said.append("No relation joins two of the genes; they share no pathway and no complex.")
    if result["relations"]:
        first, baseline = result["relations"][0], result["relations_baseline"]
        worst = max(abs(result["relations_residual"]), abs(result["genes_residual"]))
        said.append(
            f"Without any message over the relations the score would be {_signed(baseline)}; "
            f"{first['relation']} contributes most, {_signed(first['contribution'])}. "
            "Contributions tell what moves the model, which need not be what moves the cell; they "
            f"add up to the score within {worst:.1g}"
            f"{'' if result['complete'] else ', more than the tolerance: take them as a hint'}."
        )
    size = len(result["genes"])
    if size not in sizes:
        which = "The run was not" if alone else "Not every run was"
        said.append(f"{which} trained on sets of {count_text(size, 'gene')}.")
    if untrained:
        run = "the run" if alone else "one of the runs"
        said.append(
            f"No training set of {run} has {listed(untrained)}: the score rests on networks and "
            "features there."
        )
    return said


def _signed(value: float) -> str:
    return f"{value:+.3g}"
