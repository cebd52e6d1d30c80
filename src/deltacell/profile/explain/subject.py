"""What is explained: a run of this program, a trace, or the traces of several ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from deltacell.errors import InputError
from deltacell.profile.explain.account import Account
from deltacell.profile.phase_rows import COLUMNS, PhaseSummary, Uneven, steady_steps, summarise
from deltacell.profile.record import PHASES as PHASES_FOLDER
from deltacell.profile.record import RUN_FILE, TRACES, RunRecord, Status, read_run
from deltacell.profile.trace.attribution import Attribution, RanksAttribution, attribute_ranks
from deltacell.profile.trace.categories import CATEGORY_OF_PHASE, Category
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.read import missing_ranks, read_traces
from deltacell.words import Progress, count_text, listed, seconds_text, short_name

CATEGORY_OF = {phase: category.title for phase, category in CATEGORY_OF_PHASE.items()}
"""The category of each phase, in the words of traces."""

CATEGORIES = tuple(CATEGORY_OF.values())
"""All categories, in the order in which a step goes through them."""

THREADS = "threads of a process"
"""The fact that says with how many threads a process computes on a CPU."""

DEVICE_PARTS = {
    "compute": "computing",
    "communication": "communication that nothing hides",
    "copies": "copies that nothing hides",
    "idle": "idle",
}
"""The parts of a device's time, in words."""

BEHIND = "device behind the host"
"""The part of a step in which the host has finished it and the device has not."""


@dataclass(frozen=True, eq=False)
class RunTimes:
    """A run, its phases and their summary; ``epochs`` done may be a fraction, or unknown."""

    record: RunRecord
    rows: pl.DataFrame
    summary: PhaseSummary
    epochs: float | None


@dataclass(frozen=True, eq=False)
class Subject:
    """One run or trace to explain.

    ``run`` is None where it is not a run of this program, or no phases were recorded; ``traces``
    is None where there are none.
    """

    path: Path
    account: Account
    run: RunTimes | None = None
    traces: RanksAttribution | None = None

    @property
    def name(self) -> str:
        """The name used in sentences."""
        return self.account.name

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that are known."""
        known = {name: value for name, value in self.account.facts.items() if value is not None}
        return {"path": str(self.path), "read as": self.account.source, **known}


def open_subject(
    path: str | os.PathLike[str], *, name: str | None = None, progress: Progress | None = None
) -> Subject:
    """Read a run's directory, a trace, or a directory of traces."""
    path = Path(path)
    if not path.exists():
        raise InputError(
            "no such file or directory",
            where=path,
            fix="Give a run's directory, a trace (.json or .json.gz), or a directory of traces.",
        )
    folder = path.parent if path.name == RUN_FILE else path
    if not (folder / RUN_FILE).is_file():
        traces = attribute_ranks(read_traces(path, progress=progress))
        return Subject(path, trace_account(traces, name or run_name(path)), traces=traces)
    name = name or run_name(folder)
    record = read_run(folder)
    times = run_times(record)
    inside = folder / TRACES
    has_traces = inside.is_dir() and any(f.suffix in (".json", ".gz") for f in inside.iterdir())
    found = attribute_ranks(read_traces(folder, progress=progress)) if has_traces else None
    if times.summary.steps or found is None:
        return Subject(folder, run_account(times, name), times, found)
    account = trace_account(found, name)
    told = {name: value for name, value in account.facts.items() if value is not None}
    facts = {**run_facts(record), **told, "steps per epoch": record.steps_per_epoch}
    return Subject(folder, replace(account, facts=facts), None, found)


def run_name(path: Path) -> str:
    """Return the name of a run or a trace: that of its file or directory, without endings."""
    path = path.resolve()
    name = path.name or str(path)
    if name == TRACES and path.parent.name:
        name = f"{path.parent.name}/{name}"
    for ending in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending) or name
    return short_name(name)


def run_times(record: RunRecord) -> RunTimes:
    """Read the phases of a run; one without phases has no steps, because a trace may have."""
    folder = record.path / PHASES_FOLDER
    rows = record.phases() if folder.is_dir() else pl.DataFrame(schema=COLUMNS)
    steps = rows.filter(pl.col("kind") == "train").select("attempt", "step").n_unique()
    epochs = steps / record.steps_per_epoch if record.steps_per_epoch and steps else None
    return RunTimes(record, rows, summarise(rows), epochs)


def run_account(times: RunTimes, name: str) -> Account:
    """Return the account of a run.

    The step is the mean of the steady ones; what lies outside of the steps is the mean of an
    epoch. Warm-up and steps with a profiler on are in neither.
    """
    record, summary = times.record, times.summary
    if not summary.steps or not summary.wall_s > 0:
        raise InputError(
            "no training step of this run was timed",
            where=record.path,
            fix="Train with profiler.phases=true (the default), or give a trace.",
        )
    profiled = bool(steady_steps(times.rows)["profiled"].any())
    return Account(
        name,
        "run",
        {
            CATEGORY_OF[phase.phase]: phase.seconds / summary.steps
            for phase in summary.phases
            if phase.seconds > 0
        },
        samples_per_step=summary.samples / summary.steps or None,
        steps_per_epoch=record.steps_per_epoch,
        outside=_outside(times),
        measured_s=summary.wall_s / summary.steps,
        facts=run_facts(record) | {"steps measured": summary.steps, "profiler on": profiled},
        warnings=tuple(_warnings(times, profiled)),
    )


def run_facts(record: RunRecord) -> dict[str, Any]:
    """Return what two runs should have in common to be compared."""
    return {
        "batch": record.batch_size,
        "ranks": record.world_size,
        "accumulated batches": record.accumulate,
        "precision": record.precision,
        "device": record.device,
        THREADS: record.threads,
        "torch": record.versions.get("torch"),
        "mode": record.mode,
        "parameters": record.n_parameters,
        "propagation": None if record.propagation is None else _chosen(record.propagation),
        "cell": None if record.cell is None else record.cell.checksum[:12],
        "screen": None if record.screen is None else record.screen.checksum[:12],
        "training samples": None if record.samples is None else record.samples.train,
    }


def phases_by_rank(times: RunTimes) -> pl.DataFrame:
    """Return the mean milliseconds of the steady steps of each rank, by category."""
    steady = steady_steps(times.rows).select("attempt", "step")
    rows = times.rows.filter(pl.col("kind") == "train")
    rows = rows.join(steady, on=["attempt", "step"], how="semi")
    means = [("wall", "ms per step"), *CATEGORY_OF.items()]
    return (
        rows.group_by("rank")
        .agg(pl.len().alias("steps"), *((pl.col(f"{x}_s").mean() * 1e3).alias(y) for x, y in means))
        .sort("rank")
    )


def propagation_lines(record: RunRecord) -> tuple[str, ...]:
    """Return how mutants were propagated and why; nothing where it is unknown."""
    propagation = record.propagation
    if propagation is None or not isinstance(propagation.get("why"), str):
        return ()
    first, *rest = propagation["why"].splitlines() or [""]
    return (f"propagation {_chosen(propagation)}: {first}", *rest)


def uneven_doubt(times: RunTimes, name: str) -> str | None:
    """Return why a run whose steps became slower in every part says little, or None."""
    uneven = times.summary.uneven
    if uneven is None or not uneven.is_everywhere:
        return None
    parts = listed([CATEGORY_OF[phase] for phase in uneven.changed])
    return (
        f"the steps of {name} took {_fast_and_slow(uneven)}, in every large part ({parts}): "
        "something outside of the program, or the machine, changed"
    )


def _fast_and_slow(uneven: Uneven) -> str:
    parts = ((uneven.fast_steps, uneven.fast_s), (uneven.slow_steps, uneven.slow_s))
    return listed([f"{seconds_text(s)} from step {x[0]:,} to {x[1]:,}" for x, s in sorted(parts)])


def _chosen(propagation: dict[str, Any]) -> str:
    name, choice = propagation.get("name"), propagation.get("choice")
    inner = choice.get("choice") if isinstance(choice, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("strategy"), str):
        return f"{inner['strategy']} (by {name})"
    return str(name)


def _outside(times: RunTimes) -> dict[str, float]:
    if not times.epochs:
        return {}
    ranks = times.rows.group_by("attempt").agg(pl.col("rank").n_unique().alias("ranks"))
    between = times.rows.filter(pl.col("kind") == "between").join(ranks, on="attempt")
    found = {}
    for phase, category in CATEGORY_OF.items():
        seconds = math.fsum((between[f"{phase}_s"] / between["ranks"]).drop_nulls().to_list())
        if math.isfinite(seconds) and seconds > 0:
            found[category] = seconds / times.epochs
    return found


def _warnings(times: RunTimes, profiled: bool) -> Iterator[str]:
    record, summary = times.record, times.summary
    if record.status is not Status.finished:
        yield f"The run is {record.status}, so this covers what it has done so far."
    if summary.steps < 5:
        timed = count_text(summary.steps, "steady step was timed", "steady steps were timed")
        yield f"Only {timed}."
    if summary.unreadable_rows:
        rows = count_text(summary.unreadable_rows, "row of phases has", "rows of phases have")
        yield f"{rows} no time."
    if summary.uneven is not None and not summary.uneven.is_everywhere:
        changed = listed([CATEGORY_OF[phase] for phase in summary.uneven.changed])
        where = f"; what took longer is {changed}" if changed else ""
        yield f"Its steps took {_fast_and_slow(summary.uneven)}{where}."
    if not summary.adds_up:
        yield f"Its phases miss the wall time by {100 * summary.residual:.1f} %."
    if profiled:
        yield "A profiler was on in all steady steps, which makes them longer."
    cut = summary.warmup_steps + summary.profiled_steps
    if cut:
        steps = times.rows.filter(pl.col("kind") == "train")
        more = float(steps["wall_s"].sum()) / max(steps["rank"].n_unique(), 1) - summary.wall_s
        yield (
            f"Cut as warm-up: {summary.warmup_steps}, because a profiler was on: "
            f"{summary.profiled_steps}, of {count_text(summary.steps + cut, 'step')} "
            f"({seconds_text(more)})."
        )


def trace_account(traces: RanksAttribution, name: str) -> Account:
    """Return the account of traces: the mean over ranks of a counted step."""
    ranks = traces.ranks
    parts = {
        category.title: sum(one.seconds_per_step()[category.name] for one in ranks) / len(ranks)
        for category in Category
    }
    parts[BEHIND] = sum(one.behind for one in ranks) / len(ranks) / 1e9
    first, trace = ranks[0], ranks[0].trace
    return Account(
        name,
        "trace",
        {title: seconds for title, seconds in parts.items() if seconds > 0},
        measured_s=sum(one.wall_per_step for one in ranks) / len(ranks) / 1e9,
        facts={
            "ranks": traces.world_size,
            "ranks with a trace": len(ranks),
            "device": None if trace.device_name is None else short_name(trace.device_name),
            "has a device": first.device is not None,
            "torch": None if trace.torch_version is None else short_name(trace.torch_version),
            "steps measured": first.n_counted,
            "steps found from": short_name(first.steps.how),
            "profiler on": True,
            "with stacks": bool(trace.settings.get("with_stack")),
            "with shapes": bool(trace.settings.get("record_shapes")),
            "with memory": bool(trace.settings.get("profile_memory")),
        },
        warnings=trace_notices(traces),
    )


def device_parts(traces: RanksAttribution) -> dict[str, float]:
    """Return the seconds of a counted step by what the device did; empty without a device."""
    return device_means(traces, PARTS)


def device_means(traces: RanksAttribution, columns: tuple[str, ...]) -> dict[str, float]:
    """Return seconds of a counted step, the mean over ranks with a device; empty without one."""
    found = [one.device.steps.filter("counted") for one in traces.ranks if one.device is not None]
    means = [frame.select(pl.col(*columns).mean()) for frame in found]
    return {
        part: sum(float(mean[part][0]) for mean in means) / len(means) / 1e9
        for part in (columns if means else ())
    }


def trace_notices(traces: RanksAttribution) -> tuple[str, ...]:
    """Return the notices of traces, printable."""
    # The reader names missing ranks too.
    twice = set(missing_ranks([one.trace for one in traces.ranks])) if traces.missing else set()
    return tuple(
        "".join(c if c.isprintable() else "?" for c in notice)
        for notice in traces.notices
        if notice not in twice
    )


def title_of(category: str | None) -> str | None:
    """Return the title of a category's name; the device is its own."""
    titles = {one.name: one.title for one in Category}
    return None if category is None else titles.get(category, category)


def counted_steps(one: Attribution) -> int:
    """Return how many steps of a trace count."""
    return one.n_counted
