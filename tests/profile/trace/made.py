"""Traces built by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deltacell.profile.trace.trace import NOTHING, Kind, Thread, Trace


class Event(NamedTuple):
    """One event; times in nanoseconds."""

    name: str
    begin: int
    duration: int
    kind: Kind = Kind.operator
    thread: str = "main"
    correlation: int = NOTHING
    sequence: int = NOTHING


STEP = Event("ProfilerStep#1", 0, 1000, Kind.annotation)


def steps(lengths: list[int], name: str = "ProfilerStep#*", pause: int = 0) -> list[Event]:
    """Return consecutive ranges, numbered from 0."""
    events, at = [], 0
    for number, length in enumerate(lengths):
        events.append(Event(name.replace("*", str(number)), at, length, Kind.annotation))
        at += length + pause
    return events


def make_trace(events: list[Event], **fields: Any) -> Trace:
    """Return a trace of these events; threads named ``stream ...`` are the device's."""
    events = sorted(events, key=lambda event: (event.begin, -event.duration))
    names = sorted({event.name for event in events})
    threads = sorted({event.thread for event in events})
    columns = {
        "name": ([names.index(event.name) for event in events], np.int32),
        "kind": ([event.kind for event in events], np.int8),
        "begin": ([event.begin for event in events], np.int64),
        "duration": ([event.duration for event in events], np.int64),
        "thread": ([threads.index(event.thread) for event in events], np.int32),
        "correlation": ([event.correlation for event in events], np.int64),
        "sequence": ([event.sequence for event in events], np.int64),
    }
    return Trace(
        **{"path": Path("made.json"), **fields},
        **{name: np.array(values, dtype=kind) for name, (values, kind) in columns.items()},
        names=tuple(names),
        threads=tuple(
            Thread("1", name, name, name.startswith("stream"), 0 if "stream" in name else None)
            for name in threads
        ),
    )


def row_of(trace: Trace, name: str) -> int:
    """Return the first event of this name."""
    return int(np.flatnonzero(trace.name == trace.names.index(name))[0])
