"""A run from its config to its end: what `deltacell train` does in every process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import lightning

from deltacell.errors import DeltacellError, InputError
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
    read_run,
)
from deltacell.train.assemble import make_loop, most_batches, samples_per_epoch
from deltacell.train.build import recorded_propagation
from deltacell.train.callback import Callback
from deltacell.train.changes import MEANING, check_meaning, meaning, resumed_config
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.communication import from_first_rank
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, check_same, load_data
from deltacell.train.fabric import make_fabric
from deltacell.train.facts import facts, reached
from deltacell.train.figures import Figures
from deltacell.train.finite import NotFiniteError
from deltacell.train.fit import fit_run, resume_fit
from deltacell.train.loggers import check_loggers, make_loggers
from deltacell.train.loop import Hooks, Loop
from deltacell.train.metrics_file import MetricsFile
from deltacell.train.new_path import new_path
from deltacell.train.registry import is_fitted
from deltacell.train.run_directory import Outcome, RunDirectory
from deltacell.train.signals import StopSignals
from deltacell.train.task import Task

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

    A predictor that is fitted in one call goes to `deltacell.train.fit.fit_run`.

    Parameters
    ----------
    config
        Of the run.
    command
        As it was typed, for the record.
    tell
        Whom to tell of it, on the first rank.
    data
        What the config names, where that is loaded already.
    """
    if is_fitted(config.model):
        return fit_run(config, command=command, data=data)
    fabric = make_fabric(config)
    path = new_path(config)
    found: list[Any] = [str(path), fabric.is_global_zero and _is_not_begun(path, config)]
    where, again = from_first_rank(found, fabric.device)
    path = Path(where)
    if again:
        return _resume(fabric, path, config, "last", tell)
    # What can be wrong with a config is found here, before there is a directory.
    data = load_data(config) if data is None else data
    run = _Run(fabric, config, data, path, tell)
    with ExitStack() as stack:
        directory = None
        if fabric.is_global_zero:
            directory = stack.enter_context(
                RunDirectory.create(
                    path, config, command, world_size=fabric.world_size, split=data.split
                )
            )
        return run.go(directory)


def resume(
    path: Path, config: Config, *, which: str = "last", tell: Sequence[Callback] = ()
) -> Outcome:
    """Resume a run from a checkpoint, as if it had never stopped.

    A run that was stopped before its first checkpoint starts from the beginning. One that had done
    all its work when it was killed is recorded as finished.

    Parameters
    ----------
    path
        Its directory.
    config
        The one it was saved with, or one that differs in what may differ.
    which
        ``last``, ``best`` or the name of a checkpoint.
    tell
        Whom to tell of it, on the first rank.
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
            check_same(directory.record, data)
        recorded = None if directory is None else directory.record.propagation
        recorded = from_first_rank(recorded, fabric.device)
        return _Run(fabric, config, data, path, tell, which=which, recorded=recorded).go(directory)


def _is_not_begun(path: Path, config: Config) -> bool:
    """Return whether a directory holds a run of this config that has no checkpoint yet."""
    if not (path / RUN_FILE).is_file() or Checkpoints(path / CHECKPOINTS).last is not None:
        return False
    # A mode that saves nothing ends without a checkpoint.
    return read_run(path).status is not Status.finished and resumed_config(path) == config


class _Run:
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
        self.attempt = 0
        self.checkpoints = Checkpoints(path / CHECKPOINTS, config.trainer.keep)
        self.signals = StopSignals()
        self.timer: PhaseTimer | NoTimer = (
            PhaseTimer(fabric.device, nvtx=config.profiler.nvtx)
            if config.profiler.phases
            else NoTimer()
        )
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
            propagation=None if recorded is None else recorded_propagation(recorded, config),
        )
        self.host = self._make_host_profiler()

    def go(self, directory: RunDirectory | None) -> Outcome:
        """Train into a directory, and leave the record as it ended."""
        self.directory = directory
        if directory is not None:
            self.metrics = MetricsFile(self.path / METRICS_FILE)
            self.tell += (
                *make_loggers(self.config.loggers, self.path),
                Figures(self.path, self.metrics, self.config.trainer.figures_every, self.timer),
            )
        self.loop.hooks.callbacks = self.tell
        # Also while it begins and ends, so that the record says what happened.
        with self.signals:
            try:
                self._begin()
                signal = self._train()
            except NotFiniteError as error:
                raise self._told(error) from error
            finally:
                for callback in self.tell:
                    callback.close()
            summary = self._flush()
            if directory is not None:
                changes: dict[str, Any] = dict(reached(self.checkpoints))
                changes["limits"] = None if summary is None else summary.sentence
                if signal:
                    directory.interrupt(**changes)
                else:
                    directory.finish(**changes)
        # A launcher may stop the first rank, which still writes, as soon as another one ends.
        self.fabric.barrier()
        profilers = [p for p in (self.capture, self.host) if p is not None]
        notices = tuple(notice for profiler in profilers for notice in profiler.notices)
        best = None if self.checkpoints.best is None else self.checkpoints.best.metric
        return Outcome(self.path, signal, summary, best, self.fabric.is_global_zero, notices)

    def _begin(self) -> None:
        """Bring the record and the loop to where the attempt starts."""
        loop = self.loop
        if self.which is not None and (self.which != "last" or self.checkpoints.last is not None):
            state = self.checkpoints.load(self.which)
            check_meaning(state, self.config, self.data, self.path)
            loop.load_state_dict(state)
            status = None if self.directory is None else str(self.directory.record.status)
            status = from_first_rank(status, self.fabric.device)
            if loop.finished and status == Status.finished:
                raise InputError(
                    f"the run has done its {loop.position.epoch} epochs",
                    where=self.path,
                    fix=f"To train longer: deltacell train --resume {self.path} "
                    f"trainer.epochs={loop.position.epoch + 10}",
                )
        step = loop.position.step
        if self.directory is not None and self.metrics is not None:
            if self.which is not None:
                if self.checkpoints.last is not None:
                    self.checkpoints.continue_from(self.which)
                self.metrics.truncate_after(step)
                self.directory.resume(from_step=step, world_size=self.fabric.world_size)
                self.directory.save_config(self.config)
            self.directory.update(**facts(self.fabric, self.config, self.data, loop.task))
            self.attempt = self.directory.attempt
        self.attempt = from_first_rank(self.attempt, self.fabric.device)

    def _train(self) -> int:
        if self.capture is not None:
            self.capture.start(self.loop.position.step)
        if self.host is not None:
            self.host.start()
        try:
            return self.loop.run()
        finally:
            if self.capture is not None:
                self.capture.stop()
            if self.host is not None:
                self.host.stop()
            # Where it failed, that error is the one to see.
            with suppress(DeltacellError):
                self.timer.flush(self.path / PHASES, self.fabric.global_rank, self.attempt)

    def _make_capture(self) -> Capture | None:
        profiler, config = self.config.profiler, self.config
        if not profiler.trace:
            return None
        window = Window.of(profiler.window)
        # What a resumed run has left may be less than the window, and it may have been recorded.
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
                f"profiler.with_stack and profiler.kind={profiler.kind} would both hook into "
                "Python",
                fix="Take one of them at a time.",
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
            self.directory.update(**reached(self.checkpoints))
        self.timer.flush(self.path / PHASES, self.fabric.global_rank, self.attempt)

    def _row(self, row: dict[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.append(row)

    def _flush(self) -> PhaseSummary | None:
        self.timer.flush(self.path / PHASES, self.fabric.global_rank, self.attempt)
        self.fabric.barrier()
        if self.directory is None or isinstance(self.timer, NoTimer):
            return None
        return summarise(read_phases(self.path / PHASES))

    def _told(self, error: NotFiniteError) -> InputError:
        """Return the error with the genotypes of the batch, and where to go back to."""
        genes, screen = self.data.cell.genes, self.data.screen
        genotypes = screen.genotypes.take(error.rows[:SHOWN])
        names = [
            " + ".join(genes.label(int(gene)) for gene in genotypes.genes[begin:end])
            for begin, end in zip(genotypes.offsets[:-1], genotypes.offsets[1:], strict=True)
        ]
        more = len(error.rows) - len(names)
        # Of ranks but the first, what was read when the attempt began may be old.
        last = Checkpoints(self.path / CHECKPOINTS, self.config.trainer.keep).last
        back = (
            "There is no checkpoint before it."
            if last is None
            else (f"The last good checkpoint is {last.file}, of step {last.step:,}.")
        )
        return InputError(
            f"{error}; its batch has the genotypes {', '.join(names)}"
            + (f" and {more:,} more" if more > 0 else ""),
            where=self.path,
            fix=f"{back} Try a smaller optimizer.lr or optimizer.clip, and look at these "
            "genotypes' scores and features.",
        )
