"""What stands beside the cause: evidence, advice, doubts, and the tables of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from deltacell.profile.explain.account import Account, Table
from deltacell.profile.explain.judge import FEW, MUCH, late_rank
from deltacell.profile.explain.subject import (
    CATEGORIES,
    DEVICE_PARTS,
    Subject,
    device_means,
    device_parts,
    title_of,
)
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.host import NOT_RECORDED
from deltacell.profile.trace.trace import Kind
from deltacell.words import capital, count_text, listed, seconds_text, share_text, short_name

ONE_PROGRAM = 0.5
"""Traces with less of their time in operations of the same names are of different programs."""

LOST = 0.02
"""The share of launches without a kernel from which on events of the device were lost."""

ROWS = 50
"""The most rows of a table without a bound of its own."""

MACHINE_ADVICE = (
    "the machine: See what else ran on it at that time, and train again while it is quiet."
)
"""Advice where a run became slower in every part."""

CAUSE_ADVICE = {
    "compute": "Profile the named operation alone; look at its sizes, types and algorithm.",
    "communication": "Overlap it with the backward, make it smaller, or find who comes late.",
    "copies": "Pin the memory of batches, copy without waiting, and keep on the device what stays.",
    "idle": "Take what the host does meanwhile out of the step, or let workers do it.",
    "uniform": "Compare the clocks, the power limits and the load of both machines.",
    "machine": "See what else ran on the machine, and record both again while it is quiet.",
    "batch": "Compare per sample, or with the same batch.",
    "type": "Compare with the same precision.",
    "recompute": "Checkpoint fewer layers where memory allows it.",
}
"""Advice by the kind of cause."""

_ANYWHERE = {
    "data loading": "Let more loader workers read ahead, or make what a sample carries smaller: "
    "what is the same for all samples need not go through the loader.",
    "transfer to device": "Pin the memory of batches and send them without waiting; send indices "
    "and keep what they point to on the device.",
    "graph preparation": "Prepare graphs once and keep them, instead of for every batch.",
    "forward": "See which part of the model it is by named ranges; try a larger batch, lower "
    "precision or torch.compile.",
    "loss": "Look for what the loss computes over all pairs, and for values it copies to the host.",
    "backward": "Backward follows forward: what makes that cheaper helps here; recomputation of "
    "activations costs time here.",
    "gradient communication": "Accumulate gradients over several batches, use larger buckets, or "
    "find the rank that the others wait for.",
    "optimizer": "Use the fused or foreach variant of the optimizer.",
    "logging and callbacks": "Log less often, and do not copy values of the device to the host in "
    "every step.",
    "validation": "Validate less often, or on fewer samples.",
    "checkpoints and figures": "Draw figures and write checkpoints less often.",
    "other": "Give the work a name with torch.profiler.record_function, or record stacks.",
    "device idle": "The device waits for the host: launch fewer and larger kernels (a larger "
    "batch, torch.compile, CUDA graphs) and remove synchronisation.",
}
_HERE = {
    "data loading": "`deltacell train ... mode=data` shows the loader alone.",
    "gradient communication": "Try a larger data.batch_size, optimizer.accumulate, or fewer ranks.",
    "validation": "Try a larger trainer.validate_every.",
    "checkpoints and figures": "trainer.figures_every=0 draws no figures, and a larger "
    "trainer.checkpoint_every_minutes writes fewer checkpoints.",
    "other": "`deltacell train ... profiler.trace=true` shows what is in it.",
}
_IDLE_ADVICE = {
    "sync": "remove what makes the host wait for the device, such as .item() and .cpu() in a step.",
    "launch": "launch fewer and larger kernels: a larger batch, torch.compile, CUDA graphs, fused "
    "optimizers.",
    "host": "move the work of the host off the step, or to workers.",
}


def advice_on(part: str, *, of_run: bool) -> str:
    """Return what to try where a part is slow."""
    here = _HERE if of_run else {}
    return here.get(part) or _ANYWHERE.get(part, _ANYWHERE["other"])


def category_advice(subject: Subject) -> list[str]:
    """Return what to try in the largest categories.

    With a device, what the host is busy with is not what takes the time, except for the loader.
    """
    account, of_run, traces = subject.account, subject.run is not None, subject.traces
    parts = sorted(account.parts, key=lambda name: -account.parts[name])
    worth = [part for part in parts[:3] if account.parts[part] > MUCH * account.step_s]
    if not of_run and traces is not None and traces.ranks[0].device is not None:
        enough = account.parts.get("data loading", 0.0) > MUCH * account.step_s
        worth = ["data loading"] if enough else []
    elif account.epoch_s:
        outside = sorted(account.outside, key=lambda name: -account.outside[name])
        worth += [part for part in outside if account.outside[part] > MUCH * account.epoch_s]
    return [f"{part}: {advice_on(part, of_run=of_run)}" for part in dict.fromkeys(worth)]


def trace_advice(traces: RanksAttribution) -> Iterator[str]:
    """Return what to try by what the device waits for; `category_advice` has the categories."""
    one, parts = traces.ranks[0], device_parts(traces)
    if one.device is not None and parts:
        wall = sum(parts.values())
        for reason, time in one.device.idle.select("reason", "time").rows():
            if time / 1e9 / one.n_counted > MUCH * wall and reason in _IDLE_ADVICE:
                yield f"idle device: {_IDLE_ADVICE[reason]}"
        if parts["communication"] > MUCH * wall:
            yield (
                "communication: overlap it with the backward (buckets), make it smaller, or find "
                "who comes late."
            )
        if parts["compute"] > 0.7 * wall:
            yield (
                "computing: the device is busy, so only less or cheaper work helps: lower "
                "precision, torch.compile, a cheaper algorithm."
            )
    late = late_rank(traces)
    if late is not None and late.waited_share > MUCH / 2:
        where = f" ({late.category})" if late.category else ""
        yield f"rank {late.rank}: give it less work, or look at what delays it{where}."


def trace_evidence(traces: RanksAttribution) -> Iterator[str]:
    """Return what else a trace shows, in sentences."""
    one, shares = traces.ranks[0], traces.shares
    parts = device_parts(traces)
    if parts:
        wall = sum(parts.values())
        told = [
            f"{DEVICE_PARTS[p]} {seconds_text(s)} ({share_text(s / wall)})"
            for p, s in parts.items()
        ]
        yield f"In a step the device is {listed(told)}, which adds up to it."
    if shares and len(traces.ranks) > 1:
        yield (
            "From the first event of the device to the last, on average over ranks: idle "
            f"{100 * shares['idle']:.1f} %, communication and copies that nothing hides "
            f"{100 * shares['non_compute']:.1f} %, compute {100 * shares['compute']:.1f} %."
        )
    late = late_rank(traces)
    if late is not None and 0.01 < late.waited_share <= MUCH:
        yield f"{capital(late.sentence)}."
    if one.loader.names:
        yield (
            f"The training waits {seconds_text(one.loader.per_step / 1e9)} per step for its loader "
            f"({share_text(one.loader.share)})."
        )
    else:
        yield "The trace has no range of a loader, so a wait for batches does not show in it."
    steps = one.n_counted
    if len(one.syncs):
        count, time = float(one.syncs["per_step"].sum()), int(one.syncs["time"].sum()) / 1e9 / steps
        top = one.syncs.row(0, named=True)
        site = "" if top["site"] is None else f" at {short_name(top['site'])}"
        yield (
            f"The host waits for the device at {count:.3g} sync points per step, "
            f"{seconds_text(time)} in all; the longest are of {short_name(top['operation'])}{site}."
        )
    if one.device is not None and len(one.device.small):
        launched = int(one.device.steps.filter("counted")["launches"].sum())
        small = int(one.device.small["count"].sum())
        if launched and small >= MUCH * launched:
            yield (
                f"{small / steps:,.0f} of {launched / steps:,.0f} kernels per step are shorter "
                "than the call that launches them."
            )


def pair_evidence(a: RanksAttribution, b: RanksAttribution) -> Iterator[str]:
    """Return how the waits for the loader and the kernels of two compare."""
    loaders = (a.ranks[0].loader, b.ranks[0].loader)
    if all(one.names for one in loaders):
        times = [seconds_text(one.per_step / 1e9) for one in loaders]
        yield f"Waiting for the loader takes {times[0]} against {times[1]} per step."
    kernels = [device_means(one, ("kernels",)).get("kernels") for one in (a, b)]
    if kernels[0] is not None and kernels[1] is not None:
        same = abs(kernels[0] - kernels[1]) <= 0.02 * max(kernels[0], kernels[1])
        yield (
            f"Kernels launched in a step take {seconds_text(kernels[0])} against "
            f"{seconds_text(kernels[1])}{': the work of the device is the same' if same else ''}."
        )


def doubts_of_one(subject: Subject) -> list[str]:
    """Return why the account of one is to be doubted."""
    found = []
    account = subject.account
    if not account.adds_up:
        missed = share_text(account.residual)
        found.append(f"the parts of {account.name} miss its wall time by {missed}")
    if subject.traces is not None and subject.run is None:
        found += dict.fromkeys(d for one in subject.traces.ranks for d in _trace_doubts(one))
    return found


def doubts_of_two(a: Subject, b: Subject) -> Iterator[str]:
    """Return why a comparison is to be doubted, the doubts of either included."""
    modes = [one.account.facts.get("mode") for one in (a, b)]
    if a.account.source != b.account.source:
        yield (
            f"{a.name} is a {a.account.source} and {b.name} a {b.account.source}, which count "
            "differently"
        )
    else:
        if modes[0] != modes[1]:
            yield (
                f"{a.name} was run in mode '{modes[0]}' and {b.name} in mode '{modes[1]}', so the "
                "gap is a marginal cost, which is a share of the step only where nothing overlaps"
            )
        if a.run is None and a.traces is not None and b.traces is not None:
            one, other = a.traces.ranks[0], b.traces.ranks[0]
            if _in_common(one, other) < ONE_PROGRAM:
                yield f"{a.name} and {b.name} are different programs"
            devices = [view.trace.device_name for view in (one, other)]
            if devices[0] != devices[1] and None not in devices:
                yield f"the devices differ ({listed([short_name(str(x)) for x in devices])})"
            if difference := rank_difference(a, b):
                yield difference
    for subject in (a, b):
        yield from (f"{subject.name}: {doubt}" for doubt in doubts_of_one(subject))


def rank_difference(a: Subject, b: Subject) -> str | None:
    """Return that the traces of two are of unlike ranks, or of runs of unlike size."""
    if a.traces is None or b.traces is None:
        return None
    seen = [(v.world_size, [o.trace.rank for o in v.ranks]) for v in (a.traces, b.traces)]
    if seen[0] == seen[1]:
        return None
    told = [
        f"{one.name} is "
        + (
            f"{len(numbers)} of {count_text(size, 'rank')}"
            if len(numbers) > 1
            else f"rank {numbers[0] or 0} of {size}"
        )
        for one, (size, numbers) in zip((a, b), seen, strict=True)
    ]
    return ", ".join(told)


def _trace_doubts(one: Attribution) -> Iterator[str]:
    trace, steps = one.trace, one.steps
    if trace.damage:
        yield f"events were lost ({trace.damage})"
    elif (lost := _lost(one)) > LOST:
        yield f"{share_text(lost)} of the launches have no kernel in the trace, so events were lost"
    if steps.how != "ProfilerStep":
        yield f"the trace does not mark its steps; they were found from {short_name(steps.how)}"
    if one.n_counted < FEW:
        yield f"only {count_text(one.n_counted, 'step was', 'steps were')} measured"
    if trace.strange:
        told = [f"{count:,} of '{short_name(name)}'" for name, count in trace.strange.items()]
        yield f"events of unknown categories were left out ({listed(told[:3])})"


def _lost(one: Attribution) -> float:
    """Return the share of kernel launches whose kernel is missing."""
    trace = one.trace
    calls = trace.named(lambda name: name.endswith("LaunchKernel"))
    calls &= (trace.kind == Kind.runtime) & (trace.correlation >= 0)
    if one.device is None or not calls.any():
        return 0.0
    done = trace.correlation[trace.kind == Kind.kernel]
    return 1 - float(np.isin(trace.correlation[calls], done).mean())


def _in_common(a: Attribution, b: Attribution) -> float:
    """Return the share of the time of either whose operations the other has too, the smaller one.

    Names of operations are what tells one program from another.
    """
    shares = []
    for one, other in ((a, b), (b, a)):
        named = one.operations.filter(~pl.col("operation").is_in([NOT_RECORDED, "ProfilerStep"]))
        known = named.filter(pl.col("operation").is_in(other.operations["operation"].to_list()))
        whole = int(named["time"].sum())
        shares.append(int(known["time"].sum()) / whole if whole else 0.0)
    return min(shares)


def category_table(account: Account) -> pl.DataFrame:
    """Return the time of each category: per step, per sample, per epoch, and its shares."""
    rows = []
    samples, steps, epoch = account.samples_per_step, account.steps_per_epoch, account.epoch_s
    for part in dict.fromkeys([*CATEGORIES, *account.parts, *account.outside]):
        seconds, outside = account.parts.get(part, 0.0), account.outside.get(part, 0.0)
        if not seconds and not outside:
            continue
        in_epoch = None if not steps else steps * seconds + outside
        rows.append(
            {
                "category": part,
                "ms per step": 1e3 * seconds,
                "µs per sample": 1e6 * seconds / samples if samples else None,
                "share of a step": seconds / account.step_s if account.step_s else 0.0,
                "s per epoch": in_epoch,
                "share of an epoch": in_epoch / epoch if in_epoch is not None and epoch else None,
            }
        )
    numbers = (
        "ms per step",
        "µs per sample",
        "share of a step",
        "s per epoch",
        "share of an epoch",
    )
    schema = {"category": pl.String(), **dict.fromkeys(numbers, pl.Float64())}
    found = pl.DataFrame(rows, schema=schema)
    return found.drop(name for name in found.columns if found[name].null_count() == len(found))


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
    one = traces.ranks[0]
    steps = one.n_counted

    def per(column: str, name: str) -> pl.Expr:
        return (pl.col(column) / steps).alias(name)

    def ms(column: str, name: str = "ms per step", by: float = 1e6 * steps) -> pl.Expr:
        return (pl.col(column) / by).alias(name)

    def share(frame: pl.DataFrame, name: str) -> pl.Expr:
        return (pl.col("time") / max(int(frame["time"].sum()), 1)).alias(name)

    def owned(frame: pl.DataFrame) -> pl.DataFrame:
        shown = frame.head(ROWS).select(
            "name",
            per("count", "kernels per step"),
            ms("time", "device ms per step"),
            ms("total", "with all inside"),
            ms("host", "host ms per step"),
            ms("host_total", "host with all inside"),
        )
        has_host = bool(frame["host"].sum())
        return shown.drop(
            n for n in shown.columns[1:] if not shown[n].sum() or ("host" in n and not has_host)
        )

    title = pl.col("category").map_elements(title_of, return_dtype=pl.String)
    work, path = one.work, one.critical_path.parts
    found = [
        ("operators", "device time by operator", owned(work.operators)),
        (
            "kernels",
            "device time by kernel",
            work.kernels.head(ROWS).select(
                "name",
                "part",
                per("count", "times per step"),
                ms("time"),
                share(work.kernels, "share of device time"),
            ),
        ),
        ("modules", "time by module", owned(work.modules)),
        (
            "operations",
            "operations of the host by self time",
            one.operations.head(ROWS).select(
                "operation",
                title,
                per("count", "calls per step"),
                ms("time"),
                pl.col("share").alias("share of a step"),
            ),
        ),
        (
            "roofline",
            "products against the peak of the device, estimated",
            work.roofline.head(ROWS).select(
                *("operation", "sizes", "type", per("count", "calls per step"), "gflop"),
                *(ms("time"), ms("least", "ms at the peak"), "share of the peak"),
            ),
        ),
    ]
    if len(traces.device):
        parts = [name for name in traces.device.columns if name not in ("rank", "wall")]
        shares = [(pl.col(part) / pl.col("wall")).alias(f"share {part}") for part in parts]
        frame = traces.device.select("rank", ms("wall", "ms", 1e6), *shares)
        found.append(("device", "the device of each rank, from its first event to its last", frame))
    if (device := one.device) is not None:
        found += [
            (
                "idle",
                "why the device is idle",
                device.idle.select(
                    pl.col("meaning").alias("reason"),
                    ms("time"),
                    per("gaps", "gaps per step"),
                    share(device.idle, "share of idle"),
                ),
            ),
            (
                "gaps",
                "longest idle gaps of the device",
                device.gaps.head(20).select(
                    "step",
                    ms("length", "ms", 1e6),
                    "reason",
                    pl.col("host").alias("the host was in"),
                    title,
                    pl.col("next").alias("what ran next"),
                    pl.col("launch").alias("launched by"),
                ),
            ),
        ]
    found.append(
        (
            "syncs",
            "where the host waits for the device",
            one.syncs.head(ROWS).select(
                *("operation", "call", "site", "range"),
                pl.col("per_step").alias("times per step"),
                ms("time"),
            ),
        )
    )
    if device is not None:
        frame = device.small.head(ROWS).select(
            "kernel",
            per("count", "times per step"),
            ms("time"),
            ms("launch_time", "ms of launches per step"),
        )
        found.append(("small", "kernels shorter than their launch", frame))
    on_host = pl.col("part").map_elements(title_of, return_dtype=pl.String)
    frame = path.select(
        "where",
        pl.when(pl.col("where") == "host").then(on_host).otherwise("part").alias("part"),
        ms("time", "ms", 1e6),
        share(path, "share of the step"),
    )
    found.append(("critical_path", "critical path of a typical step", frame))
    if traces.alignment is not None:
        frame = traces.alignment.ranks.select(
            "rank",
            pl.col("last").alias("times last"),
            ms("waited_for", "ms it was waited for", 1e6),
            ms("waited", "ms it waited", 1e6),
        )
        found.append(("waited_for", "ranks: who is waited for", frame))
        latest = traces.alignment.collectives.sort("late_by", descending=True).head(ROWS)
        frame = latest.select(
            *("step", "name", pl.col("index").alias("number")),
            *(pl.col(f"{end}_rank").alias(end) for end in ("first", "last")),
            ms("late_by", "ms late", 1e6),
            pl.col("doing").alias("the last was in"),
            title,
        )
        found.append(("collectives", "collectives by how late the last rank comes", frame))
    schema = {"device": pl.String(), "MiB": pl.Float64(), "step": pl.Int64(), "during": pl.String()}
    peaks = [(peak.device, peak.size / 2**20, peak.step, peak.during) for peak in one.memory]
    wall = (ms("wall", "ms", 1e6), ms("loader", "ms in the loader", 1e6))
    found += [
        ("steps", "steps", one.per_step.head(ROWS).select("number", "counted", *wall)),
        (
            "workers",
            "threads of the loader",
            one.loader.workers.select("thread", ms("busy", "ms busy", 1e6), "share"),
        ),
        ("memory", "memory peaks", pl.DataFrame(peaks, schema=schema, orient="row")),
    ]
    of_all = ("device", "waited_for", "collectives")
    rank = f", rank {one.trace.rank}" if len(traces.ranks) > 1 else ""
    return [
        Table(f"{key}{suffix}", f"{title}{'' if key in of_all else rank}{of}", frame)
        for key, title, frame in found
        if len(frame)
    ]
