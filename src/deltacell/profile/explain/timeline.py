"""A typical step of each rank as bars to draw: few enough for a page, whatever the trace holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from deltacell.arrays import Bools, Ints
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.categories import Category, classify, is_collective
from deltacell.profile.trace.device import typical
from deltacell.profile.trace.trace import NOTHING, ON_DEVICE, Kind, Trace
from deltacell.words import short_name

MOST_BARS = 5000  # bars of all ranks together
MOST_LANES = 12  # threads and streams of a rank that are drawn: those with the most time in events
MOST_LEVELS = 24  # how deep calls are drawn
MOST_EVENTS = 200_000  # events of a step that are looked at: the longest

_COLOURS = (*(category.title for category in Category), "compute", "communication", "copies")


def typical_steps(
    runs: Sequence[tuple[str, RanksAttribution]], *, most: int = MOST_BARS
) -> dict[str, Any] | None:
    """Return a typical step of each rank of each run, as a JSON-serialisable dict.

    It is the counted step whose wall time is nearest to the median; the same one of all ranks
    where they number their steps alike, and then on one clock where their clocks agree.
    """
    count = sum(len(run.ranks) for _, run in runs)
    found = []
    for of, run in runs:
        places = _typical(run.ranks)
        ranks = list(zip(run.ranks, places, strict=True))
        begins = [rank.trace.origin + int(rank.steps.begin[place]) for rank, place in ranks]
        walls = [int(rank.steps.wall[place]) for rank, place in ranks]
        together = max(begins) < min(x + wall for x, wall in zip(begins, walls, strict=True))
        for i, (rank, place) in enumerate(ranks):
            number = rank.trace.rank
            name = f"rank {i if number is None else number}" if len(ranks) > 1 or number else ""
            called = ", ".join(x for x in (short_name(of) if len(runs) > 1 else "", name) if x)
            offset = begins[i] - min(begins) if together else 0
            step = _step(rank, place, max(most // count, 1), offset)
            found.append({"name": called or "The program", **step})
    return {"ranks": found} if found else None


def _typical(ranks: Sequence[Attribution]) -> list[int]:
    walls = []
    for rank in ranks:
        steps, counted = rank.steps, rank.steps.counted
        pairs = zip(steps.number[counted].tolist(), steps.wall[counted].tolist(), strict=True)
        walls.append(dict(pairs))
    shared = sorted(set.intersection(*(set(wall) for wall in walls)))
    if not shared:
        return [typical(rank.steps) for rank in ranks]
    means = np.array([np.mean([wall[number] for wall in walls]) for number in shared])
    number = shared[int(np.abs(means - np.median(means)).argmin())]
    return [int(np.flatnonzero(rank.steps.number == number)[-1]) for rank in ranks]


def _step(rank: Attribution, place: int, most: int, offset: int) -> dict[str, Any]:
    trace, nesting = rank.trace, rank.nesting
    begin, end = int(rank.steps.begin[place]), int(rank.steps.end[place])
    every = _rows(rank, begin, end)
    lanes, names = _lanes(rank, every)
    rows = every[np.isin(nesting.lane[every], lanes)]
    if len(rows) > MOST_EVENTS:
        span = nesting.cut[rows] - trace.begin[rows]
        rows = np.sort(rows[np.argpartition(-span, MOST_EVENTS)[:MOST_EVENTS]])
    kept = _kept(rank, rows)
    bars = pl.DataFrame(
        {
            "lane": nesting.lane[rows],
            "depth": _depths(rank, rows, kept),
            "begin": np.maximum(trace.begin[rows], begin),
            "end": np.minimum(nesting.cut[rows], end),
            "row": rows,
            "colour": _colours(rank, rows, begin, end),
        }
    ).filter(pl.Series(kept[rows]) & (pl.col("depth") < MOST_LEVELS))
    bars = bars.with_columns(
        pl.col("lane").replace_strict(lanes, range(len(lanes))),
        (pl.col("end") - pl.col("begin")).alias("busy"),
        pl.lit(1).alias("count"),
    )
    return {
        "step": int(rank.steps.number[place]),
        "begin_ms": offset / 1e6,
        "step_ms": (end - begin) / 1e6,
        "lanes": names,
        "lanes_left_out": len(np.unique(nesting.lane[every])) - len(lanes),
        "events": len(every),
        "events_left_out": len(every) - len(rows),
        "bars": [
            {
                "lane": bar["lane"],
                "name": _called(trace, bar["row"], bar["count"]),
                "begin_ms": (bar["begin"] - begin + offset) / 1e6,
                "duration_ms": (bar["end"] - bar["begin"]) / 1e6,
                "category": _COLOURS[bar["colour"]],
                "depth": bar["depth"],
                "count": bar["count"],
                "busy_ms": bar["busy"] / 1e6,
            }
            for bar in _bounded(bars, most).iter_rows(named=True)
        ],
    }


def _called(trace: Trace, row: int, count: int) -> str:
    name = short_name(trace.text(row))
    return name if count == 1 else f"{count:,} short events, the longest {name}"


def _rows(rank: Attribution, begin: int, end: int) -> Ints:
    trace = rank.trace
    last = int(np.searchsorted(trace.begin, end))
    first, cut = trace.begin[:last], rank.nesting.cut[:last]
    inside = (cut > begin) & (cut > first) & ~((first < begin) & (cut > end))
    # The device's copy of a range of the host would be drawn twice.
    return np.flatnonzero(inside & (trace.kind[:last] != Kind.device_annotation))


def _lanes(rank: Attribution, rows: Ints) -> tuple[list[int], list[str]]:
    trace, nesting, mine = rank.trace, rank.nesting, rank.steps.thread
    busy = np.bincount(nesting.lane[rows], weights=nesting.self_time[rows])
    there: list[int] = np.unique(nesting.lane[rows]).tolist()
    most = sorted(there, key=lambda lane: (lane != mine, -busy[lane]))[:MOST_LANES]
    devices = {lane: trace.threads[lane % len(trace.threads)].is_device for lane in most}
    ordered = sorted(most, key=lambda lane: (devices[lane], lane != mine, -busy[lane]))
    return ordered, [_lane_name(trace, lane, mine) for lane in ordered]


def _lane_name(trace: Trace, lane: int, mine: int) -> str:
    thread = trace.threads[lane % len(trace.threads)]
    word = "stream" if thread.is_device else "thread"
    name = thread.tid if thread.tid.startswith(word) else f"{word} {thread.tid}"
    if thread.is_device:
        device = "device" if thread.device is None else f"device {thread.device}"
        return short_name(f"{device}, {name}")
    if thread.name:
        # PyTorch's names of threads have the number in them already.
        name = thread.name if thread.tid in thread.name else f"{name} ({thread.name})"
    if lane >= len(trace.threads):
        return short_name(f"collectives beside {name}")
    return short_name(f"{name}, where the steps are" if lane == mine else name)


def _kept(rank: Attribution, rows: Ints) -> Bools:
    """Return which events are drawn: not calls of Python that only pass on to another."""
    trace, nesting = rank.trace, rank.nesting
    kept = np.zeros(len(trace), dtype=bool)
    kept[rows] = True
    python = rows[(trace.kind[rows] == Kind.python) & (nesting.within[rows] >= 0)]
    above = nesting.within[python]
    span, above_span = (nesting.cut[x] - trace.begin[x] for x in (python, above))
    passes = (trace.kind[above] == Kind.python) & kept[above] & (span >= 0.95 * above_span)
    kept[python[passes]] = False
    return kept


def _depths(rank: Attribution, rows: Ints, kept: Bools) -> Ints:
    depth = np.zeros(len(rows), dtype=np.int64)
    above = rank.nesting.within[rows]
    while (inside := above >= 0).any():
        depth[inside] += kept[above[inside]]
        above = np.where(inside, rank.nesting.within[above], NOTHING)
    return depth


def _colours(rank: Attribution, rows: Ints, begin: int, end: int) -> Ints:
    """Return the category of each event, or of its nearest classified parent."""
    trace = rank.trace
    pairs = list(zip(trace.name[rows].tolist(), trace.kind[rows].tolist(), strict=True))
    own = {pair: _own(trace.names[pair[0]], Kind(pair[1])) for pair in set(pairs)}
    found = np.array([*(own[pair] for pair in pairs), NOTHING], dtype=np.int64)
    # A parent that is not among the rows is the last place, which tells nothing.
    parent = rank.nesting.parent[rows]
    place = np.minimum(np.searchsorted(rows, parent), len(rows) - 1)
    above = np.append(np.where(rows[place] == parent, place, len(rows)), len(rows))
    while ((unknown := found == NOTHING) & (above < len(rows))).any():
        found = np.where(unknown, found[above], found)
        above = above[above]
    return np.where(found[:-1] == NOTHING, _by_host(rank, rows, begin, end), found[:-1])


def _own(name: str, kind: Kind) -> int:
    if kind in ON_DEVICE:
        moved = "copies" if kind is not Kind.kernel else "compute"
        return _COLOURS.index("communication" if is_collective(name) else moved)
    category = classify(name, kind)
    return NOTHING if category is None else int(category)


def _by_host(rank: Attribution, rows: Ints, begin: int, end: int) -> Ints:
    """Return the category that the host's time during an event has nearly all of."""
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
    clear = (total > 0) & (during.max(axis=1) >= 0.9 * total)
    found[mine[clear]] = during[clear].argmax(axis=1)
    return found


def _bounded(bars: pl.DataFrame, most: int) -> pl.DataFrame:
    """Merge short bars next to one another until there are few enough."""
    bars = bars.sort("lane", "depth", "begin", maintain_order=True)
    if len(bars) <= most:
        return bars
    longest = int(bars.select(pl.max("end") - pl.min("begin")).item()) + 1
    for columns in (("lane", "depth", "colour"), ("lane", "depth")):
        short = max(longest // 8000, 1)
        while short < 2 * longest:
            is_long = pl.col("end") - pl.col("begin") >= short
            apart = is_long | is_long.shift() | (pl.col("begin") - pl.col("end").shift() >= short)
            for name in columns:
                apart |= pl.col(name) != pl.col(name).shift()
            group = bars.select(apart.fill_null(value=True).cum_sum()).to_series()
            if group[-1] <= most:
                return _merged(bars, group)
            short *= 2
    # One bar per lane and level is left, so this is reached only with a budget below that.
    merged = _merged(bars, group).with_row_index()
    largest = merged.sort("busy", descending=True, maintain_order=True).head(most)
    return largest.sort("index")


def _merged(bars: pl.DataFrame, group: pl.Series) -> pl.DataFrame:
    # The longest of each group names and colours it.
    longest = pl.col("row", "colour").get(pl.col("busy").arg_max())
    return bars.group_by(group.alias("group"), maintain_order=True).agg(
        pl.first("lane", "depth", "begin"), pl.max("end"), longest, pl.sum("count", "busy")
    )
