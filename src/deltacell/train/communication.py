"""What ranks say to each other in a step: their gradients, and whether one has to stop."""

from __future__ import annotations

import json
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAVE = 1
"""What a rank gives `Agreement.reached` when it is time to save; below the signals that stop."""


def world_size() -> int:
    """Return how many ranks there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class GradientSum:
    """Gradients are summed over ranks, because every rank's loss is its share of the batch's.

    Parameters
    ----------
    module
        What takes part; one that is not distributed needs nothing.
    """

    def __init__(self, module: nn.Module) -> None:
        self._last_ready = float("inf")
        if isinstance(module, DistributedDataParallel):
            module.register_comm_hook(self, _sum)

    def begin(self) -> None:
        """Begin a backward."""
        self._last_ready = float("inf")

    def exposed(self) -> float:
        """Return the seconds since the last gradients were ready, at the end of a backward.

        What was sent before is hidden behind the computation of the rest.
        """
        return max(0.0, time.perf_counter() - self._last_ready)

    def ready(self) -> None:
        """Note that a bucket of gradients is ready and sent."""
        self._last_ready = time.perf_counter()


# DDP compares the annotations of a hook with its own classes, and ours are only text.
def _sum(state, bucket):  # type: ignore[no-untyped-def]
    state.ready()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(_first)


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]


class Agreement:
    """All ranks stop, or save, after the same step where one of them has to.

    The question goes round while the next step is computed, so nobody waits for it, and the
    answer is one step old.
    """

    def __init__(self) -> None:
        self._alone = world_size() == 1
        self._group = None if self._alone else dist.new_group(backend="gloo")
        self._asked: tuple[Any, torch.Tensor] | None = None

    def reached(self, mine: int) -> int:
        """Return the highest number that a rank gave a step ago; alone, one's own.

        Parameters
        ----------
        mine
            0 to go on, `SAVE`, or the number of a signal.
        """
        if self._alone:
            return mine
        answer = 0
        if self._asked is not None:
            work, number = self._asked
            work.wait()
            answer = int(number)
        number = torch.tensor(mine)
        work = dist.all_reduce(number, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._asked = (work, number)
        return answer

    def arrive(self) -> None:
        """Wait for what is still under way, and keep its answer for the next `reached`."""
        if self._asked is not None:
            self._asked[0].wait()

    def settle(self) -> None:
        """Wait for what is still under way, and forget it."""
        if self._asked is not None:
            self._asked[0].wait()
            self._asked = None


def from_first_rank(value: Any, device: torch.device) -> Any:
    """Return the first rank's value on all ranks.

    Parameters
    ----------
    value
        Anything JSON can hold.
    device
        Of this rank.
    """
    if world_size() == 1:
        return value
    text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=device)
    length = torch.tensor(len(text), device=device)
    dist.broadcast(length, 0)
    if dist.get_rank() != 0:
        text = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(text, 0)
    return json.loads(bytes(text.cpu().tolist()))
