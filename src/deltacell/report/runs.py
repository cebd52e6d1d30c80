"""Lists of runs, for the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import polars as pl

from deltacell.report.page import fixed, page
from deltacell.report.terminal import print_table

_VALIDATION = "validation_pearson"


class RunTable(Protocol):
    """Runs with their settings, the best first."""

    def to_table(self) -> pl.DataFrame:
        """Return a row per run."""


def print_runs(listed: RunTable, folder: str) -> None:
    """Print a row for each run, with the settings that differ."""
    table = listed.to_table()
    print_table(_title(table, folder), _headers(table), _rows(table))


def runs_page(listed: RunTable, folder: str) -> str:
    """Return a self-contained page whose table can be sorted."""
    table = listed.to_table()
    is_number = [name in (_VALIDATION, "epoch") for name in table.columns]
    return page(
        "runs",
        scripts=["table.js", "runs.js"],
        title=_title(table, folder),
        headers=list(zip(_headers(table), is_number, strict=True)),
        rows=[
            list(zip(texts, values, is_number, strict=True))
            for texts, values in zip(_rows(table), table.rows(), strict=True)
        ],
    )


def _title(table: pl.DataFrame, folder: str) -> str:
    return f"{table.height} runs in {folder}"


def _headers(table: pl.DataFrame) -> list[str]:
    return [name.replace(_VALIDATION, "validation Pearson") for name in table.columns]


def _rows(table: pl.DataFrame) -> Sequence[Sequence[str]]:
    """Return the cells as texts; a missing value is a dash."""
    texts = table.with_columns(
        pl.Series(_VALIDATION, [fixed(value, 4) for value in table[_VALIDATION]], dtype=pl.String),
    )
    return [["–" if value is None else str(value) for value in row] for row in texts.rows()]
