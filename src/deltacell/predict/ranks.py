"""Several processes that rank together, each a share of the blocks."""

from __future__ import annotations

import os
from dataclasses import dataclass

from deltacell.errors import InputError


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is.

    They need no connection: each works in a file of its own in one folder, and the first puts all
    of it together.

    Parameters
    ----------
    rank, world
        Its number from 0, and how many there are.
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def of_environment(cls) -> Ranks:
        """Return what torchrun, or whoever sets RANK and WORLD_SIZE, says."""
        if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
            return cls()
        try:
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except (KeyError, ValueError):
            rank, world = -1, 0
        if not 0 <= rank < world:
            raise InputError(
                f"RANK is {os.environ.get('RANK')} and WORLD_SIZE is "
                f"{os.environ.get('WORLD_SIZE')}; expected both, as torchrun sets them",
                fix="Start it with torchrun, or unset both.",
            )
        return cls(rank, world)

    @property
    def is_first(self) -> bool:
        """Whether this one puts the ranking together."""
        return self.rank == 0

    def name(self, rank: int | None = None) -> str:
        """Return how the files of one of them are called; of this one where not said."""
        return f"rank-{self.rank if rank is None else rank}-of-{self.world}"
