"""Nodes of mutants: which rows of a tensor they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from deltacell.arrays import Ints
from deltacell.propagate.hop import Rows


@dataclass(frozen=True, eq=False)
class Places:
    """Some nodes of one kind in some mutants of a tile.

    The vectors of a tile of t mutants are one tensor [n * t, hidden], node by node.

    Parameters
    ----------
    at
        ``node * t + mutant``, ascending, int64 [m].
    nodes
        The node of each, int64 [m].
    """

    at: torch.Tensor
    nodes: torch.Tensor

    @classmethod
    def of(cls, at: Ints, t: int) -> Places:
        """Make them from positions on the host."""
        positions = torch.from_numpy(at)
        return cls(positions, positions if t == 1 else torch.from_numpy(at // t))

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, eq=False)
class Piece:
    """A few places: a slice of a list of them, or of all.

    Parameters
    ----------
    part
        The slice.
    at
        The places, where they are from a list.
    nodes
        Their nodes.
    """

    part: slice
    at: torch.Tensor | None
    nodes: Rows

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of x [n * t, width] at these places."""
        return x[self.part] if self.at is None else x.index_select(0, self.at)

    def add(self, x: torch.Tensor, rows: torch.Tensor) -> None:
        """Add to the rows of x at these places."""
        if self.at is None:
            x[self.part].add_(rows)
        else:
            x.index_add_(0, self.at, rows.to(x.dtype))

    def put(self, x: torch.Tensor, rows: torch.Tensor) -> None:
        """Set the rows of x at these places."""
        if self.at is None:
            x[self.part].copy_(rows)
        else:
            x.index_copy_(0, self.at, rows.to(x.dtype))


def pieces(
    places: Places | None, n: int, t: int, at_a_time: int | None, device: torch.device
) -> Iterator[Piece]:
    """Go through places, or through all, a few at a time and equally many each time.

    Parameters
    ----------
    places
        None is all.
    n
        How many rows there are in all.
    t
        How many mutants.
    at_a_time
        At most so many; None is no bound.
    device
        Of the rows.
    """
    length = n if places is None else len(places)
    for part in slices(length, at_a_time):
        if places is not None:
            yield Piece(part, places.at[part], places.nodes[part])
        elif t == 1:
            yield Piece(part, None, part)
        else:
            yield Piece(part, None, torch.arange(part.start, part.stop, device=device) // t)


def slices(n: int, at_a_time: int | None) -> list[slice]:
    """Return equal slices of n rows, none longer than `at_a_time`."""
    if n == 0:
        return []
    # Equal, so that none is too short to be worth a call.
    count = 1 if at_a_time is None else -(-n // max(at_a_time, 1))
    step = -(-n // count)
    return [slice(begin, min(begin + step, n)) for begin in range(0, n, step)]
