"""The checkpoints of a run: states of a training in files that execute nothing when loaded.

A checkpoint is written under a temporary name, flushed and renamed before old ones are deleted, so
a kill or a full disk never leaves a partial file. Its file name is its step.

All that a run needs to resume:

- ``run.json``, the record, with the attempts until now (`deltacell.profile.record`)
- ``config.yaml``, the sealed config; if it was deleted, the config in the checkpoint replaces it
- ``split/``, the rows of each part
- a file in ``checkpoints/``: the state of the training (`deltacell.train.state.TrainingState`, or
  the predictor and its metrics if it was fitted in one call), and under ``meaning`` the config and
  the checksums of the data (`deltacell.train.run_config.meaning`)
- ``members/``, the copied runs, if the predictor is an ensemble
- the cell and the screen, which stay where the config says; their checksums are compared

Without a checkpoint the run begins again. Nothing else in the run directory is read: metrics,
phases, traces and figures are for users.
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

from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import TEMPORARY, JsonObject, Lock, write_bytes
from deltacell.profile.record import Reached

SCHEMA_VERSION = 1
METRIC = "validation_pearson"  # which chooses the best checkpoint
_NAME = re.compile(r"step-\d{8,}\.ckpt")
_MARK = "deltacell_checkpoint"


class Checkpoints:
    """The checkpoints of a run; one process at a time may save, any number may load.

    The last `keep` checkpoints are kept, and the best. With the lock of the run, nothing is written
    or deleted after another process has taken the run over.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 2,
        lock: Lock | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self.lock = lock
        self._kept: tuple[Reached, ...] | None = None

    @property
    def kept(self) -> tuple[Reached, ...]:
        """All checkpoints by step; a damaged one raises, since it could be the best."""
        if self._kept is None:
            kept = []
            for file in self._files():
                try:
                    content = self._read(file)
                except StoreError:
                    # The process that saves may just have deleted it.
                    if file.exists():
                        raise
                    continue
                kept.append(
                    _described(file.name, content["step"], content["epoch"], content["metric"]),
                )
            self._kept = tuple(kept)
        return self._kept

    @property
    def last(self) -> Reached | None:
        """The checkpoint of the highest step."""
        return self.kept[-1] if self.kept else None

    @property
    def best(self) -> Reached | None:
        """The checkpoint with the highest metric, or the earliest of several."""
        return _best(self.kept)

    def reached(self) -> dict[str, Reached | None]:
        """Return the best and the last checkpoint, as the record of a run has them."""
        return {"best": self.best, "last": self.last}

    def save(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        epoch: int,
        metric: float | None = None,
    ) -> None:
        """Save a state as the last checkpoint, and the best if its metric is highest."""
        metric = float(metric) if metric is not None and math.isfinite(metric) else None
        before = self.kept
        file = self.folder / f"step-{step:08d}.ckpt"
        self._check_lock()
        write_checkpoint(file, state, step=step, epoch=epoch, metric=metric)
        saved = _described(file.name, step, epoch, metric)
        candidates = [checkpoint for checkpoint in before if checkpoint.step != step]
        candidates.append(saved)
        latest = candidates[-self.keep :]
        best = _best(candidates)
        self._kept = tuple(
            checkpoint for checkpoint in candidates if checkpoint in latest or checkpoint is best
        )
        names = {checkpoint.file for checkpoint in self._kept}
        self._check_lock()
        # The next save tries again to delete what remains.
        with suppress(OSError):
            for old in (*self._files(), *self.folder.glob(f".*{TEMPORARY}")):
                if old.name not in names:
                    old.unlink(missing_ok=True)

    def load(self, which: str = "last") -> JsonObject:
        """Load the state ``last``, ``best`` or of a file name onto the CPU.

        Loading never executes code. If the file is damaged or missing, the error names an earlier
        checkpoint that is intact.
        """
        state: JsonObject = self._read(self._find(which))["state"]
        return state

    def continue_from(self, which: str) -> None:
        """Delete the checkpoints of later steps, the latest first."""
        files = self._files()
        self._check_lock()
        for file in reversed(files[files.index(self._find(which)) + 1 :]):
            file.unlink()
        self._kept = None

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()

    def _files(self) -> list[Path]:
        files = (file for file in self.folder.glob("step-*") if _NAME.fullmatch(file.name))
        return sorted(files, key=_step)

    def _find(self, which: str) -> Path:
        files = self._files()
        named = {file.name: file for file in files} | {"last": files[-1] if files else None}
        if which == "best" and self.best is not None:
            named["best"] = self.folder / self.best.file
        chosen = named.get(which)
        if chosen is None:
            names = ", ".join(file.name for file in files) or "none"
            what = f"unknown checkpoint '{which}'; the run has {names}"
            fix = f"Resume the run: deltacell train --resume {self.folder.parent}"
            raise StoreError(what, code="no-checkpoint", where=self.folder, fix=fix)
        return chosen

    def _read(self, file: Path) -> JsonObject:
        try:
            return read_checkpoint(file)
        except (OSError, StoreError) as error:
            what = f"the checkpoint cannot be read: {error}"
            code = "unreadable-checkpoint"
            if isinstance(error, StoreError):
                what = error.message
                code = error.code
            fix = "No earlier one is intact. Restore a copy, or remove it to do without it."
            for earlier in self._files():
                with suppress(OSError, StoreError):
                    if _step(earlier) < _step(file) and read_checkpoint(earlier):
                        again = f"deltacell train --resume {self.folder.parent}"
                        fix = f"An earlier one is intact: {again} --from {earlier.name}"
            raise StoreError(what, code=code, where=file, fix=fix) from error


def _step(file: Path) -> int:
    return int(file.stem.removeprefix("step-"))


def _described(file: str, step: int, epoch: int, value: float | None) -> Reached:
    metric = None if value is None else METRIC
    return Reached(epoch=epoch, step=step, file=file, metric=metric, value=value)


def _best(checkpoints: Iterable[Reached]) -> Reached | None:
    measured = [checkpoint for checkpoint in checkpoints if checkpoint.value is not None]
    return max(measured, key=lambda checkpoint: checkpoint.value or 0.0, default=None)


def write_checkpoint(
    path: Path,
    state: Mapping[str, Any],
    *,
    step: int,
    epoch: int,
    metric: float | None,
) -> None:
    """Write a checkpoint; whatever happens, the file at its path is complete."""
    header = {_MARK: SCHEMA_VERSION, "step": step, "epoch": epoch, "metric": metric}
    # Serialised in memory, because PyTorch would report a full disk as another error.
    buffer = io.BytesIO()
    torch.save({**header, "state": plain_state(state)}, buffer)
    # Not `getbuffer`: a view in the traceback of a failed write would outlive the buffer.
    write_bytes(path, buffer.getvalue(), what=f"the checkpoint of step {step}")


def read_checkpoint(path: Path) -> JsonObject:
    """Return ``step``, ``epoch``, ``metric`` and ``state``, with tensors on the CPU.

    A file that deltacell did not write raises, and is never executed.
    """
    # Read first, to distinguish a failing disk from a damaged file.
    content = io.BytesIO(path.read_bytes())
    damaged = StoreError("the checkpoint is damaged", code="damaged-checkpoint", where=path)
    try:
        with zipfile.ZipFile(content) as archive:
            if archive.testzip() is not None:
                raise ValueError
        content.seek(0)
        payload: JsonObject = torch.load(content, map_location="cpu", weights_only=True)
        # Other code in this process may have allowed PyTorch to load more types.
        plain_state(payload)
    except (pickle.UnpicklingError, InputError) as error:
        what = "the file is refused: it contains more than tensors, numbers and text"
        raise StoreError(what, code="unsafe-checkpoint", where=path) from error
    except Exception as error:  # damaged bytes can raise anything
        raise damaged from error
    is_ours = isinstance(payload, dict) and payload.get(_MARK) == SCHEMA_VERSION
    kinds = {"step": int, "epoch": int, "metric": float | None, "state": dict}
    if not is_ours or not all(isinstance(payload.get(key), kinds[key]) for key in kinds):
        what = f"not a checkpoint of deltacell with schema version {SCHEMA_VERSION}"
        raise StoreError(what, code="not-a-checkpoint", where=path)
    if _NAME.fullmatch(path.name) and payload["step"] != _step(path):
        raise damaged
    return payload


def plain_state(value: Any, where: str = "") -> Any:
    """Return a state as it will be loaded, or raise for a value that cannot be saved.

    Ordered dicts become dicts, and parameters tensors; tensors are not copied.
    """
    kind = type(value)
    # Exact types, because a NumPy float is a float too, and could not be loaded.
    if kind in (int, float, str, bool, type(None), Tensor):
        return value
    if kind is nn.Parameter or kind is nn.Buffer:
        return value.detach()
    if kind in (list, tuple):
        return kind(plain_state(item, f"{where}[{i}]") for i, item in enumerate(value))
    if kind in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        dot = "." if where else ""
        return {key: plain_state(item, f"{where}{dot}{key}") for key, item in value.items()}
    what = f"'{where}' is a {kind.__module__}.{kind.__qualname__}, which cannot be saved"
    raise InputError(what, code="not-plain", key=where)
