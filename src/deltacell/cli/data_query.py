"""`deltacell data query`: SQL on a screen."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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

    Example: deltacell data query demo "select kind, avg(score) from screen group by kind"
    """
    from deltacell.report import print_table
    from deltacell.screen.import_folder import open_screen

    frame = open_screen(path, screen).query(sql)
    if format is Format.csv:
        lists = [n for n, t in frame.schema.items() if str(t).startswith("List")]
        typer.echo(frame.with_columns(frame[n].list.join(" ") for n in lists).write_csv(), nl=False)
    elif format is Format.json:
        typer.echo(frame.write_json())
    else:
        rows = [
            [" ".join(map(str, v)) if isinstance(v, list) else v for v in row]
            for row in frame.rows()
        ]
        print_table(f"{frame.height:,} rows", frame.columns, rows)
