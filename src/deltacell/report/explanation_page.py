"""The page of an explanation: the sentence, its evidence, and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from deltacell.report.page import is_known, json_block, page
from deltacell.report.terminal import shown

MOST_ROWS = 1000  # rows of a table on the page; the JSON output has all of them

_COLOURS = {
    **{"data": "data loading", "copy": "transfer to device,copies", "prepare": "graph preparation"},
    **{"forward": "forward,compute", "loss": "loss", "backward": "backward"},
    **{"exchange": "gradient communication,communication", "optimizer": "optimizer"},
    **{"beside": "logging and callbacks,validation,checkpoints and figures"},
    **{"idle": "idle,device idle"},
}
COLOURS = {name: colour for colour, names in _COLOURS.items() for name in names.split(",")}
"""The colour of each category; all others use ``other``."""


def explanation_page(data: Mapping[str, Any]) -> str:
    """Return the page of an explanation, given by `Explanation.to_json`, as self-contained HTML."""
    names = [account["name"] for account in data["accounts"]]
    ranks = [rank for rank in (data["timeline"] or {"ranks": ()})["ranks"] if rank["bars"]]
    tables = [table for table in data["tables"] if table["rows"]]
    facts = {name: [one.get(name) for one in data["facts"]] for f in data["facts"] for name in f}
    seen = sorted({bar["category"] for rank in ranks for bar in rank["bars"]}, key=_order)
    legend = {_colour(x): [y for y in seen if _colour(y) == _colour(x)] for x in seen}
    keys = ("lane", "depth", "begin_ms", "duration_ms", "name", "category", "count", "busy_ms")
    drawn = [
        {
            **{key: rank[key] for key in ("name", "begin_ms", "step_ms", "lanes")},
            "bars": [[bar[key] for key in keys] for bar in rank["bars"]],
        }
        for rank in ranks
    ]
    return page(
        "explanation",
        scripts=("table.js", "explanation.js"),
        data=data,
        names=names,
        stacks=_stacks(data, names),
        falls=[_fall(fall) for fall in data["waterfalls"]],
        ranks=ranks,
        legend=[(colour, ", ".join(named)) for colour, named in legend.items()],
        drawing=json_block({"ranks": drawn, "colours": {one: _colour(one) for one in seen}}),
        tables=[_table(table, names) for table in tables],
        most=MOST_ROWS,
        facts={name: [shown(x) for x in cells] for name, cells in facts.items()},
    )


def _colour(category: str) -> str:
    return COLOURS.get(category, "other")


def _order(category: str) -> tuple[int, str]:
    return (list(COLOURS).index(category) if category in COLOURS else 99, category)


def _stacks(data: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    accounts = data["accounts"]
    per = "fit" if accounts[0]["source"] == "fit" else "step"
    parts = [account["parts_s"] for account in accounts]
    if data["waterfalls"]:
        per, bars = data["waterfalls"][0]["per"], data["waterfalls"][0]["bars"]
        parts = [{bar["part"]: bar[side] for bar in bars} for side in ("a_s", "b_s")]
    parts = [{part: s for part, s in of.items() if s > 0} for of in parts]
    totals = [math.fsum(of.values()) for of in parts]
    widest = max(totals)
    if not widest > 0:
        return None
    order = sorted({part for of in parts for part in of}, key=_order)
    stacked = []
    for name, of, total in zip(names, parts, totals, strict=True):
        pieces, reached = [], 0.0
        for part in (part for part in order if part in of):
            place = {"x": reached / widest, "width": of[part] / widest, "share": of[part] / total}
            pieces.append({"part": part, "colour": _colour(part), "seconds": of[part], **place})
            reached += of[part]
        stacked.append({"name": name, "total": total, "pieces": pieces})
    return {"per": per, "bars": stacked, "legend": [(_colour(part), part) for part in order]}


def _fall(fall: Mapping[str, Any]) -> dict[str, Any]:
    reached = list(accumulate((bar["change_s"] for bar in fall["bars"]), initial=fall["a_s"]))
    low, high = min(reached), max(reached)
    # The scale begins at 0 unless the totals differ so little that changes would be invisible.
    base = 0.0 if high - low >= 0.2 * high else max(low - 0.3 * (high - low), 0.0)
    high, base = (1.0, 0.0) if high <= base else (high, base)
    at = [min(max((seconds - base) / (high - base), 0.0), 1.0) for seconds in reached]
    rows = []
    for bar, (before, after) in zip(fall["bars"], pairwise(at), strict=True):
        sign = "more" if bar["change_s"] > 0 else "less" if bar["change_s"] < 0 else ""
        rows.append({**bar, "sign": sign, "from": before, "to": after})
    return {**fall, "begin": base, "a_width": at[0], "b_width": at[-1], "rows": rows}


def _table(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    # In a comparison, the columns of A and B have their names.
    named = dict(zip(("a_s", "b_s"), names, strict=False))
    columns = []
    for i, name in enumerate(table["columns"]):
        cells = [row[i] for row in table["rows"] if row[i] is not None]
        if not cells or not all(type(x) in (int, float) for x in cells):
            columns.append(("text", name))
        elif name.endswith("_s"):
            columns.append(("seconds", named.get(name, name.removesuffix("_s"))))
        else:
            columns.append(("share" if name.startswith("share") else "number", name))
    rows = [
        [
            x if kind == "text" or is_known(x) else None
            for (kind, _), x in zip(columns, row, strict=True)
        ]
        for row in table["rows"][:MOST_ROWS]
    ]
    return {"title": table["title"], "columns": columns, "rows": rows, "count": len(table["rows"])}
