"""A run from its config to its end: what `deltacell train` does in every process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch

from deltacell.errors import DeltacellError, InputError
from deltacell.models import HeteroCell
from deltacell.profile.capture import Capture
from deltacell.profile.limits import PhaseSummary, summarise
from deltacell.profile.phases import NoTimer, PhaseTimer, read_phases
from deltacell.profile.record import (
    METRICS_FILE,
    PHASES,
    TRACES,
    CellFacts,
    Reached,
    Samples,
    ScreenFacts,
    Target,
)
from deltacell.profile.window import Window, check_window
from deltacell.screen import Loader
from deltacell.train.build import (
    build_loss,
    build_model,
    propagation_record,
    recorded_propagation,
)
from deltacell.train.callback import Callback
from deltacell.train.checkpoints import Checkpoint, Checkpoints
from deltacell.train.communication import from_first_rank
from deltacell.train.config import Config, DangoConfig, Mode
from deltacell.train.data import TrainingData, load_data
from deltacell.train.ema import Ema
from deltacell.train.fabric import make_fabric
from deltacell.train.finite import NotFiniteError
from deltacell.train.loggers import make_loggers
from deltacell.train.loop import Hooks, Limits, Loop
from deltacell.train.metrics_file import MetricsFile
from deltacell.train.run_directory import RunDirectory
from deltacell.train.schedule import Schedule
from deltacell.train.signals import StopSignals
from deltacell.train.task import Task

METRIC = "validation_pearson"
"""What the best checkpoint is chosen by."""

WIDE_VALIDATION = 4096
"""Genotypes a validation step of DANGO, whose cost hardly depends on them."""

SHOWN = 5
"""Genotypes that an error names."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    path
        Its directory.
    signal
        The number of the signal that stopped it, or 0.
    phases
        Where its time went; None where that was not recorded, and on ranks but the first.
    best
        The highest validation Pearson, where it was measured.
    is_first
        Whether this is the first rank.
    """

    path: Path
    signal: int
    phases: PhaseSummary | None = None
    best: float | None = None
    is_first: bool = True


def train(config: Config, *, command: Sequence[str] = (), tell: Sequence[Callback] = ()) -> Outcome:
    """Train from the beginning; every rank calls this with the same config.

    Parameters
    ----------
    config
        Of the run.
    command
        As it was typed, for the record.
    tell
        Whom to tell of it, on the first rank.
    """
    fabric = make_fabric(config.trainer)
    path = Path(from_first_rank(str(new_path(config)), fabric.device))
    data = load_data(config)
    with ExitStack() as stack:
        directory = None
        if fabric.is_global_zero:
            directory = stack.enter_context(
                RunDirectory.create(path, config, command, world_size=fabric.world_size)
            )
        return _Run(fabric, config, data, path, directory, tell, which=None).go()


def resume(
    path: Path, config: Config, *, which: str = "last", tell: Sequence[Callback] = ()
) -> Outcome:
    """Go on with a run from a checkpoint, as if it had never stopped.

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
    fabric = make_fabric(config.trainer)
    data = load_data(config)
    with ExitStack() as stack:
        directory = None
        if fabric.is_global_zero:
            directory = stack.enter_context(RunDirectory.open(path))
            _check_same(directory, data)
        return _Run(fabric, config, data, path, directory, tell, which=which).go()


def new_path(config: Config) -> Path:
    """Return the directory of a new run: the config's, or one made of name, seed and time."""
    if config.directory is not None:
        return Path(config.directory)
    time = datetime.now().strftime("%Y%m%d-%H%M%S")
    stem = Path("runs") / f"{config.name}-seed{config.seed}-{time}"
    path, n = stem, 1
    while path.exists():
        n += 1
        path = stem.with_name(f"{stem.name}-{n}")
    return path


class _Run:
    """One attempt at a run, in one rank; the first rank has the directory."""

    def __init__(
        self,
        fabric: lightning.Fabric,
        config: Config,
        data: TrainingData,
        path: Path,
        directory: RunDirectory | None,
        tell: Sequence[Callback],
        *,
        which: str | None,
    ) -> None:
        self.fabric, self.config, self.data = fabric, config, data
        self.path, self.directory = path, directory
        self.tell: tuple[Callback, ...] = ()
        if directory is not None:
            self.tell = (*tell, *make_loggers(config.loggers, path))
        self.which = which
        self.checkpoints = Checkpoints(path / "checkpoints", config.trainer.keep)
        self.metrics = MetricsFile(path / METRICS_FILE) if directory is not None else None
        self.signals = StopSignals()
        device = fabric.device
        self.timer: PhaseTimer | NoTimer = (
            PhaseTimer(device, nvtx=config.profiler.nvtx) if config.profiler.phases else NoTimer()
        )
        self.loop = self._make_loop()
        self.capture = self._make_capture()
        self.attempt = 0

    def go(self) -> Outcome:
        """Train, and leave the record as it ended."""
        try:
            self._begin()
            with self.signals:
                signal = self._train()
        except NotFiniteError as error:
            raise self._told(error) from error
        finally:
            for callback in self.tell:
                callback.close()
        summary = self._flush()
        if self.directory is not None:
            changes = self._reached() | {"limits": None if summary is None else summary.sentence}
            if signal:
                self.directory.interrupt(**changes)
            else:
                self.directory.finish(**changes)
        best = None if self.checkpoints.best is None else self.checkpoints.best.metric
        return Outcome(self.path, signal, summary, best, self.fabric.is_global_zero)

    def _train(self) -> int:
        if self.capture is not None:
            self.capture.start()
        try:
            return self.loop.run()
        finally:
            if self.capture is not None:
                self.capture.stop()
            with suppress(DeltacellError):
                self.timer.flush(self.path / PHASES, self.fabric.global_rank, self.attempt)

    def _begin(self) -> None:
        """Bring the record and the loop to where the attempt starts."""
        from_step = 0
        if self.which is not None:
            state = self.checkpoints.load(self.which)
            self.loop.load_state_dict(state)
            from_step = self.loop.position.step
            if self.loop.finished:
                raise InputError(
                    f"the run has done its {self.loop.position.epoch} epochs",
                    where=self.path,
                    fix=f"To train longer: deltacell train --resume {self.path} "
                    f"trainer.epochs={self.loop.position.epoch + 10}",
                )
        if self.directory is not None and self.metrics is not None:
            if self.which is not None:
                self.checkpoints.continue_from(self.which)
                self.metrics.truncate_after(from_step)
                self.directory.resume(from_step=from_step, world_size=self.fabric.world_size)
                self.directory.save_config(self.config)
            self.directory.update(**self._facts())
            self.attempt = self.directory.attempt
        self.attempt = from_first_rank(self.attempt, self.fabric.device)

    def _make_loop(self) -> Loop:
        config, fabric, data = self.config, self.fabric, self.data
        # Every rank begins with the same weights and draws the same dropout, which is by gene.
        torch.manual_seed(config.seed)
        largest = int(np.diff(data.screen.offsets).max())
        model = build_model(config, data.cell, largest, self._recorded())
        task = Task(model, build_loss(config), data.cell, data.standard, config.optimizer)
        module, optimizer = fabric.setup(task, task.configure_optimizers())
        training = self._loader(data.split.train, config.data.batch_size, shuffle=True)
        validation = None
        if len(data.split.validation):
            rows = data.split.validation
            some = config.trainer.validation_samples
            if some is not None and some < len(rows):
                rows = np.sort(np.random.default_rng(config.split.seed).permutation(rows)[:some])
            wide = isinstance(config.model, DangoConfig)
            size = config.trainer.validation_batch_size or (
                WIDE_VALIDATION if wide else config.data.batch_size
            )
            validation = self._loader(rows, size, shuffle=False)
        if config.trainer.compile:
            model.compile_row_wise()  # type: ignore[operator]
        self._choose(model, training)
        trainer = config.trainer
        every_minutes = trainer.checkpoint_every_minutes
        limits = Limits(
            epochs=trainer.epochs if config.mode is Mode.train else 2**31,
            accumulate=config.optimizer.accumulate,
            clip=config.optimizer.clip,
            validate_every=trainer.validate_every,
            patience=trainer.patience,
            save_every_steps=trainer.checkpoint_every_steps,
            save_every_seconds=None if every_minutes is None else 60 * every_minutes,
            batches=None if config.mode is Mode.train else config.mode_steps,
        )
        self.steps_per_epoch = -(-len(training) // config.optimizer.accumulate)
        schedule = Schedule(optimizer, config.schedule, self.steps_per_epoch, trainer.epochs)
        ema = None if trainer.ema is None else Ema(model, trainer.ema)
        hooks = Hooks(
            save=self._save,
            row=self._row,
            stop=lambda: self.signals.received or 0,
            optimizer_step=self._optimizer_step,
            callbacks=self.tell,
        )
        return Loop(
            fabric,
            module,
            task,
            optimizer,
            schedule,
            training,
            validation,
            limits,
            timer=self.timer,
            mode=config.mode,
            ema=ema,
            hooks=hooks,
        )

    def _loader(self, rows: Any, batch_size: int, *, shuffle: bool) -> Loader:
        return Loader(
            self.data.screen,
            rows,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=self.config.seed,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            targets=self.data.targets,
            samples_per_epoch=self.config.data.samples_per_epoch if shuffle else None,
        )

    def _recorded(self) -> Any:
        """Return the propagation that the run was begun with; None for a new run."""
        recorded = None
        if self.which is not None and self.directory is not None:
            recorded = self.directory.record.propagation
        recorded = from_first_rank(recorded, self.fabric.device)
        return None if recorded is None else recorded_propagation(recorded, self.config)

    def _choose(self, model: torch.nn.Module, training: Loader) -> None:
        """Let the first rank choose the propagation, by the first batch; the others follow."""
        if not isinstance(model, HeteroCell):
            return
        if self.fabric.is_global_zero:
            model.prepare(self.data.cell, next(iter(training)).genotypes)
            training.set_epoch(0)
        record = from_first_rank(propagation_record(model), self.fabric.device)
        model.propagation = recorded_propagation(record, self.config)

    def _make_capture(self) -> Capture | None:
        profiler, config = self.config.profiler, self.config
        if not profiler.trace:
            return None
        window = Window.of(profiler.window)
        check_window(
            window,
            samples=self.loop.training.samples_per_epoch,
            batch_size=config.data.batch_size,
            accumulate=config.optimizer.accumulate,
            epochs=config.trainer.epochs,
            world_size=self.fabric.world_size,
            steps=None if config.mode is Mode.train else config.mode_steps,
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

    def _optimizer_step(self) -> None:
        if self.capture is not None:
            self.capture.step()

    def _save(self, state: dict[str, Any], metric: float | None) -> None:
        if self.directory is not None:
            position = self.loop.position
            self.checkpoints.save(state, step=position.step, epoch=position.epoch, metric=metric)
            self.directory.update(**self._reached())
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

    def _reached(self) -> dict[str, Any]:
        best, last = self.checkpoints.best, self.checkpoints.last
        return {
            "best": None if best is None else _reached(best),
            "last": None if last is None else _reached(last),
        }

    def _facts(self) -> dict[str, Any]:
        config, data, fabric = self.config, self.data, self.fabric
        split = data.split
        model = self.loop.task.model
        studies = data.screen.rows["study"].unique().cast("string").to_pylist()
        propagation = propagation_record(model)
        choice = None if propagation is None else propagation["choice"]
        return {
            "cell": CellFacts(
                checksum=data.cell.checksum,
                n_genes=data.cell.n_genes,
                relations=tuple(data.cell.relations),
            ),
            "screen": ScreenFacts(
                checksum=data.screen.checksum,
                genotypes=len(data.screen),
                studies=tuple(sorted(studies)),
            ),
            "split": split.to_json() | {"leakage": split.leakage(data.screen).sentence},
            "samples": Samples(
                train=len(split.train), validation=len(split.validation), test=len(split.test)
            ),
            "device": str(fabric.device),
            "precision": config.trainer.precision,
            "batch_size": config.data.batch_size,
            "accumulate": config.optimizer.accumulate,
            "steps_per_epoch": self.steps_per_epoch,
            "epochs": config.trainer.epochs,
            "propagation": propagation,
            "micro_batch": (
                choice["choice"]["tile"] if choice is not None and choice["choice"] else None
            ),
            "n_parameters": sum(weight.numel() for weight in model.parameters()),
            "target": Target(mean=data.standard.mean, std=data.standard.std),
        }

    def _told(self, error: NotFiniteError) -> InputError:
        """Return the error with the genotypes of the batch, and where to go back to."""
        genes, screen = self.data.cell.genes, self.data.screen
        genotypes = screen.genotypes.take(error.rows[:SHOWN])
        names = [
            " + ".join(genes.label(int(gene)) for gene in genotypes.genes[begin:end])
            for begin, end in zip(genotypes.offsets[:-1], genotypes.offsets[1:], strict=True)
        ]
        more = len(error.rows) - len(names)
        last = self.checkpoints.last
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


def _reached(checkpoint: Checkpoint) -> Reached:
    return Reached(
        epoch=checkpoint.epoch,
        step=checkpoint.step,
        file=checkpoint.file,
        metric=None if checkpoint.metric is None else METRIC,
        value=checkpoint.metric,
    )


def _check_same(directory: RunDirectory, data: TrainingData) -> None:
    """Raise where the data are not those that the run was begun with."""
    record = directory.record
    for what, was, found in (
        ("cell", record.cell, data.cell.checksum),
        ("screen", record.screen, data.screen.checksum),
    ):
        if was is not None and was.checksum != found:
            raise InputError(
                f"the {what} is not the one that the run was begun with: its checksum is "
                f"{found[:12]}, and it was {was.checksum[:12]}",
                where=directory.path,
                fix="Put back the data as they were, or start a new run.",
            )
