"""Explanations on the terminal and as Markdown: the sentence first, then the numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from deltacell.base.rendering import Values
from deltacell.base.text import change_text, printable, ratio_text, seconds_text
from deltacell.report.terminal import (
    Piece,
    console,
    markdown,
    print_line,
    print_pieces,
    print_table,
)

MOST_LINES = 25  # lines of an explanation on the terminal without --full
MOST_ROWS = 12  # rows of a table on the terminal with --full
LONGEST_TEXT = 64  # characters of a cell on the terminal

T = TypeVar("T")
Row = Sequence[object]
"""The cells of a row of a table."""

_UNITS = ("step", "sample", "epoch")


def print_reconciliation(result: Values) -> None:
    """Print what measurements and logs of two programs say together."""
    print_line(result["sentence"], style="bold")
    print_pieces(_reconciliation(result))


def markdown_reconciliation(result: Values) -> str:
    """Return what measurements and logs of two programs say together, as Markdown."""
    return markdown(result["sentence"], _reconciliation(result))


def print_explanation(result: Values, *, full: bool = False) -> None:
    """Print an explanation, from `Explanation.to_json`; without ``full``, in `MOST_LINES` lines."""
    print_line(result["sentence"], style="bold")
    if full:
        print_pieces(_explanation(result, _short_tables(result)))
        return
    width = console().width
    above = _lines_above(result, width)
    below = _lines_below(result, width)
    table = _main_table(result)
    # A table has two lines above its rows, and a total below them.
    n_lines_of_sentence = len(textwrap.wrap(printable(result["sentence"]), width))
    n_free = MOST_LINES - n_lines_of_sentence - len(above) - len(below) - 3
    for line in above:
        print_line(line)
    rows = _first_rows(table, max(min(n_free, 8), 2))
    print_table(table.title, table.columns, rows, total=table.total)
    for line in below:
        print_line(line, soft_wrap=True)


def _lines_above(result: Values, width: int) -> list[str]:
    """Return the doubts, the differences and the evidence, as lines of a width."""
    lines = []
    if result["doubts"]:
        doubts = "; ".join(result["doubts"])
        lines += _wrapped(f"Confidence is low: {doubts}.", width, most=1)
    if result["differences"] is not None:
        lines += _wrapped(result["differences"], width, most=4)
    elif result["unequal"]:
        unequal = "; ".join(result["unequal"])
        lines += _wrapped(f"Differences in the setup: {unequal}.", width, most=1)
    for evidence in result["evidence"][:3]:
        lines += _wrapped(f"- {evidence}", width)
    return lines


def _lines_below(result: Values, width: int) -> list[str]:
    """Return the advice and where to see more, as lines of a width."""
    lines = ["what to try"] if result["advice"] else []
    for advice in result["advice"][:2]:
        lines += _wrapped(f"- {advice}", width)
    lines.append("Use --full for everything, or --html page.html.")
    if result["timeline"] is not None:
        file = result["timeline"]["ranks"][-1]["file"]
        lines.append(f"To see the events themselves, drop {file} on https://ui.perfetto.dev.")
    return lines


def _wrapped(text: str, width: int, most: int = 2) -> list[str]:
    return textwrap.wrap(printable(text), width, max_lines=most, placeholder="…")


def _first_rows(table: Piece, most: int) -> list[Row]:
    """Return the first rows of a table, and its total in addition."""
    rows = list(table.rows)
    totals = rows[-1:] if table.total else []
    others = rows[:-1] if table.total else rows
    return others[:most] + totals


def markdown_explanation(result: Values) -> str:
    """Return an explanation with all rows of its tables, as Markdown."""
    return markdown(result["sentence"], _explanation(result, result["tables"]))


def _main_table(result: Values) -> Piece:
    names = [account["name"] for account in result["accounts"]]
    if _are_two_programs(result):
        table = result["tables"][0]
        short_names = [_SHORT_COLUMNS.get(name, name) for name in table["columns"]]
        return Piece(table["title"], short_names, _cells(table), total=True)
    if len(names) == 2:
        short = ["A", "B"] if max(map(len, names)) > 20 else names
        falls = {fall["per"]: fall for fall in result["waterfalls"]}
        return _waterfall(falls[result["lead"]], *short)
    if any(cause["kind"].startswith("idle ") for cause in result["causes"]):
        columns = ("what", "per step", "share", "mostly")
        rows = [_row_of_cause(cause) for cause in result["causes"]]
        return Piece("where the time of a step goes, on the device", columns, rows)
    first = result["tables"][0]
    longest_first = sorted(first["rows"], key=lambda row: -(row[1] or 0.0))
    rows = _cells({**first, "rows": longest_first})
    # On a narrow terminal, the columns per epoch would fold the names of the rows.
    kept = len(first["columns"]) if console().width >= 100 else 4
    return Piece(first["title"], first["columns"][:kept], [row[:kept] for row in rows])


def _row_of_cause(cause: Values) -> Row:
    seconds = _cell("seconds_s", cause["seconds"])
    return [cause["kind"], seconds, _cell("share", cause["share"]), cause["name"]]


# Columns of the table of components, which would fold its names on a terminal of 100 columns.
_SHORT_COLUMNS = {
    "ms per step of A": "A, ms",
    "of B": "B, ms",
    "share of A": "A, share",
    "share of B": "B, share",
    "µs per sample of A": "A, µs/sample",
    "µs per sample of B": "B, µs/sample",
}


def _are_two_programs(result: Values) -> bool:
    """Return whether the first cause is that two traces are of different programs."""
    kinds = [cause["kind"] for cause in result["causes"][:1]]
    return kinds == ["programs"] and result["tables"][0]["key"] == "components"


def _short_tables(result: Values) -> Iterator[Values]:
    for table in result["tables"]:
        n_left_out = len(table["rows"]) - MOST_ROWS
        more = f" ({n_left_out} more with --json or --markdown)" if n_left_out > 0 else ""
        rows = [list(map(_cut, row)) for row in table["rows"][:MOST_ROWS]]
        yield {**table, "title": table["title"] + more, "rows": rows}


def _cut(value: T) -> T | str:
    """Return a value; of a long text, only the beginning and the end."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:44]}…{value[-19:]}"
    return value


class _DrawnBar(NamedTuple):
    """A bar of a waterfall."""

    part: str
    a_s: float
    b_s: float
    change_s: float
    share_of_gap: float | None


_LISTS = {
    "unequal": "differences in the setup",
    "evidence": "evidence",
    "ratios": "other ratios",
    "advice": "what to try",
    "warnings": "warnings",
}


def _explanation(result: Values, tables: Iterable[Values]) -> Iterator[Piece]:
    names = [account["name"] for account in result["accounts"]]
    if result["changes"]:
        rows = [(change["name"], *change["texts"]) for change in result["changes"]]
        yield Piece("settings that differ", ("setting", *names), rows)
    yield from (Piece(title, (), result[key]) for key, title in _LISTS.items())
    yield from (_waterfall(fall, *names) for fall in result["waterfalls"])
    yield from (Piece(table["title"], table["columns"], _cells(table)) for table in tables)
    for name, facts in zip(names, result["facts"], strict=True):
        yield Piece(f"facts of {name}", ("fact", "value"), list(facts.items()))


def _cells(table: Values) -> list[Row]:
    return [list(map(_cell, table["columns"], row)) for row in table["rows"]]


def _cell(column: str, value: T) -> T | str:
    """Format a value; the name of its column tells whether it is a time or a share."""
    if not isinstance(value, float | int):
        return value
    if column == "change_s":
        return change_text(value)
    if column.endswith("_s"):
        return seconds_text(value)
    return f"{100 * value:.1f} %" if column.startswith("share") else value


def _log_lines(logs: Sequence[Values]) -> Iterator[str]:
    """Yield what was read from each log, and after its last reading what it says of its run."""
    for number, reading in enumerate(logs, start=1):
        yield f"{reading['file']}: {reading['sentence']}"
        is_last = number == len(logs) or logs[number]["file"] != reading["file"]
        if is_last and reading["settings"]:
            yield f"{reading['file']}: {reading['settings']}"


def _like_with_like(comparisons: Sequence[Values]) -> Piece:
    rows = []
    for comparison in comparisons:
        names = f"{comparison['b']} to {comparison['a']}"
        times = [seconds_text(comparison[side]) for side in ("b_s", "a_s")]
        differences = "; ".join(comparison["differences"]) or "-"
        unknown = ", ".join(comparison["unknown"]) or "-"
        ratio = ratio_text(comparison["ratio"])
        rows.append((names, comparison["quantity"], *times, ratio, differences, unknown))
    columns = ("logs", "time of", "second", "first", "ratio", "differs", "not in the logs")
    return Piece("like with like", columns, rows)


def _reconciliation(result: Values) -> Iterator[Piece]:
    a = result["a"]
    b = result["b"]
    yield Piece("evidence", (), result["evidence"])
    yield Piece("read from logs", (), list(_log_lines(result["logs"])))
    yield _like_with_like(result.get("alike", []))
    wrong = [contradiction["sentence"] for contradiction in result["contradictions"]]
    yield Piece("contradictions and gaps", (), wrong)
    yield _supported_ratios(result)
    yield _times(result)
    compared = result["comparison"]
    if compared is not None:
        yield from (_waterfall(fall, a, b) for fall in compared["waterfalls"])
        yield Piece("differences in the setup", (), compared["unequal"])
    if result["parts"] is not None:
        for fall in result["parts"]["waterfalls"]:
            piece = _waterfall(fall, a, b)
            title = f"{piece.title}, in parts measured on other ranks than the training"
            yield Piece(title, piece.columns, piece.rows, total=True)
    yield Piece("what to measure next", (), result["advice"])


def _supported_ratios(result: Values) -> Piece:
    title = f"ratio that each measurement supports, {result['b']} to {result['a']}"
    rows = []
    for measurement in result["measurements"]:
        claimed = "-" if measurement["claimed"] is None else f"{measurement['claimed']:g}x"
        rows.append((measurement["name"], claimed, _support(measurement)))
    return Piece(title, ("measurement", "claimed", "supports"), rows)


def _support(measurement: Values) -> str:
    ratio = measurement["supports"]
    if ratio is None:
        return f"nothing: {measurement['of']}"
    return f"{ratio_text(ratio)} per {measurement['per']}, of {measurement['of']}"


def _times(result: Values) -> Piece:
    """Return the times of each measurement, per unit first for A and then for B."""
    columns = ["measurement"]
    for unit in _UNITS:
        columns += [f"{unit}, {result['a']}", f"{unit}, {result['b']}"]
    rows = []
    for measurement in result["measurements"]:
        seconds = []
        for unit in _UNITS:
            seconds += [measurement["a"][f"{unit}_s"], measurement["b"][f"{unit}_s"]]
        if any(seconds):
            rows.append((measurement["name"], *(_cell("_s", value) for value in seconds)))
    return Piece("times; an epoch is its number of samples at this rate", columns, rows)


def _waterfall(fall: Values, a: str, b: str) -> Piece:
    ratio = "" if fall["ratio"] is None else f": {ratio_text(fall['ratio'])}"
    total = _DrawnBar(
        part="all",
        a_s=fall["a_s"],
        b_s=fall["b_s"],
        change_s=fall["gap_s"],
        share_of_gap=1.0 if fall["gap_s"] else None,
    )
    bars = [_DrawnBar(**{key: bar[key] for key in _DrawnBar._fields}) for bar in fall["bars"]]
    rows = [list(map(_cell, _DrawnBar._fields, bar)) for bar in [*bars, total]]
    columns = ("part", a, b, "change", "share of the gap")
    return Piece(f"from {a} to {b} per {fall['per']}{ratio}", columns, rows, total=True)
