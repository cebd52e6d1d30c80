"""Read the components of a run's recorded steps.

This does not import PyTorch, so explanations do not wait for it.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

import polars as pl

from deltacell.base.errors import InputError
from deltacell.profile.row_files import prefix_of

WITHIN = " > "  # between a component and one inside it
NO_COMPONENT = ""  # the time of a pass outside all components


class StepPass(StrEnum):
    """A part of a step that has components."""

    forward = "forward"
    backward = "backward"
    update = "update"


COMPONENT_COLUMNS = pl.Schema(
    {
        **dict.fromkeys(("rank", "attempt", "step", "samples"), pl.Int64()),
        "pass": pl.String(),
        "component": pl.String(),  # `NO_COMPONENT` for the rest of a pass
        "seconds": pl.Float64(),  # without those inside it
    },
)


def component_prefix(rank: int, attempt: int) -> str:
    """Return what the names of the files of a rank in an attempt begin with."""
    return f"components-{prefix_of(rank, attempt)}"


def read_components(folder: str | os.PathLike[str]) -> pl.DataFrame:
    """Return the rows of all processes of a run, with `COMPONENT_COLUMNS`; none if it has none."""
    parts = [pl.DataFrame(schema=COMPONENT_COLUMNS)]
    for file in sorted(Path(folder).glob("components-*.parquet")):
        parts.append(_read_part(file))
    return pl.concat(parts)


def _read_part(file: Path) -> pl.DataFrame:
    try:
        rows = pl.read_parquet(file.absolute(), glob=False)
        part = rows.select(list(COMPONENT_COLUMNS)).cast(COMPONENT_COLUMNS)
        is_known = part.select(pl.all_horizontal(pl.all().is_not_null().all())).item()
        is_time = part["seconds"].is_finite().all() and (part["seconds"] >= 0).all()
        if not (is_known and is_time and part["pass"].is_in(list(StepPass)).all()):
            raise OSError("a value is missing or impossible")
        return part
    except (pl.exceptions.PolarsError, OSError) as error:
        what = f"not a valid file of components: {str(error).splitlines()[0]}"
        fix = "Delete this file to explain the run without it."
        raise InputError(what, code="damaged-components", where=file, fix=fix) from error
