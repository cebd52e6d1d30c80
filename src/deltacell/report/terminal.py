"""Tables and facts for the terminal, as text, as HTML for notebooks and as Markdown."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from contextvars import ContextVar
from html import escape as html_escape
from typing import Any, NamedTuple

from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from deltacell.base.rendering import Values
from deltacell.base.text import printable

_HTML: ContextVar[list[str] | None] = ContextVar("html", default=None)


def console(*, stderr: bool = False) -> Console:
    """Return a console that respects NO_COLOR and does not fold tables unless on a terminal."""
    new_console = Console(stderr=stderr, highlight=False)
    if not new_console.is_terminal and "COLUMNS" not in os.environ:
        new_console.width = max(160, shutil.get_terminal_size((160, 24)).columns)
    return new_console


def as_text(show: Callable[[], None]) -> str:
    """Return what a function prints, without the last line end."""
    with redirect_stdout(io.StringIO()) as text:
        show()
    return text.getvalue().rstrip("\n")


def as_html(show: Callable[[], None]) -> str:
    """Return what a function prints by `print_line` and `print_table`, as HTML."""
    parts: list[str] = []
    before = _HTML.set(parts)
    try:
        show()
    finally:
        _HTML.reset(before)
    return f"<div>{''.join(parts)}</div>"


def print_error(text: str) -> None:
    """Print an error to stderr, in red if colours are enabled, without interpreting markup."""
    lines = "\n".join(printable(line) for line in text.split("\n"))
    console(stderr=True).print(lines, style="red", markup=False, soft_wrap=True)


def print_line(text: str, *, style: str | None = None, soft_wrap: bool = False) -> None:
    """Print a line of untrusted text; with ``soft_wrap`` it is not folded, so it can be copied."""
    html = _HTML.get()
    if html is None:
        console().print(printable(text), style=style, markup=False, soft_wrap=soft_wrap)
    elif text:
        line = html_escape(printable(text))
        html.append(f"<p><b>{line}</b></p>" if style == "bold" else f"<p>{line}</p>")


def print_run(values: Values) -> None:
    """Print the facts of a run under its name."""
    print_facts(f"run {values['name']}", values["facts"])


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """Print names and their values under a title."""
    print_table(title, (), list(facts.items()))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    total: bool = False,
) -> None:
    """Print rows under a title, with numbers right-aligned; ``total`` sets the last row apart.

    Without column names, the table has two columns.
    """
    # Rich would fold the title of a Table to the width of the table.
    print_line(title, style="bold")
    html = _HTML.get()
    if html is None:
        console().print(_rich_table(columns, rows, total=total))
    else:
        html.append(_html_table(columns, rows))


def _rich_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    total: bool,
) -> Table:
    table = Table(box=None, show_header=bool(columns))
    are_numbers = _columns_of_numbers(columns, rows)
    for name, is_number in zip(columns or ("", ""), are_numbers, strict=True):
        justify: JustifyMethod = "right" if is_number else "left"
        table.add_column(escape(printable(name)), justify=justify, overflow="fold")
    for number, row in enumerate(rows, start=1):
        if total and number == len(rows):
            table.add_section()
        cells = [escape(shown(value)) for value in row]
        table.add_row(*cells)
    return table


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    header = "".join(f"<th>{html_escape(printable(name))}</th>" for name in columns)
    lines = [header] if columns else []
    are_numbers = _columns_of_numbers(columns, rows)
    for row in rows:
        cells = [_html_cell(*cell) for cell in zip(row, are_numbers, strict=True)]
        lines.append("".join(cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{body}</table>"


def _html_cell(value: object, is_number: bool) -> str:
    style = ' style="text-align:right"' if is_number else ""
    return f"<td{style}>{html_escape(shown(value))}</td>"


def _columns_of_numbers(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    """Return for each column whether it has numbers only; there are two if none has a name."""
    if not columns:
        return [False, False]
    return [_is_column_of_numbers(rows, number) for number in range(len(columns))]


def _is_column_of_numbers(rows: Sequence[Sequence[object]], number: int) -> bool:
    return bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)


def shown(value: object) -> str:
    """Return a value as people read it: numbers with commas or four digits, None as a dash.

    Of a dict of numbers, the first five are listed with their names.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        entries = [f"{shown(number)} {name}" for name, number in value.items()]
        return few(entries, 5) or "-"
    return printable(str(value))


def few(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of those left out."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


_MARKS: dict[str, str | int | None] = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    **{mark: f"\\{mark}" for mark in r"\|*_`[]#!~"},
}


def markdown_text(text: str) -> str:
    """Escape an untrusted text for Markdown, in one line and one cell."""
    return printable(text).translate(str.maketrans(_MARKS))


class Piece(NamedTuple):
    """A table, or a list of sentences if there are no columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Any]  # sequences of cells, or sentences
    total: bool = False


def print_pieces(pieces: Iterable[Piece]) -> None:
    """Print the pieces that have rows."""
    for piece in pieces:
        if not piece.rows:
            continue
        print_line("")
        if piece.columns:
            print_table(piece.title, piece.columns, piece.rows, total=piece.total)
            continue
        print_line(piece.title, style="bold")
        for sentence in piece.rows:
            print_line(f"- {sentence}")


def markdown(sentence: str, pieces: Iterable[Piece]) -> str:
    """Return the pieces that have rows as Markdown, below a sentence unless it is empty."""
    parts = [f"**{markdown_text(sentence)}**"] if sentence else []
    for piece in pieces:
        if piece.rows:
            lines = [f"## {markdown_text(piece.title)}", "", *_markdown_lines(piece)]
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _markdown_lines(piece: Piece) -> list[str]:
    if not piece.columns:
        return [f"- {markdown_text(sentence)}" for sentence in piece.rows]
    rule = _markdown_row(["---"] * len(piece.columns))
    return [_row_of(piece.columns), rule, *map(_row_of, piece.rows)]


def _row_of(values: Sequence[object]) -> str:
    return _markdown_row([markdown_text(shown(value)) for value in values])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
