"""An explanation as one page: the sentence, what it rests on, and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from deltacell.report.numbers import change_text, ratio_text, share_text, time_text
from deltacell.report.page import json_block, page, percent
from deltacell.report.terminal import printable, shown

MOST_ROWS = 1000
"""Rows of a table that are on the page; all of them are in the JSON output."""
MOST_AS_TEXT = 15
"""Bars of a rank that are listed as text beside the drawing."""


def explanation_page(data: Mapping[str, Any]) -> str:
    """Return the page of an explanation: one file, without anything from the network.

    Parameters
    ----------
    data
        From `Explanation.to_json`.
    """
    names = [printable(account["name"]) for account in data["accounts"]]
    epochs = data["epoch_ratio"]
    ranks = _ranks(data["timeline"])
    return page(
        "explanation",
        scripts=("table.js", "explanation.js"),
        sentence=printable(data["sentence"]),
        is_long=len(data["sentence"]) > 160,
        names=names,
        confidence=data["confidence"],
        lists={key: [printable(one) for one in data[key]] for key in _LISTS},
        epochs=None if epochs is None else _epochs(epochs),
        stacks=_stacks(data, names),
        falls=[_fall(fall) for fall in data["waterfalls"]],
        ranks=[_rank_text(rank) for rank in ranks],
        legend=_legend(ranks),
        drawing=_drawing(ranks),
        tables=[
            _table(i, table, names)
            for i, table in enumerate(data["tables"])
            if not table["key"].startswith("waterfall_")
        ],
        facts=_facts(names, data["facts"]),
    )


_LISTS = ("evidence", "advice", "unequal", "warnings")
_COLOURS = {
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


def _colour(category: str) -> str:
    return _COLOURS.get(category, "other")


def _epochs(epochs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "epoch": ratio_text(epochs["epoch"]),
        "of_steps": ratio_text(epochs["of_steps"]),
        "factors": [
            ("steps of an epoch", ratio_text(epochs["steps"])),
            ("time per step", ratio_text(epochs["time_per_step"])),
            ("outside the steps", ratio_text(epochs["outside"])),
        ],
    }


def _stacks(data: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    """Return the parts of each account on one scale."""
    if data["waterfalls"]:
        fall = data["waterfalls"][0]
        per = fall["per"]
        parts = [
            {bar["part"]: bar[side] for bar in fall["bars"] if bar[side] > 0}
            for side in ("a_s", "b_s")
        ]
    else:
        per = "step"
        parts = [
            {part: seconds for part, seconds in account["parts_s"].items() if seconds > 0}
            for account in data["accounts"]
        ]
    widest = max((math.fsum(of.values()) for of in parts), default=0.0)
    if not widest > 0:
        return None
    order = list(dict.fromkeys(part for of in parts for part in of))
    largest = {part: max(of[part] for of in parts if part in of) for part in order}
    order.sort(key=lambda part: (list(_COLOURS).index(part) if part in _COLOURS else 99, part))
    bars = []
    for name, of in zip(names, parts, strict=True):
        total = math.fsum(of.values())
        pieces, reached = [], 0.0
        for part in order:
            if part not in of:
                continue
            pieces.append(
                {
                    "part": printable(part),
                    "colour": _colour(part),
                    "x": percent(reached / widest),
                    "width": percent(of[part] / widest),
                    "time": time_text(of[part]),
                    "share": share_text(of[part] / total),
                }
            )
            reached += of[part]
        bars.append({"name": name, "total": time_text(total), "pieces": pieces})
    return {
        "per": per,
        "bars": bars,
        "legend": [
            (_colour(part), printable(part)) for part in order if largest[part] >= 0.002 * widest
        ],
    }


def _fall(fall: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bars of a waterfall, each with where it is drawn."""
    reached = [fall["a_s"]]
    for bar in fall["bars"]:
        reached.append(reached[-1] + bar["change_s"])
    low, high = min(reached), max(reached)
    # Totals begin at nothing, but where they hardly differ the changes could not be seen then.
    base = 0.0 if high - low >= 0.2 * high else max(low - 0.3 * (high - low), 0.0)
    high, base = (1.0, 0.0) if high <= base else (high, base)

    def at(seconds: float) -> float:
        return min(max((seconds - base) / (high - base), 0.0), 1.0)

    rows = []
    for bar, before, after in zip(fall["bars"], reached, reached[1:], strict=False):
        left, right = sorted((at(before), at(after)))
        rows.append(
            {
                "part": printable(bar["part"]),
                "a": time_text(bar["a_s"]),
                "b": time_text(bar["b_s"]),
                "change": change_text(bar["change_s"]),
                "share": share_text(bar["share_of_gap"]),
                "sign": "more" if bar["change_s"] > 0 else "less" if bar["change_s"] < 0 else "",
                "x": percent(left),
                "width": percent(right - left),
                "from": percent(at(before)),
                "to": percent(at(after)),
            }
        )
    return {
        "per": fall["per"],
        "a": time_text(fall["a_s"]),
        "b": time_text(fall["b_s"]),
        "gap": change_text(fall["gap_s"]),
        "ratio": None if fall["ratio"] is None else ratio_text(fall["ratio"]),
        "begin": time_text(base) if base else None,
        "a_width": percent(at(fall["a_s"])),
        "b_width": percent(at(fall["b_s"])),
        "rows": rows,
    }


def _ranks(timeline: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the ranks that have something to draw."""
    return [] if timeline is None else [rank for rank in timeline["ranks"] if rank["bars"]]


def _rank_text(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of a rank's step beside the drawing, and its longest bars."""
    longest = sorted(rank["bars"], key=lambda bar: -bar["duration_ms"])[:MOST_AS_TEXT]
    said = f"Step {shown(rank['step'])}, {time_text(rank['step_ms'] / 1e3)}, "
    said += f"{shown(rank['events'])} events"
    together = sum(bar["count"] for bar in rank["bars"] if bar["count"] > 1)
    if together:
        said += f"; {shown(together)} short ones are drawn together"
    if rank["events_left_out"]:
        said += f"; {shown(rank['events_left_out'])} of the shortest are left out"
    if rank["lanes_left_out"]:
        said += f"; {shown(rank['lanes_left_out'])} threads or streams with less are left out"
    return {
        "name": printable(rank["name"]),
        "said": f"{said}.",
        "longest": [
            {
                "name": printable(bar["name"]),
                "lane": printable(rank["lanes"][bar["lane"]]),
                "category": printable(bar["category"]),
                "begin": time_text((bar["begin_ms"] - rank["begin_ms"]) / 1e3),
                "time": time_text(bar["duration_ms"] / 1e3),
            }
            for bar in longest
        ],
    }


def _legend(ranks: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the colours of the drawing, each with the categories that have it."""
    there = {bar["category"] for rank in ranks for bar in rank["bars"]}
    by_colour: dict[str, list[str]] = {}
    for category in [*(known for known in _COLOURS if known in there), *sorted(there)]:
        listed = by_colour.setdefault(_colour(category), [])
        if category not in listed:
            listed.append(category)
    return [(colour, printable(", ".join(listed))) for colour, listed in by_colour.items()]


def _drawing(ranks: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Return the bars of all ranks as JSON: names once, each bar as a list of numbers."""
    if not ranks:
        return None
    names: dict[str, int] = {}
    categories: dict[str, int] = {}
    drawn = [
        {
            "name": printable(rank["name"]),
            "begin": rank["begin_ms"],
            "length": rank["step_ms"],
            "lanes": [printable(lane) for lane in rank["lanes"]],
            "bars": [
                [
                    bar["lane"],
                    bar["depth"],
                    round(bar["begin_ms"], 6),
                    round(bar["duration_ms"], 6),
                    names.setdefault(printable(bar["name"]), len(names)),
                    categories.setdefault(bar["category"], len(categories)),
                    bar["count"],
                    round(bar["busy_ms"], 6),
                ]
                for bar in rank["bars"]
            ],
        }
        for rank in ranks
    ]
    return json_block(
        {
            "ranks": drawn,
            "names": list(names),
            "categories": [[printable(name), _colour(name)] for name in categories],
        }
    )


def _table(place: int, table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    columns, rows = table["columns"], table["rows"]
    kinds = [_kind(name, [row[i] for row in rows]) for i, name in enumerate(columns)]
    return {
        "id": f"table-{place}",
        "title": _capital(printable(table["title"])),
        "columns": [
            {"name": _heading(name, kind, names), "is_number": kind != "text"}
            for name, kind in zip(columns, kinds, strict=True)
        ],
        "rows": [
            [_cell(value, kind) for value, kind in zip(row, kinds, strict=True)]
            for row in rows[:MOST_ROWS]
        ],
        "count": shown(len(rows)),
        "left_out": shown(len(rows) - MOST_ROWS) if len(rows) > MOST_ROWS else None,
    }


def _capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def _kind(name: str, values: Sequence[Any]) -> str:
    told = [value for value in values if value is not None]
    if not told or not all(_is_number(value) for value in told):
        return "text"
    if name.endswith("_s"):
        return "seconds"
    return "share" if name.startswith("share") else "number"


def _heading(name: str, kind: str, names: Sequence[str]) -> str:
    """Return the heading of a column; that of A and of B is their names."""
    if kind != "seconds":
        return printable(name)
    of = {"a_s": 0, "b_s": 1}
    if name in of and of[name] < len(names):
        return names[of[name]]
    return printable(name.removesuffix("_s"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any, kind: str) -> dict[str, Any]:
    if kind == "text":
        return {"text": shown(value), "value": None, "width": None}
    known = value is not None and math.isfinite(value)
    told = {"share": share_text, "seconds": time_text, "number": shown}[kind]
    return {
        "text": told(value if known else None),
        "value": value if known else None,
        "width": percent(min(abs(value), 1.0)) if known and kind == "share" else None,
    }


def _facts(names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of all accounts, one row a fact."""
    known = dict.fromkeys(name for one in facts for name in one)
    rows = []
    for name in known:
        cells = [shown(one[name]) if name in one else "–" for one in facts]
        rows.append((printable(str(name)), cells, len(set(cells)) > 1))
    return {"names": names[: len(facts)], "rows": rows}
