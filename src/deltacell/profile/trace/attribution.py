"""Attribution: where the time of a trace goes, for one rank or several side by side.

A collective ends for all when the last rank has come. So its length says how long a rank waited,
not how slow it was; its beginning says who was late.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from deltacell.arrays import Indices, Ints
from deltacell.errors import InputError
from deltacell.profile.trace.categories import Category, is_collective, is_loader
from deltacell.profile.trace.device import (
    PARTS,
    CriticalPath,
    DeviceTime,
    collective_rows,
    critical_path,
    device_time,
    launches,
)
from deltacell.profile.trace.host import (
    Doing,
    HostTime,
    MemoryPeak,
    doing,
    host_time,
    memory_peaks,
    operations,
    sync_points,
)
from deltacell.profile.trace.read import listed
from deltacell.profile.trace.self_time import Covered, Nesting, nest
from deltacell.profile.trace.steps import Steps, find_steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace
from deltacell.profile.trace.work import DeviceWork, Traits, device_work, traits
from deltacell.words import count_text

MUCH = 0.1
"""A share of time in no category that is a finding of its own."""

CLOCKS_DIFFER = 100_000
"""Nanoseconds that a rank may seem to leave a collective before the last one came to it."""


@dataclass(frozen=True, eq=False)
class Loader:
    """What the training saw of its loader."""

    per_step: float  # nanoseconds
    share: float
    names: tuple[str, ...]  # the ranges seen; without any the wait is unknown
    workers: pl.DataFrame  # threads of the loader; worker processes write no trace


@dataclass(frozen=True, eq=False)
class Attribution:
    """Where the time of one trace goes. Times are in nanoseconds, and of counted steps."""

    trace: Trace
    nesting: Nesting
    steps: Steps
    host: HostTime
    categories: pl.DataFrame  # all of them, in their order
    per_step: pl.DataFrame  # all steps: number, counted, begin, wall, loader, every category
    operations: pl.DataFrame  # by self time
    loader: Loader
    device: DeviceTime | None
    syncs: pl.DataFrame  # where the host waits for the device
    critical_path: CriticalPath  # of a typical step
    memory: tuple[MemoryPeak, ...]
    doing: pl.DataFrame  # what the host did, in names for people
    work: DeviceWork
    traits: Traits
    notices: tuple[str, ...]  # what to know before trusting the numbers

    @property
    def n_counted(self) -> int:
        """How many steps count."""
        return int(self.steps.counted.sum())

    @property
    def step_times(self) -> Ints:
        """Nanoseconds of each counted step: the host's, or the device's where that is behind."""
        steps = self.steps if self.device is None else self.device.windows
        return steps.wall[self.steps.counted]

    @property
    def behind(self) -> float:
        """Nanoseconds per step that the device still works when its host is done with it."""
        if self.device is None or not self.device.queued:
            return 0.0
        return float(self.step_times.mean() - self.steps.wall[self.steps.counted].mean())

    @property
    def wall_per_step(self) -> float:
        """The mean of the counted steps, in nanoseconds."""
        return float(self.step_times.mean())

    def seconds_per_step(self) -> dict[str, float]:
        """Return the mean seconds of a counted step by category, which add up to its wall."""
        rows = self.categories.select("category", "per_step").rows()
        return {name: time / 1e9 for name, time in rows}


@dataclass(frozen=True, eq=False)
class Alignment:
    """What the ranks did at their collectives, in nanoseconds.

    In ``collectives``, ``late_by`` is from the first arrival to the last, ``waited`` is the sum
    over ranks, ``doing`` and ``category`` are what the last rank's host was busy with meanwhile,
    and ``late_before`` is the part of ``late_by`` by which it began its step later than the first.
    """

    collectives: pl.DataFrame
    ranks: pl.DataFrame  # of counted steps: how often last, how long it waited and others for it
    unaligned: int  # collectives seen on some ranks only
    shift: tuple[int, ...]  # what was taken from each rank's clock; 0 where they agree
    on_device: bool  # they are kernels, not calls of the host


@dataclass(frozen=True, eq=False)
class RanksAttribution:
    """Where the time of several ranks goes."""

    ranks: tuple[Attribution, ...]
    world_size: int
    missing: tuple[int, ...]
    device: pl.DataFrame  # by rank, from the first event of the device to the last
    shares: dict[str, float]  # means over ranks, as shares of the wall
    alignment: Alignment | None
    notices: tuple[str, ...]


def attribute(trace: Trace) -> Attribution:
    """Find where the time of a trace goes."""
    if not (trace.duration > 0).any():
        raise InputError(
            "no event of the trace has a duration above 0",
            code="no-events",
            where=trace.path,
            fix="Check the profiler's schedule, and record again.",
        )
    nesting = nest(trace)
    steps = find_steps(trace)
    host = host_time(trace, nesting, steps)
    launch = launches(trace)
    does = doing(trace, nesting, steps, host)
    device = device_time(trace, steps, host, launch, does)
    operators = operations(trace, steps, host)
    time = host.by_category(len(steps))
    return Attribution(
        trace=trace,
        nesting=nesting,
        steps=steps,
        host=host,
        categories=_categories(steps, time),
        per_step=pl.DataFrame(
            {
                "number": steps.number,
                "counted": steps.counted,
                "begin": steps.begin,
                "wall": steps.wall,
                "loader": host.loader,
                **{category.name: time[:, category] for category in Category},
            }
        ),
        operations=operators,
        loader=_loader(trace, nesting, steps, host),
        device=device,
        syncs=sync_points(trace, nesting, steps),
        critical_path=critical_path(trace, steps, host, launch),
        memory=memory_peaks(trace, steps, host),
        doing=_doing(steps, host, does),
        work=device_work(trace, nesting, steps, host, launch),
        traits=traits(trace, nesting, steps),
        notices=_notices(trace, steps, device, operators),
    )


def attribute_ranks(traces: Sequence[Trace]) -> RanksAttribution:
    """Find where the time of several ranks goes, and who is waited for.

    A trace of unknown rank takes its place in the sequence as its rank.
    """
    if not traces:
        raise InputError("at least one trace is required", code="no-trace")
    by_rank: dict[int, Trace] = {}
    for place, trace in enumerate(traces):
        rank = place if trace.rank is None else trace.rank
        if rank in by_rank:
            raise InputError(
                f"two traces are of rank {rank}, and one trace per rank was expected",
                code="rank-twice",
                where=trace.path,
                fix="Give the traces of one run and one window.",
            )
        by_rank[rank] = trace
    ranks = {number: attribute(by_rank[number]) for number in sorted(by_rank)}
    world = max([trace.world_size or 0 for trace in traces] + [max(ranks) + 1])
    missing = tuple(sorted(set(range(world)) - set(ranks)))
    alignment = _align(ranks) if len(ranks) > 1 else None
    if alignment is not None and not len(alignment.collectives):
        alignment = None
    rows = [
        {"rank": number, **one.device.kernels}
        for number, one in ranks.items()
        if one.device is not None
    ]
    device = pl.DataFrame(rows, schema=dict.fromkeys(("rank", "wall", *PARTS), pl.Int64))
    shares = {p: float((device[p] / device["wall"]).to_numpy().mean()) for p in PARTS if rows}
    if shares:
        shares["non_compute"] = shares["communication"] + shares["copies"]
    notices = _rank_notices(world, missing, ranks, alignment)
    found = tuple(ranks.values())
    return RanksAttribution(found, world, missing, device, shares, alignment, notices)


def _categories(steps: Steps, per_step: Ints) -> pl.DataFrame:
    time = per_step[steps.counted].sum(axis=0)
    return pl.DataFrame(
        {
            "category": [category.name for category in Category],
            "time": time,
            "per_step": time / int(steps.counted.sum()),
            "share": time / int(steps.wall[steps.counted].sum()),
        }
    )


def _doing(steps: Steps, host: HostTime, does: Doing) -> pl.DataFrame:
    counted = steps.counted[host.step]
    key = does.code[counted].astype(np.int64) * len(Category) + host.category[counted]
    time = np.bincount(key, weights=(host.end - host.begin)[counted])
    rows = [
        (does.names[key // len(Category)], Category(key % len(Category)).title, int(time[key]))
        for key in np.flatnonzero(time).tolist()
    ]
    schema = {"name": pl.String, "category": pl.String, "time": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.sort("time", "name", descending=[True, False])


def _loader(trace: Trace, nesting: Nesting, steps: Steps, host: HostTime) -> Loader:
    seen = np.unique(trace.name[trace.named(is_loader) & (trace.thread == steps.thread)])
    wait, wall = host.loader[steps.counted], int(steps.wall[steps.counted].sum())
    begin, end = steps.begin[steps.counted], steps.end[steps.counted]
    loads = trace.named(lambda name: "_MultiProcessing" in name or "fetch" in name)
    workers = []
    for lane, thread in enumerate(trace.threads):
        if thread.is_device or lane == steps.thread or lane in host.helpers:
            continue
        mine = np.flatnonzero((nesting.lane == lane) & (trace.kind != Kind.other))
        named = re.search("pt_data|pin_memory|dataloader|data_worker", thread.name.lower())
        if len(mine) and (named or loads[mine].any()):
            union = Covered.union(trace.begin[mine], trace.ends(mine))
            busy = int(union.within(begin, end).sum())
            workers.append((thread.name or thread.tid, busy, busy / wall))
    schema = {"thread": pl.String, "busy": pl.Int64, "share": pl.Float64}
    return Loader(
        per_step=float(wait.mean()),
        share=int(wait.sum()) / wall,
        names=tuple(trace.names[code] for code in seen.tolist()),
        workers=pl.DataFrame(workers, schema=schema, orient="row"),
    )


def _notices(
    trace: Trace, steps: Steps, device: DeviceTime | None, operators: pl.DataFrame
) -> tuple[str, ...]:
    notices = list(trace.warnings)
    notices += [f"Step {cut.number} does not count: {cut.why}." for cut in steps.cut]
    if len(steps) == 1:
        notices.append(f"There is one step only ({steps.how}), so it counts, warm-up or not.")
    elif steps.how != "ProfilerStep":
        notices.append(f"The trace does not mark its steps; they were found from {steps.how}.")
    if device is not None and device.others:
        count = device.others + 1
        notices.append(f"The trace has {count} devices; times are those of the busiest.")
    other = operators.filter(pl.col("category") == Category.other.name)
    share = float(other["share"].sum())
    if share > MUCH and device is None:
        # With a device, what the host is busy with is not what takes the time.
        most = ", ".join(other["operation"].head(3).to_list())
        notices.append(f"{100 * share:.0f} % of the time is in no category, mostly {most}.")
    return tuple(notices)


def _rank_notices(
    world: int, missing: Sequence[int], ranks: dict[int, Attribution], alignment: Alignment | None
) -> tuple[str, ...]:
    notices = []
    if missing:
        notices.append(
            f"{len(ranks)} of {world} ranks have a trace here; missing: {listed(missing)}. "
            "Who is last among the others is unknown."
        )
    if alignment is not None and any(alignment.shift):
        notices.append("The clocks of the ranks differ; the ends of collectives align them.")
    if alignment is not None and alignment.unaligned:
        seen = count_text(alignment.unaligned, "collective was seen", "collectives were seen")
        notices.append(f"{seen} on some ranks only.")
    where: dict[str, list[int]] = {}
    for rank, one in ranks.items():
        for notice in one.notices:
            where.setdefault(notice, []).append(rank)
    for notice, of in where.items():
        label = "" if len(of) == len(ranks) else f"Rank {', '.join(map(str, of))}: "
        notices.append(f"{label}{notice}")
    return tuple(notices)


_Key = tuple[int, str, int]
"""The step's number, what the collective is, and which of its kind in the step."""
_COLLECTIVES = {
    **{"step": pl.Int64, "counted": pl.Boolean, "index": pl.Int64, "name": pl.String},
    **dict.fromkeys(("first_rank", "last_rank", "late_by", "waited"), pl.Int64),
    **{"doing": pl.String, "category": pl.String, "late_before": pl.Int64},
}
_KIND = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast|reduce|gather"
    r"|scatter|barrier|send|recv",
    re.IGNORECASE,
)


def _align(by_rank: dict[int, Attribution]) -> Alignment:
    """Align ranks on their collectives.

    Those of a step are aligned by what they are and their order. Clocks are taken as one, unless a
    rank seems to leave collectives before the last one came to them: then the ends are aligned.
    """
    numbers, ranks = list(by_rank), list(by_rank.values())
    device = all(len(collective_rows(one.trace)) for one in ranks)
    launch = [launches(one.trace) for one in ranks]
    seen = [_collectives(one, call, device) for one, call in zip(ranks, launch, strict=True)]
    keys = [key for key in seen[0] if all(key in other for other in seen[1:])]
    origin = min(one.trace.origin for one in ranks)
    begin, end = (
        np.array(
            [
                [one.trace.origin - origin + mine[key][which] for key in keys]
                for one, mine in zip(ranks, seen, strict=True)
            ],
            dtype=np.int64,
        ).reshape(len(ranks), len(keys))
        for which in (0, 1)
    )
    shift = _shift(begin, end, [all(mine[key][1] != NOTHING for mine in seen) for key in keys])
    begin = begin - shift[:, None]
    order: list[int] = np.argsort(begin.min(axis=0), kind="stable").tolist() if keys else []
    rows = []
    total = dict.fromkeys(numbers, 0)
    for place in order:
        key = number, name, index = keys[place]
        came = begin[:, place]
        first, last = int(came.argmin()), int(came.argmax())
        late = int(came[last] - came[first])
        was_doing = _last_was_doing(ranks[last], launch[last], seen[last][key], late, device)
        at = [np.flatnonzero(one.steps.number == number) for one in ranks]
        starts = [
            ranks[i].trace.origin + int(ranks[i].steps.begin[at[i][0]]) - int(shift[i])
            for i in (first, last)
        ]
        before = min(max(starts[1] - starts[0], 0), late)
        counted = all(bool(one.steps.counted[p].all()) for one, p in zip(ranks, at, strict=True))
        waits = 0
        for rank, one, mine, arrival in zip(numbers, ranks, seen, came.tolist(), strict=True):
            start = mine[key][0]
            waited = int(came[last]) - arrival
            if not device:
                # Beside its host, a collective is waited for only while the host does nothing.
                places, inside = one.host.between(start, start + waited)
                is_wait = one.host.category[places] == Category.communication
                waited = int(inside[is_wait].sum())
            waits += waited
            total[rank] += waited if counted else 0
        about = (number, counted, index, name, numbers[first], numbers[last])
        rows.append((*about, late, waits, *was_doing, before))
    collectives = pl.DataFrame(rows, schema=_COLLECTIVES, orient="row")
    last_of = collectives.filter("counted").group_by(pl.col("last_rank").alias("rank"))
    waited_for = pl.col("waited").sum().alias("waited_for")
    came_last = last_of.agg(pl.len().cast(pl.Int64).alias("last"), waited_for)
    waiting = pl.DataFrame({"rank": numbers, "waited": list(total.values())})
    per_rank = waiting.join(came_last, on="rank", how="left").fill_null(0).sort("rank")
    return Alignment(
        collectives,
        per_rank.select("rank", "last", "waited_for", "waited"),
        unaligned=len({key for mine in seen for key in mine}) - len(keys),
        shift=tuple(shift.tolist()),
        on_device=device,
    )


def _collectives(
    one: Attribution, launch: Indices, device: bool
) -> dict[_Key, tuple[int, int, int]]:
    """Return the collectives of a rank: when each is reached, when it ends, and its row."""
    trace, steps = one.trace, one.steps
    if device:
        rows = collective_rows(trace)
        ends = trace.ends(rows)
        call = launch[rows]
        issued = np.where(call >= 0, trace.begin[call], trace.begin[rows])
    else:
        rows, ends = _host_rows(trace, steps)
        issued = trace.begin[rows]
    step = steps.place(issued)
    found: dict[_Key, tuple[int, int, int]] = {}
    count: Counter[tuple[int, str]] = Counter()
    for place in np.argsort(issued, kind="stable").tolist():
        if step[place] < 0:
            continue
        row = int(rows[place])
        kind = _KIND.search(trace.text(row))
        what = kind[0].lower().replace("_", "") if kind else trace.text(row)
        number = int(steps.number[step[place]])
        found[number, what, count[number, what]] = (int(trace.begin[row]), int(ends[place]), row)
        count[number, what] += 1
    return found


def _host_rows(trace: Trace, steps: Steps) -> tuple[Ints, Ints]:
    """Return the calls that start a collective, and when each ends; `NOTHING` where unseen."""
    ranges = trace.named(is_collective) & (trace.kind == Kind.annotation)
    calls = trace.named(lambda name: name.startswith("c10d::")) & (trace.kind == Kind.operator)
    rows, beside = np.flatnonzero(calls), np.flatnonzero(ranges & (trace.thread != steps.thread))
    if not len(rows):
        rows = np.flatnonzero(ranges)
    if not calls.any() or not len(beside):
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


def _last_was_doing(
    one: Attribution, launch: Indices, collective: tuple[int, int, int], late: int, device: bool
) -> tuple[str | None, str | None]:
    """Return what the last rank did since the first came, by name and category."""
    trace = one.trace
    reached, _, row = collective
    since, until = reached - late, reached
    call = int(launch[row]) if device else NOTHING
    if call >= 0 and trace.begin[call] <= since:
        # It was launched in time: the device was busy.
        rows = np.flatnonzero(trace.on_device)
        done = np.maximum.accumulate(trace.ends(rows))
        first = int(np.searchsorted(done, since, side="right"))
        rows = rows[first : int(np.searchsorted(trace.begin[rows], reached, side="left"))]
        inside = np.minimum(trace.ends(rows), reached) - np.maximum(trace.begin[rows], since)
        return (trace.text(int(rows[inside.argmax()])), "device") if len(rows) else (None, None)
    if call >= 0:
        until = min(int(trace.begin[call]), reached)
    busy, category = one.host.busiest(since, until)
    name = None if busy == NOTHING else trace.text(busy)
    return name, None if category is None else category.name
