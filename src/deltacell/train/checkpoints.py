"""The checkpoints of a run: the last few and the best, and an index that names only whole ones.

A checkpoint is written in this order: the file under a temporary name, its flush, its rename, the
index in the same way, and only then are old ones deleted. A kill or a full disk between any two of
these leaves an index whose files are all present and whole.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from deltacell.errors import InputError, StoreError
from deltacell.files import TEMPORARY, new_file, read_json, seal_of, write_json
from deltacell.profile.record import Reached
from deltacell.store import sha256_of_file

SCHEMA_VERSION = 1
INDEX = "index.json"
METRIC = "validation_pearson"
"""The metric that the best checkpoint is chosen by."""

_NAME = re.compile(r"step-\d{8,}(-\d+)?\.ckpt")
_MARK = "deltacell_checkpoint"


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

    `keep` is how many of the last to keep; the best is kept in addition.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        self.folder, self.keep = Path(folder), keep
        self._kept: tuple[Checkpoint, ...] | None = None

    @property
    def kept(self) -> tuple[Checkpoint, ...]:
        """All checkpoints, in the order in which they were saved.

        An index that is missing or damaged is made again if all of the files are whole.
        """
        if self._kept is None:
            known = _read_index(self.folder / INDEX)
            self._kept = self._recovered() if known is None else known
        return self._kept

    @property
    def last(self) -> Checkpoint | None:
        return self.kept[-1] if self.kept else None

    @property
    def best(self) -> Checkpoint | None:
        """The checkpoint with the highest metric, the earliest of equals."""
        return _best(self.kept)

    def reached(self) -> dict[str, Reached | None]:
        return {"best": _reached(self.best), "last": _reached(self.last)}

    def save(
        self, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None = None
    ) -> None:
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
            # A step is saved twice if it was validated only the second time.
            only = metric is None
            kept = [o for o in before if o.step != step or (only and o.metric is not None)]
            kept.append(Checkpoint(name, sha256, step, epoch, metric))
            self._commit([one for one in kept if one in kept[-self.keep :] or one is _best(kept)])
        except (OSError, StoreError) as error:
            with suppress(OSError):
                (self.folder / name).unlink()
            what = error.what if isinstance(error, StoreError) else error.strerror or error
            left = f"{before[-1].file} is still there" if before else "There is no earlier one"
            raise StoreError(
                f"the checkpoint of step {step} could not be written: {what}",
                code="not-written",
                where=self.folder / name,
                fix=f"{left}. Free some space, then: deltacell train --resume {self.folder.parent}",
            ) from error

    def load(self, which: str = "last") -> dict[str, Any]:
        """Return a saved state, on the CPU, after its checksum was verified.

        `which` is ``last``, ``best`` or a file name. Nothing in the file is executed, whatever it
        contains. If it is damaged or missing, the error names an earlier one that is whole.
        """
        chosen = self._find(which)
        file = self.folder / chosen.file
        try:
            if sha256_of_file(file) != chosen.sha256:
                raise _damaged(file)
            state: dict[str, Any] = read_checkpoint(file)["state"]
        except (OSError, StoreError) as error:
            what, code = f"the checkpoint cannot be read: {error}", "unreadable-checkpoint"
            if isinstance(error, StoreError):
                what, code = error.what, error.code
            fix = self._alternative(chosen)
            raise StoreError(what, code=code, where=file, fix=fix) from error
        return state

    def continue_from(self, which: str) -> None:
        """Make a checkpoint the last, and delete those of later steps."""
        chosen = self._find(which)
        self._commit([*self._before(chosen), chosen])

    def _find(self, which: str) -> Checkpoint:
        named = {"last": self.last, "best": self.best, **{one.file: one for one in self.kept}}
        found = named.get(which)
        if found is None:
            there = ", ".join(one.file for one in self.kept) or "none"
            what = f"there is no checkpoint '{which}'; the run has {there}"
            fix = f"Resume the run: deltacell train --resume {self.folder.parent}"
            raise StoreError(what, code="no-checkpoint", where=self.folder, fix=fix)
        return found

    def _before(self, chosen: Checkpoint) -> list[Checkpoint]:
        return [one for one in self.kept if one.step <= chosen.step and one is not chosen]

    def _recovered(self) -> tuple[Checkpoint, ...]:
        found = []
        for file in _files_in(self.folder):
            try:
                facts = read_checkpoint(file) | {"file": file.name, "sha256": sha256_of_file(file)}
                found.append(msgspec.convert(facts, Checkpoint))
            except (OSError, StoreError, msgspec.ValidationError) as error:
                # Without it, another one would become the best or the last, and nobody would know.
                what = "neither this checkpoint nor the index of the checkpoints can be read"
                fix = "Restore one of them, or remove this file to do without it."
                code = getattr(error, "code", "damaged-checkpoint")
                raise StoreError(what, code=code, where=file, fix=fix) from error
        return tuple(sorted(found, key=lambda one: (one.step, len(one.file), one.file)))

    def _commit(self, kept: Sequence[Checkpoint]) -> None:
        """Write the index, then delete what it does not name."""
        write_json(self.folder / INDEX, _to_json(kept), what="the index of the checkpoints")
        self._kept = tuple(kept)
        # What cannot be deleted now is tried again with the next one.
        with suppress(OSError):
            for file in (*_files_in(self.folder), *self.folder.glob(f".*{TEMPORARY}")):
                if file.name not in {one.file for one in kept}:
                    file.unlink(missing_ok=True)

    def _alternative(self, broken: Checkpoint) -> str:
        for one in sorted(self._before(broken), key=lambda one: one.step, reverse=True):
            with suppress(OSError):
                if sha256_of_file(self.folder / one.file) == one.sha256:
                    again = f"deltacell train --resume {self.folder.parent} --from {one.file}"
                    return f"An earlier one is whole: {again}"
        return "No earlier one is whole. Restore a copy, or train into another directory."


def _reached(one: Checkpoint | None) -> Reached | None:
    if one is None:
        return None
    metric = None if one.metric is None else METRIC
    return Reached(epoch=one.epoch, step=one.step, file=one.file, metric=metric, value=one.metric)


def _best(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    measured = [one for one in checkpoints if one.metric is not None]
    return max(measured, key=lambda one: one.metric or 0.0, default=None)


def _to_json(kept: Sequence[Checkpoint]) -> dict[str, Any]:
    best = _best(kept)
    data = {
        "schema": SCHEMA_VERSION,
        "last": kept[-1].file if kept else None,
        "best": None if best is None else best.file,
        "checkpoints": [asdict(one) for one in kept],
    }
    return data | {"seal": seal_of(data)}


def _read_index(file: Path) -> tuple[Checkpoint, ...] | None:
    """Return what the index names, or None if there is none or it does not match its seal."""
    if not file.is_file():
        return None
    try:
        data = read_json(file, what="the index of the checkpoints")
        kept = msgspec.convert(data["checkpoints"], tuple[Checkpoint, ...])
    except (StoreError, msgspec.ValidationError, KeyError, TypeError) as error:
        if isinstance(error.__cause__, OSError):
            raise
        return None
    ours = all(_NAME.fullmatch(one.file) for one in kept)
    return kept if ours and data == _to_json(kept) else None


def _files_in(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("step-*")) if _NAME.fullmatch(file.name)]


def write_checkpoint(
    path: Path, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None
) -> str:
    """Write a state and where it was taken, and return the SHA-256 of the file."""
    about = {_MARK: SCHEMA_VERSION, "step": step, "epoch": epoch, "metric": metric}
    # It is made in memory because PyTorch hides a full disk behind errors of its own.
    made = io.BytesIO()
    torch.save({**about, "state": plain_state(state)}, made)
    path.write_bytes(made.getbuffer())
    return hashlib.sha256(made.getbuffer()).hexdigest()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return ``step``, ``epoch``, ``metric`` and ``state`` of a file, its tensors on the CPU.

    A file that deltacell did not write is refused, and nothing in it is executed.
    """
    # Read first, so that a disk that fails is told from a file that is damaged.
    held = io.BytesIO(path.read_bytes())
    try:
        with zipfile.ZipFile(held) as archive:
            if archive.testzip() is not None:
                raise ValueError
        held.seek(0)
        payload: dict[str, Any] = torch.load(held, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _unsafe("it holds more than tensors, numbers and text", path) from error
    except Exception as error:  # whatever damaged bytes lead to
        raise _damaged(path) from error
    is_ours = isinstance(payload, dict) and payload.get(_MARK) == SCHEMA_VERSION
    if not is_ours or type(payload.get("state")) is not dict:
        what = f"not a checkpoint of deltacell with schema version {SCHEMA_VERSION}"
        raise StoreError(what, code="not-a-checkpoint", where=path)
    try:
        # Other code in this process may have allowed PyTorch to read more than what we write.
        plain_state(payload)
    except InputError as error:
        raise _unsafe(error.what, path) from error
    return payload


def plain_state(value: Any, where: str = "") -> Any:
    """Return a state as it will be read, or say which key holds what cannot be saved.

    Ordered dicts become dicts, and parameters their tensors; tensors are not copied.
    """
    kind = type(value)
    # Exact types: a numpy float is a float too, and could not be read again.
    if kind in (int, float, str, bool, type(None), Tensor):
        return value
    if kind is nn.Parameter or kind is nn.Buffer:
        return value.detach()
    if kind in (list, tuple):
        return kind(plain_state(one, f"{where}[{place}]") for place, one in enumerate(value))
    if kind in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        dot = "." if where else ""
        return {key: plain_state(one, f"{where}{dot}{key}") for key, one in value.items()}
    what = f"'{where}' is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold"
    raise InputError(what, code="not-plain", key=where)


def _damaged(path: Path) -> StoreError:
    return StoreError("the checkpoint is damaged", code="damaged-checkpoint", where=path)


def _unsafe(why: str, path: Path) -> StoreError:
    return StoreError(f"the file is refused: {why}", code="unsafe-checkpoint", where=path)
