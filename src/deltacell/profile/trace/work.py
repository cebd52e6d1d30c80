"""The work of a step: device time by kernel, operator and module, and what kind of work it is.

Also a roofline of matrix products and convolutions, as an estimate: a product of FLOP f and bytes
b takes at least max(f / peak FLOP per second, b / peak bytes per second) on a device whose peaks
are known by its name.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.trace.categories import is_collective, own_categories
from deltacell.profile.trace.device import on_device
from deltacell.profile.trace.host import HostTime, plain_names
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace

Flags = npt.NDArray[np.bool_]

NO_OPERATOR = "(no operator)"
"""Device time that no recorded operator launched."""

PEAKS = {
    "B200": (2250.0, 75.0, 8000.0),
    "H200": (989.0, 67.0, 4800.0),
    "H100": (989.0, 67.0, 3350.0),
    "A100": (312.0, 19.5, 1555.0),
    "A10G": (70.0, 31.2, 600.0),
    "A10": (125.0, 31.2, 600.0),
    "L40S": (362.0, 91.6, 864.0),
    "L4": (121.0, 30.3, 300.0),
    "V100": (125.0, 15.7, 900.0),
    "T4": (65.0, 8.1, 320.0),
    "4090": (165.0, 82.6, 1008.0),
    "3090": (71.0, 35.6, 936.0),
    "MI300X": (1307.0, 163.4, 5300.0),
    "MI250X": (383.0, 47.9, 3277.0),
}
"""Of a device: teraFLOP per second in 16 bits and in 32 bits, and gigabytes per second, as its
vendor names them, dense and without a boost of other types."""


@dataclass(frozen=True, eq=False)
class DeviceWork:
    """Device time of counted steps; nanoseconds.

    Parameters
    ----------
    kernels
        ``name``, ``part`` (compute, communication, copies), ``count``, ``time``.
    operators, modules
        ``name``, ``count``, ``time`` of what it launched itself and ``total`` with what was
        launched inside of it, of computation only; of modules also ``host`` and ``host_total``.
        The backward of a module's operators is its. Where no module is recorded, modules are the
        named ranges without a category.
    roofline
        See `roofline`.
    """

    kernels: pl.DataFrame
    operators: pl.DataFrame
    modules: pl.DataFrame
    roofline: pl.DataFrame


@dataclass(frozen=True)
class Traits:
    """What kind of work a step is, as far as the trace tells.

    ``compiled``: compiled code runs; ``graphs``: graph launches per step; ``recompiled``:
    nanoseconds per step that the host compiles; ``recomputes``: forward operators run inside the
    backward, as activation checkpointing does; ``workers``: batches come from worker processes,
    None where unknown; ``shapes``: the most frequent ``(input sizes, input types)`` by operator.
    """

    compiled: bool = False
    graphs: float = 0.0
    recompiled: float = 0.0
    recomputes: bool = False
    workers: bool | None = None
    shapes: dict[str, tuple[str, str]] = field(default_factory=dict)


def device_work(
    trace: Trace, nesting: Nesting, steps: Steps, host: HostTime, launch: Codes
) -> DeviceWork:
    """Sum up the work of counted steps by kernel, operator and module."""
    rows = np.flatnonzero(on_device(trace))
    asked = np.where(launch[rows] >= 0, trace.begin[launch[rows]], trace.begin[rows])
    rows = rows[steps.in_counted(asked)]
    plain = plain_names(trace)
    is_kernel = trace.kind[rows] == Kind.kernel
    part = np.where(is_kernel, trace.named(is_collective)[rows].astype(np.int64), 2)
    kernels = _kernels(trace, rows, part, plain)
    rows = rows[(part == 0) & (launch[rows] >= 0)]
    call, time = launch[rows], trace.duration[rows]
    operator = trace.kind == Kind.operator
    owner = _owner(operator, nesting.parent)[call]
    module = _module_rows(trace, steps)
    of = _modules(trace, nesting, module, operator)
    mine = np.flatnonzero(steps.counted[host.step] & (host.row >= 0))
    spent = (of[host.row[mine]], host.end[mine] - host.begin[mine])
    modules = pl.DataFrame(schema=_OWNED)
    if module.any():
        modules = _by_owner(trace, nesting.parent, module, plain, (of[call], time), spent)
    operators = _by_owner(trace, nesting.parent, operator, plain, (owner, time), None)
    return DeviceWork(kernels, operators, modules, roofline(trace, rows, owner))


def traits(trace: Trace, nesting: Nesting, steps: Steps) -> Traits:
    """Tell what kind of work a step is."""
    counted = int(steps.counted.sum())
    inside = steps.in_counted(trace.begin)
    names = np.unique(trace.name[inside])

    def rows(pattern: re.Pattern[str]) -> Ints:
        wanted = np.zeros(len(trace.names), dtype=bool)
        wanted[[c for c in names.tolist() if pattern.search(trace.names[c][:1000])]] = True
        return np.flatnonzero(inside & wanted[trace.name])

    compiling = rows(_COMPILES)
    # Of compilations inside of one another the outermost counts.
    outer = compiling[~np.isin(nesting.parent[compiling], compiling)]
    loaders = rows(_LOADERS)
    return Traits(
        compiled=bool(len(rows(_COMPILED))),
        graphs=len(rows(_GRAPH)) / counted,
        recompiled=float(trace.duration[outer].sum()) / counted,
        recomputes=_recomputes(trace, nesting, rows(_FORWARD_ONLY)),
        workers=("Multi" in trace.text(int(loaders[0]))) if len(loaders) else None,
        shapes=_shapes(trace, inside),
    )


_COMPILES = re.compile(r"dynamo_timed|^compile_fx|_compile\.compile_inner|^backend_compile")
_COMPILED = re.compile(r"^Torch-Compiled Region|^## Call CompiledFxGraph|^triton_|CompiledFunction")
_GRAPH = re.compile(r"GraphLaunch")
_LOADERS = re.compile(r"_(?:Multi|Single)Process\w*Iter")
_FORWARD_ONLY = re.compile(
    r"^aten::(?:linear|conv[123]d|layer_norm|batch_norm|group_norm|embedding|gelu|relu|silu"
    r"|scaled_dot_product_attention|softmax|dropout)$"
)
_BACKWARD = re.compile(r"Backward\d*>?$|^autograd::engine")


def _recomputes(trace: Trace, nesting: Nesting, rows: Ints) -> bool:
    back = trace.named(lambda name: _BACKWARD.search(name[:100] + name[-100:]))
    at = nesting.parent[rows]
    while (there := at >= 0).any():
        at = at[there]
        if back[at].any():
            return True
        at = nesting.parent[at]
    return False


def _shapes(trace: Trace, inside: Flags) -> dict[str, tuple[str, str]]:
    if not len(trace.shape):
        return {}
    rows = np.flatnonzero(inside & (trace.shape >= 0) & (trace.kind == Kind.operator))
    keys = trace.name[rows].astype(np.int64) * len(trace.shapes) + trace.shape[rows]
    found, weight = np.unique(keys, return_counts=True)
    best: dict[int, tuple[int, int]] = {}
    for key, count in zip(found.tolist(), weight.tolist(), strict=True):
        name, shape = divmod(key, len(trace.shapes))
        best[name] = max(best.get(name, (0, 0)), (count, shape))
    return {trace.names[name]: trace.shapes[shape] for name, (_, shape) in best.items()}


def _kernels(trace: Trace, rows: Ints, part: Ints, plain: list[str]) -> pl.DataFrame:
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    found, place = np.unique(trace.name[rows].astype(np.int64) * 3 + part, return_inverse=True)
    time = np.bincount(place, weights=trace.duration[rows], minlength=len(found))
    count = np.bincount(place, minlength=len(found))
    for i, code in enumerate(found.tolist()):
        entry = sums[plain[code // 3], ("compute", "communication", "copies")[code % 3]]
        entry[0] += int(count[i])
        entry[1] += int(time[i])
    schema = {"name": pl.String(), "part": pl.String(), "count": pl.Int64(), "time": pl.Int64()}
    made = [(*key, *value) for key, value in sums.items()]
    frame = pl.DataFrame(made, schema=schema, orient="row")
    return frame.sort("time", "name", descending=[True, False])


def _owner(wanted: Flags, parent: Codes) -> Codes:
    """Return the nearest of each event and its ancestors that is wanted; `NOTHING` where none."""
    climbs = ~wanted & (parent >= 0)
    place = np.where(climbs, parent, np.arange(len(parent), dtype=np.int32))
    while not np.array_equal(further := place[place], place):
        place = further
    found: Codes = np.where(wanted[place], place, np.int32(NOTHING))
    return found


def _modules(trace: Trace, nesting: Nesting, module: Flags, operator: Flags) -> Codes:
    """Return the module of each event; that of a backward is the module of its forward."""
    of = _owner(module, nesting.parent)
    numbered = operator & (trace.sequence >= 0)
    forward = np.flatnonzero(numbered & (of >= 0))
    if not len(forward):
        return of
    # The operator that made the node of a number is the last with it.
    last = dict(zip(trace.sequence[forward].tolist(), of[forward].tolist(), strict=True))
    holder = _owner(numbered & (of < 0), nesting.parent)
    orphans = np.flatnonzero((of < 0) & (holder >= 0))
    known = [last.get(number, NOTHING) for number in trace.sequence[holder[orphans]].tolist()]
    of = of.copy()
    of[orphans] = known
    return of


def _by_owner(
    trace: Trace,
    parent: Codes,
    wanted: Flags,
    plain: list[str],
    device: tuple[Codes, Ints],
    host: tuple[Codes, Ints] | None,
) -> pl.DataFrame:
    """Return the time of device and host by the name of whose it is, alone and with all inside."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
    for place, spent in ((1, device), (3, host)):
        if spent is None:
            continue
        owners, of = np.unique(spent[0], return_inverse=True)
        times = np.bincount(of, weights=spent[1], minlength=len(owners)).astype(np.int64).tolist()
        count = np.bincount(of, minlength=len(owners)).tolist()
        for one, length, calls in zip(owners.tolist(), times, count, strict=True):
            if one == NOTHING and place == 3:
                continue
            name = NO_OPERATOR if one == NOTHING else plain[trace.name[one]]
            sums[name][0] += calls if place == 1 else 0
            sums[name][place] += length
            around = {name}
            at = one
            while at != NOTHING:
                if wanted[at]:
                    around.add(plain[trace.name[at]])
                at = int(parent[at])
            for outer in around:
                sums[outer][place + 1] += length
    rows = [(name, *values) for name, values in sums.items()]
    frame = pl.DataFrame(rows, schema=_OWNED, orient="row")
    return frame.sort("time", "total", "host", "name", descending=[True, True, True, False])


_OWNED = {
    "name": pl.String(),
    **dict.fromkeys(("count", "time", "total", "host", "host_total"), pl.Int64()),
}
_NOT_A_PART = re.compile(r"^ProfilerStep#|^phase\.")


def _module_rows(trace: Trace, steps: Steps) -> Flags:
    """Return which events are modules; where there are none, ranges that the model names."""
    modules = trace.named(lambda name: name.startswith("nn.Module: "))
    modules &= trace.kind == Kind.python
    if modules.any():
        return modules
    found = trace.named(lambda name: not _NOT_A_PART.search(name))
    found &= (own_categories(trace) == NOTHING) & (trace.kind == Kind.annotation)
    return np.asarray(found & (trace.thread == steps.thread), dtype=bool)


def roofline(trace: Trace, rows: Ints, owner: Codes) -> pl.DataFrame:
    """Return how near to the device's peak the products and convolutions of counted steps are.

    Parameters
    ----------
    trace
        With the sizes of inputs.
    rows, owner
        Kernels, and the operator that launched each.

    Returns
    -------
    By time: ``operation``, ``sizes``, ``type``, ``count``, ``time`` and ``least`` in nanoseconds,
    ``gflop`` of one call, and ``share of the peak``. Empty where sizes or peaks are unknown.
    """
    found = []
    peaks = next((v for k, v in PEAKS.items() if k in (trace.device_name or "")), None)
    if peaks is not None and len(trace.shape):
        known = (owner >= 0) & (trace.shape[owner] >= 0)
        sums: dict[tuple[str, int], int] = defaultdict(int)
        calls: dict[tuple[str, int], set[int]] = defaultdict(set)
        for row, own in zip(rows[known].tolist(), owner[known].tolist(), strict=True):
            key = (trace.text(own), int(trace.shape[own]))
            if key[0] in _FLOP:
                sums[key] += int(trace.duration[row])
                calls[key].add(own)
        for (name, shape), time in sums.items():
            sizes, types = trace.shapes[shape]
            work = _flop_and_elements(name, sizes)
            if work is None or not time:
                continue
            flop, elements = work
            width = 2 if re.search(r"half|bfloat16", types[:200], re.IGNORECASE) else 4
            count = len(calls[name, shape])
            peak = peaks[0] if width == 2 else peaks[1]
            least = max(flop / (peak * 1e3), elements * width / peaks[2]) * count
            kind = f"{8 * width} bits"
            found.append((name, sizes, kind, count, time, flop / 1e9, round(least), least / time))
    schema = {
        **dict.fromkeys(("operation", "sizes", "type"), pl.String()),
        **{"count": pl.Int64(), "time": pl.Int64(), "gflop": pl.Float64()},
        **{"least": pl.Int64(), "share of the peak": pl.Float64()},
    }
    return pl.DataFrame(found, schema=schema, orient="row").sort("time", descending=True)


def _flop_and_elements(name: str, sizes: str) -> tuple[float, float] | None:
    try:
        dims = [d for d in json.loads(sizes) if isinstance(d, list)]
        return _FLOP[name](dims)
    except (ValueError, IndexError, TypeError):
        return None


def _product(a: list[int], b: list[int]) -> tuple[float, float]:
    if a[-1] != b[-2] or a[:-2] != b[:-2]:
        raise ValueError("these are not the sizes of a product")
    flop = 2.0 * math.prod(a) * b[-1]
    return flop, math.prod(a) + math.prod(b) + math.prod(a[:-1]) * b[-1]


def _linear(x: list[int], weight: list[int]) -> tuple[float, float]:
    return _product([math.prod(x[:-1]), x[-1]], weight[::-1])


def _convolution(x: list[int], weight: list[int]) -> tuple[float, float]:
    # The size of the output is not recorded: it is taken as that of the input.
    out = x[0] * weight[0] * math.prod(x[2:])
    return 2.0 * out * math.prod(weight[1:]), math.prod(x) + math.prod(weight) + out


_FLOP = {
    "aten::mm": lambda d: _product(d[0], d[1]),
    "aten::bmm": lambda d: _product(d[0], d[1]),
    "aten::addmm": lambda d: _product(d[1], d[2]),
    "aten::baddbmm": lambda d: _product(d[1], d[2]),
    "aten::linear": lambda d: _linear(d[0], d[1]),
    "aten::cudnn_convolution": lambda d: _convolution(d[0], d[1]),
    "aten::miopen_convolution": lambda d: _convolution(d[0], d[1]),
}
