"""The rows of phases on disk: Parquet parts, one or more a process and attempt.

Reading them needs no PyTorch, so that explanations do not wait for it.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.errors import InputError

PHASES = (
    "data_wait",
    "transfer",
    "preparation",
    "forward",
    "loss",
    "backward",
    "communication",
    "optimizer",
    "logging",
    "validation",
    "checkpoint",
    "other",
)
KINDS = ("train", "between")
COLUMNS = pl.Schema(
    {
        "rank": pl.Int64(),
        "attempt": pl.Int64(),
        "epoch": pl.Int64(),
        "step": pl.Int64(),
        "kind": pl.String(),
        "samples": pl.Int64(),
        "profiled": pl.Boolean(),
        "begin_s": pl.Float64(),
        "wall_s": pl.Float64(),
        **{f"{phase}_s": pl.Float64() for phase in PHASES},
    }
)


def read_phases(folder: str | os.PathLike[str]) -> pl.DataFrame:
    """Read the rows of all processes of a run.

    An attempt continues from the state before its first training step. So what earlier attempts
    did from that step on was thrown away, and their rows are left out.

    Parameters
    ----------
    folder
        Where the parts are.

    Returns
    -------
    The rows by attempt, rank and time. Seconds of the device are null where they are not known.
    Without any part, no rows.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            "there is no folder of phases here",
            where=folder,
            fix="Phases are recorded with profiler.phases=true, which is the default.",
        )
    parts = [_read_part(file) for file in sorted(folder.iterdir()) if _PART.fullmatch(file.name)]
    if not parts:
        return pl.DataFrame(schema=COLUMNS)
    rows = pl.concat(parts, how="diagonal").sort("attempt", "rank", "begin_s")
    return rows.filter(pl.col("step") < _redone_from(rows))


def part_name(rank: int, attempt: int, part: int) -> str:
    """Return the name of a part's file."""
    return f"rank{rank}-attempt{attempt}-part{part}.parquet"


def next_part(folder: Path, rank: int, attempt: int) -> int:
    """Return the number of the next part of a process and attempt."""
    names = [_PART.fullmatch(file.name) for file in folder.iterdir()]
    numbers = [tuple(map(int, name.groups())) for name in names if name]
    return 1 + max((part for r, a, part in numbers if (r, a) == (rank, attempt)), default=-1)


_PART = re.compile(r"rank(\d+)-attempt(\d+)-part(\d+)\.parquet")


def _read_part(file: Path) -> pl.DataFrame:
    try:
        part = pl.read_parquet(file)
        columns = [*COLUMNS, *(name for name in part.columns if name.startswith("device_"))]
        return part.select(columns).cast(COLUMNS)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(
            f"this is not a part of a run's phases: {str(error).splitlines()[0]}",
            where=file,
            fix="Delete this file to read the others; its steps are then missing.",
        ) from error


def _redone_from(rows: pl.DataFrame) -> pl.Series:
    first = (
        rows.filter(pl.col("kind") == "train")
        .group_by("attempt")
        .agg(pl.col("step").min())
        .sort("attempt")
    )
    attempts = first["attempt"].to_numpy()
    never = np.iinfo(np.int64).max
    later = np.append(np.minimum.accumulate(first["step"].to_numpy()[::-1])[::-1], never)
    place = np.searchsorted(attempts, rows["attempt"].to_numpy(), side="right")
    return pl.Series("redone_from", later[place])


RULE = (
    "The steady steps are cut into ten parts of the run, or into fewer so that each has at least 3 "
    "steps. They are uneven where the median step of the slowest part takes 3 times that of the "
    "fastest or more. A phase that is a tenth of the step in either part is a large one, and took "
    "part in it where its own median is twice as long or more."
)


@dataclass(frozen=True)
class Uneven:
    """The fastest and the slowest part of a run, where they are far apart; see `RULE`.

    Parameters
    ----------
    fast_s, slow_s
        Median seconds of a step in either.
    fast_steps, slow_steps
        The first and the last step of either.
    changed
        The large phases that take longer in the slow one.
    unchanged
        The large phases that do not.
    """

    fast_s: float
    slow_s: float
    fast_steps: tuple[int, int]
    slow_steps: tuple[int, int]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]

    @property
    def is_everywhere(self) -> bool:
        """Whether several large phases take longer and none does not.

        That is what other programs on the machine do, and hardly ever a part of the program.
        """
        return len(self.changed) > 1 and not self.unchanged


def unevenness(steady: pl.DataFrame) -> Uneven | None:
    """Return the fastest and the slowest part of a run; None where they are not far apart.

    Parameters
    ----------
    steady
        Of `deltacell.profile.steady_steps`.
    """
    count = min(_PARTS, len(steady) // _FEWEST)
    if count < 2:
        return None
    parts = np.array_split(np.arange(len(steady)), count)
    walls = steady["wall_s"].to_numpy()
    medians = [float(np.median(walls[part])) for part in parts]
    fast, slow = (parts[place] for place in (np.argmin(medians), np.argmax(medians)))
    fast_s, slow_s = min(medians), max(medians)
    if not fast_s > 0 or slow_s < _UNEVEN * fast_s:
        return None
    changed: list[str] = []
    unchanged: list[str] = []
    for phase in PHASES:
        seconds = steady[f"{phase}_s"].to_numpy()
        before, after = (float(np.median(seconds[part])) for part in (fast, slow))
        if before >= _LARGE * fast_s or after >= _LARGE * slow_s:
            (changed if after >= _CHANGED * before else unchanged).append(phase)
    steps = steady["step"].to_numpy()
    return Uneven(
        fast_s,
        slow_s,
        (int(steps[fast[0]]), int(steps[fast[-1]])),
        (int(steps[slow[0]]), int(steps[slow[-1]])),
        tuple(changed),
        tuple(unchanged),
    )


_PARTS = 10
_FEWEST = 3
_UNEVEN = 3.0
_CHANGED = 2.0
_LARGE = 0.1


WARMUP_RULE = (
    "The first step of every attempt is warm-up, and so are the steps right after it that take "
    "more than 1.5 times the median of the attempt's second half, up to half of its steps. Steps "
    "with a profiler on are left out too. Where no step would be left, none is cut."
)


@dataclass(frozen=True)
class PhaseTime:
    """The time of one phase.

    Parameters
    ----------
    phase
        Its name.
    seconds, share
        In the steady steps, and of their wall time.
    ms_per_step, us_per_sample
        In the steady steps.
    device_ms_per_step
        By the device's own clock; null where it was not known.
    run_seconds, run_share
        In all rows, those between steps and the warm-up included, and of their wall time.
    """

    phase: str
    seconds: float
    share: float
    ms_per_step: float
    us_per_sample: float
    device_ms_per_step: float | None
    run_seconds: float
    run_share: float


@dataclass(frozen=True)
class Rate:
    """Samples a second of the steady steps: the median, and where it lies with 95 %.

    Of an even number of steps the median is the lower of the two in the middle, which is the rate
    of a step that was; the median of their times is then the higher of two.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class PhaseSummary:
    """Where the time of a run went. Seconds are the mean over ranks, samples are their sum.

    Parameters
    ----------
    steps, samples, wall_s
        Of the steady steps. Without samples, times per sample are 0.
    warmup_steps, profiled_steps
        Steps that were cut; see `WARMUP_RULE`.
    unreadable_rows
        Rows without a wall time, which are left out of everything.
    run_s
        Wall time of all rows.
    residual
        The share of the wall time, from the first row to the last, that no phase holds or that
        several do. By construction it is 0.
    samples_per_s
        Of the steady steps; null without samples.
    median_s
        The median wall time of a steady step; 0 without steps.
    uneven
        The fastest and the slowest part of the run, where they are far apart.
    phases
        One for each of `PHASES`, in that order.
    """

    steps: int
    samples: int
    wall_s: float
    warmup_steps: int
    profiled_steps: int
    unreadable_rows: int
    run_s: float
    residual: float
    samples_per_s: Rate | None
    median_s: float
    uneven: Uneven | None
    phases: tuple[PhaseTime, ...]

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
            return "No training step was timed, so nothing can be said of what limits this run."
        largest = max(self.phases, key=_share)
        outside = self.of("validation").run_share + self.of("checkpoint").run_share
        clauses = [self._lead(largest, "of a step" if outside > _OUTSIDE else "of the time")]
        if outside > _OUTSIDE:
            where = 0 if outside > largest.run_share else 1
            clauses.insert(where, self._outside(outside))
        for phase in ("communication", "other"):
            time = self.of(phase)
            if time is not largest and time.share > _WORTH_ADVICE[phase]:
                clauses.append(f"{_TAKES[phase]} {_percent(time.share)}{_ADVICE[phase]}")
        wait = self.of("data_wait")
        if wait is not largest:
            advice = _ADVICE["data_wait"] if wait.share > _WORTH_ADVICE["data_wait"] else ""
            clauses.append(f"{_TAKES['data_wait']} {_percent(wait.share)}{advice}")
        else:
            second = max((time for time in self.phases if time is not wait), key=_share)
            clauses.append(f"{_TAKES[second.phase]} {_percent(second.share)}")
        if self.steps == 1:
            clauses.append("this is from one step only")
        if not self.adds_up:
            clauses.append(f"beware, the phases are off by {_percent(self.residual)}")
        if self.uneven is not None and self.uneven.is_everywhere:
            from_s, to_s = (_time(s) for s in (self.uneven.fast_s, self.uneven.slow_s))
            clauses.append(
                f"beware, the steps took from {from_s} to {to_s} over the run, in every large part "
                "of them, so the machine, or something else on it, changed"
            )
        text = "; ".join(clauses)
        return f"{text[0].upper()}{text[1:]}."

    def _lead(self, time: PhaseTime, of_what: str) -> str:
        unit, size = _unit(self.ms_per_step / 1e3)
        numbers = f"{_number(time.ms_per_step / 1e3 / size)} of "
        numbers += f"{_number(self.ms_per_step / 1e3 / size)} {unit} a step"
        if self.samples:
            unit, size = _unit(time.us_per_sample / 1e6)
            numbers += f", {_number(time.us_per_sample / 1e6 / size)} {unit} a sample"
        advice = ""
        if time.phase in _WORTH_ADVICE and time.share > _WORTH_ADVICE[time.phase]:
            advice = _ADVICE[time.phase]
        return f"{_TAKES[time.phase]} {_percent(time.share)} {of_what} ({numbers}){advice}"

    def _outside(self, outside: float) -> str:
        validation, checkpoint = self.of("validation"), self.of("checkpoint")
        most = max(validation, checkpoint, key=lambda time: time.run_seconds).phase
        return (
            f"validation, checkpoints and figures take {_percent(outside)} of the run"
            f"{_ADVICE[most]}"
        )


def summarise(frame: pl.DataFrame) -> PhaseSummary:
    """Return where the time of a run went.

    Parameters
    ----------
    frame
        The rows of `deltacell.profile.read_phases`. There may be none, or none of training.
    """
    rows, unreadable = _readable(frame)
    steps = _mark(_by_step(rows))
    steady = _steady(steps)
    wall, samples = _sum(steady, "wall_s"), int(_sum(steady, "samples"))
    run_s = _over_ranks(rows, "wall_s")
    phases = []
    for phase in PHASES:
        seconds, run_seconds = _sum(steady, f"{phase}_s"), _over_ranks(rows, f"{phase}_s")
        phases.append(
            PhaseTime(
                phase,
                seconds,
                _ratio(seconds, wall),
                _ratio(seconds, len(steady)) * 1e3,
                _ratio(seconds, samples) * 1e6,
                _device_ms(steady, phase),
                run_seconds,
                _ratio(run_seconds, run_s),
            )
        )
    return PhaseSummary(
        steps=len(steady),
        samples=samples,
        wall_s=wall,
        warmup_steps=len(steps) - len(steady) - _left_out_profiled(steps, steady),
        profiled_steps=_left_out_profiled(steps, steady),
        unreadable_rows=unreadable,
        run_s=run_s,
        residual=_residual(rows),
        samples_per_s=_rate(steady),
        median_s=_median(steady),
        uneven=unevenness(steady),
        phases=tuple(phases),
    )


def steady_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each steady training step: mean seconds over ranks, all their samples.

    What is cut is said by `WARMUP_RULE`.

    Parameters
    ----------
    frame
        The rows of `deltacell.profile.read_phases`.
    """
    return _steady(_mark(_by_step(_readable(frame)[0])))


_OUTSIDE = 0.25
_WORTH_ADVICE = {"data_wait": 0.10, "communication": 0.20, "other": 0.10}
_ADVICE = {
    "data_wait": ", and mode=data shows the loader alone",
    "communication": ", which a larger data.batch_size or fewer ranks make less",
    "other": ", and profiler.trace=true shows what that is",
    "validation": ", and a larger trainer.validate_every makes it less",
    "checkpoint": ", and trainer.figures_every=0 draws no figures, a larger "
    "trainer.checkpoint_every_minutes writes fewer checkpoints",
}
_TAKES = {
    "data_wait": "waiting for data takes",
    "transfer": "transfer to the device takes",
    "preparation": "preparation takes",
    "forward": "forward takes",
    "loss": "the loss takes",
    "backward": "backward takes",
    "communication": "communication of gradients takes",
    "optimizer": "the optimizer takes",
    "logging": "logging takes",
    "validation": "validation takes",
    "checkpoint": "checkpoints and figures take",
    "other": "what is in no named phase takes",
}
_COUNTED = ("rank", "attempt")
_SECONDS = ("begin_s", "wall_s", *(f"{phase}_s" for phase in PHASES))


def _readable(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    missing = {"rank": pl.lit(0), "attempt": pl.lit(0), "profiled": pl.lit(False)}
    frame = frame.with_columns(
        value.alias(name) for name, value in missing.items() if name not in frame.columns
    )
    absent = [name for name in COLUMNS if name not in frame.columns]
    if absent:
        raise InputError(f"these are not phases: there is no column '{absent[0]}'")
    device = [name for name in frame.columns if name.startswith("device_")]
    seconds = [pl.col(name).cast(pl.Float64) for name in (*_SECONDS, *device)]
    frame = frame.with_columns(
        pl.when(column.is_finite()).then(column).alias(column.meta.output_name())
        for column in seconds
    )
    rows = frame.filter(pl.col("wall_s") >= 0, pl.col("begin_s").is_not_null())
    filled = [pl.col(f"{phase}_s").fill_null(0.0) for phase in PHASES]
    return (
        rows.with_columns(
            *filled, pl.col("samples").fill_null(0), pl.col("profiled").fill_null(False)
        ),
        len(frame) - len(rows),
    )


def _by_step(rows: pl.DataFrame) -> pl.DataFrame:
    device = [name for name in rows.columns if name.startswith("device_")]
    return (
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


def _mark(steps: pl.DataFrame) -> pl.DataFrame:
    cut = {
        attempt: _warmup_length(part["wall_s"].to_numpy())
        for (attempt,), part in steps.group_by("attempt")
    }
    place = pl.int_range(pl.len()).over("attempt")
    length = pl.col("attempt").replace_strict(cut, return_dtype=pl.Int64)
    return steps.with_columns((place < length).alias("warmup"))


def _warmup_length(walls: npt.NDArray[np.float64]) -> int:
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


def _left_out_profiled(steps: pl.DataFrame, steady: pl.DataFrame) -> int:
    if not len(steady) or steady["profiled"].any():
        return 0
    return len(steps.filter(pl.col("profiled"), ~pl.col("warmup")))


def _sum(frame: pl.DataFrame, name: str) -> float:
    return float(frame[name].sum())


def _over_ranks(rows: pl.DataFrame, name: str) -> float:
    attempts = rows.group_by("attempt").agg(pl.col(name).sum() / pl.col("rank").n_unique())
    return _sum(attempts, name)


def _device_ms(steady: pl.DataFrame, phase: str) -> float | None:
    name = f"device_{phase}_s"
    if name not in steady.columns or steady[name].null_count() == len(steady):
        return None
    return float(steady[name].drop_nulls().to_numpy().mean()) * 1e3


def _residual(rows: pl.DataFrame) -> float:
    held = pl.sum_horizontal(f"{phase}_s" for phase in PHASES)
    end = pl.col("begin_s") + pl.col("wall_s")
    runs = rows.group_by(_COUNTED).agg(
        (held - pl.col("wall_s")).abs().sum().alias("within"),
        (end.max() - pl.col("begin_s").min()).alias("elapsed"),
        pl.col("wall_s").sum(),
    )
    between = float((runs["elapsed"] - runs["wall_s"]).abs().sum())
    off = _ratio(_sum(runs, "within") + between, _sum(runs, "elapsed"))
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


def _median(steady: pl.DataFrame) -> float:
    walls = np.sort(steady["wall_s"].to_numpy())
    return float(walls[len(walls) // 2]) if len(walls) else 0.0


def _ratio(part: float, whole: float) -> float:
    ratio = part / whole if whole > 0 else 0.0
    return ratio if math.isfinite(ratio) else 0.0


def _share(time: PhaseTime) -> float:
    return time.share


def _percent(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "under 0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def _unit(seconds: float) -> tuple[str, float]:
    if seconds >= 1:
        return "s", 1.0
    return ("ms", 1e-3) if seconds >= 1e-4 else ("µs", 1e-6)


def _time(seconds: float) -> str:
    unit, size = _unit(seconds)
    return f"{_number(seconds / size)} {unit}"


def _number(value: float) -> str:
    # The bounds are where a number would round up to one more digit.
    if value >= 9.995:
        return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.995 else f"{value:.2g}"
