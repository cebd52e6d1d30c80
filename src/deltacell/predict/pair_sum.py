"""Scores of a block that are sums over the pairs of a set, and which of them come near an end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch

ROUNDING = 2.0**-22
"""Share of its numbers that single precision may lose in an addition or a comparison, fourfold."""


class PairSum(NamedTuple):
    """``sum over a < b of tables[a, b]``, within ``within`` of the scores of a block's sets.

    Parameters
    ----------
    tables
        One for each two axes, in the order of `itertools.combinations`, float32 [len, len].
    within
        What the sums may be away from the scores.
    """

    tables: tuple[torch.Tensor, ...]
    within: float

    @classmethod
    def mean(cls, sums: Sequence[PairSum]) -> PairSum:
        """Return the mean of several.

        What they lose in rounding is a share of their own numbers, which may cancel in the mean.
        """
        if len(sums) == 1:
            return sums[0]
        each = zip(*(one.tables for one in sums), strict=True)
        tables = tuple(torch.stack(of_axes).mean(0) for of_axes in each)
        size = sum(float(table.abs().max()) for one in sums for table in one.tables)
        lost = ROUNDING * (len(sums) + 1) * size
        return cls(tables, (sum(one.within for one in sums) + lost) / len(sums))

    def near(self, shared: Sequence[bool], above: float, below: float) -> torch.Tensor:
        """Return the places [m, size], in order, of sets that may score ``above`` or ``below``.

        Parameters
        ----------
        shared
            Whether each axis after the first is the one before it; then places ascend.
        above, below
            Of the scores wanted, see `Scorer.candidates`.
        """
        size = len(shared) + 1
        ends = [(float(table.min()), float(table.max())) for table in self.tables]
        lowest, highest = (sum(end) for end in zip(*ends, strict=True))
        largest = self.within + sum(max(-low, high) for low, high in ends)
        slack = self.within + ROUNDING * (len(ends) + 1) * largest
        above, below = above - slack, below + slack
        if highest < above and lowest > below:
            return self.tables[0].new_empty((0, size), dtype=torch.int64)
        pairs = combinations(range(size), 2)
        places = _near(dict(zip(pairs, self.tables, strict=True)), above, below)
        for axis, same in enumerate(shared):
            if same:
                places = places[places[:, axis] < places[:, axis + 1]]
        return places


def may_reach(
    lowest: torch.Tensor, highest: torch.Tensor, above: float, below: float
) -> torch.Tensor:
    """Return which ranges of scores may come to ``above`` or more, or ``below`` or less.

    One that is no number may, so that its sets are scored and the error is seen.

    Parameters
    ----------
    lowest, highest
        The ends of each range.
    above, below
        Of the scores wanted, see `Scorer.candidates`.
    """
    return ~((highest < above) & (lowest > below))


def _near(tables: dict[tuple[int, int], torch.Tensor], above: float, below: float) -> torch.Tensor:
    size = max(pair[1] for pair in tables) + 1
    if size == 2:
        only = tables[0, 1]
        return may_reach(only, only, above, below).nonzero()
    if size == 3:
        return _near_of_three(tables[0, 1], tables[0, 2], tables[1, 2], above, below)
    found = []
    for first in range(len(tables[0, 1])):
        # With its gene given, what the first axis adds is a number for each gene of the others.
        rest = {
            (a - 1, b - 1): table + tables[0, b][first] if a == 1 else table
            for (a, b), table in tables.items()
            if a > 0
        }
        rest[0, 1] = rest[0, 1] + tables[0, 1][first].unsqueeze(1)
        places = _near(rest, above, below)
        found.append(torch.nn.functional.pad(places, (1, 0), value=first))
    return torch.cat(found)


def _near_of_three(
    ab: torch.Tensor, ac: torch.Tensor, bc: torch.Tensor, above: float, below: float
) -> torch.Tensor:
    # The third axis comes first, because the ends over the first axis are found fastest.
    without_ab = ac.t().unsqueeze(2) + bc.t().unsqueeze(1)
    lowest, highest = without_ab.amin(0) + ab, without_ab.amax(0) + ab
    first, second = may_reach(lowest, highest, above, below).nonzero(as_tuple=True)
    rows = without_ab[:, first, second].t() + ab[first, second].unsqueeze(1)
    row, third = may_reach(rows, rows, above, below).nonzero(as_tuple=True)
    return torch.stack([first[row], second[row], third], 1)
