"""Operations by self time, and what to call what the host does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from deltacell.profile.trace.categories import Category, classify, is_loader
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.self_time import Nesting, parts
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace

NOT_RECORDED = "(nothing recorded)"
"""The name of moments in which no event is open."""


def operations(trace: Trace, steps: Steps, host: HostTime) -> pl.DataFrame:
    """Return the operations of counted steps by self time.

    Returns
    -------
    ``operation``, ``category``, ``count``, ``time`` in nanoseconds of all counted steps,
    ``per_step`` in nanoseconds, ``share`` of the wall; shares add up to 1.
    """
    summed = _summed(steps, host, _plain(trace))
    names = {**dict(enumerate(plain_names(trace))), -1: NOT_RECORDED}
    return _named(summed, steps, names)


@dataclass(frozen=True, eq=False)
class Doing:
    """What the host does, in names that tell a person something.

    Parameters
    ----------
    names
        Of what it does, once each.
    code
        The name of each piece of the host's time, int32 [k].
    """

    names: list[str]
    code: Codes


def doing(trace: Trace, nesting: Nesting, steps: Steps, host: HostTime) -> Doing:
    """Name every piece of the host's time.

    A call into the driver is its operator. Python is the innermost function that is not of a
    library, or the one whose name says what it is for, such as ``torch.save``. Where nothing is
    recorded, it is what lies before and after.
    """
    names = list(dict.fromkeys(shown := [_spoken(name) for name in plain_names(trace)]))
    of_name = {name: code for code, name in enumerate(names)}
    codes = np.array([of_name[name] for name in shown] or [0], dtype=np.int32)
    row = _told_by(trace, nesting)
    piece = np.where(host.row >= 0, row[host.row], NOTHING)
    code = np.where(piece >= 0, codes[trace.name[piece]], np.int32(len(names)))
    names.append(NOT_RECORDED)
    bare = np.flatnonzero(piece < 0)
    if len(bare):
        _name_bare(names, code, bare, steps, host)
    return Doing(names, code.astype(np.int32))


def _told_by(trace: Trace, nesting: Nesting) -> Codes:
    """Return the event whose name tells what each is about, int32 [n]; `NOTHING` where none."""
    rows = np.arange(len(trace), dtype=np.int32)
    parent = nesting.parent
    above = np.where(parent >= 0, trace.kind[parent], np.int8(NOTHING))
    is_python = trace.kind == Kind.python
    climbs = (trace.kind == Kind.runtime) & (above == Kind.operator)
    inner = np.array([name == "aten::_local_scalar_dense" for name in trace.names], dtype=bool)
    climbs |= inner[trace.name] & (above == Kind.operator)
    untold = np.array([_untold(name) for name in trace.names], dtype=bool)
    climbs |= is_python & untold[trace.name] & (above == Kind.python)
    place = np.where(climbs, parent, rows)
    while not np.array_equal(further := place[place], place):
        place = further
    steps = np.array([bool(_STEP.match(name)) for name in trace.names], dtype=bool)
    found: Codes = np.where(steps[trace.name[place]], np.int32(NOTHING), place)
    return found


def _name_bare(names: list[str], code: Codes, bare: Ints, steps: Steps, host: HostTime) -> None:
    """Name pieces in which nothing is recorded by what lies around them, where they are long."""
    first = bare[np.flatnonzero(np.diff(bare, prepend=-2) > 1)]
    last = bare[np.flatnonzero(np.diff(bare, append=len(code) + 1) > 1)]
    length = host.end[last] - host.begin[first]
    long = length > BARE * float(np.median(steps.wall))
    known: dict[str, int] = {}
    for begin, end in zip(first[long].tolist(), last[long].tolist(), strict=True):
        before = _brief(names[code[begin - 1]]) if begin else "the start"
        after = _brief(names[code[end + 1]]) if end + 1 < len(code) else "the end"
        text = f"code that records nothing, between {before} and {after}"
        if text not in known:
            known[text] = len(names)
            names.append(text)
        code[begin : end + 1] = known[text]


def _brief(name: str) -> str:
    if is_loader(name):
        return "the loader"
    return name if len(name) <= 40 else f"{name[:39]}…"


BARE = 0.02
"""The share of a step from which on a stretch without any event is named by what is around it."""

_STEP = re.compile(r"^ProfilerStep#\d+$")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VENDOR = re.compile(r"^(?:hip|xpu|musa|mtia)(?=[A-Z])")
_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|^torch/|/torch/|^<|/lib/python3|^(?:threading|contextlib|runpy)\.py"
)
_SPOKEN = {
    re.compile(r"torch/serialization\.py\(\d+\): save$"): "torch.save",
    re.compile(r"torch/serialization\.py\(\d+\): load$"): "torch.load",
}


def _spoken(name: str) -> str:
    # Names are untrusted; the ones that are looked for are short.
    if len(name) < 300:
        for pattern, spoken in _SPOKEN.items():
            if pattern.search(name):
                return spoken
    return name


def _untold(name: str) -> bool:
    """Return whether a Python function's name says nothing of what the program does."""
    if classify(name, Kind.python) is not None:
        return False
    return bool(_LIBRARY.search(name[:1000]))


def plain_name(name: str) -> str:
    """Return a name without what differs from run to run: numbers of steps, addresses, vendors."""
    if _STEP.match(name):
        return "ProfilerStep"
    if " at 0x" in name:
        name = _ADDRESS.sub("", name)
    return _VENDOR.sub("cuda", name).replace("rccl", "nccl")


def plain_names(trace: Trace) -> list[str]:
    """Return the names of a trace as `plain_name` has them."""
    return [plain_name(name) for name in trace.names]


def _plain(trace: Trace) -> Codes:
    """Return the name of each event; all steps have one."""
    names = plain_names(trace)
    first: dict[str, int] = {}
    codes = [first.setdefault(name, code) for code, name in enumerate(names)]
    plain: Codes = np.array(codes, dtype=np.int32)[trace.name]
    return plain


def _summed(steps: Steps, host: HostTime, codes: Codes) -> pl.DataFrame:
    """Return the pieces of counted steps summed by code and category.

    The code is that of the event that a piece belongs to, -1 of no event; ``count`` is of events.
    """
    counted = steps.counted[host.step]
    size = int(codes.max()) + 2
    frames = []
    for category in Category:
        places = np.flatnonzero(counted & (host.category == category)).astype(np.int32)
        if not len(places):
            continue
        time = np.zeros(size, dtype=np.int64)
        # The last is of no event: -1 is the last place.
        seen = np.zeros(len(codes) + 1, dtype=bool)
        for part in parts(len(places)):
            place = places[part]
            row = host.row[place]
            seen[row] = True
            code = np.where(row >= 0, codes[row], -1) + 1
            length = host.end[place] - host.begin[place]
            time += np.bincount(code, weights=length, minlength=size).astype(np.int64)
        count = np.bincount(codes[seen[:-1]] + 1, minlength=size)
        count[0] += int(seen[-1])
        found = np.flatnonzero(count)
        frames.append(
            pl.DataFrame(
                {
                    "code": found - 1,
                    "category": np.full(len(found), category, dtype=np.int8),
                    "count": count[found],
                    "time": time[found],
                }
            )
        )
    return pl.concat(frames)


def _named(summed: pl.DataFrame, steps: Steps, names: Mapping[int, str]) -> pl.DataFrame:
    """Return what was summed with names for the codes, by time."""
    counted = int(steps.counted.sum())
    wall = int(steps.wall[steps.counted].sum())
    titles = [category.name for category in Category]
    return summed.select(
        pl.Series("operation", [names[code] for code in summed["code"].to_list()], dtype=pl.String),
        pl.Series("category", [titles[code] for code in summed["category"].to_list()]),
        "count",
        "time",
        (pl.col("time") / counted).alias("per_step"),
        (pl.col("time") / wall).alias("share"),
    ).sort("time", "operation", "category", descending=[True, False, False])
