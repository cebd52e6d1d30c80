"""Going through gene sets: block by block, stopped and resumed, by one process or several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deltacell.arrays import Ints
from deltacell.errors import InputError
from deltacell.predict.gene_sets import Block, GeneSets, Piece
from deltacell.predict.kept import Kept, Top, merged, padded, taken
from deltacell.predict.ranking import Ranking, read_about, sealed_rows, write_ranking
from deltacell.predict.ranking_rows import Rows, how_many, sentences_of, title_of
from deltacell.predict.request import differences
from deltacell.predict.scorers import Scored, Scorer
from deltacell.predict.subject import Subject
from deltacell.predict.work import Ranks, Work

SAVED_EVERY = 10.0
"""Seconds between saves."""

_TOLD_AFTER, _TOLD_EVERY = 60.0, 600.0
_WORTH_TELLING = 5.0
_STOPPING = "Ctrl-C stops it, and the same command goes on."


def rank(
    subject: Subject,
    scorer: Scorer,
    out: Path,
    *,
    ranks: Ranks | None = None,
    overwrite: bool = False,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    tell: Callable[[str], None] = lambda sentence: None,
    save_every: float | None = None,
) -> Ranking | None:
    """Rank gene sets into a file; None where it was stopped, or another process writes the file.

    The work so far is beside the file, in ``OUT.partial``, until that is written; the same request
    goes on from there, and the file is the same, byte for byte, as if nothing had stopped it. Where
    the file is there already, it is what the first process returns.

    Parameters
    ----------
    subject
        What is ranked.
    scorer
        Gives the scores.
    out
        The file.
    ranks
        Which of how many processes this is; the only one where not given.
    overwrite
        Whether what is there of another request is given up, and a file that is there is made
        anew.
    stop
        Asked after every block whether to stop.
    progress
        Told a label, what is done, and what there is in all.
    tell
        Told, in sentences, how much there is to do and how long it will take.
    save_every
        Seconds between saves; 10 where not given.
    """
    save_every = SAVED_EVERY if save_every is None else save_every
    ranks = Ranks() if ranks is None else ranks
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
        way = _Way(subject, scorer, work, stop, progress, tell, save_every)
        if not way.gone() or not ranks.is_first:
            return None
        while work.waits_for():
            if stop():
                return None
            progress("waiting for the other processes", 0, 0)
            time.sleep(0.2)
        progress("writing", 0, 0)
        _write(subject, work, out)
        work.remove()
    return Ranking.read(out)


class _Way:
    """The way of one process through its blocks."""

    def __init__(
        self,
        subject: Subject,
        scorer: Scorer,
        work: Work,
        stop: Callable[[], bool],
        progress: Callable[[str, int, int], None],
        tell: Callable[[str], None],
        save_every: float,
    ) -> None:
        self._subject, self._scorer, self._work = subject, scorer, work
        self._stop, self._progress, self._tell = stop, progress, tell
        self._save_every = save_every
        self._total = len(range(work.ranks.rank, subject.sets.n_pieces, work.ranks.world))

    def gone(self) -> bool:
        """Go through all blocks that are left; return whether it came to the end."""
        ranks, kept = self._work.ranks, self._subject.kept(self._work)
        done = self._work.load(kept)
        self._progress(*self._label(done))
        if done == self._total and self._work.has_finished:
            return True
        if self._total and not done and self._scorer.prunes:
            for some in first_sets(self._subject.sets, kept):
                if self._stop():
                    break
                kept.offer(self._scored(some, kept))
        self._tell_how_much(done, kept)
        saved = time.monotonic()
        estimate = _Estimate(self._total)
        pieces = self._subject.sets.pieces(ranks.rank + done * ranks.world, ranks.world)
        for piece in pieces:
            if self._stop():
                self._work.save(done, kept)
                return False
            kept.offer(self._scored(piece, kept))
            done += 1
            now = time.monotonic()
            self._progress(*self._label(done))
            if estimate.is_due(done, now):
                self._tell(self._left(estimate.seconds_a_piece, done))
            if now - saved > self._save_every:
                self._work.save(done, kept)
                saved = time.monotonic()
        self._work.save(done, kept, finished=True)
        return True

    def _scored(self, piece: Piece, kept: Kept) -> Scored:
        if isinstance(piece, Block):
            found = self._scorer.candidates(piece, kept.above, kept.below)
        else:
            found = self._scorer.score(piece)
        if not np.isfinite(found.score).all():
            return found
        found = taken(found, (found.score >= kept.above) | (found.score <= kept.below))
        ascending = padded(found, found.sets.shape[1])
        return padded(self._subject.chosen(ascending), self._subject.width)

    def _tell_how_much(self, done: int, kept: Kept) -> None:
        """Say how much there is to do, and how long that will take."""
        said = f"{how_many(self._subject)} to score"
        sets, ranks = self._subject.sets, self._work.ranks
        if ranks.world > 1:
            said += f"; this is process {ranks.rank + 1} of {ranks.world}"
        if done:
            said += f"; going on, {done / self._total:.1%} was done before"
        seconds = None
        if not self._stop():
            seconds = seconds_of(
                sets,
                range(sets.n_pieces)[ranks.rank + done * ranks.world :: ranks.world],
                prunes=self._scorer.prunes,
                score=lambda piece: self._scored(piece, kept),
            )
        if seconds is None or seconds < _WORTH_TELLING:
            self._tell(f"{said}.")
        else:
            self._tell(f"{said}: about {duration(seconds)}. {_STOPPING}")

    def _left(self, seconds_a_piece: float, done: int) -> str:
        """Return how long what is left will take."""
        sets = self._subject.sets
        rate = sets.n_sets / sets.n_pieces / seconds_a_piece
        left = duration(seconds_a_piece * (self._total - done))
        each = " in each process" if self._work.ranks.world > 1 else ""
        return (
            f"{done / self._total:.1%} is done, about {left} to go at {rate:,.0f} sets a "
            f"second{each}. {_STOPPING}"
        )

    def _label(self, done: int) -> tuple[str, int, int]:
        mine = self._subject.sets.n_sets // self._work.ranks.world
        return "ranking", done * mine // max(1, self._total), mine


class _Estimate:
    """How long a piece takes, by the latest ones: bounds become better, and others' work comes."""

    def __init__(self, total: int) -> None:
        self.seconds_a_piece = 0.0
        self._total = total
        self._due = time.monotonic() + _TOLD_AFTER
        self._since: tuple[int, float] | None = None

    def is_due(self, done: int, now: float) -> bool:
        """Return whether there is something to tell, after so many pieces."""
        if self._since is None and now > self._due - _TOLD_AFTER / 2:
            self._since = (done, now)
        if self._since is None or now < self._due or done == self._since[0]:
            return False
        pieces, began = self._since
        self.seconds_a_piece = (now - began) / (done - pieces)
        self._since, self._due = (done, now), now + _TOLD_EVERY
        return self.seconds_a_piece * (self._total - done) > _WORTH_TELLING


def duration(seconds: float) -> str:
    """Return a time as a person says it: ``40 seconds``, ``3 minutes``, ``5 hours``, ``2 days``."""
    for length, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{max(2, round(seconds))} seconds"


def _finished(subject: Subject, out: Path, *, overwrite: bool) -> Ranking | None:
    """Return the ranking that was asked for, where it is there already."""
    if not out.exists() or overwrite:
        return None
    about = read_about(out)
    changed = differences(about["identity"], subject.identity)
    if changed:
        raise InputError(
            f"the ranking of another request is here: {'; '.join(changed[:4])}",
            where=out,
            fix="Name another file with --out, or replace this one with --overwrite.",
        )
    for _ in sealed_rows(out):
        # Reading compares its checksums.
        pass
    return Ranking(out, about)


def _write(subject: Subject, work: Work, out: Path) -> None:
    """Put what all processes kept together into the file."""
    world = work.ranks.world
    kept = [subject.kept(work, Ranks(rank, world)) for rank in range(world)]
    work.gather([one.ends for one in kept])
    counts = {"genes": len(subject.genes), "sets": subject.sets.n_sets}
    counts |= {"rows": 0, "lowest": 0, "highest": 0, "listed": 0}
    rows = Rows(subject)

    def tables() -> Iterator[pa.Table]:
        found: list[tuple[str | None, Iterator[Scored]]] = []
        for name, ends in zip(
            subject.request.ends, zip(*(one.ends for one in kept), strict=True), strict=True
        ):
            in_order = merged(name, [end.rows() for end in ends], cautious=subject.request.cautious)
            found.append((name, _first(in_order, subject.request.most)))
        if len(found) == 2 and subject.request.most is not None:
            found = _apart(found)
        for name, pieces in found:
            for table in rows.tables(name, pieces):
                counts[name or "listed"] += table.num_rows
                counts["rows"] += table.num_rows
                yield table

    def about() -> dict[str, Any]:
        return {
            "title": title_of(subject),
            "sentences": sentences_of(subject, counts),
            "request": subject.request.to_json(),
            "identity": dict(subject.identity),
            "runs": [dict(run) for run in subject.runs],
            "counts": counts,
            "relations": list(subject.cell.relations),
        }

    write_ranking(out, tables(), about)


def _apart(
    ends: list[tuple[str | None, Iterator[Scored]]],
) -> list[tuple[str | None, Iterator[Scored]]]:
    """Leave a set that is in both ends in the one where it comes sooner; in the first if level."""
    whole = [list(pieces) for _, pieces in ends]
    places = [
        {one: i for i, one in enumerate(tuple(row) for p in pieces for row in p.sets.tolist())}
        for pieces in whole
    ]
    left: list[tuple[str | None, Iterator[Scored]]] = []
    for end, (name, _) in enumerate(ends):
        mine, other = places[end], places[1 - end]
        kept = []
        for piece in whole[end]:
            sets = [tuple(row) for row in piece.sets.tolist()]
            last = len(other)
            # The first end has what is level.
            stays = [mine[one] < other.get(one, last + mine[one] + 1) + (end == 0) for one in sets]
            kept.append(taken(piece, np.flatnonzero(stays)))
        left.append((name, iter(kept)))
    return left


def _first(pieces: Iterator[Scored], most: int | None) -> Iterator[Scored]:
    """Return the first so many rows of pieces."""
    left = most
    for piece in pieces:
        if left is not None:
            piece = taken(piece, np.arange(min(left, len(piece.score))))
            left -= len(piece.score)
        yield piece
        if left == 0:
            return


_DRAWN, _SHARE_DRAWN = 10_000, 400
_ROUNDS, _BEST = 12, 256
_VARIED, _SHARE_VARIED = 2_000, 4_000
_PLACES, _BLOCKS_A_PLACE, _SHARE_TRIED = 32, 2, 20
_TRIAL_S = 2.0
_FEW, _FEW_S = 4, 0.2


def first_sets(sets: GeneSets, kept: Kept) -> Iterator[Ints]:
    """Return sets to score first, so that the bounds are good from the start.

    Some that are drawn, and then, round by round, some that differ by one gene from the best so
    far. They are scored again where their turn comes, and count once.

    Parameters
    ----------
    sets
        All that will be gone through.
    kept
        What is kept of them; it is looked at between the rounds.
    """
    ends = [end for end in kept.ends if isinstance(end, Top)]
    drawn = sets.drawn(min(_DRAWN, sets.n_sets // _SHARE_DRAWN), seed=0)
    if not ends or not len(drawn):
        return
    yield drawn
    each = min(_VARIED, sets.n_sets // _SHARE_VARIED)
    for number in range(_ROUNDS if each else 0):
        for end in ends:
            varied = sets.varied(end.held().sets[:_BEST], each, seed=number)
            if len(varied):
                yield varied


def seconds_of(
    sets: GeneSets, numbers: range, *, prunes: bool, score: Callable[[Piece], object]
) -> float | None:
    """Return how long some pieces will take, by trying a few of them; None where they are few.

    Parameters
    ----------
    sets
        That the pieces are of.
    numbers
        Of the pieces.
    prunes
        Whether blocks take less time than their sets would.
    score
        Scores a piece as it will be.
    """
    if not numbers:
        return None
    middle = next(sets.pieces(numbers[len(numbers) // 2], 1))
    if prunes and isinstance(middle, Block):
        return _seconds_of_blocks(sets, numbers, score)
    rows = middle.sets() if isinstance(middle, Block) else middle
    if not len(rows):
        return None
    n = min(_FEW, len(rows))
    # The first of all is slower than any after it.
    score(rows[:1])
    while (took := _timed(score, rows[:n])) < _FEW_S and n < len(rows):
        n = min(4 * n, len(rows))
    return took / n * sets.n_sets * len(numbers) / sets.n_pieces


def _seconds_of_blocks(
    sets: GeneSets, numbers: range, score: Callable[[Piece], object]
) -> float | None:
    """Return how long blocks will take, by the second time that some from here and there do."""
    places = min(_PLACES, len(numbers) // _SHARE_TRIED)
    if not places:
        return None
    rng = np.random.default_rng(0)
    began, took, n = time.perf_counter(), 0.0, 0
    for place in rng.integers(len(numbers) - _BLOCKS_A_PLACE, size=places):
        for block in islice(sets.pieces(numbers[int(place)], numbers.step), _BLOCKS_A_PLACE):
            # What is worked out for two of its axes serves many blocks; it is there the next time.
            score(block)
            took, n = took + _timed(score, block), n + 1
            if time.perf_counter() - began > _TRIAL_S:
                return took / n * len(numbers)
    return took / n * len(numbers)


def _timed(score: Callable[[Piece], object], piece: Piece) -> float:
    began = time.perf_counter()
    score(piece)
    return time.perf_counter() - began
