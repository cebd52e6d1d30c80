"""A ranking under way: what was done is on the disk; several processes share the blocks."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from deltacell.errors import InputError, StoreError
from deltacell.files import TEMPORARY
from deltacell.predict.kept import (
    End,
    Kept,
    joined,
    no_sets,
    read_about,
    read_scored,
    taken,
    write_scored,
)
from deltacell.predict.request import differences

STATE = ".state"


class Work:
    """The folder ``OUT.partial`` of a ranking, as one of its processes sees it.

    Each process has a state of its own there: the request, the pieces that were done, and what was
    kept of them. It is written whole or not at all, and never says that a piece was done before
    what was kept of it is there.

    Parameters
    ----------
    out
        The file that the ranking will be.
    request
        What decides it, as JSON.
    ranks
        Which process this is.
    overwrite
        Whether work on another request is given up.
    """

    def __init__(
        self,
        out: Path,
        request: Mapping[str, Any],
        ranks: Ranks | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        self._out = out
        self.folder = out.with_name(f"{out.name}.partial")
        self.ranks = Ranks() if ranks is None else ranks
        self._request = dict(request)
        self._overwrite = overwrite
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the folder for work under way could not be made: {error.strerror or error}",
                where=self.folder,
                fix="Name another place with --out.",
            ) from error
        self._take_lock()
        try:
            self._check()
        except BaseException:
            self._free_lock()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._free_lock()

    def load(self, kept: Kept) -> int:
        """Let what is kept be as it was saved; return the number of pieces that were done."""
        state = self._state()
        if not state.exists():
            self._sweep([])
            return 0
        done = self._load(state, kept.ends)
        self._sweep([part for end in kept.ends for part in end.parts])
        return done

    def save(self, done: int, kept: Kept, *, finished: bool = False) -> None:
        """Save what is kept after so many pieces of this process.

        Parameters
        ----------
        done
            Pieces.
        kept
            Of them.
        finished
            Whether these were all.
        """
        held = [end.held() for end in kept.ends]
        about = {
            "request": self._request,
            "done": done,
            "finished": finished,
            "held": [len(one.score) for one in held],
            "parts": [end.parts for end in kept.ends],
        }
        write_scored(self._state(), joined(held), about)

    @property
    def has_finished(self) -> bool:
        """Whether this process saved that it came to the end."""
        return self._has_finished(self.ranks.rank)

    def waits_for(self) -> list[int]:
        """Return the processes that have not finished yet."""
        return [rank for rank in range(self.ranks.world) if not self._has_finished(rank)]

    def gather(self, ends: Sequence[Sequence[End]]) -> None:
        """Let the ends of every process be as it saved them.

        Parameters
        ----------
        ends
            For each process its ends, empty.
        """
        for rank, mine in enumerate(ends):
            self._load(self._state(rank), mine)

    def remove(self) -> None:
        """Remove the folder: the ranking is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _state(self, rank: int | None = None) -> Path:
        return self.folder / f"{self.ranks.name(rank)}{STATE}"

    def _load(self, state: Path, ends: Sequence[End]) -> int:
        found, about = read_scored(state)
        starts = np.cumsum([0, *about["held"]])
        for end, parts, first, last in zip(
            ends, about["parts"], starts[:-1], starts[1:], strict=True
        ):
            rows = taken(found, np.arange(first, last))
            end.restore(rows if last > first else no_sets(found.sets.shape[1]), parts)
        return int(about["done"])

    def _has_finished(self, rank: int) -> bool:
        state = self._state(rank)
        if not state.exists():
            return False
        about = read_about(state)
        # What another request left there is about to be replaced by the process of that number.
        return about["request"] == self._request and bool(about["finished"])

    def _check(self) -> None:
        """Raise where the folder holds work on something else, or give that up."""
        for state in sorted(self.folder.glob(f"*{STATE}")):
            of_world = int(state.name.removesuffix(STATE).rpartition("-")[2])
            try:
                changed = differences(read_about(state)["request"], self._request)
            except StoreError:
                if not self._overwrite:
                    raise
                changed = ["it is damaged"]
            if not changed and of_world == self.ranks.world:
                continue
            if self._overwrite:
                # Each process gives up its own; those that are no more are the first one's.
                if state == self._state() or (self.ranks.is_first and of_world != self.ranks.world):
                    state.unlink(missing_ok=True)
            elif changed:
                raise InputError(
                    f"work on another request is here: {'; '.join(changed[:4])}",
                    where=self.folder,
                    fix="Give the same command to go on with it, name another file with --out, or "
                    "give that work up with --overwrite.",
                )
            else:
                raise InputError(
                    f"this was begun with {of_world} processes, and now there are "
                    f"{self.ranks.world}",
                    where=self.folder,
                    fix=f"Go on with {of_world}, or begin anew with --overwrite.",
                )

    def _sweep(self, parts: Sequence[str]) -> None:
        """Remove what a kill left behind: parts of this process that no state names."""
        for file in self.folder.glob(f"{self.ranks.name()}.*.arrow"):
            if file.name not in parts:
                file.unlink(missing_ok=True)
        for file in self.folder.glob(f".{self.ranks.name()}.*"):
            file.unlink(missing_ok=True)
        if self.ranks.is_first:
            for file in self._out.parent.glob(f".{escape(self._out.name)}.*{TEMPORARY}"):
                file.unlink(missing_ok=True)

    def _take_lock(self) -> None:
        path = self.folder / f"{self.ranks.name()}.lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                "another process is at work on this ranking",
                where=self.folder,
                fix="Wait for it, or name another file with --out.",
            ) from None
        except OSError:
            # Some network file systems know no locks, and ranking there must still be possible.
            pass
        self._lock = handle

    def _free_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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
