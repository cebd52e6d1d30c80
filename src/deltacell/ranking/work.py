"""The folder in which the processes of a ranking save their work."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import link_error, locked, written
from deltacell.ranking.gene_sets import Scored
from deltacell.ranking.kept import Kept

STATE = ".state"
Ranks = tuple[int, int]
"""The rank of this process and the world size; processes share a folder and need no network."""


def ranks_of_environment() -> Ranks:
    """Return RANK and WORLD_SIZE, which torchrun sets."""
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world is None:
        return 0, 1
    if rank is None or world is None:
        what = "only one of RANK and WORLD_SIZE is set; set both, as torchrun does, or neither"
        raise InputError(what, code="invalid-rank")
    are_numbers = rank.isdecimal() and world.isdecimal()
    if not are_numbers or int(rank) >= int(world):
        what = f"RANK is '{rank}' and WORLD_SIZE is '{world}'; expected numbers, with 0 <= RANK < "
        what += "WORLD_SIZE"
        raise InputError(what, code="invalid-rank", fix="Unset both to use one process.")
    return int(rank), int(world)


class Work:
    """The folder ``OUT.partial`` of a ranking, as one of its processes sees it.

    Each process atomically saves its state there: the request, the number of pieces that are done,
    and the sets that are kept.
    """

    def __init__(
        self,
        out: Path,
        request: Mapping[str, Any],
        ranks: Ranks,
        *,
        overwrite: bool = False,
    ) -> None:
        (self.rank, self.world), self._overwrite = ranks, overwrite
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
            what = f"the folder cannot be created: {error.strerror or error}"
            raise StoreError(what, code="cannot-write", where=self.folder) from error
        with locked(self._file(".lock"), whose="ranking"):
            self._check()
            yield

    def _check(self) -> None:
        """Raise if the folder has work on another request; with overwrite delete that of this rank.

        `unfinished` ignores what other ranks left.
        """
        for state in sorted(self.folder.glob(f"*{STATE}")):
            try:
                changed = differences(read_scored(state)[1]["request"], self._request)
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
        state = self._file(STATE, rank)
        if not state.exists():
            return 0
        found, about = read_scored(state)
        kept.offer(found)
        return int(about["done"])

    def save(self, done: int, kept: Kept, *, finished: bool = False) -> None:
        about = {"request": self._request, "done": done, "finished": finished}
        write_scored(self._file(STATE), kept.held(), about)

    def unfinished(self) -> list[int]:
        """Return the ranks that have not finished this request."""
        states = {rank: self._file(STATE, rank) for rank in range(self.world)}
        about = {rank: read_scored(state)[1] for rank, state in states.items() if state.exists()}
        done = {"request": self._request, "finished": True}
        return [rank for rank in states if not about.get(rank, {}).items() >= done.items()]


def write_scored(path: Path, found: Scored, about: Any = None) -> None:
    text = json.dumps(about, ensure_ascii=False, sort_keys=True).encode()
    with written(path, "the work so far") as temporary, temporary.open("wb") as file:
        np.savez(file, about=np.frombuffer(text, np.uint8), **found._asdict())


def read_scored(path: Path) -> tuple[Scored, Any]:
    """Return the sets in a file and their metadata."""
    try:
        with np.load(path, allow_pickle=False) as held:
            about, *found = (held[name] for name in ("about", *Scored._fields))
            # An entry with a wrong size is returned as unchecked bytes.
            if not all(isinstance(one, np.ndarray) for one in (about, *found)):
                raise ValueError("an array is missing")
            return Scored(*found), json.loads(about.tobytes())
    # A damaged file may raise almost anything.
    except Exception as error:
        what = f"the saved work is damaged ({error}); remove its folder and rerun the command"
        raise StoreError(what, code="damaged-work", where=path) from error


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = [name for name in now if was.get(name) != now[name]]
    return [f"{name} was {was.get(name)!s:.40} and is {now[name]!s:.40}" for name in changed]


def other_request(changed: list[str], where: Path) -> InputError:
    what = f"this is the ranking of another request: {'; '.join(changed[:4])}"
    fix = "Choose another --out, rerun the earlier command, or use --overwrite."
    return InputError(what, code="other-request", where=where, fix=fix)
