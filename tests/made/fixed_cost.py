"""Traces whose times are made up from what was called, so that no load of the machine is in them.

A recorded trace keeps its events and their nesting. Each event takes some time by itself, which
depends on its name and the size of its inputs alone, so two recordings of one program get the same
times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

Event = dict[str, Any]

CALL_US = 2.0  # of an operator or a range by itself
PYTHON_US = 0.01  # of a call in Python by itself
BYTE_US = 3e-4  # of each byte of the inputs
GAP_US = 0.001  # between two events
BYTES = {"double": 8, "float": 4, "long int": 8}

SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


def write_fixed(
    recorded: Path,
    file: Path,
    *,
    shapes: bool = True,
    pace: float = 1.0,
    stalls: Mapping[str, float] | None = None,
) -> Path:
    """Write a recorded trace with made-up times.

    Without ``shapes``, it is as if they had not been recorded. Everything takes ``pace`` times as
    long, and operators of some names take ``stalls`` times as long in addition.
    """
    trace = msgspec.json.decode(recorded.read_bytes())
    threads: dict[Any, list[Event]] = defaultdict(list)
    others: list[Event] = []
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] != "Spans":
            threads[event["tid"]].append(event)
        elif event["ph"] == "M":
            others.append(event)
    for events in threads.values():
        _give_times(events, pace, stalls or {})
        others += events
    if not shapes:
        trace["record_shapes"] = 0
        for event in others:
            for name in SHAPES:
                event.get("args", {}).pop(name, None)
    trace["traceEvents"] = others
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(trace))
    return file


def _give_times(events: list[Event], pace: float, stalls: Mapping[str, float]) -> None:
    """Replace the times of the events of one thread, which may be nested."""
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    open_events: list[tuple[float, Event]] = []  # with their recorded ends
    now = 0.0

    def close_last() -> None:
        nonlocal now
        _, event = open_events.pop()
        now += GAP_US
        event["dur"] = now - event["ts"]

    for event in events:
        begin = event["ts"]
        end = begin + event["dur"]
        while open_events and open_events[-1][0] <= begin:
            close_last()
        now += GAP_US
        event["ts"] = now
        now += pace * _own_us(event) * stalls.get(event["name"], 1.0)
        open_events.append((end, event))
    while open_events:
        close_last()


def _own_us(event: Event) -> float:
    """Return the time of an event without that of the events inside it."""
    if event["cat"] == "python_function":
        return PYTHON_US
    args = event.get("args", {})
    sizes = args.get("Input Dims", [])
    types = args.get("Input type", [])
    n_bytes = 0.0
    for size, kind in zip(sizes, types, strict=False):
        n_bytes += BYTES.get(kind, 0) * _elements(size)
    return CALL_US + BYTE_US * n_bytes


def _elements(size: list[Any]) -> float:
    if not size or isinstance(size[0], list):
        return 0.0
    return float(math.prod(size))
