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

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deltacell.base.text import printable

_HTML: ContextVar[list[str] | None] = ContextVar("html", default=None)


def console(*, stderr: bool = False) -> Console:
    """Return a console that respects NO_COLOR and does not fold tables unless on a terminal."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = max(160, shutil.get_terminal_size((160, 24)).columns)
    return made


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


def print_run(values: Mapping[str, Any]) -> None:
    """Print the facts of a run under its name."""
    print_facts(f"run {values['name']}", values["facts"])


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    print_table(title, (), list(facts.items()))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    total: bool = False,
) -> None:
    """Print rows under a title, with numbers right-aligned; ``total`` sets the last row apart.

    Without column names, the table has two columns.
    """
    # Rich would fold the title of a Table to the width of the table.
    print_line(title, style="bold")
    right = [
        bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        for i in range(len(columns))
    ] or [False, False]
    html = _HTML.get()
    if html is not None:
        lines = ["".join(f"<th>{html_escape(printable(name))}</th>" for name in columns)]
        align = [' style="text-align:right"' if one else "" for one in right]
        for row in rows:
            cells = zip(align, map(shown, row), strict=True)
            lines.append("".join(f"<td{how}>{html_escape(cell)}</td>" for how, cell in cells))
        html.append(f"<table>{''.join(f'<tr>{line}</tr>' for line in lines if line)}</table>")
        return
    table = Table(box=None, show_header=bool(columns))
    for name, is_right in zip(columns or ("", ""), right, strict=True):
        justify: Any = "right" if is_right else "left"
        table.add_column(escape(printable(name)), justify=justify, overflow="fold")
    for i, row in enumerate(rows):
        if total and i == len(rows) - 1:
            table.add_section()
        table.add_row(*(escape(shown(value)) for value in row))
    console().print(table)


def shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return few([f"{shown(number)} {name}" for name, number in value.items()], 5) or "-"
    return printable(str(value))


def few(names: Sequence[str], most: int) -> str:
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
    rows: Sequence[Any]
    total: bool = False


def print_pieces(pieces: Iterable[Piece]) -> None:
    for piece in (piece for piece in pieces if piece.rows):
        print_line("")
        if piece.columns:
            print_table(*piece[:3], total=piece.total)
            continue
        print_line(piece.title, style="bold")
        for one in piece.rows:
            print_line(f"- {one}")


def markdown(sentence: str, pieces: Iterable[Piece]) -> str:
    parts = [f"**{markdown_text(sentence)}**"] if sentence else []
    for piece in (piece for piece in pieces if piece.rows):
        body = [f"- {markdown_text(one)}" for one in piece.rows if not piece.columns]
        if piece.columns:
            cells = [[markdown_text(shown(x)) for x in row] for row in (piece.columns, *piece.rows)]
            cells.insert(1, ["---"] * len(piece.columns))
            body = [f"| {' | '.join(line)} |" for line in cells]
        parts.append("\n".join([f"## {markdown_text(piece.title)}\n", *body]))
    return "\n\n".join(parts) + "\n"
