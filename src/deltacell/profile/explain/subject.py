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
from deltacell.profile.explain.sentences import say
from deltacell.profile.phase_rows import COLUMNS, PhaseSummary, Uneven, steady_steps, summarise
from deltacell.profile.record import PHASES as PHASES_FOLDER
from deltacell.profile.record import RUN_FILE, TRACES, RunRecord, Status, read_run
from deltacell.profile.trace.attribution import RanksAttribution, attribute_ranks
from deltacell.profile.trace.categories import CATEGORY_OF_PHASE, Category
from deltacell.profile.trace.read import missing_ranks, read_traces
from deltacell.words import Progress, listed, seconds_text, short_name

CATEGORY_OF = {phase: category.title for phase, category in CATEGORY_OF_PHASE.items()}
"""The category of each phase, in the words of traces."""

CATEGORIES = tuple(CATEGORY_OF.values())
"""All categories, in the order in which a step goes through them."""

TITLES = {category.name: category.title for category in Category}

THREADS = "threads of a process"
"""The fact that says with how many threads a process computes on a CPU."""

DEVICE_PARTS = {
    "compute": "computing",
    "communication": "exposed communication",
    "copies": "exposed copying",
    "idle": "idle",
}
"""The parts of a device's time, in words."""

BEHIND = "device behind the host"
"""The part of a step in which the host has finished it and the device has not."""


@dataclass(frozen=True, eq=False)
class RunTimes:
    """A run, its phases and their summary."""

    record: RunRecord
    rows: pl.DataFrame
    summary: PhaseSummary

    @classmethod
    def read(cls, record: RunRecord) -> RunTimes:
        """Read the phases of a run; one without phases has no steps, but may have a trace."""
        has_phases = (record.path / PHASES_FOLDER).is_dir()
        rows = record.phases() if has_phases else pl.DataFrame(schema=COLUMNS)
        return cls(record, rows, summarise(rows))

    def by_rank(self) -> pl.DataFrame:
        """Return the mean milliseconds of the steady steps of each rank, by category."""
        steady = steady_steps(self.rows).select("attempt", "step")
        rows = self.rows.filter(pl.col("kind") == "train")
        means = [("wall", "ms per step"), *CATEGORY_OF.items()]
        return (
            rows.join(steady, on=["attempt", "step"], how="semi")
            .group_by("rank")
            .agg(pl.len().alias("steps"), *((pl.mean(f"{x}_s") * 1e3).alias(y) for x, y in means))
            .sort("rank")
        )

    def outside(self) -> dict[str, float]:
        """Return the seconds of an epoch outside of its steps, by category."""
        steps = self.rows.filter(pl.col("kind") == "train").select("attempt", "step").n_unique()
        if not self.record.steps_per_epoch or not steps:
            return {}
        epochs = steps / self.record.steps_per_epoch
        ranks = self.rows.group_by("attempt").agg(pl.col("rank").n_unique().alias("ranks"))
        between = self.rows.filter(pl.col("kind") == "between").join(ranks, on="attempt")
        found = {
            category: math.fsum((between[f"{phase}_s"] / between["ranks"]).drop_nulls().to_list())
            for phase, category in CATEGORY_OF.items()
        }
        return {c: s / epochs for c, s in found.items() if math.isfinite(s) and s > 0}

    def doubt(self, name: str) -> str | None:
        """Return why a run whose steps became slower in every part says little, or None."""
        uneven = self.summary.uneven
        if uneven is None or not uneven.is_everywhere:
            return None
        parts = [CATEGORY_OF[phase] for phase in uneven.changed]
        return say("machine changed", of=name, steps=_fast_and_slow(uneven), parts=parts)

    def warnings(self) -> Iterator[str]:
        """Return what to know before relying on the phases."""
        record, summary, uneven = self.record, self.summary, self.summary.uneven
        if record.status is not Status.finished:
            yield say("unfinished", status=record.status)
        if summary.steps < 5:
            yield say("few timed", steps=summary.steps)
        if summary.unreadable_rows:
            yield say("unreadable", rows=summary.unreadable_rows)
        if uneven is not None and not uneven.is_everywhere:
            changed = listed([CATEGORY_OF[phase] for phase in uneven.changed])
            where = f"; what took longer is {changed}" if changed else ""
            yield say("steps took", steps=_fast_and_slow(uneven), changed=where)
        if not summary.adds_up:
            yield say("phases miss", share=summary.residual)
        if self.is_profiled:
            yield say("all profiled")
        if cut := summary.warmup_steps + summary.profiled_steps:
            train = self.rows.filter(pl.col("kind") == "train")
            seconds = float(train["wall_s"].sum()) / max(train["rank"].n_unique(), 1)
            yield say(
                "cut",
                steps=summary.steps + cut,
                warmup=summary.warmup_steps,
                profiled=summary.profiled_steps,
                seconds=seconds - summary.wall_s,
            )

    @property
    def is_profiled(self) -> bool:
        """Whether a profiler was on in all steady steps."""
        return bool(steady_steps(self.rows)["profiled"].any())


@dataclass(frozen=True, eq=False)
class Subject:
    """One run or trace to explain.

    ``run`` is None where it is not a run of this program, or no phases were recorded.
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
            code="no-such-file",
            where=path,
            fix="Give a run directory, a trace (.json or .json.gz), or a directory of traces.",
        )
    folder = path.parent if path.name == RUN_FILE else path
    if not (folder / RUN_FILE).is_file():
        traces = attribute_ranks(read_traces(path, progress=progress))
        return Subject(path, trace_account(traces, name or run_name(path)), traces=traces)
    name, record = name or run_name(folder), read_run(folder)
    times = RunTimes.read(record)
    inside = folder / TRACES
    has_traces = inside.is_dir() and any(f.suffix in (".json", ".gz") for f in inside.iterdir())
    found = attribute_ranks(read_traces(folder, progress=progress)) if has_traces else None
    if times.summary.steps or found is None:
        return Subject(folder, run_account(times, name), times, found)
    account = trace_account(found, name)
    known = {fact: value for fact, value in account.facts.items() if value is not None}
    facts = {**run_facts(record), **known, "steps per epoch": record.steps_per_epoch}
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


def run_account(times: RunTimes, name: str) -> Account:
    """Return the account of a run: the mean of its steady steps, and of an epoch around them."""
    record, summary = times.record, times.summary
    if not summary.steps or not summary.wall_s > 0:
        raise InputError(
            "no training step of this run was timed",
            code="no-timed-step",
            where=record.path,
            fix="Train with profiler.phases=true (the default), or give a trace.",
        )
    measured = {"steps measured": summary.steps, "profiler on": times.is_profiled}
    return Account(
        name,
        "run",
        {CATEGORY_OF[p.phase]: p.seconds / summary.steps for p in summary.phases if p.seconds > 0},
        samples_per_step=summary.samples / summary.steps or None,
        steps_per_epoch=record.steps_per_epoch,
        outside=times.outside(),
        measured_s=summary.wall_s / summary.steps,
        facts=run_facts(record) | measured,
        warnings=tuple(times.warnings()),
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
        "propagation": None if record.propagation is None else chosen(record.propagation),
        "cell": None if record.cell is None else record.cell.checksum[:12],
        "screen": None if record.screen is None else record.screen.checksum[:12],
        "training samples": None if record.samples is None else record.samples.train,
    }


def chosen(propagation: dict[str, Any]) -> str:
    """Return the strategy that propagates mutants, and what chose it."""
    name, choice = propagation.get("name"), propagation.get("choice")
    inner = choice.get("choice") if isinstance(choice, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("strategy"), str):
        return f"{inner['strategy']} (by {name})"
    return str(name)


def _fast_and_slow(uneven: Uneven) -> str:
    parts = ((uneven.fast_steps, uneven.fast_s), (uneven.slow_steps, uneven.slow_s))
    return listed([f"{seconds_text(s)} from step {x[0]:,} to {x[1]:,}" for x, s in sorted(parts)])


def trace_account(traces: RanksAttribution, name: str) -> Account:
    """Return the account of traces: the mean over ranks of a counted step."""
    ranks, first, trace = traces.ranks, traces.ranks[0], traces.ranks[0].trace
    parts = {
        category.title: sum(one.seconds_per_step()[category.name] for one in ranks) / len(ranks)
        for category in Category
    }
    parts[BEHIND] = sum(one.behind for one in ranks) / len(ranks) / 1e9
    device, torch, settings = trace.device_name, trace.torch_version, trace.settings
    return Account(
        name,
        "trace",
        {title: seconds for title, seconds in parts.items() if seconds > 0},
        measured_s=sum(one.wall_per_step for one in ranks) / len(ranks) / 1e9,
        facts={
            "ranks": traces.world_size,
            "ranks with a trace": len(ranks),
            "device": None if device is None else short_name(device),
            "has a device": first.device is not None,
            "torch": None if torch is None else short_name(torch),
            "steps measured": first.n_counted,
            "steps found from": short_name(first.steps.how),
            "profiler on": True,
            "with stacks": bool(settings.get("with_stack")),
            "with shapes": bool(settings.get("record_shapes")),
            "with memory": bool(settings.get("profile_memory")),
        },
        warnings=trace_notices(traces),
    )


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
