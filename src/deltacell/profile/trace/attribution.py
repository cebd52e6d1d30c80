"""Attribution: where the time of a trace goes, of one rank or of several side by side.

A collective ends for all when the last rank has come. So its length says how long a rank waited,
not how slow it was; its beginning says who was late.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.errors import InputError
from deltacell.profile.trace.categories import Category, is_collective, is_loader
from deltacell.profile.trace.device import (
    PARTS,
    CriticalPath,
    DeviceTime,
    collective_rows,
    critical_path,
    device_time,
    host_row,
    launches,
    on_device,
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
from deltacell.profile.trace.self_time import Covered, Nesting, nest
from deltacell.profile.trace.steps import Steps, find_steps
from deltacell.profile.trace.trace import NOTHING, Codes, Ints, Kind, Trace
from deltacell.profile.trace.work import DeviceWork, Traits, device_work, traits
from deltacell.words import count_text

MUCH = 0.1
"""A share of time in no category that is a finding of its own."""

CLOCKS_DIFFER = 100_000
"""Nanoseconds that a rank may seem to leave a collective before the last one came to it."""


@dataclass(frozen=True, eq=False)
class Loader:
    """What the training saw of its loader.

    ``wait`` has the nanoseconds of each step that it waited for a batch, int64 [s]; ``per_step``
    and ``share`` are of counted steps. ``names`` are the ranges seen; without any the wait is
    unknown. ``workers`` are threads of the loader: ``thread``, ``busy`` in nanoseconds, ``share``;
    workers that are processes write no trace.
    """

    wait: Ints
    per_step: float
    share: float
    names: tuple[str, ...]
    workers: pl.DataFrame


@dataclass(frozen=True)
class Residual:
    """What does not add up, in nanoseconds; each is checked to be 0 when it is computed.

    Self times of a thread against the union of its events (the worst thread), categories and
    parts of the device against the wall of the steps, and the critical path against its step.
    """

    self_times: int
    host: int
    device: int
    critical_path: int


@dataclass(frozen=True, eq=False)
class Attribution:
    """Where the time of one trace goes. Times are in nanoseconds, and of counted steps.

    Parameters
    ----------
    trace, nesting, steps, host
        What it is made from.
    categories
        All categories in their order: ``category``, ``title``, ``time``, ``per_step``, ``share``,
        and ``inferred``: the time that is known only from what lies around it.
    per_step
        One row per step, counted or not: ``number``, ``counted``, ``begin``, ``wall``, ``loader``,
        one column per category, ``residual``.
    operations
        By self time: ``operation``, ``category``, ``count``, ``time``, ``per_step``, ``share``.
    other
        The operations in no category, where these are more than `MUCH` of the time; else empty.
    loader, device, syncs, memory
        The wait for batches; the device, or None; where the host waits for it; peaks.
    critical_path
        Of a typical step.
    doing
        What the host did, in names for people: ``name``, ``category``, ``time``.
    work, traits
        Device time by kernel, operator and module; what kind of work a step is.
    residual
        What does not add up.
    notices
        What to know before believing the numbers, in sentences.
    """

    trace: Trace
    nesting: Nesting
    steps: Steps
    host: HostTime
    categories: pl.DataFrame
    per_step: pl.DataFrame
    operations: pl.DataFrame
    other: pl.DataFrame
    loader: Loader
    device: DeviceTime | None
    syncs: pl.DataFrame
    critical_path: CriticalPath
    memory: tuple[MemoryPeak, ...]
    doing: pl.DataFrame
    work: DeviceWork
    traits: Traits
    residual: Residual
    notices: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file."""
        return self.trace.path

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
        """Nanoseconds of a step that a device still works when its host is done with the step."""
        if self.device is None or not self.device.queued:
            return 0.0
        return float(self.step_times.mean() - self.steps.wall[self.steps.counted].mean())

    @property
    def wall_per_step(self) -> float:
        """The mean of the counted steps, in nanoseconds."""
        return float(self.step_times.mean())

    def seconds_per_step(self) -> dict[str, float]:
        """Return the mean seconds of a counted step by category; they add up to its wall."""
        rows = self.categories.select("category", "per_step").rows()
        return {name: time / 1e9 for name, time in rows}


@dataclass(frozen=True, eq=False)
class Alignment:
    """What the ranks did at their collectives. Nanoseconds.

    Parameters
    ----------
    collectives
        By time: ``step`` and whether it is ``counted``, ``index`` in the step, ``name``;
        ``first_rank``, ``last_rank``, ``late_by`` (from the first arrival to the last), ``waited``
        (all ranks together); ``doing`` and ``category``: what the last rank's host was busy with
        meanwhile; ``late_before``: the part of ``late_by`` by which it began its step later than
        the first rank.
    arrivals
        One row per collective and rank: ``step``, ``counted``, ``index``, ``name``, ``rank``,
        ``arrival`` after the first, ``waited`` until the last came, ``length`` (null where the
        end was not seen). A rank whose collective runs beside its host waits only while its host
        does nothing else.
    ranks
        One row per rank, of counted steps: ``rank``, ``last`` (how often it came last),
        ``waited_for`` (how long others waited where it was last), ``waited`` (how long it did).
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


@dataclass(frozen=True, eq=False)
class RanksAttribution:
    """Where the time of several ranks goes.

    Parameters
    ----------
    ranks
        By rank.
    world_size, missing
        How many ranks there were, as far as is known, and those without a trace.
    device
        One row per rank: ``rank``, ``wall``, ``compute``, ``communication``, ``copies``, ``idle``
        from the first event of the device to the last, in nanoseconds. Empty without a device.
    shares
        The mean over ranks of ``compute``, ``communication``, ``copies``, ``idle``, and of
        ``non_compute`` (communication and copies), as shares of the wall.
    alignment
        Who came last to which collective; None with one rank only, or no collective.
    notices
        In sentences.
    """

    ranks: tuple[Attribution, ...]
    world_size: int
    missing: tuple[int, ...]
    device: pl.DataFrame
    shares: dict[str, float]
    alignment: Alignment | None
    notices: tuple[str, ...]


def attribute(trace: Trace) -> Attribution:
    """Tell where the time of a trace goes; an `InputError` where nothing in it lasts."""
    if not len(trace) or not (trace.duration > 0).any():
        raise InputError(
            "no event of the trace has a duration above 0",
            where=trace.path,
            fix="Was anything recorded? Look at the profiler's schedule.",
        )
    nesting = nest(trace)
    steps = find_steps(trace)
    host = host_time(trace, nesting, steps)
    launch = launches(trace)
    does = doing(trace, nesting, steps, host)
    device = device_time(trace, steps, host, launch=launch, doing=does)
    path = critical_path(trace, steps, host, launch)
    operators = operations(trace, steps, host)
    missed = 0
    if device is not None:
        off = pl.col("wall") - pl.sum_horizontal(PARTS)
        missed = int(device.steps.select(off.abs().max()).item())
    other = operators.filter(pl.col("category") == Category.other.name)
    if float(other["share"].sum()) <= MUCH:
        other = other.clear()
    time = host.by_category(len(steps))
    return Attribution(
        trace=trace,
        nesting=nesting,
        steps=steps,
        host=host,
        categories=_categories(steps, host, time),
        per_step=pl.DataFrame(
            {
                "number": steps.number,
                "counted": steps.counted,
                "begin": steps.begin,
                "wall": steps.wall,
                "loader": host.loader,
                **{category.name: time[:, category] for category in Category},
                "residual": steps.wall - time.sum(axis=1),
            }
        ),
        operations=operators,
        other=other,
        loader=_loader(trace, nesting, steps, host),
        device=device,
        syncs=sync_points(trace, nesting, steps),
        critical_path=path,
        memory=memory_peaks(trace, steps, host),
        doing=_doing(steps, host, does),
        work=device_work(trace, nesting, steps, host, launch),
        traits=traits(trace, nesting, steps),
        residual=Residual(nesting.residual, host.residual, missed, path.residual),
        notices=_notices(trace, steps, device, other),
    )


def attribute_ranks(traces: Sequence[Trace]) -> RanksAttribution:
    """Tell where the time of several ranks goes, and who is waited for.

    Where a trace does not say its rank, its place is taken for it.
    """
    if not traces:
        raise InputError("no trace was given, and at least one was expected")
    by_rank: dict[int, Trace] = {}
    for place, trace in enumerate(traces):
        rank = place if trace.rank is None else trace.rank
        if rank in by_rank:
            raise InputError(
                f"two traces are of rank {rank}, and one trace per rank was expected",
                where=trace.path,
                fix="Give the traces of one run and one window.",
            )
        by_rank[rank] = trace
    numbers = sorted(by_rank)
    ranks = tuple(attribute(by_rank[number]) for number in numbers)
    world = max([trace.world_size or 0 for trace in traces] + [max(numbers) + 1])
    missing = tuple(sorted(set(range(world)) - set(numbers)))
    alignment = None
    if len(ranks) > 1:
        views = [
            RankView(n, one.trace, one.steps, one.host)
            for n, one in zip(numbers, ranks, strict=True)
        ]
        alignment = align_ranks(views)
        if not len(alignment.collectives):
            alignment = None
    rows = [
        (number, one.device.kernels.wall, *(getattr(one.device.kernels, part) for part in PARTS))
        for number, one in zip(numbers, ranks, strict=True)
        if one.device is not None
    ]
    schema = dict.fromkeys(("rank", "wall", *PARTS), pl.Int64())
    device = pl.DataFrame(rows, schema=schema, orient="row")
    shares = {
        part: float((device[part] / device["wall"]).to_numpy().mean())
        for part in (PARTS if rows else ())
    }
    if shares:
        shares["non_compute"] = shares["communication"] + shares["copies"]
    notices = _rank_notices(world, missing, numbers, ranks, alignment)
    return RanksAttribution(ranks, world, missing, device, shares, alignment, notices)


def _categories(steps: Steps, host: HostTime, per_step: Ints) -> pl.DataFrame:
    time = per_step[steps.counted].sum(axis=0)
    known = np.flatnonzero(steps.counted[host.step] & host.inferred)
    length = host.end[known] - host.begin[known]
    inferred = np.bincount(host.category[known], weights=length, minlength=len(Category))
    return pl.DataFrame(
        {
            "category": [category.name for category in Category],
            "title": [category.title for category in Category],
            "time": time,
            "per_step": time / int(steps.counted.sum()),
            "share": time / int(steps.wall[steps.counted].sum()),
            "inferred": inferred.astype(np.int64),
        }
    )


def _doing(steps: Steps, host: HostTime, does: Doing) -> pl.DataFrame:
    counted = np.flatnonzero(steps.counted[host.step])
    key = does.code[counted].astype(np.int64) * len(Category) + host.category[counted]
    found, place = np.unique(key, return_inverse=True)
    time = np.bincount(place, weights=host.end[counted] - host.begin[counted]).astype(np.int64)
    pairs = [divmod(code, len(Category)) for code in found.tolist()]
    rows = [
        (does.names[name], Category(category).title, one)
        for (name, category), one in zip(pairs, time.tolist(), strict=True)
    ]
    schema = {"name": pl.String(), "category": pl.String(), "time": pl.Int64()}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.sort("time", "name", descending=[True, False])


_WORKER_NAMES = ("pt_data", "pin_memory", "dataloader", "data_worker")


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
        named = any(word in thread.name.lower() for word in _WORKER_NAMES)
        if len(mine) and (named or loads[mine].any()):
            union = Covered.of(trace.begin[mine], trace.ends(mine))
            busy = int(union.within(begin, end).sum())
            workers.append((thread.name or thread.tid, busy, busy / wall))
    schema = {"thread": pl.String(), "busy": pl.Int64(), "share": pl.Float64()}
    return Loader(
        wait=host.loader,
        per_step=float(wait.mean()),
        share=int(wait.sum()) / wall,
        names=tuple(trace.names[code] for code in seen.tolist()),
        workers=pl.DataFrame(workers, schema=schema, orient="row"),
    )


def _notices(
    trace: Trace, steps: Steps, device: DeviceTime | None, other: pl.DataFrame
) -> tuple[str, ...]:
    notices = list(trace.warnings)
    notices += [f"Step {cut.number} does not count: {cut.why}." for cut in steps.cut]
    if len(steps) == 1:
        notices.append(f"There is one step only ({steps.how}), so it counts, warm-up or not.")
    elif steps.how != "ProfilerStep":
        notices.append(f"The trace does not mark its steps; they were found from {steps.how}.")
    if device is not None and device.others:
        notices.append(
            f"The trace has {device.others + 1} devices; times are those of the busiest."
        )
    if len(other) and device is None:
        # With a device, what the host is busy with is not what takes the time.
        most = ", ".join(other["operation"].head(3).to_list())
        share = 100 * float(other["share"].sum())
        notices.append(f"{share:.0f} % of the time is in no category, mostly {most}.")
    return tuple(notices)


def _rank_notices(
    world: int,
    missing: Sequence[int],
    numbers: Sequence[int],
    ranks: Sequence[Attribution],
    alignment: Alignment | None,
) -> tuple[str, ...]:
    notices = []
    if missing:
        shown = ", ".join(str(rank) for rank in missing[:8])
        more = "" if len(missing) <= 8 else f" and {len(missing) - 8} more"
        notices.append(
            f"{len(numbers)} of {world} ranks have a trace here; missing: {shown}{more}. "
            "Who is last among the others is unknown."
        )
    if alignment is not None and any(alignment.shift):
        notices.append("The clocks of the ranks differ; the ends of collectives align them.")
    if alignment is not None and alignment.unaligned:
        seen = count_text(alignment.unaligned, "collective was seen", "collectives were seen")
        notices.append(f"{seen} on some ranks only.")
    where: dict[str, list[int]] = {}
    for rank, one in zip(numbers, ranks, strict=True):
        for notice in one.notices:
            where.setdefault(notice, []).append(rank)
    for notice, of in where.items():
        label = "" if len(of) == len(numbers) else f"Rank {', '.join(map(str, of))}: "
        notices.append(f"{label}{notice}")
    return tuple(notices)


@dataclass(frozen=True, eq=False)
class RankView:
    """One rank: its number, its events, steps, and what its host did."""

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
    begin, end = (
        np.array(
            [
                [view.trace.origin - origin + mine[key][which] for key in keys]
                for view, mine in zip(views, seen, strict=True)
            ],
            dtype=np.int64,
        ).reshape(len(views), len(keys))
        for which in (0, 1)
    )
    shift = _shift(begin, end, [all(mine[key][1] != NOTHING for mine in seen) for key in keys])
    begin = begin - shift[:, None]
    order: list[int] = np.argsort(begin.min(axis=0), kind="stable").tolist() if keys else []
    rows, arrivals = [], []
    for place in order:
        key = keys[place]
        came = begin[:, place]
        first, last = int(came.argmin()), int(came.argmax())
        late = int(came[last] - came[first])
        name, category = _last_was_doing(views[last], seen[last][key], late, device)
        starts = [_start(views[i], key[0]) - int(shift[i]) for i in (first, last)]
        waited = [
            _waited(view, seen[i][key][0], int(came[last] - came[i]), device)
            for i, view in enumerate(views)
        ]
        number = key[0]
        counted = all(bool(v.steps.counted[v.steps.number == number].all()) for v in views)
        about = (number, counted, key[2], key[1])
        rows.append(
            (
                *about,
                views[first].rank,
                views[last].rank,
                late,
                sum(waited),
                name,
                category,
                min(max(starts[1] - starts[0], 0), late),
            )
        )
        for i, view in enumerate(views):
            start, stop, _ = seen[i][key]
            length = None if stop == NOTHING else stop - start
            arrivals.append((*about, view.rank, int(came[i] - came[first]), waited[i], length))
    frame = pl.DataFrame(rows, schema=_COLLECTIVES, orient="row")
    came_frame = pl.DataFrame(arrivals, schema=_ARRIVALS, orient="row")
    per_rank = _per_rank(views, frame, came_frame)
    clocks = tuple(int(x) for x in shift)
    return Alignment(frame, came_frame, per_rank, unaligned, clocks, device)


_Key = tuple[int, str, int]
"""The step's number, what the collective is, and which of its kind in the step."""
_ABOUT = {"step": pl.Int64(), "counted": pl.Boolean(), "index": pl.Int64(), "name": pl.String()}
_COLLECTIVES = {
    **_ABOUT,
    **dict.fromkeys(("first_rank", "last_rank", "late_by", "waited"), pl.Int64()),
    **{"doing": pl.String(), "category": pl.String(), "late_before": pl.Int64()},
}
_ARRIVALS = {**_ABOUT, **dict.fromkeys(("rank", "arrival", "waited", "length"), pl.Int64())}
_KIND = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast|reduce|gather"
    r"|scatter|barrier|send|recv",
    re.IGNORECASE,
)


def _collectives(view: RankView, device: bool) -> dict[_Key, tuple[int, int, int]]:
    """Return the collectives of a rank: when each is reached, when it ends, and its row."""
    trace, steps = view.trace, view.steps
    if device:
        rows = collective_rows(trace)
        ends = trace.ends(rows)
        call = view.launch[rows]
        issued = np.where(call >= 0, trace.begin[call], trace.begin[rows])
    else:
        rows, ends = _host_rows(trace, steps)
        issued = trace.begin[rows]
    found: dict[_Key, tuple[int, int, int]] = {}
    count: dict[tuple[int, str], int] = defaultdict(int)
    for place in np.argsort(issued, kind="stable").tolist():
        step = int(np.searchsorted(steps.begin, issued[place], side="right")) - 1
        if step < 0 or issued[place] >= steps.end[step]:
            continue
        row = int(rows[place])
        kind = _KIND.search(trace.text(row))
        what = kind[0].lower().replace("_", "") if kind else trace.text(row)
        number = int(steps.number[step])
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


def _waited(view: RankView, reached: int, early: int, device: bool) -> int:
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
    place = int(np.flatnonzero(view.steps.number == number)[0])
    return view.trace.origin + int(view.steps.begin[place])


def _last_was_doing(
    view: RankView, collective: tuple[int, int, int], late: int, device: bool
) -> tuple[str | None, str | None]:
    """Return what the last rank did since the first came, by name and category."""
    reached, _, row = collective
    trace = view.trace
    since = until = reached
    since -= late
    if device:
        call = int(view.launch[row])
        if call >= 0 and trace.begin[call] <= since:
            # It was launched in time: the device was busy.
            rows, done = view.work
            first = int(np.searchsorted(done, since, side="right"))
            rows = rows[first : int(np.searchsorted(trace.begin[rows], reached, side="left"))]
            inside = np.minimum(trace.ends(rows), reached) - np.maximum(trace.begin[rows], since)
            name = trace.text(int(rows[inside.argmax()])) if len(rows) else None
            return name, None if name is None else "device"
        if call >= 0:
            until = min(int(trace.begin[call]), reached)
    busy, category = host_row(view.host, since, until)
    name = None if busy == NOTHING else trace.text(busy)
    return name, None if category is None else category.name


def _per_rank(
    views: Sequence[RankView], collectives: pl.DataFrame, arrivals: pl.DataFrame
) -> pl.DataFrame:
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
