"""Signals that ask a run to stop: it saves first."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Slurm's pre-emption and time limit, a terminal's Ctrl-C, and Slurm's early warning."""


class StopSignals:
    """While this is open, a signal is noted; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number


def exit_code(number: int) -> int:
    """Return the exit code of a program that a signal stopped, 128 + its number."""
    return 128 + number
