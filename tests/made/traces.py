"""Traces built by hand."""

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


def named(name: str, begin: int, length: int, thread: str = "main") -> Event:
    """Return a named range."""
    return Event(name, begin, length, Kind.annotation, thread)


def steps(lengths: list[int], name: str = "ProfilerStep#*", pause: int = 0) -> list[Event]:
    """Return consecutive ranges, numbered from 0."""
    events, at = [], 0
    for number, length in enumerate(lengths):
        events.append(named(name.replace("*", str(number)), at, length))
        at += length + pause
    return events


def make_trace(events: list[Event], **fields: Any) -> Trace:
    """Return a trace of these events; threads named ``stream ...`` are the device's."""
    events = sorted(events, key=lambda event: (event.begin, -event.duration))
    names = sorted({event.name for event in events})
    threads = sorted({event.thread for event in events})
    kinds = {"name": np.int32, "kind": np.int8, "thread": np.int32}
    codes = [e._replace(name=names.index(e.name), thread=threads.index(e.thread)) for e in events]
    columns = {
        column: np.array([getattr(event, column) for event in codes], kinds.get(column, np.int64))
        for column in Event._fields
    }
    return Trace(
        **{"path": Path("made.json"), **fields},
        **columns,
        names=tuple(names),
        threads=tuple(
            Thread("1", name, name, name.startswith("stream"), 0 if "stream" in name else None)
            for name in threads
        ),
    )
