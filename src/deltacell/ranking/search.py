"""Score gene sets block by block into a ranking: resumable, by one process or several."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError
from deltacell.base.text import Progress, duration_text
from deltacell.ranking.ensemble import MeanOfRuns
from deltacell.ranking.evidence import Evidence
from deltacell.ranking.filter import LINKED, STATUSES, UNKNOWN
from deltacell.ranking.gene_names import gene_texts
from deltacell.ranking.gene_sets import Combinations, GeneSets, Piece, Scored
from deltacell.ranking.kept import Kept, at_one_end_only
from deltacell.ranking.ranking_file import HIGHEST, LOWEST, SCHEMA, Ranking, write_ranking
from deltacell.ranking.request_on_runs import RequestOnRuns
from deltacell.ranking.sentences import sentences, title, to_score_text
from deltacell.ranking.work import Ranks, Work, differences, other_request

ROWS_PER_GROUP = 50_000  # of the Parquet file
SAVED_EVERY = 10.0  # seconds between saves
WORTH_TELLING = 5.0  # seconds
# Before the first block, at most 1 / SHARE of the sets are drawn, and of the blocks are tried.
DRAWN, SHARE_DRAWN = 10_000, 20
TRIED, SHARE_TRIED, TRIAL_S = 64, 20, 2.0


def rank_sets(
    subject: RequestOnRuns,
    scorer: MeanOfRuns,
    out: Path,
    *,
    ranks: Ranks = (0, 1),
    overwrite: bool = False,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress = lambda label, done, total: None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Ranking | None:
    """Rank gene sets into a file; return None if stopped, or if another process writes the file.

    The same request resumes the work in ``OUT.partial``, and the file is byte for byte that of an
    uninterrupted ranking; if it exists already, nothing is scored. ``stop`` is called after every
    block, and ``tell`` with the expected duration.
    """
    work = Work(out, subject.identity, ranks, overwrite=overwrite)
    found = None if overwrite else _finished(subject, out)
    if found is None:
        with work.locked():
            # The first process may have written it in the meantime.
            found = None if overwrite else _finished(subject, out)
            if found is None and _score_all(subject, scorer, work, stop, progress, tell):
                while work.rank == 0 and work.unfinished() and not stop():
                    progress("waiting for the other processes", 0, 0)
                    time.sleep(0.2)
                if work.rank == 0 and not work.unfinished():
                    progress("writing", 0, 0)
                    found = _write(subject, work, out)
    if found is not None:
        shutil.rmtree(work.folder, ignore_errors=True)
    return found if work.rank == 0 else None


def _finished(subject: RequestOnRuns, out: Path) -> Ranking | None:
    if not out.exists():
        return None
    found = Ranking.read(out)
    if changed := differences(found.about["identity"], subject.identity):
        raise other_request(changed, out)
    return found


def _score_all(
    subject: RequestOnRuns,
    scorer: MeanOfRuns,
    work: Work,
    stop: Callable[[], bool],
    progress: Progress,
    tell: Callable[[str], None],
) -> bool:
    """Score the remaining blocks of this process; return False if stopped."""
    sets, rank, world, kept = subject.sets, work.rank, work.world, kept_of(subject)
    width, numbers = max(sets.sizes), range(sets.n_pieces)[rank::world]
    done, total, mine = work.load(kept), len(numbers), sets.n_sets // world

    def scored(piece: Piece) -> Scored:
        found = scorer.candidates(piece, kept.above, kept.below)
        if not np.isfinite(found.score).all():
            what = "a score is not finite: the training of a run diverged; try --weights last"
            raise InputError(what, code="score-not-finite")
        return subject.select(found).padded(width)

    def tried(piece: Piece) -> None:
        # These sets come again in their block; without --top they would be kept twice.
        found = scored(piece)
        if kept.top is not None:
            kept.offer(found)

    if done == total and rank not in work.unfinished():
        return True
    if total and not done and scorer.prunes and isinstance(sets, Combinations):
        tried(sets.draw(min(DRAWN, sets.n_sets // SHARE_DRAWN), seed=0))
    said = to_score_text(subject)
    said += f"; this is process {rank + 1} of {world}" if world > 1 else ""
    said += f"; resuming, {done / total:.1%} was done before" if done else ""
    seconds = 0.0 if stop() else trial_seconds(sets, numbers[done:], tried)
    if seconds > WORTH_TELLING:
        said += f": about {duration_text(seconds)}. Ctrl-C stops it; rerun the command to resume"
    tell(f"{said}.")
    saved = time.monotonic()
    for piece in sets.pieces(rank + done * world, world):
        progress("ranking", done * mine // total, mine)
        if stop():
            work.save(done, kept)
            return False
        kept.offer(scored(piece))
        done += 1
        if time.monotonic() - saved > SAVED_EVERY:
            work.save(done, kept)
            saved = time.monotonic()
    work.save(done, kept, finished=True)
    return True


def trial_seconds(sets: GeneSets, numbers: range, score: Callable[[Piece], None]) -> float:
    """Return how long the numbered pieces will take, by a trial of some; 0 for few pieces.

    Bounds improve with every piece, so only the second half of the trial counts.
    """
    times: list[float] = []
    n = min(TRIED, len(numbers) // SHARE_TRIED)
    for place in np.random.default_rng(0).integers(len(numbers), size=n).tolist() if n else ():
        if sum(times) > TRIAL_S:
            break
        began = time.perf_counter()
        score(next(sets.pieces(numbers[place], 1)))
        times.append(time.perf_counter() - began)
    return float(np.mean(times[len(times) // 2 :])) * len(numbers) if times else 0.0


def kept_of(subject: RequestOnRuns) -> Kept:
    """Return what a ranking keeps, without any set yet."""
    request = subject.request
    limits = {end: request.limit(end) for end in request.ends}
    return Kept(max(subject.sets.sizes), limits, request.top)


def _write(subject: RequestOnRuns, work: Work, out: Path) -> Ranking:
    kept = kept_of(subject)
    for rank in range(work.world):
        work.load(kept, rank)
    found = [kept.rows(end) for end in kept.bounds]
    if len(found) == 2 and subject.request.top is not None:
        found = at_one_end_only(*found)
    evidence, every = Evidence(subject.cell), Scored.join(found)
    ends = [end for end, rows in zip(kept.bounds, found, strict=True) for _ in rows.score]
    ranks = np.concatenate([np.arange(1, len(rows.score) + 1) for rows in found])
    counts = {"genes": len(subject.genes), "sets": subject.sets.n_sets, "rows": len(ends)}
    counts |= {name or "listed": ends.count(name) for name in (LOWEST, HIGHEST, None)}
    about: dict[str, Any] = {
        "title": title(subject),
        "sentences": sentences(subject, counts),
        "counts": counts,
        "identity": subject.identity,
        "request": subject.request.to_json(),
        "runs": [asdict(run) for run in subject.runs],
        "relations": list(subject.cell.relations),
    }
    cuts = [slice(at, at + ROWS_PER_GROUP) for at in range(0, len(ends), ROWS_PER_GROUP)]
    tables = (_table(subject, evidence, ends[cut], ranks[cut], every.take(cut)) for cut in cuts)
    write_ranking(out, tables, about)
    return Ranking.read(out)


def _table(
    subject: RequestOnRuns,
    evidence: Evidence,
    ends: list[str | None],
    ranks: Ints,
    found: Scored,
) -> pa.Table:
    genes, sizes = subject.cell.genes, (found.sets >= 0).sum(axis=1)
    systematic, names = np.array(genes.systematic), np.array(gene_texts(genes))
    order, tables = np.argsort(sizes, kind="stable"), [SCHEMA.empty_table()]
    for rows in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1) if len(order) else ():
        sets = found.sets[rows, -sizes[rows[0]] :]
        linked, measured = subject.linkage.of(sets), subject.statuses.measured(sets)
        columns = {
            "end": [ends[row] for row in rows],
            "rank": ranks[rows],
            "genes": systematic[sets].tolist(),
            "names": names[sets].tolist(),
            "score": found.score[rows],
            "spread": pa.array(found.spread[rows], from_pandas=True),
            "status": np.array(STATUSES)[subject.statuses.of(sets)],
            "measured": pa.array(measured, from_pandas=True),
            "linked": pa.array(linked == LINKED, mask=linked == UNKNOWN),
            **evidence.columns(sets),
        }
        tables.append(pa.Table.from_pydict(columns, SCHEMA))
    return pa.concat_tables(tables).take(np.argsort(order))
