"""What a ranking tells: its rows with their evidence, and its sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.arrays import Ints, offsets_of
from deltacell.predict.explained_sentences import listed
from deltacell.predict.kept import taken
from deltacell.predict.ranking import HIGHEST, SCHEMA
from deltacell.predict.request import FILE, PAIRS, TRIPLES, WITH, Request, gene_texts
from deltacell.predict.scorers import Scored
from deltacell.predict.status import (
    COLUMNS,
    LINKED,
    MEASURED,
    STATUSES,
    TESTED,
    UNKNOWN,
    UNTESTED,
    Evidence,
)
from deltacell.predict.subject import Subject
from deltacell.words import count_text

TELLING = 0.1
"""The correlation on its validation part below which a ranking warns of a run."""


def title_of(subject: Subject) -> str:
    """Return what is ranked, in a few words."""
    request = subject.request
    status = " or ".join(request.statuses) + " " if request.statuses != STATUSES else ""
    title = f"{status}{sets_text(request)} ranked by {runs_text(subject)}"
    return title[0].upper() + title[1:]


def sentences_of(subject: Subject, counts: Mapping[str, int]) -> list[str]:
    """Return what was ranked, what was left out and why, and what to beware of.

    Parameters
    ----------
    subject
        What was ranked.
    counts
        Rows of each end: ``lowest``, ``highest``, ``listed``.
    """
    said = [
        _what(subject, counts),
        _cautious(subject),
        *_left_out(subject),
        *_quality(subject),
        *_beware(subject),
    ]
    return [sentence for sentence in said if sentence]


def how_many(subject: Subject) -> str:
    """Return what is about to be gone through."""
    return f"{subject.sets.n_sets:,} {sets_text(subject.request)}{_of_genes(subject)}"


def sets_text(request: Request) -> str:
    """Return what kind of sets are ranked."""
    if request.sets in (PAIRS, TRIPLES):
        return request.sets
    if request.sets == WITH:
        kind = {2: "pairs", 3: "triples"}.get(request.n_genes, f"sets of {request.n_genes} genes")
        return f"{kind} with {' and '.join(request.given)}"
    assert request.file is not None
    return f"sets of {request.file.name}"


def runs_text(subject: Subject) -> str:
    """Return which runs rank, as ``name (seeds 0 and 1)``."""
    seeds: dict[str, list[str]] = {}
    for run in subject.runs:
        seeds.setdefault(str(run["name"]), []).append(str(run["seed"]))
    return " and ".join(
        f"{name} ({'seed' if len(of) == 1 else 'seeds'} {listed(of)})" for name, of in seeds.items()
    )


def _what(subject: Subject, counts: Mapping[str, int]) -> str:
    request, of = subject.request, f"of {how_many(subject)}"
    by = f"scored by {runs_text(subject)}"
    if request.ends == (None,):
        return f"{counts['listed']:,} {of}, {by}, from the lowest score up."
    parts = []
    for end in request.ends:
        n, limit = counts[str(end)], request.limit(end)
        if limit is None:
            parts.append(f"the {n:,} {end}")
        else:
            which = ", less extreme by its spread," if request.cautious else ""
            beyond = f"a score{which} of {limit:g} or {'more' if end == HIGHEST else 'less'}"
            # Fewer than asked for are all that there are.
            whole = request.most is None or n < request.most
            parts.append(f"{'all' if whole else 'the first'} {n:,} with {beyond}")
    joined = " and ".join(parts)
    few = ""
    if _are_short(request, counts):
        few = " A set that both ends would hold is in the one where it comes sooner."
    return f"{joined[0].upper()}{joined[1:]} {of}, {by}.{few}"


def _are_short(request: Request, counts: Mapping[str, int]) -> bool:
    """Return whether both ends hold fewer sets than they might, so that some fit both."""
    if len(request.ends) < 2 or request.most is None:
        return False
    there = sum(counts[str(end)] for end in request.ends)
    return 0 < there < 2 * request.most and all(request.limit(end) is None for end in request.ends)


def _cautious(subject: Subject) -> str:
    if not subject.request.cautious:
        return ""
    return (
        "Ranked with caution: by the score less extreme by its spread over the runs, so that what "
        "they do not agree on does not come first."
    )


def _left_out(subject: Subject) -> list[str]:
    request = subject.request
    said = []
    gone = [one for one in STATUSES if one not in request.statuses]
    if gone:
        words = {MEASURED: "measured", TESTED: "tested and not significant", UNTESTED: "not tested"}
        measured = 0
        if MEASURED in gone and request.sets != FILE:
            measured = sum(
                subject.statuses.n_measured(size, subject.genes) for size in subject.sets.sizes
            )
        told = count_text(measured, "was measured", "were measured")
        number = f" ({told})" if measured and request.sets != WITH else ""
        said.append(f"Left out: sets that were {' or '.join(words[g] for g in gone)}{number}.")
    if not subject.statuses.complete and UNTESTED in request.statuses:
        said.append(
            "A study of the screen shows only part of what it tested, so some sets that are "
            "called untested may have been tested."
        )
    if not request.keeps_linked:
        pairs = subject.linkage.n_pairs(subject.genes)
        # Sets with given genes have few of these pairs.
        are = count_text(pairs, "pair of genes is", "pairs of genes are")
        number = "" if request.sets == WITH else f"{are}; "
        if pairs:
            said.append(
                f"Left out: sets with two genes less than {_distance(request.distance)} apart on "
                f"one chromosome, which a cross can hardly combine ({number}--linked keeps them)."
            )
    unplaced = subject.linkage.n_unplaced(subject.genes)
    if unplaced:
        said.append(
            f"The place of {unplaced:,} of {len(subject.genes):,} genes on the chromosomes is not "
            "known: whether they are linked is not known either."
        )
    return said


def _quality(subject: Subject) -> list[str]:
    known = [run["validation_pearson"] for run in subject.runs]
    if any(value is None for value in known):
        return []
    values = " and ".join(f"{value:.3f}" for value in known)
    had = (
        "On its validation part the run had"
        if len(known) == 1
        else "On their validation parts the runs had"
    )
    return [f"{had} a Pearson correlation of {values}."]


def _beware(subject: Subject) -> list[str]:
    said = []
    alone = len(subject.runs) == 1
    trained = subject.trained_sizes
    strange = [size for size in subject.sets.sizes if size not in trained]
    if strange:
        known = listed([str(size) for size in sorted(trained)])
        asked = listed([str(size) for size in strange])
        # Of several runs it is known only what all were trained on.
        told = (
            f"the run was trained on sets of {known} genes, and never on sets of {asked}"
            if alone
            else f"not every run was trained on sets of {asked} genes"
            + (f", as all were on sets of {known}" if known else "")
        )
        said.append(f"Beware: {told}. Nothing shows that scores of such sets mean anything.")
    for run in subject.runs:
        reached = run["validation_pearson"]
        if reached is not None and not reached >= TELLING:
            said.append(
                f"Beware: with a correlation of {reached:.3f} on its validation part, "
                f"{run['name']} (seed {run['seed']}) says next to nothing of sets it has not seen."
            )
    begun = [f"{run['name']} (seed {run['seed']})" for run in subject.runs if not run["finished"]]
    if begun:
        said.append(f"Beware: the training of {listed(begun)} did not come to its end.")
    if subject.untrained:
        said.append(
            f"Beware: {subject.untrained:,} of {len(subject.genes):,} genes are in no set of the "
            f"training part{'' if alone else ' of one of the runs'}. What is said of them rests on "
            "their place in the networks alone."
        )
    if subject.rescaled:
        said.append(
            "The runs are of unlike predictors, so each was first brought to one scale by its "
            "scores of the validation part."
        )
    if alone:
        said.append("One run has no spread: rank with several seeds to see how sure it is.")
    return said


def _of_genes(subject: Subject) -> str:
    request = subject.request
    if request.sets == FILE:
        return ""
    whose = {"screen": " of the screen", "all": " of the cell"}
    of = whose[request.genes] if isinstance(request.genes, str) else f" of {request.genes.name}"
    if request.sets == WITH:
        return f" and {len(subject.genes) - len(request.given):,} other genes{of}"
    return f" of {len(subject.genes):,} genes{of}"


def _distance(base_pairs: int) -> str:
    return f"{base_pairs / 1000:g} kb" if base_pairs >= 1000 else f"{base_pairs} bp"


_AT_ONCE = 20_000


class Rows:
    """Makes tables with the columns of a ranking.

    Parameters
    ----------
    subject
        What was ranked.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._evidence = Evidence.of(subject.cell)
        genes = subject.cell.genes
        self._systematic = pa.array(genes.systematic, pa.string())
        self._names = pa.array(gene_texts(genes), pa.string())

    def tables(self, end: str | None, pieces: Iterator[Scored]) -> Iterator[pa.Table]:
        """Return the rows of an end.

        Parameters
        ----------
        end
            Its name.
        pieces
            The sets in order; those of several sizes are padded in front with -1.
        """
        rank = 1
        for piece in pieces:
            for at in range(0, len(piece.score), _AT_ONCE):
                some = taken(piece, np.arange(at, min(at + _AT_ONCE, len(piece.score))))
                yield self._table(end, rank, some)
                rank += len(some.score)

    def _table(self, end: str | None, rank: int, found: Scored) -> pa.Table:
        n = len(found.score)
        here = found.sets >= 0
        flat, offsets = found.sets[here], pa.array(offsets_of(here.sum(axis=1)), pa.int32())
        columns: dict[str, Any] = {
            "end": pa.array([end] * n, pa.string()),
            "rank": pa.array(np.arange(rank, rank + n, dtype=np.int32)),
            "genes": pa.ListArray.from_arrays(offsets, self._systematic.take(pa.array(flat))),
            "names": pa.ListArray.from_arrays(offsets, self._names.take(pa.array(flat))),
            "score": pa.array(found.score),
            "spread": pa.array(found.spread, from_pandas=True),
            **self._known(found.sets),
        }
        return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def _known(self, sets: Ints) -> dict[str, pa.Array]:
        """Return the columns of what is known of sets, whatever their scores."""
        status = np.zeros(len(sets), dtype=np.int8)
        linked = np.zeros(len(sets), dtype=np.int8)
        measured = np.zeros(len(sets), dtype=np.float32)
        evidence: dict[str, list[Any]] = {name: [None] * len(sets) for name in COLUMNS}
        sizes = (sets >= 0).sum(axis=1)
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            some = sets[rows, sets.shape[1] - size :]
            status[rows] = self._subject.statuses.of(some)
            measured[rows] = self._subject.statuses.measured(some)
            linked[rows] = self._subject.linkage.of(some)
            for name, values in self._evidence.columns(some).items():
                for row, value in zip(rows.tolist(), values, strict=True):
                    evidence[name][row] = value
        return {
            "status": pa.array(STATUSES, pa.string()).take(pa.array(status)),
            "measured": pa.array(measured, from_pandas=True),
            "linked": pa.array(linked == LINKED, pa.bool_(), mask=linked == UNKNOWN),
            **{
                name: pa.array(values, SCHEMA.field(name).type) for name, values in evidence.items()
            },
        }
