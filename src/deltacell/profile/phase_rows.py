"""Read the phases of a run, select its steady steps, and find what limits it.

This does not import PyTorch, so explanations do not wait for it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject

PHASES = (
    *("data_wait", "transfer", "preparation", "forward", "loss", "backward", "communication"),
    *("optimizer", "logging", "validation", "checkpoint", "other"),
)
_SECONDS = ("begin_s", "wall_s", *(f"{phase}_s" for phase in PHASES))
COLUMNS = pl.Schema(
    {
        **dict.fromkeys(("rank", "attempt", "epoch", "step"), pl.Int64()),
        "kind": pl.String(),
        "samples": pl.Int64(),
        "profiled": pl.Boolean(),
        **dict.fromkeys(_SECONDS, pl.Float64()),
    },
)


def read_phases(folder: str | os.PathLike[str]) -> pl.DataFrame:
    """Read the rows of all processes of a run, sorted by attempt, rank and time.

    Steps that a later attempt repeated are left out.
    """
    folder = Path(folder)
    if not folder.is_dir():
        fix = (
            "A predictor that is fitted in one call, such as boosted trees, has no steps and so no "
            "phases. A network records them unless profiler.phases=false."
        )
        raise InputError("this run has no phases", code="no-phases", where=folder, fix=fix)
    parts = [_read_part(file) for file in sorted(folder.glob("rank*-attempt*-part*.parquet"))]
    rows = pl.concat([pl.DataFrame(schema=COLUMNS), *parts])
    rows = rows.sort("attempt", "rank", "begin_s")
    return rows.filter(pl.col("step") < _repeated_from(rows))


def _repeated_from(rows: pl.DataFrame) -> pl.Series:
    """Return for each row the first step that a later attempt trains, a large number if none."""
    first = rows.filter(kind="train").group_by("attempt").agg(pl.col("step").min())
    first = first.sort("attempt")
    from_the_last = first["step"].to_numpy()[::-1]
    first_of_later = np.minimum.accumulate(from_the_last)[::-1]
    attempts = first["attempt"].to_numpy()
    place = np.searchsorted(attempts, rows["attempt"].to_numpy(), side="right")
    never = np.iinfo(np.int64).max
    return pl.Series(np.append(first_of_later, never)[place])


def _read_part(file: Path) -> pl.DataFrame:
    """Read the rows of a process; raise if the file is damaged or a value is missing."""
    try:
        part = pl.read_parquet(Path(file).absolute(), glob=False)
        part = part.select(list(COLUMNS)).cast(COLUMNS)
        is_complete = pl.all().is_not_null().all()
        is_finite = pl.col(_SECONDS).is_finite().all()
        if not part.select(pl.all_horizontal(is_complete, is_finite)).item():
            raise OSError("a value is missing or not finite")
        return part
    except (pl.exceptions.PolarsError, OSError) as error:
        message = f"not a valid file of phases: {str(error).splitlines()[0]}"
        fix = "Delete this file to read the others without its steps."
        raise InputError(message, code="damaged-phases", where=file, fix=fix) from error


@dataclass(frozen=True)
class Uneven:
    """The median step in the fastest and in the slowest part of an uneven run.

    A run is uneven everywhere if it has several large phases and all of them take longer. The cause
    is then nearly always another program on the machine.
    """

    fast_s: float
    slow_s: float
    first: int  # the first and the last step of the slowest part
    last: int
    changed: tuple[str, ...]  # large phases that take longer in the slowest part
    is_everywhere: bool


def unevenness(steady: pl.DataFrame) -> Uneven | None:
    """Return the fastest and the slowest part of steady steps; None if they are similar.

    The steps are split into up to ten parts of at least 3. They are uneven if the median step of
    the slowest part takes at least 3 times that of the fastest. A phase of at least a tenth of the
    step in either part is large, and it changed if its median at least doubles.
    """
    count = min(10, len(steady) // 3)
    if count < 2:
        return None
    part = pl.int_range(pl.len()) * count // pl.len()
    parts = steady.group_by(part.alias("part"), maintain_order=True).agg(
        pl.col(_SECONDS).median(),
        first=pl.first("step"),
        last=pl.last("step"),
    )
    parts = parts.sort("wall_s", descending=True, maintain_order=True)
    slow, *_, fast = parts.iter_rows(named=True)
    if not fast["wall_s"] > 0 or slow["wall_s"] < 3 * fast["wall_s"]:
        return None
    large = [phase for phase in PHASES if _is_large(phase, fast) or _is_large(phase, slow)]
    changed = [phase for phase in large if slow[f"{phase}_s"] >= 2 * fast[f"{phase}_s"]]
    return Uneven(
        fast_s=fast["wall_s"],
        slow_s=slow["wall_s"],
        first=slow["first"],
        last=slow["last"],
        changed=tuple(changed),
        is_everywhere=1 < len(changed) == len(large),
    )


def _is_large(phase: str, medians: Mapping[str, float]) -> bool:
    """Return whether a phase takes at least a tenth of a step."""
    return medians[f"{phase}_s"] >= 0.1 * medians["wall_s"]


@dataclass(frozen=True)
class PhaseTime:
    """The time of one phase in steady steps, and (``run_``) in all rows including warm-up."""

    phase: str
    seconds: float
    share: float  # of the wall time
    ms_per_step: float
    us_per_sample: float
    run_seconds: float
    run_share: float


class PhaseSummary:
    """Where the time of a run went: seconds are the mean over ranks, samples their sum.

    ``steady`` has one row per steady training step, to which ``steps``, ``samples``, ``wall_s`` and
    ``median_s`` refer. The first step of every attempt is warm-up, and so are the steps right after
    it that take more than 1.5 times the median of the attempt's second half, up to half of its
    steps. Steps with a profiler on are left out too. If no step would be left, none is cut.

    ``residual`` is the share of the wall time in no phase or in several, 0 by design;
    ``samples_per_s`` is the median and its 95 % interval, or None.
    """

    def __init__(self, rows: pl.DataFrame) -> None:
        steps = _by_step(rows)
        warm = steps.filter(~pl.col("warmup"))
        undisturbed = warm.filter(~pl.col("profiled"))
        steady = next((part for part in (undisturbed, warm) if len(part)), steps)
        self.steady = steady = steady.drop("warmup")
        self.steps = len(steady)
        self.samples = int(steady["samples"].sum())
        self.wall_s = wall = float(steady["wall_s"].sum())
        # The time of a real step, not the mean of the two in the middle.
        self.median_s = steady["wall_s"].quantile(0.5, "higher") or 0.0
        self.profiled_steps = 0
        if len(steady) and not steady["profiled"].any():
            self.profiled_steps = len(warm.filter("profiled"))
        self.warmup_steps = len(steps) - len(steady) - self.profiled_steps
        mean_over_ranks = pl.col(_SECONDS).sum() / pl.col("rank").n_unique()
        attempts = rows.group_by("attempt").agg(mean_over_ranks)
        run = attempts.sum().row(0, named=True)
        self.run_s = run_s = run["wall_s"] or 0.0
        self.residual = _residual(rows)
        self.samples_per_s = _rate(steady)
        self.uneven = unevenness(steady)
        phases = []
        for phase in PHASES:
            seconds = float(steady[f"{phase}_s"].sum())
            in_run = run[f"{phase}_s"] or 0.0
            phases.append(
                PhaseTime(
                    phase=phase,
                    seconds=seconds,
                    share=_ratio(seconds, wall),
                    ms_per_step=_ratio(seconds, self.steps) * 1e3,
                    us_per_sample=_ratio(seconds, self.samples) * 1e6,
                    run_seconds=in_run,
                    run_share=_ratio(in_run, run_s),
                )
            )
        self.phases = tuple(phases)  # in the order of PHASES

    @property
    def ms_per_step(self) -> float:
        """Mean milliseconds of a steady step."""
        return _ratio(self.wall_s, self.steps) * 1e3

    def to_json(self) -> JsonObject:
        """Return the summary as a JSON-serialisable dict."""
        facts = {name: value for name, value in vars(self).items() if name != "steady"}
        facts["uneven"] = None if self.uneven is None else asdict(self.uneven)
        facts["phases"] = [asdict(time) for time in self.phases]
        return facts

    def of(self, phase: str) -> PhaseTime:
        """Return the summary of a phase."""
        return self.phases[PHASES.index(phase)]


def _by_step(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per training step, with the mean over ranks and whether it is warm-up."""
    of_step = rows.filter(kind="train").group_by("attempt", "step")
    steps = of_step.agg(
        pl.col("epoch").first(),
        pl.col("samples").sum(),
        pl.col("profiled").any(),
        pl.col(_SECONDS).mean(),
    )
    steps = steps.sort("attempt", "step")
    place = pl.int_range(pl.len()).over("attempt")
    half = pl.len().over("attempt") // 2
    steps = steps.with_columns(place=place, is_late=place >= half)
    usual = pl.col("wall_s").filter("is_late").median().over("attempt")
    is_early_and_slow = ~pl.col("is_late") & (pl.col("wall_s") > 1.5 * usual)
    is_slow = (pl.col("place") == 0) | is_early_and_slow
    slow_so_far = is_slow.cast(pl.Int8).cum_min().over("attempt")
    steps = steps.with_columns(warmup=slow_so_far.cast(pl.Boolean))
    return steps.drop("place", "is_late")


def _residual(rows: pl.DataFrame) -> float:
    """Return the share of the elapsed time in no phase, in several, or between rows."""
    in_phases = pl.sum_horizontal(f"{phase}_s" for phase in PHASES)
    end = pl.col("begin_s") + pl.col("wall_s")
    runs = rows.group_by("rank", "attempt").agg(
        (in_phases - pl.col("wall_s")).abs().sum().alias("within"),
        (end.max() - pl.col("begin_s").min()).alias("elapsed"),
        pl.col("wall_s").sum(),
    )
    between_rows = (runs["elapsed"] - runs["wall_s"]).abs()
    outside = float(runs["within"].sum()) + float(between_rows.sum())
    residual = _ratio(outside, float(runs["elapsed"].sum()))
    # Less than this is rounding.
    return residual if residual > 1e-9 else 0.0


def _rate(steady: pl.DataFrame) -> tuple[float, float, float] | None:
    """Return the median of samples per second over steps, and its 95 % interval by ranks."""
    has_rate = (pl.col("samples") > 0) & (pl.col("wall_s") > 0)
    counted = steady.filter(has_rate)
    rates = (counted["samples"] / counted["wall_s"]).sort().to_list()
    n_rates = len(rates)
    if not n_rates:
        return None
    reach = 0.98 * math.sqrt(n_rates)
    low = max(math.floor(n_rates / 2 - reach), 0)
    high = min(math.ceil(n_rates / 2 + reach), n_rates - 1)
    # The lower of the two in the middle is the rate of the real step that `median_s` refers to.
    middle = (n_rates - 1) // 2
    return rates[middle], rates[low], rates[high]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
