"""Work on items in threads, and row-wise functions on a few rows at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Item = TypeVar("Item")
Result = TypeVar("Result")

Rows = slice | Tensor
"""The nodes that the rows of a tensor belong to."""

ALL = slice(None)


def in_workers(
    function: Callable[[int, Item], Result],
    items: Sequence[Item],
    workers: int,
) -> list[Result]:
    """Return ``function(worker, item)`` of each item; worker ``i % workers`` always gets item i."""
    workers = min(workers, len(items))

    def share(worker: int) -> list[Result]:
        return [function(worker, item) for item in items[worker::workers]]

    shares = in_any_worker(share, range(workers), workers)
    return [shares[i % workers][i // workers] for i in range(len(items))]


def in_any_worker(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
) -> list[Result]:
    """Return ``function(item)`` of each item, each computed by the next thread that is free."""
    workers = min(workers, len(items))
    if workers <= 1:
        return [function(item) for item in items]
    inference = torch.is_inference_mode_enabled()

    def run(item: Item) -> Result:
        with torch.inference_mode(inference):
            return function(item)

    pool = _pool(os.getpid(), workers)
    futures = [pool.submit(run, item) for item in items]
    # Wait for all, so that nothing is running any more when an error is raised.
    wait(futures)
    return [future.result() for future in futures]


def workers_for(device: torch.device, items: int) -> int:
    """Return the number of threads to use: on a CPU, that of PyTorch, but at most one per item."""
    # Threads can be limited to one core only with OpenMP.
    if device.type != "cpu" or "ATen parallel backend: OpenMP" not in _parallel_info():
        return 1
    return max(1, min(torch.get_num_threads(), items))


@contextmanager
def one_core(workers: int) -> Iterator[None]:
    """Keep the caller's own operations to one core while several workers compute."""
    # PyTorch's own threads busy-wait and would take the cores from the workers.
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if workers > 1 else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:
    def use_one_core() -> None:
        # A thread initialises its setting on first access, which would overwrite a later one.
        torch.get_num_threads()
        torch.set_num_threads(1)

    # The cache is per process, because threads do not survive a fork.
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "deltacell", use_one_core)
    started = threading.Barrier(workers)
    wait([pool.submit(started.wait) for _ in range(workers)])
    # The setting is per thread, but new threads inherit the latest one.
    torch.set_num_threads(threads)
    return pool


_parallel_info = cache(torch.__config__.parallel_info)


Gradients = Sequence[Tensor | None]


def gradients_of(
    made: Sequence[Tensor],
    inputs: Sequence[Tensor],
    gradients: Gradients,
) -> list[Tensor | None]:
    """Return the gradients of `inputs` from those of the results `made`; None if unused."""
    ends = [
        (x, g.to(x.dtype))
        for x, g in zip(made, gradients, strict=True)
        if g is not None and x.requires_grad
    ]
    wanted = [x for x in inputs if x.requires_grad]
    if not ends or not wanted:
        return [None] * len(inputs)
    outputs, by = zip(*ends, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, by, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


@dataclass(frozen=True)
class Pieces:
    """How rows are passed to a row-wise function."""

    at_a_time: int | None  # rows per call; None is all, and keeps the graph
    workers: int = 1

    def of(self, n: int) -> list[slice]:
        """Return slices of n rows of equal length, the same number for each worker, at least 1."""
        count = -(-n // self.at_a_time) if self.at_a_time else 1
        count = -(-count // self.workers) * self.workers
        step = max(1, -(-n // max(count, 1)))
        return [slice(begin, min(begin + step, n)) for begin in range(0, max(n, 1), step)]


def row_wise(
    function: Callable[..., Any],
    rows: Rows,
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    pieces: Pieces,
    gradients: Callable[..., Gradients] | None = None,
) -> Any:
    """Return ``function(*inputs, rows)``, one or several tensors with a row per input row.

    With a few rows at a time, all intermediate results stay in cache; the backward recomputes them,
    which takes no longer than reading them from memory. For a function with one result,
    ``gradients(*inputs, rows, by)`` may replace automatic differentiation: it returns the gradients
    of the inputs and the parameters from that of the result.
    """
    if pieces.at_a_time is None:
        return function(*inputs, rows)
    parts = pieces.of(len(inputs[0]))
    given = [list(inputs)]
    if len(parts) > 1:
        sizes = [part.stop - part.start for part in parts]
        split = (torch.split_with_sizes(x, sizes) for x in inputs)
        given = [list(item) for item in zip(*split, strict=True)]
    of_parts = [rows[part] if isinstance(rows, Tensor) else part for part in parts]

    def run(i: int, own: Sequence[Tensor]) -> tuple[Tensor, ...]:
        made = function(*own, of_parts[i])
        return (made,) if isinstance(made, Tensor) else tuple(made)

    by_hand = gradients and (lambda i, own, by: gradients(*own, of_parts[i], by))
    found = in_graphs(run, given, parameters, pieces.workers, 0, by_hand)
    made = found[0] if len(found) == 1 else [torch.cat(x) for x in zip(*found, strict=True)]
    return made[0] if len(made) == 1 else made


def in_graphs(
    run: Callable[[int, Sequence[Tensor]], tuple[Tensor, ...]],
    given: Sequence[Sequence[Tensor]],
    parameters: Sequence[Tensor],
    workers: int,
    kept: int | None = None,
    gradients: Callable[[int, Sequence[Tensor], Tensor], Gradients] | None = None,
) -> list[tuple[Tensor, ...]]:
    """Return ``run(i, given[i])`` for each item i, in threads, forward and backward.

    Items may share tensors. Each has a separate graph; those of the first `kept` items (by default
    all) are kept for the backward, and the others are recomputed.
    """
    once = {id(x): x for item in given for x in item}
    place = {key: j for j, key in enumerate(once)}
    device = given[0][0].device.type
    # Casts made here without a gradient must not be reused where a gradient is needed.
    on = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device)
    autocast = partial(torch.autocast, device, dtype, enabled=on, cache_enabled=False)
    places = [[place[id(x)] for x in item] for item in given]
    keep = (len(given) if kept is None else kept) if torch.is_grad_enabled() else 0
    job = _Job(run, places, len(once), workers, keep, gradients, autocast)
    found = _InGraphs.apply(job, *once.values(), *parameters)  # type: ignore[no-untyped-call]
    step = len(found) // len(given)
    return [found[i : i + step] for i in range(0, len(found), step)]


@dataclass(frozen=True, eq=False)
class _Job:
    run: Callable[[int, Sequence[Tensor]], tuple[Tensor, ...]]
    places: Sequence[Sequence[int]]  # the indices of each item's tensors
    n_given: int
    workers: int
    kept: int
    gradients: Callable[[int, Sequence[Tensor], Tensor], Gradients] | None
    autocast: Callable[[], AbstractContextManager[object]]

    def make(self, i: int, leaves: Sequence[Tensor], *, graph: bool) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(graph), self.autocast():
            return self.run(i, [leaves[j] for j in self.places[i]])

    def leaves(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        given = tensors[: self.n_given]
        return [x.detach().requires_grad_(x.requires_grad) for x in given]


class _InGraphs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = job.leaves(tensors)
        ctx.job, ctx.leaves, ctx.kept = job, leaves if job.kept else None, {}

        def one(_: int, i: int) -> list[Tensor]:
            made = job.make(i, leaves, graph=i < job.kept)
            if i < job.kept:
                ctx.kept[i] = made
            return [x.detach() for x in made]

        with one_core(job.workers):
            found = in_workers(one, range(len(job.places)), job.workers)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return tuple(x for made in found for x in made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        job, tensors = ctx.job, ctx.saved_tensors
        leaves = ctx.leaves or job.leaves(tensors)
        parameters = range(job.n_given, len(tensors))
        inputs = [*leaves, *tensors[job.n_given :]]
        sums: list[dict[int, Tensor]] = [{} for _ in range(job.workers)]
        step = len(by) // len(job.places)

        def one(worker: int, i: int) -> None:
            wanted = [*dict.fromkeys(job.places[i]), *parameters]
            gradient = by[i * step : (i + 1) * step]
            if job.gradients is not None:
                with job.autocast():
                    own = [leaves[j] for j in job.places[i]]
                    found = job.gradients(i, own, gradient[0])
            else:
                # Popped to free memory; a second backward recomputes it.
                made = ctx.kept.pop(i, None) or job.make(i, leaves, graph=True)
                found = gradients_of(made, [inputs[j] for j in wanted], gradient)
            _add(sums[worker], zip(wanted, found, strict=True))

        with one_core(job.workers):
            in_workers(one, range(len(job.places)), job.workers)
            for others in sums[1:]:
                _add(sums[0], others.items())
        ctx.leaves = None
        return None, *(sums[0].get(j) for j in range(len(tensors)))


def _add(totals: dict[int, Tensor], gradients: Iterable[tuple[int, Tensor | None]]) -> None:
    for j, gradient in gradients:
        if gradient is not None:
            # Not in place, because autograd may return the same memory for several inputs.
            totals[j] = totals[j] + gradient if j in totals else gradient
