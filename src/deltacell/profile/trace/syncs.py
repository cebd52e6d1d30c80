"""Sync points: where the host stops until the device is done."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace


def is_sync_call(name: str) -> bool:
    """Return whether a call of the host into the driver waits for the device."""
    return len(name) <= 100 and bool(_CALLS.match(name))


def waiting_calls(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return which events are calls that wait for the device, blocking copies too, bool [n]."""
    named = np.array([is_sync_call(name) for name in trace.names], dtype=bool)
    waits: npt.NDArray[np.bool_] = named[trace.name] & (trace.kind == Kind.runtime)
    return waits | _copies_to_pageable(trace)


def sync_points(trace: Trace, nesting: Nesting, steps: Steps) -> pl.DataFrame:
    """Return where the host waits for the device, by what asked for it and from where.

    They are calls that wait, such as ``cudaStreamSynchronize``, and operators that need a value on
    the host: ``.item()``, ``nonzero``, a copy to the host. What asked is the outermost operator
    around the call. Without a device ``.item()`` costs nothing, so a trace of the host only has
    none.

    Returns
    -------
    By time waited: ``operation``, ``call`` (what waits), ``site`` (file, line and function, where
    the trace has stacks), ``range`` (the innermost named range around it), ``count``, ``time`` in
    nanoseconds, ``per_step`` (how many).
    """
    calls = np.flatnonzero(waiting_calls(trace))
    step = np.searchsorted(steps.begin, trace.begin[calls], side="right") - 1
    inside = (step >= 0) & (trace.begin[calls] < steps.end[step]) & steps.counted[step]
    calls = calls[inside]
    keys: dict[tuple[str, str, str | None, str | None], list[int]] = {}
    for row in calls.tolist():
        operation, site, around = _asked_by(trace, nesting, row)
        key = (operation, trace.text(row), site, around)
        entry = keys.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += int(trace.duration[row])
    counted = int(steps.counted.sum())
    rows = [
        {
            "operation": operation,
            "call": call,
            "site": site,
            "range": around,
            "count": count,
            "time": time,
            "per_step": count / counted,
        }
        for (operation, call, site, around), (count, time) in keys.items()
    ]
    by = ["time", "operation", "call", "site", "range"]
    return pl.DataFrame(rows, schema=_COLUMNS).sort(by, descending=[True, *[False] * 4])


_CALLS = re.compile(
    r"(?:cuda|hip|cu|musa|xpu)\w*(?:Stream|Device|Event|Ctx)Synchronize(?:_\w+)?$"
    r"|(?:cuda|hip)Memcpy(?:2D|3D)?(?:_\w+)?$|cuMemcpy(?:DtoH|HtoD)(?:_v2)?$|(?:cuda|hip)Free$"
)
_TO_HOST = re.compile(r"(?:DtoH|DeviceToHost)(?!.*Pinned)")
_STEP = re.compile(r"ProfilerStep#")
_COLUMNS = pl.Schema(
    {
        "operation": pl.String(),
        "call": pl.String(),
        "site": pl.String(),
        "range": pl.String(),
        "count": pl.Int64(),
        "time": pl.Int64(),
        "per_step": pl.Float64(),
    }
)
_TORCH = re.compile(r"(?:site-packages|dist-packages)/|^torch/|/torch/|^<|nn\.Module: |<built-in")


def _copies_to_pageable(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return the calls of copies to pageable memory of the host, which return when it is there."""
    to_host = np.array([bool(_TO_HOST.search(name[:200])) for name in trace.names], dtype=bool)
    if not to_host.any():
        return np.zeros(len(trace), dtype=bool)
    copies = trace.correlation[to_host[trace.name] & (trace.kind == Kind.copy)]
    waits = np.zeros(len(trace), dtype=bool)
    calls = np.flatnonzero(trace.kind == Kind.runtime)
    waits[calls] = np.isin(trace.correlation[calls], copies[copies >= 0])
    return waits


def _asked_by(trace: Trace, nesting: Nesting, row: int) -> tuple[str, str | None, str | None]:
    """Return the outermost operator around a call, the call site, and the named range around."""
    operation, site, around = trace.text(row), None, None
    outside = False
    at = int(nesting.parent[row])
    while at != NOTHING:
        kind = trace.kind[at]
        outside |= kind != Kind.operator
        if not outside:
            operation = trace.text(at)
        if kind == Kind.annotation and around is None and not _STEP.match(trace.text(at)):
            around = trace.text(at)
        if kind == Kind.python and site is None and not _TORCH.search(trace.text(at)):
            site = trace.text(at)
        if site is None and len(trace.stack) and trace.stack[at] != NOTHING:
            site = _site(trace.stacks[trace.stack[at]])
        at = int(nesting.parent[at])
    return operation, site, around


def _site(stack: str) -> str | None:
    """Return the innermost call of a stack that is not of a library; else the innermost."""
    calls = [call.strip() for call in stack.split(";") if call.strip()]
    mine = [call for call in calls if not _TORCH.search(call)]
    return next(iter(mine or calls), None)
