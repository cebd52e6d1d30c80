"""Signals are noted while a run is open, and only then."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from deltacell.train.processes import STOPPING, StopSignals, exit_code


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_is_noted_and_the_handler_before_comes_back(number: int) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number
    assert signal.getsignal(number) == before


def test_the_second_interrupt_is_at_once() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT


def test_a_second_pre_emption_lets_it_save() -> None:
    with StopSignals() as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM


def test_a_thread_that_may_set_no_handlers_does_not() -> None:
    found: list[int | None] = []

    def open_it() -> None:
        with StopSignals() as signals:
            found.append(signals.received)

    thread = threading.Thread(target=open_it)
    thread.start()
    thread.join()
    assert found == [None]


def test_exit_codes_are_those_of_shells() -> None:
    assert (exit_code(signal.SIGTERM), exit_code(signal.SIGINT)) == (143, 130)
