"""Runs from config to end: what `deltacell train` does in every process."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from deltacell.base.errors import DeltacellError, InputError, StoreError
from deltacell.base.text import Progress, hydra_text
from deltacell.models.fitted.predictor import FittedPredictor
from deltacell.models.interface import TargetScale
from deltacell.profile.fit_phases import FitTimer, write_fit_phases
from deltacell.profile.limits import limits_of_fit, limits_sentence
from deltacell.profile.phase_rows import PhaseSummary, read_phases
from deltacell.profile.record import PHASES, RUN_FILE, SPLIT, RunRecord, Status, Target, read_run
from deltacell.report.progress import progress_bar
from deltacell.screen import Split
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, draw_zeros, load_data
from deltacell.train.loop import Loggers, Loop
from deltacell.train.places import changes
from deltacell.train.predictor import TrainedPredictor, build_fitted, model_record
from deltacell.train.processes import StopSignals, make_fabric, set_threads
from deltacell.train.run_directory import (
    MEANING,
    RunDirectory,
    check_meaning,
    create_run,
    meaning,
    new_path,
    opened,
    resumed_config,
    run_exists,
)
from deltacell.train.task import Validation


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    path: Path
    signal: int  # the number of the signal that stopped it, or 0
    phases: PhaseSummary | None = None  # None if not recorded, and on ranks other than 0
    is_first: bool = True  # whether this is rank 0
    notices: tuple[str, ...] = ()  # of profilers that could not record everything

    @property
    def best(self) -> float | None:
        """The highest validation Pearson, if there was a validation."""
        best = read_run(self.path).best
        return None if best is None else best.value

    @property
    def limits(self) -> str | None:
        """What limits the run, if its phases were recorded."""
        return None if self.phases is None else limits_sentence(self.phases)


def train(
    config: Config,
    *,
    resume: Path | None = None,
    which: str = "last",
    command: Sequence[str] = (),
    data: TrainingData | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Train or fit the predictor of a config; every rank calls this with the same config.

    `resume` is a run directory to resume from its checkpoint `which` (``last``, ``best`` or a file
    name). A run without a checkpoint starts from the beginning, and one that was killed after its
    last step is recorded as finished. `command` is for the record, `data` is the data of the config
    if loaded already, and `progress` replaces the progress bar of a fit.
    """
    timer = FitTimer()
    if (other := config.model.data_from()) is not None:
        member = resumed_config(other)
        config = replace(config, data=member.data, split=member.split)
    fabric = None if config.model.trained_by == "fit" else make_fabric(config)
    size, is_first = (1, True) if fabric is None else (fabric.world_size, fabric.is_global_zero)
    path = new_path(config) if resume is None else resume
    resumes = resume is not None
    if is_first and not resumes and (path / RUN_FILE).is_file():
        # Rerunning a command that was stopped resumes the run.
        resumes = read_run(path).status is not Status.finished
        changed = changes(resumed_config(path), config)
        if changed or not resumes:
            raise run_exists(path, changed)
    if fabric is not None:
        path, resumes = fabric.broadcast((path, resumes))
    with ExitStack() as stack:
        directory = stack.enter_context(opened(path)) if is_first and resumes else None
        before = None if directory is None else directory.record
        if fabric is not None:
            before = fabric.broadcast(before)
        if data is None:
            with timer.phase("reading"):
                data = load_data(config, path / SPLIT if resumes else None)
        elif resumes and Split.load(path / SPLIT, data.screen).checksum != data.split.checksum:
            what = "the run was started with another split"
            raise StoreError(what, code="other-split", where=path)
        if is_first and not resumes:
            for sentence in data.warnings:
                warnings.warn(sentence, stacklevel=2)
        # Mistakes in a config raise here, before there is a directory.
        if fabric is None:
            predictor = build_fitted(config, data)
        else:
            loop = Loop(fabric, config, data, path, before)
        if is_first and not resumes:
            create_run(path, config, command, world_size=size, split=data.split)
            directory = stack.enter_context(opened(path, running=True))
        if fabric is None:
            assert directory is not None
            if progress is None and config.trainer.progress:
                progress = stack.enter_context(progress_bar())
            return _fitted(directory, config, predictor, data, before, progress, timer)
        loop.directory = directory
        if directory is not None:
            loop.checkpoints = directory.checkpoints(config.trainer.keep)
        # From here on, signals end the run in an orderly way.
        stack.enter_context(loop.signals)
        if before is not None:
            _go_back(loop, which, before.status)
        return _trained(loop)


def _go_back(loop: Loop, which: str, status: Status) -> None:
    """Start another attempt from a checkpoint, or from the beginning if there is none."""
    path, directory = loop.path, loop.directory
    if which != "last" or loop.checkpoints.last is not None:
        state = loop.checkpoints.load(which)
        check_meaning(state, loop.config, loop.data, path)
        loop.load_state_dict(state)
        if loop.finished and status is Status.finished:
            epochs = loop.position.epoch
            what, more = f"the run has finished its {epochs} epochs", epochs + 10
            fix = f"For more: deltacell train --resume {path} trainer.epochs={more}"
            raise InputError(what, code="already-finished", where=path, fix=fix)
        if directory is not None:
            loop.checkpoints.continue_from(which)
    if directory is not None:
        size = loop.fabric.world_size
        directory.resume(loop.config, from_step=loop.position.step, world_size=size)
        directory.write_metrics(loop.rows)


def _trained(loop: Loop) -> Outcome:
    fabric, config, directory, path = loop.fabric, loop.config, loop.directory, loop.path
    summary = None
    if directory is not None:
        loop.loggers = Loggers(config.loggers, path)
        device, model, scale = fabric.device, loop.task.model, loop.data.standard
        facts = model.facts()
        directory.update(
            **loop.data.facts(),
            device=str(device),
            threads=torch.get_num_threads() if device.type == "cpu" else None,
            precision=config.trainer.precision,
            batch_size=config.data.batch_size,
            accumulate=config.optimizer.accumulate,
            steps_per_epoch=loop.steps_per_epoch,
            epochs=config.trainer.epochs,
            model=model_record(config, model, loop.data.cell),
            propagation=facts.pop("propagation", None),
            model_facts=facts,
            n_parameters=sum(weight.numel() for weight in model.parameters()),
            target=Target(mean=scale.mean, std=scale.std),
        )
    signal = loop.run()
    loop.flush()
    fabric.barrier()
    if directory is not None:
        if config.profiler.phases:
            summary = PhaseSummary(read_phases(path / PHASES))
        status = Status.interrupted if signal else Status.finished
        directory.end(status, limits=None if summary is None else limits_sentence(summary))
    # A launcher may stop rank 0, which still writes, as soon as another rank ends.
    fabric.barrier()
    notices = tuple(notice for profiler in loop.profilers for notice in profiler.notices)
    return Outcome(path, signal, summary, fabric.is_global_zero, notices)


def _fitted(
    directory: RunDirectory,
    config: Config,
    predictor: FittedPredictor,
    data: TrainingData,
    before: RunRecord | None,
    progress: Progress | None,
    timer: FitTimer,
) -> Outcome:
    """Fit a predictor in one call; a fit that did not finish starts again."""
    path, began = directory.path, time.monotonic()
    checkpoints = directory.checkpoints(config.trainer.keep)
    if before is not None:
        if before.status is Status.finished:
            what = f"the run has finished; use it: deltacell evaluate {path}"
            raise InputError(what, code="already-finished", where=path)
        if before.status is Status.running and checkpoints.last is not None:
            # It was killed after the fit and before it was recorded as finished.
            directory.end(Status.finished)
            return Outcome(path, 0)
        directory.resume(config, from_step=0)
    set_threads(config.trainer)
    directory.update(**data.facts(), device="cpu", threads=torch.get_num_threads())

    def report(what: str, done: int, total: int) -> None:
        if signals.received is not None:
            raise KeyboardInterrupt
        if progress is not None:
            progress(what, done, total)

    validation = genotypes, measured = data.part(data.split.validation)
    held_out = validation if len(genotypes) else None
    with StopSignals() as signals:
        try:
            predictor.keep_files(path, data)
            predictor.fit(
                data.cell,
                *data.part(data.split.train),
                validation=held_out,
                draw_zeros=lambda ratio: draw_zeros(data, ratio, config.split.seed),
                seed=config.seed,
                progress=report,
                phase=timer.phase,
            )
            directory.update(model_facts=predictor.facts())
            report("validation", 0, 0)
        except KeyboardInterrupt:
            directory.end(Status.interrupted)
            return Outcome(path, signals.received or 0)
        last: dict[str, float] = {"seconds": time.monotonic() - began}
        if len(genotypes):
            with timer.phase("validation"):
                found = TrainedPredictor(predictor, data.cell, TargetScale()).predict(genotypes)
            # Measured sets are hits, so a two-part predictor is validated on its score given a hit.
            score = found.among_hits
            metrics = Validation(measured, score.double().numpy(), loss=math.nan).metrics()
            last |= {f"validation_{name}": metrics[name] for name in ("pearson", "spearman", "mse")}
        rows = [
            {**{name: float(value) for name, value in row.items()}, "epoch": n, "step": n}
            for n, row in enumerate([*predictor.history, last], 1)
        ]
        directory.write_metrics(rows)
        state = {
            "predictor": predictor.state_dict(),
            "rows": rows,
            MEANING: meaning(config, data, path),
        }
        n, metric = len(rows), last.get("validation_pearson")
        with timer.phase("checkpoint"):
            checkpoints.save(state, step=n, epoch=n, metric=metric)
        limits = None
        if config.profiler.phases:
            seconds = timer.seconds()
            write_fit_phases(path / PHASES, len(directory.record.attempts) - 1, seconds)
            limits = limits_of_fit(seconds)
        directory.end(Status.finished, limits=limits)
        return Outcome(path, 0)


ORDER = ("empty", "data", "forward", "step", "train", "fixed")
_PARTS = (
    ("data, preparation, transfer", "data", "", ("data_wait", "preparation", "transfer")),
    ("forward and loss", "forward", "data", ("forward", "loss")),
    ("backward and communication", "step", "forward", ("backward", "communication")),
    ("optimizer", "train", "step", ("optimizer",)),
)


def run_modes(
    overrides: Sequence[str],
    steps: int = 30,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, PhaseSummary]:
    """Run every execution mode of a config for some batches, each in a new process."""
    found = {}
    quiet = ["trainer.progress=false", "profiler.trace=false", "loggers.tensorboard=false"]
    with tempfile.TemporaryDirectory(prefix="deltacell-modes-") as folder:
        for i, mode in enumerate(ORDER):
            progress(f"mode {mode}", i, len(ORDER))
            path = Path(folder) / mode
            words = [f"mode={mode}", f"mode_steps={steps}", f"directory={hydra_text(path)}", *quiet]
            command = [sys.executable, "-m", "deltacell", "train", *overrides, *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                error = (done.stderr or done.stdout).strip().removeprefix("error: ")
                raise DeltacellError(f"the mode '{mode}' failed: {error}")
            found[mode] = PhaseSummary(read_phases(path / PHASES))
    return found


def marginals(by: Mapping[str, PhaseSummary]) -> list[dict[str, Any]]:
    """Return the cost of each part of a step.

    ``marginal_ms`` is the difference between two modes, which adds up only if nothing overlaps;
    ``exposed_ms`` is the sum of its phases in the mode ``train``.
    """
    ms = {"": 0.0} | {mode: summary.ms_per_step for mode, summary in by.items()}
    rows = []
    for part, more, less, phases in _PARTS:
        exposed = sum(by["train"].of(phase).ms_per_step for phase in phases)
        costs = {"marginal_ms": ms[more] - ms[less], "exposed_ms": exposed}
        rows.append({"part": part, "modes": (more, less), **costs})
    return rows
