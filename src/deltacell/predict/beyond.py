"""All sets beyond a score, more than memory holds: sorted parts on the disk, read as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from deltacell.predict.kept import in_order, joined, keys, no_limit, no_sets, taken, within
from deltacell.predict.ranking_file import HIGHEST
from deltacell.predict.scored_file import batches, write_scored
from deltacell.predict.scorer import Scored

HELD = 1_000_000
"""Rows that are held in memory before they become a part."""


class Beyond:
    """All sets of one end whose score reaches a limit.

    Parameters
    ----------
    name
        ``lowest``, ``highest``, or None for all sets from the lowest score up.
    limit
        The score that they must reach; none where not given.
    width
        Genes of the largest set.
    folder
        Where parts are put.
    prefix
        How their names begin.
    most
        Rows to hold before they become a part.
    cautious
        As in `kept.keys`.
    """

    def __init__(
        self,
        name: str | None,
        width: int,
        folder: Path,
        prefix: str,
        *,
        limit: float | None = None,
        most: int = HELD,
        cautious: bool = False,
    ) -> None:
        self.name = name
        self._cautious = cautious
        self.parts: list[str] = []
        self._limit = no_limit(name) if limit is None else limit
        self._folder, self._prefix, self._most = folder, prefix, most
        self._width = width
        self._pieces: list[Scored] = []
        self._n_held = 0

    @property
    def bound(self) -> float:
        """The limit."""
        return self._limit

    def offer(self, found: Scored) -> None:
        """Keep what reaches the limit; every set is offered once."""
        key = keys(self.name, found, cautious=self._cautious)
        wanted = within(self.name, key, self._limit)
        if not wanted.any():
            return
        self._pieces.append(taken(found, wanted))
        self._n_held += len(self._pieces[-1].score)
        if self._n_held >= self._most:
            part = f"{self._prefix}-{len(self.parts):05d}.arrow"
            write_scored(self._folder / part, self._sorted())
            self.parts.append(part)
            self._pieces, self._n_held = [], 0

    def held(self) -> Scored:
        """Return the rows that are in no part yet."""
        return joined([no_sets(self._width), *self._pieces])

    def restore(self, held: Scored, parts: Sequence[str]) -> None:
        """Be as one was that held these."""
        self._pieces, self._n_held, self.parts = [held], len(held.score), list(parts)

    def rows(self) -> Iterator[Scored]:
        """Return all rows in order, in pieces; of every part no more is read than is needed."""
        sources = [batches(self._folder / part) for part in self.parts]
        sources.append(iter([self._sorted()]))
        yield from merged(self.name, sources, cautious=self._cautious)

    def _sorted(self) -> Scored:
        held = self.held()
        return taken(held, in_order(self.name, held, cautious=self._cautious))


def merged(
    name: str | None, sources: Sequence[Iterator[Scored]], *, cautious: bool
) -> Iterator[Scored]:
    """Return rows in the order of an end, out of several sources that are each in that order.

    Parameters
    ----------
    name
        Of the end.
    sources
        Pieces in order. A set that several have is given once.
    cautious
        As in `kept.keys`.
    """
    heads = [(source, piece) for source in sources if (piece := _next(source)) is not None]
    while heads:
        ends = joined([taken(piece, np.array([-1])) for _, piece in heads])
        # No row that is still to be read comes before the earliest of the last ones that were.
        last = taken(ends, in_order(name, ends, cautious=cautious)[:1])
        ready, rest = [], []
        for source, piece in heads:
            n = _up_to(name, piece, last, cautious=cautious)
            ready.append(taken(piece, np.arange(n)))
            left = taken(piece, np.arange(n, len(piece.score))) if n < len(piece.score) else None
            left = _next(source) if left is None else left
            if left is not None:
                rest.append((source, left))
        first = joined(ready)
        yield taken(first, in_order(name, first, cautious=cautious))
        heads = rest


def _next(source: Iterator[Scored]) -> Scored | None:
    """Return the next piece that is not empty."""
    return next((piece for piece in source if len(piece.score)), None)


def _up_to(name: str | None, piece: Scored, last: Scored, *, cautious: bool) -> int:
    """Return how many rows of a piece in order come before a row, or are that row."""
    sign = -1 if name == HIGHEST else 1
    key = sign * keys(name, piece, cautious=cautious)
    bound = sign * keys(name, last, cautious=cautious)[0]
    before, ties = np.searchsorted(key, bound, "left"), np.searchsorted(key, bound, "right")
    equal = piece.sets[before:ties].tolist()
    row = last.sets[0].tolist()
    return int(before) + sum(1 for genes in equal if genes <= row)
