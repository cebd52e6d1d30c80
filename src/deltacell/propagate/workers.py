"""Work shared out to threads: items, and rows a few at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, TypeVar, cast

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

Rows = slice | torch.Tensor
"""Which nodes the rows of a tensor belong to."""

ALL = slice(None)


def in_workers(
    function: Callable[[int, Item], Result], items: Sequence[Item], workers: int
) -> list[Result]:
    """Return ``function(worker, item)`` of each item; item i goes to worker ``i % workers``.

    So what a worker sums up is the same in every run. Each thread computes on one core: mutants
    side by side wait for each other once per step, where threads inside each operation would wait
    for each other thousands of times. One worker is the calling thread.
    """
    workers = min(workers, len(items))
    return _spread(function, items, [range(w, len(items), workers) for w in range(workers)])


def in_any_worker(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> list[Result]:
    """Return ``function(item)`` of each item, each computed by the next thread that is free."""
    queue = _Queue(len(items))
    return _spread(lambda _, item: function(item), items, [queue] * min(workers, len(items)))


def workers_for(device: torch.device, items: int) -> int:
    """Return how many threads to use for some items: on a CPU as many as PyTorch may use."""
    if device.type != "cpu" or not _threads_have_own_settings():
        return 1
    return max(1, min(torch.get_num_threads(), items))


@contextmanager
def one_core(workers: int) -> Iterator[None]:
    """Keep the caller's own operations to one core while several workers compute.

    The threads that PyTorch uses inside an operation wait for the next one by spinning, and would
    take the cores from the workers.
    """
    threads = torch.get_num_threads()
    if workers <= 1 or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Queue:
    def __init__(self, n: int) -> None:
        self._left = iter(range(n))
        self._lock = threading.Lock()

    def __iter__(self) -> _Queue:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._left)


def _spread(
    function: Callable[[int, Item], Result], items: Sequence[Item], shares: Sequence[Iterable[int]]
) -> list[Result]:
    if len(shares) <= 1:
        return [function(0, item) for item in items]
    results: list[Result | None] = [None] * len(items)
    inference = torch.is_inference_mode_enabled()

    def work(worker: int) -> None:
        with torch.inference_mode(inference):
            for i in shares[worker]:
                results[i] = function(worker, items[i])

    pool = _pool(os.getpid(), len(shares))
    futures = [pool.submit(work, worker) for worker in range(len(shares))]
    # All of them first, so that nothing runs on after an error is raised.
    failures = [error for f in futures if (error := f.exception()) is not None]
    if failures:
        raise failures[0]
    return cast(list[Result], results)


@cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:
    # By process, because threads do not survive a fork.
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "deltacell", _use_one_core)
    started = threading.Barrier(workers)
    for future in [pool.submit(started.wait) for _ in range(workers)]:
        future.result()
    # The setting is each thread's own, but threads made later take over the last one made.
    torch.set_num_threads(threads)
    return pool


def _use_one_core() -> None:
    # A thread takes over a setting the first time it looks, which must not be after this.
    torch.get_num_threads()
    torch.set_num_threads(1)


@cache
def _threads_have_own_settings() -> bool:
    return "ATen parallel backend: OpenMP" in torch.__config__.parallel_info()


Gradients = Sequence[torch.Tensor | None]


def gradients_of(
    made: torch.Tensor | Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    gradient: torch.Tensor | Gradients,
) -> list[torch.Tensor | None]:
    """Return the gradients of `inputs` from those of what was `made` of them, with its graph.

    None for inputs that want none or had no part in it.
    """
    if isinstance(made, torch.Tensor):
        made, gradient = [made], [cast(torch.Tensor, gradient)]
    ends = [
        (x, g.to(x.dtype))
        for x, g in zip(made, gradient, strict=True)
        if g is not None and x.requires_grad
    ]
    wanted = [x for x in inputs if x.requires_grad]
    if not ends or not wanted:
        return [None] * len(inputs)
    outputs, by = zip(*ends, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, by, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def add_gradients(a: Gradients, b: Gradients) -> list[torch.Tensor | None]:
    """Return the sums of two lists of gradients, in which None is 0."""
    return [y if x is None else x if y is None else x + y for x, y in zip(a, b, strict=True)]


def autocast_here(device_type: str) -> Callable[[], AbstractContextManager[object]]:
    """Return what makes the autocast that is in force here and now, for another place or time."""
    # Not cached: casts made here without a gradient must not be found by those that need one.
    return partial(
        torch.autocast,
        device_type,
        torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=False,
    )


@dataclass(frozen=True)
class Pieces:
    """How rows go through a row-wise function."""

    at_a_time: int | None  # rows that go through it together; None is all
    workers: int = 1

    def of(self, n: int) -> list[slice]:
        """Return equal slices of n rows, as many for each worker; an empty one of no rows."""
        # Equal, so that none is too short to be worth a call.
        count = -(-n // self.at_a_time) if self.at_a_time else 1
        count = -(-count // self.workers) * self.workers
        step = max(1, -(-n // max(count, 1)))
        return [slice(begin, min(begin + step, n)) for begin in range(0, max(n, 1), step)]


def row_wise(
    function: Callable[..., Any],
    rows: Rows,
    inputs: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    pieces: Pieces,
    gradients: Callable[..., Any] | None = None,
) -> Any:
    """Return ``function(*inputs, rows)``, a tensor or several with a row per input row.

    A few rows at a time, everything between the inputs and the result stays in cache and is gone
    when the next rows come; the backward computes it again. That takes as much time as reading it
    back from memory, and a fifth of the memory.
    """
    job = _RowWise(
        function, rows, len(inputs), pieces, gradients, autocast_here(inputs[0].device.type)
    )
    made = _Recomputed.apply(job, *inputs, *parameters)  # type: ignore[no-untyped-call]
    return made[0] if len(made) == 1 else made


@dataclass(frozen=True, eq=False)
class _RowWise:
    function: Callable[..., Any]
    rows: Rows
    n_inputs: int
    pieces: Pieces
    gradients: Callable[..., Any] | None
    autocast: Callable[[], AbstractContextManager[object]]

    def call(self, inputs: Sequence[torch.Tensor], part: slice) -> tuple[torch.Tensor, ...]:
        made = self.function(*inputs, self.rows_of(part))
        return (made,) if isinstance(made, torch.Tensor) else tuple(made)

    def rows_of(self, part: slice) -> Rows:
        return self.rows[part] if isinstance(self.rows, torch.Tensor) else part


class _Recomputed(torch.autograd.Function):
    """Keeps its arguments for the backward and nothing between."""

    @staticmethod
    def forward(ctx: Any, job: _RowWise, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = tensors[: job.n_inputs]

        def one(_: int, part: slice) -> tuple[torch.Tensor, ...]:
            with torch.no_grad(), job.autocast():
                return job.call([x[part] for x in inputs], part)

        with one_core(job.pieces.workers):
            found = in_workers(one, job.pieces.of(len(inputs[0])), job.pieces.workers)
        ctx.job = job
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return found[0] if len(found) == 1 else tuple(map(torch.cat, zip(*found, strict=True)))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *by: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        job: _RowWise = ctx.job
        inputs, parameters = ctx.saved_tensors[: job.n_inputs], ctx.saved_tensors[job.n_inputs :]
        wanted = ctx.needs_input_grad[1 : job.n_inputs + 1]
        by_inputs = [
            torch.empty_like(x) if w else None for x, w in zip(inputs, wanted, strict=True)
        ]
        by_parameters: list[Gradients] = [[None] * len(parameters)] * job.pieces.workers

        def one(worker: int, part: slice) -> None:
            own = [x[part].detach().requires_grad_(w) for x, w in zip(inputs, wanted, strict=True)]
            by_part = [None if g is None else g[part] for g in by]
            with job.autocast():
                if job.gradients is not None:
                    *found, others = job.gradients(*own, job.rows_of(part), by_part[0])
                else:
                    with torch.enable_grad():
                        made = job.call(own, part)
                    found = gradients_of(made, [*own, *parameters], by_part)
                    others = found[job.n_inputs :]
            for total, gradient in zip(by_inputs, found, strict=False):
                if total is not None:
                    total[part] = 0 if gradient is None else gradient
            by_parameters[worker] = add_gradients(by_parameters[worker], others)

        with one_core(job.pieces.workers):
            in_workers(one, job.pieces.of(len(inputs[0])), job.pieces.workers)
        return None, *by_inputs, *reduce(add_gradients, by_parameters)


def in_graphs(
    run: Callable[[int, Sequence[torch.Tensor]], tuple[torch.Tensor, ...]],
    n: int,
    given: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    workers: int,
    kept: int | None = None,
) -> list[tuple[torch.Tensor, ...]]:
    """Return ``run(i, given)`` for i from 0 to n, in threads, forward and backward.

    Each item has a graph of its own. Those of the first `kept` items are kept for the backward,
    all where it is not given; the others are made again.
    """
    once = {id(x): x for x in given}
    place = {key: i for i, key in enumerate(once)}

    def run_once(i: int, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return run(i, [leaves[place[id(x)]] for x in given])

    autocast = autocast_here(given[0].device.type)
    keep = (n if kept is None else kept) if torch.is_grad_enabled() else 0
    job = _Graphs(run_once, n, len(once), workers, keep, autocast)
    found = _InGraphs.apply(job, *once.values(), *parameters)  # type: ignore[no-untyped-call]
    step = len(found) // n
    return [found[i : i + step] for i in range(0, len(found), step)]


@dataclass(frozen=True, eq=False)
class _Graphs:
    run: Callable[[int, Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]
    n: int
    n_given: int
    workers: int
    kept: int
    autocast: Callable[[], AbstractContextManager[object]]

    def make(
        self, i: int, given: Sequence[torch.Tensor], *, graph: bool
    ) -> tuple[torch.Tensor, ...]:
        with torch.set_grad_enabled(graph), self.autocast():
            return self.run(i, given)


class _InGraphs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Graphs, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.job, ctx.leaves = job, _leaves(tensors[: job.n_given])
        ctx.kept = [None] * job.n

        def one(_: int, i: int) -> list[torch.Tensor]:
            made = job.make(i, ctx.leaves, graph=i < job.kept)
            if i < job.kept:
                ctx.kept[i] = made
            return [x.detach() for x in made]

        with one_core(job.workers):
            found = in_workers(one, range(job.n), job.workers)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        if not job.kept:
            ctx.leaves = None
        return tuple(x for made in found for x in made)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *by: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        job: _Graphs = ctx.job
        given, parameters = ctx.saved_tensors[: job.n_given], ctx.saved_tensors[job.n_given :]
        leaves = ctx.leaves or _leaves(given)
        inputs = [*leaves, *parameters]
        sums: list[Gradients] = [[None] * len(inputs)] * job.workers
        step = len(by) // job.n

        def one(worker: int, i: int) -> None:
            # Used up, so that memory goes down from here on; a second backward makes it again.
            made, ctx.kept[i] = ctx.kept[i] or job.make(i, leaves, graph=True), None
            found = gradients_of(made, inputs, by[i * step : (i + 1) * step])
            sums[worker] = add_gradients(sums[worker], found)

        with one_core(job.workers):
            in_workers(one, range(job.n), job.workers)
            total = reduce(add_gradients, sums)
        ctx.leaves = None
        return None, *total


def _leaves(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().requires_grad_(x.requires_grad) for x in tensors]
