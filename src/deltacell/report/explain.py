"""Explanations on the terminal and as Markdown: the sentence first, then the numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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


def print_reconciliation(result: Mapping[str, Any]) -> None:
    print_line(result["sentence"], style="bold")
    print_pieces(_reconciliation(result))


def markdown_reconciliation(result: Mapping[str, Any]) -> str:
    return markdown(result["sentence"], _reconciliation(result))


def print_explanation(result: Mapping[str, Any], *, full: bool = False) -> None:
    """Print an explanation, from `Explanation.to_json`; without ``full``, in `MOST_LINES` lines."""
    print_line(result["sentence"], style="bold")
    if full:
        print_pieces(_explanation(result, _short_tables(result)))
        return
    wide = console().width

    def lines(text: str, most: int = 2) -> list[str]:
        return textwrap.wrap(printable(text), wide, max_lines=most, placeholder="…")

    above = []
    if result["doubts"]:
        above += lines(f"Confidence is low: {'; '.join(result['doubts'])}.", most=1)
    if result["differences"] is not None:
        above += lines(result["differences"], most=4)
    elif result["unequal"]:
        above += lines(f"Differences in the setup: {'; '.join(result['unequal'])}.", most=1)
    for evidence in result["evidence"][:3]:
        above += lines(f"- {evidence}")
    below = ["what to try"] if result["advice"] else []
    for advice in result["advice"][:2]:
        below += lines(f"- {advice}")
    below.append("Use --full for everything, or --html page.html.")
    if result["timeline"] is not None:
        file = result["timeline"]["ranks"][-1]["file"]
        below.append(f"To see the events themselves, drop {file} on https://ui.perfetto.dev.")
    title, columns, rows, total = _main_table(result)
    rows, last = (rows[:-1], rows[-1:]) if total else (rows, [])
    # A table has two lines above its rows, and a total below them.
    sentence = len(textwrap.wrap(printable(result["sentence"]), wide))
    left = MOST_LINES - sentence - len(above) - len(below) - 3
    for line in above:
        print_line(line)
    print_table(title, columns, [*rows[: max(min(left, 8), 2)], *last], total=total)
    for line in below:
        print_line(line, soft_wrap=True)


def markdown_explanation(result: Mapping[str, Any]) -> str:
    return markdown(result["sentence"], _explanation(result, result["tables"]))


def _main_table(result: Mapping[str, Any]) -> Piece:
    names = [account["name"] for account in result["accounts"]]
    if _are_two_programs(result):
        table = result["tables"][0]
        return Piece(table["title"], table["columns"], _cells(table), total=True)
    if len(names) == 2:
        short = ["A", "B"] if max(map(len, names)) > 20 else names
        (lead,) = (fall for fall in result["waterfalls"] if fall["per"] == result["lead"])
        return _waterfall(lead, *short)
    if any(cause["kind"].startswith("idle ") for cause in result["causes"]):
        keys = ("kind", "seconds_s", "share", "name")
        causes = [{**one, "seconds_s": one["seconds"]} for one in result["causes"]]
        rows = [[_cell(key, one[key]) for key in keys] for one in causes]
        columns = ("what", "per step", "share", "mostly")
        return Piece("where the time of a step goes, on the device", columns, rows)
    first = result["tables"][0]
    rows = _cells({**first, "rows": sorted(first["rows"], key=lambda row: -(row[1] or 0.0))})
    # On a narrow terminal, the columns per epoch would fold the names of the rows.
    kept = len(first["columns"]) if console().width >= 100 else 4
    return Piece(first["title"], first["columns"][:kept], [row[:kept] for row in rows])


def _are_two_programs(result: Mapping[str, Any]) -> bool:
    """Return whether the first cause is that two traces are of different programs."""
    kinds = [cause["kind"] for cause in result["causes"][:1]]
    return kinds == ["programs"] and result["tables"][0]["key"] == "components"


def _short_tables(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for table in result["tables"]:
        left = len(table["rows"]) - MOST_ROWS
        more = f" ({left} more with --json or --markdown)" if left > 0 else ""
        rows = [[_cut(value) for value in row] for row in table["rows"][:MOST_ROWS]]
        yield {**table, "title": table["title"] + more, "rows": rows}


def _cut(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > 64
    return f"{value[:44]}…{value[-19:]}" if is_long else value


_BAR = ("part", "a_s", "b_s", "change_s", "share_of_gap")
_LISTS = {
    "unequal": "differences in the setup",
    "evidence": "evidence",
    "ratios": "other ratios",
    "advice": "what to try",
    "warnings": "warnings",
}


def _explanation(result: Mapping[str, Any], tables: Iterable[Mapping[str, Any]]) -> Iterator[Piece]:
    names = [account["name"] for account in result["accounts"]]
    if result["changes"]:
        rows = [(change["name"], *change["texts"]) for change in result["changes"]]
        yield Piece("settings that differ", ("setting", *names), rows)
    yield from (Piece(title, (), result[key]) for key, title in _LISTS.items())
    yield from (_waterfall(fall, *names) for fall in result["waterfalls"])
    yield from (Piece(table["title"], table["columns"], _cells(table)) for table in tables)
    for name, facts in zip(names, result["facts"], strict=True):
        yield Piece(f"facts of {name}", ("fact", "value"), list(facts.items()))


def _cells(table: Mapping[str, Any]) -> list[list[Any]]:
    return [list(map(_cell, table["columns"], row)) for row in table["rows"]]


def _cell(column: str, value: Any) -> Any:
    """Format a value; the name of its column tells whether it is a time or a share."""
    if value is not None and column.endswith("_s"):
        return change_text(value) if column == "change_s" else seconds_text(value)
    is_share = value is not None and column.startswith("share")
    return f"{100 * value:.1f} %" if is_share else value


def _log_lines(logs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what was read from each log, and after its last reading what it says of its run."""
    for number, reading in enumerate(logs, start=1):
        yield f"{reading['file']}: {reading['sentence']}"
        is_last = number == len(logs) or logs[number]["file"] != reading["file"]
        if is_last and reading["settings"]:
            yield f"{reading['file']}: {reading['settings']}"


def _like_with_like(comparisons: Sequence[Mapping[str, Any]]) -> Piece:
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


def _reconciliation(result: Mapping[str, Any]) -> Iterator[Piece]:
    a, b, compared = result["a"], result["b"], result["comparison"]
    yield Piece("evidence", (), result["evidence"])
    yield Piece("read from logs", (), list(_log_lines(result["logs"])))
    yield _like_with_like(result.get("alike", []))
    wrong = [one["sentence"] for one in result["contradictions"]]
    yield Piece("contradictions and gaps", (), wrong)
    pers = ("step", "sample", "epoch")
    rows, times = [], []
    for one in result["measurements"]:
        claimed = "-" if one["claimed"] is None else f"{one['claimed']:g}x"
        supports = f"nothing: {one['of']}"
        if one["supports"] is not None:
            supports = f"{ratio_text(one['supports'])} per {one['per']}, of {one['of']}"
        rows.append((one["name"], claimed, supports))
        taken = [one[side][f"{per}_s"] for per in pers for side in ("a", "b")]
        if any(taken):
            times.append((one["name"], *(_cell("_s", seconds) for seconds in taken)))
    title = f"ratio that each measurement supports, {b} to {a}"
    yield Piece(title, ("measurement", "claimed", "supports"), rows)
    columns = ("measurement", *(f"{per}, {side}" for per in pers for side in (a, b)))
    yield Piece("times; an epoch is its number of samples at this rate", columns, times)
    if compared is not None:
        yield from (_waterfall(fall, a, b) for fall in compared["waterfalls"])
        yield Piece("differences in the setup", (), compared["unequal"])
    if result["parts"] is not None:
        for fall in result["parts"]["waterfalls"]:
            piece = _waterfall(fall, a, b)
            title = f"{piece.title}, in parts measured on other ranks than the training"
            yield Piece(title, piece.columns, piece.rows, total=True)
    yield Piece("what to measure next", (), result["advice"])


def _waterfall(fall: Mapping[str, Any], a: str, b: str) -> Piece:
    ratio = "" if fall["ratio"] is None else f": {ratio_text(fall['ratio'])}"
    share = 1.0 if fall["gap_s"] else None
    whole = {**fall, "part": "all", "change_s": fall["gap_s"], "share_of_gap": share}
    rows = [[_cell(key, bar[key]) for key in _BAR] for bar in [*fall["bars"], whole]]
    columns = ("part", a, b, "change", "share of the gap")
    return Piece(f"from {a} to {b} per {fall['per']}{ratio}", columns, rows, total=True)
