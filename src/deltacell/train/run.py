"""Runs from config to end: what `deltacell train` does in every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from deltacell.base.errors import InputError
from deltacell.profile.limits import limits_sentence
from deltacell.profile.phase_rows import PhaseSummary, read_phases
from deltacell.profile.record import PHASES, Status, Target
from deltacell.train.build import Training, build_loop, build_training
from deltacell.train.config import Config
from deltacell.train.data import TrainingData
from deltacell.train.devices import make_fabric
from deltacell.train.fit import fit_predictor
from deltacell.train.opened_run import OpenedRun, opened_run
from deltacell.train.outcome import Outcome
from deltacell.train.predictor import model_record
from deltacell.train.rendering import Rendering
from deltacell.train.run_config import check_meaning, resumed_config
from deltacell.train.run_directory import RunDirectory
from deltacell.train.signals import StopSignals


def train(
    config: Config,
    *,
    resume: Path | None = None,
    which: str = "last",
    command: Sequence[str] = (),
    data: TrainingData | None = None,
    rendering: Rendering | None = None,
) -> Outcome:
    """Train or fit the predictor of a config; every rank calls this with the same config.

    Parameters
    ----------
    resume
        A run directory to resume. A run without a checkpoint starts from the beginning, and one
        that was killed after its last step is recorded as finished.
    which
        The checkpoint to resume from: ``last``, ``best`` or a file name.
    command
        For the record.
    data
        The data of the config, if they are loaded already.
    rendering
        Shows the progress and draws figures; without it, nothing is shown.
    """
    config = _with_data_of_runs(config)
    if config.model.trained_by == "fit":
        if rendering is None or not config.trainer.progress:
            return fit_predictor(config, resume, command, data)
        with rendering.progress_bar() as progress:
            return fit_predictor(config, resume, command, data, progress)
    return train_network(config, resume, which, command, data, rendering)


def train_network(
    config: Config,
    resume: Path | None = None,
    which: str = "last",
    command: Sequence[str] = (),
    data: TrainingData | None = None,
    rendering: Rendering | None = None,
) -> Outcome:
    """Train the network of a config in this rank; see `train` for the arguments."""
    fabric = make_fabric(config)
    with opened_run(config, resume, data, fabric=fabric) as run:
        training = build_training(fabric, config, run.data, run.path, run.before)
        directory = run.begin(command)
        # From here on, signals end the run in an orderly way.
        with StopSignals() as signals:
            if run.before is not None:
                _go_back(training, run, which)
            loop = build_loop(training, directory, signals, rendering)
            if directory is not None:
                _record_beginning(training, directory)
            signal = loop.run()
            phases = _record_end(training, directory, signal)
    return Outcome(
        run.path,
        signal,
        phases,
        is_first=run.is_first,
        notices=training.capture.notices,
    )


def _with_data_of_runs(config: Config) -> Config:
    """Return the config with the data and the split of the runs that its predictor consists of."""
    other = config.model.data_from()
    if other is None:
        return config
    member = resumed_config(other)
    return replace(config, data=member.data, split=member.split)


def _go_back(training: Training, run: OpenedRun, which: str) -> None:
    """Start another attempt from a checkpoint, or from the beginning if there is none."""
    assert run.before is not None
    checkpoints = run.checkpoints()
    state = training.state
    has_checkpoint = which != "last" or checkpoints.last is not None
    if has_checkpoint:
        content = checkpoints.load(which)
        check_meaning(content, run.config, run.data, run.path)
        state.load_state_dict(content)
        is_over = training.limits.finished(state.position)
        if is_over and run.before.status is Status.finished:
            raise _already_finished(run.path, state.position.epoch)
    if run.directory is not None:
        if has_checkpoint:
            checkpoints.continue_from(which)
        step = state.position.step
        run.directory.resume(run.config, from_step=step, world_size=run.world_size)
        run.directory.write_metrics(state.rows)


def _already_finished(path: Path, n_epochs: int) -> InputError:
    what = f"the run has finished its {n_epochs} epochs"
    fix = f"For more: deltacell train --resume {path} trainer.epochs={n_epochs + 10}"
    return InputError(what, code="already-finished", where=path, fix=fix)


def _record_beginning(training: Training, directory: RunDirectory) -> None:
    """Record the data, the model and the device of an attempt."""
    config = training.config
    device = training.fabric.device
    scale = training.data.standard
    facts = training.model.facts()
    directory.update(
        **training.data.facts(),
        device=str(device),
        threads=torch.get_num_threads() if device.type == "cpu" else None,
        precision=config.trainer.precision,
        batch_size=config.data.batch_size,
        accumulate=config.optimizer.accumulate,
        steps_per_epoch=training.loaders.steps_per_epoch,
        epochs=config.trainer.epochs,
        model=model_record(config, training.model, training.data.cell),
        propagation=facts.pop("propagation", None),
        model_facts=facts,
        n_parameters=sum(weight.numel() for weight in training.model.parameters()),
        target=Target(mean=scale.mean, std=scale.std),
    )


def _record_end(
    training: Training,
    directory: RunDirectory | None,
    signal: int,
) -> PhaseSummary | None:
    """Record how the attempt ended; return the phases of the run, if they were recorded."""
    training.fabric.barrier()
    summary = None
    if directory is not None:
        if training.config.profiler.phases:
            summary = PhaseSummary(read_phases(training.path / PHASES))
        status = Status.interrupted if signal else Status.finished
        directory.end(
            status,
            limits=None if summary is None else limits_sentence(summary),
            component_cost=training.components.cost_share,
        )
    # A launcher may stop rank 0, which still writes, as soon as another rank ends.
    training.fabric.barrier()
    return summary
