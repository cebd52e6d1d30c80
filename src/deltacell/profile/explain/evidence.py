"""What stands beside the cause: evidence, advice, doubts, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from deltacell.profile.explain.account import WITHIN, Account, Table
from deltacell.profile.explain.judge import FEW, MUCH, late_rank
from deltacell.profile.explain.sentences import ADVICE, RUN_ADVICE, say
from deltacell.profile.explain.subject import (
    CATEGORIES,
    DEVICE_PARTS,
    TITLES,
    Subject,
    device_means,
)
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.host import NOT_RECORDED
from deltacell.profile.trace.trace import Kind
from deltacell.words import capital, count_text, short_name

ONE_PROGRAM = 0.5
"""Traces with less of their time in operations of the same names are of different programs."""

LOST = 0.02  # the share of launches without a kernel from which on events of the device were lost
ROWS = 50  # the most rows of a table of a trace


def advice_on(part: str, *, of_run: bool = False) -> str:
    """Return a part and what to try where it is slow."""
    known = ADVICE | RUN_ADVICE if of_run else ADVICE
    return f"{part}: {known.get(part, known['other'])}"


def category_advice(subject: Subject) -> list[str]:
    """Return what to try in the largest categories.

    With a device, what the host is busy with is not what takes the time, except for the loader.
    """
    account, of_run, traces = subject.account, subject.run is not None, subject.traces
    parts = sorted(account.parts, key=lambda name: -account.parts[name])[:3]
    if not of_run and traces is not None and traces.ranks[0].device is not None:
        parts = [part for part in ("data loading",) if part in account.parts]
    worth = [part for part in parts if account.parts[part] > MUCH * account.step_s]
    if account.epoch_s:
        outside = sorted(account.outside, key=lambda name: -account.outside[name])
        worth += [part for part in outside if account.outside[part] > MUCH * account.epoch_s]
    return [advice_on(part, of_run=of_run) for part in dict.fromkeys(worth)]


def trace_advice(traces: RanksAttribution) -> Iterator[str]:
    """Return what to try by what the device waits for; `category_advice` has the categories."""
    one, parts = traces.ranks[0], device_means(traces, PARTS)
    if one.device is not None:
        wall = sum(parts.values())
        for reason, time in one.device.idle.select("reason", "time").rows():
            if time / 1e9 / one.n_counted > MUCH * wall and f"idle {reason}" in ADVICE:
                yield f"idle device: {ADVICE[f'idle {reason}']}"
        if parts["communication"] > MUCH * wall:
            yield advice_on("communication")
        if parts["compute"] > 0.7 * wall:
            yield advice_on("computing")
    late = late_rank(traces)
    if late is not None and late.waited_share > MUCH / 2:
        where = f" ({late.category})" if late.category else ""
        yield f"rank {late.rank}: Give it less work, or find what delays it{where}."


def trace_evidence(traces: RanksAttribution) -> Iterator[str]:
    """Return what else a trace shows, in sentences."""
    loader, shares, parts = traces.ranks[0].loader, traces.shares, device_means(traces, PARTS)
    if parts:
        wall, of = sum(parts.values()), [(DEVICE_PARTS[part], s) for part, s in parts.items()]
        said = [say("part", part=part, seconds=s, share=s / wall) for part, s in of]
        yield say("device", parts=said)
    if shares and len(traces.ranks) > 1:
        yield say("shares", **shares)
    late = late_rank(traces)
    if late is not None and 0.01 < late.waited_share <= MUCH:
        yield f"{capital(late.sentence)}."
    if loader.names:
        yield say("loader", seconds=loader.per_step / 1e9, share=loader.share)
    else:
        yield say("no loader")


def pair_evidence(a: RanksAttribution, b: RanksAttribution) -> Iterator[str]:
    """Return how the waits for the loader and the kernels of two compare."""
    loaders = (a.ranks[0].loader, b.ranks[0].loader)
    if all(one.names for one in loaders):
        yield say("loaders", a=loaders[0].per_step / 1e9, b=loaders[1].per_step / 1e9)
    in_a, in_b = (device_means(one, ("kernels",)).get("kernels") for one in (a, b))
    if in_a is not None and in_b is not None:
        same = abs(in_a - in_b) <= 0.02 * max(in_a, in_b)
        yield say("kernels", a=in_a, b=in_b, same=": the work of the device is the same" * same)


def doubts_of_one(subject: Subject) -> list[str]:
    """Return why the account of one is to be doubted."""
    found, account = [], subject.account
    if account.residual > WITHIN:
        found.append(say("residual", of=account.name, share=account.residual))
    if subject.traces is not None and subject.run is None:
        found += dict.fromkeys(d for one in subject.traces.ranks for d in _trace_doubts(one))
    return found


def doubts_of_two(a: Subject, b: Subject) -> Iterator[str]:
    """Return why a comparison is to be doubted, the doubts of either included."""
    names = {"a": a.name, "b": b.name}
    source_a, source_b = a.account.source, b.account.source
    mode_a, mode_b = (one.account.facts.get("mode") for one in (a, b))
    if source_a != source_b:
        yield say("other source", source_a=source_a, source_b=source_b, **names)
    else:
        if mode_a != mode_b:
            yield say("other mode", mode_a=mode_a, mode_b=mode_b, **names)
        if a.run is None and a.traces is not None and b.traces is not None:
            one, other = a.traces.ranks[0], b.traces.ranks[0]
            if min(_known(one, other), _known(other, one)) < ONE_PROGRAM:
                yield say("other program", **names)
            devices = [view.trace.device_name for view in (one, other)]
            if devices[0] != devices[1] and None not in devices:
                yield say("other device", devices=[short_name(str(x)) for x in devices])
            if ranks := rank_difference(a, b):
                yield ranks
    for subject in (a, b):
        yield from (f"{subject.name}: {doubt}" for doubt in doubts_of_one(subject))


def rank_difference(a: Subject, b: Subject) -> str | None:
    """Return that the traces of two are of unlike ranks, or of runs of unlike size."""
    if a.traces is None or b.traces is None:
        return None
    seen = [(v.world_size, [o.trace.rank for o in v.ranks]) for v in (a.traces, b.traces)]
    which = [
        f"{len(ranks)} of {count_text(size, 'rank')}"
        if len(ranks) > 1
        else f"rank {ranks[0] or 0} of {size}"
        for size, ranks in seen
    ]
    return None if seen[0] == seen[1] else f"{a.name} is {which[0]}, {b.name} is {which[1]}"


def _trace_doubts(one: Attribution) -> Iterator[str]:
    trace, steps = one.trace, one.steps
    if trace.damage:
        yield say("damage", damage=trace.damage)
    elif (lost := _lost(one)) > LOST:
        yield say("lost", share=lost)
    if steps.how != "ProfilerStep":
        yield say("no marks", how=steps.how)
    if one.n_counted < FEW:
        yield say("few steps", steps=one.n_counted)
    if trace.strange:
        events = [f"{count:,} of '{short_name(name)}'" for name, count in trace.strange.items()]
        yield say("unknown events", events=events[:3])


def _lost(one: Attribution) -> float:
    """Return the share of kernel launches whose kernel is missing."""
    trace = one.trace
    calls = trace.named(lambda name: name.endswith("LaunchKernel"))
    calls &= (trace.kind == Kind.runtime) & (trace.correlation >= 0)
    if one.device is None or not calls.any():
        return 0.0
    done = trace.correlation[trace.kind == Kind.kernel]
    return 1 - float(np.isin(trace.correlation[calls], done).mean())


def _known(one: Attribution, other: Attribution) -> float:
    """Return the share of the time of one in operations whose names the other has too."""
    named = one.operations.filter(~pl.col("operation").is_in([NOT_RECORDED, "ProfilerStep"]))
    known = named.filter(pl.col("operation").is_in(other.operations["operation"].to_list()))
    whole = int(named["time"].sum())
    return int(known["time"].sum()) / whole if whole else 0.0


def category_table(account: Account) -> pl.DataFrame:
    """Return the time of each category: per step, per sample, per epoch, and its shares."""
    samples, steps, epoch = account.samples_per_step, account.steps_per_epoch, account.epoch_s
    rows = []
    for part in dict.fromkeys([*CATEGORIES, *account.parts, *account.outside]):
        seconds, outside = account.parts.get(part, 0.0), account.outside.get(part, 0.0)
        if not seconds and not outside:
            continue
        in_epoch = steps * seconds + outside if steps else None
        row = {
            "category": part,
            "ms per step": 1e3 * seconds,
            "µs per sample": 1e6 * seconds / samples if samples else None,
            "share of a step": seconds / account.step_s if account.step_s else 0.0,
            "s per epoch": in_epoch,
            "share of an epoch": in_epoch / epoch if in_epoch is not None and epoch else None,
        }
        rows.append({name: value for name, value in row.items() if value is not None})
    return pl.DataFrame(rows)


def change_table(a: Mapping[str, float], b: Mapping[str, float]) -> pl.DataFrame:
    """Return the seconds of what either does and how they change, the largest change first."""
    both = [(name, a.get(name, 0.0), b.get(name, 0.0)) for name in {**a, **b}]
    rows = sorted(((*row, row[2] - row[1]) for row in both), key=lambda row: (-abs(row[3]), row[0]))
    numbers = dict.fromkeys(("a_s", "b_s", "change_s"), pl.Float64())
    return pl.DataFrame(rows[:ROWS], schema={"name": pl.String(), **numbers}, orient="row")


def trace_tables(traces: RanksAttribution, *, suffix: str = "", of: str = "") -> list[Table]:
    """Return what a trace shows, as tables; empty ones are left out.

    Of several ranks, tables of one host or device are those of the first.
    """
    one, found = traces.ranks[0], []
    steps, work, device = one.n_counted, one.work, one.device
    rank = f", rank {one.trace.rank}" if len(traces.ranks) > 1 else ""

    def per(column: str, name: str) -> pl.Expr:
        return (pl.col(column) / steps).alias(name)

    def ms(column: str, name: str = "ms per step") -> pl.Expr:
        return (pl.col(column) / (1e6 * (steps if "per step" in name else 1))).alias(name)

    def share(name: str) -> pl.Expr:
        return (pl.col("time") / pl.max_horizontal(pl.col("time").sum(), 1)).alias(name)

    def named(column: str, name: str) -> pl.Expr:
        return pl.col(column).alias(name)

    def add(
        key: str, title: str, frame: pl.DataFrame, *columns: str | pl.Expr, of_all: bool = False
    ) -> None:
        if len(frame):
            shown = frame.select(*columns).head(ROWS)
            found.append(Table(key + suffix, f"{title}{'' if of_all else rank}{of}", shown))

    def add_owners(key: str, title: str, frame: pl.DataFrame) -> None:
        columns = {
            "count": per("count", "kernels per step"),
            "time": ms("time", "device ms per step"),
            "total": (pl.col("total") / 1e6 / steps).alias("with all inside"),
            "host": ms("host", "host ms per step"),
            "host_total": (pl.col("host_total") / 1e6 / steps).alias("host with all inside"),
        }
        rows = frame.head(ROWS)
        kept = [name for name in columns if rows[name].sum()]
        if not frame["host"].sum():
            kept = [name for name in kept if "host" not in name]
        add(key, title, rows, "name", *(columns[name] for name in kept))

    columns: tuple[str | pl.Expr, ...]
    title = pl.col("category").replace(TITLES)
    times, calls = per("count", "times per step"), per("count", "calls per step")
    add_owners("operators", "device time by operator", work.operators)
    columns = ("name", "part", times, ms("time"), share("share of device time"))
    add("kernels", "device time by kernel", work.kernels, *columns)
    add_owners("modules", "time by module", work.modules)
    columns = ("operation", title, calls, ms("time"), named("share", "share of a step"))
    add("operations", "operations of the host by self time", one.operations, *columns)
    add(
        "roofline",
        "products against the peak of the device, estimated",
        work.roofline,
        *("operation", "sizes", "type", calls, "gflop", ms("time")),
        *((pl.col("least") / 1e6 / steps).alias("ms at the peak"), "share of the peak"),
    )
    parts = [name for name in traces.device.columns if name not in ("rank", "wall")]
    shares = [(pl.col(part) / pl.col("wall")).alias(f"share {part}") for part in parts]
    about = "the device of each rank, from its first event to its last"
    add("device", about, traces.device, "rank", ms("wall", "ms"), *shares, of_all=True)
    if device is not None:
        gaps = per("gaps", "gaps per step")
        columns = (named("meaning", "reason"), ms("time"), gaps, share("share of idle"))
        add("idle", "why the device is idle", device.idle, *columns)
        add(
            "gaps",
            "longest idle gaps of the device",
            device.gaps.head(20),
            *("step", ms("length", "ms"), "reason", named("host", "the host was in"), title),
            *(named("next", "what ran next"), named("launch", "launched by")),
        )
    columns = ("operation", "call", "site", "range", named("per_step", "times per step"))
    add("syncs", "where the host waits for the device", one.syncs, *columns, ms("time"))
    if device is not None:
        columns = ("kernel", times, ms("time"), ms("launch_time", "ms of launches per step"))
        add("small", "kernels shorter than their launch", device.small, *columns)
    on_host = pl.col("part").replace(TITLES)
    part = pl.when(pl.col("where") == "host").then(on_host).otherwise("part").alias("part")
    columns = ("where", part, ms("time", "ms"), share("share of the step"))
    add("critical_path", "critical path of a typical step", one.critical_path.parts, *columns)
    if traces.alignment is not None:
        waited = (ms("waited_for", "ms it was waited for"), ms("waited", "ms it waited"))
        columns = ("rank", named("last", "times last"), *waited)
        add("waited_for", "ranks: who is waited for", traces.alignment.ranks, *columns, of_all=True)
        add(
            "collectives",
            "collectives by how late the last rank comes",
            traces.alignment.collectives.sort("late_by", descending=True),
            *("step", "name", named("index", "number"), named("first_rank", "first")),
            *(named("last_rank", "last"), ms("late_by", "ms late")),
            *(named("doing", "the last was in"), title),
            of_all=True,
        )
    wall = (ms("wall", "ms"), ms("loader", "ms in the loader"))
    add("steps", "steps", one.per_step, "number", "counted", *wall)
    workers = one.loader.workers
    add("workers", "threads of the loader", workers, "thread", ms("busy", "ms busy"), "share")
    schema = {"device": pl.String(), "MiB": pl.Float64(), "step": pl.Int64(), "during": pl.String()}
    peaks = [(peak.device, peak.size / 2**20, peak.step, peak.during) for peak in one.memory]
    add("memory", "memory peaks", pl.DataFrame(peaks, schema=schema, orient="row"), pl.all())
    return found
