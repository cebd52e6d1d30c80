"""The checkpoints of a run: the last few and the best, each a file that is whole.

A checkpoint is written under a temporary name, flushed and renamed, and only then are old ones
deleted, so a kill or a full disk at any moment leaves whole files. Everything known of a
checkpoint is in its file; its name is its step.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deltacell.errors import InputError, StoreError
from deltacell.files import TEMPORARY, new_file
from deltacell.profile.record import Reached

SCHEMA_VERSION = 1
METRIC = "validation_pearson"
"""The metric that the best checkpoint is chosen by."""

_NAME = re.compile(r"step-\d{8,}\.ckpt")
_MARK = "deltacell_checkpoint"


class Checkpoints:
    """The folder of a run's checkpoints; one process at a time may save, any number may load.

    `keep` is how many of the last to keep; the best is kept in addition.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        self.folder, self.keep = Path(folder), keep
        self._kept: tuple[Reached, ...] | None = None

    @property
    def kept(self) -> tuple[Reached, ...]:
        """All checkpoints by step; none of them may be damaged, or another would be the best."""
        if self._kept is None:
            found = []
            for file in self._files():
                try:
                    one = self._read(file)
                    found.append(_described(file.name, one["step"], one["epoch"], one["metric"]))
                except StoreError:
                    # One that is not there any more was deleted by the process that saves.
                    if file.exists():
                        raise
            self._kept = tuple(found)
        return self._kept

    @property
    def last(self) -> Reached | None:
        return self.kept[-1] if self.kept else None

    @property
    def best(self) -> Reached | None:
        """The checkpoint with the highest metric, the earliest of equals."""
        return _best(self.kept)

    def reached(self) -> dict[str, Reached | None]:
        return {"best": self.best, "last": self.last}

    def save(
        self, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None = None
    ) -> None:
        """Save a state, which becomes the last checkpoint, and the best if its metric is."""
        metric = float(metric) if metric is not None and math.isfinite(metric) else None
        before, file = self.kept, self.folder / f"step-{step:08d}.ckpt"
        try:
            self.folder.mkdir(exist_ok=True)
            with new_file(file) as temporary:
                write_checkpoint(temporary, state, step=step, epoch=epoch, metric=metric)
        except OSError as error:
            left = f"{before[-1].file} is still there" if before else "There is no earlier one"
            raise StoreError(
                f"the checkpoint of step {step} could not be written: {error.strerror or error}",
                code="not-written",
                where=file,
                fix=f"{left}. Free some space, then: deltacell train --resume {self.folder.parent}",
            ) from error
        saved = _described(file.name, step, epoch, metric)
        kept = [*(one for one in before if one.step != step), saved]
        self._kept = tuple(one for one in kept if one in kept[-self.keep :] or one is _best(kept))
        names = {one.file for one in self._kept}
        # What cannot be deleted now is tried again with the next one.
        with suppress(OSError):
            for old in (*self._files(), *self.folder.glob(f".*{TEMPORARY}")):
                if old.name not in names:
                    old.unlink(missing_ok=True)

    def load(self, which: str = "last") -> dict[str, Any]:
        """Return a saved state, on the CPU.

        `which` is ``last``, ``best`` or a file name. Nothing in the file is executed, whatever it
        contains. If it is damaged or missing, the error names an earlier one that is whole.
        """
        state: dict[str, Any] = self._read(self._find(which))["state"]
        return state

    def continue_from(self, which: str) -> None:
        """Make a checkpoint the last by deleting those of later steps, the latest first."""
        files = self._files()
        for file in reversed(files[files.index(self._find(which)) + 1 :]):
            try:
                file.unlink()
            except OSError as error:
                what = f"a later checkpoint cannot be deleted: {error.strerror or error}"
                raise StoreError(what, code="not-written", where=file) from error
        self._kept = None

    def _files(self) -> list[Path]:
        found = (file for file in self.folder.glob("step-*") if _NAME.fullmatch(file.name))
        return sorted(found, key=_step)

    def _find(self, which: str) -> Path:
        files = self._files()
        named = {file.name: file for file in files} | {"last": files[-1] if files else None}
        if which == "best" and self.best is not None:
            named["best"] = self.folder / self.best.file
        found = named.get(which)
        if found is None:
            there = ", ".join(file.name for file in files) or "none"
            what = f"there is no checkpoint '{which}'; the run has {there}"
            fix = f"Resume the run: deltacell train --resume {self.folder.parent}"
            raise StoreError(what, code="no-checkpoint", where=self.folder, fix=fix)
        return found

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            return read_checkpoint(file)
        except (OSError, StoreError) as error:
            what, code = f"the checkpoint cannot be read: {error}", "unreadable-checkpoint"
            if isinstance(error, StoreError):
                what, code = error.what, error.code
            fix = "No earlier one is whole. Restore a copy, or train into another directory."
            for earlier in self._files():
                with suppress(OSError, StoreError):
                    if _step(earlier) < _step(file) and read_checkpoint(earlier):
                        again = f"deltacell train --resume {self.folder.parent}"
                        fix = f"An earlier one is whole: {again} --from {earlier.name}"
            raise StoreError(what, code=code, where=file, fix=fix) from error


def _step(file: Path) -> int:
    return int(file.stem.removeprefix("step-"))


def _described(file: str, step: int, epoch: int, value: float | None) -> Reached:
    metric = None if value is None else METRIC
    return Reached(epoch=epoch, step=step, file=file, metric=metric, value=value)


def _best(checkpoints: Iterable[Reached]) -> Reached | None:
    measured = [one for one in checkpoints if one.value is not None]
    return max(measured, key=lambda one: one.value or 0.0, default=None)


def write_checkpoint(
    path: Path, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None
) -> None:
    """Write a state and where it was taken."""
    about = {_MARK: SCHEMA_VERSION, "step": step, "epoch": epoch, "metric": metric}
    # It is made in memory because PyTorch hides a full disk behind errors of its own.
    made = io.BytesIO()
    torch.save({**about, "state": plain_state(state)}, made)
    path.write_bytes(made.getbuffer())


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
    kinds = {"step": int, "epoch": int, "metric": float | None, "state": dict}
    if not is_ours or not all(isinstance(payload.get(key), kinds[key]) for key in kinds):
        what = f"not a checkpoint of deltacell with schema version {SCHEMA_VERSION}"
        raise StoreError(what, code="not-a-checkpoint", where=path)
    if _NAME.fullmatch(path.name) and payload["step"] != _step(path):
        raise _damaged(path)
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
