"""Folders that come from somebody else, and runs that somebody else takes over.

A received folder may have symbolic links where a command writes. It must refuse them, and nothing
outside the folder may change. A process whose lock file is removed or replaced, before a write or
in the middle of one, must notice it and leave the folder alone.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from deltacell.api.rank import rank
from deltacell.base import files
from deltacell.base.errors import InputError, StoreError
from deltacell.cell import Cell
from deltacell.storage import directory as storage_directory
from deltacell.train.run import train
from deltacell.train.run_config import resumed_config
from deltacell.train.run_directory import LOCK, RunDirectory, opened

Cases = Iterator[tuple[Callable[[], Any], Any]]

REFUSED = "refused, and nothing changed"
N_WRITES = 8  # of a process that loses its lock at one of them


def received(artefacts: Path, kind: str, rng: random.Random) -> Cases:
    """Yield cases of one kind, each in a folder that is made anew."""
    folder = artefacts / "received"
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield KINDS[kind](artefacts, folder, rng)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the inode and the bytes of every file of a folder, by its path there."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_ino, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def _linked_run(artefacts: Path, folder: Path, rng: random.Random) -> tuple[Callable[[], str], str]:
    """Return a call that resumes a run in which a random file or folder is a link."""
    run = Path(shutil.copytree(artefacts / "trained", folder / "run"))
    (run / LOCK).touch()
    _put_elsewhere(rng.choice(sorted(run.rglob("*"))), folder, rng)
    return partial(_refused, folder, "link", partial(_resume, run)), REFUSED


def _resume(run: Path) -> None:
    train(resumed_config(run, ["trainer.epochs=2"]), resume=run)


def _linked_ranking(
    artefacts: Path, folder: Path, rng: random.Random
) -> tuple[Callable[[], str], str]:
    """Return a call that resumes a ranking whose partial results are a link, or have one."""
    partial_results = folder / "out.parquet.partial"
    partial_results.mkdir()
    lock = partial_results / "rank-0-of-1.lock"
    lock.write_text("kept")
    _put_elsewhere(rng.choice([partial_results, lock]), folder, rng)
    call = partial(rank, artefacts / "trained", top=5, out=folder / "out.parquet", progress=False)
    return partial(_refused, folder, "link", call), REFUSED


def _put_elsewhere(path: Path, folder: Path, rng: random.Random) -> None:
    """Move a file or folder out, and put a link to it, absolute or relative, in its place."""
    outside = folder / "outside"
    outside.mkdir()
    victim = path.rename(outside / path.name)
    is_relative = rng.randrange(2) == 0
    path.symlink_to(os.path.relpath(victim, path.parent) if is_relative else victim)


def _refused(folder: Path, code: str, call: Callable[[], Any]) -> str:
    """Return whether a call raises an error with this code and changes nothing in a folder."""
    before = contents(folder)
    try:
        call()
    except InputError as error:
        if error.code != code:
            raise AssertionError(f"refused with the code {error.code}: {error}") from error
        return REFUSED if contents(folder) == before else "refused, but files have changed"
    return "accepted"


def _lost_lock(artefacts: Path, folder: Path, rng: random.Random) -> tuple[Callable[[], str], str]:
    """Return a call that writes into a run, and loses its lock at one of the writes."""
    run = Path(shutil.copytree(artefacts / "trained", folder / "run"))
    writes = rng.choices(WRITES, k=N_WRITES)
    lost_at = rng.randrange(N_WRITES)
    lose = rng.choice([_remove_lock, _replace_lock])
    in_the_middle = rng.randrange(2) == 0
    return partial(_write_after_loss, run, writes, lost_at, lose, in_the_middle), REFUSED


def _write_after_loss(
    run: Path,
    writes: Sequence[Callable[[RunDirectory], None]],
    lost_at: int,
    lose: Callable[[Path], None],
    in_the_middle: bool,
) -> str:
    with opened(run) as directory:
        for write in writes[:lost_at]:
            write(directory)
        before = contents(run)
        if in_the_middle:
            with _calling_when_flushed(partial(lose, run)):
                _expect_refusal(writes[lost_at], directory)
        else:
            lose(run)
        for write in writes[lost_at:]:
            _expect_refusal(write, directory)
    after = contents(run)
    del before[LOCK]
    after.pop(LOCK, None)
    return REFUSED if after == before else "files have changed"


@contextmanager
def _calling_when_flushed(call: Callable[[], None]) -> Iterator[None]:
    """Call a function when a temporary file is complete and not yet in its place."""

    def flush(path: Any) -> None:
        """Call the function instead of flushing."""
        call()

    with (
        mock.patch.object(files, "flush", flush),
        mock.patch.object(storage_directory, "flush", flush),
    ):
        yield


def _expect_refusal(write: Callable[[RunDirectory], None], directory: RunDirectory) -> None:
    try:
        write(directory)
    except StoreError as error:
        if error.code != "lost-lock":
            raise AssertionError(f"the code is {error.code}: {error}") from error
    else:
        raise AssertionError(f"{write.__name__} wrote after the loss")


def _remove_lock(run: Path) -> None:
    (run / LOCK).unlink(missing_ok=True)


def _replace_lock(run: Path) -> None:
    """Remove the lock file and make another one, as the next owner of a run does."""
    lock = run / LOCK
    # The new file exists before the old one goes, so that it has another inode.
    other = lock.with_name("other")
    other.touch()
    other.replace(lock)


def _save_checkpoint(run: RunDirectory) -> None:
    checkpoints = run.checkpoints()
    step = 1 + (checkpoints.last.step if checkpoints.last else 0)
    checkpoints.save(checkpoints.load(), step=step, epoch=step)


def _write_metrics(run: RunDirectory) -> None:
    run.write_metrics([{"epoch": 1.0, "step": 2.0}])


def _write_record(run: RunDirectory) -> None:
    run.update(error="none")


def _write_file(run: RunDirectory) -> None:
    files.write_json(run.path / "phases" / "notes.json", {}, what="notes")


def _write_directory(run: RunDirectory) -> None:
    Cell.synthetic("demo").subset(range(4)).save(run.path / "baselines" / "cell", overwrite=True)


WRITES: Sequence[Callable[[RunDirectory], None]] = [
    _save_checkpoint,
    _write_metrics,
    _write_record,
    _write_file,
    _write_directory,
]
KINDS = {
    "run with a link": _linked_run,
    "ranking with a link": _linked_ranking,
    "lock that is lost": _lost_lock,
}
