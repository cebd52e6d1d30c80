"""The account of a run of this program, from its record and its phases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from deltacell.errors import InputError
from deltacell.profile.explain.account import Account
from deltacell.profile.explain.words import listed, seconds_text, short_name
from deltacell.profile.limits import PhaseSummary, Uneven, steady_steps, summarise
from deltacell.profile.phase_rows import COLUMNS
from deltacell.profile.record import PHASES as PHASES_FOLDER
from deltacell.profile.record import TRACES, RunRecord, Status
from deltacell.words import count_text

CATEGORY_OF = {
    "data_wait": "data loading",
    "transfer": "transfer to device",
    "preparation": "graph preparation",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "communication": "gradient communication",
    "optimizer": "optimizer",
    "logging": "logging and callbacks",
    "validation": "validation",
    "checkpoint": "checkpoints and figures",
    "other": "other",
}
"""What the time of a phase is for, in the words that traces have too."""

CATEGORIES = tuple(CATEGORY_OF.values())
"""All categories, in the order in which a step goes through them."""

THREADS = "threads of a process"
"""The fact that says with how many threads a process computes on a CPU."""


@dataclass(frozen=True, eq=False)
class RunTimes:
    """A run and its times.

    Parameters
    ----------
    record
        What it recorded of itself.
    rows
        Its phases.
    summary
        Of them.
    epochs
        How many it did, in parts of one too; None where it is not known.
    """

    record: RunRecord
    rows: pl.DataFrame
    summary: PhaseSummary
    epochs: float | None


def run_times(record: RunRecord) -> RunTimes:
    """Read the phases of a run.

    A run without phases has none of any step, and is no error: a trace may say more.
    """
    folder = record.path / PHASES_FOLDER
    rows = record.phases() if folder.is_dir() else pl.DataFrame(schema=COLUMNS)
    steps = rows.filter(pl.col("kind") == "train").select("attempt", "step").n_unique()
    epochs = steps / record.steps_per_epoch if record.steps_per_epoch and steps else None
    return RunTimes(record, rows, summarise(rows), epochs)


def run_account(times: RunTimes, name: str) -> Account:
    """Return the account of a run.

    The step is the mean of the steady ones. What lies outside the steps is the mean of an epoch;
    warm-up and steps with a profiler on are in neither, and are said beside it.
    """
    record, summary = times.record, times.summary
    if not summary.steps or not summary.wall_s > 0:
        raise InputError(
            "no training step of this run was timed",
            where=record.path,
            fix="Train with profiler.phases=true (the default), or give a trace.",
        )
    parts = {
        CATEGORY_OF[phase.phase]: phase.seconds / summary.steps
        for phase in summary.phases
        if phase.seconds > 0
    }
    return Account(
        name,
        "run",
        parts,
        samples_per_step=summary.samples / summary.steps or None,
        steps_per_epoch=record.steps_per_epoch,
        outside=_outside(times),
        measured_s=summary.wall_s / summary.steps,
        facts=run_facts(record)
        | {"steps measured": summary.steps, "profiler on": _is_profiled(times)},
        warnings=tuple(_warnings(times)),
    )


def run_facts(record: RunRecord) -> dict[str, Any]:
    """Return what two runs should have in common to be compared."""
    propagation = record.propagation
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
        "propagation": None if propagation is None else _chosen(propagation),
        "cell": None if record.cell is None else record.cell.checksum[:12],
        "screen": None if record.screen is None else record.screen.checksum[:12],
        "training samples": None if record.samples is None else record.samples.train,
    }


def run_name(path: Path) -> str:
    """Return what a run or a trace is called in sentences.

    It is the name of its file or directory, without what only says that it is a trace.
    """
    path = path.resolve()
    name = path.name or str(path)
    if name == TRACES and path.parent.name:
        name = f"{path.parent.name}/{name}"
    for ending in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending) or name
    return short_name(name)


def phases_by_rank(times: RunTimes) -> pl.DataFrame:
    """Return the mean milliseconds of the steady steps of each rank, by category."""
    steady = steady_steps(times.rows).select("attempt", "step")
    rows = times.rows.filter(pl.col("kind") == "train").join(
        steady, on=["attempt", "step"], how="semi"
    )
    return (
        rows.group_by("rank")
        .agg(
            pl.len().alias("steps"),
            (pl.col("wall_s").mean() * 1e3).alias("ms per step"),
            *(
                (pl.col(f"{phase}_s").mean() * 1e3).alias(category)
                for phase, category in CATEGORY_OF.items()
            ),
        )
        .sort("rank")
    )


def propagation_lines(record: RunRecord) -> tuple[str, ...]:
    """Return how mutants were propagated and why, line by line; nothing where it is not known."""
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
    """Return how long the steps of the fastest and of the slowest part took, in their order."""
    told = [
        (steps, f"{seconds_text(seconds)} from step {steps[0]:,} to {steps[1]:,}")
        for steps, seconds in (
            (uneven.fast_steps, uneven.fast_s),
            (uneven.slow_steps, uneven.slow_s),
        )
    ]
    return listed([text for _, text in sorted(told)])


def _chosen(propagation: dict[str, Any]) -> str:
    name, choice = propagation.get("name"), propagation.get("choice")
    inner = choice.get("choice") if isinstance(choice, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("strategy"), str):
        return f"{inner['strategy']} (by {name})"
    return str(name)


def _outside(times: RunTimes) -> dict[str, float]:
    """Return the seconds of an epoch that lie between its steps, by category."""
    if not times.epochs:
        return {}
    between = times.rows.filter(pl.col("kind") == "between")
    ranks = times.rows.group_by("attempt").agg(pl.col("rank").n_unique().alias("ranks"))
    between = between.join(ranks, on="attempt")
    found = {}
    for phase, category in CATEGORY_OF.items():
        seconds = math.fsum((between[f"{phase}_s"] / between["ranks"]).drop_nulls().to_list())
        if math.isfinite(seconds) and seconds > 0:
            found[category] = seconds / times.epochs
    return found


def _is_profiled(times: RunTimes) -> bool:
    return bool(steady_steps(times.rows)["profiled"].any())


def _warnings(times: RunTimes) -> list[str]:
    record, summary = times.record, times.summary
    found = []
    if record.status is not Status.finished:
        found.append(f"The run is {record.status}, so this is of what it has done so far.")
    if summary.steps < 5:
        timed = count_text(summary.steps, "steady step was timed", "steady steps were timed")
        found.append(f"Only {timed}.")
    if summary.unreadable_rows:
        rows = count_text(
            summary.unreadable_rows,
            "row of its phases has no time",
            "rows of its phases have no time",
        )
        found.append(f"{rows}.")
    if summary.uneven is not None and not summary.uneven.is_everywhere:
        changed = listed([CATEGORY_OF[phase] for phase in summary.uneven.changed])
        where = f"; what took longer is {changed}" if changed else ""
        found.append(f"Its steps took {_fast_and_slow(summary.uneven)}{where}.")
    if not summary.adds_up:
        found.append(f"Its phases miss the wall time by {100 * summary.residual:.1f} %.")
    if _is_profiled(times):
        found.append("A profiler was on in all steady steps, which makes them longer.")
    cut = summary.warmup_steps + summary.profiled_steps
    if cut:
        steps = times.rows.filter(pl.col("kind") == "train")
        ranks = max(steps["rank"].n_unique(), 1)
        more = float(steps["wall_s"].sum()) / ranks - summary.wall_s
        found.append(
            f"Cut as warm-up: {summary.warmup_steps}, for a profiler that was on: "
            f"{summary.profiled_steps}, of {count_text(summary.steps + cut, 'step')} "
            f"({seconds_text(more)})."
        )
    return found
