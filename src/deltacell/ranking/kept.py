"""The sets that a ranking keeps while it scores all of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deltacell.base.arrays import Bools, Ints
from deltacell.base.errors import InputError
from deltacell.ranking.gene_sets import Scored
from deltacell.ranking.ranking_file import HIGHEST

MOST_ROWS = 100_000_000  # kept without --top; they are held in memory


class Kept:
    """The sets to keep of the ends ``lowest`` and ``highest``, or of None, which is ascending.

    Each end keeps its first ``top`` sets, or all that reach its limit.
    """

    def __init__(
        self,
        width: int,
        limits: Mapping[str | None, float | None],
        top: int | None = None,
    ) -> None:
        self.top = top
        # The score of the last set if an end is full, otherwise its limit.
        self.bounds = {end: -np.inf if end == HIGHEST else np.inf for end in limits}
        self.bounds |= {end: limit for end, limit in limits.items() if limit is not None}
        self._pieces = [Scored.none(width)]
        self._n_held = 0

    @property
    def above(self) -> float:
        """The score that a set has to reach to be among the highest; inf if none are kept."""
        return self.bounds.get(HIGHEST, np.inf)

    @property
    def below(self) -> float:
        """The score that a set may not exceed to be among the lowest; -inf if none are kept."""
        others = [bound for end, bound in self.bounds.items() if end != HIGHEST]
        return max(others, default=-np.inf)

    def offer(self, scored: Scored) -> None:
        """Keep the sets that reach a bound."""
        is_wanted = np.any([self._reaches(end, scored) for end in self.bounds], axis=0)
        if not is_wanted.any():
            return
        self._pieces.append(scored.take(is_wanted))
        self._n_held += int(is_wanted.sum())
        if self.top is not None:
            self._drop_beyond_top(self.top)
        elif self._n_held > MOST_ROWS:
            message = f"more than {MOST_ROWS:,} sets reach the limit; use --top"
            raise InputError(message, code="too-many-rows")

    def held(self) -> Scored:
        """Return the sets that are kept of any end, in no order and possibly repeated."""
        return Scored.join(self._pieces)

    def rows(self, end: str | None) -> Scored:
        """Return the sets of an end, each once, the most extreme first; ties are in gene order."""
        held = self.held()
        candidates = held.take(self._reaches(end, held))
        ordered = candidates.take(_ranking_order(candidates, is_descending=end == HIGHEST))
        distinct = ordered.take(_differs_from_previous(ordered.sets))
        return distinct.take(slice(self.top))

    def _drop_beyond_top(self, top: int) -> None:
        rows = {end: self.rows(end) for end in self.bounds}
        self._pieces = list(rows.values())
        for end, scored in rows.items():
            if len(scored.score) == top:
                self.bounds[end] = float(scored.score[-1])

    def _reaches(self, end: str | None, scored: Scored) -> Bools:
        bound = self.bounds[end]
        return scored.score >= bound if end == HIGHEST else scored.score <= bound


def at_one_end_only(lowest: Scored, highest: Scored) -> list[Scored]:
    """Return both ends of a ranking, without the sets that stand at the other end.

    In a short ranking a set can be among the lowest and among the highest. It stays where its rank
    is smaller; with equal ranks it stays among the lowest.
    """
    rank_low = _rank_by_set(lowest)
    rank_high = _rank_by_set(highest)
    stays_low = [s not in rank_high or rank <= rank_high[s] for s, rank in rank_low.items()]
    stays_high = [s not in rank_low or rank < rank_low[s] for s, rank in rank_high.items()]
    return [lowest.take(np.array(stays_low, bool)), highest.take(np.array(stays_high, bool))]


def _rank_by_set(scored: Scored) -> dict[tuple[int, ...], int]:
    return {tuple(genes): rank for rank, genes in enumerate(scored.sets.tolist())}


def _ranking_order(scored: Scored, *, is_descending: bool) -> Ints:
    """Return the rows by score, and rows of equal score by their genes."""
    score = -scored.score if is_descending else scored.score
    genes_last_first = scored.sets.T[::-1]  # np.lexsort sorts by its last key first
    return np.lexsort((*genes_last_first, score))


def _differs_from_previous(rows: Ints) -> Bools:
    """Return which rows of a matrix are not equal to the row above."""
    differs = np.ones(len(rows), dtype=bool)
    differs[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return differs
