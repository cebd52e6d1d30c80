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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import TEMPORARY, JsonObject, Lock, write_bytes
from deltacell.profile.record import Reached

SCHEMA_VERSION = 1
PEARSON = "pearson"  # chooses the best checkpoint unless `trainer.best` names other metrics
LOWER_IS_BETTER = frozenset({"loss", "mse"})
BEST_OF = "best-"  # before a metric in the name of a checkpoint to load
_NAME = re.compile(r"step-\d{8,}\.ckpt")
_MARK = "deltacell_checkpoint"


class Checkpoints:
    """The checkpoints of a run; one process at a time may save, any number may load.

    The last `keep` checkpoints are kept, and the best by each metric of `best_by`, the first of
    which chooses the best of all. With the lock of the run, nothing is written or deleted after
    another process has taken the run over.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 2,
        lock: Lock | None = None,
        *,
        best_by: Sequence[str] = (PEARSON,),
    ) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self.best_by = tuple(best_by)
        self.lock = lock
        self._kept: tuple[_MeasuredCheckpoint, ...] | None = None

    @property
    def kept(self) -> tuple[Reached, ...]:
        """All checkpoints by step; a damaged one raises, since it could be the best."""
        return tuple(measured.reached for measured in self._measured)

    @property
    def _measured(self) -> tuple[_MeasuredCheckpoint, ...]:
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
                kept.append(_MeasuredCheckpoint.of(file.name, content))
            self._kept = tuple(kept)
        return self._kept

    @property
    def last(self) -> Reached | None:
        """The checkpoint of the highest step."""
        return self.kept[-1] if self.kept else None

    @property
    def best(self) -> Reached | None:
        """The checkpoint that is best by the leading metric, or the earliest of several."""
        by_metric = self.best_by_metric
        return next(iter(by_metric.values()), None)

    @property
    def best_by_metric(self) -> dict[str, Reached]:
        """The best checkpoint by each metric, the leading one first, as the last one was saved."""
        measured = self._measured
        if not measured:
            return {}
        best = {name: _best(measured, name) for name in measured[-1].best_by}
        return {name: one.reached_by(name) for name, one in best.items() if one is not None}

    def reached(self) -> JsonObject:
        """Return the best and the last checkpoint, as the record of a run has them."""
        others = tuple(self.best_by_metric.values())[1:]
        return {"best": self.best, "last": self.last, "best_by_others": others}

    def save(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        epoch: int,
        metrics: Mapping[str, float | None] | None = None,
    ) -> None:
        """Save a state as the last checkpoint, and the best if one of its metrics is best.

        `metrics` are those of the validation by name, such as `PEARSON`, if there was one.
        """
        finite = {
            name: float(value)
            for name, value in (metrics or {}).items()
            if value is not None and math.isfinite(value)
        }
        before = self._measured
        file = self.folder / f"step-{step:08d}.ckpt"
        self._check_lock()
        header = write_checkpoint(
            file,
            state,
            step=step,
            epoch=epoch,
            metrics=finite,
            best_by=self.best_by,
        )
        saved = _MeasuredCheckpoint.of(file.name, header)
        candidates = [checkpoint for checkpoint in before if checkpoint.reached.step != step]
        candidates.append(saved)
        wanted = {checkpoint.reached.file for checkpoint in candidates[-self.keep :]}
        for name in self.best_by:
            best = _best(candidates, name)
            if best is not None:
                wanted.add(best.reached.file)
        self._kept = tuple(one for one in candidates if one.reached.file in wanted)
        names = wanted
        self._check_lock()
        # The next save tries again to delete what remains.
        with suppress(OSError):
            for old in (*self._files(), *self.folder.glob(f".*{TEMPORARY}")):
                if old.name not in names:
                    old.unlink(missing_ok=True)

    def load(self, which: str = "last") -> JsonObject:
        """Load the state ``last``, ``best``, ``best-mse`` or of a file name onto the CPU.

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
        if which.startswith("best"):
            by_metric = self.best_by_metric
            named |= {f"{BEST_OF}{name}": self.folder / x.file for name, x in by_metric.items()}
            if self.best is not None:
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


@dataclass(frozen=True)
class _MeasuredCheckpoint:
    """A checkpoint with all metrics of its validation."""

    reached: Reached
    metrics: Mapping[str, float]
    best_by: tuple[str, ...]  # the metrics by which the run keeps the best

    @classmethod
    def of(cls, file: str, header: Mapping[str, Any]) -> _MeasuredCheckpoint:
        """Return the checkpoint of a file with a header; earlier ones had one metric."""
        metric = header["metric"]
        earlier = {} if metric is None else {PEARSON: metric}
        best_by = tuple(header.get("best_by", (PEARSON,)))
        reached = Reached(epoch=header["epoch"], step=header["step"], file=file)
        measured = cls(reached, header.get("metrics", earlier), best_by)
        return replace(measured, reached=measured.reached_by(best_by[0]))

    def reached_by(self, name: str) -> Reached:
        """Return the checkpoint with its value of a metric, if it has one."""
        if name not in self.metrics:
            return replace(self.reached, metric=None, value=None)
        return replace(self.reached, metric=f"validation_{name}", value=self.metrics[name])


def validation_metrics(row: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics of the validation in a row of ``metrics.csv``, by name."""
    prefix = "validation_"
    values = {name.removeprefix(prefix): x for name, x in row.items() if name.startswith(prefix)}
    return {name: value for name, value in values.items() if value is not None}


def score_of(metrics: Mapping[str, float], name: str) -> float:
    """Return a metric so that the highest value is best."""
    return -metrics[name] if name in LOWER_IS_BETTER else metrics[name]


def _best(checkpoints: Iterable[_MeasuredCheckpoint], name: str) -> _MeasuredCheckpoint | None:
    measured = [checkpoint for checkpoint in checkpoints if name in checkpoint.metrics]
    return max(measured, key=lambda one: score_of(one.metrics, name), default=None)


def write_checkpoint(
    path: Path,
    state: Mapping[str, Any],
    *,
    step: int,
    epoch: int,
    metrics: Mapping[str, float],
    best_by: Sequence[str] = (PEARSON,),
) -> dict[str, Any]:
    """Write a checkpoint and return its header; the file at its path is always complete."""
    header = {
        _MARK: SCHEMA_VERSION,
        "step": step,
        "epoch": epoch,
        "metric": metrics.get(best_by[0]),
        "metrics": dict(metrics),
        "best_by": list(best_by),
    }
    # Serialised in memory, because PyTorch would report a full disk as another error.
    buffer = io.BytesIO()
    torch.save({**header, "state": plain_state(state)}, buffer)
    # Not `getbuffer`: a view in the traceback of a failed write would outlive the buffer.
    write_bytes(path, buffer.getvalue(), what=f"the checkpoint of step {step}")
    return header


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
