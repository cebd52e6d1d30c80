"""What is to be explained: a run of this program, a trace, or the traces of several ranks."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from deltacell.errors import InputError
from deltacell.profile.explain.account import Account, listed, seconds_text, short_name
from deltacell.profile.phase_rows import COLUMNS, PhaseSummary, Uneven, steady_steps, summarise
from deltacell.profile.record import PHASES as PHASES_FOLDER
from deltacell.profile.record import RUN_FILE, TRACES, RunRecord, Status, read_run
from deltacell.profile.trace.attribution import Attribution, RanksAttribution, attribute_ranks
from deltacell.profile.trace.decode import Progress
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.read import missing_ranks, read_traces
from deltacell.words import count_text


@dataclass(frozen=True, eq=False)
class Subject:
    """One of what is to be explained.

    Parameters
    ----------
    path
        Where it was read from.
    account
        Its time in parts that add up.
    run
        Its phases; None where it is no run of this program, or none were recorded.
    traces
        Where the time of its traces goes; None where there are none.
    """

    path: Path
    account: Account
    run: RunTimes | None = None
    traces: RanksAttribution | None = None

    @property
    def name(self) -> str:
        """What it is called in sentences."""
        return self.account.name

    @property
    def facts(self) -> dict[str, Any]:
        """What it was, for a person to read."""
        known = {name: value for name, value in self.account.facts.items() if value is not None}
        return {"path": str(self.path), "read as": self.account.source, **known}


def open_subject(
    path: str | os.PathLike[str], *, name: str | None = None, progress: Progress | None = None
) -> Subject:
    """Read what is to be explained."""
    path = Path(path)
    if not path.exists():
        raise InputError(
            "there is nothing here",
            where=path,
            fix="Give a run's directory, a trace (.json or .json.gz), or a directory of traces.",
        )
    called = run_name(path) if name is None else name
    folder = path.parent if path.name == RUN_FILE else path
    if (folder / RUN_FILE).is_file():
        return _open_run(folder, run_name(folder) if name is None else name, progress)
    traces = attributed(path, progress)
    return Subject(path, trace_account(traces, called), traces=traces)


def _open_run(path: Path, name: str, progress: Progress | None) -> Subject:
    record = read_run(path)
    times = run_times(record)
    traces = attributed(path, progress) if _has_traces(path) else None
    if times.summary.steps or traces is None:
        return Subject(path, run_account(times, name), times, traces)
    account = trace_account(traces, name)
    told = {name: value for name, value in account.facts.items() if value is not None}
    facts = {**run_facts(record), **told, "steps of an epoch": record.steps_per_epoch}
    return Subject(path, replace(account, facts=facts), None, traces)


def _has_traces(path: Path) -> bool:
    folder = path / TRACES
    return folder.is_dir() and any(file.suffix in (".json", ".gz") for file in folder.iterdir())


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


DEVICE_PARTS = {
    "compute": "computing",
    "communication": "communication that nothing hides",
    "copies": "copies that nothing hides",
    "idle": "idle",
}
"""What a device's time is made of, in words."""


BEHIND = "device behind the host"
"""The part of a step in which the host is done with it and the device is not."""


def attributed(path: Path, progress: Progress | None = None) -> RanksAttribution:
    """Read the traces of a path and tell where their time goes."""
    return attribute_ranks(read_traces(path, progress=progress))


def trace_account(traces: RanksAttribution, name: str) -> Account:
    """Return the account of traces: the mean over ranks of a counted step."""
    ranks = traces.ranks
    titles = ranks[0].categories.select("category", "title").rows()
    parts = {
        title: sum(one.seconds_per_step()[category] for one in ranks) / len(ranks)
        for category, title in titles
    }
    behind = sum(one.behind for one in ranks) / len(ranks) / 1e9
    if behind:
        parts[BEHIND] = behind
    return Account(
        name,
        "trace",
        {title: seconds for title, seconds in parts.items() if seconds > 0},
        measured_s=sum(one.wall_per_step for one in ranks) / len(ranks) / 1e9,
        facts=_facts(traces),
        warnings=trace_notices(traces),
    )


def device_parts(traces: RanksAttribution) -> dict[str, float]:
    """Return the seconds of a counted step by what the device did; empty without a device."""
    found = [one.device for one in traces.ranks if one.device is not None]
    if not found:
        return {}
    means = [device.steps.filter("counted").select(pl.col(*PARTS).mean()) for device in found]
    return {part: sum(float(mean[part][0]) for mean in means) / len(means) / 1e9 for part in PARTS}


def kernel_seconds(traces: RanksAttribution) -> float | None:
    """Return the seconds of kernels that a counted step launches; None without a device."""
    found = [one.device for one in traces.ranks if one.device is not None]
    if not found:
        return None
    times = [device.steps.filter("counted")["kernels"].to_numpy().mean() for device in found]
    return float(sum(times)) / len(times) / 1e9


def counted_steps(one: Attribution) -> int:
    """Return how many steps of a trace count."""
    return int(one.steps.counted.sum())


def trace_notices(traces: RanksAttribution) -> tuple[str, ...]:
    """Return what a person should know of traces, without what would steer a terminal."""
    # The reader names missing ranks too.
    twice = set(missing_ranks([one.trace for one in traces.ranks])) if traces.missing else set()
    return tuple(
        "".join(c if c.isprintable() else "?" for c in notice)
        for notice in traces.notices
        if notice not in twice
    )


def title_of(category: str | None) -> str | None:
    """Return what a person reads for the category of an event; the device is its own."""
    if category is None:
        return None
    phase = "data_wait" if category == "data_loading" else category
    return CATEGORY_OF.get(phase, category)


def _facts(traces: RanksAttribution) -> dict[str, object]:
    first = traces.ranks[0]
    trace = first.trace
    return {
        "ranks": traces.world_size,
        "ranks with a trace": len(traces.ranks),
        "device": None if trace.device_name is None else short_name(trace.device_name),
        "has a device": first.device is not None,
        "torch": None if trace.torch_version is None else short_name(trace.torch_version),
        "steps measured": counted_steps(first),
        "steps found from": short_name(first.steps.how),
        "profiler on": True,
        "with stacks": bool(trace.settings.get("with_stack")),
        "with shapes": bool(trace.settings.get("record_shapes")),
        "with memory": bool(trace.settings.get("profile_memory")),
    }
