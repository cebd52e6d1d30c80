"""The checkpoints of a run: the last few and the best, and an index that names only whole ones.

A checkpoint is written in this order: the file under a temporary name, its flush, its rename, the
index in the same way, and only then are old ones deleted. A kill or a full disk between any two of
these leaves an index whose files are all present and whole.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

from deltacell.errors import InputError, StoreError
from deltacell.files import TEMPORARY, new_file, read_json, seal_of
from deltacell.profile.record import Reached
from deltacell.store import sha256_of_file

SCHEMA_VERSION = 1
INDEX = "index.json"
METRIC = "validation_pearson"
"""The metric that the best checkpoint is chosen by."""

_NAME = re.compile(r"step-\d{8,}(-\d+)?\.ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as the index has it."""

    file: str
    sha256: str
    step: int
    epoch: int
    metric: float | None  # None if it was not measured or is not finite


class Checkpoints:
    """The folder of a run's checkpoints; one process at a time may save, any number may load.

    Parameters
    ----------
    folder
        ``checkpoints`` of a run; made when the first one is saved.
    keep
        How many of the last to keep; the best is kept in addition.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self._kept: tuple[Checkpoint, ...] | None = None

    @property
    def kept(self) -> tuple[Checkpoint, ...]:
        """All checkpoints, in the order in which they were saved."""
        if self._kept is None:
            file = self.folder / INDEX
            self._kept = _read_index(file) if file.is_file() else self._recovered()
        return self._kept

    @property
    def last(self) -> Checkpoint | None:
        """The checkpoint that was saved last."""
        return self.kept[-1] if self.kept else None

    @property
    def best(self) -> Checkpoint | None:
        """The checkpoint with the highest metric, the earliest of equals."""
        return _best(self.kept)

    def reached(self) -> dict[str, Reached | None]:
        """Return the best and the last checkpoint as the record of a run has them."""
        return {
            name: None
            if one is None
            else Reached(
                epoch=one.epoch,
                step=one.step,
                file=one.file,
                metric=None if one.metric is None else METRIC,
                value=one.metric,
            )
            for name, one in (("best", self.best), ("last", self.last))
        }

    def save(
        self, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None = None
    ) -> Checkpoint:
        """Save a state, which becomes the last checkpoint, and the best if its metric is."""
        metric = float(metric) if metric is not None and math.isfinite(metric) else None
        before = self.kept
        # A file that the index names is never overwritten: its checksum counts until then.
        name, again = f"step-{step:08d}.ckpt", 0
        while name in {one.file for one in before}:
            again += 1
            name = f"step-{step:08d}-{again}.ckpt"
        try:
            self.folder.mkdir(exist_ok=True)
            with new_file(self.folder / name) as temporary:
                sha256 = write_checkpoint(temporary, state, step=step, epoch=epoch, metric=metric)
            saved = Checkpoint(name, sha256, step, epoch, metric)
            # A step is saved twice if it was validated only the second time.
            kept = [
                one
                for one in before
                if one.step != step or (metric is None and one.metric is not None)
            ]
            kept.append(saved)
            self._commit(one for one in kept if one in kept[-self.keep :] or one is _best(kept))
        except OSError as error:
            with suppress(OSError):
                (self.folder / name).unlink()
            left = f"{before[-1].file} is still there" if before else "There is no earlier one"
            raise StoreError(
                f"the checkpoint of step {step} could not be written: {error.strerror or error}",
                code="not-written",
                where=self.folder / name,
                fix=f"{left}. Free some space, then: deltacell train --resume {self.folder.parent}",
            ) from error
        return saved

    def load(self, which: str = "last") -> dict[str, Any]:
        """Return a saved state, on the CPU, after its checksum was verified.

        Nothing in the file is executed, whatever it contains. If it is damaged or missing, the
        error names an earlier checkpoint that is whole.
        """
        chosen = self.find(which)
        file = self.folder / chosen.file
        try:
            if sha256_of_file(file) != chosen.sha256:
                raise _damaged(file)
            saved = read_checkpoint(file)
            if (chosen.step, chosen.epoch) != (saved["step"], saved["epoch"]):
                raise _damaged(file)
        except OSError as error:
            what = f"the checkpoint cannot be read: {error.strerror or error}"
            missing = isinstance(error, FileNotFoundError)
            raise StoreError(
                what,
                code="missing-checkpoint" if missing else "unreadable-checkpoint",
                where=file,
                fix=self._alternative(chosen),
            ) from error
        except StoreError as error:
            raise StoreError(
                error.what, code=error.code, where=file, fix=self._alternative(chosen)
            ) from error
        state: dict[str, Any] = saved["state"]
        return state

    def find(self, which: str = "last") -> Checkpoint:
        """Return the ``last`` checkpoint, the ``best``, or the one with this file name."""
        named = {"last": self.last, "best": self.best, **{one.file: one for one in self.kept}}
        found = named.get(which)
        if found is None:
            there = ", ".join(one.file for one in self.kept) or "none"
            raise StoreError(
                f"there is no checkpoint '{which}'; the run has {there}",
                code="no-checkpoint",
                where=self.folder,
                fix=f"Resume the run: deltacell train --resume {self.folder.parent}",
            )
        return found

    def continue_from(self, which: str) -> Checkpoint:
        """Make a checkpoint the last, and delete those of later steps."""
        chosen = self.find(which)
        earlier = [one for one in self.kept if one.step <= chosen.step and one is not chosen]
        try:
            self._commit([*earlier, chosen])
        except OSError as error:
            what = f"the index of the checkpoints could not be written: {error.strerror or error}"
            raise StoreError(what, code="not-written", where=self.folder / INDEX) from error
        return chosen

    def _recovered(self) -> tuple[Checkpoint, ...]:
        """Return the whole checkpoints among the files of a folder without an index."""
        found = []
        for file in _files_in(self.folder):
            with suppress(StoreError, OSError):
                check_contents(file)
                saved = read_checkpoint(file)
                facts = (saved["step"], saved["epoch"], saved["metric"])
                found.append(Checkpoint(file.name, sha256_of_file(file), *facts))
        return tuple(sorted(found, key=lambda one: (one.step, len(one.file), one.file)))

    def _commit(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Write the index, then delete what it does not name."""
        kept = tuple(checkpoints)
        with new_file(self.folder / INDEX) as temporary:
            temporary.write_text(json.dumps(_to_json(kept), indent=1) + "\n", encoding="utf-8")
        self._kept = kept
        # What cannot be deleted now is tried again with the next one.
        with suppress(OSError):
            for file in (*_files_in(self.folder), *self.folder.glob(f".*{TEMPORARY}")):
                if file.name not in {one.file for one in kept}:
                    file.unlink(missing_ok=True)

    def _alternative(self, broken: Checkpoint) -> str:
        earlier = [one for one in self.kept if one.step <= broken.step and one is not broken]
        for one in sorted(earlier, key=lambda one: one.step, reverse=True):
            with suppress(OSError):
                if sha256_of_file(self.folder / one.file) == one.sha256:
                    run = self.folder.parent
                    return (
                        f"An earlier one is whole: deltacell train --resume {run} --from {one.file}"
                    )
        return "No earlier one is whole. Restore a copy, or train into another directory."


def _best(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    measured = [one for one in checkpoints if one.metric is not None]
    return max(measured, key=lambda one: one.metric or 0.0, default=None)


def _to_json(kept: tuple[Checkpoint, ...]) -> dict[str, Any]:
    best = _best(kept)
    data = {
        "schema": SCHEMA_VERSION,
        "last": kept[-1].file if kept else None,
        "best": None if best is None else best.file,
        "checkpoints": [asdict(one) for one in kept],
    }
    return data | {"seal": seal_of(data)}


def _read_index(file: Path) -> tuple[Checkpoint, ...]:
    try:
        data = read_json(file, what="the index of the checkpoints")
        kept = tuple(Checkpoint(**entry) for entry in data["checkpoints"])
        names = {one.file for one in kept if _NAME.fullmatch(one.file)}
        typed = all(
            (type(one.step), type(one.epoch), type(one.sha256)) == (int, int, str) for one in kept
        )
        if typed and len(names) == len(kept) and data == _to_json(kept):
            return kept
        raise ValueError("does not match its seal")
    except (StoreError, ValueError, KeyError, TypeError) as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise StoreError(
            "the index of the checkpoints is damaged",
            code="damaged-index",
            where=file,
            fix="Delete it; it is then made again from the checkpoints.",
        ) from error


def _files_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))


_MARK = "deltacell_checkpoint"


def write_checkpoint(
    path: Path, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None
) -> str:
    """Write a state and where it was taken, and return the SHA-256 of the file."""
    about = {_MARK: SCHEMA_VERSION, "step": step, "epoch": epoch, "metric": metric}
    with path.open("wb") as file:
        sink = _HashingFile(file)
        try:
            torch.save({**about, "state": plain_state(state)}, cast(IO[bytes], sink))
        except Exception:
            # PyTorch hides a full disk behind an error about a position in the file.
            if sink.error is not None:
                raise sink.error from None
            raise
    return sink.hash.hexdigest()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return ``step``, ``epoch``, ``metric`` and ``state`` of a file, its tensors on the CPU.

    A file that deltacell did not write is refused, and nothing in it is executed.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            begins = file.read(2)
        if begins[:1] == pickle.PROTO and len(begins) == 2 and begins[1] <= 5:
            raise _unsafe("it is a bare pickle, which could run code when it is read", path)
        raise _damaged(path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever damaged bytes lead to
        names: list[str] = []
        with suppress(Exception):
            names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
        if names:
            raise _unsafe(f"it asks for {', '.join(names)} when it is read", path) from error
        raise _damaged(path) from error
    kinds = {_MARK: (int,), "step": (int,), "epoch": (int,), "metric": (float, type(None))}
    if (
        not isinstance(payload, dict)
        or not all(k in payload and type(payload[k]) in kinds[k] for k in kinds)
        or payload[_MARK] != SCHEMA_VERSION
        or type(payload.get("state")) is not dict
    ):
        what = f"not a checkpoint of deltacell with schema version {SCHEMA_VERSION}"
        raise StoreError(what, code="not-a-checkpoint", where=path)
    try:
        # Other code in this process may have allowed PyTorch to read more than what we write.
        plain_state(payload["state"])
    except InputError as error:
        raise _unsafe(error.what, path) from error
    return payload


def check_contents(path: Path) -> None:
    """Verify the checksums that the file itself holds."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # whatever damaged bytes lead to
        raise _damaged(path) from error
    if damaged is not None:
        raise _damaged(path)


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as it will be read, or say which key holds what cannot be saved.

    Ordered dicts become dicts, and parameters their tensors; tensors are not copied.
    """
    return {name: _plain(value, name) for name, value in state.items()}


def _plain(value: Any, where: str) -> Any:
    kind = type(value)
    # Exact types: a numpy float is a float too, and could not be read again.
    if kind in (int, float, str, bool, type(None), Tensor):
        return value
    if kind is nn.Parameter or kind is nn.Buffer:
        return value.detach()
    if kind in (list, tuple):
        return kind(_plain(one, f"{where}[{place}]") for place, one in enumerate(value))
    if kind in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        return {key: _plain(one, f"{where}.{key}") for key, one in value.items()}
    raise InputError(
        f"'{where}' of a checkpoint's state is a {kind.__module__}.{kind.__qualname__}; expected "
        "tensors, numbers, text, None, and lists, tuples and dicts of them",
        code="not-plain",
        key=where,
    )


def _damaged(path: Path) -> StoreError:
    return StoreError("the checkpoint is damaged", code="damaged-checkpoint", where=path)


def _unsafe(why: str, path: Path) -> StoreError:
    return StoreError(f"the file is refused: {why}", code="unsafe-checkpoint", where=path)


class _HashingFile(io.BufferedIOBase):
    """A file that keeps the hash of what is written to it, and the first error."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.hash.update(data)
        return written
