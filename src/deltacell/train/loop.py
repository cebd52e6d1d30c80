"""The training loop: all of its time is in phases, and it can be resumed from any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from deltacell.base.errors import DeltacellError, InputError, need
from deltacell.models.base import parameter_groups
from deltacell.profile.capture import Capture, HostProfiler, Profiler, Window, check_window
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.profile.record import CHECKPOINTS, FIGURES, PHASES, TENSORBOARD, TRACES, RunRecord
from deltacell.report.figures import drawn, plot_learning, plot_scores
from deltacell.report.progress import TrainingBar
from deltacell.screen import Batch, Loader
from deltacell.train.config import Config, LoggersConfig
from deltacell.train.data import TrainingData
from deltacell.train.predictor import build_model
from deltacell.train.processes import SAVE, StopSignals, highest, sum_gradients
from deltacell.train.run_directory import MEANING, Checkpoints, RunDirectory, meaning
from deltacell.train.task import Position, Prepared, Task, Validation

if TYPE_CHECKING:
    from lightning_fabric import Fabric

MODE_STEPS = 50  # batches in a mode other than ``train``
LOOK_EVERY = 256  # steps between checks of the losses on a device, each of which waits for it
SHOWN = 5  # genotypes that an error names

Values = dict[str, torch.Tensor]


class Loop:
    """Trains the network of a config in one rank; only rank 0 has the run directory.

    The constructor builds everything, so that a mistake in a config is found before a directory
    is made. `before` is the record of a run to resume.
    """

    def __init__(
        self,
        fabric: Fabric,
        config: Config,
        data: TrainingData,
        path: Path,
        before: RunRecord | None = None,
    ) -> None:
        self.fabric, self.config, self.data, self.path = fabric, config, data, path
        # All ranks start with the same weights and draw the same dropout, which is per gene.
        torch.manual_seed(config.seed)
        model = build_model(config, data, None if before is None else before.facts_of_model())
        loss = config.loss.build(config.model, config.trainer.epochs)
        self.task = Task(model, loss, data.cell, data.standard)
        per_call = model.sets_per_call or config.data.batch_size
        loaders = build_loaders(config, data, per_call, fabric.global_rank, fabric.world_size)
        self.training, self.validation = loaders
        self.timer = self.task.timer = PhaseTimer() if config.profiler.phases else NoTimer()
        asked = config.optimizer
        groups = parameter_groups(self.task, asked.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=asked.lr, fused=True)
        self.module, self.optimizer = fabric.setup(self.task, optimizer)
        # The task, or DDP around it: the wrapper of Fabric would round the results.
        self.wrapped = self.module._forward_module
        # The time when the last gradients of a step were ready to be summed over ranks.
        self.gradients_ready = math.inf
        if isinstance(self.wrapped, DistributedDataParallel):
            self.wrapped.register_comm_hook(self, sum_gradients)
        self.steps_per_epoch = -(-len(self.training) // asked.accumulate)
        # The moving average of the weights, which is validated in place of the weights.
        self.average: Values | None = None if config.trainer.ema is None else self._weights()
        self.checkpoints = Checkpoints(path / CHECKPOINTS, config.trainer.keep)
        self.meaning = meaning(config, data, path)
        self.directory: RunDirectory | None = None
        self.attempt = 0 if before is None else len(before.attempts)
        self.loggers: Loggers | None = None
        # The loss of a rank is its share of the batch's.
        ranks, watched = config.ranks, config.trainer.progress and fabric.is_global_zero
        self.bar = TrainingBar(lambda loss: ranks * float(loss), watched=watched)
        self.signals = StopSignals()
        self.hosts = dist.new_group(backend="gloo") if fabric.world_size > 1 else None
        self.position = Position()
        self.rows: list[dict[str, float]] = []
        # Sums of the losses of an epoch, which stay on the device until its end.
        self.sums: Values = {}
        self.counted = 0
        self.look_every = 1 if fabric.device.type == "cpu" else LOOK_EVERY
        self._recent: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self._rows = torch.empty(0, dtype=torch.int64)
        self._trains = config.mode == "train"
        self._compute, self._update = _MODES[config.mode]
        self._fixed: Prepared | None = None
        # The maximum number of batches, or None.
        self.batches, self.epochs = config.mode_steps, config.trainer.epochs
        if not self._trains:
            self.batches = config.mode_steps or MODE_STEPS
            self.epochs = -(-self.batches // len(self.training))
        self._batches_done = self._genotypes = 0
        self._began = self._saved = self._epoch_began = time.monotonic()
        for name in ("tensorboard", "wandb", "mlflow"):
            if getattr(config.loggers, name):
                need(name, f"loggers.{name}=true", name)
        self.profilers = self._make_profilers(is_new=before is None)
        if config.trainer.compile:
            model.compile_parts()

    def run(self) -> int:
        """Train to the end; return the number of the signal that stopped it, or 0."""
        self.task.train()
        self._saved = time.monotonic()
        # The time of earlier attempts counts.
        self._began = self._saved - self.position.seconds
        signal = 0
        try:
            for profiler in self.profilers:
                profiler.start(self.position.step)
            while not self.finished:
                signal = self._train_epoch()
                if signal or self._is_short():
                    if not signal and self._trains:
                        self._save()
                    break
                self._end_epoch()
            self.timer.switch("other")
            self.timer.end_step(self.position.epoch, self.position.step, 0, kind="between")
            return signal
        finally:
            for profiler in self.profilers:
                profiler.stop()
            self.bar.close()
            if self.loggers is not None:
                self.loggers.close()
            # An error of the training must not be hidden by one of the disk.
            with suppress(DeltacellError):
                self.flush()

    @property
    def finished(self) -> bool:
        at = self.position
        return at.is_end(self.config) if self._trains else at.epoch >= self.epochs

    def flush(self) -> None:
        if self.directory is not None:
            self.directory.lock.check()
        self.timer.flush(self.path / PHASES, self.fabric.global_rank, self.attempt)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on."""
        loss, device = self.task.loss, self.fabric.device
        return {
            "position": dict(vars(self.position)),
            "rows": [dict(row) for row in self.rows],
            "model": dict(self.task.model.state_dict()),
            "loss": dict(loss.state_dict()) if isinstance(loss, nn.Module) else None,
            "optimizer": self.optimizer.state_dict(),
            "ema": None if self.average is None else dict(self.average),
            "loader": self.training.state_dict(),
            "meter": {"genotypes": self.counted, "sums": self._summed()},
            "random": torch.get_rng_state(),
            "random_device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "standard": dict(vars(self.task.standard)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state as if the training had never stopped."""
        self.position = Position(**state["position"])
        self.rows = [dict(row) for row in state["rows"]]
        self.task.model.load_state_dict(state["model"])
        if isinstance(self.task.loss, nn.Module):
            self.task.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, weight in (self.average or {}).items():
            weight.copy_(state["ema"][name])
        self.training.load_state_dict(state["loader"])
        self.counted = state["meter"]["genotypes"]
        # Ranks other than 0 start with 0, so that nothing is counted twice.
        share, device = float(self.fabric.is_global_zero), self.fabric.device
        sums = state["meter"]["sums"].items()
        self.sums = {name: share * total.to(device, torch.float64) for name, total in sums}
        torch.set_rng_state(state["random"])
        if state["random_device"] is not None and self.fabric.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_device"], self.fabric.device)

    def _make_profilers(self, *, is_new: bool) -> list[Profiler]:
        asked, config, fabric = self.config.profiler, self.config, self.fabric
        folder, rank, size = self.path / TRACES, fabric.global_rank, fabric.world_size
        found: list[Profiler] = []
        if asked.trace:
            window = Window.of(asked.window)
            # A resumed run may have fewer steps left than the window, which exists already.
            if is_new:
                check_window(
                    window,
                    samples=self.training.samples_per_epoch,
                    batch_size=config.data.batch_size,
                    accumulate=config.optimizer.accumulate,
                    epochs=config.trainer.epochs,
                    world_size=size,
                    steps=self.batches,
                )
            names = ("record_shapes", "profile_memory", "with_stack")
            options: dict[str, Any] = {name: getattr(asked, name) for name in names}
            capture = Capture(window, folder, rank, world_size=size, timer=self.timer, **options)
            found.append(capture)
        if asked.kind is not None:
            model = type(self.task.model)
            functions = (Task.forward, Task.prepare, model.forward, Loop._accumulated_step)
            found.append(HostProfiler(asked.kind, folder, rank, functions))
        return found

    def _is_short(self) -> bool:
        return self.batches is not None and self._batches_done >= self.batches

    def _train_epoch(self) -> int:
        at, timer, steps = self.position, self.timer, len(self.training)
        self.task.epoch = at.epoch
        self.training.set_epoch(at.epoch)
        timer.switch("logging")
        self.bar.begin(at.epoch, self.epochs, at.batch, steps)
        timer.switch("other")
        self._genotypes, self._epoch_began = 0, time.monotonic()
        batches = iter(self.training)
        while at.batch < steps:
            samples = self._accumulated_step(batches)
            timer.switch("communication")
            signal = self._stop_or_save()
            timer.switch("other")
            timer.end_step(at.epoch, at.step, samples)
            # A step of a capture begins with the row of the timer, so that it contains the phases.
            timer.switch("logging")
            for profiler in self.profilers:
                profiler.step()
            if signal or self._is_short():
                return signal
        return 0

    def _stop_or_save(self) -> int:
        """Save if a checkpoint is due or a rank received a signal; return the signal, or 0."""
        at, trainer = self.position, self.config.trainer
        every, minutes = trainer.checkpoint_every_steps, trainer.checkpoint_every_minutes
        is_time = bool(minutes and time.monotonic() - self._saved >= 60 * minutes)
        asked = highest(self.signals.received or SAVE * is_time, self.hosts)
        signal = 0 if asked == SAVE else asked
        due = asked == SAVE or (every and at.step % every == 0)
        # The end of an epoch saves anyway, after the validation.
        if self._trains and (signal or (due and at.batch < len(self.training))):
            self._save()
        return signal

    def _accumulated_step(self, batches: Iterator[Batch]) -> int:
        """Run the batches of one optimizer step, and the step; return this rank's samples."""
        at, timer, loader = self.position, self.timer, self.training
        together = min(self.config.optimizer.accumulate, len(loader) - at.batch)
        size, whole, samples = loader.batch_size, loader.batch_size * together, 0
        if self.config.mode != "fixed":
            whole = min(whole, loader.samples_per_epoch - at.batch * size)
        for i in range(together):
            prepared = self._next(batches)
            # The last batch of an epoch may be short, but every genotype has the same weight.
            genotypes = min(size, whole - i * size)
            samples += len(prepared.batch)
            self._genotypes += genotypes
            self._rows = prepared.batch.rows
            values = self._compute(self, prepared, genotypes / whole, i == together - 1)
            timer.switch("logging")
            if values is not None:
                self._note(values, genotypes)
            self.bar.step(None if values is None else values["loss"].detach(), genotypes)
            at.batch += 1
            self._batches_done += 1
        timer.switch("optimizer")
        self._update(self)
        at.step += 1
        return samples

    def _note(self, values: Values, genotypes: int) -> None:
        """Add this rank's share of the losses of a global batch with `genotypes` genotypes."""
        self.counted += genotypes
        for name, value in values.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
            self.sums[name].add_(value.detach(), alpha=genotypes)
        self._recent.append((self.position.step + 1, self._rows, values["loss"].detach()))
        if len(self._recent) >= self.look_every:
            self._check_finite()

    def _summed(self) -> Values:
        # All ranks have to call this.
        together = torch.stack([*self.sums.values()]) if self.sums else torch.empty(0)
        if self.sums and self.fabric.world_size > 1:
            dist.all_reduce(together)
        return {name: total.clone() for name, total in zip(self.sums, together, strict=True)}

    def _next(self, batches: Iterator[Batch]) -> Prepared:
        if self._fixed is not None:
            return self._fixed
        self.timer.switch("data_wait")
        batch = next(batches)
        self.timer.switch("preparation")
        prepared = self.task.prepare(batch)
        self.timer.switch("transfer")
        prepared = prepared.to(self.fabric.device)
        if self.config.mode == "fixed":
            self._fixed = prepared
        return prepared

    def _forward(self, prepared: Prepared, share: float = 1.0, last: bool = True) -> Values:
        self.timer.switch("forward")
        with self.fabric.autocast():
            values: Values = self.wrapped(prepared)
        return values

    def _forward_backward(self, prepared: Prepared, share: float, last: bool) -> Values:
        with self.fabric.no_backward_sync(self.module, enabled=not last):
            values = self._forward(prepared)
            self.timer.switch("backward")
            self.gradients_ready = math.inf
            self.fabric.backward(values["loss"] * share)
        if self.fabric.world_size > 1 and last:
            # Earlier communication is hidden by the backward pass.
            exposed = max(0.0, time.perf_counter() - self.gradients_ready)
            self.timer.move("backward", "communication", exposed)
        return values

    def _empty_backward(self, *_: Any) -> None:
        self.timer.switch("backward")
        leaf = torch.zeros(1, device=self.fabric.device, requires_grad=True)
        leaf.sum().backward()  # type: ignore[no-untyped-call]

    def _optimize(self) -> None:
        at, clip, ema = self.position, self.config.optimizer.clip, self.config.trainer.ema
        if clip is not None:
            nn.utils.clip_grad_norm_(self.task.parameters(), clip, foreach=True)
        for group in self.optimizer.param_groups:
            group["lr"] = at.learning_rate(self.config, self.steps_per_epoch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None and ema is not None:
            # The decay starts low, so that the initial weights are soon forgotten.
            weights = [weight.detach() for weight in self.task.model.parameters()]
            decay = min(ema, (1 + at.step) / (10 + at.step))
            torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)

    def _weights(self) -> Values:
        return {n: w.detach().clone() for n, w in self.task.model.named_parameters()}

    def _validate(self) -> Validation | None:
        """Validate the average of the weights, if there is one, and restore the weights."""
        if self.validation is None:
            return None
        model, own = self.task.model, self._weights()
        model.load_state_dict(self.average or own, strict=False)
        try:
            return self.task.validate(self.validation)
        finally:
            model.load_state_dict(own, strict=False)

    def _save(self, metric: float | None = None) -> None:
        at = self.position
        with self.timer.phase("checkpoint"):
            self._check_finite()
            finite = [torch.isfinite(weight).all() for weight in self.task.parameters()]
            if not bool(torch.stack(finite).all()):
                raise self._not_finite("a weight is not finite", at.step, self._rows)
            at.seconds = time.monotonic() - self._began
            state = self.state_dict()
            if self.directory is not None:
                state[MEANING] = self.meaning
                self.checkpoints.save(state, step=at.step, epoch=at.epoch, metric=metric)
                self.directory.update(**self.checkpoints.reached())
            self.flush()
            self._saved = time.monotonic()

    def _end_epoch(self) -> None:
        at, timer, now = self.position, self.timer, time.monotonic()
        timer.switch("logging")
        done = at.epoch + 1
        row: dict[str, float] = {
            "epoch": done,
            "step": at.step,
            "seconds": now - self._began,
            "samples_per_s": self._genotypes / max(now - self._epoch_began, 1e-9),
            "lr": self.optimizer.param_groups[0]["lr"],
        }
        for name, total in self._summed().items():
            row[f"train_{name}"] = float(total / max(1, self.counted))
        validation = metric = None
        due = done % self.config.trainer.validate_every == 0 or done == self.epochs
        if self._trains and due:
            timer.switch("validation")
            validation = self._validate()
        if validation is not None:
            metrics = validation.metrics()
            row |= {f"validation_{name}": value for name, value in metrics.items()}
            metric = metrics["pearson"]
            at.validated(metric, self.config)
        at.epoch, at.batch = done, 0
        self.sums, self.counted = {}, 0
        if self._trains:
            timer.switch("checkpoint")
            self.rows.append(row)
            if self.directory is not None:
                self.directory.write_metrics(self.rows)
            self._save(metric)
            every = self.config.trainer.figures_every
            if self.directory is not None and every and done % every == 0:
                folder = self.path / FIGURES
                folder.mkdir(exist_ok=True)
                with drawn(folder / "learning.svg", 6, 3.6) as axes:
                    plot_learning(self.rows, axes)
                if validation is not None:
                    with drawn(folder / f"validation-epoch{done:04d}.png", 4.6, 4.2) as axes:
                        plot_scores(axes, validation.measured, validation.predicted)
        timer.switch("logging")
        self.bar.epoch(row, at.step)
        if self.loggers is not None:
            self.loggers.epoch(row, at.step)
        timer.switch("other")
        timer.end_step(at.epoch - 1, at.step, 0, kind="between")

    def _check_finite(self) -> None:
        """Check all losses since the last check; on a GPU this synchronises."""
        recent, self._recent = self._recent, []
        values = torch.stack([loss for *_, loss in recent]).tolist() if recent else []
        for value, (step, rows, _) in zip(values, recent, strict=True):
            if not math.isfinite(value):
                raise self._not_finite(f"the loss is {value}", step, rows)

    def _not_finite(self, what: str, step: int, rows: torch.Tensor) -> InputError:
        label, shown = self.data.cell.genes.label, self.data.screen.genotypes.take(rows.cpu())
        sets = [" + ".join(label(int(gene)) for gene in one) for one in shown]
        more = f" and {len(sets) - SHOWN:,} more" if len(sets) > SHOWN else ""
        what += f" at step {step:,} (epoch {self.task.epoch + 1}); its batch has the genotypes "
        # Ranks other than 0 do not save, so their list of checkpoints is out of date.
        last = Checkpoints(self.path / CHECKPOINTS).last
        fix = f"The last good checkpoint is {'none' if last is None else last.file}. Try a smaller "
        fix += "optimizer.lr or optimizer.clip, and check the scores of these genotypes."
        what += ", ".join(sets[:SHOWN]) + more
        return InputError(what, code="not-finite", where=self.path, fix=fix)


_MODES: dict[str, tuple[Callable[..., Values | None], Callable[[Loop], None]]] = {
    "train": (Loop._forward_backward, Loop._optimize),
    "fixed": (Loop._forward_backward, Loop._optimize),
    "step": (Loop._forward_backward, lambda loop: loop.optimizer.zero_grad()),
    "forward": (Loop._forward, lambda loop: None),
    "data": (lambda *_: None, lambda loop: None),
    "empty": (Loop._empty_backward, Loop._optimize),
}
"""What each mode computes for a batch, and how it ends a step."""


def build_loaders(
    config: Config,
    data: TrainingData,
    sets_per_call: int,
    rank: int,
    world_size: int,
) -> tuple[Loader, Loader | None]:
    """Return the loaders of training and validation; the latter has batches of `sets_per_call`."""
    asked, rows, some = config.data, data.split.validation, config.trainer.validation_samples
    options: dict[str, Any] = {"rank": rank, "world_size": world_size, "targets": data.targets}
    options |= {"screen": data.screen, "seed": config.seed}
    training = Loader(
        rows=data.split.train,
        batch_size=asked.batch_size,
        samples_per_epoch=asked.samples_per_epoch,
        run_length=asked.run_length,
        **options,
    )
    if not len(rows):
        return training, None
    if some is not None and some < len(rows):
        rows = np.sort(np.random.default_rng(config.split.seed).permutation(rows)[:some])
    return training, Loader(rows=rows, batch_size=sets_per_call, shuffle=False, **options)


class Loggers:
    """Logs the finite metrics of every epoch, such as ``validation/pearson``."""

    def __init__(self, config: LoggersConfig, run: Path) -> None:
        self.services: list[tuple[Callable[..., object], Callable[[], object]]] = []
        by_default = config.tensorboard is None and find_spec("tensorboard") is not None
        if config.tensorboard or by_default:
            from lightning_fabric.loggers.tensorboard import TensorBoardLogger

            board = TensorBoardLogger(run, TENSORBOARD, version="")
            self.services.append((board.log_metrics, partial(board.finalize, "success")))
        if config.wandb:
            import wandb

            mode = "offline" if config.offline else "online"
            about: dict[str, Any] = {"id": run.name, "dir": str(run), "mode": mode}
            made = wandb.init(project=config.project, name=run.name, resume="allow", **about)
            self.services.append((made.log, made.finish))
        if config.mlflow:
            import mlflow

            if config.offline:
                mlflow.set_tracking_uri((run / "mlflow").absolute().as_uri())
            mlflow.set_experiment(config.project)
            mlflow.start_run(run_name=run.name)
            self.services.append((mlflow.log_metrics, mlflow.end_run))

    def epoch(self, row: Mapping[str, float], step: int) -> None:
        values = {
            name.replace("_", "/", 1) if name.startswith(("train_", "validation_")) else name: value
            for name, value in row.items()
            if name not in ("epoch", "step") and math.isfinite(value)
        }
        for write, _ in self.services:
            write(values, step=step)

    def close(self) -> None:
        for _, finish in self.services:
            finish()
