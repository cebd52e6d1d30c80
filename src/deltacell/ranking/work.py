"""The folder in which the processes of a ranking save their work."""

from __future__ import annotations

import json
import os
import re
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
"""The rank of this process and the world size; processes share a folder and need no network.

A part of a ranking, such as 17/64, is what a process of this rank and world size scores: (16, 64).
"""


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


def ranks_of_part(text: str) -> Ranks:
    """Return the rank and the number of parts of ``17/64``, which is the part of rank 16."""
    matched = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    number, n_parts = (0, 0) if matched is None else (int(matched[1]), int(matched[2]))
    if not 1 <= number <= n_parts:
        what = f"the part is '{text}'; expected its number and the number of parts, such as 17/64"
        raise InputError(what, code="invalid-part")
    return number - 1, n_parts


def number_of_parts(out: Path) -> int:
    """Return into how many parts a ranking is divided, from the names of its files."""
    folder = folder_of(out)
    # A part that was killed before it saved anything, or was refused, has left its lock alone.
    numbers = _numbers_of_parts(folder, STATE) or _numbers_of_parts(folder, ".lock")
    if not numbers:
        what = "there are no parts of a ranking to merge"
        fix = "Score them first: the same command with --part 1/8 to --part 8/8 for --merge."
        raise InputError(what, code="no-parts", where=folder, fix=fix)
    if len(numbers) > 1:
        what = f"the ranking was divided into {' and into '.join(map(str, numbers))} parts"
        fix = "Remove the files of all but one of these numbers, or choose another --out."
        raise InputError(what, code="other-number-of-parts", where=folder, fix=fix)
    return numbers[0]


def _numbers_of_parts(folder: Path, suffix: str) -> list[int]:
    """Return the different numbers of parts in the names of files, such as part-17-of-64.state."""
    pattern = re.compile(rf"part-[0-9]+-of-([0-9]+){re.escape(suffix)}")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    matches = [pattern.fullmatch(name) for name in names]
    return sorted({int(matched[1]) for matched in matches if matched is not None})


def folder_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


class RankProgress(TypedDict):
    """How far one process of a ranking has come."""

    request: Mapping[str, object]
    done: int  # pieces
    finished: bool


class Work:
    """The folder ``OUT.partial`` of a ranking, as one of its processes sees it.

    Each process atomically saves its state there: the request, the number of pieces that are done,
    and the sets that are kept. With ``repairs``, a damaged state of this rank is removed, and those
    of other ranks are left to whoever merges them.
    """

    def __init__(
        self,
        out: Path,
        request: Mapping[str, object],
        ranks: Ranks,
        *,
        overwrite: bool = False,
        repairs: bool = False,
    ) -> None:
        self.rank, self.world = ranks
        self._overwrite = overwrite
        self._repairs = repairs
        self._request = {**request, "processes": self.world}
        self.folder = folder_of(out)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock the work of this rank."""
        with self.locked_file(self._file(".lock")):
            self._check()
            yield

    @contextmanager
    def locked_file(self, lock: Path) -> Iterator[None]:
        """Create the folder and hold a lock file in it."""
        if self.folder.is_symlink():
            raise link_error(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the folder cannot be created: {error.strerror or error}"
            raise StoreError(message, code="cannot-write", where=self.folder) from error
        with locked(lock, whose="ranking"):
            yield

    def _check(self) -> None:
        """Raise if the folder has work on another request; with overwrite delete that of this rank.

        `unfinished` ignores what other ranks left.
        """
        for state in sorted(self.folder.glob(f"*{STATE}")):
            is_own = state == self._file(STATE)
            try:
                # Of other ranks the request is enough, and with many ranks their sets are large.
                progress = read_scored(state)[1] if is_own else read_progress(state)
                changed = differences(progress["request"], self._request)
            except StoreError:
                if not (self._overwrite or self._repairs):
                    raise
                if is_own:
                    state.unlink()
                continue
            if changed and not self._overwrite:
                raise other_request(changed, self.folder)
            if changed and is_own:
                state.unlink()

    def _file(self, suffix: str, rank: int | None = None) -> Path:
        number = self.rank if rank is None else rank
        return self.folder / f"part-{number + 1}-of-{self.world}{suffix}"

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
        return [rank for rank in range(self.world) if not self.has_finished(rank)]

    def has_finished(self, rank: int) -> bool:
        """Return whether a rank has finished this request."""
        state = self._file(STATE, rank)
        if not state.exists():
            return False
        progress = read_progress(state)
        is_same_request = progress["request"] == self._request
        return is_same_request and progress["finished"]

    def problem(self, rank: int) -> str | None:
        """Return why the work of a rank cannot be used: missing, damaged, unfinished, or None."""
        state = self._file(STATE, rank)
        if not state.exists():
            return "missing"
        try:
            read_scored(state)
            return None if self.has_finished(rank) else "unfinished"
        except StoreError:
            return "damaged"


def write_scored(path: Path, scored: Scored, progress: RankProgress) -> None:
    """Write the sets that a rank keeps and how far it has come."""
    text = json.dumps(progress, ensure_ascii=False, sort_keys=True)
    about = np.frombuffer(text.encode(), np.uint8)
    with written(path, "the work so far") as temporary, temporary.open("wb") as file:
        np.savez(file, about=about, **scored._asdict())


def read_scored(path: Path) -> tuple[Scored, RankProgress]:
    """Return the sets in a file and how far the rank has come; every array has a checksum."""
    with _opened(path) as saved:
        columns = Scored(**{name: _checked_array(saved[name]) for name in Scored._fields})
        return columns, _progress_in(saved)


def read_progress(path: Path) -> RankProgress:
    """Return how far the rank of a file has come, without reading its sets."""
    with _opened(path) as saved:
        return _progress_in(saved)


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, object]]:
    """Open saved work; whatever is raised while it is read is an error that names the file."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            yield saved
    # A damaged file may raise almost anything.
    except Exception as error:
        message = f"the saved work is damaged ({error}); remove its folder and rerun the command"
        raise StoreError(message, code="damaged-work", where=path) from error


def _progress_in(saved: Mapping[str, object]) -> RankProgress:
    progress: RankProgress = json.loads(_checked_array(saved["about"]).tobytes())
    return progress


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
