"""Communication between ranks: sums of gradients, the time they take, and common decisions."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from deltacell.train.signals import StopSignals

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class CommunicationClock:
    """How long a step waits for the sum of gradients, which is partly hidden by the backward pass.

    The hook `sum_gradients` notes when gradients are ready to be summed. What the backward pass
    takes after the last of them is not hidden.
    """

    def __init__(self) -> None:
        self._ready = math.inf

    def start(self) -> None:
        """Begin a backward pass, in which no gradients are ready yet."""
        self._ready = math.inf

    def note_ready(self) -> None:
        """Record that some gradients are about to be summed."""
        self._ready = time.perf_counter()

    def exposed(self) -> float:
        """Return the seconds since the last gradients were ready; 0 if none were."""
        return max(0.0, time.perf_counter() - self._ready)


# DDP checks a hook's annotations against its own classes, and ours are strings.
def sum_gradients(clock, bucket):  # type: ignore[no-untyped-def]
    """Sum gradients over ranks, because a rank's loss is its share of the batch's."""
    clock.note_ready()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


@dataclass(frozen=True)
class StepRequest:
    """What all ranks do after a step."""

    signal: int = 0  # the number of the signal to stop at, or 0
    save: bool = False  # whether it is time for a checkpoint


class StopRequests:
    """Requests to stop or to save, which any rank may make and all ranks follow."""

    def __init__(self, signals: StopSignals, world_size: int) -> None:
        self._signals = signals
        self._asked_to_save = False
        # This group communicates between hosts, and so does not wait for a device.
        self._hosts: ProcessGroup | None = None
        if world_size > 1:
            self._hosts = dist.new_group(backend="gloo")

    def ask_to_save(self) -> None:
        """Make all ranks save after this step."""
        self._asked_to_save = True

    def of_any_rank(self) -> StepRequest:
        """Return the highest signal that a rank has received, and whether any asks to save."""
        request = torch.tensor([self._signals.received or 0, int(self._asked_to_save)])
        self._asked_to_save = False
        if self._hosts is not None:
            dist.all_reduce(request, dist.ReduceOp.MAX, group=self._hosts)
        signal, save = request.tolist()
        return StepRequest(signal, bool(save))
