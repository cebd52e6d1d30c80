"""Threads that each work on mutants of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar, cast

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_workers(
    function: Callable[[int, Item], Result], items: Sequence[Item], workers: int
) -> list[Result]:
    """Return ``function(worker, item)`` of each item, with the items spread over threads.

    Item i goes to worker ``i % workers``, so that what a worker sums up is the same in every run.
    Each thread computes on one core: mutants side by side wait for each other once a step, where
    threads inside each operation would wait for each other thousands of times.

    Parameters
    ----------
    function
        Must not care which thread it runs in.
    items
        What to call it with.
    workers
        How many threads; with one, the caller's own, which may use several cores.
    """
    workers = min(workers, len(items))
    return _spread(function, items, [range(w, len(items), workers) for w in range(workers)])


def in_any_worker(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> list[Result]:
    """Return ``function(item)`` of each item, each by the next thread that is free.

    Parameters
    ----------
    function, items, workers
        As in `in_workers`, and nothing may depend on who computed what before.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        return [function(item) for item in items]
    # One iterator for all: whoever is free takes the next.
    queue = _Queue(len(items))
    return _spread(lambda _, item: function(item), items, [queue] * workers)


def workers_for(device: torch.device, items: int) -> int:
    """Return how many threads to use for some items: on a CPU as many as PyTorch may use."""
    if device.type != "cpu" or not _threads_have_own_settings():
        return 1
    return max(1, min(torch.get_num_threads(), items))


@contextmanager
def one_core(workers: int) -> Iterator[None]:
    """Keep the caller's own operations to one core while others work.

    The threads that PyTorch uses inside an operation wait for the next one by spinning, and would
    take the cores from the workers.

    Parameters
    ----------
    workers
        With one, nothing is done, for then the caller is it.
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
    function: Callable[[int, Item], Result], items: Sequence[Item], shares: Sequence[Any]
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
    _wait([pool.submit(work, worker) for worker in range(len(shares))])
    return cast(list[Result], results)


def _wait(futures: Sequence[Future[Any]]) -> None:
    failures = [failure for f in futures if (failure := f.exception()) is not None]
    if failures:
        raise failures[0]


@cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:
    # By process, because threads do not survive a fork.
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "deltacell", _use_one_core)
    started = threading.Barrier(workers)
    _wait([pool.submit(started.wait) for _ in range(workers)])
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
