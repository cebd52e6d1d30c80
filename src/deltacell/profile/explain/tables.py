"""Tables behind an explanation: categories, operations, kernels, ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from deltacell.profile.explain.account import Account, EvidenceTable, Waterfall
from deltacell.profile.explain.causes import DEVICE_PARTS
from deltacell.profile.explain.programs import OperatorChange, ProgramPair
from deltacell.profile.explain.split import component_changes, kernel_changes, split_of
from deltacell.profile.explain.subject import CATEGORIES
from deltacell.profile.explain.view import Seconds, View
from deltacell.profile.trace.attribution import RanksAttribution
from deltacell.profile.trace.calls import CallGroup
from deltacell.profile.trace.device import PARTS

ROWS = 50  # the largest number of rows in a table of a trace


def category_table(account: Account) -> pl.DataFrame:
    """Return the time of an account by category, per step and, if known, per sample and epoch."""
    samples = account.samples_per_step
    steps = account.steps_per_epoch
    epoch = account.epoch_s
    rows: list[dict[str, Any]] = []
    for part in dict.fromkeys([*CATEGORIES, *account.parts, *account.outside]):
        seconds = account.parts.get(part, 0.0)
        outside = account.outside.get(part, 0.0)
        row: dict[str, Any] = {"category": part, "ms per step": 1e3 * seconds}
        if samples:
            row["µs per sample"] = 1e6 * seconds / samples
        row["share of a step"] = seconds / (account.step_s or 1.0)
        if steps and epoch:
            row["s per epoch"] = steps * seconds + outside
            row["share of an epoch"] = (steps * seconds + outside) / epoch
        if seconds or outside:
            rows.append(row)
    return pl.DataFrame(rows)


def phase_table(account: Account) -> pl.DataFrame:
    """Return the phases of a fit, the longest first."""
    seconds = list(account.parts.values())
    frame = pl.DataFrame({"phase": list(account.parts), "seconds": seconds})
    share = pl.col("seconds") / (account.step_s or 1.0)
    return frame.with_columns(share.alias("share of the fit")).sort("seconds", descending=True)


# Human-readable names of columns; times are in nanoseconds before they are renamed.
_COLUMNS = {
    "time": "ms per step",
    "total": "ms per step with all inside",
    "least": "ms per step at the peak",
    "count": "times per step",
    "wall": "ms",
    "loader": "ms in the loader",
    "busy": "ms busy",
    "late_by": "ms late",
    "late_before": "ms late at the start of the step",
    "waited": "ms waited",
    "waited_for": "ms it was waited for",
    "last": "times last",
}


def trace_tables(traces: RanksAttribution) -> list[EvidenceTable]:
    """Return the non-empty tables; those of one host or device are those of the first rank."""
    rank = traces.ranks[0]
    aligned = traces.alignment
    idle = pl.DataFrame() if rank.device is None else rank.device.idle
    of_rank = f", rank {rank.trace.rank}" if len(traces.ranks) > 1 else ""
    # The key, the title, the rows, and the name of a column of shares of the time, if any.
    sources = [
        ("operators", "device time by operator", rank.work.operators, ""),
        ("kernels", "device time by kernel", rank.work.kernels, "share of device time"),
        ("modules", "time by module", rank.work.modules, ""),
        ("operations", "operations of the host by self time", rank.doing, "share of a step"),
        ("roofline", "estimated roofline of products", rank.work.roofline, ""),
        ("idle", "why the device is idle", idle, "share of idle"),
        ("syncs", "where the host waits for the device", rank.syncs, ""),
        ("steps", "steps", rank.per_step, ""),
        ("workers", "threads of the loader", rank.loader.workers, ""),
        ("critical_path", "critical path of a typical step", rank.critical_path, "share of a step"),
    ]
    sources = [(key, f"{title}{of_rank}", frame, share) for key, title, frame, share in sources]
    shares = [(pl.col(part) / pl.col("wall")).alias(f"share {part}") for part in PARTS]
    title = "the device of each rank, from its first event to its last"
    sources.append(("device", title, traces.device.select("rank", "wall", *shares), ""))
    if aligned is not None:
        late = aligned.collectives.drop("came").sort("late_by", descending=True)
        sources.append(("waited_for", "ranks that the others wait for", aligned.ranks, ""))
        sources.append(("collectives", "collectives by how late the last rank comes", late, ""))
    tables = []
    for key, title, frame, share in sources:
        steps = 1 if key == "critical_path" else rank.n_counted
        shown = []
        for column in frame.columns:
            name = _COLUMNS.get(column, column)
            scale = (1e6 if name.startswith("ms") else 1) * (steps if "per step" in name else 1)
            shown.append((pl.col(column) / scale if scale > 1 else pl.col(column)).alias(name))
        if share:
            shown.append((pl.col("time") / pl.max_horizontal(pl.sum("time"), 1)).alias(share))
        if len(frame):
            tables.append(EvidenceTable(key, title, frame.select(shown).head(ROWS)))
    return tables


def components_table(
    a: View, b: View, samples_a: float | None, samples_b: float | None
) -> EvidenceTable:
    """Return what each of two programs does in a step, component by component.

    The rows are the components and the rest of a step by category or part of the device, the
    longest first; they add up to the last row, the step. If the numbers of samples per step are
    known, there are times per sample too.
    """
    parts_a = a.step_parts
    parts_b = b.step_parts
    in_a = {**parts_a.components, **_labelled(parts_a.others)}
    in_b = {**parts_b.components, **_labelled(parts_b.others)}
    rows = _component_rows(in_a, in_b)
    whole_a = math.fsum(in_a.values())
    whole_b = math.fsum(in_b.values())
    rows.append(_ComponentRow("all", whole_a, whole_b))
    columns: dict[str, list[Any]] = {"component": [row.name for row in rows]}
    columns["ms per step of A"] = [1e3 * row.seconds_a for row in rows]
    columns["of B"] = [1e3 * row.seconds_b for row in rows]
    columns["share of A"] = [row.seconds_a / (whole_a or 1.0) for row in rows]
    columns["share of B"] = [row.seconds_b / (whole_b or 1.0) for row in rows]
    if samples_a and samples_b:
        columns["µs per sample of A"] = [1e6 * row.seconds_a / samples_a for row in rows]
        columns["µs per sample of B"] = [1e6 * row.seconds_b / samples_b for row in rows]
    title = f"what a step of {a.name} (A) and of {b.name} (B) consists of"
    return EvidenceTable("components", title, pl.DataFrame(columns))


@dataclass(frozen=True)
class _ComponentRow:
    """A component of two programs with its seconds per step; 0 where it is missing."""

    name: str
    seconds_a: float
    seconds_b: float


def _component_rows(a: Mapping[str, float], b: Mapping[str, float]) -> list[_ComponentRow]:
    rows = [_ComponentRow(name, a.get(name, 0.0), b.get(name, 0.0)) for name in {**a, **b}]
    return sorted(rows, key=lambda row: (-max(row.seconds_a, row.seconds_b), row.name))


def _labelled(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of a step that belong to no component, as a table names them."""
    return {_REST.get(name, name): seconds for name, seconds in parts.items()}


_REST = {
    **DEVICE_PARTS,
    "compute": "computing of no component",
    "forward": "forward of no component",
    "backward": "backward of no component",
}


def change_tables(a: View, b: View) -> list[EvidenceTable]:
    """Return tables of what changed between two traces, the largest changes first."""
    tables = _call_tables(ProgramPair(a, b))
    if a.parts and b.parts:
        title = f"the device, from {a.name} to {b.name}, seconds per step"
        fall = Waterfall.between("step", _labelled_parts(a), _labelled_parts(b))
        tables.append(EvidenceTable("device", title, fall.frame()))
    for key, title, group in (
        ("operations", "what the host does", ""),
        ("operators", "device time by operator", ""),
        ("kernels", "device time by kernel", "compute"),
        ("modules", "time by module", ""),
    ):
        in_a = a.by(key, group)
        in_b = b.by(key, group)
        if in_a or in_b:
            changes = Waterfall.between("step", in_a, in_b).frame().head(ROWS)
            title = f"{title}, by change, seconds per step"
            tables.append(EvidenceTable(key, title, changes.rename({"part": "name"})))
    return tables


def _labelled_parts(view: View) -> Seconds:
    """Return the parts of a device's time by the names that a reader sees."""
    return {DEVICE_PARTS[part]: seconds for part, seconds in view.parts.items()}


def _call_tables(pair: ProgramPair) -> list[EvidenceTable]:
    """Return how often beside how long, by operator, by component and by kernel."""
    names = f"from {pair.a.name} to {pair.b.name}"
    kinds = {
        "operator_calls": (f"calls of operators, {names}", pair.operators),
        "component_calls": (f"calls of ranges and modules, {names}", component_changes(pair)),
        "kernel_calls": (f"launches of kernels, {names}", kernel_changes(pair.a, pair.b)),
    }
    tables = []
    for key, (title, changes) in kinds.items():
        if changes:
            largest = sorted(changes, key=lambda x: (-abs(x.change), x.name, x.group))[:ROWS]
            tables.append(EvidenceTable(key, title, pl.DataFrame([_call_row(x) for x in largest])))
    return tables


def _call_row(change: OperatorChange) -> dict[str, Any]:
    split = split_of([change])
    return {
        "name": change.name,
        "part": None if change.group is CallGroup.other else change.group.name,
        "calls per step of A": change.calls_a,
        "of B": change.calls_b,
        "µs per call of A": 1e6 * change.seconds_a,
        "µs per call of B": 1e6 * change.seconds_b,
        "elements per call of A": change.elements_a,
        "elements per call of B": change.elements_b,
        "ms by more calls": 1e3 * split.more,
        "ms by larger calls": None if split.larger is None else 1e3 * split.larger,
        "ms by slower calls": 1e3 * split.slower,
    }
