"""Where the host waits for the device."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools
from deltacell.profile.trace.host import by_time
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace


def waiting_calls(trace: Trace) -> Bools:
    """Return which events are calls that wait for the device, including blocking copies."""
    is_call = trace.kind == Kind.runtime
    waits: Bools = trace.named(lambda name: _CALLS.match(name[:101])) & is_call
    # A copy to pageable memory of the host is blocking.
    to_host = trace.named(lambda name: _TO_HOST.search(name[:200])) & (trace.kind == Kind.copy)
    copies = trace.correlation[to_host]
    waits[is_call] |= np.isin(trace.correlation[is_call], copies[copies >= 0])
    return waits


def sync_points(trace: Trace, nesting: Nesting, steps: Steps) -> pl.DataFrame:
    """Return where the host waits for the device in counted steps, the longest wait first.

    The ``operation`` is the outermost operator around the ``call`` that waits; ``site`` is the
    file, line and function if the trace has stacks.
    """
    calls = np.flatnonzero(waiting_calls(trace))
    calls = calls[steps.in_counted(trace.begin[calls])]
    schema = dict.fromkeys(("operation", "call", "site"), pl.String)
    askers = [_asked_by(trace, nesting, row) for row in calls.tolist()]
    frame = pl.DataFrame(askers, schema=schema, orient="row")
    time = pl.Series("time", trace.duration[calls], dtype=pl.Int64)
    return by_time(frame.with_columns(time), *schema)


_CALLS = re.compile(
    r"(?:cuda|hip|cu|musa|xpu)\w*(?:Stream|Device|Event|Ctx)Synchronize(?:_\w+)?$"
    r"|(?:cuda|hip)Memcpy(?:2D|3D)?(?:_\w+)?$|cuMemcpy(?:DtoH|HtoD)(?:_v2)?$|(?:cuda|hip)Free$",
)

_TO_HOST = re.compile(r"(?:DtoH|DeviceToHost)(?!.*Pinned)")

_TORCH = re.compile(r"(?:site-packages|dist-packages)/|^torch/|/torch/|^<|nn\.Module: |<built-in")


def _asked_by(trace: Trace, nesting: Nesting, row: int) -> tuple[str, str, str | None]:
    """Return the operation, the call and the site of a call that waits."""
    operation = trace.text(row)
    site = None
    is_inside = True
    above = int(nesting.parent[row])
    while above != NOTHING:
        kind = trace.kind[above]
        text = trace.text(above)
        is_inside &= kind == Kind.operator
        operation = text if is_inside else operation
        is_own_code = kind == Kind.python and not _TORCH.search(text)
        if site is None:
            site = text if is_own_code else _site_of_stack(trace, above)
        above = int(nesting.parent[above])
    return operation, trace.text(row), site


def _site_of_stack(trace: Trace, row: int) -> str | None:
    """Return the first call in the stack of an event that is not one of PyTorch, if it has one."""
    if not len(trace.stack) or trace.stack[row] == NOTHING:
        return None
    stack = trace.stacks[trace.stack[row]]
    calls = [call.strip() for call in stack.split(";")]
    calls = [call for call in calls if call]
    own_calls = [call for call in calls if not _TORCH.search(call)]
    return next(iter([*own_calls, *calls]), None)
