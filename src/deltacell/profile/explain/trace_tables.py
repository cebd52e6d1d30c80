"""The tables of a trace: operations, gaps, sync points, kernels, components, ranks."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from deltacell.profile.explain.explanation import Table
from deltacell.profile.explain.trace_account import counted_steps, title_of
from deltacell.profile.trace.attribution import Attribution, RanksAttribution

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
    schema = {
        "device": pl.String(),
        "MiB": pl.Float64(),
        "step": pl.Int64(),
        "during": pl.String(),
    }
    rows = [(peak.device, peak.size / 2**20, peak.step, peak.during) for peak in one.memory]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _ms(column: str | pl.Expr) -> pl.Expr:
    return (pl.col(column) if isinstance(column, str) else column) / 1e6


def _title(column: str) -> pl.Expr:
    return (
        pl.col(column).map_elements(title_of, return_dtype=pl.String, skip_nulls=True).alias(column)
    )
