"""What is kept of the sets that were scored: the ends of the ranking, whatever order they came in.

Sets are rows of ascending genes, padded in front with -1 where they are of several sizes. At the
lower end a lower score comes first, at the upper end a higher one; sets of equal score come in the
order of their genes. A set that is offered twice counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from deltacell.arrays import Bools, Ints
from deltacell.errors import InputError
from deltacell.predict.ranking_file import HIGHEST
from deltacell.predict.scorer import Floats, Scored


class End(Protocol):
    """One end of a ranking.

    Parameters
    ----------
    name
        ``lowest``, ``highest``, or None where all sets are listed from the lowest score up.
    parts
        Names of the files that it has put rows into.
    """

    name: str | None
    parts: list[str]

    @property
    def bound(self) -> float:
        """The score that a set must have at least, at this end, to be kept still."""

    def offer(self, found: Scored) -> None:
        """Keep what is to be kept of some sets."""

    def held(self) -> Scored:
        """Return the rows that are in memory."""

    def restore(self, held: Scored, parts: Sequence[str]) -> None:
        """Be as one was that held these."""

    def rows(self) -> Iterator[Scored]:
        """Return all rows in order, in pieces."""


class Kept:
    """The ends of a ranking together.

    Parameters
    ----------
    ends
        One of each name, at most.
    """

    def __init__(self, ends: Sequence[End]) -> None:
        self.ends = tuple(ends)

    @property
    def above(self) -> float:
        """The least score that is wanted at the upper end; inf where none is."""
        return max((end.bound for end in self.ends if end.name == HIGHEST), default=np.inf)

    @property
    def below(self) -> float:
        """The highest score that is wanted at the lower end; -inf where none is."""
        return min((end.bound for end in self.ends if end.name != HIGHEST), default=-np.inf)

    def offer(self, found: Scored) -> None:
        """Keep what is to be kept of some sets; a score that is not finite is an error."""
        finite = np.isfinite(found.score)
        if not finite.all():
            raise InputError(
                f"the score of {int((~finite).sum()):,} of {len(finite):,} gene sets is not a "
                "finite number",
                fix="The weights of a run are damaged or its training went astray: see its "
                "metrics.csv, and try --weights last or another run.",
            )
        for end in self.ends:
            end.offer(found)


class Top:
    """The first so many sets of one end.

    Parameters
    ----------
    name
        ``lowest`` or ``highest``.
    most
        How many.
    limit
        The score that they must reach; none where not given.
    width
        Genes of the largest set.
    cautious
        As in `keys`.
    """

    def __init__(
        self,
        name: str | None,
        most: int,
        width: int,
        *,
        limit: float | None = None,
        cautious: bool = False,
    ) -> None:
        self.name = name
        self._cautious = cautious
        self.parts: list[str] = []
        self._most = most
        self._limit = no_limit(name) if limit is None else limit
        self._held = no_sets(width)

    @property
    def bound(self) -> float:
        """The key of the last that is kept where there are as many as wanted; the limit else."""
        if len(self._held.score) < self._most:
            return self._limit
        # It came through the limit, so it is nearer to the end.
        return float(keys(self.name, self._held, cautious=self._cautious)[-1])

    def offer(self, found: Scored) -> None:
        """Keep what is to be kept of some sets."""
        key = keys(self.name, found, cautious=self._cautious)
        wanted = within(self.name, key, self.bound)
        if wanted.any():
            both = joined([self._held, taken(found, wanted)])
            order = in_order(self.name, both, cautious=self._cautious)
            self._held = taken(both, order[: self._most])

    def held(self) -> Scored:
        """Return all rows."""
        return self._held

    def restore(self, held: Scored, parts: Sequence[str]) -> None:
        """Be as one was that held these."""
        self._held, self.parts = held, list(parts)

    def rows(self) -> Iterator[Scored]:
        """Return all rows in order."""
        yield self._held


def no_limit(name: str | None) -> float:
    """Return the score that every set reaches at an end."""
    return -np.inf if name == HIGHEST else np.inf


def keys(name: str | None, found: Scored, *, cautious: bool) -> Floats:
    """Return what sets are put in order by: their scores, or less extreme ones.

    The cautious key is never nearer to its end than the score, so a set whose score does not reach
    a bound does not reach it by its key either.

    Parameters
    ----------
    name
        Of the end.
    found
        Sets with a spread, where one is cautious.
    cautious
        Whether to take the score less the spread at the upper end, and plus it at the lower one.
    """
    if not cautious:
        return found.score
    return found.score - found.spread if name == HIGHEST else found.score + found.spread


def within(name: str | None, key: Floats, bound: float) -> Bools:
    """Return which keys reach a bound at an end."""
    return key >= bound if name == HIGHEST else key <= bound


def in_order(name: str | None, found: Scored, *, cautious: bool) -> Ints:
    """Return the rows of distinct sets in the order of an end; see `keys`."""
    key = keys(name, found, cautious=cautious)
    order = np.lexsort((*found.sets.T[::-1], -key if name == HIGHEST else key))
    ordered = found.sets[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    rows: Ints = order[new]
    return rows


def no_sets(width: int) -> Scored:
    """Return no sets."""
    nothing = np.zeros(0, dtype=np.float32)
    return Scored(np.zeros((0, width), dtype=np.int64), nothing, nothing)


def joined(pieces: Sequence[Scored]) -> Scored:
    """Return several pieces as one."""
    sets, score, spread = zip(*pieces, strict=True)
    return Scored(np.concatenate(sets), np.concatenate(score), np.concatenate(spread))


def taken(found: Scored, rows: np.ndarray) -> Scored:
    """Return some rows, by place or by mask."""
    return Scored(found.sets[rows], found.score[rows], found.spread[rows])


def padded(found: Scored, width: int) -> Scored:
    """Return sets with their genes ascending and padded in front with -1."""
    sets = np.full((len(found.sets), width), -1, dtype=np.int64)
    sets[:, width - found.sets.shape[1] :] = np.sort(found.sets, axis=1)
    return Scored(sets, found.score, found.spread)
