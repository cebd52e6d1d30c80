"""A run from its config to its end: what `deltacell train` does in every process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltacell.errors import DeltacellError, InputError
from deltacell.models.baselines import FittedPredictor
from deltacell.models.pairs import PairTrees
from deltacell.profile.capture import Capture, Window, check_window
from deltacell.profile.host_profilers import HostProfiler, host_profiler
from deltacell.profile.phase_rows import PhaseSummary, read_phases, summarise
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.profile.record import (
    CHECKPOINTS,
    METRICS_FILE,
    PHASES,
    RUN_FILE,
    SPLIT,
    TRACES,
    Status,
    Target,
    read_run,
)
from deltacell.train.build import (
    build_fitted,
    make_loop,
    propagation_record,
    recorded_propagation,
    samples_per_epoch,
)
from deltacell.train.callbacks import Callback, Figures, check_loggers, make_loggers
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config, EnsembleConfig, Mode, is_fitted
from deltacell.train.data import Standard, TrainingData, draw_zeros, load_data
from deltacell.train.loop import Hooks, Loop, NotFiniteError, most_batches
from deltacell.train.predictor import Ensemble, Predictor
from deltacell.train.processes import StopSignals, from_first_rank, make_fabric, set_threads
from deltacell.train.run_directory import (
    MEANING,
    MetricsFile,
    Outcome,
    RunDirectory,
    check_meaning,
    meaning,
    new_path,
    resumed_config,
)
from deltacell.train.task import Task, Validation
from deltacell.words import Progress

if TYPE_CHECKING:
    import lightning

SHOWN = 5
"""Genotypes that an error names."""


def train(
    config: Config,
    *,
    command: Sequence[str] = (),
    tell: Sequence[Callback] = (),
    data: TrainingData | None = None,
) -> Outcome:
    """Train from the beginning; every rank calls this with the same config.

    A predictor that is fitted in one call goes to `fit_run`. `command` is the command line, for
    the record; `tell` are callbacks of the first rank; `data` is what the config names, if loaded.
    """
    if is_fitted(config.model):
        return fit_run(config, command=command, data=data)
    fabric = make_fabric(config)
    path = new_path(config)
    begun = fabric.is_global_zero and _is_begun(path, config)
    where, begun = from_first_rank([str(path), begun], fabric.device)
    path = Path(where)
    if begun:
        return _resume(fabric, path, config, "last", tell)
    # What can be wrong with a config is found here, before there is a directory.
    data = load_data(config) if data is None else data
    attempt = _Attempt(fabric, config, data, path, tell)
    with ExitStack() as stack:
        if fabric.is_global_zero:
            size = fabric.world_size
            directory = RunDirectory.create(
                path, config, command, world_size=size, split=data.split
            )
            attempt.directory = stack.enter_context(directory)
        return attempt.run()


def resume(
    path: Path, config: Config, *, which: str = "last", tell: Sequence[Callback] = ()
) -> Outcome:
    """Resume a run from a checkpoint, as if it had never stopped.

    A run that was stopped before its first checkpoint starts from the beginning. One that had done
    all its work when it was killed is recorded as finished. `which` is ``last``, ``best`` or the
    name of a checkpoint; the config may differ from the saved one in `MAY_CHANGE`.
    """
    if is_fitted(config.model):
        return resume_fit(path, config)
    return _resume(make_fabric(config), path, config, which, tell)


def _resume(
    fabric: lightning.Fabric, path: Path, config: Config, which: str, tell: Sequence[Callback]
) -> Outcome:
    data = load_data(config, path / SPLIT)
    with ExitStack() as stack:
        directory = None
        if fabric.is_global_zero:
            directory = stack.enter_context(RunDirectory.open(path))
            data.check_same(directory.record)
        recorded = None if directory is None else directory.record.propagation
        recorded = from_first_rank(recorded, fabric.device)
        attempt = _Attempt(fabric, config, data, path, tell, which=which, recorded=recorded)
        attempt.directory = directory
        return attempt.run()


def _is_begun(path: Path, config: Config) -> bool:
    """Return whether a directory holds an unfinished run of this config without a checkpoint."""
    if not (path / RUN_FILE).is_file() or Checkpoints(path / CHECKPOINTS).last is not None:
        return False
    return read_run(path).status is not Status.finished and resumed_config(path) == config


class _Attempt:
    """One attempt at a run, in one rank; the first rank has the directory."""

    def __init__(
        self,
        fabric: lightning.Fabric,
        config: Config,
        data: TrainingData,
        path: Path,
        tell: Sequence[Callback],
        *,
        which: str | None = None,
        recorded: dict[str, Any] | None = None,
    ) -> None:
        self.fabric, self.config, self.data, self.path = fabric, config, data, path
        self.tell: tuple[Callback, ...] = tuple(tell) if fabric.is_global_zero else ()
        self.which = which
        check_loggers(config.loggers)
        self.directory: RunDirectory | None = None
        self.metrics: MetricsFile | None = None
        self.number = 0
        self.checkpoints = Checkpoints(path / CHECKPOINTS, config.trainer.keep)
        self.signals = StopSignals()
        self.timer: PhaseTimer | NoTimer = NoTimer()
        if config.profiler.phases:
            self.timer = PhaseTimer(fabric.device, nvtx=config.profiler.nvtx)
        self.capture = self._make_capture()
        self.loop = make_loop(
            fabric,
            config,
            data,
            timer=self.timer,
            hooks=Hooks(
                save=self._save,
                row=self._row,
                stop=lambda: self.signals.received or 0,
                optimizer_step=self._optimizer_step,
            ),
            propagation=recorded_propagation(recorded, config),
        )
        self.host = self._make_host_profiler()

    def run(self) -> Outcome:
        """Train into the directory, and leave the record as it ended."""
        if self.directory is not None:
            self.metrics = MetricsFile(self.path / METRICS_FILE)
            every = self.config.trainer.figures_every
            self.tell += (
                *make_loggers(self.config.loggers, self.path),
                Figures(self.path, self.metrics, every, self.timer),
            )
        self.loop.hooks.callbacks = self.tell
        # Signals also count while it begins and ends, so that the record says what happened.
        with self.signals:
            try:
                self._begin()
                signal = self._train()
            except NotFiniteError as error:
                raise self._explained(error) from error
            finally:
                for callback in self.tell:
                    callback.close()
            summary = self._summary()
            if self.directory is not None:
                status = Status.interrupted if signal else Status.finished
                limits = None if summary is None else summary.sentence
                self.directory.end(status, **self.checkpoints.reached(), limits=limits)
        # A launcher may stop the first rank, which still writes, as soon as another one ends.
        self.fabric.barrier()
        profilers = [p for p in (self.capture, self.host) if p is not None]
        notices = tuple(notice for profiler in profilers for notice in profiler.notices)
        best = None if self.checkpoints.best is None else self.checkpoints.best.metric
        return Outcome(self.path, signal, summary, best, self.fabric.is_global_zero, notices)

    def _begin(self) -> None:
        """Bring the record and the loop to where the attempt starts."""
        loop, device = self.loop, self.fabric.device
        if self.which is not None and (self.which != "last" or self.checkpoints.last is not None):
            state = self.checkpoints.load(self.which)
            check_meaning(state, self.config, self.data, self.path)
            loop.load_state_dict(state)
            status = None if self.directory is None else str(self.directory.record.status)
            if loop.finished and from_first_rank(status, device) == Status.finished:
                epochs = loop.position.epoch
                raise InputError(
                    f"the run has finished its {epochs} epochs",
                    code="already-finished",
                    where=self.path,
                    fix=f"To train longer: deltacell train --resume {self.path} "
                    f"trainer.epochs={epochs + 10}",
                )
        step = loop.position.step
        if self.directory is not None and self.metrics is not None:
            if self.which is not None:
                if self.checkpoints.last is not None:
                    self.checkpoints.continue_from(self.which)
                self.metrics.truncate_after(step)
                self.directory.resume(from_step=step, world_size=self.fabric.world_size)
                self.directory.save_config(self.config)
            self.directory.update(**self.data.facts(), **self._facts())
            self.number = self.directory.attempt
        self.number = from_first_rank(self.number, device)

    def _facts(self) -> dict[str, Any]:
        """Return what the record says of a training before its first step."""
        config, device, model = self.config, self.fabric.device, self.loop.task.model
        return {
            "device": str(device),
            "threads": torch.get_num_threads() if device.type == "cpu" else None,
            "precision": config.trainer.precision,
            "batch_size": config.data.batch_size,
            "accumulate": config.optimizer.accumulate,
            "steps_per_epoch": self.loop.schedule.steps_per_epoch,
            "epochs": config.trainer.epochs,
            "propagation": propagation_record(model),
            "n_parameters": sum(weight.numel() for weight in model.parameters()),
            "target": Target(mean=self.data.standard.mean, std=self.data.standard.std),
        }

    def _train(self) -> int:
        if self.capture is not None:
            self.capture.start(self.loop.position.step)
        if self.host is not None:
            self.host.start()
        try:
            return self.loop.run()
        finally:
            for profiler in (self.capture, self.host):
                if profiler is not None:
                    profiler.stop()
            # If the training failed, that error is the one to see.
            with suppress(DeltacellError):
                self._flush()

    def _make_capture(self) -> Capture | None:
        profiler, config = self.config.profiler, self.config
        if not profiler.trace:
            return None
        window = Window.of(profiler.window)
        # What a resumed run has left may be less than the window, which may have been recorded.
        if self.which is None:
            check_window(
                window,
                samples=samples_per_epoch(config, self.data),
                batch_size=config.data.batch_size,
                accumulate=config.optimizer.accumulate,
                epochs=config.trainer.epochs,
                world_size=self.fabric.world_size,
                steps=most_batches(config),
            )
        return Capture(
            window,
            self.path / TRACES,
            self.fabric.global_rank,
            record_shapes=profiler.record_shapes,
            profile_memory=profiler.profile_memory,
            with_stack=profiler.with_stack,
            world_size=self.fabric.world_size,
            timer=self.timer,
        )

    def _make_host_profiler(self) -> HostProfiler | None:
        profiler = self.config.profiler
        if profiler.kind is None:
            return None
        if profiler.with_stack and profiler.trace:
            raise InputError(
                f"profiler.with_stack and profiler.kind={profiler.kind} both hook into Python",
                code="conflicting-settings",
                fix="Use one of them at a time.",
            )
        model = type(self.loop.task.model)
        functions = (Task.training_step, Task.prepare, model.forward, Loop._accumulated_step)
        return host_profiler(profiler.kind, self.path / TRACES, self.fabric.global_rank, functions)

    def _optimizer_step(self) -> None:
        if self.capture is not None:
            # What begins under torch's profiler and ends after it would write to freed memory.
            self.loop.agreement.arrive()
            self.capture.step()
        if self.host is not None:
            self.host.step()

    def _save(self, state: dict[str, Any], metric: float | None) -> None:
        if self.directory is not None:
            position = self.loop.position
            state = state | {MEANING: meaning(self.config, self.data)}
            self.checkpoints.save(state, step=position.step, epoch=position.epoch, metric=metric)
            self.directory.update(**self.checkpoints.reached())
        self._flush()

    def _row(self, row: dict[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.append(row)

    def _flush(self) -> None:
        self.timer.flush(self.path / PHASES, self.fabric.global_rank, self.number)

    def _summary(self) -> PhaseSummary | None:
        self._flush()
        self.fabric.barrier()
        if self.directory is None or isinstance(self.timer, NoTimer):
            return None
        return summarise(read_phases(self.path / PHASES))

    def _explained(self, error: NotFiniteError) -> InputError:
        """Return the error with the genotypes of the batch, and where to go back to."""
        genes = self.data.cell.genes
        genotypes = self.data.screen.genotypes.take(error.rows[:SHOWN])
        names = [
            " + ".join(genes.label(int(gene)) for gene in genotypes.genes[begin:end])
            for begin, end in zip(genotypes.offsets[:-1], genotypes.offsets[1:], strict=True)
        ]
        more = len(error.rows) - len(names)
        # On ranks other than the first, what was read when the attempt began may be old.
        last = Checkpoints(self.path / CHECKPOINTS).last
        back = "none" if last is None else f"{last.file}, of step {last.step:,}"
        return InputError(
            f"{error}; its batch has the genotypes {', '.join(names)}"
            + (f" and {more:,} more" if more > 0 else ""),
            code="not-finite",
            where=self.path,
            fix=f"The last good checkpoint is {back}. Try a smaller optimizer.lr or "
            "optimizer.clip, and look at the scores and features of these genotypes.",
        )


# Runs whose predictor is fitted in one call: additive effects, boosted trees and the like.


def fit_run(
    config: Config,
    *,
    command: Sequence[str] = (),
    data: TrainingData | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Fit a predictor into a new run directory, or again into one whose fit did not finish."""
    if isinstance(config.model, EnsembleConfig) and config.model.runs:
        first = resumed_config(config.model.runs[0])
        config = replace(config, data=first.data, split=first.split)
    path = new_path(config)
    unfinished = (path / RUN_FILE).is_file() and read_run(path).status is not Status.finished
    if unfinished and resumed_config(path) == config:
        return resume_fit(path, config, data=data, progress=progress)
    # What can be wrong with a config is found here, before there is a directory.
    predictor = build_fitted(config)
    data = load_data(config) if data is None else data
    with RunDirectory.create(path, config, command, world_size=1, split=data.split) as directory:
        return _fit(directory, config, predictor, data, progress)


def resume_fit(
    path: Path,
    config: Config,
    *,
    data: TrainingData | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Fit again, from the start, in the directory of a run that did not finish."""
    predictor = build_fitted(config)
    with RunDirectory.open(path) as directory:
        if directory.record.status is Status.finished:
            raise InputError(
                "the run has finished, so there is nothing to resume",
                code="already-finished",
                where=path,
                fix=f"Use it: deltacell evaluate {path}; or train into another directory.",
            )
        checkpoints = Checkpoints(path / CHECKPOINTS)
        if directory.record.status is Status.running and checkpoints.last is not None:
            # It was killed after the fit, before its record said so.
            directory.end(Status.finished, **checkpoints.reached())
            return Outcome(path, 0, best=None if (b := checkpoints.best) is None else b.metric)
        data = load_data(config, path / SPLIT) if data is None else data
        data.check_same(directory.record)
        directory.resume(from_step=0)
        directory.save_config(config)
        MetricsFile(path / METRICS_FILE).truncate_after(0)
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
    metrics = MetricsFile(path / METRICS_FILE)
    checkpoints = Checkpoints(path / CHECKPOINTS, config.trainer.keep)
    directory.update(**data.facts(), device="cpu", threads=torch.get_num_threads())

    def append(row: dict[str, float]) -> int:
        step = len(metrics.rows) + 1
        seconds = time.monotonic() - began
        metrics.append({**row, "epoch": step, "step": step, "seconds": seconds})
        return step

    def report(what: str, done: int, total: int) -> None:
        if signals.received is not None:
            raise _StoppedError
        for row in predictor.history[len(metrics.rows) :]:
            append(row)
        if progress is not None:
            progress(what, done, total)

    with StopSignals() as signals:
        try:
            validation = data.part(data.split.validation)
            options: dict[str, Any] = {}
            if isinstance(predictor, Ensemble):
                predictor.adopt(path, data)
            if isinstance(predictor, PairTrees):
                options["zeros"] = draw_zeros(data, predictor.zeros, config.split.seed)
            predictor.fit(
                data.cell,
                *data.part(data.split.train),
                validation=validation if len(validation[0]) else None,
                seed=config.seed,
                progress=report,
                **options,
            )
            report("validation", 0, 0)
        except _StoppedError:
            assert signals.received is not None
            directory.end(Status.interrupted)
            return Outcome(path, signals.received)
        row = validation_row(predictor, data)
        step = append(row)
        state = {"predictor": predictor.state_dict(), MEANING: meaning(config, data)}
        checkpoints.save(state, step=step, epoch=step, metric=row.get("validation_pearson"))
        directory.end(Status.finished, **checkpoints.reached())
    return Outcome(path, 0, best=None if checkpoints.best is None else checkpoints.best.metric)


def validation_row(predictor: FittedPredictor, data: TrainingData) -> dict[str, float]:
    """Return the metrics of the validation part, by name; none if it is empty.

    The validation part holds measured genotypes, so a predictor of two parts answers there with
    the score to expect of a hit.
    """
    rows = data.split.validation
    genotypes, measured = data.part(rows)
    if not len(genotypes):
        return {}
    found = Predictor(predictor, data.cell, Standard()).predict(genotypes)
    score = found.score if found.given_hit is None else found.given_hit
    predicted = score.numpy().astype(np.float64)
    metrics = Validation(rows, measured, predicted, loss=float("nan")).metrics()
    return {f"validation_{name}": value for name, value in metrics.items() if name != "loss"}


ORDER = (Mode.empty, Mode.data, Mode.forward, Mode.step, Mode.train, Mode.fixed)


@dataclass(frozen=True)
class ModeTime:
    """The steady steps of one mode."""

    mode: str
    summary: PhaseSummary


@dataclass(frozen=True)
class Marginal:
    """What a part of a step costs.

    `marginal_ms` is the difference of two modes per step, which is the part's share of a step only
    if nothing overlaps; `exposed_ms` are its phases in the mode ``train``, which do add up.
    """

    part: str
    modes: tuple[str, str]
    marginal_ms: float
    exposed_ms: float


_PARTS = (
    ("data, preparation, transfer", "data", "", ("data_wait", "preparation", "transfer")),
    ("forward and loss", "forward", "data", ("forward", "loss")),
    ("backward and communication", "step", "forward", ("backward", "communication")),
    ("optimizer", "train", "step", ("optimizer",)),
)


def run_modes(
    overrides: Sequence[str], steps: int = 30, progress: Progress | None = None
) -> list[ModeTime]:
    """Run every mode of a config for some batches, each in a process of its own."""
    found = []
    with tempfile.TemporaryDirectory(prefix="deltacell-modes-") as folder:
        for i, mode in enumerate(ORDER):
            if progress is not None:
                progress(f"mode {mode.value}", i, len(ORDER))
            path = Path(folder) / mode.value
            words = [
                *overrides,
                f"mode={mode.value}",
                f"mode_steps={steps}",
                f"directory='{path}'",
                "trainer.progress=false",
                "profiler.trace=false",
                "loggers.tensorboard=false",
            ]
            command = [sys.executable, "-m", "deltacell", "train", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                error = (done.stderr or done.stdout).strip().removeprefix("error: ")
                raise DeltacellError(f"the mode '{mode.value}' failed: {error}")
            found.append(ModeTime(mode.value, summarise(read_phases(path / PHASES))))
    return found


def marginals(times: Sequence[ModeTime]) -> list[Marginal]:
    """Return the differences between modes, beside the phases of the whole step."""
    by = {time.mode: time.summary for time in times}
    return [
        Marginal(
            part,
            (more, less),
            by[more].ms_per_step - (by[less].ms_per_step if less else 0.0),
            sum(by["train"].of(phase).ms_per_step for phase in phases),
        )
        for part, more, less, phases in _PARTS
    ]
