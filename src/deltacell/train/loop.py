"""The training loop: every moment of it is in one phase, and it can go on from any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import lightning
import torch
from torch import nn

from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.screen import Batch, Loader
from deltacell.train.callback import Callback
from deltacell.train.communication import SAVE, Agreement, GradientSum
from deltacell.train.config import Mode
from deltacell.train.ema import Ema
from deltacell.train.finite import FiniteGuard, NotFiniteError
from deltacell.train.meter import Meter
from deltacell.train.schedule import Schedule
from deltacell.train.task import Prepared, Task
from deltacell.train.validate import Validation, validate


@dataclass
class Position:
    """Where a training is.

    Parameters
    ----------
    epoch
        Epochs done.
    batch
        Batches of the next one that are done.
    step
        Optimizer steps done.
    best
        The highest validation metric so far.
    waited
        Validations since then.
    seconds
        Of training so far, over all attempts.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float = -math.inf
    waited: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Limits:
    """When a training ends, and what happens on the way.

    Parameters
    ----------
    epochs
        In all.
    accumulate
        Batches an optimizer step.
    clip
        The largest norm of the gradient.
    validate_every
        Epochs from one validation to the next.
    patience
        Validations without a better one after which it stops.
    save_every_steps, save_every_seconds
        Between the ends of epochs.
    batches
        Batches in all, for a mode that is to be short.
    """

    epochs: int
    accumulate: int = 1
    clip: float | None = None
    validate_every: int = 1
    patience: int | None = None
    save_every_steps: int | None = None
    save_every_seconds: float | None = None
    batches: int | None = None


@dataclass
class Hooks:
    """What the loop leaves to others, all of them in phases of their own.

    Parameters
    ----------
    save
        Called with the state, and the metric where there is one, whenever a checkpoint is due.
    row
        Called with the metrics of an epoch.
    stop
        Returns the number of a signal that asks to stop, or 0.
    optimizer_step
        Called after every optimizer step, for a capture.
    callbacks
        Those to tell.
    """

    save: Callable[[dict[str, Any], float | None], None] = lambda state, metric: None
    row: Callable[[dict[str, float]], None] = lambda row: None
    stop: Callable[[], int] = lambda: 0
    optimizer_step: Callable[[], None] = lambda: None
    callbacks: Sequence[Callback] = field(default_factory=tuple)


class Loop:
    """Train a task.

    Parameters
    ----------
    fabric
        Devices, ranks and precision.
    module
        The task as Fabric has set it up.
    task
        The same, itself.
    optimizer
        As Fabric has set it up.
    schedule
        Of the learning rate.
    training, validation
        Loaders of this rank; without the second nothing is validated.
    limits
        When it ends.
    timer
        Of the phases.
    mode
        How much of a step is carried out.
    ema
        The average of weights, which then is what is validated.
    hooks
        What is left to others.
    """

    def __init__(
        self,
        fabric: lightning.Fabric,
        module: Any,
        task: Task,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        training: Loader,
        validation: Loader | None,
        limits: Limits,
        *,
        timer: PhaseTimer | NoTimer,
        mode: Mode = Mode.train,
        ema: Ema | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.fabric, self.module, self.task = fabric, module, task
        self.optimizer, self.schedule, self.ema = optimizer, schedule, ema
        self.training, self.validation = training, validation
        self.limits, self.mode, self.hooks = limits, mode, hooks or Hooks()
        self.timer = task.timer = timer
        self.position = Position()
        self.meter = Meter(fabric.device)
        self.guard = FiniteGuard(fabric.device)
        self.gradients = GradientSum(getattr(module, "_forward_module", module))
        self.agreement = Agreement()
        self._fixed: Prepared | None = None
        self._leaf = torch.zeros(1, device=fabric.device, requires_grad=True)
        self._began = self._saved = time.monotonic()
        self._before = 0.0
        self._batches_done = 0
        self._own = self._genotypes = 0
        self._rows = torch.empty(0, dtype=torch.int64)
        self._saved_step = -1
        self._epoch_began = self._began

    def run(self) -> int:
        """Train to the end; return the number of the signal that stopped it before, or 0."""
        self.task.train()
        self._began = self._saved = time.monotonic()
        self._before = self.position.seconds
        signal = 0
        while self.position.epoch < self.limits.epochs and not self._enough():
            signal = self._train_epoch()
            if self._batches_short() and not signal and self.mode is Mode.train:
                self._save(None)
            if signal or self._batches_short():
                break
            self._end_epoch()
        self.timer.switch("other")
        self.agreement.settle()
        self.timer.end_step(self.position.epoch, self.position.step, 0, kind="between")
        return signal

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on."""
        loss = self.task.loss
        return {
            "position": dict(vars(self.position)),
            "model": dict(self.task.model.state_dict()),
            "loss": dict(loss.state_dict()) if isinstance(loss, nn.Module) else None,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "loader": self.training.state_dict(),
            "meter": self.meter.state_dict(),
            "random": torch.get_rng_state(),
            "random_device": (
                torch.cuda.get_rng_state(self.fabric.device)
                if self.fabric.device.type == "cuda"
                else None
            ),
            "standard": self.task.extra(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state as if it had never stopped."""
        self.position = Position(**state["position"])
        self.task.model.load_state_dict(state["model"])
        if isinstance(self.task.loss, nn.Module):
            self.task.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.training.load_state_dict(state["loader"])
        self.meter.load_state_dict(state["meter"], first=self.fabric.global_rank == 0)
        torch.set_rng_state(state["random"])
        if state["random_device"] is not None and self.fabric.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_device"], self.fabric.device)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.position.epoch >= self.limits.epochs or self._enough()

    def _enough(self) -> bool:
        patience = self.limits.patience
        return patience is not None and self.position.waited >= patience

    def _batches_short(self) -> bool:
        return self.limits.batches is not None and self._batches_done >= self.limits.batches

    def _train_epoch(self) -> int:
        position, timer = self.position, self.timer
        self.task.epoch = position.epoch
        self.training.set_epoch(position.epoch)
        steps = len(self.training)
        timer.switch("logging")
        for callback in self.hooks.callbacks:
            callback.begin(position.epoch, self.limits.epochs, position.batch, steps)
        timer.switch("other")
        self._genotypes, self._epoch_began = 0, time.monotonic()
        batches = iter(self.training)
        while position.batch < steps:
            self._accumulated_step(batches, steps)
            timer.switch("communication")
            asked = self.agreement.reached(self.hooks.stop() or self._time_to_save())
            signal = 0 if asked == SAVE else asked
            # At the end of an epoch it is saved anyway, after the validation.
            due = self._save_due(asked) and position.batch < steps
            if self.mode is Mode.train and (signal or due):
                self._save(None)
            timer.switch("other")
            timer.end_step(position.epoch, position.step, self._own)
            # A capture's step begins where the row does, so that phases lie inside of it.
            timer.switch("logging")
            self.hooks.optimizer_step()
            if signal:
                return signal
            if self._batches_short():
                return 0
        return 0

    def _accumulated_step(self, batches: Iterator[Batch], steps: int) -> None:
        """Do the batches of one optimizer step, and the step."""
        position, timer, mode = self.position, self.timer, self.mode
        loader = self.training
        together = min(self.limits.accumulate, steps - position.batch)
        left = loader.samples_per_epoch - position.batch * loader.batch_size
        whole = (
            loader.batch_size * together
            if mode is Mode.fixed
            else min(loader.batch_size * together, left)
        )
        self._own = 0
        for i in range(together):
            prepared, genotypes = self._next(batches)
            self._own += len(prepared.batch)
            self._genotypes += genotypes
            self._rows = prepared.batch.rows
            # The last batch of an epoch may be short, and every genotype counts the same.
            share = genotypes / whole
            loss = self._forward_backward(prepared, share, last=i == together - 1)
            timer.switch("logging")
            if loss is not None:
                if mode in (Mode.train, Mode.step, Mode.forward, Mode.fixed):
                    self.meter.add(loss, genotypes)
                self.guard.see(
                    loss["loss"], position.step + 1, position.epoch + 1, prepared.batch.rows
                )
            for callback in self.hooks.callbacks:
                callback.step(None if loss is None else loss["loss"], genotypes)
            position.batch += 1
            self._batches_done += 1
        timer.switch("optimizer")
        if mode in (Mode.train, Mode.fixed, Mode.empty):
            self._optimize()
        elif mode is Mode.step:
            self.optimizer.zero_grad()
        position.step += 1

    def _next(self, batches: Iterator[Batch]) -> tuple[Prepared, int]:
        loader, timer = self.training, self.timer
        done = self.position.batch * loader.batch_size
        if self._fixed is not None:
            return self._fixed, loader.batch_size
        genotypes = min(loader.batch_size, loader.samples_per_epoch - done)
        timer.switch("data_wait")
        batch = next(batches)
        timer.switch("preparation")
        prepared = self.task.prepare(batch)
        timer.switch("transfer")
        prepared = prepared.to(self.fabric.device)
        if self.mode is Mode.fixed:
            self._fixed = prepared
        return prepared, genotypes

    def _forward_backward(
        self, prepared: Prepared, share: float, *, last: bool
    ) -> dict[str, torch.Tensor] | None:
        timer, mode = self.timer, self.mode
        if mode is Mode.data:
            return None
        if mode is Mode.empty:
            timer.switch("backward")
            self._leaf.sum().backward()  # type: ignore[no-untyped-call]
            return None
        distributed = hasattr(self.module, "_forward_module") and self.fabric.world_size > 1
        apart = (
            self.fabric.no_backward_sync(self.module) if distributed and not last else nullcontext()
        )
        with apart:
            timer.switch("forward")
            values = self.module.training_step(prepared)
            if mode is Mode.forward:
                return {name: value.detach() for name, value in values.items()}
            timer.switch("backward")
            self.gradients.begin()
            self.fabric.backward(values["loss"] * share)
            if distributed and last:
                timer.move("backward", "communication", self.gradients.exposed())
        return {name: value.detach() for name, value in values.items()}

    def _optimize(self) -> None:
        if self.limits.clip is not None:
            nn.utils.clip_grad_norm_(self.task.parameters(), self.limits.clip, foreach=True)
        self.schedule.apply(self.position.step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.position.step)

    def _time_to_save(self) -> int:
        seconds = self.limits.save_every_seconds
        due = seconds is not None and time.monotonic() - self._saved >= seconds
        return SAVE if due else 0

    def _save_due(self, asked: int) -> bool:
        steps, step = self.limits.save_every_steps, self.position.step
        # What was asked before the last save came true with it.
        by_time = asked == SAVE and step > self._saved_step + 1
        return by_time or bool(steps and step % steps == 0)

    def _save(self, metric: float | None) -> None:
        with self.timer.phase("checkpoint"):
            self.guard.settle()
            self._check_weights()
            self._count_seconds()
            self.hooks.save(self.state_dict(), metric)
            self._saved, self._saved_step = time.monotonic(), self.position.step

    def _check_weights(self) -> None:
        """Raise where a weight is no number, so that every checkpoint is a good one."""
        finite = [torch.isfinite(weight).all() for weight in self.task.parameters()]
        if finite and not bool(torch.stack(finite).all()):
            step, epoch = self.position.step, self.task.epoch + 1
            raise NotFiniteError(step, epoch, math.nan, self._rows.cpu(), what="a weight")

    def _count_seconds(self) -> None:
        self.position.seconds = self._before + time.monotonic() - self._began

    def _end_epoch(self) -> None:
        position, timer = self.position, self.timer
        timer.switch("logging")
        self._count_seconds()
        row: dict[str, float] = {
            "epoch": position.epoch + 1,
            "step": position.step,
            "seconds": position.seconds,
            "samples_per_s": self._genotypes / max(time.monotonic() - self._epoch_began, 1e-9),
            "lr": self.optimizer.param_groups[0]["lr"],
        }
        row |= {f"train_{name}": mean for name, mean in self.meter.means().items()}
        validation = metric = None
        if self.mode is Mode.train and self._validates():
            timer.switch("validation")
            validation = self._validate()
            metrics = validation.metrics()
            row |= {f"validation_{name}": value for name, value in metrics.items()}
            metric = metrics["pearson"]
            self.schedule.validated(metric)
            better = metric > position.best
            position.best = max(position.best, metric) if better else position.best
            position.waited = 0 if better else position.waited + 1
        position.epoch += 1
        position.batch = 0
        self.meter.reset()
        if self.mode is Mode.train:
            timer.switch("checkpoint")
            self.hooks.row(row)
            self._save(metric)
        timer.switch("logging")
        for callback in self.hooks.callbacks:
            callback.epoch(row, validation, position.step)
        timer.switch("other")
        timer.end_step(position.epoch - 1, position.step, 0, kind="between")

    def _validates(self) -> bool:
        done = self.position.epoch + 1
        return self.validation is not None and (
            done % self.limits.validate_every == 0 or done == self.limits.epochs
        )

    def _validate(self) -> Validation:
        assert self.validation is not None
        with nullcontext() if self.ema is None else self.ema.in_place():
            return validate(self.task, self.validation)
