"""Signals that end a run in an orderly way."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

# Slurm's pre-emption and time limit, a terminal's Ctrl-C, and Slurm's early warning.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopSignals:
    """Record signals while this context is open; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
