"""Attribution: where the time of a trace goes, for one rank or for several side by side.

A collective ends on all ranks after the last one has arrived. So its length shows how long a rank
waited, not how slow it was; its beginning shows which rank was late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError
from deltacell.base.text import count_text
from deltacell.profile.trace import device as devices
from deltacell.profile.trace import host as hosts
from deltacell.profile.trace.calls import Calls, find_calls
from deltacell.profile.trace.components import StepComponents, device_parts, host_parts
from deltacell.profile.trace.device import PARTS, DeviceTime, collective_rows
from deltacell.profile.trace.host import Category, HostTime, is_collective, is_loader
from deltacell.profile.trace.read import missing_ranks
from deltacell.profile.trace.repeats import spread_of_kernels, spread_of_operators
from deltacell.profile.trace.self_time import Covered, Nesting, nest
from deltacell.profile.trace.steps import Steps, find_steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace
from deltacell.profile.trace.typical import typical_step
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
            what = "no event of the trace has a duration above 0; check the profiler's schedule"
            raise InputError(what, code="no-events", where=trace.path)
        self.trace = trace
        self.nesting = nesting = nest(trace)
        self.launch = devices.launches(trace)  # the host's call behind each event of the device
        self.steps = steps = find_steps(trace, self.launch)
        self.host = host = hosts.host_time(trace, nesting, steps)
        self.doing = host.spent(steps)  # what the host did; adds up to the wall time
        self.device = None
        if (trace.on_device & (trace.duration >= 0)).any():
            self.device = DeviceTime(trace, steps, host, self.launch)
        columns = {name: getattr(steps, name) for name in ("number", "counted", "wall")}
        self.per_step = pl.DataFrame({**columns, "loader": host.loader})  # all steps
        self.loader = _loader(trace, nesting, steps, host)
        self.syncs = hosts.sync_points(trace, nesting, steps)  # the host waits for the device
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
        return float(self.step_times.mean() - self.steps.wall[self.steps.counted].mean())

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
        by_rank = {
            i if attribution.rank is None else attribution.rank: attribution
            for i, attribution in enumerate(traces)
        }
        ranks = {number: Attribution(by_rank[number]) for number in sorted(by_rank)}
        self.by_rank = ranks
        self.ranks = tuple(ranks.values())
        self.world_size = max([trace.world_size or 0 for trace in traces] + [max(ranks) + 1])
        self.alignment = _align(ranks) if len(ranks) > 1 else None
        rows = [
            {"rank": i, **attribution.device.kernels}
            for i, attribution in ranks.items()
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
    seen = np.unique(trace.name[trace.named(is_loader) & (trace.thread == steps.thread)])
    wait = host.loader[steps.counted]
    wall = int(steps.wall[steps.counted].sum())
    begin = steps.begin[steps.counted]
    end = steps.end[steps.counted]
    loads = trace.named(lambda name: "_MultiProcessing" in name or "fetch" in name)
    workers = []
    for lane, thread in enumerate(trace.threads):
        if thread.is_device or lane == steps.thread or lane in host.helpers:
            continue
        of_lane = np.flatnonzero((nesting.lane == lane) & (trace.kind != Kind.other))
        named = re.search("pt_data|pin_memory|dataloader|data_worker", thread.name.lower())
        if len(of_lane) and (named or loads[of_lane].any()):
            union = Covered.union(trace.begin[of_lane], trace.ends(of_lane))
            busy = int(union.within(begin, end).sum())
            workers.append((thread.name or thread.tid, busy, busy / wall))
    schema = {"thread": pl.String, "busy": pl.Int64, "share": pl.Float64}
    return LoaderTimes(
        per_step=float(wait.mean()),
        share=int(wait.sum()) / wall,
        names=tuple(trace.names[code] for code in seen.tolist()),
        workers=pl.DataFrame(workers, schema=schema, orient="row"),
    )


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
    every = pl.concat(
        _collectives(attribution, on_device, origin).with_columns(rank=pl.lit(rank))
        for rank, attribution in by_rank.items()
    )
    rows = every.filter(pl.len().over(_KEY) == len(by_rank))
    if not len(rows):
        return None
    shift = _shift(rows)
    moved = pl.col("came", "start") - pl.col("shift").fill_null(0)
    rows = rows.join(shift, on="rank", how="left").with_columns(moved)
    came = pl.col("came")
    start = pl.col("start")
    rank = pl.col("rank")
    first = came.arg_min()
    last = came.arg_max()
    late = came.max() - came.min()
    rows = rows.with_columns(
        pl.col("counted").all().over(_KEY),
        waited=(came.max() - came).over(_KEY),
    )
    if not on_device:
        rows = pl.concat(
            _while_idle(attribution.host, rows.filter(rank=i)) for i, attribution in by_rank.items()
        )
    waited_for = pl.when(rank == rank.get(last)).then(pl.sum("waited"))
    rows = rows.with_columns(waited_for=waited_for.over(_KEY))
    collectives = rows.group_by(_KEY, maintain_order=True).agg(
        pl.first("counted"),
        pl.min("came"),
        first_rank=rank.get(first),
        last_rank=rank.get(last),
        late_by=late,
        late_before=(start.get(last) - start.get(first)).clip(0, late),
        waited=pl.sum("waited"),
    )
    totals = pl.count("waited_for").alias("last"), pl.sum("waited_for", "waited")
    ranks = rows.filter("counted").group_by("rank").agg(*totals).sort("rank")
    unaligned = every.select(_KEY).n_unique() - len(collectives)
    is_shifted = bool(shift["shift"].to_numpy().any())
    return Alignment(collectives.sort("came", maintain_order=True), ranks, unaligned, is_shifted)


def _while_idle(host: HostTime, rows: pl.DataFrame) -> pl.DataFrame:
    """Count the wait for a collective in another thread only while the host is idle."""
    waits = host.covered(host.category == Category.communication)
    begin = rows["begin"].to_numpy()
    return rows.with_columns(waited=waits.within(begin, begin + rows["waited"].to_numpy()))


def _collectives(one: Attribution, on_device: bool, origin: int) -> pl.DataFrame:
    trace = one.trace
    steps = one.steps
    if on_device:
        rows = collective_rows(trace)
        ends = trace.ends(rows)
        call = one.launch[rows]
        issued = np.where(call >= 0, trace.begin[call], trace.begin[rows])
    else:
        ranges = trace.named(is_collective) & (trace.kind == Kind.annotation)
        calls = trace.named(lambda name: name.startswith("c10d::")) & (trace.kind == Kind.operator)
        rows = np.flatnonzero(calls if calls.any() else ranges)
        issued = trace.begin[rows]
        ends = trace.ends(rows)
        if calls.any() and (beside := ranges & (trace.thread != steps.thread)).any():
            # A call returns at once; the collectives run on another thread in the same order.
            started = np.flatnonzero(beside)
            ends = trace.ends(started) if len(started) == len(rows) else np.full_like(ends, NOTHING)
    place = steps.place(issued)
    late = trace.origin - origin
    columns = {
        "step": steps.number[place],
        "name": _collective_names(trace, rows),
        "counted": steps.counted[place],
        "start": steps.begin[place] + late,
        "begin": trace.begin[rows],
        "came": trace.begin[rows] + late,
        "end": pl.Series(ends + late).set(pl.Series(ends == NOTHING), None),
        "issued": issued,
    }
    frame = pl.DataFrame(columns).filter(place >= 0).sort("issued", maintain_order=True)
    return frame.with_columns(index=pl.int_range(pl.len()).over("step", "name"))


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
    differ = 2 * int(early.sum()) > len(early)
    offset = (pl.col("end") - pl.col("end").median().over(_KEY)) * int(differ)
    shifts = known.select("rank", shift=offset).group_by("rank").agg(pl.median("shift"))
    return shifts.cast({"shift": pl.Int64})
