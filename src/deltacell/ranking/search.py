"""Score gene sets block by block into a ranking: resumable, by one process or several."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError
from deltacell.base.text import Progress, duration_text, listed
from deltacell.ranking.ensemble import MeanOfRuns
from deltacell.ranking.evidence import Evidence
from deltacell.ranking.filter import LINKED, STATUSES, UNKNOWN
from deltacell.ranking.gene_names import gene_texts
from deltacell.ranking.gene_sets import Combinations, GeneSets, Piece, Scored
from deltacell.ranking.kept import Kept, at_one_end_only
from deltacell.ranking.ranking_file import HIGHEST, LOWEST, SCHEMA, Ranking, write_ranking
from deltacell.ranking.request_on_runs import RequestOnRuns
from deltacell.ranking.sentences import sentences, title, to_score_text
from deltacell.ranking.work import Ranks, Work, differences, number_of_parts, other_request

ROWS_PER_GROUP = 50_000  # of the Parquet file
SAVED_EVERY = 10.0  # seconds between saves
WORTH_TELLING = 5.0  # seconds
# Before the first block, at most 1 / SHARE of the sets are drawn, and of the blocks are tried.
DRAWN = 10_000
SHARE_DRAWN = 20
TRIED = 64
SHARE_TRIED = 20
TRIAL_S = 2.0


@dataclass(frozen=True)
class Contact:
    """What a ranking tells its caller, and how the caller stops it."""

    stop: Callable[[], bool] = lambda: False  # called after every block
    progress: Progress = lambda label, done, total: None
    tell: Callable[[str], None] = lambda sentence: None  # called with the expected duration


SILENT = Contact()


def rank_sets(
    subject: RequestOnRuns,
    scorer: MeanOfRuns,
    out: Path,
    *,
    ranks: Ranks = (0, 1),
    overwrite: bool = False,
    contact: Contact = SILENT,
) -> Ranking | None:
    """Rank gene sets into a file; return None if stopped, or if another process writes the file.

    The same request resumes the work in ``OUT.partial``, and the file is byte for byte that of an
    uninterrupted ranking; if it exists already, nothing is scored.
    """
    work = Work(out, subject.identity, ranks, overwrite=overwrite)
    ranking = None if overwrite else _finished(subject, out)
    if ranking is None:
        with work.locked():
            # The first process may have written it in the meantime.
            ranking = None if overwrite else _finished(subject, out)
            if ranking is None:
                ranking = _scored_and_written(_Scoring(subject, scorer, work, contact), out)
    if ranking is not None:
        shutil.rmtree(work.folder, ignore_errors=True)
    return ranking if work.rank == 0 else None


def score_part(
    subject: RequestOnRuns,
    scorer: MeanOfRuns,
    out: Path,
    ranks: Ranks,
    *,
    overwrite: bool = False,
    contact: Contact = SILENT,
) -> bool:
    """Score one part of a ranking into one file of ``OUT.partial``; return False if stopped.

    A part that was stopped is resumed, one that is damaged is scored again, and if the ranking or
    the part is finished, nothing is scored. `merge_parts` makes the ranking of all parts.
    """
    if not overwrite and _finished(subject, out) is not None:
        return True
    work = Work(out, subject.identity, ranks, overwrite=overwrite, repairs=True)
    with work.locked():
        return _Scoring(subject, scorer, work, contact).run()


def merge_parts(
    subject: RequestOnRuns,
    scorer: MeanOfRuns,
    out: Path,
    *,
    overwrite: bool = False,
    contact: Contact = SILENT,
) -> Ranking | None:
    """Make the ranking of the parts that `score_part` scored; return None if stopped.

    Parts that are missing, damaged or unfinished are named and scored here. The file is byte for
    byte that of a ranking by one process.
    """
    ranking = None if overwrite else _finished(subject, out)
    if ranking is not None:
        return ranking
    n_parts = number_of_parts(out)
    works = [
        Work(out, subject.identity, (rank, n_parts), overwrite=overwrite, repairs=True)
        for rank in range(n_parts)
    ]
    first = works[0]
    with first.locked_file(first.folder / "merge.lock"):
        problems = {work.rank + 1: work.problem(work.rank) for work in works}
        for sentence in problem_sentences(problems):
            contact.tell(sentence)
        for work in works:
            if problems[work.rank + 1] is None:
                continue
            with work.locked():
                if not _Scoring(subject, scorer, work, contact).run():
                    return None
        contact.progress("writing", 0, 0)
        ranking = _write(subject, first, out)
    shutil.rmtree(first.folder, ignore_errors=True)
    return ranking


def problem_sentences(problems: Mapping[int, str | None]) -> list[str]:
    """Return a sentence for each problem that parts have, with their numbers."""
    numbers_of: dict[str, list[int]] = {}
    for number, problem in problems.items():
        if problem is not None:
            numbers_of.setdefault(problem, []).append(number)
    sentences = []
    for problem, numbers in numbers_of.items():
        named = listed([str(number) for number in numbers])
        subject = f"part {named} is" if len(numbers) == 1 else f"parts {named} are"
        again = "resumed" if problem == "unfinished" else "scored"
        sentences.append(f"Of {len(problems)} parts, {subject} {problem} and will be {again} now.")
    return sentences


def _finished(subject: RequestOnRuns, out: Path) -> Ranking | None:
    """Return the ranking if the file exists; raise if it is that of another request."""
    if not out.exists():
        return None
    ranking = Ranking.read(out)
    changed = differences(ranking.about["identity"], subject.identity)
    if changed:
        raise other_request(changed, out)
    return ranking


def _scored_and_written(scoring: _Scoring, out: Path) -> Ranking | None:
    """Score the blocks of this process; the first process waits for the others and writes."""
    work = scoring.work
    if not scoring.run() or work.rank != 0:
        return None
    contact = scoring.contact
    while work.unfinished() and not contact.stop():
        contact.progress("waiting for the other processes", 0, 0)
        time.sleep(0.2)
    if work.unfinished():
        return None
    contact.progress("writing", 0, 0)
    return _write(scoring.subject, work, out)


class _Scoring:
    """The blocks of gene sets that one process scores, and the sets that it keeps."""

    def __init__(
        self,
        subject: RequestOnRuns,
        scorer: MeanOfRuns,
        work: Work,
        contact: Contact,
    ) -> None:
        self.subject = subject
        self.work = work
        self.contact = contact
        self._scorer = scorer
        self._sets = subject.sets
        self._kept = kept_of(subject)
        self._numbers = range(self._sets.n_pieces)[work.rank :: work.world]

    def run(self) -> bool:
        """Score the remaining blocks; return False if stopped."""
        n_done = self.work.load(self._kept)
        if n_done == len(self._numbers) and self.work.has_finished(self.work.rank):
            return True
        if n_done == 0:
            self._find_first_bounds()
        self._announce(n_done)
        return self._score_from(n_done)

    def _find_first_bounds(self) -> None:
        """Score some random sets, since blocks are scored faster with bounds that are near."""
        sets = self._sets
        if len(self._numbers) and self._scorer.prunes and isinstance(sets, Combinations):
            n_drawn = min(DRAWN, sets.n_sets // SHARE_DRAWN)
            self._try(sets.draw(n_drawn, seed=0))

    def _announce(self, n_done: int) -> None:
        """Tell what is scored, and how long it takes if that is long."""
        rank = self.work.rank
        world = self.work.world
        text = to_score_text(self.subject)
        if world > 1:
            text += f"; this is part {rank + 1} of {world}"
        if n_done:
            text += f"; resuming, {n_done / len(self._numbers):.1%} was done before"
        remaining = self._numbers[n_done:]
        seconds = 0.0 if self.contact.stop() else trial_seconds(self._sets, remaining, self._try)
        if seconds > WORTH_TELLING:
            duration = duration_text(seconds)
            text += f": about {duration}. Ctrl-C stops it; rerun the command to resume"
        self.contact.tell(f"{text}.")

    def _score_from(self, n_done: int) -> bool:
        """Score the blocks from this one on, saving now and then; return False if stopped."""
        world = self.work.world
        n_sets = self._sets.n_sets // world
        saved = time.monotonic()
        for piece in self._sets.pieces(self.work.rank + n_done * world, world):
            self.contact.progress("ranking", n_done * n_sets // len(self._numbers), n_sets)
            if self.contact.stop():
                self.work.save(n_done, self._kept)
                return False
            self._kept.offer(self._scored(piece))
            n_done += 1
            if time.monotonic() - saved > SAVED_EVERY:
                self.work.save(n_done, self._kept)
                saved = time.monotonic()
        self.work.save(n_done, self._kept, finished=True)
        return True

    def _scored(self, piece: Piece) -> Scored:
        """Return the sets of a block that the request allows and that may be kept."""
        scored = self._scorer.candidates(piece, self._kept.above, self._kept.below)
        if not np.isfinite(scored.score).all():
            message = "a score is not finite: the training of a run diverged; try --weights last"
            raise InputError(message, code="score-not-finite")
        return self.subject.select(scored).padded(max(self._sets.sizes))

    def _try(self, piece: Piece) -> None:
        """Score sets that come again in their block; without --top they would be kept twice."""
        scored = self._scored(piece)
        if self._kept.top is not None:
            self._kept.offer(scored)


def trial_seconds(sets: GeneSets, numbers: range, score: Callable[[Piece], None]) -> float:
    """Return how long the numbered pieces will take, by a trial of some; 0 for few pieces.

    Bounds improve with every piece, so only the second half of the trial counts.
    """
    n_trials = min(TRIED, len(numbers) // SHARE_TRIED)
    if n_trials == 0:
        return 0.0
    times: list[float] = []
    random = np.random.default_rng(0)
    for place in random.integers(len(numbers), size=n_trials).tolist():
        if sum(times) > TRIAL_S:
            break
        piece = next(sets.pieces(numbers[place], 1))
        began = time.perf_counter()
        score(piece)
        times.append(time.perf_counter() - began)
    second_half = times[len(times) // 2 :]
    return float(np.mean(second_half)) * len(numbers)


def kept_of(subject: RequestOnRuns) -> Kept:
    """Return what a ranking keeps, without any set yet."""
    request = subject.request
    limits = {end: request.limit(end) for end in request.ends}
    return Kept(max(subject.sets.sizes), limits, request.top)


@dataclass(frozen=True, eq=False)
class _RankedRows:
    """The rows of a ranking, one end after the other, the first of each end first."""

    ends: list[str | None]
    ranks: Ints  # from 1 on within each end
    scored: Scored

    @classmethod
    def of(cls, scored_by_end: Mapping[str | None, Scored]) -> _RankedRows:
        ends: list[str | None] = []
        ranks = []
        for end, scored in scored_by_end.items():
            n_rows = len(scored.score)
            ends += [end] * n_rows
            ranks.append(np.arange(1, n_rows + 1))
        return cls(ends, np.concatenate(ranks), Scored.join(list(scored_by_end.values())))

    def __len__(self) -> int:
        return len(self.ends)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each end, and in all."""
        n_rows = {"rows": len(self)}
        return n_rows | {end or "listed": self.ends.count(end) for end in (LOWEST, HIGHEST, None)}

    def groups(self) -> Iterator[_RankedRows]:
        """Yield the rows of each row group of the file."""
        for start in range(0, len(self), ROWS_PER_GROUP):
            rows = slice(start, start + ROWS_PER_GROUP)
            yield _RankedRows(self.ends[rows], self.ranks[rows], self.scored.take(rows))


def _write(subject: RequestOnRuns, work: Work, out: Path) -> Ranking:
    """Write the sets that all processes keep, and read the file."""
    rows = _RankedRows.of(_kept_by_all(subject, work))
    counts = {"genes": len(subject.genes), "sets": subject.sets.n_sets, **rows.counts()}
    about = {
        "title": title(subject),
        "sentences": sentences(subject, counts),
        "counts": counts,
        "identity": subject.identity,
        "request": subject.request.to_json(),
        "runs": [asdict(run) for run in subject.runs],
        "relations": list(subject.cell.relations),
    }
    evidence = Evidence(subject.cell)
    write_ranking(out, (_table(subject, evidence, group) for group in rows.groups()), about)
    return Ranking.read(out)


def _kept_by_all(subject: RequestOnRuns, work: Work) -> dict[str | None, Scored]:
    """Return the sets of each end that the processes keep together."""
    kept = kept_of(subject)
    for rank in range(work.world):
        work.load(kept, rank)
    scored_by_end = [kept.rows(end) for end in kept.bounds]
    if len(scored_by_end) == 2 and subject.request.top is not None:
        scored_by_end = at_one_end_only(*scored_by_end)
    return dict(zip(kept.bounds, scored_by_end, strict=True))


def _table(subject: RequestOnRuns, evidence: Evidence, ranked: _RankedRows) -> pa.Table:
    """Return rows of the file; sets of one size are looked up together."""
    sizes = (ranked.scored.sets >= 0).sum(axis=1)
    by_size = np.argsort(sizes, kind="stable")
    tables = [SCHEMA.empty_table()]
    for rows in _runs_of_equal(sizes, by_size):
        sets = ranked.scored.sets[rows, -sizes[rows[0]] :]
        interval = subject.intervals.around(sets)
        columns = {
            "end": [ranked.ends[row] for row in rows],
            "low": pa.array(interval.low.astype(np.float32), from_pandas=True),
            "high": pa.array(interval.high.astype(np.float32), from_pandas=True),
            "rank": ranked.ranks[rows],
            "score": ranked.scored.score[rows],
            "spread": pa.array(ranked.scored.spread[rows], from_pandas=True),
            **_columns_of_sets(subject, sets),
            **evidence.columns(sets),
        }
        tables.append(pa.Table.from_pydict(columns, SCHEMA))
    return pa.concat_tables(tables).take(np.argsort(by_size))


def _runs_of_equal(values: Ints, order: Ints) -> Sequence[Ints]:
    """Return the rows of each value; ``order`` sorts the values. There are none without rows."""
    if not len(order):
        return []
    starts = np.flatnonzero(np.diff(values[order])) + 1
    return np.split(order, starts)


def _columns_of_sets(subject: RequestOnRuns, sets: Ints) -> dict[str, object]:
    """Return the names, the status and the linkage of sets of one size, [m, size]."""
    genes = subject.cell.genes
    systematic = np.array(genes.systematic)
    names = np.array(gene_texts(genes))
    statuses = np.array(STATUSES)
    linked = subject.linkage.of(sets)
    measured = subject.statuses.measured(sets)
    return {
        "genes": systematic[sets].tolist(),
        "names": names[sets].tolist(),
        "status": statuses[subject.statuses.of(sets)],
        "measured": pa.array(measured, from_pandas=True),
        "linked": pa.array(linked == LINKED, mask=linked == UNKNOWN),
    }
