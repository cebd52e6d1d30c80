"""Building a training: all that can be wrong with a config raises before a directory is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deltacell.models.interface import Model
from deltacell.profile.capture import Capture, HostProfiler, Profiler, Window, check_window
from deltacell.profile.components import ComponentTimer, NoComponents
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.profile.record import FIGURES, PHASES, TRACES, RunRecord
from deltacell.train.callbacks.base import Callback, Callbacks
from deltacell.train.callbacks.capture import CaptureCallback
from deltacell.train.callbacks.checkpoints import CheckpointCallback
from deltacell.train.callbacks.figures import FiguresCallback
from deltacell.train.callbacks.loggers import LoggerCallback, check_services
from deltacell.train.callbacks.phases import PhaseCallback
from deltacell.train.callbacks.progress import ProgressCallback
from deltacell.train.communication import StopRequests
from deltacell.train.config import Config
from deltacell.train.data import TrainingData
from deltacell.train.ema import AveragedWeights
from deltacell.train.finite import FiniteGuard
from deltacell.train.limits import Limits
from deltacell.train.loaders import Loaders, build_loaders
from deltacell.train.loop import Loop
from deltacell.train.mode import MODES, Mode
from deltacell.train.predictor import build_model
from deltacell.train.profiled_functions import function_named
from deltacell.train.rendering import Rendering
from deltacell.train.run_config import meaning
from deltacell.train.run_directory import RunDirectory
from deltacell.train.schedule import LearningRate
from deltacell.train.signals import StopSignals
from deltacell.train.state import TrainingState
from deltacell.train.step import OptimizerStep, RankedTask
from deltacell.train.task import Task
from deltacell.train.throughput import Throughput
from deltacell.train.validation import Validator

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, eq=False)
class Training:
    """What a training consists of before its run directory exists, in one rank."""

    fabric: Fabric
    config: Config
    data: TrainingData
    path: Path
    ranked: RankedTask
    state: TrainingState
    loaders: Loaders
    limits: Limits
    capture: CaptureCallback
    timer: PhaseTimer
    components: ComponentTimer
    attempt: int

    @property
    def mode(self) -> Mode:
        """What the training executes."""
        return MODES[self.config.mode]

    @property
    def model(self) -> Model:
        """The network that is trained."""
        return self.state.task.model


def build_training(
    fabric: Fabric,
    config: Config,
    data: TrainingData,
    path: Path,
    before: RunRecord | None = None,
) -> Training:
    """Build the network, the loaders and the profilers of a run that will be at a path.

    `before` is the record of the run if it is resumed.
    """
    # All ranks start with the same weights and draw the same dropout, which is per gene.
    torch.manual_seed(config.seed)
    model = build_model(config, data, None if before is None else before.facts_of_model())
    loss = config.loss.build(config.model, config.trainer.epochs)
    timer = PhaseTimer() if config.profiler.phases else NoTimer()
    task = Task(model, loss, data.cell, data.standard, timer)
    loaders = build_loaders(
        config,
        data,
        model.sets_per_call or config.data.batch_size,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        has_whole_batches=MODES[config.mode].repeats_first_batch,
    )
    limits = Limits.of(config, batches_per_epoch=len(loaders.training))
    ranked = RankedTask.of(fabric, task, config.optimizer)
    decay = config.trainer.ema
    average = None if decay is None else AveragedWeights(model, decay)
    state = TrainingState(fabric, task, ranked.optimizer, average, loaders.training)
    check_services(config.loggers)
    # A resumed run may have fewer steps left than the window, which exists already.
    if config.profiler.trace and before is None:
        _check_window(config, loaders, limits)
    profilers = _profilers(config, path, fabric, model, timer)
    if config.trainer.compile:
        model.compile_parts()
    return Training(
        fabric,
        config,
        data,
        path,
        ranked,
        state,
        loaders,
        limits,
        CaptureCallback(profilers, timer),
        timer,
        _component_timer(config, fabric),
        attempt=0 if before is None else len(before.attempts),
    )


def build_loop(
    training: Training,
    directory: RunDirectory | None,
    signals: StopSignals,
    rendering: Rendering | None = None,
) -> Loop:
    """Return the loop of a training; only the first rank has the run directory."""
    config = training.config
    timer = training.timer
    task = training.state.task
    guard = FiniteGuard.on(training.fabric.device, task, training.data, training.path)
    requests = StopRequests(signals, training.fabric.world_size)
    throughput = Throughput()
    phases = PhaseCallback(
        timer,
        training.components,
        training.path / PHASES,
        directory,
        rank=training.fabric.global_rank,
        attempt=training.attempt,
    )
    callbacks: list[Callback] = [phases]
    if training.mode.writes_checkpoints:
        checkpoints = CheckpointCallback(
            config.trainer,
            directory,
            meaning(config, training.data, training.path),
            guard=guard,
            throughput=throughput,
            requests=requests,
            phases=phases,
            timer=timer,
        )
        callbacks.append(checkpoints)
    if directory is not None:
        callbacks += _shown(training, rendering)
        callbacks.append(LoggerCallback(config, training.path, timer))
    callbacks.append(training.capture)
    step = OptimizerStep(
        training.mode,
        training.ranked,
        training.state,
        LearningRate.of(config, training.loaders.steps_per_epoch),
        clip=config.optimizer.clip,
        guard=guard,
        timer=timer,
        components=training.components,
    )
    validator = Validator(
        training.loaders.validation if training.mode.validates else None,
        every=config.trainer.validate_every,
        epochs=training.limits.epochs,
        best_by=config.trainer.best[0],
    )
    return Loop(
        training.state,
        training.loaders,
        step,
        validator,
        training.limits,
        requests,
        Callbacks(callbacks),
        throughput,
        timer,
    )


def _component_timer(config: Config, fabric: Fabric) -> ComponentTimer:
    """Return what records components; not of a device, which computes while the host goes on."""
    is_host = fabric.device.type == "cpu"
    return ComponentTimer() if config.profiler.phases and is_host else NoComponents()


def _shown(training: Training, rendering: Rendering | None) -> list[Callback]:
    """Return the callbacks that show a training to its user."""
    config = training.config
    callbacks: list[Callback] = []
    if rendering is None:
        return callbacks
    if training.mode.draws_figures and config.trainer.figures_every:
        folder = training.path / FIGURES
        every = config.trainer.figures_every
        callbacks.append(FiguresCallback(rendering, folder, every, training.timer))
    if config.trainer.progress:
        bar = rendering.training_bar(config.ranks)
        callbacks.append(ProgressCallback(bar, training.limits.epochs, training.timer))
    return callbacks


def _check_window(config: Config, loaders: Loaders, limits: Limits) -> None:
    """Raise if the training ends before the steps to trace."""
    check_window(
        Window.of(config.profiler.window),
        samples=loaders.training.samples_per_epoch,
        batch_size=config.data.batch_size,
        accumulate=config.optimizer.accumulate,
        epochs=config.trainer.epochs,
        world_size=config.ranks,
        steps=limits.batches,
    )


def _profilers(
    config: Config,
    path: Path,
    fabric: Fabric,
    model: Model,
    timer: PhaseTimer,
) -> list[Profiler]:
    """Return the profilers that a config asks for."""
    settings = config.profiler
    folder = path / TRACES
    profilers: list[Profiler] = []
    if settings.trace:
        capture = Capture(
            Window.of(settings.window),
            folder,
            fabric.global_rank,
            world_size=fabric.world_size,
            timer=timer,
            record_shapes=settings.record_shapes,
            profile_memory=settings.profile_memory,
            with_stack=settings.with_stack,
        )
        profilers.append(capture)
    if settings.kind is not None:
        functions: list[Callable[..., Any]]
        functions = [Task.forward, Task.prepare, type(model).forward, OptimizerStep.__call__]
        if settings.functions:
            functions = [function_named(name) for name in settings.functions]
        profilers.append(HostProfiler(settings.kind, folder, fabric.global_rank, functions))
    return profilers
