from __future__ import annotations

import threading

import pytest
import torch

from deltacell.propagate.workers import in_any_worker, in_workers, one_core, workers_for

CPU = torch.device("cpu")


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_results_come_in_order_and_shares_are_fixed(workers: int) -> None:
    found = in_workers(lambda worker, item: (worker, item * 10), range(7), workers)
    assert [item for _, item in found] == [i * 10 for i in range(7)]
    n = min(workers, 7)
    assert [worker for worker, _ in found] == [i % n for i in range(7)]
    assert in_any_worker(lambda item: item * 10, range(7), workers) == [i * 10 for i in range(7)]


def test_nothing_to_do() -> None:
    assert in_workers(lambda worker, item: item, [], 3) == []
    assert in_any_worker(lambda item: item, [], 3) == []


def test_whoever_is_free_takes_the_next() -> None:
    waiting = threading.Event()

    def work(item: int) -> int:
        # The first only ends when all others are done, so another thread must do those.
        if item == 0:
            assert waiting.wait(20)
        if item == 4:
            waiting.set()
        return threading.get_ident()

    found = in_any_worker(work, range(5), 2)
    assert found[0] not in found[1:]


def test_each_thread_has_one_core_and_the_caller_keeps_its_own() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert in_workers(lambda *_: torch.get_num_threads(), range(4), 4) == [1] * 4
        assert torch.get_num_threads() == 3
        fresh: list[int] = []
        thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert fresh == [3]
        assert workers_for(CPU, 100) == 3
        assert workers_for(CPU, 2) == 2
    finally:
        torch.set_num_threads(before)


def test_one_core_while_others_work() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_core(2):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), one_core(2):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
        with one_core(1):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_device_needs_one_thread() -> None:
    assert workers_for(torch.device("cuda"), 100) == 1


def test_what_goes_wrong_is_raised() -> None:
    def work(worker: int, item: int) -> None:
        if item == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        in_workers(work, range(5), 2)


def test_inference_mode_goes_along() -> None:
    with torch.inference_mode():
        assert in_workers(lambda *_: torch.is_inference_mode_enabled(), range(2), 2) == [True] * 2
    assert in_workers(lambda *_: torch.is_inference_mode_enabled(), range(2), 2) == [False] * 2
