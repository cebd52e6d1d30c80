"""The folder in which the processes of a ranking save their work."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import numpy as np

from deltacell.base.arrays import AnyArray
from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import link_error, locked, written
from deltacell.ranking.gene_sets import Scored
from deltacell.ranking.kept import Kept

STATE = ".state"
Ranks = tuple[int, int]
"""The rank of this process and the world size; processes share a folder and need no network."""


def ranks_of_environment() -> Ranks:
    """Return RANK and WORLD_SIZE, which torchrun sets."""
    rank = os.environ.get("RANK")
    world = os.environ.get("WORLD_SIZE")
    if rank is None and world is None:
        return 0, 1
    if rank is None or world is None:
        message = "only one of RANK and WORLD_SIZE is set; set both, as torchrun does, or neither"
        raise InputError(message, code="invalid-rank")
    are_numbers = rank.isdecimal() and world.isdecimal()
    if not are_numbers or int(rank) >= int(world):
        message = (
            f"RANK is '{rank}' and WORLD_SIZE is '{world}'; expected numbers, with 0 <= RANK < "
            "WORLD_SIZE"
        )
        raise InputError(message, code="invalid-rank", fix="Unset both to use one process.")
    return int(rank), int(world)


class RankProgress(TypedDict):
    """How far one process of a ranking has come."""

    request: Mapping[str, object]
    done: int  # pieces
    finished: bool


class Work:
    """The folder ``OUT.partial`` of a ranking, as one of its processes sees it.

    Each process atomically saves its state there: the request, the number of pieces that are done,
    and the sets that are kept.
    """

    def __init__(
        self,
        out: Path,
        request: Mapping[str, object],
        ranks: Ranks,
        *,
        overwrite: bool = False,
    ) -> None:
        self.rank, self.world = ranks
        self._overwrite = overwrite
        self._request = {**request, "processes": self.world}
        self.folder = out.with_name(f"{out.name}.partial")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock the work of this rank."""
        if self.folder.is_symlink():
            raise link_error(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the folder cannot be created: {error.strerror or error}"
            raise StoreError(message, code="cannot-write", where=self.folder) from error
        with locked(self._file(".lock"), whose="ranking"):
            self._check()
            yield

    def _check(self) -> None:
        """Raise if the folder has work on another request; with overwrite delete that of this rank.

        `unfinished` ignores what other ranks left.
        """
        for state in sorted(self.folder.glob(f"*{STATE}")):
            try:
                _, progress = read_scored(state)
                changed = differences(progress["request"], self._request)
            except StoreError:
                if not self._overwrite:
                    raise
                changed = ["damaged"]
            if changed and not self._overwrite:
                raise other_request(changed, self.folder)
            if changed and state == self._file(STATE):
                state.unlink()

    def _file(self, suffix: str, rank: int | None = None) -> Path:
        number = self.rank if rank is None else rank
        return self.folder / f"rank-{number}-of-{self.world}{suffix}"

    def load(self, kept: Kept, rank: int | None = None) -> int:
        """Offer the saved sets of a rank, of this one by default; return its finished pieces."""
        state = self._file(STATE, rank)
        if not state.exists():
            return 0
        scored, progress = read_scored(state)
        kept.offer(scored)
        return progress["done"]

    def save(self, done: int, kept: Kept, *, finished: bool = False) -> None:
        """Save the sets of this rank and how many of its pieces are done."""
        progress: RankProgress = {"request": self._request, "done": done, "finished": finished}
        write_scored(self._file(STATE), kept.held(), progress)

    def unfinished(self) -> list[int]:
        """Return the ranks that have not finished this request."""
        return [rank for rank in range(self.world) if not self._has_finished(rank)]

    def _has_finished(self, rank: int) -> bool:
        state = self._file(STATE, rank)
        if not state.exists():
            return False
        _, progress = read_scored(state)
        is_same_request = progress["request"] == self._request
        return is_same_request and progress["finished"]


def write_scored(path: Path, scored: Scored, progress: RankProgress) -> None:
    """Write the sets that a rank keeps and how far it has come."""
    text = json.dumps(progress, ensure_ascii=False, sort_keys=True)
    about = np.frombuffer(text.encode(), np.uint8)
    with written(path, "the work so far") as temporary, temporary.open("wb") as file:
        np.savez(file, about=about, **scored._asdict())


def read_scored(path: Path) -> tuple[Scored, RankProgress]:
    """Return the sets in a file and how far the rank has come."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            arrays = {name: _checked_array(saved[name]) for name in ("about", *Scored._fields)}
        progress: RankProgress = json.loads(arrays.pop("about").tobytes())
        return Scored(**arrays), progress
    # A damaged file may raise almost anything.
    except Exception as error:
        message = f"the saved work is damaged ({error}); remove its folder and rerun the command"
        raise StoreError(message, code="damaged-work", where=path) from error


def _checked_array(entry: object) -> AnyArray:
    """Return an entry of a saved file; NumPy returns one with a wrong size as unchecked bytes."""
    if not isinstance(entry, np.ndarray):
        raise TypeError("an array is missing")
    return entry


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return a text for every entry that differs from an earlier request."""
    texts = []
    for name, value in after.items():
        value_before = before.get(name)
        if value_before != value:
            texts.append(f"{name} was {value_before!s:.40} and is {value!s:.40}")
    return texts


def other_request(changed: list[str], where: Path) -> InputError:
    """Return the error for saved work or a ranking of another request."""
    message = f"this is the ranking of another request: {'; '.join(changed[:4])}"
    fix = "Choose another --out, rerun the earlier command, or use --overwrite."
    return InputError(message, code="other-request", where=where, fix=fix)
