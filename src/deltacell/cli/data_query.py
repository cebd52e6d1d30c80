"""`deltacell data query`: SQL on a screen."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import polars as pl


class Format(StrEnum):
    """How to print the result."""

    table = "table"
    csv = "csv"
    json = "json"


def query(
    path: Annotated[Path, typer.Argument(help="A screen, or an import that holds one.")],
    sql: Annotated[str, typer.Argument(help="Over the tables `screen` and `deleted`.")],
    format: Annotated[Format, typer.Option(help="How to print the result.")] = Format.table,
    screen: Annotated[
        str | None, typer.Option(help="Which screen of an import; not needed if it has one.")
    ] = None,
) -> None:
    """Run SQL on the memory-mapped columns of a screen.

    Example: deltacell data query demo "select kind, score from screen limit 5"
    """
    from deltacell.report import print_table
    from deltacell.screen.import_folder import open_screen

    frame = open_screen(path, screen).query(sql)
    if format is Format.csv:
        typer.echo(_flat(frame).write_csv(), nl=False)
    elif format is Format.json:
        typer.echo(frame.write_json())
    else:
        print_table(f"{frame.height:,} rows", frame.columns, _flat(frame).rows())


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with lists as their values with spaces between, and structures as JSON."""
    import polars as pl

    columns = []
    for column in frame.get_columns():
        if isinstance(column.dtype, pl.List | pl.Array | pl.Struct):
            values = [_text(value) for value in column.to_list()]
            columns.append(pl.Series(column.name, values, dtype=pl.String))
        else:
            columns.append(column)
    return pl.DataFrame(columns)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    if isinstance(value, list):
        return " ".join(_text(v) or "" for v in value)
    return str(value)
