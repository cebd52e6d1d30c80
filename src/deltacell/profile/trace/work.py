"""The work of a step: its time by kernel, operator and module, and its kind.

The roofline is an estimate: a product of f FLOP and b bytes takes at least max(f / peak FLOP per
second, b / peak bytes per second) on a device whose peaks are known by its name.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Indices, Ints
from deltacell.profile.trace.components import component_events, component_of, owner_of
from deltacell.profile.trace.device import PARTS, device_part
from deltacell.profile.trace.host import HostTime, by_time, plain_names
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NAMES, NOTHING, Kind, Trace

NO_OPERATOR = "(no operator)"  # device time that no recorded operator launched


@dataclass(frozen=True, eq=False)
class DeviceWork:
    """The work of counted steps on the device, in nanoseconds.

    ``time`` is the computation that an operator or module launched itself; ``total`` includes
    everything inside it. The backward of a module's operators counts for the module. If no module
    is recorded, modules are the named ranges without a category; without a device, they have the
    time of the host.
    """

    kernels: pl.DataFrame  # name, part, count, time
    operators: pl.DataFrame  # name, count, time, total
    modules: pl.DataFrame  # the same; no count without a device
    roofline: pl.DataFrame


@dataclass(frozen=True)
class Traits:
    """What kind of work a step is, as far as the trace shows."""

    compiled: bool = False
    graphs: bool = False  # it launches CUDA graphs
    recomputes: bool = False  # forward operators run inside the backward
    workers: bool | None = None  # batches come from worker processes
    shapes: dict[str, tuple[str, str]] = field(default_factory=dict)  # most frequent, by operator


def find_work(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    host: HostTime,
    launch: Indices,
) -> DeviceWork:
    """Sum up the device's time of counted steps by kernel, operator and module."""
    every = np.flatnonzero(trace.on_device)
    asked_at = np.where(launch[every] >= 0, trace.begin[launch[every]], trace.begin[every])
    rows = every[steps.in_counted(asked_at)]
    plain = plain_names(trace)
    part = device_part(trace)[rows]
    kernels = _by_kernel(trace, rows, plain, part)
    rows = rows[(part == 0) & (launch[rows] >= 0)]
    call = launch[rows]
    time = trace.duration[rows]
    operator = trace.kind == Kind.operator
    owner = owner_of(operator, nesting)[call]
    operators = _by_owner(trace, nesting, operator, plain, owner, time)
    module = component_events(trace, steps)
    of = component_of(trace, nesting, module)
    if not len(every):
        pieces = np.flatnonzero(steps.counted[host.step] & (host.row >= 0))
        pieces = pieces[of[host.row[pieces]] >= 0]
        call = host.row[pieces]
        time = (host.end - host.begin)[pieces]
    modules = pl.DataFrame(schema=_OWNED)
    if module.any():
        modules = _by_owner(trace, nesting, module, plain, of[call], time)
        modules = modules if len(every) else modules.drop("count")
    return DeviceWork(kernels, operators, modules, _roofline(trace, rows, owner))


def _by_kernel(trace: Trace, rows: Ints, plain: list[str], part: Ints) -> pl.DataFrame:
    """Return the time of events of the device by name and part of its time."""
    named = pl.Series(plain, dtype=pl.String).gather(trace.name[rows])
    columns = {"name": named, "part": pl.Series(PARTS).gather(part), "time": trace.duration[rows]}
    return by_time(pl.DataFrame(columns), "name", "part")


def find_traits(trace: Trace, nesting: Nesting, steps: Steps) -> Traits:
    """Find out what kind of work the counted steps are."""
    inside = steps.in_counted(trace.begin)

    def rows(pattern: str) -> Ints:
        return np.flatnonzero(inside & trace.named(lambda name: re.search(pattern, name[:1000])))

    loaders = rows(r"_(?:Multi|Single)Process\w*Iter")
    back = trace.named(lambda n: re.search(r"Backward\d*>?$|^autograd::engine", n[:100] + n[-100:]))
    forward = rows(
        r"^aten::(?:linear|conv[123]d|layer_norm|batch_norm|group_norm|embedding|gelu|relu|silu"
        r"|scaled_dot_product_attention|softmax|dropout)$",
    )
    shapes: dict[str, tuple[str, str]] = {}
    if len(trace.shape):
        shaped = np.flatnonzero(inside & (trace.shape >= 0) & (trace.kind == Kind.operator))
        frame = pl.DataFrame({"name": trace.name[shaped], "shape": trace.shape[shaped]})
        most = frame.group_by("name", "shape").len().sort("name", "len", "shape")
        most = most.unique("name", keep="last", maintain_order=True)
        shapes = {trace.names[name]: trace.shapes[of] for name, of, _ in most.iter_rows()}
    compiled = rows(r"^Torch-Compiled Region|^## Call CompiledFxGraph|^triton_|CompiledFunction")
    return Traits(
        compiled=len(compiled) > 0,
        graphs=len(rows("GraphLaunch")) > 0,
        recomputes=bool((owner_of(back, nesting)[forward] >= 0).any()),
        workers=("Multi" in trace.text(int(loaders[0]))) if len(loaders) else None,
        shapes=shapes,
    )


_OWNED = {"name": pl.String(), **dict.fromkeys(("count", "time", "total"), pl.Int64())}


def _by_owner(
    trace: Trace,
    nesting: Nesting,
    wanted: Bools,
    plain: list[str],
    owner: Indices,
    time: Ints,
) -> pl.DataFrame:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    owners, of = np.unique(owner, return_inverse=True)
    times = np.bincount(of, weights=time, minlength=len(owners)).astype(np.int64).tolist()
    counts = np.bincount(of, minlength=len(owners)).tolist()
    for one, length, count in zip(owners.tolist(), times, counts, strict=True):
        name = NO_OPERATOR if one == NOTHING else plain[trace.name[one]]
        sums[name][0] += count
        sums[name][1] += length
        around = {name}
        above = one
        while above != NOTHING:
            if wanted[above]:
                around.add(plain[trace.name[above]])
            above = int(nesting.parent[above])
        for outer in around:
            sums[outer][2] += length
    rows = [(name, *values) for name, values in sums.items()]
    frame = pl.DataFrame(rows, schema=_OWNED, orient="row")
    return frame.sort("time", "total", "name", descending=[True, True, False])


def _roofline(trace: Trace, rows: Ints, owner: Indices) -> pl.DataFrame:
    """Return how close to the device's peak the products and convolutions of counted steps are.

    It is empty if the sizes of inputs or the peaks of the device are unknown.
    """
    schema = {
        **dict.fromkeys(("operation", "sizes", "type"), pl.String()),
        **{"count": pl.Int64(), "time": pl.Int64(), "gflop": pl.Float64()},
        **{"least": pl.Int64(), "share of the peak": pl.Float64()},
    }
    peaks = next((v for k, v in NAMES["peaks"].items() if k in (trace.device_name or "")), None)
    if peaks is None or not len(trace.shape):
        return pl.DataFrame(schema=schema)
    known = (owner >= 0) & (trace.shape[owner] >= 0)
    known &= trace.named(_FACTORS.__contains__)[owner]
    rows = rows[known]
    owner = owner[known]
    columns = {"name": trace.name[owner], "shape": trace.shape[owner], "call": owner}
    calls = (
        pl.DataFrame({**columns, "time": trace.duration[rows]})
        .filter(pl.col("time") > 0)
        .group_by("name", "shape")
        .agg(pl.col("call").n_unique(), pl.col("time").sum())
    )
    products = []
    for code, shape, count, time in calls.iter_rows():
        name = trace.names[code]
        (sizes, types) = trace.shapes[shape]
        work = _flop_and_elements(name, sizes)
        if work is None:
            continue
        flop, elements = work
        width = 2 if re.search(r"half|bfloat16", types[:200], re.IGNORECASE) else 4
        peak = peaks[0] if width == 2 else peaks[1]
        least = max(flop / (peak * 1e3), elements * width / peaks[2]) * count
        kind = f"{8 * width} bits"
        products.append((name, sizes, kind, count, time, flop / 1e9, round(least), least / time))
    frame = pl.DataFrame(products, schema=schema, orient="row")
    return frame.sort("time", "operation", "sizes", descending=[True, False, False])


# The position of the first factor among the inputs of each operator.
_FACTORS = {
    **{"aten::mm": 0, "aten::bmm": 0, "aten::linear": 0, "aten::addmm": 1, "aten::baddbmm": 1},
    **{"aten::cudnn_convolution": 0, "aten::miopen_convolution": 0},
}


def _flop_and_elements(name: str, sizes: str) -> tuple[float, float] | None:
    try:
        dims = [d for d in json.loads(sizes) if isinstance(d, list)]
        a, b = dims[_FACTORS[name] :][:2]
        if "convolution" in name:
            # The size of the output is not recorded, so that of the input is used.
            out = a[0] * b[0] * math.prod(a[2:])
            return 2.0 * out * math.prod(b[1:]), math.prod(a) + math.prod(b) + out
        if name == "aten::linear":
            a = [math.prod(a[:-1]), a[-1]]
            b = b[::-1]
        if a[-1] != b[-2] or a[:-2] != b[:-2]:
            return None
        elements = math.prod(a) + math.prod(b) + math.prod(a[:-1]) * b[-1]
        return 2.0 * math.prod(a) * b[-1], elements
    except (ValueError, IndexError, TypeError):
        return None
