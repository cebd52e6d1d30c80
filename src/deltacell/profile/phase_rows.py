"""The rows of phases on disk: Parquet parts, one or more a process and attempt.

Reading them needs no PyTorch, so that explanations do not wait for it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
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
    """Return for each row the first step that a later attempt did again."""
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
