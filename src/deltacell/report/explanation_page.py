"""The page of an explanation: the sentence, its evidence, and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from deltacell.base.rendering import Values
from deltacell.report.page import is_known, json_block, page
from deltacell.report.terminal import shown
from deltacell.report.waterfall import drawn_fall

MOST_ROWS = 1000  # rows of a table on the page; the JSON output has all of them

COLOURS = {
    "data loading": "data",
    "transfer to device": "copy",
    "copies": "copy",
    "graph preparation": "prepare",
    "forward": "forward",
    "compute": "forward",
    "loss": "loss",
    "backward": "backward",
    "gradient communication": "exchange",
    "communication": "exchange",
    "optimizer": "optimizer",
    "logging and callbacks": "beside",
    "validation": "beside",
    "checkpoints and figures": "beside",
    "idle": "idle",
    "device idle": "idle",
}
"""The colour of each category; all others use ``other``."""

Cell = str | float | None
"""A cell of a table."""

_ORDER = {category: place for place, category in enumerate(COLOURS)}
_KEYS_OF_A_BAR = (
    *("lane", "depth", "begin_ms", "duration_ms"),
    *("name", "category", "count", "busy_ms"),
)


def explanation_page(data: Values) -> str:
    """Return the page of an explanation, given by `Explanation.to_json`, as self-contained HTML."""
    names = [account["name"] for account in data["accounts"]]
    ranks = _drawn_ranks(data["timeline"])
    categories = _categories_of(ranks)
    drawing = {
        "ranks": [_drawn_rank(rank) for rank in ranks],
        "colours": {category: _colour(category) for category in categories},
    }
    return page(
        "explanation",
        styles=("waterfall.css",),
        scripts=("table.js", "explanation.js"),
        data=data,
        names=names,
        stacks=_stacks(data, names),
        falls=[drawn_fall(fall) for fall in data["waterfalls"]],
        ranks=ranks,
        legend=_legend(categories),
        drawing=json_block(drawing),
        tables=[_table(table, names) for table in data["tables"] if table["rows"]],
        most=MOST_ROWS,
        facts=_facts_by_name(data["facts"]),
    )


def _drawn_ranks(timeline: Values | None) -> list[Values]:
    """Return the ranks that have something to draw; none without a timeline."""
    if timeline is None:
        return []
    return [rank for rank in timeline["ranks"] if rank["bars"]]


def _categories_of(ranks: Iterable[Values]) -> list[str]:
    categories: set[str] = set()
    for rank in ranks:
        categories.update(bar["category"] for bar in rank["bars"])
    return sorted(categories, key=_order)


def _drawn_rank(rank: Values) -> Values:
    bars = [[bar[key] for key in _KEYS_OF_A_BAR] for bar in rank["bars"]]
    return {**{key: rank[key] for key in ("name", "begin_ms", "step_ms", "lanes")}, "bars": bars}


def _legend(categories: Iterable[str]) -> list[tuple[str, str]]:
    """Return each colour with the categories that have it."""
    by_colour: dict[str, list[str]] = {}
    for category in categories:
        by_colour.setdefault(_colour(category), []).append(category)
    return [(colour, ", ".join(named)) for colour, named in by_colour.items()]


def _facts_by_name(facts: Sequence[Values]) -> dict[str, list[str]]:
    """Return the facts of all accounts by name, with a dash where an account has none."""
    names: dict[str, None] = {}
    for of_account in facts:
        names |= dict.fromkeys(of_account)
    return {name: [shown(of_account.get(name)) for of_account in facts] for name in names}


def _colour(category: str) -> str:
    return COLOURS.get(category, "other")


def _order(category: str) -> tuple[int, str]:
    return _ORDER.get(category, len(_ORDER)), category


class _Stack(NamedTuple):
    """An account as a bar of pieces, one for each part that takes time."""

    name: str
    total: float
    pieces: list[Values]


def _stacks(data: Values, names: Sequence[str]) -> Values | None:
    """Return the parts of each account as stacked bars; None if none takes time."""
    per, seconds_by_part = _parts_of_accounts(data)
    positive = [
        {part: seconds for part, seconds in parts.items() if seconds > 0}
        for parts in seconds_by_part
    ]
    widest = max(math.fsum(parts.values()) for parts in positive)
    if not widest > 0:
        return None
    order = sorted(set().union(*positive), key=_order)
    stacks = [_stack(*named, order, widest) for named in zip(names, positive, strict=True)]
    return {"per": per, "bars": stacks, "legend": [(_colour(part), part) for part in order]}


def _parts_of_accounts(data: Values) -> tuple[str, list[Mapping[str, float]]]:
    """Return the unit of time, and the seconds of each part in each account.

    A comparison has the parts of its first waterfall.
    """
    if data["waterfalls"]:
        fall = data["waterfalls"][0]
        sides = ("a_s", "b_s")
        return fall["per"], [{bar["part"]: bar[side] for bar in fall["bars"]} for side in sides]
    accounts = data["accounts"]
    per = "fit" if accounts[0]["source"] == "fit" else "step"
    return per, [account["parts_s"] for account in accounts]


def _stack(name: str, parts: Mapping[str, float], order: Sequence[str], widest: float) -> _Stack:
    total = math.fsum(parts.values())
    pieces: list[Values] = []
    begin = 0.0
    for part in order:
        if part not in parts:
            continue
        seconds = parts[part]
        pieces.append(
            {
                "part": part,
                "colour": _colour(part),
                "seconds": seconds,
                "x": begin / widest,
                "width": seconds / widest,
                "share": seconds / total,
            }
        )
        begin += seconds
    return _Stack(name, total, pieces)


class _PageColumn(NamedTuple):
    """A column of a table: how its cells are formatted, and its title."""

    kind: str  # text, seconds, share or number
    title: str


def _table(table: Values, names: Sequence[str]) -> Values:
    # In a comparison, the columns of A and B have their names.
    titles = dict(zip(("a_s", "b_s"), names, strict=False))
    columns = []
    for place, name in enumerate(table["columns"]):
        cells = [row[place] for row in table["rows"] if row[place] is not None]
        columns.append(_column(name, cells, titles))
    rows = [_cells_of_page(columns, row) for row in table["rows"][:MOST_ROWS]]
    return {"title": table["title"], "columns": columns, "rows": rows, "count": len(table["rows"])}


def _column(name: str, cells: Sequence[object], titles: Mapping[str, str]) -> _PageColumn:
    # A truth value is no number here.
    are_numbers = all(type(cell) in (int, float) for cell in cells)
    if not cells or not are_numbers:
        return _PageColumn("text", name)
    if name.endswith("_s"):
        return _PageColumn("seconds", titles.get(name, name.removesuffix("_s")))
    return _PageColumn("share" if name.startswith("share") else "number", name)


def _cells_of_page(columns: Sequence[_PageColumn], row: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a row, without numbers that are not finite."""
    cells = []
    for column, cell in zip(columns, row, strict=True):
        is_shown = column.kind == "text" or isinstance(cell, str) or is_known(cell)
        cells.append(cell if is_shown else None)
    return cells
