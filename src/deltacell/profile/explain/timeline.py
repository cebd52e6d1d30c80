"""A typical step of each rank as a bounded number of bars to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Ints
from deltacell.base.text import short_name
from deltacell.profile.trace.ancestors import count_above
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.categories import Category
from deltacell.profile.trace.device import PARTS, device_part
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

MOST_BARS = 5000  # bars of all ranks together
MOST_LANES = 12  # threads and streams per rank: the busiest ones
MOST_LEVELS = 24  # levels of nested calls


def typical_steps(
    runs: Sequence[tuple[str, RanksAttribution]],
    *,
    most: int = MOST_BARS,
) -> dict[str, Any] | None:
    """Return a typical step of each rank of each run, as a JSON-serialisable dict.

    This is the typical step of the first rank, and the step with that number of the other ranks, on
    one clock if their clocks agree.
    """
    count = sum(len(run.ranks) for _, run in runs)
    drawn = []
    for of, run in runs:
        number = run.ranks[0].steps.number[run.ranks[0].typical]
        steps = [rank.steps for rank in run.ranks]
        same = [np.flatnonzero((of_rank.number == number) & of_rank.counted) for of_rank in steps]
        places = [int(x[-1]) for x in same if len(x)]
        if len(places) < len(steps):
            places = [rank.typical for rank in run.ranks]
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
            file = str(rank.trace.path)
            drawn.append({"name": called or "The program", "file": file, **step})
    return {"ranks": drawn} if drawn else None


def _step(rank: Attribution, place: int, most: int, offset: int) -> dict[str, Any]:
    trace = rank.trace
    nesting = rank.nesting
    begin = int(rank.steps.begin[place])
    end = int(rank.steps.end[place])
    inside = (trace.begin < end) & (nesting.cut > begin) & (nesting.cut > trace.begin)
    inside &= ~((trace.begin < begin) & (nesting.cut > end))
    # The device's copy of a range of the host would be drawn twice.
    every = np.flatnonzero(inside & (trace.kind != Kind.device_annotation))
    lanes, names = _lanes(rank, every)
    rows = every[np.isin(nesting.lane[every], lanes)]
    kept = _kept(rank, rows)
    bars = pl.DataFrame(
        {
            "lane": nesting.lane[rows],
            "depth": _depths(rank, rows, kept),
            "begin": np.maximum(trace.begin[rows], begin),
            "end": np.minimum(nesting.cut[rows], end),
            "row": rows,
            "category": _categories(rank, rows),
        },
    ).filter(pl.Series(kept[rows]) & (pl.col("depth") < MOST_LEVELS))
    bars = bars.with_columns(
        pl.col("lane").replace_strict(lanes, range(len(lanes))),
        (pl.col("end") - pl.col("begin")).alias("busy"),
        pl.lit(1).alias("count"),
    )
    drawn = _bounded(bars, most)
    called = [short_name(trace.text(row)) for row in drawn["row"]]
    several = pl.format("{} short events, the longest {}", "count", pl.Series(called))
    return {
        "step": int(rank.steps.number[place]),
        "begin_ms": offset / 1e6,
        "step_ms": (end - begin) / 1e6,
        "lanes": names,
        "lanes_left_out": len(np.unique(nesting.lane[every])) - len(lanes),
        "events": len(every),
        "bars": drawn.select(
            *("lane", "depth", "category", "count"),
            name=pl.when(pl.col("count") > 1).then(several).otherwise(pl.Series(called)),
            begin_ms=(pl.col("begin") - begin + offset) / 1e6,
            duration_ms=(pl.col("end") - pl.col("begin")) / 1e6,
            busy_ms=pl.col("busy") / 1e6,
        ).to_dicts(),
    }


def _categories(rank: Attribution, rows: Ints) -> list[str]:
    """Return the title of each event's part of the device or category of the host."""
    trace = rank.trace
    titles = (*PARTS, *(category.title for category in Category))
    host = np.where(rank.host.events == NOTHING, np.int8(Category.other), rank.host.events)
    title = np.where(trace.on_device, device_part(trace), host + len(PARTS))[rows]
    return [titles[i] for i in title]


def _lanes(rank: Attribution, rows: Ints) -> tuple[list[int], list[str]]:
    trace = rank.trace
    nesting = rank.nesting
    thread = rank.steps.thread
    busy = np.bincount(nesting.lane[rows], weights=nesting.self_time[rows])
    lanes: list[int] = np.unique(nesting.lane[rows]).tolist()
    most = sorted(lanes, key=lambda lane: (lane != thread, -busy[lane]))[:MOST_LANES]
    devices = {lane: trace.threads[lane % len(trace.threads)].is_device for lane in most}
    ordered = sorted(most, key=lambda lane: (devices[lane], lane != thread, -busy[lane]))
    return ordered, [_lane_name(trace, lane, thread) for lane in ordered]


def _lane_name(trace: Trace, lane: int, mine: int) -> str:
    thread = trace.threads[lane % len(trace.threads)]
    if thread.is_device:
        stream = thread.tid.removeprefix("stream ")
        return short_name(f"device {thread.device or 0}, stream {stream}")
    # PyTorch's names of threads already contain the number.
    name = f"thread {thread.tid.removeprefix('thread ')} {thread.name}".strip()
    name = thread.name if thread.tid in thread.name else name
    if lane >= len(trace.threads):
        return short_name(f"collectives next to {name}")
    return short_name(f"{name}, which runs the steps" if lane == mine else name)


def _kept(rank: Attribution, rows: Ints) -> Bools:
    """Return which events are drawn: all except Python calls that merely call another."""
    trace = rank.trace
    nesting = rank.nesting
    kept = np.zeros(len(trace), dtype=bool)
    kept[rows] = True
    python = rows[(trace.kind[rows] == Kind.python) & (nesting.within[rows] >= 0)]
    above = nesting.within[python]
    span = nesting.cut[python] - trace.begin[python]
    above_span = nesting.cut[above] - trace.begin[above]
    passes = (trace.kind[above] == Kind.python) & kept[above] & (span >= 0.95 * above_span)
    kept[python[passes]] = False
    return kept


def _depths(rank: Attribution, rows: Ints, kept: Bools) -> Ints:
    return count_above(kept, rank.nesting.within)[rows]


def _bounded(bars: pl.DataFrame, most: int) -> pl.DataFrame:
    """Merge short neighbouring bars until there are few enough."""
    bars = bars.sort("lane", "depth", "begin", maintain_order=True)
    short = 1
    longest = int(bars.select(pl.max("end") - pl.min("begin")).item() or 0) + 1
    merged = bars
    while len(merged) > most and short < 2 * longest:
        short = max(2 * short, longest // 8000)
        is_long = pl.col("end") - pl.col("begin") >= short
        apart = is_long | is_long.shift() | (pl.col("begin") - pl.col("end").shift() >= short)
        for name in ("lane", "depth"):
            apart |= pl.col(name) != pl.col(name).shift()
        # The longest bar of each group gives its name and colour.
        leader = pl.col("row", "category").get(pl.col("busy").arg_max())
        group = apart.fill_null(True).cum_sum().alias("group")
        merged = bars.group_by(group, maintain_order=True).agg(
            pl.first("lane", "depth", "begin"),
            pl.max("end"),
            leader,
            pl.sum("count", "busy"),
        )
    # With hundreds of ranks, one bar per lane and level may still be too many.
    return merged.with_row_index().top_k(most, by="busy").sort("index")
