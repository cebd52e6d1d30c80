"""Scoring gene sets block by block into a ranking: resumable, by one process or several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.arrays import Ints, offsets_of
from deltacell.errors import InputError
from deltacell.predict.ensemble import Scorer
from deltacell.predict.gene_sets import Block, Combinations, GeneSets, Piece, Scored
from deltacell.predict.kept import End, Kept, Ranks, Work
from deltacell.predict.ranking_file import (
    SCHEMA,
    Ranking,
    differences,
    read_about,
    sealed_rows,
    write_ranking,
)
from deltacell.predict.request import Subject, gene_texts
from deltacell.predict.sentences import ranking_sentences, ranking_title, sets_text
from deltacell.predict.status import COLUMNS, LINKED, STATUSES, UNKNOWN, Evidence
from deltacell.words import Progress, duration_text

SAVED_EVERY = 10.0  # seconds between saves
TOLD_AFTER, TOLD_EVERY = 60.0, 600.0  # seconds between sentences on how long it will take
WORTH_TELLING = 5.0  # seconds
ROWS_AT_ONCE = 20_000
STOPPING = "Ctrl-C stops it; rerun the command to resume."
# What comes before the first block: shares are of all sets, or of all blocks.
DRAWN, SHARE_DRAWN = 10_000, 400
ROUNDS, BEST, VARIED, SHARE_VARIED = 12, 256, 2_000, 4_000
PLACES, BLOCKS_PER_PLACE, SHARE_TRIED = 32, 2, 20
TRIAL_S, FEW, FEW_S = 2.0, 4, 0.2


def rank_sets(
    subject: Subject,
    scorer: Scorer,
    out: Path,
    *,
    ranks: Ranks | None = None,
    overwrite: bool = False,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress = lambda label, done, total: None,
    tell: Callable[[str], None] = lambda sentence: None,
    save_every: float | None = None,
) -> Ranking | None:
    """Rank gene sets into a file; None where it was stopped, or another process writes the file.

    The work so far is beside the file, in ``OUT.partial``, until that is written. The same request
    resumes it, and the file is the same, byte for byte, as if nothing had stopped it. A file of
    the same request that exists already is what the first process returns. ``stop`` is called
    after every block, and ``tell`` with sentences on how long it will take.
    """
    ranks = ranks or Ranks()
    there = _finished(subject, out, overwrite=overwrite)
    work = Work(out, subject.identity, ranks, overwrite=overwrite)
    if there is not None and not (ranks.is_first and work.folder.exists()):
        return there if ranks.is_first else None
    with work:
        if there is None and not overwrite:
            # The first process may have written it since.
            there = _finished(subject, out, overwrite=False)
        if there is not None:
            # A kill came between the last two steps, or this process comes after the last.
            work.remove()
            return there if ranks.is_first else None
        save_every = SAVED_EVERY if save_every is None else save_every
        done = _score_all(subject, scorer, work, stop, progress, tell, save_every)
        if not done or not ranks.is_first:
            return None
        while work.unfinished():
            if stop():
                return None
            progress("waiting for the other processes", 0, 0)
            time.sleep(0.2)
        progress("writing", 0, 0)
        _write(subject, work, out)
        work.remove()
    return Ranking.read(out)


def _finished(subject: Subject, out: Path, *, overwrite: bool) -> Ranking | None:
    """Return the ranking that was asked for, where it exists already."""
    if not out.exists() or overwrite:
        return None
    about = read_about(out)
    changed = differences(about["identity"], subject.identity)
    if changed:
        raise InputError(
            f"this is the ranking of another request: {'; '.join(changed[:4])}",
            code="other-request",
            where=out,
            fix="Choose another file with --out, or replace this one with --overwrite.",
        )
    for _ in sealed_rows(out):
        pass  # reading compares its checksums
    return Ranking(out, about)


def _score_all(
    subject: Subject,
    scorer: Scorer,
    work: Work,
    stop: Callable[[], bool],
    progress: Progress,
    tell: Callable[[str], None],
    save_every: float,
) -> bool:
    """Score all blocks of this process that are left; return whether it came to the end."""
    sets, ranks, kept = subject.sets, work.ranks, subject.kept(work)
    numbers = range(sets.n_pieces)[ranks.rank :: ranks.world]
    total, mine = len(numbers), sets.n_sets // ranks.world
    done = before = work.load(kept)

    def report() -> None:
        progress("ranking", done * mine // max(1, total), mine)

    def scored(piece: Piece) -> Scored:
        if isinstance(piece, Block):
            found = scorer.candidates(piece, kept.above, kept.below)
        else:
            found = scorer.score(piece)
        if not np.isfinite(found.score).all():
            return found
        found = found.take((found.score >= kept.above) | (found.score <= kept.below))
        return subject.select(found.padded(found.sets.shape[1])).padded(subject.width)

    report()
    if done == total and ranks.rank not in work.unfinished():
        return True
    if total and not done and scorer.prunes:
        for some in first_sets(sets, kept):
            if stop():
                break
            kept.offer(scored(some))
    said = f"{sets.n_sets:,} {sets_text(subject)} to score"
    if ranks.world > 1:
        said += f"; this is process {ranks.rank + 1} of {ranks.world}"
    if done:
        said += f"; resuming, {done / total:.1%} was done before"
    seconds = 0.0 if stop() else trial_seconds(sets, numbers[done:], scorer.prunes, scored)
    tell(
        f"{said}: about {duration_text(seconds)}. {STOPPING}"
        if seconds and seconds > WORTH_TELLING
        else f"{said}."
    )
    began = saved = time.monotonic()
    due = began + TOLD_AFTER
    for piece in sets.pieces(ranks.rank + done * ranks.world, ranks.world):
        if stop():
            work.save(done, kept)
            return False
        kept.offer(scored(piece))
        done += 1
        report()
        now = time.monotonic()
        if now > due:
            left = (now - began) / (done - before) * (total - done)
            tell(f"{done / total:.1%} is done, about {duration_text(left)} left. {STOPPING}")
            due = now + TOLD_EVERY
        if now - saved > save_every:
            work.save(done, kept)
            saved = time.monotonic()
    work.save(done, kept, finished=True)
    return True


def first_sets(sets: GeneSets, kept: Kept) -> Iterator[Ints]:
    """Yield sets to score first, so that the bounds are good from the start.

    Random ones, and then, round by round, some that differ by one gene from the best so far, which
    is looked up between the rounds. They are scored again in their turn, and count once.
    """
    ends = [end for end in kept.ends if end.top is not None]
    if not isinstance(sets, Combinations) or not ends:
        return
    drawn = sets.draw(min(DRAWN, sets.n_sets // SHARE_DRAWN), seed=0)
    if not len(drawn):
        return
    yield drawn
    each = min(VARIED, sets.n_sets // SHARE_VARIED)
    for number in range(ROUNDS if each else 0):
        for end in ends:
            varied = sets.vary(end.held().sets[:BEST], each, seed=number)
            if len(varied):
                yield varied


def trial_seconds(
    sets: GeneSets, numbers: range, prunes: bool, score: Callable[[Piece], object]
) -> float | None:
    """Return how long the pieces of some numbers will take, by a trial; None for a few blocks."""

    def timed(piece: Piece) -> float:
        began = time.perf_counter()
        score(piece)
        return time.perf_counter() - began

    if not numbers:
        return None
    from_middle: Iterator[Piece] = sets.pieces(numbers[len(numbers) // 2], 1)
    middle = next(from_middle)
    if not (prunes and isinstance(middle, Block)):
        rows = middle.sets() if isinstance(middle, Block) else middle
        if not len(rows):
            return None
        n = min(FEW, len(rows))
        score(rows[:1])  # the first of all is slower than any after it
        while (took := timed(rows[:n])) < FEW_S and n < len(rows):
            n = min(4 * n, len(rows))
        return took / n * sets.n_sets * len(numbers) / sets.n_pieces
    places = min(PLACES, len(numbers) // SHARE_TRIED)
    if not places:
        return None
    began = time.perf_counter()
    times: list[float] = []
    drawn = np.random.default_rng(0).integers(len(numbers) - BLOCKS_PER_PLACE, size=places)
    for place in drawn.tolist():
        blocks: Iterator[Piece] = sets.pieces(numbers[place], numbers.step)
        for block in islice(blocks, BLOCKS_PER_PLACE):
            # The second time counts: what is computed for two of its axes serves many blocks.
            score(block)
            times.append(timed(block))
            if time.perf_counter() - began > TRIAL_S:
                return sum(times) / len(times) * len(numbers)
    return sum(times) / len(times) * len(numbers)


def _write(subject: Subject, work: Work, out: Path) -> None:
    """Put what all processes kept together into the file."""
    each = [subject.kept(work, rank) for rank in range(work.ranks.world)]
    for rank, kept in enumerate(each):
        work.load(kept, rank)
    counts = {"genes": len(subject.genes), "sets": subject.sets.n_sets}
    counts |= {"rows": 0, "lowest": 0, "highest": 0, "listed": 0}

    def tables() -> Iterator[pa.Table]:
        most = subject.request.most
        found: list[tuple[End, Iterator[Scored]]] = []
        for ends in zip(*(kept.ends for kept in each), strict=True):
            found.append((ends[0], _first(ends[0].merge([end.rows() for end in ends]), most)))
        if len(found) == 2 and most is not None:
            found = _apart(found)
        to_table = _table_of(subject)
        for end, pieces in found:
            rank = 1
            for piece in pieces:
                for at in range(0, len(piece.score), ROWS_AT_ONCE):
                    table = to_table(end.name, rank, piece.take(slice(at, at + ROWS_AT_ONCE)))
                    counts[end.name or "listed"] += table.num_rows
                    counts["rows"] += table.num_rows
                    rank += table.num_rows
                    yield table

    def about() -> dict[str, Any]:
        return {
            "title": ranking_title(subject),
            "sentences": ranking_sentences(subject, counts),
            "request": subject.request.to_json(),
            "identity": dict(subject.identity),
            "runs": [dict(run) for run in subject.runs],
            "counts": counts,
            "relations": list(subject.cell.relations),
        }

    write_ranking(out, tables(), about)


def _first(pieces: Iterator[Scored], most: int | None) -> Iterator[Scored]:
    """Yield the first ``most`` rows of pieces."""
    left = most
    for piece in pieces:
        yield piece.take(slice(left))
        if left is not None:
            left -= min(left, len(piece.score))
            if not left:
                return


def _apart(ends: list[tuple[End, Iterator[Scored]]]) -> list[tuple[End, Iterator[Scored]]]:
    """Leave a set that is in both ends in the one where it comes sooner; in the first if level."""
    found = [list(pieces) for _, pieces in ends]
    sets = [[tuple(row) for piece in of for row in piece.sets.tolist()] for of in found]
    lowest, highest = ({one: i for i, one in enumerate(of)} for of in sets)
    stays = [
        [i <= highest.get(one, i) for i, one in enumerate(sets[0])],
        [i < lowest.get(one, i + 1) for i, one in enumerate(sets[1])],
    ]
    return [
        (end, iter([Scored.join(of).take(np.array(kept, dtype=bool))] if of else []))
        for (end, _), of, kept in zip(ends, found, stays, strict=True)
    ]


def _table_of(subject: Subject) -> Callable[[str | None, int, Scored], pa.Table]:
    """Return what makes tables with the columns of a ranking, of sets padded in front with -1."""
    evidence = Evidence(subject.cell)
    systematic = pa.array(subject.cell.genes.systematic, pa.string())
    names = pa.array(gene_texts(subject.cell.genes), pa.string())

    def table(end: str | None, rank: int, found: Scored) -> pa.Table:
        n, here = len(found.score), found.sets >= 0
        flat = pa.array(found.sets[here])
        sizes = here.sum(axis=1)
        offsets = pa.array(offsets_of(sizes), pa.int32())
        status, linked = np.zeros(n, dtype=np.int8), np.zeros(n, dtype=np.int8)
        measured = np.zeros(n, dtype=np.float32)
        known: dict[str, list[Any]] = {name: [None] * n for name in COLUMNS}
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            some = found.sets[rows, found.sets.shape[1] - size :]
            status[rows] = subject.statuses.of(some)
            measured[rows] = subject.statuses.measured(some)
            linked[rows] = subject.linkage.of(some)
            for name, values in evidence.columns(some).items():
                for row, value in zip(rows.tolist(), values, strict=True):
                    known[name][row] = value
        columns = {
            "end": pa.array([end] * n, pa.string()),
            "rank": pa.array(np.arange(rank, rank + n, dtype=np.int32)),
            "genes": pa.ListArray.from_arrays(offsets, systematic.take(flat)),
            "names": pa.ListArray.from_arrays(offsets, names.take(flat)),
            "score": pa.array(found.score),
            "spread": pa.array(found.spread, from_pandas=True),
            "status": pa.array(STATUSES, pa.string()).take(pa.array(status)),
            "measured": pa.array(measured, from_pandas=True),
            "linked": pa.array(linked == LINKED, pa.bool_(), mask=linked == UNKNOWN),
            **{name: pa.array(values, SCHEMA.field(name).type) for name, values in known.items()},
        }
        return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    return table
