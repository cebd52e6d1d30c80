"""Attribution: where the time of a trace goes, for one rank or for several side by side.

A collective ends on all ranks after the last one has arrived. So its length shows how long a rank
waited, not how slow it was; its beginning shows which rank was late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError
from deltacell.base.text import count_text
from deltacell.profile.trace import device as devices
from deltacell.profile.trace.calls import Calls, find_calls
from deltacell.profile.trace.categories import Category, is_collective, is_loader
from deltacell.profile.trace.components import StepComponents, device_parts, host_parts
from deltacell.profile.trace.device import PARTS, DeviceTime, collective_rows
from deltacell.profile.trace.host import HostTime, host_time
from deltacell.profile.trace.intervals import Covered
from deltacell.profile.trace.read import missing_ranks
from deltacell.profile.trace.repeats import spread_of_kernels, spread_of_operators
from deltacell.profile.trace.self_time import Nesting, nest
from deltacell.profile.trace.steps import Steps, find_steps
from deltacell.profile.trace.trace import NOTHING, Kind, Thread, Trace
from deltacell.profile.trace.typical import typical_step
from deltacell.profile.trace.waits import sync_points
from deltacell.profile.trace.work import find_traits, find_work

MUCH = 0.1  # a larger share of time in no category is reported
CLOCKS_DIFFER = 100_000  # nanoseconds by which a rank may seem to leave before the last one arrives


@dataclass(frozen=True, eq=False)
class LoaderTimes:
    """The loader as seen by the training."""

    per_step: float  # nanoseconds waited
    share: float
    names: tuple[str, ...]  # the ranges of the loader; without any, the wait is unknown
    workers: pl.DataFrame  # threads of the loader; worker processes write no trace


class Attribution:
    """Where the time of one trace goes, in nanoseconds of counted steps."""

    def __init__(self, trace: Trace) -> None:
        if not (trace.duration > 0).any():
            message = "no event of the trace has a duration above 0; check the profiler's schedule"
            raise InputError(message, code="no-events", where=trace.path)
        self.trace = trace
        self.nesting = nesting = nest(trace)
        self.launch = devices.launches(trace)  # the host's call behind each event of the device
        self.steps = steps = find_steps(trace, self.launch)
        self.host = host = host_time(trace, nesting, steps)
        self.doing = host.spent(steps)  # what the host did; adds up to the wall time
        self.device = None
        if (trace.on_device & (trace.duration >= 0)).any():
            self.device = DeviceTime(trace, steps, host, self.launch)
        # Of all steps.
        self.per_step = pl.DataFrame(
            {
                "number": steps.number,
                "counted": steps.counted,
                "wall": steps.wall,
                "loader": host.loader,
            }
        )
        self.loader = _loader(trace, nesting, steps, host)
        self.syncs = sync_points(trace, nesting, steps)  # the host waits for the device
        self.typical = typical = typical_step(steps, host, self.device)  # the index of a step
        bounds = (int(steps.begin[typical]), int(steps.end[typical]))
        self.critical_path = devices.critical_path(trace, host, self.launch, *bounds)
        self.work = find_work(trace, nesting, steps, host, self.launch)
        self.traits = find_traits(trace, nesting, steps)
        self.notices = tuple(_notices(trace, steps, self.device, self.doing))

    @cached_property
    def calls(self) -> Calls:
        """How often a step calls what; only comparisons need it."""
        return find_calls(self.trace, self.nesting, self.steps, self.host)

    @cached_property
    def step_parts(self) -> StepComponents:
        """The components of a step and the rest of it; only comparisons need them."""
        of = (self.trace, self.nesting, self.steps)
        if self.device is None:
            return host_parts(*of, self.host)
        return device_parts(*of, self.device, self.launch)

    @cached_property
    def kernel_spread(self) -> float | None:
        """How steady repeated kernels are; None if few are repeated."""
        return spread_of_kernels(self.trace, self.nesting, self.steps, self.launch)

    @cached_property
    def operator_spread(self) -> float | None:
        """How steady repeated operators of the host are; None if few are repeated."""
        return spread_of_operators(self.trace, self.nesting, self.steps)

    @property
    def n_counted(self) -> int:
        """The number of steps that count."""
        return int(self.steps.counted.sum())

    @property
    def step_times(self) -> Ints:
        """Nanoseconds of each counted step; those of the device if it falls behind the host."""
        steps = self.steps if self.device is None else self.device.windows
        return steps.wall[self.steps.counted]

    @property
    def behind(self) -> float:
        """Nanoseconds per step that the device still works after the host has finished."""
        of_host = self.steps.wall[self.steps.counted]
        return float(self.step_times.mean() - of_host.mean())

    def seconds_per_step(self) -> dict[str, float]:
        """Return the mean seconds of a counted step by category, which add up to its wall time."""
        spent = dict(self.doing.group_by("category").agg(pl.sum("time")).iter_rows())
        steps = 1e9 * self.n_counted
        return {
            category.title: spent[category.title] / steps
            for category in Category
            if category.title in spent
        }


@dataclass(frozen=True, eq=False)
class Alignment:
    """Arrivals of the ranks at their collectives, in nanoseconds.

    In ``collectives``, ``late_by`` is the time from the first arrival to the last, ``waited`` the
    sum over ranks, and ``late_before`` the part of ``late_by`` by which the last rank had already
    begun its step later than the first.
    """

    collectives: pl.DataFrame
    ranks: pl.DataFrame  # in counted steps: times last, time it waited and was waited for
    unaligned: int  # collectives that only some ranks have
    shifted: bool  # the clocks of the ranks differ


class RanksAttribution:
    """Where the time of several ranks goes, and which rank the others wait for.

    The rank of a trace that does not record it is its position in the sequence.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        trace_of_rank = {}
        for place, trace in enumerate(traces):
            rank = place if trace.rank is None else trace.rank
            trace_of_rank[rank] = trace
        ranks = {rank: Attribution(trace_of_rank[rank]) for rank in sorted(trace_of_rank)}
        self.by_rank = ranks
        self.ranks = tuple(ranks.values())
        recorded_sizes = [trace.world_size or 0 for trace in traces]
        self.world_size = max([*recorded_sizes, max(ranks) + 1])
        self.alignment = _align(ranks) if len(ranks) > 1 else None
        rows = [
            {"rank": rank, **attribution.device.kernels}
            for rank, attribution in ranks.items()
            if attribution.device
        ]
        # By rank, from the first event of the device to the last.
        self.device = pl.DataFrame(rows, dict.fromkeys(("rank", "wall", *PARTS), pl.Int64))
        notices = (*missing_ranks(traces), *_rank_notices(ranks, self.alignment))
        self.notices = tuple(dict.fromkeys(notices))

    @property
    def samples_per_step(self) -> float | None:
        """The samples in a step of all processes, if every trace says those of its own.

        A rank without a trace is taken to have as many as the others.
        """
        samples = [rank.trace.samples_per_step for rank in self.ranks]
        known = [number for number in samples if number is not None]
        if len(known) < len(samples):
            return None
        return sum(known) / len(known) * max(self.world_size, len(known))


def _loader(trace: Trace, nesting: Nesting, steps: Steps, host: HostTime) -> LoaderTimes:
    """Return how long the counted steps waited for the loader, and how busy its threads were."""
    is_wait = trace.named(is_loader) & (trace.thread == steps.thread)
    names = np.unique(trace.name[is_wait]).tolist()
    wait = host.loader[steps.counted]
    wall = int(steps.wall[steps.counted].sum())
    begin = steps.begin[steps.counted]
    end = steps.end[steps.counted]
    workers = []
    for thread, rows in _loader_threads(trace, nesting, steps, host):
        union = Covered.union(trace.begin[rows], trace.ends(rows))
        busy = int(union.within(begin, end).sum())
        workers.append((thread.name or thread.tid, busy, busy / wall))
    schema = {"thread": pl.String, "busy": pl.Int64, "share": pl.Float64}
    return LoaderTimes(
        per_step=float(wait.mean()),
        share=int(wait.sum()) / wall,
        names=tuple(trace.names[code] for code in names),
        workers=pl.DataFrame(workers, schema=schema, orient="row"),
    )


def _loader_threads(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    host: HostTime,
) -> Iterator[tuple[Thread, Ints]]:
    """Yield the threads that load data, by their names or what they call, with their events."""
    loads = trace.named(lambda name: "_MultiProcessing" in name or "fetch" in name)
    for lane, thread in enumerate(trace.threads):
        if thread.is_device or lane == steps.thread or lane in host.helpers:
            continue
        is_of_lane = (nesting.lane == lane) & (trace.kind != Kind.other)
        rows = np.flatnonzero(is_of_lane)
        is_named = _LOADER_THREAD.search(thread.name.lower())
        if len(rows) and (is_named or loads[rows].any()):
            yield thread, rows


_LOADER_THREAD = re.compile("pt_data|pin_memory|dataloader|data_worker")


def _notices(
    trace: Trace,
    steps: Steps,
    device: DeviceTime | None,
    doing: pl.DataFrame,
) -> Iterator[str]:
    yield from trace.warnings
    yield from (f"Step {number} does not count: {why}." for number, why in steps.cut)
    if len(steps) == 1:
        yield f"There is only one step ({steps.how}), so it counts even if it is warm-up."
    elif steps.how != "ProfilerStep":
        yield f"The trace does not mark its steps; they were derived from {steps.how}."
    if device is not None and device.others:
        yield f"The trace has {device.others + 1} devices; times are of the busiest one."
    other = doing.filter(category="other")
    share = int(other["time"].sum()) / int(doing["time"].sum())
    if share > MUCH and device is None:
        # With a device, the host's work is not what takes the time.
        most = ", ".join(other["name"].head(3).to_list())
        yield f"{100 * share:.0f} % of the time has no category, mostly {most}."


def _rank_notices(ranks: dict[int, Attribution], alignment: Alignment | None) -> Iterator[str]:
    if alignment is not None and alignment.shifted:
        yield "The clocks of the ranks differ; they were aligned at the ends of collectives."
    if alignment is not None and alignment.unaligned:
        yield f"{count_text(alignment.unaligned, 'collective')} ran on only some of the ranks."
    where: dict[str, list[int]] = {}
    for rank, attribution in ranks.items():
        for notice in attribution.notices:
            where.setdefault(notice, []).append(rank)
    for notice, of in where.items():
        label = "" if len(of) == len(ranks) else f"Rank {', '.join(map(str, of))}: "
        yield f"{label}{notice}"


# The number of the step, the kind of collective, and its index among those in the step.
_KEY = ("step", "name", "index")
_KIND = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast|reduce|gather"
    r"|scatter|barrier|send|recv",
    re.IGNORECASE,
)


def _align(by_rank: dict[int, Attribution]) -> Alignment | None:
    """Align ranks on their collectives; None if they have none in common.

    Collectives of a step are matched by kind and order. Clocks are assumed to agree unless a rank
    seems to leave collectives before the last one arrives; then their ends are aligned.
    """
    on_device = all(len(collective_rows(attribution.trace)) for attribution in by_rank.values())
    origin = min(attribution.trace.origin for attribution in by_rank.values())
    tables = [
        _collectives(attribution, on_device, origin).with_columns(rank=pl.lit(rank))
        for rank, attribution in by_rank.items()
    ]
    every = pl.concat(tables)
    rows = every.filter(pl.len().over(_KEY) == len(by_rank))
    if not len(rows):
        return None
    shift = _shift(rows)
    moved = pl.col("came", "start") - pl.col("shift").fill_null(0)
    rows = rows.join(shift, on="rank", how="left").with_columns(moved)
    wait = pl.max("came") - pl.col("came")
    rows = rows.with_columns(pl.col("counted").all().over(_KEY), waited=wait.over(_KEY))
    if not on_device:
        of_ranks = [
            _while_idle(attribution.host, rows.filter(rank=rank))
            for rank, attribution in by_rank.items()
        ]
        rows = pl.concat(of_ranks)
    collectives = _arrivals(rows)
    n_unaligned = every.select(_KEY).n_unique() - len(collectives)
    is_shifted = bool(shift["shift"].to_numpy().any())
    return Alignment(collectives, _waits_of_ranks(rows), n_unaligned, is_shifted)


# The rows of the ranks that come first and last to a collective.
_FIRST = pl.col("came").arg_min()
_LAST = pl.col("came").arg_max()


def _waits_of_ranks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return for each rank the times it came last, how long it waited and was waited for."""
    is_last = pl.col("rank") == pl.col("rank").get(_LAST)
    waited_for = pl.when(is_last).then(pl.sum("waited"))
    rows = rows.with_columns(waited_for=waited_for.over(_KEY))
    totals = (pl.count("waited_for").alias("last"), pl.sum("waited_for", "waited"))
    return rows.filter("counted").group_by("rank").agg(*totals).sort("rank")


def _arrivals(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective, see `Alignment`."""
    rank = pl.col("rank")
    start = pl.col("start")
    late = pl.max("came") - pl.min("came")
    late_before = start.get(_LAST) - start.get(_FIRST)
    collectives = rows.group_by(_KEY, maintain_order=True).agg(
        pl.first("counted"),
        pl.min("came"),
        first_rank=rank.get(_FIRST),
        last_rank=rank.get(_LAST),
        late_by=late,
        late_before=late_before.clip(0, late),
        waited=pl.sum("waited"),
    )
    return collectives.sort("came", maintain_order=True)


def _while_idle(host: HostTime, rows: pl.DataFrame) -> pl.DataFrame:
    """Count the wait for a collective in another thread only while the host is idle."""
    waits = host.covered(host.category == Category.communication)
    begin = rows["begin"].to_numpy()
    end = begin + rows["waited"].to_numpy()
    return rows.with_columns(waited=waits.within(begin, end))


class _Calls(NamedTuple):
    """The collectives of a rank."""

    rows: Ints  # events
    issued: Ints  # when the host called them
    ends: Ints  # NOTHING if unknown


def _collectives(attribution: Attribution, on_device: bool, origin: int) -> pl.DataFrame:
    """Return the collectives within steps, on a clock that begins at ``origin``."""
    trace = attribution.trace
    steps = attribution.steps
    if on_device:
        calls = _collectives_of_device(attribution)
    else:
        calls = _collectives_of_host(trace, steps)
    place = steps.place(calls.issued)
    late = trace.origin - origin
    begin = trace.begin[calls.rows]
    end = pl.Series(calls.ends + late).set(pl.Series(calls.ends == NOTHING), None)
    columns = {
        "step": steps.number[place],
        "name": _collective_names(trace, calls.rows),
        "counted": steps.counted[place],
        "start": steps.begin[place] + late,
        "begin": begin,
        "came": begin + late,
        "end": end,
        "issued": calls.issued,
    }
    frame = pl.DataFrame(columns).filter(place >= 0).sort("issued", maintain_order=True)
    return frame.with_columns(index=pl.int_range(pl.len()).over("step", "name"))


def _collectives_of_device(attribution: Attribution) -> _Calls:
    trace = attribution.trace
    rows = collective_rows(trace)
    call = attribution.launch[rows]
    issued = np.where(call >= 0, trace.begin[call], trace.begin[rows])
    return _Calls(rows, issued, trace.ends(rows))


def _collectives_of_host(trace: Trace, steps: Steps) -> _Calls:
    """Return the calls of collectives; of traces without calls, the ranges that are named so."""
    is_range = trace.named(is_collective) & (trace.kind == Kind.annotation)
    is_call = trace.named(lambda name: name.startswith("c10d::"))
    is_call &= trace.kind == Kind.operator
    has_calls = is_call.any()
    rows = np.flatnonzero(is_call if has_calls else is_range)
    ends = trace.ends(rows)
    is_beside = is_range & (trace.thread != steps.thread)
    if has_calls and is_beside.any():
        # A call returns at once; the collectives run on another thread in the same order.
        started = np.flatnonzero(is_beside)
        are_matched = len(started) == len(rows)
        ends = trace.ends(started) if are_matched else np.full_like(ends, NOTHING)
    return _Calls(rows, trace.begin[rows], ends)


def _collective_names(trace: Trace, rows: Ints) -> pl.Series:
    """Return the kind of each collective, such as ``allreduce``, or else its name."""
    names = []
    for row in rows.tolist():
        name = trace.text(row)
        kind = _KIND.search(name)
        names.append(name if kind is None else kind[0].lower().replace("_", ""))
    return pl.Series(names, dtype=pl.String)


def _shift(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the offset of each rank's clock, by the collectives whose ends are known."""
    known = rows.filter(pl.col("end").is_not_null().all().over(_KEY))
    too_early = pl.min("end") < pl.max("came") - CLOCKS_DIFFER
    early = known.group_by(_KEY).agg(early=too_early)["early"]
    clocks_differ = 2 * int(early.sum()) > len(early)
    from_median = pl.col("end") - pl.col("end").median().over(_KEY)
    offset = from_median * int(clocks_differ)
    shifts = known.select("rank", shift=offset).group_by("rank").agg(pl.median("shift"))
    return shifts.cast({"shift": pl.Int64})
