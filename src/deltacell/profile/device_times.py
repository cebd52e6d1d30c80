"""The device's own times of the phases, without ever waiting for the device."""

from __future__ import annotations

from collections import deque

import torch


class DeviceRow:
    """The device's seconds in each phase of a row, null until the device has passed its end."""

    __slots__ = ("marks", "seconds")

    def __init__(self, marks: list[tuple[int, torch.cuda.Event]], n_phases: int) -> None:
        self.marks = marks
        self.seconds: list[float | None] = [None] * n_phases


class DeviceTimes:
    """Events on the device's stream at every switch, read when the device has passed them."""

    def __init__(self, n_phases: int) -> None:
        self._n_phases = n_phases
        self._free: list[torch.cuda.Event] = []
        self._marks: list[tuple[int, torch.cuda.Event]] = []
        self._waiting: deque[DeviceRow] = deque()

    def mark(self, phase: int) -> None:
        """Say that from here on the stream's work belongs to a phase."""
        event = self._free.pop() if self._free else _event()
        event.record()
        self._marks.append((phase, event))

    def end_row(self, phase: int) -> DeviceRow:
        """Close a row, whose last event is the first of the next."""
        self.mark(phase)
        row = DeviceRow(self._marks, self._n_phases)
        self._marks = [row.marks[-1]]
        self._waiting.append(row)
        self.resolve()
        return row

    def resolve(self) -> None:
        """Read the events of the rows that the device has passed, without waiting for it."""
        while self._waiting and self._waiting[0].marks[-1][1].query():  # type: ignore[no-untyped-call]
            row = self._waiting.popleft()
            seconds = [0.0] * self._n_phases
            for (phase, begin), (_, end) in zip(row.marks, row.marks[1:], strict=False):
                seconds[phase] += begin.elapsed_time(end) / 1e3
            row.seconds = list(seconds)
            self._free.extend(event for _, event in row.marks[:-1])
            row.marks = []


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
