"""Explanations on the terminal and as Markdown: the sentence first, then numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deltacell.report.numbers import ratio_text
from deltacell.report.terminal import console, print_table, printable, shown


class _Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    total: bool = False


class _List(NamedTuple):
    title: str
    sentences: Sequence[str]


_Piece = _Table | _List


def print_reconciliation(result: Mapping[str, Any]) -> None:
    """Print one account of measurements that disagree.

    Parameters
    ----------
    result
        From `Reconciliation.to_json`.
    """
    _print(result["sentence"], _reconciliation(result))


def markdown_reconciliation(result: Mapping[str, Any]) -> str:
    """Return one account of measurements that disagree as Markdown.

    Parameters
    ----------
    result
        From `Reconciliation.to_json`.
    """
    return _markdown(result["sentence"], _reconciliation(result))


def print_explanation(result: Mapping[str, Any], *, full: bool = False) -> None:
    """Print where the time goes, or why B is slower than A.

    Parameters
    ----------
    result
        From `Explanation.to_json`.
    full
        With all lists and tables; otherwise in `MOST_LINES` lines.
    """
    if full:
        _print(result["sentence"], _explanation(result, _short_tables(result)))
    else:
        _print_brief(result)


def markdown_explanation(result: Mapping[str, Any]) -> str:
    """Return where the time goes, or why B is slower than A, as Markdown.

    Parameters
    ----------
    result
        From `Explanation.to_json`.
    """
    return _markdown(result["sentence"], _explanation(result, result["tables"]))


MOST_LINES = 25
"""Lines of an explanation on the terminal, where not all of it is asked for."""

_SHORT = 20
_MOST_ROWS = 12
_LONGEST = 64
_WIDE = ("launched by", "range")


def _print_brief(result: Mapping[str, Any]) -> None:
    """Print the sentence, how far it can be relied on, one table, what to try, and where to look.

    What is left of the lines is for the evidence.
    """
    to = console()
    wide = to.width

    def lines(text: str) -> int:
        return max(len(textwrap.wrap(printable(text), wide)), 1)

    def one_line(text: str) -> str:
        plain = printable(text)
        return plain if len(plain) <= wide else f"{plain[: wide - 1]}…"

    head = []
    if result["doubts"]:
        head.append(one_line(f"Confidence is low: {'; '.join(result['doubts'])}."))
    if result["unequal"]:
        head.append(one_line(f"Not equal in both: {'; '.join(result['unequal'])}."))
    advice = [one_line(f"- {one}") for one in result["advice"][:2]]
    path = result["facts"][-1]["path"]
    hint = "All of it: --full, or --html page.html."
    if result["timeline"] is not None:
        hint += f" The events themselves: drop {path} on https://ui.perfetto.dev."
    title, columns, rows, total = _main_table(result)
    left = MOST_LINES - lines(result["sentence"]) - len(head) - lines(hint)
    left -= 1 + len(advice) if advice else 0
    # A table has two lines above its rows, and one above its sum.
    shown_rows = rows[: max(min(len(rows), 8, left - 4), 2)]
    if total is not None:
        shown_rows = [*shown_rows, total]
    left -= len(shown_rows) + 3
    to.print(printable(result["sentence"]), style="bold", markup=False)
    for line in head:
        to.print(line, markup=False)
    for one in result["evidence"]:
        if lines(f"- {one}") <= left:
            to.print(f"- {printable(one)}", markup=False)
            left -= lines(f"- {one}")
    print_table(title, columns, shown_rows, total=total is not None)
    if advice:
        to.print("what to try", style="bold", markup=False)
        for line in advice:
            to.print(line, markup=False)
    to.print(hint, style="dim", markup=False)


def _main_table(
    result: Mapping[str, Any],
) -> tuple[str, Sequence[str], list[Sequence[Any]], Sequence[Any] | None]:
    """Return the one table that tells most, with its sum apart where it has one."""
    names = [account["name"] for account in result["accounts"]]
    if len(names) == 2:
        short = ["A", "B"] if max(map(len, names)) > _SHORT else names
        table = next(iter(_waterfalls(result["waterfalls"][:1], short[0], short[1])))
        if isinstance(table, _Table):
            return table.title, table.columns, list(table.rows[:-1]), table.rows[-1]
    if any(cause["kind"] == "idle" for cause in result["causes"]):
        return (
            "where a step goes, by the device",
            ("what", "per step", "share", "most of it"),
            [
                (cause["kind"], _time(cause["seconds"]), _share(cause["share"]), cause["name"])
                for cause in result["causes"]
            ],
            None,
        )
    first = result["tables"][0]
    rows = sorted(first["rows"], key=lambda row: -(row[1] or 0.0))
    # What stands per epoch would fold the names of the rows on a narrow terminal.
    kept = len(first["columns"]) if console().width >= 100 else 4
    cells: list[Sequence[Any]] = [row[:kept] for row in _cells({**first, "rows": rows})]
    return first["title"], first["columns"][:kept], cells, None


def _short_tables(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tables as a terminal shows them: the first rows, and no column that is wide.

    Of two, what a trace of one of them shows by itself is left to the files.
    """
    two = len(result["accounts"]) == 2
    found: list[Mapping[str, Any]] = []
    for table in result["tables"]:
        if two and table["key"].endswith(("_a", "_b")) and "categories" not in table["key"]:
            continue
        kept = [i for i, name in enumerate(table["columns"]) if name not in _WIDE]
        rows = [[_cut(row[i]) for i in kept] for row in table["rows"][:_MOST_ROWS]]
        left = len(table["rows"]) - len(rows)
        more = f" ({left} more with --json or --markdown)" if left else ""
        columns = [table["columns"][i] for i in kept]
        found.append(
            {**table, "title": f"{table['title']}{more}", "columns": columns, "rows": rows}
        )
    return found


def _cut(value: Any) -> Any:
    """Return a long name with its middle left out."""
    if not isinstance(value, str) or len(value) <= _LONGEST:
        return value
    return f"{value[: _LONGEST - 20]}…{value[-19:]}"


def _explanation(
    result: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]
) -> Iterator[_Piece]:
    yield _List("not equal in both", result["unequal"])
    yield _List("evidence", result["evidence"])
    yield _List("what to try", result["advice"])
    warnings = result["warnings"]
    is_said = any(warning.startswith("Confidence is low") for warning in warnings)
    low = ["Confidence is low."] if result["confidence"] == "low" and not is_said else []
    yield _List("to be aware of", [*low, *warnings])
    names = [account["name"] for account in result["accounts"]]
    if len(names) == 2:
        yield from _waterfalls(result["waterfalls"], *names)
    for table in tables:
        if not table["key"].startswith("waterfall_"):
            yield _Table(table["title"], table["columns"], _cells(table))
    for name, facts in zip(names, result["facts"], strict=True):
        yield _Table(f"facts of {name}", ("fact", "value"), list(facts.items()))


def _cells(table: Mapping[str, Any]) -> list[list[Any]]:
    """Return the rows of a table; shares in percent."""
    shares = [name.startswith("share") for name in table["columns"]]
    return [
        [_share(value) if share else value for value, share in zip(row, shares, strict=True)]
        for row in table["rows"]
    ]


def _reconciliation(result: Mapping[str, Any]) -> Iterator[_Piece]:
    a, b = result["a"], result["b"]
    yield _List("evidence", result["evidence"])
    yield _List("what is wrong or missing", [one["sentence"] for one in result["contradictions"]])
    yield _Table(
        f"what each measurement supports, {b} by {a}",
        ("measurement", "claimed", "supports"),
        [
            (one["name"], "-" if one["claimed"] is None else f"{one['claimed']:g}x", _supports(one))
            for one in result["measurements"]
        ],
    )
    rows = []
    for one in result["measurements"]:
        cells = [
            _time(one[side][f"{per}_s"])
            for per in ("step", "sample", "epoch")
            for side in ("a", "b")
        ]
        if any(cell != "-" for cell in cells):
            rows.append((one["name"], *cells))
    columns = [f"{per}, {side}" for per in ("step", "sample", "epoch") for side in (a, b)]
    yield _Table(
        "times of each; an epoch is its samples at this rate", ("measurement", *columns), rows
    )
    if result["comparison"] is not None:
        yield from _comparison(result["comparison"], a, b)
    yield _List("what to measure next", result["advice"])


def _supports(one: Mapping[str, Any]) -> str:
    if one["supports"] is None:
        return f"nothing: {one['of']}"
    return f"{ratio_text(one['supports'], 'x')} per {one['per']}, of {one['of']}"


def _comparison(result: Mapping[str, Any], a: str, b: str) -> Iterator[_Piece]:
    yield from _waterfalls(result["waterfalls"], a, b)
    lines = [] if result["epoch_ratio"] is None else [result["epoch_ratio"]["line"]]
    yield _List("the ratio of epochs", lines)
    yield _List("not equal in both", result["unequal"])


def _waterfalls(waterfalls: Sequence[Mapping[str, Any]], a: str, b: str) -> Iterator[_Piece]:
    for waterfall in waterfalls:
        ratio = "" if waterfall["ratio"] is None else f": {ratio_text(waterfall['ratio'], 'x')}"
        yield _Table(
            f"from {a} to {b} per {waterfall['per']}{ratio}",
            ("part", a, b, "change", "share of the gap"),
            [
                *(
                    (
                        bar["part"],
                        _time(bar["a_s"]),
                        _time(bar["b_s"]),
                        _change(bar["change_s"]),
                        _share(bar["share_of_gap"]),
                    )
                    for bar in waterfall["bars"]
                ),
                (
                    "all",
                    _time(waterfall["a_s"]),
                    _time(waterfall["b_s"]),
                    _change(waterfall["gap_s"]),
                    _share(1.0 if waterfall["gap_s"] else None),
                ),
            ],
            total=True,
        )


def _print(sentence: str, pieces: Iterator[_Piece]) -> None:
    to = console()
    to.print(printable(sentence), style="bold", markup=False)
    for piece in pieces:
        if isinstance(piece, _Table):
            if piece.rows:
                to.print()
                print_table(piece.title, piece.columns, piece.rows, total=piece.total)
        elif piece.sentences:
            to.print()
            to.print(printable(piece.title), style="bold", markup=False)
            for one in piece.sentences:
                to.print(f"- {printable(one)}", markup=False)


def _markdown(sentence: str, pieces: Iterator[_Piece]) -> str:
    parts = [f"**{_escaped(sentence)}**"]
    for piece in pieces:
        if isinstance(piece, _Table):
            if piece.rows:
                parts.append(f"## {_escaped(piece.title)}\n\n{_markdown_table(piece)}")
        elif piece.sentences:
            lines = "\n".join(f"- {_escaped(one)}" for one in piece.sentences)
            parts.append(f"## {_escaped(piece.title)}\n\n{lines}")
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: _Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    cells = [
        [cell if i == 1 else _escaped(shown(cell)) for cell in line] for i, line in enumerate(lines)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line and one cell."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in ("\\", "|", "*", "_", "`", "[", "]", "#", "!", "~"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    size = abs(seconds)
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= 0.9995 * length:
            value = seconds / length
            return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.3g} {unit}"
    return "0" if size < 5e-10 else f"{seconds * 1e9:.3g} ns"


def _change(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{_time(abs(seconds))}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
