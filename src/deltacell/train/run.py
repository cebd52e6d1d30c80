"""A run from its config to its end: what `deltacell train` does in every process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltacell.errors import DeltacellError, InputError
from deltacell.models.baselines import FittedPredictor
from deltacell.models.pairs import PairTrees
from deltacell.profile.capture import Capture, Window, check_window
from deltacell.profile.host_profilers import HostProfiler
from deltacell.profile.phase_rows import PhaseSummary, read_phases
from deltacell.profile.record import (
    CHECKPOINTS,
    PHASES,
    RUN_FILE,
    SPLIT,
    TRACES,
    Status,
    Target,
    read_run,
)
from deltacell.train.build import build_fitted, propagation_record
from deltacell.train.callbacks import Callback, Loggers, check_loggers
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config, EnsembleConfig
from deltacell.train.data import Standard, TrainingData, draw_zeros, load_data
from deltacell.train.loop import Loop
from deltacell.train.predictor import Ensemble, Predictor
from deltacell.train.processes import StopSignals, from_first_rank, make_fabric, set_threads
from deltacell.train.run_directory import (
    MEANING,
    RunDirectory,
    check_meaning,
    meaning,
    new_path,
    resumed_config,
    write_metrics,
)
from deltacell.train.task import Task, Validation
from deltacell.words import Progress

if TYPE_CHECKING:
    import lightning


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    path: Path
    signal: int  # the number of the signal that stopped it, or 0
    best: float | None = None  # the highest validation Pearson
    phases: PhaseSummary | None = None  # None if not recorded, and on ranks other than 0
    is_first: bool = True  # whether this is rank 0
    notices: tuple[str, ...] = ()  # what a profiler did not record, and why


def train(
    config: Config,
    *,
    command: Sequence[str] = (),
    tell: Sequence[Callback] = (),
    data: TrainingData | None = None,
) -> Outcome:
    """Train from the beginning; every rank calls this with the same config.

    `command` is for the record; `data` is what the config names, if that is loaded already.
    """
    if config.model.fitted:
        return fit_run(config, command=command, data=data)
    fabric = make_fabric(config)
    path = new_path(config)
    # A run of this config that was killed before its first checkpoint begins again.
    begun = fabric.is_global_zero and _is_begun(path, config)
    begun = begun and Checkpoints(path / CHECKPOINTS).last is None
    path, begun = from_first_rank((path, begun))
    if begun:
        return _resumed(fabric, config, path, "last", tell)
    data = data or load_data(config)
    # What can be wrong with a config is found here, before there is a directory.
    loop = Loop(fabric, config, data, path)
    loop.profilers = _profilers(loop, is_new=True)
    with ExitStack() as stack:
        if fabric.is_global_zero:
            size, split = fabric.world_size, data.split
            new = RunDirectory.create(path, config, command, world_size=size, split=split)
            loop.directory = stack.enter_context(new)
        stack.enter_context(loop.signals)
        return _trained(loop, tell)


def resume(
    path: Path, config: Config, *, which: str = "last", tell: Sequence[Callback] = ()
) -> Outcome:
    """Resume a run from a checkpoint (``last``, ``best`` or a name), as if it had never stopped.

    A run that was stopped before its first checkpoint starts from the beginning. One that had done
    all its work when it was killed is recorded as finished.
    """
    if config.model.fitted:
        return fit_run(config, resume=path)
    return _resumed(make_fabric(config), config, path, which, tell)


def _is_begun(path: Path, config: Config) -> bool:
    if not (path / RUN_FILE).is_file():
        return False
    return read_run(path).status is not Status.finished and resumed_config(path) == config


def _resumed(
    fabric: lightning.Fabric, config: Config, path: Path, which: str, tell: Sequence[Callback]
) -> Outcome:
    with ExitStack() as stack:
        directory = None
        known: tuple[Status, dict[str, Any] | None] = (Status.running, None)
        if fabric.is_global_zero:
            directory = stack.enter_context(RunDirectory.open(path))
            known = (directory.record.status, directory.record.propagation)
        status, propagation = from_first_rank(known)
        loop = Loop(fabric, config, load_data(config, path / SPLIT), path, propagation)
        loop.profilers, loop.directory = _profilers(loop, is_new=False), directory
        # Signals also count while it begins and ends, so that the record says what happened.
        stack.enter_context(loop.signals)
        if which != "last" or loop.checkpoints.last is not None:
            state = loop.checkpoints.load(which)
            check_meaning(state, config, loop.data, path)
            loop.load_state_dict(state)
            if loop.finished and status is Status.finished:
                epochs = loop.position.epoch
                what, more = f"the run has finished its {epochs} epochs", epochs + 10
                fix = f"For more: deltacell train --resume {path} trainer.epochs={more}"
                raise InputError(what, code="already-finished", where=path, fix=fix)
            if directory is not None:
                loop.checkpoints.continue_from(which)
        if directory is not None:
            step, size = loop.position.step, fabric.world_size
            directory.resume(config, from_step=step, world_size=size)
            write_metrics(path, loop.rows)
        return _trained(loop, tell)


def _trained(loop: Loop, tell: Sequence[Callback]) -> Outcome:
    """Train to the end, and leave the record as it ended."""
    fabric, config, directory, path = loop.fabric, loop.config, loop.directory, loop.path
    summary = None
    if directory is not None:
        loop.attempt = len(directory.record.attempts) - 1
        loop.callbacks = (*tell, Loggers(config.loggers, path))
        device, model, scale = fabric.device, loop.task.model, loop.data.standard
        directory.update(
            **loop.data.facts(),
            device=str(device),
            threads=torch.get_num_threads() if device.type == "cpu" else None,
            precision=config.trainer.precision,
            batch_size=config.data.batch_size,
            accumulate=config.optimizer.accumulate,
            steps_per_epoch=loop.schedule.steps_per_epoch,
            epochs=config.trainer.epochs,
            propagation=propagation_record(model),
            n_parameters=sum(weight.numel() for weight in model.parameters()),
            target=Target(mean=scale.mean, std=scale.std),
        )
    loop.attempt = from_first_rank(loop.attempt)
    signal = loop.run()
    loop.flush()
    fabric.barrier()
    if directory is not None:
        if config.profiler.phases:
            summary = PhaseSummary(read_phases(path / PHASES))
        status = Status.interrupted if signal else Status.finished
        directory.end(status, limits=None if summary is None else summary.sentence)
    # A launcher may stop the first rank, which still writes, as soon as another one ends.
    fabric.barrier()
    notices = tuple(notice for profiler in loop.profilers for notice in profiler.notices)
    best = loop.checkpoints.best
    metric = None if best is None else best.metric
    return Outcome(path, signal, metric, summary, fabric.is_global_zero, notices)


def _profilers(loop: Loop, *, is_new: bool) -> list[Capture | HostProfiler]:
    profiler, config = loop.config.profiler, loop.config
    folder, rank, size = loop.path / TRACES, loop.fabric.global_rank, loop.fabric.world_size
    found: list[Capture | HostProfiler] = []
    check_loggers(config.loggers)
    if profiler.trace:
        window = Window.of(profiler.window)
        # What a resumed run has left may be less than the window, which was recorded.
        if is_new:
            check_window(
                window,
                samples=loop.training.samples_per_epoch,
                batch_size=config.data.batch_size,
                accumulate=config.optimizer.accumulate,
                epochs=config.trainer.epochs,
                world_size=size,
                steps=loop.batches,
            )
        names = ("record_shapes", "profile_memory", "with_stack")
        options: dict[str, Any] = {name: getattr(profiler, name) for name in names}
        found.append(Capture(window, folder, rank, world_size=size, timer=loop.timer, **options))
    if profiler.kind is not None:
        if profiler.with_stack and profiler.trace:
            what = f"profiler.with_stack and profiler.kind={profiler.kind} both hook into Python"
            raise InputError(what, code="conflicting-settings")
        model = type(loop.task.model)
        functions = (Task.forward, Task.prepare, model.forward, Loop._accumulated_step)
        found.append(HostProfiler(profiler.kind, folder, rank, functions))
    return found


# Runs whose predictor is fitted in one call: additive effects, boosted trees and the like.


def fit_run(
    config: Config,
    *,
    resume: Path | None = None,
    command: Sequence[str] = (),
    data: TrainingData | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Fit a predictor into a new run directory, or again into one whose fit did not finish."""
    if isinstance(config.model, EnsembleConfig) and config.model.runs:
        first = resumed_config(config.model.runs[0])
        config = replace(config, data=first.data, split=first.split)
    path = new_path(config) if resume is None else resume
    # What can be wrong with a config is found here, before there is a directory.
    predictor = build_fitted(config)
    if resume is None and not _is_begun(path, config):
        data = data or load_data(config)
        with RunDirectory.create(path, config, command, split=data.split) as directory:
            return _fit(directory, config, predictor, data, progress)
    with RunDirectory.open(path) as directory:
        status, last = directory.record.status, Checkpoints(path / CHECKPOINTS).last
        if status is Status.finished:
            what = f"the run has finished; use it: deltacell evaluate {path}"
            raise InputError(what, code="already-finished", where=path)
        if status is Status.running and last is not None:
            # It was killed after the fit, before its record said so.
            return _end_fit(directory)
        data = data or load_data(config, path / SPLIT)
        directory.resume(config, from_step=0)
        return _fit(directory, config, predictor, data, progress)


class _StoppedError(Exception):
    """A signal arrived while the predictor was being fitted."""


def _fit(
    directory: RunDirectory,
    config: Config,
    predictor: FittedPredictor,
    data: TrainingData,
    progress: Progress | None,
) -> Outcome:
    set_threads(config.trainer)
    path, began = directory.path, time.monotonic()
    rows: list[dict[str, float]] = []
    directory.update(**data.facts(), device="cpu", threads=torch.get_num_threads())

    def append(row: dict[str, float]) -> None:
        n, seconds = len(rows) + 1, time.monotonic() - began
        rows.append({**row, "epoch": n, "step": n, "seconds": seconds})
        write_metrics(path, rows)

    def report(what: str, done: int, total: int) -> None:
        if signals.received is not None:
            raise _StoppedError
        for row in predictor.history[len(rows) :]:
            append(row)
        if progress is not None:
            progress(what, done, total)

    with StopSignals() as signals:
        genotypes, measured = data.part(data.split.validation)
        options: dict[str, Any] = {"seed": config.seed, "progress": report}
        if len(genotypes):
            options["validation"] = (genotypes, measured)
        try:
            if isinstance(predictor, Ensemble):
                predictor.adopt(path, data)
            if isinstance(predictor, PairTrees):
                options["zeros"] = draw_zeros(data, predictor.zeros, config.split.seed)
            predictor.fit(data.cell, *data.part(data.split.train), **options)
            report("validation", 0, 0)
        except _StoppedError:
            directory.end(Status.interrupted)
            return Outcome(path, signals.received or 0)
        row: dict[str, float] = {}
        if len(genotypes):
            found = Predictor(predictor, data.cell, Standard()).predict(genotypes)
            # What was measured is a hit; a predictor of two parts tells the score of one.
            score = found.score if found.given_hit is None else found.given_hit
            predicted = score.numpy().astype(np.float64)
            measures = Validation(measured, predicted, loss=float("nan")).metrics()
            row = {f"validation_{name}": measures[name] for name in ("pearson", "spearman", "mse")}
        append(row)
        state = {"predictor": predictor.state_dict(), MEANING: meaning(config, data)}
        checkpoints, n = Checkpoints(path / CHECKPOINTS, config.trainer.keep), len(rows)
        checkpoints.save(state, step=n, epoch=n, metric=row.get("validation_pearson"))
        return _end_fit(directory)


def _end_fit(directory: RunDirectory) -> Outcome:
    directory.end(Status.finished)
    best = directory.record.best
    return Outcome(directory.path, 0, None if best is None else best.value)


# Execution modes side by side.

ORDER = ("empty", "data", "forward", "step", "train", "fixed")


@dataclass(frozen=True)
class Marginal:
    """What a part of a step costs."""

    part: str
    modes: tuple[str, str]
    marginal_ms: float  # the difference of two modes: its share only if nothing overlaps
    exposed_ms: float  # its phases in the mode ``train``, which do add up


_PARTS = (
    ("data, preparation, transfer", "data", "", ("data_wait", "preparation", "transfer")),
    ("forward and loss", "forward", "data", ("forward", "loss")),
    ("backward and communication", "step", "forward", ("backward", "communication")),
    ("optimizer", "train", "step", ("optimizer",)),
)


def run_modes(
    overrides: Sequence[str], steps: int = 30, progress: Progress | None = None
) -> dict[str, PhaseSummary]:
    """Run every mode of a config for some batches, each in a process of its own."""
    found = {}
    quiet = ["trainer.progress=false", "profiler.trace=false", "loggers.tensorboard=false"]
    with tempfile.TemporaryDirectory(prefix="deltacell-modes-") as folder:
        for i, mode in enumerate(ORDER):
            if progress is not None:
                progress(f"mode {mode}", i, len(ORDER))
            path = Path(folder) / mode
            words = [f"mode={mode}", f"mode_steps={steps}", f"directory='{path}'", *quiet]
            command = [sys.executable, "-m", "deltacell", "train", *overrides, *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                error = (done.stderr or done.stdout).strip().removeprefix("error: ")
                raise DeltacellError(f"the mode '{mode}' failed: {error}")
            found[mode] = PhaseSummary(read_phases(path / PHASES))
    return found


def marginals(by: Mapping[str, PhaseSummary]) -> list[Marginal]:
    """Return the differences between modes, beside the phases of the whole step."""
    return [
        Marginal(
            part,
            (more, less),
            by[more].ms_per_step - (by[less].ms_per_step if less else 0.0),
            sum(by["train"].of(phase).ms_per_step for phase in phases),
        )
        for part, more, less, phases in _PARTS
    ]
