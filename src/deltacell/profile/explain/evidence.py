"""What traces show beside the cause, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from deltacell.profile.explain.account import Table, listed, seconds_text, share_text, short_name
from deltacell.profile.explain.judge import FEW, late_rank
from deltacell.profile.explain.subject import (
    DEVICE_PARTS,
    Subject,
    counted_steps,
    device_parts,
    kernel_seconds,
    title_of,
)
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.host import NOT_RECORDED
from deltacell.profile.trace.trace import Kind
from deltacell.words import count_text


def trace_evidence(traces: RanksAttribution) -> list[str]:
    """Return what else a trace shows, in sentences."""
    found = []
    first = traces.ranks[0]
    parts = device_parts(traces)
    if parts:
        wall = sum(parts.values())
        told = [
            f"{DEVICE_PARTS[part]} {seconds_text(seconds)} ({share_text(seconds / wall)})"
            for part, seconds in parts.items()
        ]
        found.append(f"In a step the device is {listed(told)}, which adds up to it.")
    if traces.shares and len(traces.ranks) > 1:
        shares = traces.shares
        found.append(
            "From the first event of the device to the last, on average over ranks: idle "
            f"{100 * shares['idle']:.1f} %, communication and copies that nothing hides "
            f"{100 * shares['non_compute']:.1f} %, compute {100 * shares['compute']:.1f} %."
        )
    late = late_rank(traces)
    if late is not None and 0.01 < late.waited_share <= MUCH:
        text = late.sentence
        found.append(f"{text[0].upper()}{text[1:]}.")
    found += _loader_sentences(first)
    found += _sync_sentences(first)
    found += _small_sentences(first)
    return found


def _loader_sentences(one: Attribution) -> list[str]:
    loader = one.loader
    if not loader.names:
        return ["The trace has no range of a loader, so a wait for batches cannot be told from it."]
    return [
        f"The training waits {seconds_text(loader.per_step / 1e9)} per step for its loader "
        f"({share_text(loader.share)})."
    ]


def _sync_sentences(one: Attribution) -> list[str]:
    if not len(one.syncs):
        return []
    steps = counted_steps(one)
    count, time = float(one.syncs["per_step"].sum()), int(one.syncs["time"].sum()) / 1e9 / steps
    top = one.syncs.row(0, named=True)
    site = "" if top["site"] is None else f" at {short_name(top['site'])}"
    return [
        f"The host waits for the device at {count:.3g} sync points per step, "
        f"{seconds_text(time)} in all; the longest are of {short_name(top['operation'])}{site}."
    ]


def _small_sentences(one: Attribution) -> list[str]:
    device = one.device
    if device is None or not len(device.small):
        return []
    steps = counted_steps(one)
    launched = int(device.steps.filter("counted")["launches"].sum())
    count = int(device.small["count"].sum())
    if not launched or count < MUCH * launched:
        return []
    return [
        f"{count / steps:,.0f} of {launched / steps:,.0f} kernels per step are shorter than "
        "the call that launches them."
    ]


def kernels_sentence(a: RanksAttribution, b: RanksAttribution) -> str | None:
    """Return how the kernels of two compare; None where one has no device."""
    in_a, in_b = kernel_seconds(a), kernel_seconds(b)
    if in_a is None or in_b is None:
        return None
    same = abs(in_a - in_b) <= 0.02 * max(in_a, in_b)
    return (
        f"Kernels launched in a step take {seconds_text(in_a)} against {seconds_text(in_b)}"
        f"{': the work of the device is the same' if same else ''}."
    )


def loader_sentence(a: RanksAttribution, b: RanksAttribution) -> str | None:
    """Return how the waits for the loader compare; None where one does not show it."""
    loaders = (a.ranks[0].loader, b.ranks[0].loader)
    if not loaders[0].names or not loaders[1].names:
        return None
    return (
        f"Waiting for the loader takes {seconds_text(loaders[0].per_step / 1e9)} against "
        f"{seconds_text(loaders[1].per_step / 1e9)} per step."
    )


MUCH = 0.10
"""The share of a step that is worth advice."""

MACHINE_ADVICE = (
    "the machine: See what else ran on it at that time, and train again while it is quiet."
)
"""Where a run became slower in every part."""

CAUSE_ADVICE = {
    "compute": "Profile the named operation alone; look at its sizes, types and algorithm.",
    "communication": "Let it overlap with the backward, make it smaller, or find who comes late.",
    "copies": "Pin the memory of batches, copy without waiting, and keep on the device what stays.",
    "idle": "Take what the host does meanwhile out of the step, or let workers do it.",
    "uniform": "Compare the clocks, the power limits and the load of both machines.",
    "machine": "See what else ran on the machine, and record both again while it is quiet.",
    "batch": "Compare per sample, or with one batch.",
    "type": "Compare with one precision.",
    "recompute": "Checkpoint fewer layers where memory allows it.",
}
"""What to try, by the kind of cause."""

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


def advice_on(part: str, *, of_run: bool) -> str:
    """Return what to try where a part is slow."""
    if of_run and part in _HERE:
        return _HERE[part]
    return _ANYWHERE[part] if part in _ANYWHERE else _ANYWHERE["other"]


def trace_advice(traces: RanksAttribution) -> list[str]:
    """Return what to try, by what the device waits for; categories are advised on elsewhere."""
    found = []
    device = traces.ranks[0].device
    parts = device_parts(traces)
    if device is not None and parts:
        wall = sum(parts.values())
        steps = counted_steps(traces.ranks[0])
        for reason, time in device.idle.select("reason", "time").rows():
            if time / 1e9 / steps > MUCH * wall and reason in _IDLE_ADVICE:
                found.append(f"idle device: {_IDLE_ADVICE[reason]}")
        if parts["communication"] > MUCH * wall:
            found.append(
                "communication: let it overlap with the backward (buckets), make it smaller, or "
                "find who comes late."
            )
        if parts["compute"] > 0.7 * wall:
            found.append(
                "computing: the device is busy, so only less or cheaper work helps: lower "
                "precision, torch.compile, a cheaper algorithm."
            )
    late = late_rank(traces)
    if late is not None and late.waited_share > MUCH / 2:
        found.append(
            f"rank {late.rank}: give it less work, or look at what delays it"
            + (f" ({late.category})." if late.category else ".")
        )
    return found


_IDLE_ADVICE = {
    "sync": "remove what makes the host wait for the device, such as .item() and .cpu() in a step.",
    "launch": "launch fewer and larger kernels: a larger batch, torch.compile, CUDA graphs, fused "
    "optimizers.",
    "host": "move the work of the host off the step, or to workers.",
}


ONE_PROGRAM = 0.5
"""Traces with less of their time in operations of the same names are of different programs."""

LOST = 0.02
"""The share of launches without a kernel from which on events of the device were lost."""


def doubts_of_one(subject: Subject) -> list[str]:
    """Return why the account of one is to be doubted."""
    found = []
    account = subject.account
    if not account.adds_up:
        found.append(
            f"the parts of {account.name} miss its wall time by {share_text(account.residual)}"
        )
    if subject.traces is not None and subject.run is None:
        found += dict.fromkeys(d for one in subject.traces.ranks for d in _of_trace(one))
    return found


def doubt_sentences(doubts: Sequence[str]) -> list[str]:
    """Return each doubt as a sentence."""
    return [f"Confidence is low: {doubt}." for doubt in doubts]


def doubts_of_two(a: Subject, b: Subject) -> list[str]:
    """Return why a comparison is to be doubted, beside what is to be doubted of either."""
    found = [
        f"{a.name} is a {a.account.source} and {b.name} a {b.account.source}, which count "
        "differently"
    ]
    if a.account.source == b.account.source:
        found = list(_unlike(a, b))
    for one in (a, b):
        found += [f"{one.name}: {doubt}" for doubt in doubts_of_one(one)]
    return found


def _unlike(a: Subject, b: Subject) -> Iterator[str]:
    modes = [one.account.facts.get("mode") for one in (a, b)]
    if modes[0] != modes[1]:
        yield (
            f"{a.name} was run in mode '{modes[0]}' and {b.name} in mode '{modes[1]}', so the gap "
            "is a marginal cost, which is a share of the step only where nothing overlaps"
        )
    if a.run is not None or a.traces is None or b.traces is None:
        return
    one, other = a.traces.ranks[0], b.traces.ranks[0]
    if in_common(one, other) < ONE_PROGRAM:
        yield f"{a.name} and {b.name} are different programs"
    devices = [view.trace.device_name for view in (one, other)]
    if devices[0] != devices[1] and None not in devices:
        yield f"the devices differ ({listed([short_name(str(name)) for name in devices])})"
    if difference := rank_difference(a, b):
        yield difference


def rank_difference(a: Subject, b: Subject) -> str | None:
    """Return that the traces of two are of unlike ranks, or of runs of unlike size."""
    if a.traces is None or b.traces is None:
        return None
    sizes = [view.world_size for view in (a.traces, b.traces)]
    numbers = [[one.trace.rank for one in view.ranks] for view in (a.traces, b.traces)]
    if sizes[0] == sizes[1] and numbers[0] == numbers[1]:
        return None
    said = [
        f"{one.name} is {_rank_text(of, size)}"
        for one, of, size in zip((a, b), numbers, sizes, strict=True)
    ]
    return f"{said[0]}, {said[1]}"


def _rank_text(numbers: list[int | None], size: int) -> str:
    if len(numbers) > 1:
        return f"{len(numbers)} of {count_text(size, 'rank')}"
    return f"rank {0 if numbers[0] is None else numbers[0]} of {size}"


def _of_trace(one: Attribution) -> Iterator[str]:
    trace, steps = one.trace, one.steps
    counted = int(steps.counted.sum())
    if trace.damage:
        yield f"events were lost ({trace.damage})"
    elif (lost := _lost(one)) > LOST:
        yield f"{share_text(lost)} of the launches have no kernel in the trace, so events were lost"
    if steps.how != "ProfilerStep":
        yield f"the trace does not mark its steps; they were found from {short_name(steps.how)}"
    if counted < FEW:
        yield f"only {count_text(counted, 'step was', 'steps were')} measured"
    if trace.strange:
        told = [f"{count:,} of '{short_name(name)}'" for name, count in trace.strange.items()]
        yield f"events of unknown categories were left out ({listed(told[:3])})"


def _lost(one: Attribution) -> float:
    trace = one.trace
    named = np.array([name.endswith("LaunchKernel") for name in trace.names], dtype=bool)
    calls = named[trace.name] & (trace.kind == Kind.runtime) & (trace.correlation >= 0)
    if one.device is None or not calls.any():
        return 0.0
    done = trace.correlation[trace.kind == Kind.kernel]
    return 1 - float(np.isin(trace.correlation[calls], done).mean())


def in_common(a: Attribution, b: Attribution) -> float:
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


ROWS = 50
"""How many rows of a list that has no end."""


def trace_tables(traces: RanksAttribution, *, suffix: str = "", of: str = "") -> list[Table]:
    """Return what a trace shows, as tables; those without a row are left out.

    Of several ranks, what is of one host or device is that of the first.
    """
    one = traces.ranks[0]
    rank = f", rank {one.trace.rank}" if len(traces.ranks) > 1 else ""
    found = [
        ("operators", f"device time by operator{rank}", _owned(one, one.work.operators)),
        ("kernels", f"device time by kernel{rank}", _kernels(one)),
        ("modules", f"time by module{rank}", _owned(one, one.work.modules)),
        ("operations", f"operations of the host by self time{rank}", _operations(one)),
        ("roofline", f"products against the peak of the device, estimated{rank}", _roofline(one)),
        ("device", "the device of each rank, from its first event to its last", _device(traces)),
        ("idle", f"why the device is idle{rank}", _idle(one)),
        ("gaps", f"longest idle gaps of the device{rank}", _gaps(one)),
        ("syncs", f"where the host waits for the device{rank}", _syncs(one)),
        ("small", f"kernels shorter than their launch{rank}", _small(one)),
        ("critical_path", f"critical path of a typical step{rank}", _critical_path(one)),
        ("waited_for", "ranks: who is waited for", _ranks(traces)),
        ("collectives", "collectives by how late the last rank comes", _collectives(traces)),
        ("steps", f"steps{rank}", _steps(one)),
        ("workers", f"threads of the loader{rank}", _workers(one)),
        ("memory", f"memory peaks{rank}", _memory(one)),
    ]
    return [
        Table(f"{key}{suffix}", f"{title}{of}", frame) for key, title, frame in found if len(frame)
    ]


def _operations(one: Attribution) -> pl.DataFrame:
    steps = counted_steps(one)
    return one.operations.head(ROWS).select(
        "operation",
        _title("category"),
        (pl.col("count") / steps).alias("calls per step"),
        _ms("per_step").alias("ms per step"),
        pl.col("share").alias("share of a step"),
    )


def _owned(one: Attribution, frame: pl.DataFrame) -> pl.DataFrame:
    steps = counted_steps(one)
    shown = frame.head(ROWS).select(
        "name",
        (pl.col("count") / steps).alias("kernels per step"),
        _ms(pl.col("time") / steps).alias("device ms per step"),
        _ms(pl.col("total") / steps).alias("with all inside"),
        _ms(pl.col("host") / steps).alias("host ms per step"),
        _ms(pl.col("host_total") / steps).alias("host with all inside"),
    )
    return shown.drop(
        name
        for name in shown.columns[1:]
        if not shown[name].sum() or ("host" in name and not frame["host"].sum())
    )


def _kernels(one: Attribution) -> pl.DataFrame:
    steps = counted_steps(one)
    whole = max(int(one.work.kernels["time"].sum()), 1)
    return one.work.kernels.head(ROWS).select(
        "name",
        "part",
        (pl.col("count") / steps).alias("times per step"),
        _ms(pl.col("time") / steps).alias("ms per step"),
        (pl.col("time") / whole).alias("share of device time"),
    )


def _roofline(one: Attribution) -> pl.DataFrame:
    steps = counted_steps(one)
    return one.work.roofline.head(ROWS).select(
        "operation",
        "sizes",
        "type",
        (pl.col("count") / steps).alias("calls per step"),
        "gflop",
        _ms(pl.col("time") / steps).alias("ms per step"),
        _ms(pl.col("least") / steps).alias("ms at the peak"),
        "share of the peak",
    )


def change_table(a: Mapping[str, float], b: Mapping[str, float]) -> pl.DataFrame:
    """Return the seconds of what either does and how they change, the largest change first."""
    schema = {
        "name": pl.String(),
        "a_s": pl.Float64(),
        "b_s": pl.Float64(),
        "change_s": pl.Float64(),
    }
    rows = [
        (name, a.get(name, 0.0), b.get(name, 0.0), b.get(name, 0.0) - a.get(name, 0.0))
        for name in {**a, **b}
    ]
    rows.sort(key=lambda row: (-abs(row[3]), row[0]))
    return pl.DataFrame(rows[:ROWS], schema=schema, orient="row")


def _device(traces: RanksAttribution) -> pl.DataFrame:
    frame = traces.device
    if not len(frame):
        return frame
    parts = [name for name in frame.columns if name not in ("rank", "wall")]
    return frame.select(
        "rank",
        _ms("wall").alias("ms"),
        *((pl.col(part) / pl.col("wall")).alias(f"share {part}") for part in parts),
    )


def _idle(one: Attribution) -> pl.DataFrame:
    if one.device is None:
        return pl.DataFrame()
    steps = counted_steps(one)
    whole = max(int(one.device.idle["time"].sum()), 1) if len(one.device.idle) else 1
    return one.device.idle.select(
        pl.col("meaning").alias("reason"),
        _ms(pl.col("time") / steps).alias("ms per step"),
        (pl.col("gaps") / steps).alias("gaps per step"),
        (pl.col("time") / whole).alias("share of idle"),
    )


def _gaps(one: Attribution) -> pl.DataFrame:
    if one.device is None:
        return pl.DataFrame()
    return one.device.gaps.head(20).select(
        "step",
        _ms("length").alias("ms"),
        "reason",
        pl.col("host").alias("the host was in"),
        _title("category"),
        pl.col("next").alias("what ran next"),
        pl.col("launch").alias("launched by"),
    )


def _syncs(one: Attribution) -> pl.DataFrame:
    return one.syncs.head(ROWS).select(
        "operation",
        "call",
        "site",
        "range",
        pl.col("per_step").alias("times per step"),
        _ms(pl.col("time") / counted_steps(one)).alias("ms per step"),
    )


def _small(one: Attribution) -> pl.DataFrame:
    if one.device is None:
        return pl.DataFrame()
    steps = counted_steps(one)
    return one.device.small.head(ROWS).select(
        "kernel",
        (pl.col("count") / steps).alias("times per step"),
        _ms(pl.col("time") / steps).alias("ms per step"),
        _ms(pl.col("launch_time") / steps).alias("ms of launches per step"),
    )


def _critical_path(one: Attribution) -> pl.DataFrame:
    parts = one.critical_path.parts
    whole = max(int(parts["time"].sum()), 1) if len(parts) else 1
    return parts.select(
        "where",
        pl.when(pl.col("where") == "host").then(_title("part")).otherwise("part").alias("part"),
        _ms("time").alias("ms"),
        (pl.col("time") / whole).alias("share of the step"),
    )


def _ranks(traces: RanksAttribution) -> pl.DataFrame:
    if traces.alignment is None:
        return pl.DataFrame()
    return traces.alignment.ranks.select(
        "rank",
        pl.col("last").alias("times last"),
        _ms("waited_for").alias("ms it was waited for"),
        _ms("waited").alias("ms it waited"),
    )


def _collectives(traces: RanksAttribution) -> pl.DataFrame:
    if traces.alignment is None:
        return pl.DataFrame()
    frame = traces.alignment.collectives.sort("late_by", descending=True).head(ROWS)
    return frame.select(
        "step",
        "name",
        pl.col("index").alias("number"),
        pl.col("first_rank").alias("first"),
        pl.col("last_rank").alias("last"),
        _ms("late_by").alias("ms late"),
        pl.col("doing").alias("the last was in"),
        _title("category"),
    )


def _steps(one: Attribution) -> pl.DataFrame:
    return one.per_step.head(ROWS).select(
        "number", "counted", _ms("wall").alias("ms"), _ms("loader").alias("ms in the loader")
    )


def _workers(one: Attribution) -> pl.DataFrame:
    return one.loader.workers.select("thread", _ms("busy").alias("ms busy"), pl.col("share"))


def _memory(one: Attribution) -> pl.DataFrame:
    schema = {"device": pl.String(), "MiB": pl.Float64(), "step": pl.Int64(), "during": pl.String()}
    rows = [(peak.device, peak.size / 2**20, peak.step, peak.during) for peak in one.memory]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _ms(column: str | pl.Expr) -> pl.Expr:
    return (pl.col(column) if isinstance(column, str) else column) / 1e6


def _title(column: str) -> pl.Expr:
    return (
        pl.col(column).map_elements(title_of, return_dtype=pl.String, skip_nulls=True).alias(column)
    )
