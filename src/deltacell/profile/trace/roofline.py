"""A roofline of matrix products and convolutions: what the device could do, as an estimate.

A product of FLOP f and bytes b takes at least max(f / peak FLOP per second, b / peak bytes per
second) on a device whose peaks are known by its name.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict

import polars as pl

from deltacell.profile.trace.trace import Codes, Ints, Trace

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

_COLUMNS = pl.Schema(
    {
        "operation": pl.String(),
        "sizes": pl.String(),
        "type": pl.String(),
        "count": pl.Int64(),
        "time": pl.Int64(),
        "gflop": pl.Float64(),
        "least": pl.Int64(),
        "share of the peak": pl.Float64(),
    }
)


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
    ``gflop`` of one call, and ``share of the peak``. Empty where sizes or peaks are not known.
    """
    peaks = next((v for k, v in PEAKS.items() if k in (trace.device_name or "")), None)
    if peaks is None or not len(trace.shape):
        return pl.DataFrame(schema=_COLUMNS)
    known = (owner >= 0) & (trace.shape[owner] >= 0)
    sums: dict[tuple[str, int], int] = defaultdict(int)
    calls: dict[tuple[str, int], set[int]] = defaultdict(set)
    for row, own in zip(rows[known].tolist(), owner[known].tolist(), strict=True):
        key = (trace.text(own), int(trace.shape[own]))
        if key[0] in _FLOP:
            sums[key] += int(trace.duration[row])
            calls[key].add(own)
    found = []
    for (name, shape), time in sums.items():
        sizes, types = trace.shapes[shape]
        work = _work(name, sizes)
        if work is None or not time:
            continue
        flop, elements = work
        width = 2 if re.search(r"half|bfloat16", types[:200], re.IGNORECASE) else 4
        peak = peaks[0] if width == 2 else peaks[1]
        least = max(flop / (peak * 1e3), elements * width / peaks[2]) * len(calls[name, shape])
        kind = "16 bits" if width == 2 else "32 bits"
        count = len(calls[name, shape])
        found.append((name, sizes, kind, count, time, flop / 1e9, round(least), least / time))
    return pl.DataFrame(found, schema=_COLUMNS, orient="row").sort("time", descending=True)


def _work(name: str, sizes: str) -> tuple[float, float] | None:
    """Return the FLOP of a call and how many numbers it reads and writes."""
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
