"""The rows of phases on disk, the steady steps among them, and what limits a run.

Reading them needs no PyTorch, so that explanations do not wait for it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.arrays import Doubles
from deltacell.errors import InputError
from deltacell.words import capital, seconds_text, share_text

PHASES = (
    *("data_wait", "transfer", "preparation", "forward", "loss", "backward", "communication"),
    *("optimizer", "logging", "validation", "checkpoint", "other"),
)
KINDS = ("train", "between")
_SECONDS = ("begin_s", "wall_s", *(f"{phase}_s" for phase in PHASES))
COLUMNS = pl.Schema(
    {
        **dict.fromkeys(("rank", "attempt", "epoch", "step"), pl.Int64()),
        "kind": pl.String(),
        "samples": pl.Int64(),
        "profiled": pl.Boolean(),
        **dict.fromkeys(_SECONDS, pl.Float64()),
    }
)


def read_phases(folder: str | os.PathLike[str]) -> pl.DataFrame:
    """Read the rows of all processes of a run, by attempt, rank and time.

    An attempt continues from the state before its first training step, so what earlier attempts
    did from that step on is left out. Seconds of the device are null where they are unknown.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            "this run has no directory of phases",
            code="no-phases",
            where=folder,
            fix="Phases are recorded with profiler.phases=true, which is the default.",
        )
    parts = [_read_part(file) for file in sorted(folder.iterdir()) if _PART.fullmatch(file.name)]
    if not parts:
        return pl.DataFrame(schema=COLUMNS)
    rows = pl.concat(parts, how="diagonal").sort("attempt", "rank", "begin_s")
    first = rows.filter(pl.col("kind") == "train").group_by("attempt").agg(pl.col("step").min())
    first = first.sort("attempt")
    later = np.minimum.accumulate(first["step"].to_numpy()[::-1])[::-1]
    place = np.searchsorted(first["attempt"].to_numpy(), rows["attempt"].to_numpy(), side="right")
    redone_from = np.append(later, np.iinfo(np.int64).max)[place]
    return rows.filter(pl.col("step") < pl.Series(redone_from))


_PART = re.compile(r"rank(\d+)-attempt(\d+)-part(\d+)\.parquet")


def next_part(folder: Path, rank: int, attempt: int) -> Path:
    """Return the file of the next part of a process and attempt."""
    names = [_PART.fullmatch(file.name) for file in folder.iterdir()]
    numbers = [tuple(map(int, name.groups())) for name in names if name]
    part = 1 + max((part for r, a, part in numbers if (r, a) == (rank, attempt)), default=-1)
    return folder / f"rank{rank}-attempt{attempt}-part{part}.parquet"


def _read_part(file: Path) -> pl.DataFrame:
    try:
        part = pl.read_parquet(file)
        columns = [*COLUMNS, *(name for name in part.columns if name.startswith("device_"))]
        return part.select(columns).cast(COLUMNS)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(
            f"not a part of a run's phases: {str(error).splitlines()[0]}",
            code="damaged-phases",
            where=file,
            fix="Delete this file to read the others; its steps are then missing.",
        ) from error


@dataclass(frozen=True)
class Uneven:
    """The fastest and the slowest part of a run, where they are far apart."""

    fast_s: float  # median seconds of a step
    slow_s: float
    fast_steps: tuple[int, int]  # first and last
    slow_steps: tuple[int, int]
    changed: tuple[str, ...]  # large phases that take longer in the slow part
    unchanged: tuple[str, ...]

    @property
    def is_everywhere(self) -> bool:
        """Whether several large phases take longer and none does not.

        That is the effect of other programs on the machine, and hardly ever of the program itself.
        """
        return len(self.changed) > 1 and not self.unchanged


def unevenness(steady: pl.DataFrame) -> Uneven | None:
    """Return the fastest and the slowest part of steady steps; None where they are close.

    The steps are split into ten parts, or fewer so that each has at least 3. They are uneven if the
    median step of the slowest part takes at least 3 times that of the fastest. A phase of at least
    a tenth of the step in either part is large, and changed if its median at least doubles.
    """
    count = min(10, len(steady) // 3)
    if count < 2:
        return None
    parts = np.array_split(np.arange(len(steady)), count)
    walls, steps = steady["wall_s"].to_numpy(), steady["step"].to_numpy()
    medians = [float(np.median(walls[part])) for part in parts]
    fast, slow = (parts[place] for place in (np.argmin(medians), np.argmax(medians)))
    fast_s, slow_s = min(medians), max(medians)
    if not fast_s > 0 or slow_s < 3 * fast_s:
        return None
    changed: list[str] = []
    unchanged: list[str] = []
    for phase in PHASES:
        seconds = steady[f"{phase}_s"].to_numpy()
        before, after = (float(np.median(seconds[part])) for part in (fast, slow))
        if before >= 0.1 * fast_s or after >= 0.1 * slow_s:
            (changed if after >= 2 * before else unchanged).append(phase)
    ends = [(int(steps[part[0]]), int(steps[part[-1]])) for part in (fast, slow)]
    return Uneven(fast_s, slow_s, ends[0], ends[1], tuple(changed), tuple(unchanged))


@dataclass(frozen=True)
class PhaseTime:
    """The time of one phase in the steady steps; ``run_`` is in all rows, warm-up included."""

    phase: str
    seconds: float
    share: float  # of the wall time
    ms_per_step: float
    us_per_sample: float
    device_ms_per_step: float | None  # by the device's own clock
    run_seconds: float
    run_share: float


@dataclass(frozen=True)
class Rate:
    """Samples per second of the steady steps: the median and its 95 % interval.

    With an even number of steps the median is the lower of the two in the middle, which is the rate
    of a real step; the median of their times is then the higher of two.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class PhaseSummary:
    """Where the time of a run went: seconds are the mean over ranks, samples are their sum."""

    steps: int  # steady ones, as are the next three fields
    samples: int
    wall_s: float
    median_s: float
    warmup_steps: int
    profiled_steps: int
    unreadable_rows: int  # without a wall time, and left out of everything
    run_s: float
    residual: float  # the share of the wall time that no phase holds or several do; 0 by design
    samples_per_s: Rate | None
    uneven: Uneven | None
    phases: tuple[PhaseTime, ...]  # in the order of PHASES

    @property
    def adds_up(self) -> bool:
        """Whether the phases add up to the wall time within 1 %."""
        return self.residual <= 0.01

    @property
    def ms_per_step(self) -> float:
        """Mean wall time of a steady step."""
        return _ratio(self.wall_s, self.steps) * 1e3

    @property
    def us_per_sample(self) -> float:
        """Mean wall time of a sample in the steady steps."""
        return _ratio(self.wall_s, self.samples) * 1e6

    def of(self, phase: str) -> PhaseTime:
        """Return the time of one phase."""
        return self.phases[PHASES.index(phase)]

    @property
    def sentence(self) -> str:
        """What limits this run, in one line."""
        if not self.steps or not self.wall_s > 0:
            return "No training step was timed, so it is unknown what limits this run."
        return f"{capital('; '.join(self._clauses()))}."

    def _clauses(self) -> Iterator[str]:
        largest, second = sorted(self.phases, key=lambda time: -time.share)[:2]
        outside = self.of("validation").run_share + self.of("checkpoint").run_share
        sample = f", {seconds_text(largest.us_per_sample / 1e6)} per sample" if self.samples else ""
        step, whole = (seconds_text(x.ms_per_step / 1e3) for x in (largest, self))
        lines = [
            f"{_TAKES[largest.phase]} {share_text(largest.share)} of "
            f"{'a step' if outside > _OUTSIDE else 'the time'} ({step} of {whole} per step{sample})"
            f"{_advice(largest)}"
        ]
        if outside > _OUTSIDE:
            most = max("validation", "checkpoint", key=lambda name: self.of(name).run_seconds)
            said = f"validation, checkpoints and figures take {share_text(outside)} of the run"
            lines.insert(0 if outside > largest.run_share else 1, f"{said}{_ADVICE[most]}")
        yield from lines
        wait = self.of("data_wait")
        for time in (self.of("communication"), self.of("other")):
            if time is not largest and _advice(time):
                yield f"{_TAKES[time.phase]} {share_text(time.share)}{_advice(time)}"
        if wait is largest:
            yield f"{_TAKES[second.phase]} {share_text(second.share)}"
        else:
            yield f"{_TAKES['data_wait']} {share_text(wait.share)}{_advice(wait)}"
        if self.steps == 1:
            yield "this is from one step only"
        if not self.adds_up:
            yield f"beware, the phases are off by {share_text(self.residual)}"
        if self.uneven is not None and self.uneven.is_everywhere:
            fast, slow = seconds_text(self.uneven.fast_s), seconds_text(self.uneven.slow_s)
            yield (
                f"beware, the steps took from {fast} to {slow} over the run, in every large part "
                "of them, so the machine, or something else on it, changed"
            )


_OUTSIDE = 0.25
_WORTH_ADVICE = {"data_wait": 0.10, "communication": 0.20, "other": 0.10}
_ADVICE = {
    "data_wait": ", and mode=data shows the loader alone",
    "communication": ", which a larger data.batch_size or fewer ranks reduce",
    "other": ", and profiler.trace=true shows what that is",
    "validation": ", which a larger trainer.validate_every reduces",
    "checkpoint": ", and trainer.figures_every=0 draws no figures, a larger "
    "trainer.checkpoint_every_minutes writes fewer checkpoints",
}
_TAKES = {
    **{phase: f"{phase} takes" for phase in PHASES},
    "data_wait": "waiting for data takes",
    "transfer": "transfer to the device takes",
    "loss": "the loss takes",
    "communication": "communication of gradients takes",
    "optimizer": "the optimizer takes",
    "checkpoint": "checkpoints and figures take",
    "other": "what is in no named phase takes",
}


def _advice(time: PhaseTime) -> str:
    return _ADVICE[time.phase] if time.share > _WORTH_ADVICE.get(time.phase, math.inf) else ""


def summarise(frame: pl.DataFrame) -> PhaseSummary:
    """Return where the time of a run went, given any of the rows of `read_phases`."""
    rows = _readable(frame)
    steps = _by_step(rows)
    steady = _steady(steps)
    wall, samples = float(steady["wall_s"].sum()), int(steady["samples"].sum())
    run_s = _over_ranks(rows, "wall_s")
    phases = []
    for phase in PHASES:
        seconds = float(steady[f"{phase}_s"].sum())
        run_seconds, device = _over_ranks(rows, f"{phase}_s"), f"device_{phase}_s"
        known = steady[device].drop_nulls().to_numpy() if device in steady.columns else ()
        phases.append(
            PhaseTime(
                phase,
                seconds,
                _ratio(seconds, wall),
                _ratio(seconds, len(steady)) * 1e3,
                _ratio(seconds, samples) * 1e6,
                float(np.mean(known)) * 1e3 if len(known) else None,
                run_seconds,
                _ratio(run_seconds, run_s),
            )
        )
    walls, profiled = np.sort(steady["wall_s"].to_numpy()), 0
    if len(steady) and not steady["profiled"].any():
        profiled = len(steps.filter(pl.col("profiled"), ~pl.col("warmup")))
    return PhaseSummary(
        steps=len(steady),
        samples=samples,
        wall_s=wall,
        median_s=float(walls[len(walls) // 2]) if len(walls) else 0.0,
        warmup_steps=len(steps) - len(steady) - profiled,
        profiled_steps=profiled,
        unreadable_rows=len(frame) - len(rows),
        run_s=run_s,
        residual=_residual(rows),
        samples_per_s=_rate(steady),
        uneven=unevenness(steady),
        phases=tuple(phases),
    )


def steady_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row per steady training step: mean seconds over ranks, all their samples.

    The first step of every attempt is warm-up, and so are the steps right after it that take more
    than 1.5 times the median of the attempt's second half, up to half of its steps. Steps with a
    profiler on are left out too. Where no step would be left, none is cut.
    """
    return _steady(_by_step(_readable(frame)))


def _readable(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with a wall time, with all columns and finite."""
    missing = {"rank": pl.lit(0), "attempt": pl.lit(0), "profiled": pl.lit(False)}
    frame = frame.with_columns(
        value.alias(name) for name, value in missing.items() if name not in frame.columns
    )
    absent = [name for name in COLUMNS if name not in frame.columns]
    if absent:
        raise InputError(f"these are not phases: no column '{absent[0]}'", code="missing-column")
    device = [name for name in frame.columns if name.startswith("device_")]
    frame = frame.with_columns(
        pl.when(pl.col(name).cast(pl.Float64).is_finite()).then(pl.col(name).cast(pl.Float64))
        for name in (*_SECONDS, *device)
    )
    rows = frame.filter(pl.col("wall_s") >= 0, pl.col("begin_s").is_not_null())
    return rows.with_columns(
        *(pl.col(f"{phase}_s").fill_null(0.0) for phase in PHASES),
        pl.col("samples").fill_null(0),
        pl.col("profiled").fill_null(False),
    )


def _by_step(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per training step, all ranks together, and whether it is warm-up."""
    device = [name for name in rows.columns if name.startswith("device_")]
    steps = (
        rows.filter(pl.col("kind") == "train")
        .group_by("attempt", "step")
        .agg(
            pl.col("epoch").first(),
            pl.col("samples").sum(),
            pl.col("profiled").any(),
            *(pl.col(name).mean() for name in (*_SECONDS, *device)),
        )
        .sort("attempt", "step")
    )
    cut = {
        attempt: _warmup_length(part["wall_s"].to_numpy())
        for (attempt,), part in steps.group_by("attempt")
    }
    place = pl.int_range(pl.len()).over("attempt")
    length = pl.col("attempt").replace_strict(cut, return_dtype=pl.Int64)
    return steps.with_columns((place < length).alias("warmup"))


def _warmup_length(walls: Doubles) -> int:
    half = len(walls) // 2
    usual = float(np.median(walls[half:]))
    length = 1
    while length < half and walls[length] > 1.5 * usual:
        length += 1
    return length


def _steady(steps: pl.DataFrame) -> pl.DataFrame:
    warm = steps.filter(~pl.col("warmup"))
    undisturbed = warm.filter(~pl.col("profiled"))
    kept = next((part for part in (undisturbed, warm) if len(part)), steps)
    return kept.drop("warmup")


def _over_ranks(rows: pl.DataFrame, name: str) -> float:
    """Return the seconds of a run: of each attempt the mean over its ranks."""
    attempts = rows.group_by("attempt").agg(pl.col(name).sum() / pl.col("rank").n_unique())
    return float(attempts[name].sum())


def _residual(rows: pl.DataFrame) -> float:
    held = pl.sum_horizontal(f"{phase}_s" for phase in PHASES)
    end = pl.col("begin_s") + pl.col("wall_s")
    runs = rows.group_by("rank", "attempt").agg(
        (held - pl.col("wall_s")).abs().sum().alias("within"),
        (end.max() - pl.col("begin_s").min()).alias("elapsed"),
        pl.col("wall_s").sum(),
    )
    between = float((runs["elapsed"] - runs["wall_s"]).abs().sum())
    off = _ratio(float(runs["within"].sum()) + between, float(runs["elapsed"].sum()))
    # Below this it is the rounding of seconds as floats.
    return off if off > 1e-9 else 0.0


def _rate(steady: pl.DataFrame) -> Rate | None:
    counted = steady.filter(pl.col("samples") > 0, pl.col("wall_s") > 0)
    rates = np.sort((counted["samples"] / counted["wall_s"]).to_numpy())
    if not len(rates):
        return None
    reach = 0.98 * math.sqrt(len(rates))
    low = max(math.floor(len(rates) / 2 - reach), 0)
    high = min(math.ceil(len(rates) / 2 + reach), len(rates) - 1)
    return Rate(float(rates[(len(rates) - 1) // 2]), float(rates[low]), float(rates[high]))


def _ratio(part: float, whole: float) -> float:
    """Return a share; 0 where the whole is nothing, or so little that it is not a number."""
    ratio = part / whole if whole > 0 else 0.0
    return ratio if math.isfinite(ratio) else 0.0
