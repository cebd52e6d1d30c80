"""Tables and facts on the terminal; the same as HTML for a notebook, and as text."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from html import escape as html_escape
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_MOST = 5


def console(*, stderr: bool = False) -> Console:
    """Return a console that respects NO_COLOR and keeps tables whole where no one watches."""
    caught = None if stderr else _CAUGHT.get()
    if caught is not None:
        return caught
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(stderr=stderr, highlight=False, width=max(160, _terminal_width()))
    return made


def as_text(show: Callable[[], None]) -> str:
    """Return what a function of this package prints, as text without colours.

    Parameters
    ----------
    show
        Prints by `console`, `print_table` and `print_facts`.
    """
    caught = Console(
        file=io.StringIO(), highlight=False, width=max(160, _terminal_width()), no_color=True
    )
    _run_into(caught, show)
    return str(caught.file.getvalue()).rstrip("\n")  # type: ignore[attr-defined]


def as_html(show: Callable[[], None]) -> str:
    """Return what a function of this package prints, as HTML for a notebook.

    Parameters
    ----------
    show
        Prints by `console`, `print_table` and `print_facts`.
    """
    caught = _Html()
    _run_into(caught, show)
    return f"<div>{''.join(caught.parts)}</div>"


def print_error(text: str) -> None:
    """Print what went wrong where errors go, in red where colours are wanted; never as markup."""
    shown = "\n".join(printable(line) for line in text.split("\n"))
    console(stderr=True).print(shown, style="red", markup=False, soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, total: bool = False
) -> None:
    """Print rows under a title; numbers to the right, with thousands apart.

    Parameters
    ----------
    title
        What the table shows.
    columns
        Names of the columns.
    rows
        Their values; names in them are shown as they are, never as markup.
    total
        Whether the last row is a sum, to be set apart.
    """
    table = Table(box=None)
    numeric = [
        all(isinstance(row[i], int | float) or row[i] is None for row in rows) and bool(rows)
        for i in range(len(columns))
    ]
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(
            escape(printable(name)), justify="right" if right else "left", overflow="fold"
        )
    for i, row in enumerate(rows):
        if total and i == len(rows) - 1:
            table.add_section()
        table.add_row(*(escape(shown(value)) for value in row))
    _print(title, table)


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Print named facts, one a line."""
    table = Table(box=None)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.show_header = False
    for name, value in facts.items():
        table.add_row(escape(name), escape(shown(value)))
    _print(title, table)


class _Html(Console):
    """A console whose lines are paragraphs and whose tables are HTML tables."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO())
        self.parts: list[str] = []

    def print(self, *objects: Any, style: Any = None, **options: Any) -> None:
        """Take a line or a table."""
        for one in objects:
            if isinstance(one, Table):
                self.parts.append(_html_table(one))
            elif str(one):
                text = html_escape(str(one))
                self.parts.append(f"<p><b>{text}</b></p>" if style == "bold" else f"<p>{text}</p>")


def _html_table(table: Table) -> str:
    # Cells were escaped as markup, which HTML knows nothing of.
    columns = [[str(cell).replace("\\[", "[") for cell in column.cells] for column in table.columns]
    align = [' style="text-align:right"' if c.justify == "right" else "" for c in table.columns]
    lines = []
    if table.show_header:
        heads = (f"<th>{html_escape(str(c.header))}</th>" for c in table.columns)
        lines.append(f"<tr>{''.join(heads)}</tr>")
    for row in zip(*columns, strict=True):
        cells = (f"<td{a}>{html_escape(c)}</td>" for a, c in zip(align, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


_CAUGHT: ContextVar[Console | None] = ContextVar("caught", default=None)


def _run_into(caught: Console, show: Callable[[], None]) -> None:
    before = _CAUGHT.set(caught)
    try:
        show()
    finally:
        _CAUGHT.reset(before)


def shown(value: Any) -> str:
    """Return a value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        told = [f"{shown(v)} {k}" for k, v in list(value.items())[:_MOST]]
        rest = list(value.values())[_MOST:]
        more = [f"{shown(sum(rest))} for {len(rest)} other reasons"] if rest else []
        return ", ".join(told + more) or "-"
    return printable(str(value))


def printable(text: str) -> str:
    """Return a text with what would steer a terminal (escapes, line ends) written out as codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _print(title: str, table: Table) -> None:
    # The title is not the table's own, which would be folded to the width of a narrow table.
    to = console()
    to.print(printable(title), style="bold", markup=False)
    to.print(table)


def _terminal_width() -> int:
    return shutil.get_terminal_size((160, 24)).columns
