"""Functions of many items in threads, each of which computes on one core."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

from deltacell.profile.components import WorkerTimes

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_workers(
    function: Callable[[int, Item], Result],
    items: Sequence[Item],
    workers: int,
) -> list[Result]:
    """Return ``function(worker, item)`` of each item; worker ``i % workers`` always gets item i."""
    workers = min(workers, len(items))

    def results_of(worker: int) -> list[Result]:
        return [function(worker, item) for item in items[worker::workers]]

    by_worker = in_any_worker(results_of, range(workers), workers)
    return [by_worker[i % workers][i // workers] for i in range(len(items))]


def in_any_worker(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
) -> list[Result]:
    """Return ``function(item)`` of each item, each computed by the next thread that is free.

    An error of one item is raised after all items have ended.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        return [function(item) for item in items]
    inference = torch.is_inference_mode_enabled()
    times = WorkerTimes()

    def run(item: Item) -> Result:
        with torch.inference_mode(inference), times.of_thread():
            return function(item)

    pool = _pool(os.getpid(), workers)
    futures = [pool.submit(run, item) for item in items]
    # Wait for all, so that nothing is running any more when an error is raised.
    wait(futures)
    times.end()
    return [future.result() for future in futures]


def workers_for(device: torch.device, n_items: int) -> int:
    """Return the number of threads to use: on a CPU, that of PyTorch, but at most one per item."""
    # Threads can be limited to one core only with OpenMP.
    if device.type != "cpu" or "ATen parallel backend: OpenMP" not in _parallel_info():
        return 1
    return max(1, min(torch.get_num_threads(), n_items))


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
    """Return a pool of threads; a cache per process, because threads do not survive a fork."""

    def use_one_core() -> None:
        # A thread initialises its setting on first access, which would overwrite a later one.
        torch.get_num_threads()
        torch.set_num_threads(1)

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "deltacell", use_one_core)
    started = threading.Barrier(workers)
    wait([pool.submit(started.wait) for _ in range(workers)])
    # The setting is per thread, but new threads inherit the latest one.
    torch.set_num_threads(threads)
    return pool


_parallel_info = cache(torch.__config__.parallel_info)
