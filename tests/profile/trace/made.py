"""Traces built by hand."""

from __future__ import annotations

from collections.abc import Mapping
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
    parent: int = NOTHING


def make_trace(events: list[Event], **fields: Any) -> Trace:
    """Return a trace of these events; threads named ``stream ...`` are the device's."""
    events = sorted(events, key=lambda event: (event.begin, -event.duration))
    names = sorted({event.name for event in events})
    threads = sorted({event.thread for event in events})
    codes: Mapping[str, int] = {name: code for code, name in enumerate(names)}
    places: Mapping[str, int] = {name: place for place, name in enumerate(threads)}
    return Trace(
        path=fields.pop("path", Path("made.json")),
        names=tuple(names),
        name=np.array([codes[event.name] for event in events], dtype=np.int32),
        kind=np.array([event.kind for event in events], dtype=np.int8),
        begin=np.array([event.begin for event in events], dtype=np.int64),
        duration=np.array([event.duration for event in events], dtype=np.int64),
        thread=np.array([places[event.thread] for event in events], dtype=np.int32),
        threads=tuple(
            Thread("1", name, name, name.startswith("stream"), 0 if "stream" in name else None)
            for name in threads
        ),
        correlation=np.array([event.correlation for event in events], dtype=np.int64),
        sequence=np.array([event.sequence for event in events], dtype=np.int64),
        parent=np.array([event.parent for event in events], dtype=np.int32),
        **fields,
    )


def row_of(trace: Trace, name: str) -> int:
    """Return the first event of this name."""
    return int(np.flatnonzero(trace.name == trace.names.index(name))[0])
