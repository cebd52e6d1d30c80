"""Memory: the highest that was allocated, where the trace recorded it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Trace


@dataclass(frozen=True)
class MemoryPeak:
    """The highest that was allocated on one device.

    Parameters
    ----------
    device
        ``cpu``, or the device's type and number.
    size
        In bytes.
    time
        When, in nanoseconds.
    step
        The number of the step it was in; None outside.
    during
        What the host was busy with, or nothing.
    since_begin
        Whether only what was allocated after the trace began is counted.
    """

    device: str
    size: int
    time: int
    step: int | None
    during: str | None
    since_begin: bool


def memory_peaks(trace: Trace, steps: Steps, host: HostTime) -> tuple[MemoryPeak, ...]:
    """Return the peak of each device, the highest first; none where memory was not recorded."""
    if "total" not in trace.memory or not len(trace.memory["total"]):
        return ()
    total, time, kind = (trace.memory[name] for name in ("total", "time", "device"))
    number = trace.memory["device_id"] if "device_id" in trace.memory else np.zeros_like(kind)
    peaks = []
    for device, which in sorted(set(zip(kind.tolist(), number.tolist(), strict=True))):
        rows = np.flatnonzero((kind == device) & (number == which))
        top = rows[int(total[rows].argmax())]
        if total[top] <= 0:
            continue
        at = int(time[top])
        place = int(np.searchsorted(steps.begin, at, side="right")) - 1
        inside = place >= 0 and at < steps.end[place]
        pieces, _ = host.between(at, at + 1)
        row = int(host.row[pieces[0]]) if len(pieces) else NOTHING
        peaks.append(
            MemoryPeak(
                device=_name(device, which),
                size=int(total[top]),
                time=at,
                step=int(steps.number[place]) if inside else None,
                during=None if row == NOTHING else trace.text(row),
                since_begin=bool(trace.settings.get("memory_since_begin")),
            )
        )
    return tuple(sorted(peaks, key=lambda peak: -peak.size))


def _name(kind: int, number: int) -> str:
    if kind == 0:
        return "cpu"
    return f"cuda:{number}" if kind == 1 else f"device type {kind}:{number}"
