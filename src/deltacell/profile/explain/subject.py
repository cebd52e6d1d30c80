"""The subject of an explanation: a run of this program, a trace, or the traces of several ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.base.text import Progress, capital, short_name
from deltacell.profile.component_rows import read_components
from deltacell.profile.explain import sentences
from deltacell.profile.explain.account import FIT, TRACE, Account
from deltacell.profile.explain.settings import RunSettings
from deltacell.profile.fit_phases import read_fit_phases
from deltacell.profile.phase_rows import PhaseSummary
from deltacell.profile.record import PHASES, RUN_FILE, TRACES, RunRecord, Status, read_run
from deltacell.profile.trace.attribution import RanksAttribution
from deltacell.profile.trace.categories import CATEGORY_OF_PHASE
from deltacell.profile.trace.read import read_traces

CATEGORY_OF = {phase: category.title for phase, category in CATEGORY_OF_PHASE.items()}
CATEGORIES = tuple(CATEGORY_OF.values())  # in the order of a step
BEHIND = "device behind the host"  # the host has finished a step, and the device has not


@dataclass(frozen=True, eq=False)
class RunTimes:
    """A run, its phases, and their summary."""

    record: RunRecord
    rows: pl.DataFrame
    summary: PhaseSummary
    settings: RunSettings
    components: pl.DataFrame  # of recorded steps, as `read_components` returns them

    @property
    def steady_rows(self) -> pl.DataFrame:
        """The rows of all steady steps, one per rank and step."""
        return self.rows.filter(kind="train").join(
            self.summary.steady,
            on=["attempt", "step"],
            how="semi",
        )

    def by_rank(self) -> pl.DataFrame:
        """Return the mean milliseconds of a steady step by category, with a row per rank."""
        means = [("wall", "ms per step"), *CATEGORY_OF.items()]
        return (
            self.steady_rows.group_by("rank")
            .agg(pl.len().alias("steps"), *((pl.mean(f"{x}_s") * 1e3).alias(y) for x, y in means))
            .sort("rank")
        )

    def outside(self) -> dict[str, float]:
        """Return the seconds of an epoch outside its steps, by category."""
        if not self.record.steps_per_epoch:
            return {}
        steps = self.rows.filter(kind="train").select("attempt", "step").n_unique()
        epochs = steps / self.record.steps_per_epoch
        ranks = pl.n_unique("rank").over("attempt")
        means = [(pl.col(f"{x}_s") / ranks).alias(y) for x, y in CATEGORY_OF.items()]
        between = self.rows.select("kind", *means).filter(kind="between").drop("kind").sum()
        return {c: s / epochs for c, s in between.row(0, named=True).items() if s > 0}

    def uneven(self, *, everywhere: bool) -> Iterator[str]:
        """Yield how a run became slower, in all large parts of a step (`everywhere`) or some."""
        uneven = self.summary.uneven
        if uneven is not None and uneven.is_everywhere == everywhere:
            parts = [CATEGORY_OF[phase] for phase in uneven.changed]
            yield sentences.uneven_clause(uneven, parts)

    def warnings(self) -> Iterator[str]:
        """Yield what limits what the phases of a run say."""
        record = self.record
        summary = self.summary
        if record.mode != "train":
            yield sentences.mode_warning(record.mode)
        if record.status is not Status.finished:
            yield sentences.unfinished_warning(record.status)
        if summary.steps < 5:
            yield sentences.few_steady_steps_warning(summary.steps)
        yield from (f"{capital(uneven)}." for uneven in self.uneven(everywhere=False))
        if self.is_profiled:
            yield sentences.PROFILED
        if summary.warmup_steps + summary.profiled_steps:
            train = self.rows.filter(kind="train")
            seconds = float(train["wall_s"].sum()) / max(train["rank"].n_unique(), 1)
            yield sentences.steps_cut_warning(
                steady=summary.steps,
                warmup=summary.warmup_steps,
                profiled=summary.profiled_steps,
                seconds=seconds - summary.wall_s,
            )

    @property
    def is_profiled(self) -> bool:
        """Whether a profiler was on in some of the steady steps."""
        return bool(self.summary.steady["profiled"].any())


@dataclass(frozen=True, eq=False)
class Subject:
    """A run or trace to explain; ``run`` is None for a trace alone and for a fit."""

    path: Path
    account: Account
    run: RunTimes | None = None
    traces: RanksAttribution | None = None

    @property
    def name(self) -> str:
        """The name that sentences use."""
        return self.account.name

    @property
    def facts(self) -> JsonObject:
        """The path, the kind of source, and the settings that are known."""
        known = {name: value for name, value in self.account.facts.items() if value is not None}
        return {"path": str(self.path), "read as": self.account.source, **known}


def open_subject(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> Subject:
    """Read a run, a trace or a directory of traces, and account for its time."""
    path = Path(path)
    if not path.exists():
        fix = "Give a run directory, a trace (.json or .json.gz) or a directory of traces."
        raise InputError("no such file or directory", code="no-such-file", where=path, fix=fix)
    folder = path.parent if path.name == RUN_FILE else path
    name = name or run_name(folder)
    if not (folder / RUN_FILE).is_file():
        traces = RanksAttribution(read_traces(path, progress=progress))
        samples = traces.samples_per_step or _samples_of_run(path)
        return Subject(path, _trace_account(traces, name, samples), traces=traces)
    record = read_run(folder)
    fit_phases = read_fit_phases(folder / PHASES)
    if not fit_phases.is_empty():
        return Subject(folder, _fit_account(record, fit_phases, name))
    rows = record.phases()
    components = read_components(record.path / PHASES)
    times = RunTimes(record, rows, PhaseSummary(rows), RunSettings.of(record), components)
    has_traces = any(file.suffix in (".json", ".gz") for file in (folder / TRACES).glob("*"))
    found = RanksAttribution(read_traces(folder, progress=progress)) if has_traces else None
    notices = tuple(f"Trace: {notice}" for notice in (found.notices if found else ()))
    return Subject(folder, _run_account(times, name, notices), times, found)


def _samples_of_run(path: Path) -> float | None:
    """Return the samples per step of the run in which traces lie, or None if they lie elsewhere.

    Traces of earlier versions do not say it themselves.
    """
    traces = path.parent if path.is_file() else path
    if traces.name != TRACES or not (traces.parent / RUN_FILE).is_file():
        return None
    record = read_run(traces.parent)
    if record.batch_size is None:
        return None
    return float(record.batch_size * (record.accumulate or 1))


def names_of(a: Path, b: Path) -> tuple[str, str]:
    """Return the names of two runs or traces.

    If their own names are equal, they are called by the first part in which their paths differ, or
    A and B if there is none.
    """
    name_a = run_name(a)
    name_b = run_name(b)
    if name_a != name_b:
        return name_a, name_b
    for part_a, part_b in zip(a.resolve().parts, b.resolve().parts, strict=False):
        if part_a != part_b:
            return short_name(part_a), short_name(part_b)
    return "A", "B"


def run_name(path: Path) -> str:
    """Return the name of a run or a trace: that of its file or directory, without suffixes."""
    path = path.resolve()
    name = path.name or str(path)
    if name == TRACES and path.parent.name:
        name = f"{path.parent.name}/{name}"
    for ending in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending) or name
    return short_name(name)


def _run_account(times: RunTimes, name: str, notices: tuple[str, ...]) -> Account:
    record = times.record
    summary = times.summary
    settings = times.settings
    if not summary.steps or not summary.wall_s > 0:
        what = "no training step of this run was timed"
        fix = f"Train with profiler.phases=true (the default), or explain {record.path / TRACES}."
        raise InputError(what, code="no-timed-step", where=record.path, fix=fix)
    return Account(
        name,
        "run",
        {CATEGORY_OF[p.phase]: p.seconds / summary.steps for p in summary.phases if p.seconds > 0},
        samples_per_step=summary.samples / summary.steps or None,
        steps_per_epoch=record.steps_per_epoch,
        outside=times.outside(),
        residual=summary.residual,
        facts={
            "model": settings.model,
            "propagation": settings.propagation_text,
            "loss": settings.loss,
            "batch": record.batch_size,
            "ranks": record.world_size,
            "relations": None if settings.relations is None else ", ".join(settings.relations),
            "parameters": record.n_parameters,
            "accumulated batches": record.accumulate,
            "precision": record.precision,
            "device": record.device,
            "threads of a process": record.threads,
            "torch": record.versions.get("torch"),
            "mode": record.mode,
            "cell": None if record.cell is None else record.cell.checksum[:12],
            "screen": None if record.screen is None else record.screen.checksum[:12],
            "training samples": None if record.samples is None else record.samples.train,
            "steps measured": summary.steps,
            "profiler on": times.is_profiled,
        },
        warnings=(*times.warnings(), *notices),
    )


def _fit_account(record: RunRecord, phases: pl.DataFrame, name: str) -> Account:
    """Return the account of the last fit; one that was stopped has begun again from the start."""
    last = phases.filter(pl.col("attempt") == pl.col("attempt").max())
    parts = dict(last.select("phase", "seconds").iter_rows())
    return Account(
        name,
        FIT,
        parts,
        facts={
            "model": RunSettings.of(record).model,
            "device": record.device,
            "threads of a process": record.threads,
            "cell": None if record.cell is None else record.cell.checksum[:12],
            "screen": None if record.screen is None else record.screen.checksum[:12],
            "training samples": None if record.samples is None else record.samples.train,
            "seconds of the fit": math.fsum(parts.values()),
        },
    )


def _trace_account(traces: RanksAttribution, name: str, samples: float | None) -> Account:
    ranks = traces.ranks
    first = traces.ranks[0]
    trace = traces.ranks[0].trace
    seconds = [rank.seconds_per_step() for rank in ranks]
    parts = {title: sum(x.get(title, 0.0) for x in seconds) / len(ranks) for title in CATEGORIES}
    parts[BEHIND] = sum(rank.behind for rank in ranks) / len(ranks) / 1e9
    device = trace.device_name
    torch = trace.torch_version
    settings = trace.settings
    return Account(
        name,
        TRACE,
        {title: time for title, time in parts.items() if time > 0},
        samples_per_step=samples,
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
        warnings=traces.notices,
    )
