"""Ranks side by side, aligned on their collectives: who arrives last, and what it was doing.

A collective ends for all when the last rank has come. So its length says how long a rank waited,
not how slow it was; the beginning says who was late.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from deltacell.profile.trace.categories import Category, is_collective
from deltacell.profile.trace.device import collective_rows, host_row, launches, on_device
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace

CLOCKS_DIFFER = 100_000
"""Nanoseconds that a rank may seem to leave a collective before the last one came to it."""


@dataclass(frozen=True, eq=False)
class RankView:
    """One rank, as far as it matters here.

    Parameters
    ----------
    rank
        Its number.
    trace, steps, host
        Its events, steps, and what its host did.
    """

    rank: int
    trace: Trace
    steps: Steps
    host: HostTime

    @cached_property
    def launch(self) -> Codes:
        """The host's call of each event of the device, int32 [n]."""
        return launches(self.trace)

    @cached_property
    def work(self) -> tuple[Ints, Ints]:
        """Events of the device by beginning, and the latest end until each."""
        rows = np.flatnonzero(on_device(self.trace))
        return rows, np.maximum.accumulate(self.trace.ends(rows))


@dataclass(frozen=True, eq=False)
class Alignment:
    """What the ranks did at their collectives.

    Parameters
    ----------
    collectives
        By time: ``step`` and whether it is ``counted``, ``index`` in the step, ``name``;
        ``first_rank``, ``last_rank``, ``late_by`` (from the first arrival to the last), ``waited``
        (of all ranks together); ``doing`` and ``category``: what the last rank's host was busy
        with meanwhile; ``late_before``: what of ``late_by`` is because it began its step later
        than the first rank. Nanoseconds.
    arrivals
        One row a collective and rank: ``step``, ``counted``, ``index``, ``name``, ``rank``,
        ``arrival`` after the first, ``waited`` until the last came, ``length`` (null where the
        end was not seen). A rank whose collective runs beside its host waits only while its host
        does nothing else.
    ranks
        One row a rank, of counted steps: ``rank``, ``last`` (how often it came last),
        ``waited_for`` (how long others waited where it was last), ``waited`` (how long it waited
        itself).
    unaligned
        How many collectives were seen on some ranks only.
    shift
        Nanoseconds that each rank's clock was moved by; all 0 where they agree.
    on_device
        Whether they are kernels; else calls of the host.
    """

    collectives: pl.DataFrame
    arrivals: pl.DataFrame
    ranks: pl.DataFrame
    unaligned: int
    shift: tuple[int, ...]
    on_device: bool


def align_ranks(views: Sequence[RankView]) -> Alignment:
    """Align ranks on their collectives.

    Those of a step are aligned by what they are and their order. Clocks are taken as one; where a
    rank seems to leave collectives before the last one came to them, they are not, and the ends
    of collectives are laid on one another.
    """
    device = all(len(collective_rows(view.trace)) for view in views)
    seen = [_collectives(view, device) for view in views]
    keys = [key for key in seen[0] if all(key in other for other in seen[1:])]
    unaligned = len({key for mine in seen for key in mine}) - len(keys)
    origin = min(view.trace.origin for view in views)
    begin = _times(views, seen, keys, origin, ends=False)
    end = _times(views, seen, keys, origin, ends=True)
    shift = _shift(begin, end, [all(mine[key][1] != NOTHING for mine in seen) for key in keys])
    begin = begin - shift[:, None]
    order: list[int] = np.argsort(begin.min(axis=0), kind="stable").tolist() if keys else []
    rows, arrivals = [], []
    for place in order:
        key = keys[place]
        came = begin[:, place]
        first, last = int(came.argmin()), int(came.argmax())
        late = int(came[last] - came[first])
        name, category = _doing(views[last], seen[last][key], late, device)
        starts = [_start(views[i], key[0]) - int(shift[i]) for i in (first, last)]
        before = min(max(starts[1] - starts[0], 0), late)
        waited = [
            _waited(view, seen[i][key][0], int(came[last] - came[i]), device)
            for i, view in enumerate(views)
        ]
        about = {"step": key[0], "counted": _counted(views, key[0]), "index": key[2]}
        rows.append(
            {
                **about,
                "name": key[1],
                "first_rank": views[first].rank,
                "last_rank": views[last].rank,
                "late_by": late,
                "waited": sum(waited),
                "doing": name,
                "category": category,
                "late_before": before,
            }
        )
        arrivals += [
            {
                **about,
                "name": key[1],
                "rank": view.rank,
                "arrival": int(came[i] - came[first]),
                "waited": waited[i],
                "length": _length(seen[i][key]),
            }
            for i, view in enumerate(views)
        ]
    frame = pl.DataFrame(rows, schema=_COLLECTIVES)
    came_frame = pl.DataFrame(arrivals, schema=_ARRIVALS)
    return Alignment(
        frame,
        came_frame,
        _per_rank(views, frame, came_frame),
        unaligned,
        tuple(int(x) for x in shift),
        device,
    )


_Key = tuple[int, str, int]
"""The step's number, what the collective is, and which of its kind in the step."""
_COLLECTIVES = pl.Schema(
    {
        "step": pl.Int64(),
        "counted": pl.Boolean(),
        "index": pl.Int64(),
        "name": pl.String(),
        "first_rank": pl.Int64(),
        "last_rank": pl.Int64(),
        "late_by": pl.Int64(),
        "waited": pl.Int64(),
        "doing": pl.String(),
        "category": pl.String(),
        "late_before": pl.Int64(),
    }
)
_ARRIVALS = pl.Schema(
    {
        "step": pl.Int64(),
        "counted": pl.Boolean(),
        "index": pl.Int64(),
        "name": pl.String(),
        "rank": pl.Int64(),
        "arrival": pl.Int64(),
        "waited": pl.Int64(),
        "length": pl.Int64(),
    }
)
_KIND = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast|reduce|gather"
    r"|scatter|barrier|send|recv",
    re.IGNORECASE,
)


def _collectives(view: RankView, device: bool) -> dict[_Key, tuple[int, int, int]]:
    """Return the collectives of a rank: when each is reached, when it ends, and its row."""
    trace, steps = view.trace, view.steps
    rows, ends = _device_rows(trace) if device else _host_rows(trace, steps)
    issued = trace.begin[rows]
    if device:
        call = view.launch[rows]
        issued = np.where(call >= 0, trace.begin[call], issued)
    order = np.argsort(issued, kind="stable")
    found: dict[_Key, tuple[int, int, int]] = {}
    count: dict[tuple[int, str], int] = defaultdict(int)
    for place in order.tolist():
        step = int(np.searchsorted(steps.begin, issued[place], side="right")) - 1
        if step < 0 or issued[place] >= steps.end[step]:
            continue
        row = int(rows[place])
        kind = _KIND.search(trace.text(row))
        what = kind[0].lower().replace("_", "") if kind else trace.text(row)
        number = int(steps.number[step])
        key = (number, what, count[number, what])
        count[number, what] += 1
        found[key] = (int(trace.begin[row]), int(ends[place]), row)
    return found


def _device_rows(trace: Trace) -> tuple[Ints, Ints]:
    rows = collective_rows(trace)
    return rows, trace.ends(rows)


def _host_rows(trace: Trace, steps: Steps) -> tuple[Ints, Ints]:
    """Return the calls that start a collective, and when each ends; `NOTHING` where unseen."""
    named = np.array([is_collective(name) for name in trace.names], dtype=bool)[trace.name]
    calls = np.array([name.startswith("c10d::") for name in trace.names], dtype=bool)
    rows = np.flatnonzero(calls[trace.name] & (trace.kind == Kind.operator))
    beside = np.flatnonzero(
        named & (trace.kind == Kind.annotation) & (trace.thread != steps.thread)
    )
    if not len(rows):
        rows = np.flatnonzero(named & (trace.kind == Kind.annotation))
        return rows, trace.ends(rows)
    if not len(beside):
        return rows, trace.ends(rows)
    # What a call starts begins after it, and they are carried out in their order.
    ends = np.full(len(rows), NOTHING, dtype=np.int64)
    following = 0
    for place, row in enumerate(rows.tolist()):
        while following < len(beside) and trace.begin[beside[following]] < trace.begin[row]:
            following += 1
        if following < len(beside):
            ends[place] = trace.begin[beside[following]] + trace.duration[beside[following]]
            following += 1
    return rows, ends


def _times(
    views: Sequence[RankView],
    seen: Sequence[dict[_Key, tuple[int, int, int]]],
    keys: Sequence[_Key],
    origin: int,
    ends: bool,
) -> Ints:
    """Return when each rank reaches or leaves each collective, int64 [ranks, collectives]."""
    times = [
        [view.trace.origin - origin + mine[key][1 if ends else 0] for key in keys]
        for view, mine in zip(views, seen, strict=True)
    ]
    return np.array(times, dtype=np.int64).reshape(len(views), len(keys))


def _counted(views: Sequence[RankView], number: int) -> bool:
    """Return whether a step counts on all ranks."""
    return all(bool(view.steps.counted[view.steps.number == number].all()) for view in views)


def _length(collective: tuple[int, int, int]) -> int | None:
    """Return how long a rank was in a collective, where its end was seen."""
    begin, end, _ = collective
    return None if end == NOTHING else end - begin


def _waited(view: RankView, reached: int, early: int, device: bool) -> int:
    """Return how long a rank waited that came to a collective early."""
    if device:
        return early
    places, inside = view.host.between(reached, reached + early)
    return int(inside[view.host.category[places] == Category.communication].sum())


def _shift(begin: Ints, end: Ints, known: Sequence[bool]) -> Ints:
    """Return what to take from each rank's clock, by the collectives whose ends are known."""
    none = np.zeros(len(begin), dtype=np.int64)
    begin, end = begin[:, np.flatnonzero(known)], end[:, np.flatnonzero(known)]
    if not begin.size:
        return none
    too_early = end.min(axis=0) < begin.max(axis=0) - CLOCKS_DIFFER
    if 2 * int(too_early.sum()) <= begin.shape[1]:
        return none
    shift: Ints = np.median(end - np.median(end, axis=0), axis=1).astype(np.int64)
    return shift


def _start(view: RankView, number: int) -> int:
    """Return when a step of a rank begins, on the clock of all ranks."""
    place = int(np.flatnonzero(view.steps.number == number)[0])
    return view.trace.origin + int(view.steps.begin[place])


def _doing(
    view: RankView, collective: tuple[int, int, int], late: int, device: bool
) -> tuple[str | None, str | None]:
    """Return what the last rank did since the first came."""
    reached, _, row = collective
    trace = view.trace
    since = reached - late
    until = reached
    if device:
        call = int(view.launch[row])
        if call >= 0 and trace.begin[call] <= since:
            name = _device_name(view, since, reached)
            return name, None if name is None else "device"
        if call >= 0:
            until = min(int(trace.begin[call]), reached)
    busy, category = host_row(view.host, since, until)
    name = None if busy == NOTHING else trace.text(busy)
    return name, None if category is None else category.name


def _device_name(view: RankView, begin: int, end: int) -> str | None:
    """Return the event of the device with most of a stretch."""
    trace = view.trace
    rows, reached = view.work
    first = int(np.searchsorted(reached, begin, side="right"))
    rows = rows[first : int(np.searchsorted(trace.begin[rows], end, side="left"))]
    inside = np.minimum(trace.ends(rows), end) - np.maximum(trace.begin[rows], begin)
    return trace.text(int(rows[inside.argmax()])) if len(rows) else None


def _per_rank(
    views: Sequence[RankView], collectives: pl.DataFrame, arrivals: pl.DataFrame
) -> pl.DataFrame:
    """Return how often each rank was last, and how long it waited and was waited for."""
    last = (
        collectives.filter("counted")
        .group_by(pl.col("last_rank").alias("rank"))
        .agg(pl.len().cast(pl.Int64).alias("last"), pl.col("waited").sum().alias("waited_for"))
    )
    waited = arrivals.filter("counted").group_by("rank").agg(pl.col("waited").sum())
    ranks = pl.DataFrame({"rank": pl.Series([view.rank for view in views], dtype=pl.Int64)})
    return (
        ranks.join(last, on="rank", how="left")
        .join(waited, on="rank", how="left")
        .with_columns(pl.col("last", "waited_for", "waited").fill_null(0))
        .sort("rank")
    )
