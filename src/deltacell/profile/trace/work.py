"""The work of a step: its time by kernel, operator and module, and its kind.

The roofline is an estimate: a product of f FLOP and b bytes takes at least max(f / peak FLOP per
second, b / peak bytes per second) on a device whose peaks are known by its name.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Indices, Ints
from deltacell.profile.trace.components import component_events, component_of, owner_of
from deltacell.profile.trace.device import PARTS, device_part
from deltacell.profile.trace.host import HostTime, by_time
from deltacell.profile.trace.host_names import plain_names
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
    on_device = np.flatnonzero(trace.on_device)
    launched = launch[on_device]
    asked_at = np.where(launched >= 0, trace.begin[launched], trace.begin[on_device])
    rows = on_device[steps.in_counted(asked_at)]
    plain = plain_names(trace)
    part = device_part(trace)[rows]
    kernels = _by_kernel(trace, rows, plain, part)
    rows = rows[(part == 0) & (launch[rows] >= 0)]
    call = launch[rows]
    time = trace.duration[rows]
    is_operator = trace.kind == Kind.operator
    owner = owner_of(is_operator, nesting)[call]
    operators = _by_owner(trace, nesting, is_operator, plain, owner, time)
    modules = _by_module(trace, nesting, steps, host, plain, call, time)
    return DeviceWork(kernels, operators, modules, _roofline(trace, rows, owner))


def _by_module(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    host: HostTime,
    plain: list[str],
    call: Indices,
    time: Ints,
) -> pl.DataFrame:
    """Return the time of modules: that of calls on the device, or without one that of the host."""
    is_module = component_events(trace, steps)
    if not is_module.any():
        return pl.DataFrame(schema=_OWNED)
    module = component_of(trace, nesting, is_module)
    if trace.on_device.any():
        return _by_owner(trace, nesting, is_module, plain, module[call], time)
    counted = np.flatnonzero(steps.counted[host.step] & (host.row >= 0))
    row = host.row[counted]
    in_module = module[row] >= 0
    time_of_pieces = (host.end - host.begin)[counted]
    owner = module[row[in_module]]
    modules = _by_owner(trace, nesting, is_module, plain, owner, time_of_pieces[in_module])
    return modules.drop("count")


def _by_kernel(trace: Trace, rows: Ints, plain: list[str], part: Ints) -> pl.DataFrame:
    """Return the time of events of the device by name and part of its time."""
    names = pl.Series(plain, dtype=pl.String).gather(trace.name[rows])
    parts = pl.Series(PARTS).gather(part)
    columns = {"name": names, "part": parts, "time": trace.duration[rows]}
    return by_time(pl.DataFrame(columns), "name", "part")


def find_traits(trace: Trace, nesting: Nesting, steps: Steps) -> Traits:
    """Find out what kind of work the counted steps are."""
    is_counted = steps.in_counted(trace.begin)

    def rows(pattern: re.Pattern[str]) -> Ints:
        is_match = trace.named(lambda name: pattern.search(name[:1000]))
        return np.flatnonzero(is_counted & is_match)

    loaders = rows(_LOADER)
    is_backward = trace.named(lambda name: _BACKWARD.search(name[:100] + name[-100:]))
    backward_of_forward = owner_of(is_backward, nesting)[rows(_FORWARD)]
    return Traits(
        compiled=len(rows(_COMPILED)) > 0,
        graphs=len(rows(_GRAPHS)) > 0,
        recomputes=bool((backward_of_forward >= 0).any()),
        workers=("Multi" in trace.text(int(loaders[0]))) if len(loaders) else None,
        shapes=_most_frequent_shapes(trace, is_counted),
    )


_LOADER = re.compile(r"_(?:Multi|Single)Process\w*Iter")
_BACKWARD = re.compile(r"Backward\d*>?$|^autograd::engine")
_FORWARD = re.compile(
    r"^aten::(?:linear|conv[123]d|layer_norm|batch_norm|group_norm|embedding|gelu|relu|silu"
    r"|scaled_dot_product_attention|softmax|dropout)$",
)
_COMPILED = re.compile(
    r"^Torch-Compiled Region|^## Call CompiledFxGraph|^triton_|CompiledFunction",
)
_GRAPHS = re.compile("GraphLaunch")


def _most_frequent_shapes(trace: Trace, is_counted: Bools) -> dict[str, tuple[str, str]]:
    """Return the most frequent sizes and types of the inputs of each operator."""
    if not len(trace.shape):
        return {}
    has_shape = is_counted & (trace.shape >= 0)
    rows = np.flatnonzero(has_shape & (trace.kind == Kind.operator))
    frame = pl.DataFrame({"name": trace.name[rows], "shape": trace.shape[rows]})
    by_count = frame.group_by("name", "shape").len().sort("name", "len", "shape")
    most = by_count.unique("name", keep="last", maintain_order=True)
    return {trace.names[name]: trace.shapes[shape] for name, shape, _ in most.iter_rows()}


_OWNED = {"name": pl.String(), **dict.fromkeys(("count", "time", "total"), pl.Int64())}


def _by_owner(
    trace: Trace,
    nesting: Nesting,
    wanted: Bools,
    plain: list[str],
    owner: Indices,
    time: Ints,
) -> pl.DataFrame:
    """Return the sums of times by the names of their owners, among the wanted events."""
    sums: dict[str, _Sums] = defaultdict(_Sums)
    owners, place = np.unique(owner, return_inverse=True)
    n_owners = len(owners)
    times = np.bincount(place, weights=time, minlength=n_owners).astype(np.int64)
    counts = np.bincount(place, minlength=n_owners)
    parts = zip(owners.tolist(), times.tolist(), counts.tolist(), strict=True)
    for event, time_of_owner, count in parts:
        name = NO_OPERATOR if event == NOTHING else plain[trace.name[event]]
        sums[name].count += count
        sums[name].time += time_of_owner
        for outer in {name, *_names_around(trace, nesting, wanted, plain, event)}:
            sums[outer].total += time_of_owner
    rows = [(name, of_name.count, of_name.time, of_name.total) for name, of_name in sums.items()]
    frame = pl.DataFrame(rows, schema=_OWNED, orient="row")
    return frame.sort("time", "total", "name", descending=[True, True, False])


@dataclass
class _Sums:
    """What is summed up of the events of one name."""

    count: int = 0
    time: int = 0
    total: int = 0  # with everything inside


def _names_around(
    trace: Trace,
    nesting: Nesting,
    wanted: Bools,
    plain: list[str],
    event: int,
) -> Iterator[str]:
    """Yield the names of the wanted events around an event, itself included."""
    while event != NOTHING:
        if wanted[event]:
            yield plain[trace.name[event]]
        event = int(nesting.parent[event])


def _roofline(trace: Trace, rows: Ints, owner: Indices) -> pl.DataFrame:
    """Return how close to the device's peak the products and convolutions of counted steps are.

    It is empty if the sizes of inputs or the peaks of the device are unknown.
    """
    peaks = _peaks_of(trace.device_name or "")
    if peaks is None or not len(trace.shape):
        return pl.DataFrame(schema=_ROOFLINE)
    is_product = trace.named(_FACTORS.__contains__)
    is_known = (owner >= 0) & (trace.shape[owner] >= 0) & is_product[owner]
    rows = rows[is_known]
    owner = owner[is_known]
    columns = {
        "name": trace.name[owner],
        "shape": trace.shape[owner],
        "call": owner,
        "time": trace.duration[rows],
    }
    timed = pl.DataFrame(columns).filter(pl.col("time") > 0)
    calls = timed.group_by("name", "shape").agg(pl.col("call").n_unique(), pl.sum("time"))
    products = []
    for name, shape, count, time in calls.iter_rows():
        product = _product(trace.names[name], trace.shapes[shape], count, time, peaks)
        if product is not None:
            products.append(product)
    frame = pl.DataFrame(products, schema=_ROOFLINE, orient="row")
    return frame.sort("time", "operation", "sizes", descending=[True, False, False])


def _product(
    name: str,
    shape: tuple[str, str],
    count: int,
    time: int,
    peaks: _Peaks,
) -> tuple[str, str, str, int, int, float, int, float] | None:
    """Return a row of the roofline; None if the sizes are not those of a product."""
    sizes, types = shape
    work = _flop_and_elements(name, sizes)
    if work is None:
        return None
    flop, elements = work
    width = 2 if _HALF.search(types[:200]) else 4
    least = count * peaks.least_time(flop, elements, width)
    kind = f"{8 * width} bits"
    return name, sizes, kind, count, time, flop / 1e9, round(least), least / time


_HALF = re.compile(r"half|bfloat16", re.IGNORECASE)
_ROOFLINE = {
    "operation": pl.String(),
    "sizes": pl.String(),
    "type": pl.String(),
    "count": pl.Int64(),
    "time": pl.Int64(),
    "gflop": pl.Float64(),
    "least": pl.Int64(),
    "share of the peak": pl.Float64(),
}


class _Peaks(NamedTuple):
    """The peaks of a device: TFLOP per second with 16 and 32 bits, and GB per second."""

    half: float
    single: float
    memory: float

    def least_time(self, flop: float, elements: float, width: int) -> float:
        """Return the nanoseconds that a product of so many elements takes at least."""
        peak = self.half if width == 2 else self.single
        return max(flop / (peak * 1e3), elements * width / self.memory)


def _peaks_of(device: str) -> _Peaks | None:
    """Return the peaks of a device by its name; None if they are unknown."""
    for name, peaks in NAMES["peaks"].items():
        if name in device:
            return _Peaks(*peaks)
    return None


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
