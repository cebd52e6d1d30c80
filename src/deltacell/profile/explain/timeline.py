"""A typical step of each rank as bars to draw: few enough for a page, whatever the trace holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.categories import Category, classify, is_collective
from deltacell.profile.trace.device import typical
from deltacell.profile.trace.trace import NOTHING, ON_DEVICE, Kind, Trace
from deltacell.words import short_name

MOST_BARS = 5000
"""Bars of all ranks together."""
MOST_LANES = 12
"""Threads and streams of a rank that are drawn: those with the most time in events."""
MOST_LEVELS = 24
"""How deep calls are drawn."""


MOST_EVENTS = 200_000
"""Events of a step that are looked at: the longest."""


def typical_steps(
    runs: Sequence[tuple[str, RanksAttribution]], *, most: int = MOST_BARS
) -> dict[str, Any] | None:
    """Return a typical step of each rank of each run, as a JSON-serialisable dict.

    It is the counted step whose wall time is nearest to the median; the same one of all ranks
    where they number their steps alike, and then on one clock where their clocks agree.

    Returns
    -------
    None where there is no rank; else ``ranks``, of each ``name``, ``step`` (its number),
    ``begin_ms`` and ``step_ms``; ``lanes``, names of threads and streams; ``bars``, each with
    ``lane`` (an index), ``name``, ``begin_ms``, ``duration_ms``, ``category``, ``depth``, ``count``
    and ``busy_ms``; ``events`` in the step, ``events_left_out`` and ``lanes_left_out``. A bar whose
    count is above 1 stands for several short events next to one another, whose time is
    ``busy_ms``. Times count from where the first step of the run begins.
    """
    count = sum(len(run.ranks) for _, run in runs)
    if not count:
        return None
    share = max(most // count, 1)
    ranks = []
    for name, run in runs:
        ranks += _run(name if len(runs) > 1 else "", run.ranks, share)
    return {"ranks": ranks}


def _run(of: str, ranks: Sequence[Attribution], most: int) -> list[dict[str, Any]]:
    places = _typical(ranks)
    begins = [
        rank.trace.origin + int(rank.steps.begin[place])
        for rank, place in zip(ranks, places, strict=True)
    ]
    ends = [
        begin + int(rank.steps.wall[place])
        for rank, place, begin in zip(ranks, places, begins, strict=True)
    ]
    together = max(begins) < min(ends)
    found = []
    for i, (rank, place, begin) in enumerate(zip(ranks, places, begins, strict=True)):
        number = rank.trace.rank
        name = f"rank {i if number is None else number}" if len(ranks) > 1 or number else ""
        called = ", ".join(part for part in (short_name(of), name) if part)
        offset = begin - min(begins) if together else 0
        found.append({"name": called or "The program", **_step(rank, place, most, offset)})
    return found


@dataclass(frozen=True, eq=False)
class _Bars:
    lane: Ints
    depth: Ints
    begin: Ints
    end: Ints
    row: Ints
    kind: Ints
    count: Ints
    busy: Ints


def _typical(ranks: Sequence[Attribution]) -> list[int]:
    walls = []
    for rank in ranks:
        steps, counted = rank.steps, rank.steps.counted
        pairs = zip(steps.number[counted].tolist(), steps.wall[counted].tolist(), strict=True)
        walls.append(dict(pairs))
    shared = sorted(set.intersection(*(set(wall) for wall in walls)))
    if shared:
        means = np.array([np.mean([wall[number] for wall in walls]) for number in shared])
        number = shared[int(np.abs(means - np.median(means)).argmin())]
        return [int(np.flatnonzero(rank.steps.number == number)[-1]) for rank in ranks]
    return [typical(rank.steps) for rank in ranks]


def _step(rank: Attribution, place: int, most: int, offset: int) -> dict[str, Any]:
    trace = rank.trace
    begin, end = int(rank.steps.begin[place]), int(rank.steps.end[place])
    number = int(rank.steps.number[place])
    every = _rows(rank, begin, end)
    lanes, names = _lanes(rank, every)
    rows = every[np.isin(rank.nesting.lane[every], lanes)]
    if len(rows) > MOST_EVENTS:
        span = rank.nesting.cut[rows] - trace.begin[rows]
        rows = np.sort(rows[np.argpartition(-span, MOST_EVENTS)[:MOST_EVENTS]])
    looked_at = len(rows)
    kept = _kept(rank, rows)
    depth = _depths(rank, rows, kept)
    colours = _colours(rank, rows, begin, end)
    shown = kept[rows] & (depth < MOST_LEVELS)
    rows, depth, colours = rows[shown], depth[shown], colours[shown]
    lane_of = {lane: i for i, lane in enumerate(lanes.tolist())}
    lane = np.array([lane_of[lane] for lane in rank.nesting.lane[rows].tolist()], dtype=np.int64)
    first, last = np.maximum(trace.begin[rows], begin), np.minimum(rank.nesting.cut[rows], end)
    one = np.ones(len(rows), dtype=np.int64)
    bars = _bounded(_Bars(lane, depth, first, last, rows, colours, one, last - first), most)
    return {
        "step": number,
        "begin_ms": offset / 1e6,
        "step_ms": (end - begin) / 1e6,
        "lanes": names,
        "lanes_left_out": len(np.unique(rank.nesting.lane[every])) - len(lanes),
        "events": len(every),
        "events_left_out": len(every) - looked_at,
        "bars": [
            {
                "lane": lane,
                "name": _called(trace, row, count),
                "begin_ms": (start - begin + offset) / 1e6,
                "duration_ms": (stop - start) / 1e6,
                "category": _COLOURS[kind],
                "depth": level,
                "count": count,
                "busy_ms": busy / 1e6,
            }
            for lane, level, start, stop, row, kind, count, busy in zip(
                *(getattr(bars, name).tolist() for name in _FIELDS), strict=True
            )
        ],
    }


_FIELDS = tuple(_Bars.__dataclass_fields__)
_COLOURS = (*(category.title for category in Category), "compute", "communication", "copies")
_HARDLY_LONGER = 0.95
_ONE_CATEGORY = 0.9


def _called(trace: Trace, row: int, count: int) -> str:
    name = short_name(trace.text(row))
    return name if count == 1 else f"{count:,} short events, the longest {name}"


def _rows(rank: Attribution, begin: int, end: int) -> Ints:
    trace = rank.trace
    last = int(np.searchsorted(trace.begin, end))
    first, cut = trace.begin[:last], rank.nesting.cut[:last]
    inside = (cut > begin) & (cut > first) & ~((first < begin) & (cut > end))
    # The device's copy of a range of the host would be drawn twice.
    inside &= trace.kind[:last] != Kind.device_annotation
    return np.flatnonzero(inside)


def _lanes(rank: Attribution, rows: Ints) -> tuple[Ints, list[str]]:
    trace, nesting = rank.trace, rank.nesting
    there = np.unique(nesting.lane[rows])
    busy = np.bincount(nesting.lane[rows], weights=nesting.self_time[rows])
    mine = rank.steps.thread
    most = sorted(there.tolist(), key=lambda lane: (lane != mine, -busy[lane]))[:MOST_LANES]
    ordered = sorted(most, key=lambda lane: (_is_device(trace, lane), lane != mine, -busy[lane]))
    return np.array(ordered, dtype=np.int64), [_lane_name(trace, lane, mine) for lane in ordered]


def _is_device(trace: Trace, lane: int) -> bool:
    return trace.threads[lane % len(trace.threads)].is_device


def _lane_name(trace: Trace, lane: int, mine: int) -> str:
    thread = trace.threads[lane % len(trace.threads)]
    if thread.is_device:
        device = "device" if thread.device is None else f"device {thread.device}"
        return short_name(f"{device}, {_with_word('stream', thread.tid)}")
    name = _with_word("thread", thread.tid)
    if thread.name:
        # PyTorch's names of threads have the number in them already.
        name = thread.name if thread.tid in thread.name else f"{name} ({thread.name})"
    if lane >= len(trace.threads):
        return short_name(f"collectives beside {name}")
    return short_name(f"{name}, where the steps are" if lane == mine else name)


def _with_word(word: str, text: str) -> str:
    return text if text.startswith(word) else f"{word} {text}"


def _kept(rank: Attribution, rows: Ints) -> npt.NDArray[np.bool_]:
    trace, nesting = rank.trace, rank.nesting
    kept = np.zeros(len(trace), dtype=bool)
    kept[rows] = True
    python = rows[(trace.kind[rows] == Kind.python) & (nesting.within[rows] >= 0)]
    above = nesting.within[python]
    passes = (trace.kind[above] == Kind.python) & kept[above]
    span = nesting.cut[python] - trace.begin[python]
    passes &= span >= _HARDLY_LONGER * (nesting.cut[above] - trace.begin[above])
    kept[python[passes]] = False
    return kept


def _depths(rank: Attribution, rows: Ints, kept: npt.NDArray[np.bool_]) -> Ints:
    depth = np.zeros(len(rows), dtype=np.int64)
    above = rank.nesting.within[rows]
    while (inside := above >= 0).any():
        depth[inside] += kept[above[inside]]
        above = np.where(inside, rank.nesting.within[above], NOTHING)
    return depth


def _colours(rank: Attribution, rows: Ints, begin: int, end: int) -> Ints:
    trace, nesting = rank.trace, rank.nesting
    names, kinds = trace.name[rows], trace.kind[rows]
    told: dict[tuple[int, int], int] = {}
    for pair in set(zip(names.tolist(), kinds.tolist(), strict=True)):
        told[pair] = _own(trace.names[pair[0]], Kind(pair[1]))
    own = [told[pair] for pair in zip(names.tolist(), kinds.tolist(), strict=True)]
    found = np.full(len(rows) + 1, NOTHING, dtype=np.int64)
    found[:-1] = own
    # A parent that is not among the rows is the last place, which tells nothing.
    above = np.full(len(rows) + 1, len(rows), dtype=np.int64)
    place = np.minimum(np.searchsorted(rows, nesting.parent[rows]), len(rows) - 1)
    above[:-1] = np.where(rows[place] == nesting.parent[rows], place, len(rows))
    climbs = above.copy()
    while ((untold := found == NOTHING) & (climbs < len(rows))).any():
        found = np.where(untold, found[climbs], found)
        climbs = climbs[climbs]
    return np.where(found[:-1] == NOTHING, _by_host(rank, rows, begin, end), found[:-1])


def _own(name: str, kind: Kind) -> int:
    if kind in ON_DEVICE:
        moved = "copies" if kind is not Kind.kernel else "compute"
        return _COLOURS.index("communication" if is_collective(name) else moved)
    category = classify(name, kind)
    return NOTHING if category is None else int(category)


def _by_host(rank: Attribution, rows: Ints, begin: int, end: int) -> Ints:
    found = np.full(len(rows), int(Category.other), dtype=np.int64)
    places, inside = rank.host.between(begin, end)
    if not len(places):
        return found
    spent = np.zeros((len(places) + 1, len(Category)), dtype=np.int64)
    spent[np.arange(len(places)) + 1, rank.host.category[places]] = inside
    spent = np.cumsum(spent, axis=0)
    mine = np.flatnonzero(rank.nesting.lane[rows] == rank.steps.thread)
    starts = rank.host.begin[places]
    first = np.searchsorted(starts, rank.trace.begin[rows[mine]])
    last = np.searchsorted(starts, rank.nesting.cut[rows[mine]])
    during = spent[last] - spent[first]
    total = during.sum(axis=1)
    clear = (total > 0) & (during.max(axis=1) >= _ONE_CATEGORY * total)
    found[mine[clear]] = during[clear].argmax(axis=1)
    return found


def _bounded(bars: _Bars, most: int) -> _Bars:
    order = np.lexsort((bars.begin, bars.depth, bars.lane))
    bars = _Bars(*(getattr(bars, name)[order] for name in _FIELDS))
    if len(bars.lane) <= most:
        return bars
    longest = int(bars.end.max() - bars.begin.min()) + 1
    for within_category in (True, False):
        short = max(longest // 8000, 1)
        while short < 2 * longest:
            group = _groups(bars, short, within_category=within_category)
            if int(group[-1]) < most:
                return _merged(bars, group)
            short *= 2
    # One bar a lane and level is left, so this is reached only with a budget below that.
    merged = _merged(bars, group)
    largest = np.sort(np.argsort(-merged.busy, kind="stable")[:most])
    return _Bars(*(getattr(merged, name)[largest] for name in _FIELDS))


def _groups(bars: _Bars, short: int, *, within_category: bool) -> Ints:
    is_short = bars.end - bars.begin < short
    apart = ~(is_short[1:] & is_short[:-1])
    apart |= bars.begin[1:] - bars.end[:-1] >= short
    apart |= (bars.lane[1:] != bars.lane[:-1]) | (bars.depth[1:] != bars.depth[:-1])
    if within_category:
        apart |= bars.kind[1:] != bars.kind[:-1]
    return np.concatenate([[0], np.cumsum(apart)])


def _merged(bars: _Bars, group: Ints) -> _Bars:
    first = np.flatnonzero(np.diff(group, prepend=-1))
    # The longest of each group names and colours it.
    lead = np.lexsort((-bars.busy, group))[first]
    return _Bars(
        bars.lane[first],
        bars.depth[first],
        bars.begin[first],
        np.maximum.reduceat(bars.end, first),
        bars.row[lead],
        bars.kind[lead],
        np.add.reduceat(bars.count, first),
        np.add.reduceat(bars.busy, first),
    )
