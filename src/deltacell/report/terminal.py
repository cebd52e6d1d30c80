"""Tables and facts on the terminal; the same as HTML for a notebook, as text and as Markdown."""

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

_CAUGHT: ContextVar[Console | None] = ContextVar("caught", default=None)


def console(*, stderr: bool = False) -> Console:
    """Return a console that respects NO_COLOR and keeps tables whole where no one watches."""
    caught = None if stderr else _CAUGHT.get()
    if caught is not None:
        return caught
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(stderr=stderr, highlight=False, width=_wide())
    return made


def _wide() -> int:
    return max(160, shutil.get_terminal_size((160, 24)).columns)


def as_text(show: Callable[[], None]) -> str:
    """Return what a function of this package prints, as text without colours."""
    text = io.StringIO()
    _run_into(Console(file=text, highlight=False, width=_wide(), no_color=True), show)
    return text.getvalue().rstrip("\n")


def as_html(show: Callable[[], None]) -> str:
    """Return what a function of this package prints, as HTML for a notebook."""
    caught = _Html()
    _run_into(caught, show)
    return f"<div>{''.join(caught.parts)}</div>"


def _run_into(caught: Console, show: Callable[[], None]) -> None:
    before = _CAUGHT.set(caught)
    try:
        show()
    finally:
        _CAUGHT.reset(before)


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
    heads = "".join(f"<th>{html_escape(str(column.header))}</th>" for column in table.columns)
    lines = [f"<tr>{heads}</tr>"] if table.show_header else []
    for row in zip(*columns, strict=True):
        cells = (f"<td{a}>{html_escape(c)}</td>" for a, c in zip(align, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def print_error(text: str) -> None:
    """Print what went wrong where errors go, in red where colours are wanted; never as markup."""
    lines = "\n".join(printable(line) for line in text.split("\n"))
    console(stderr=True).print(lines, style="red", markup=False, soft_wrap=True)


def print_line(text: str, *, style: str | None = None, soft_wrap: bool = False) -> None:
    """Print a line of untrusted text; with ``soft_wrap`` never folded, so that it can be copied."""
    console().print(printable(text), style=style, markup=False, soft_wrap=soft_wrap)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, total: bool = False
) -> None:
    """Print rows under a title: numbers to the right, and a ``total`` in the last row set apart."""
    table = Table(box=None)
    for i, name in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        justify = "right" if is_number else "left"
        table.add_column(escape(printable(name)), justify=justify, overflow="fold")  # type: ignore
    for i, row in enumerate(rows):
        if total and i == len(rows) - 1:
            table.add_section()
        table.add_row(*(escape(shown(value)) for value in row))
    # The title is not the table's own, which would be folded to the width of a narrow table.
    print_line(title, style="bold")
    console().print(table)


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Print named facts, one per line."""
    table = Table(box=None, show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(escape(name), escape(shown(value)))
    print_line(title, style="bold")
    console().print(table)


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
        items = [f"{shown(number)} {name}" for name, number in list(value.items())[:5]]
        rest = list(value.values())[5:]
        more = [f"{shown(sum(rest))} for {len(rest)} other reasons"] if rest else []
        return ", ".join(items + more) or "-"
    return printable(str(value))


def few(names: Sequence[str], most: int) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def printable(text: str) -> str:
    """Return a text with what would steer a terminal (escapes, line ends) written out as codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def markdown_text(text: str) -> str:
    """Return an untrusted text that Markdown shows as it is, in one line and one cell."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in ("\\", "|", "*", "_", "`", "[", "]", "#", "!", "~"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as Markdown."""
    lines = [[markdown_text(shown(cell)) for cell in line] for line in (columns, *rows)]
    lines.insert(1, ["---"] * len(columns))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
