"""The checkpoints of a run: the last few and the best, and an index that names only whole ones.

A checkpoint is written in this order: the file under a temporary name, its flush, its rename, the
index in the same way, and only then are those deleted that are no longer kept. A kill or a full
disk between any two of them leaves an index whose files are all there and whole.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deltacell.errors import InputError, StoreError
from deltacell.files import TEMPORARY, new_file, read_json, seal_of
from deltacell.profile.record import Reached
from deltacell.store import sha256_of_file
from deltacell.train.checkpoint_file import check_contents, read_checkpoint, write_checkpoint

SCHEMA_VERSION = 1
INDEX = "index.json"


@dataclass(frozen=True)
class Checkpoint:
    """What the index says of one.

    Parameters
    ----------
    file
        Its name in the folder.
    sha256
        Of its bytes.
    step, epoch
        Optimizer steps, and epochs, that were done.
    metric
        What the best is chosen by; None where it was not measured or is not a finite number.
    """

    file: str
    sha256: str
    step: int
    epoch: int
    metric: float | None

    def reached(self, metric: str) -> Reached:
        """Return it as the record of a run has it, given the name of the metric."""
        named = None if self.metric is None else metric
        return Reached(
            epoch=self.epoch, step=self.step, file=self.file, metric=named, value=self.metric
        )


class Checkpoints:
    """The folder of a run's checkpoints.

    One process at a time may save (see `RunDirectory`); any number may load.

    Parameters
    ----------
    folder
        ``checkpoints`` of a run; made with the first one that is saved.
    keep
        How many of the last to keep; the best is kept beside them.
    higher_is_better
        Whether the best is the one with the highest metric, or the lowest.
    """

    def __init__(
        self, folder: str | os.PathLike[str], keep: int = 2, *, higher_is_better: bool = True
    ) -> None:
        if keep < 1:
            raise InputError(f"trainer.keep is {keep}, and at least the last checkpoint is kept")
        self.folder = Path(folder)
        self.keep = keep
        self.higher_is_better = higher_is_better
        self._index: _Index | None = None

    @property
    def kept(self) -> tuple[Checkpoint, ...]:
        """Those that are there, in the order in which they were saved."""
        return self._read().checkpoints

    @property
    def last(self) -> Checkpoint | None:
        """The one that was saved last; None where there is none."""
        return self._read().last

    @property
    def best(self) -> Checkpoint | None:
        """The one with the best metric, the earliest of equals; None where none was measured."""
        return self._read().best

    def save(
        self, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None = None
    ) -> Checkpoint:
        """Save a state; afterwards it is the last, and the best where its metric is.

        Parameters
        ----------
        state
            Tensors, numbers, text, None, and lists, tuples and dicts of them, by name.
        step, epoch
            Optimizer steps, and epochs, that were done.
        metric
            What the best is chosen by; None where it was not measured. NaN is never the best.
        """
        metric = float(metric) if metric is not None and math.isfinite(metric) else None
        index = self._read()
        name = _unused_name(step, {one.file for one in index.checkpoints})
        try:
            self.folder.mkdir(exist_ok=True)
            with new_file(self.folder / name) as temporary:
                sha256 = write_checkpoint(temporary, state, step=step, epoch=epoch, metric=metric)
            saved = Checkpoint(name, sha256, step, epoch, metric)
            self._commit(index.with_added(saved, self.keep, higher=self.higher_is_better))
        except OSError as error:
            with suppress(OSError):
                (self.folder / name).unlink()
            raise StoreError(
                f"the checkpoint of step {step} could not be written: {error.strerror or error}",
                where=self.folder / name,
                fix=self._what_is_left(index),
            ) from error
        return saved

    def load(self, which: str = "last") -> dict[str, Any]:
        """Return the state that was saved, on the CPU, after its checksum was compared.

        Nothing in the file is executed, whatever it holds. Where it is damaged or missing, the
        error names the one before it that is whole.

        Parameters
        ----------
        which
            ``last``, ``best``, or the name of a file in the folder.
        """
        chosen = self.find(which)
        file = self.folder / chosen.file
        try:
            if sha256_of_file(file) != chosen.sha256:
                raise StoreError(
                    "the checkpoint is damaged: its contents do not match its checksum", where=file
                )
            saved = read_checkpoint(file)
            if (chosen.step, chosen.epoch) != (saved["step"], saved["epoch"]):
                raise StoreError("the checkpoint is not the one that the index names", where=file)
            state: dict[str, Any] = saved["state"]
        except FileNotFoundError:
            raise StoreError(
                "the checkpoint is missing", where=file, fix=self._what_else(chosen)
            ) from None
        except OSError as error:
            raise StoreError(
                f"the checkpoint cannot be read: {error.strerror or error}",
                where=file,
                fix=self._what_else(chosen),
            ) from error
        except StoreError as error:
            raise StoreError(error.what, where=file, fix=self._what_else(chosen)) from error
        return state

    def find(self, which: str = "last") -> Checkpoint:
        """Return what the index says of the ``last``, the ``best``, or the file of that name."""
        index = self._read()
        if which == "last":
            if index.last is None:
                raise StoreError(
                    "there is no checkpoint yet",
                    where=self.folder,
                    fix=f"Start from the beginning: deltacell train --resume {self.folder.parent}",
                )
            return index.last
        if which == "best":
            if index.best is None:
                raise StoreError(
                    "no checkpoint has a metric, so none of them is the best",
                    where=self.folder,
                    fix="Take the last one.",
                )
            return index.best
        for one in index.checkpoints:
            if one.file == which:
                return one
        there = ", ".join(one.file for one in index.checkpoints) or "none"
        raise StoreError(
            f"there is no checkpoint '{which}'; expected 'last', 'best' or one of: {there}",
            where=self.folder,
        )

    def continue_from(self, which: str) -> Checkpoint:
        """Make a checkpoint the last, and give up those of later steps.

        Parameters
        ----------
        which
            As in `load`, which says whether it is whole; this does not.
        """
        chosen = self.find(which)
        kept = [one for one in self.kept if one.step <= chosen.step and one is not chosen]
        try:
            self._commit(_Index.of([*kept, chosen], higher=self.higher_is_better))
        except OSError as error:
            raise StoreError(
                f"{_THE_INDEX} could not be written: {error.strerror or error}",
                where=self.folder / INDEX,
                fix="It is as it was before. Free some space.",
            ) from error
        return chosen

    def _read(self) -> _Index:
        if self._index is None:
            file = self.folder / INDEX
            self._index = _read_index(file) if file.is_file() else self._made_again()
        return self._index

    def _made_again(self) -> _Index:
        """Return an index of the files that are there, of the whole ones."""
        found = []
        for file in _files_in(self.folder):
            with suppress(StoreError, OSError):
                check_contents(file)
                saved = read_checkpoint(file)
                facts = (saved["step"], saved["epoch"], saved["metric"])
                found.append(Checkpoint(file.name, sha256_of_file(file), *facts))
        found.sort(key=lambda one: (one.step, len(one.file), one.file))
        return _Index.of(found, higher=self.higher_is_better)

    def _commit(self, index: _Index) -> None:
        """Write the index, then delete what it does not name."""
        with new_file(self.folder / INDEX) as temporary:
            temporary.write_text(json.dumps(index.to_json(), indent=1) + "\n", encoding="utf-8")
        self._index = index
        named = {one.file for one in index.checkpoints}
        # What cannot be deleted now is tried again with the next one.
        with suppress(OSError):
            for file in (*_files_in(self.folder), *self.folder.glob(f".*{TEMPORARY}")):
                if file.name not in named:
                    file.unlink(missing_ok=True)

    def _what_is_left(self, index: _Index) -> str:
        if index.last is None:
            return (
                "There is no earlier one. Free some space and start from the beginning: deltacell "
                f"train --resume {self.folder.parent}"
            )
        return (
            f"The one before, {index.last.file}, is still there. Free some space, then: "
            f"deltacell train --resume {self.folder.parent}"
        )

    def _what_else(self, broken: Checkpoint) -> str:
        earlier = [one for one in self.kept if one.step <= broken.step and one is not broken]
        for one in sorted(earlier, key=lambda one: one.step, reverse=True):
            with suppress(OSError):
                if sha256_of_file(self.folder / one.file) == one.sha256:
                    return (
                        f"The one before is whole: deltacell train --resume {self.folder.parent} "
                        f"--from {one.file}"
                    )
        return "There is no whole one before it. Restore a copy, or train into another directory."


_THE_INDEX = "the index of the checkpoints"
_NAME = re.compile(r"step-\d{8,}(-\d+)?\.ckpt")


@dataclass(frozen=True)
class _Index:
    """Checkpoints in the order in which they were saved, and the best of them."""

    checkpoints: tuple[Checkpoint, ...]
    best: Checkpoint | None

    @classmethod
    def of(cls, checkpoints: Iterable[Checkpoint], *, higher: bool) -> _Index:
        checkpoints = tuple(checkpoints)
        measured = [one for one in checkpoints if one.metric is not None]
        sign = -1 if higher else 1
        best = min(measured, key=lambda one: sign * (one.metric or 0.0), default=None)
        return cls(checkpoints, best)

    @property
    def last(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def with_added(self, saved: Checkpoint, keep: int, *, higher: bool) -> _Index:
        """Return an index with one more, and without those that are then no longer kept."""
        # A step is saved twice where the second time it had been validated.
        superseded = [
            one
            for one in self.checkpoints
            if one.step == saved.step and (saved.metric is not None or one.metric is None)
        ]
        whole = _Index.of(
            [*(one for one in self.checkpoints if one not in superseded), saved], higher=higher
        )
        recent = whole.checkpoints[-keep:]
        return _Index(
            tuple(one for one in whole.checkpoints if one in recent or one is whole.best),
            whole.best,
        )

    def to_json(self) -> dict[str, Any]:
        data = {
            "schema": SCHEMA_VERSION,
            "last": None if self.last is None else self.last.file,
            "best": None if self.best is None else self.best.file,
            "checkpoints": [asdict(one) for one in self.checkpoints],
        }
        return data | {"seal": seal_of(data)}


def _read_index(file: Path) -> _Index:
    try:
        data = read_json(file, what=_THE_INDEX)
        version = data["schema"]
        if version == SCHEMA_VERSION:
            checkpoints = tuple(_checked(one) for one in data["checkpoints"])
            by_file = {one.file: one for one in checkpoints}
            index = _Index(checkpoints, None if data["best"] is None else by_file[data["best"]])
            if data == index.to_json() and len(by_file) == len(checkpoints):
                return index
            raise ValueError("names do not fit")
    except (StoreError, ValueError, KeyError, TypeError) as error:
        if isinstance(error.__cause__, OSError):
            raise
        there = ", ".join(one.name for one in _files_in(file.parent))
        raise StoreError(
            f"{_THE_INDEX} is damaged",
            where=file,
            fix="Delete it, and it is made again from the checkpoints beside it"
            + (f": {there}" if there else ", of which there is none"),
        ) from error
    raise StoreError(
        f"{_THE_INDEX} is of schema version {version}, and this program reads {SCHEMA_VERSION}",
        where=file,
    )


def _checked(entry: dict[str, Any]) -> Checkpoint:
    one = Checkpoint(**entry)
    texts, numbers = (one.file, one.sha256), (one.step, one.epoch)
    typed = all(type(text) is str for text in texts)
    typed &= all(type(number) is int for number in numbers)
    typed &= type(one.metric) in (float, type(None))
    if not (typed and _NAME.fullmatch(one.file)):
        raise ValueError("not what the index says of a checkpoint")
    return one


def _unused_name(step: int, used: set[str]) -> str:
    # A file that the index names is never written over: until the index is, its checksum counts.
    name, again = f"step-{step:08d}.ckpt", 1
    while name in used:
        name, again = f"step-{step:08d}-{again}.ckpt", again + 1
    return name


def _files_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))
