"""The training loop: every moment of it is in one phase, and it can be resumed from any step."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from deltacell.errors import DeltacellError
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.screen import Batch, Loader
from deltacell.train.callbacks import Callback
from deltacell.train.config import Config, Mode
from deltacell.train.processes import SAVE, Agreement, GradientSum, world_size
from deltacell.train.task import Ema, Prepared, Schedule, Task, Validation

if TYPE_CHECKING:
    import lightning

MODE_STEPS = 50
"""Batches of a mode other than ``train``."""

LOOK_EVERY = 16
"""Steps between looks at the losses on a device."""

Values = dict[str, torch.Tensor]


@dataclass
class Position:
    """Where a training is."""

    epoch: int = 0  # epochs done
    batch: int = 0  # batches of the next epoch that are done
    step: int = 0  # optimizer steps done
    best: float = -math.inf  # the highest validation metric
    waited: int = 0  # validations since then
    seconds: float = 0.0  # of training, over all attempts


@dataclass
class Hooks:
    """What the loop leaves to others, each in a phase of its own."""

    save: Callable[[dict[str, Any], float | None], None] = lambda state, metric: None
    row: Callable[[dict[str, float]], None] = lambda row: None
    stop: Callable[[], int] = lambda: 0  # the number of a signal that asks to stop, or 0
    optimizer_step: Callable[[], None] = lambda: None
    callbacks: Sequence[Callback] = field(default_factory=tuple)


class Loop:
    """Train a task on the loaders of this rank; without a second one nothing is validated."""

    def __init__(
        self,
        fabric: lightning.Fabric,
        config: Config,
        task: Task,
        training: Loader,
        validation: Loader | None,
        *,
        timer: PhaseTimer | NoTimer,
        hooks: Hooks | None = None,
    ) -> None:
        self.fabric, self.config, self.task = fabric, config, task
        self.training, self.validation, self.hooks = training, validation, hooks or Hooks()
        self.timer = task.timer = timer
        optimizer = task.make_optimizer(config.optimizer)
        self.module, self.optimizer = fabric.setup(task, optimizer)
        steps = -(-len(training) // config.optimizer.accumulate)
        self.schedule = Schedule(self.optimizer, config.schedule, steps, config.trainer.epochs)
        self.ema = None if config.trainer.ema is None else Ema(task.model, config.trainer.ema)
        self.position = Position()
        self.meter = Meter(fabric.device)
        self.guard = FiniteGuard(fabric.device)
        self.gradients = GradientSum(getattr(self.module, "_forward_module", self.module))
        self.agreement = Agreement()
        self.batches, self.epochs = most_batches(config), config.trainer.epochs
        self._trains = config.mode is Mode.train
        if not self._trains and self.batches is not None:
            self.epochs = -(-self.batches // len(training))
        self._fixed: Prepared | None = None
        self._compute, self._update = _MODES[config.mode]
        # Fabric itself only does this where DDP wraps the module; 32 and 64 need nothing.
        self._autocast = fabric.autocast if config.trainer.precision == "bf16" else nullcontext
        self._batches_done = self._own = self._genotypes = 0
        self._rows = torch.empty(0, dtype=torch.int64)
        self._began = self._saved = self._epoch_began = time.monotonic()
        self._before, self._saved_step = 0.0, -1

    def run(self) -> int:
        """Train to the end; return the number of the signal that stopped it before, or 0."""
        self.task.train()
        self._began = self._saved = time.monotonic()
        self._before = self.position.seconds
        signal = 0
        while not self.finished:
            signal = self._train_epoch()
            if signal or self._is_short():
                if not signal and self._trains:
                    self._save(None)
                break
            self._end_epoch()
        self.timer.switch("other")
        self.agreement.settle()
        self.timer.end_step(self.position.epoch, self.position.step, 0, kind="between")
        return signal

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on."""
        loss, device = self.task.loss, self.fabric.device
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
            "random_device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "standard": dict(vars(self.task.standard)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state as if the training had never stopped."""
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
        patience = self.config.trainer.patience
        enough = patience is not None and self.position.waited >= patience
        return enough or self.position.epoch >= self.epochs

    def _is_short(self) -> bool:
        return self.batches is not None and self._batches_done >= self.batches

    def _train_epoch(self) -> int:
        position, timer = self.position, self.timer
        self.task.epoch = position.epoch
        self.training.set_epoch(position.epoch)
        steps = len(self.training)
        timer.switch("logging")
        for callback in self.hooks.callbacks:
            callback.begin(position.epoch, self.epochs, position.batch, steps)
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
            if self._trains and (signal or due):
                self._save(None)
            timer.switch("other")
            timer.end_step(position.epoch, position.step, self._own)
            # A capture's step begins where the row does, so that phases lie inside of it.
            timer.switch("logging")
            self.hooks.optimizer_step()
            if signal or self._is_short():
                return signal
        return 0

    def _accumulated_step(self, batches: Iterator[Batch], steps: int) -> None:
        """Do the batches of one optimizer step, and the step."""
        position, timer, loader = self.position, self.timer, self.training
        together = min(self.config.optimizer.accumulate, steps - position.batch)
        whole = loader.batch_size * together
        if self.config.mode is not Mode.fixed:
            whole = min(whole, loader.samples_per_epoch - position.batch * loader.batch_size)
        self._own = 0
        for i in range(together):
            prepared, genotypes = self._next(batches)
            self._own += len(prepared.batch)
            self._genotypes += genotypes
            self._rows = prepared.batch.rows
            # The last batch of an epoch may be short, and every genotype counts the same.
            values = self._compute(self, prepared, genotypes / whole, i == together - 1)
            timer.switch("logging")
            if values is not None:
                values = {name: value.detach() for name, value in values.items()}
                self.meter.add(values, genotypes)
                self.guard.see(values["loss"], position.step + 1, position.epoch + 1, self._rows)
            for callback in self.hooks.callbacks:
                callback.step(None if values is None else values["loss"], genotypes)
            position.batch += 1
            self._batches_done += 1
        timer.switch("optimizer")
        self._update(self)
        position.step += 1

    def _next(self, batches: Iterator[Batch]) -> tuple[Prepared, int]:
        """Return the next batch on its device, and how many genotypes all ranks have of it."""
        loader, timer = self.training, self.timer
        if self._fixed is not None:
            return self._fixed, loader.batch_size
        done = self.position.batch * loader.batch_size
        timer.switch("data_wait")
        batch = next(batches)
        timer.switch("preparation")
        prepared = self.task.prepare(batch)
        timer.switch("transfer")
        prepared = prepared.to(self.fabric.device)
        if self.config.mode is Mode.fixed:
            self._fixed = prepared
        return prepared, min(loader.batch_size, loader.samples_per_epoch - done)

    def _forward(self, prepared: Prepared, share: float = 1.0, last: bool = True) -> Values | None:
        self.timer.switch("forward")
        with self._autocast():
            values: Values = self.module.training_step(prepared)
        return values

    def _forward_backward(self, prepared: Prepared, share: float, last: bool) -> Values | None:
        distributed = hasattr(self.module, "_forward_module") and self.fabric.world_size > 1
        waits = distributed and not last
        with self.fabric.no_backward_sync(self.module) if waits else nullcontext():
            values = self._forward(prepared)
            assert values is not None
            self.timer.switch("backward")
            self.gradients.begin()
            self.fabric.backward(values["loss"] * share)
            if distributed and last:
                self.timer.move("backward", "communication", self.gradients.exposed())
        return values

    def _empty_backward(self, *_: Any) -> Values | None:
        self.timer.switch("backward")
        leaf = torch.zeros(1, device=self.fabric.device, requires_grad=True)
        leaf.sum().backward()  # type: ignore[no-untyped-call]
        return None

    def _optimize(self) -> None:
        clip = self.config.optimizer.clip
        if clip is not None:
            nn.utils.clip_grad_norm_(self.task.parameters(), clip, foreach=True)
        self.schedule.apply(self.position.step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.position.step)

    def _time_to_save(self) -> int:
        minutes = self.config.trainer.checkpoint_every_minutes
        return SAVE if minutes and time.monotonic() - self._saved >= 60 * minutes else 0

    def _save_due(self, asked: int) -> bool:
        every, step = self.config.trainer.checkpoint_every_steps, self.position.step
        # What was asked for before the last save was answered by it.
        by_time = asked == SAVE and step > self._saved_step + 1
        return by_time or bool(every and step % every == 0)

    def _save(self, metric: float | None) -> None:
        with self.timer.phase("checkpoint"):
            self.guard.settle()
            self._check_weights()
            self._count_seconds()
            self.hooks.save(self.state_dict(), metric)
            self._saved, self._saved_step = time.monotonic(), self.position.step

    def _check_weights(self) -> None:
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
        done = position.epoch + 1
        due = done % self.config.trainer.validate_every == 0 or done == self.epochs
        if self._trains and self.validation is not None and due:
            timer.switch("validation")
            validation = self._validate()
            metrics = validation.metrics()
            row |= {f"validation_{name}": value for name, value in metrics.items()}
            metric = metrics["pearson"]
            self.schedule.validated(metric)
            better = metric > position.best
            position.best = metric if better else position.best
            position.waited = 0 if better else position.waited + 1
        position.epoch, position.batch = done, 0
        self.meter.reset()
        if self._trains:
            timer.switch("checkpoint")
            self.hooks.row(row)
            self._save(metric)
        timer.switch("logging")
        for callback in self.hooks.callbacks:
            callback.epoch(row, validation, position.step)
        timer.switch("other")
        timer.end_step(position.epoch - 1, position.step, 0, kind="between")

    def _validate(self) -> Validation:
        assert self.validation is not None
        with nullcontext() if self.ema is None else self.ema.in_place():
            return self.task.validate(self.validation)


Compute = Callable[[Loop, Prepared, float, bool], Values | None]
Update = Callable[[Loop], None]

_MODES: dict[Mode, tuple[Compute, Update]] = {
    Mode.train: (Loop._forward_backward, Loop._optimize),
    Mode.fixed: (Loop._forward_backward, Loop._optimize),
    Mode.step: (Loop._forward_backward, lambda loop: loop.optimizer.zero_grad()),
    Mode.forward: (Loop._forward, lambda loop: None),
    Mode.data: (lambda loop, prepared, share, last: None, lambda loop: None),
    Mode.empty: (Loop._empty_backward, Loop._optimize),
}
"""What each mode computes of a batch, and how it ends a step."""


def most_batches(config: Config) -> int | None:
    """Return the batches after which a run stops, whatever its epochs; None for no bound."""
    if config.mode is Mode.train or config.mode_steps is not None:
        return config.mode_steps
    return MODE_STEPS


class Meter:
    """Means over the genotypes of an epoch; nothing is read from a device before its end."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.genotypes = 0
        self._sums: Values = {}

    @torch.no_grad()
    def add(self, values: Values, genotypes: int) -> None:
        """Add this rank's shares of the means of a global batch of so many genotypes."""
        self.genotypes += genotypes
        for name, value in values.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            self._sums[name].add_(value.detach(), alpha=genotypes)

    def means(self) -> dict[str, float]:
        """Return the means over all ranks."""
        n = max(1, self.genotypes)
        return {name: float(total / n) for name, total in self._over_ranks().items()}

    def reset(self) -> None:
        """Begin an epoch."""
        self.genotypes, self._sums = 0, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums over all ranks, which all have to call this."""
        return {"genotypes": self.genotypes, "sums": self._over_ranks()}

    def load_state_dict(self, state: dict[str, Any], *, first: bool = True) -> None:
        """Continue with sums; ranks other than the first begin with 0, so nothing counts twice."""
        self.genotypes = state["genotypes"]
        self._sums = {
            name: total.to(self.device, torch.float64) * (1.0 if first else 0.0)
            for name, total in state["sums"].items()
        }

    def _over_ranks(self) -> Values:
        if not self._sums:
            return {}
        together = torch.stack(list(self._sums.values()))
        if world_size() > 1:
            dist.all_reduce(together)
        return {name: total.clone() for name, total in zip(self._sums, together, strict=True)}


class NotFiniteError(DeltacellError):
    """The loss or a weight became infinite or NaN, at a step and epoch counted from 1."""

    def __init__(
        self, step: int, epoch: int, value: float, rows: torch.Tensor, what: str = "the loss"
    ) -> None:
        self.step, self.epoch, self.value, self.rows = step, epoch, value, rows
        super().__init__(f"{what} is {value} at step {step:,} (epoch {epoch})")


class FiniteGuard:
    """Looks at every loss: at once on a CPU, and on a device without making the step wait."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._recent: deque[tuple[int, int, torch.Tensor, torch.Tensor]] = deque()
        self._copied: tuple[Any, torch.Tensor] | None = None

    def see(self, loss: torch.Tensor, step: int, epoch: int, rows: torch.Tensor) -> None:
        """Take note of a step's loss; raise if one that has arrived is not finite."""
        if self.device.type == "cpu":
            if not math.isfinite(value := float(loss.detach())):
                raise NotFiniteError(step, epoch, value, rows)
            return
        self._recent.append((step, epoch, rows, loss.detach()))
        if self._copied is not None and self._copied[0].query():
            self._judge(self._copied[1])
            self._copied = None
        if self._copied is None and len(self._recent) >= LOOK_EVERY:
            values = torch.stack([entry[3] for entry in self._recent])
            self._copied = copied_from_device(values)

    def settle(self) -> None:
        """Look at all losses; waits for the device, so only before a checkpoint."""
        if self._recent:
            self._copied = None
            self._judge(torch.stack([entry[3] for entry in self._recent]).cpu())

    def _judge(self, values: torch.Tensor) -> None:
        for value in values.tolist():
            step, epoch, rows, _ = self._recent.popleft()
            if not math.isfinite(value):
                raise NotFiniteError(step, epoch, value, rows.cpu())


def copied_from_device(values: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Begin a copy to the host, and return an event that says when it is done, and the copy."""
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event, copy


class Latest:
    """The newest value of a tensor to show, without waiting for a device; it may lag by a look."""

    def __init__(self) -> None:
        self._copied: tuple[Any, torch.Tensor] | None = None
        self.value = math.nan

    def look(self, tensor: torch.Tensor) -> float:
        """Return the value, or that of the look before."""
        if tensor.device.type == "cpu":
            self.value = float(tensor.detach())
            return self.value
        if self._copied is not None and self._copied[0].query():
            self.value = float(self._copied[1])
            self._copied = None
        if self._copied is None:
            self._copied = copied_from_device(tensor.detach())
        return self.value
