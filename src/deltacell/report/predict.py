"""A ranking on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.terminal import console, print_table, printable

_FEW = 3


def print_ranking(result: Mapping[str, Any], most: int = 10) -> None:
    """Print the first sets of each end, and what is said of the ranking.

    Parameters
    ----------
    result
        From `Ranking.to_json`.
    most
        Rows of each end.
    """
    for end, title in (
        (None, "from the lowest score up"),
        ("lowest", "lowest scores: the sickest"),
        ("highest", "highest scores: the fittest"),
    ):
        rows = [row for row in result["rows"] if row["end"] == end]
        if rows:
            there = result["counts"][end or "listed"]
            _print_rows(f"{title} ({min(most, len(rows)):,} of {there:,})", rows[:most])
    to = console()
    if not result["rows"]:
        to.print("No set is left of those that were asked for.", markup=False)
    for sentence in result["sentences"]:
        to.print(printable(sentence), markup=False)
    for one in result["agreement"]:
        if one["pearson"] is not None:
            to.print(
                f"Predicted against measured: Pearson {one['pearson']:.3f} over {one['sets']:,} "
                f"sets that were drawn from the {one['part']} part; `deltacell evaluate` looks at "
                "all of it.",
                markup=False,
            )


def _print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ["rank", "genes", "score"]
    optional = {
        "spread": [_number(row["spread"]) for row in rows],
        "status": [row["status"] for row in rows],
        "measured": [_number(row["measured"]) for row in rows],
        "linked": ["yes" if row["linked"] else "" for row in rows],
        "relations": [_few(row["relations"]) for row in rows],
        "pathways": [_few(row["pathways"]) for row in rows],
        "complexes": [_few(row["complexes"]) for row in rows],
    }
    # A column that says nothing takes the place of one that does.
    shown = {name: values for name, values in optional.items() if any(values)}
    table = [
        [
            row["rank"],
            " ".join(row["names"]),
            f"{row['score']:.4f}",
            *(v[i] for v in shown.values()),
        ]
        for i, row in enumerate(rows)
    ]
    print_table(title, [*columns, *shown], table)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more
