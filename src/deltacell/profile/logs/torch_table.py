"""The text of ``torch.profiler``: ``key_averages().table()``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deltacell.profile.logs.readings import LogReading, LogSource, Quantity, is_time

_UNITS = {"ns": 1e-9, "us": 1e-6, "μs": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s?(ns|us|μs|µs|ms|s)")
_TOTAL = re.compile(r"Self CPU time total:\s{0,20}(\S{1,40})$")
_GAP = re.compile(r"\s{2,}")
_STEPS = "ProfilerStep*"
_LOADER = "enumerate(DataLoader)"


@dataclass
class _Table:
    """What was read of one table."""

    columns: Sequence[str] = ()
    first_line: int = 0
    last_line: int = 0
    n_steps: int | None = None
    step_s: float | None = None
    wait_s: float = 0.0  # in all steps
    total_s: float | None = None


class TorchTableReader:
    """Reads a table of operators; of several tables the last one counts."""

    def __init__(self) -> None:
        self._table = _Table()

    def add(self, number: int, text: str) -> None:
        """Take the next line of a log."""
        total = _TOTAL.search(text) if "Self CPU" in text else None
        if total is not None:
            self._table.total_s = _seconds(total[1])
            self._table.first_line = self._table.first_line or number
            self._table.last_line = number
        elif "Self CPU" in text and "# of Calls" in text:
            self._table = _Table(_GAP.split(text.strip()), number, number)
        elif self._table.columns and (_STEPS in text or _LOADER in text):
            self._add_row(number, _GAP.split(text.strip()))

    def readings(self) -> tuple[LogReading, ...]:
        """Return the wall time of a step, its wait for the loader, and the sum of self times."""
        values = {
            Quantity.step: self._table.step_s,
            Quantity.loader_wait: self._table.wait_s / self._table.n_steps
            if self._table.n_steps
            else None,
            Quantity.self_sum: self._table.total_s,
        }
        return tuple(
            LogReading(
                quantity,
                LogSource.profiler_step,
                (seconds,),
                self._table.first_line,
                self._table.last_line,
                self._table.n_steps,
            )
            for quantity, seconds in values.items()
            if seconds is not None and is_time(seconds)
        )

    def _add_row(self, number: int, cells: list[str]) -> None:
        if len(cells) != len(self._table.columns):
            return
        row = dict(zip(self._table.columns, cells, strict=True))
        total_s = _seconds(row.get("CPU total", ""))
        calls = row.get("# of Calls", "")
        if total_s is None or not re.fullmatch(r"[1-9]\d{0,14}", calls):
            return
        self._table.last_line = number
        if cells[0] == _STEPS:
            # On a GPU a second row of the same name has the time on the device.
            if total_s / int(calls) > (self._table.step_s or 0.0):
                self._table.step_s = total_s / int(calls)
                self._table.n_steps = int(calls)
        elif cells[0].startswith(_LOADER):
            self._table.wait_s += total_s


def _seconds(duration: str) -> float | None:
    match = _DURATION.fullmatch(duration)
    return float(match[1]) * _UNITS[match[2]] if match else None
