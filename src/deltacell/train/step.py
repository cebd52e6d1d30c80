"""One optimizer step: batches, forward and backward passes, and the update of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from deltacell.models.base import named_range
from deltacell.profile.component_rows import StepPass
from deltacell.profile.components import ComponentTimer, NoComponents
from deltacell.profile.phases import PhaseTimer
from deltacell.screen import Batch
from deltacell.train.communication import CommunicationClock, sum_gradients
from deltacell.train.config import OptimizerConfig
from deltacell.train.epoch_losses import Losses
from deltacell.train.finite import FiniteGuard
from deltacell.train.loaders import StepBatches
from deltacell.train.mode import Mode
from deltacell.train.optimizers import build_optimizer
from deltacell.train.schedule import LearningRate
from deltacell.train.state import TrainingState
from deltacell.train.task import Prepared, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class StepResult:
    """What an optimizer step computed."""

    loss: Tensor | None  # this rank's share of the last batch's; None without a forward pass
    n_genotypes: int  # over all ranks
    n_computed: int  # by this rank
    n_batches: int


class RankedTask:
    """The task as a rank runs it: in the precision of the config, with gradients over all ranks."""

    def __init__(self, fabric: Fabric, task: Task, optimizer: torch.optim.Optimizer) -> None:
        self.fabric = fabric
        self.task = task
        self.module, self.optimizer = fabric.setup(task, optimizer)
        self.clock = CommunicationClock()
        # The task, or DDP around it: the wrapper of Fabric would round the results.
        self._wrapped = self.module._forward_module
        if isinstance(self._wrapped, DistributedDataParallel):
            self._wrapped.register_comm_hook(self.clock, sum_gradients)

    @classmethod
    def of(cls, fabric: Fabric, task: Task, config: OptimizerConfig) -> RankedTask:
        """Return the task with a new optimizer of a config."""
        return cls(fabric, task, build_optimizer(task, config))

    def forward(self, prepared: Prepared) -> Losses:
        """Return this rank's share of the losses of the global batch."""
        with self.fabric.autocast():
            losses: Losses = self._wrapped(prepared)
        return losses

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those of the step."""
        self.clock.start()
        self.fabric.backward(loss)

    def without_sum(self, *, enabled: bool) -> AbstractContextManager[None]:
        """Return a context in which gradients are not summed over ranks, if enabled."""
        context: AbstractContextManager[None]
        context = self.fabric.no_backward_sync(self.module, enabled=enabled)
        return context


class OptimizerStep:
    """Computes some batches, adds up their gradients, and updates the weights once."""

    def __init__(
        self,
        mode: Mode,
        ranked: RankedTask,
        state: TrainingState,
        rate: LearningRate,
        *,
        clip: float | None,
        guard: FiniteGuard,
        timer: PhaseTimer,
        components: ComponentTimer | None = None,
    ) -> None:
        self.mode = mode
        self.ranked = ranked
        self.state = state
        self.rate = rate
        self.clip = clip
        self.guard = guard
        self.timer = timer
        self.components = NoComponents() if components is None else components
        self._only_batch: Prepared | None = None

    def __call__(self, step: StepBatches) -> StepResult:
        """Compute the batches of an optimizer step and update the weights.

        Every genotype of the step has the same weight in the gradient, also those of a short last
        batch: the loss of a batch counts with its share of the genotypes of the step.
        """
        self.components.begin_step()
        n_genotypes = sum(step.sizes)
        n_computed = 0
        losses: Losses | None = None
        for number, size in enumerate(step.sizes, start=1):
            prepared = self._next(step.batches)
            losses = self._compute(
                prepared,
                share=size / n_genotypes,
                is_last=number == len(step.sizes),
            )
            self._record(losses, prepared.batch, size)
            n_computed += len(prepared.batch)
        self._update()
        self.components.end_step(self.state.position.step, n_computed)
        loss = None if losses is None else losses["loss"].detach()
        return StepResult(loss, n_genotypes, n_computed, len(step.sizes))

    def _next(self, batches: Iterator[Batch]) -> Prepared:
        """Return the next batch on the device of the training."""
        if self._only_batch is not None:
            return self._only_batch
        self.timer.switch("data_wait")
        batch = next(batches)
        self.timer.switch("preparation")
        prepared = self.ranked.task.prepare(batch)
        self.timer.switch("transfer")
        prepared = prepared.to(self.ranked.fabric.device)
        if self.mode.repeats_first_batch:
            self._only_batch = prepared
        return prepared

    def _compute(self, prepared: Prepared, *, share: float, is_last: bool) -> Losses | None:
        """Compute the losses of a batch and their gradients, as far as the mode asks for them."""
        if not self.mode.computes_gradients:
            return self._forward(prepared) if self.mode.computes_loss else None
        if not self.mode.computes_loss:
            self._backward_of_nothing()
            return None
        # Gradients are summed over ranks once per optimizer step, with those of the last batch.
        with self.ranked.without_sum(enabled=not is_last):
            losses = self._forward(prepared)
            self.timer.switch("logging")
            self.components.before_backward(losses["loss"])
            self.timer.switch("backward")
            with self.components.during(StepPass.backward):
                self.ranked.backward(losses["loss"] * share)
        if self.ranked.fabric.world_size > 1 and is_last:
            exposed = self.ranked.clock.exposed()
            self.components.leave_out(self.timer.move("backward", "communication", exposed))
        return losses

    def _forward(self, prepared: Prepared) -> Losses:
        self.timer.switch("forward")
        with self.components.during(StepPass.forward):
            return self.ranked.forward(prepared)

    def _backward_of_nothing(self) -> None:
        """Run the backward pass of an empty graph, which has the fixed cost of a backward pass."""
        self.timer.switch("backward")
        leaf = torch.zeros(1, device=self.ranked.fabric.device, requires_grad=True)
        leaf.sum().backward()  # type: ignore[no-untyped-call]

    def _record(self, losses: Losses | None, batch: Batch, n_genotypes: int) -> None:
        """Count a batch and add up its losses; there are none without a forward pass."""
        self.timer.switch("logging")
        if losses is not None:
            self.state.losses.add(losses, n_genotypes)
            self.guard.note(self.state.position.step + 1, batch.rows, losses["loss"])
        self.state.position.batch += 1
        self.state.n_batches += 1

    def _update(self) -> None:
        """Update the weights and their moving average."""
        self.timer.switch("optimizer")
        with self.components.during(StepPass.update):
            self._update_weights()
        self.state.position.step += 1

    def _update_weights(self) -> None:
        optimizer = self.state.optimizer
        position = self.state.position
        if self.mode.updates_weights:
            if self.clip is not None:
                with named_range("clip"):
                    parameters = self.ranked.task.parameters()
                    nn.utils.clip_grad_norm_(parameters, self.clip, foreach=True)
            # The rate is a function of the position: whatever the optimizer had is overwritten.
            for group in optimizer.param_groups:
                group["lr"] = self.rate(position)
            with named_range("optimizer"):
                optimizer.step()
        if self.mode.computes_gradients:
            optimizer.zero_grad()
        if self.mode.updates_weights and self.state.average is not None:
            with named_range("ema", "weight average"):
                self.state.average.update(position.step)
