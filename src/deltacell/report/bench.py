"""Renderings of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltacell.report.terminal import console, print_table


def print_bench(result: Mapping[str, Any], title: str) -> None:
    """Print the rows of a benchmark, and whether its bars are met."""
    rows = result["rows"]
    columns = [name for name, value in rows[0].items() if not isinstance(value, list | dict)]
    names = [name.replace("_", " ") for name in columns]
    print_table(title, names, [[row[name] for name in columns] for row in rows])
    if result["bars"]:
        print_table(
            "bars",
            ["what", "measured", "bar", ""],
            [
                [
                    name.replace("_", " "),
                    bar["measured"],
                    _bar(bar),
                    "met" if bar["met"] else "NOT MET",
                ]
                for name, bar in result["bars"].items()
            ],
        )
    machine = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    console().print(f"{result['command']} on {machine}", markup=False)


def _bar(bar: Mapping[str, Any]) -> str:
    return f"at least {bar['at_least']:,}" if "at_least" in bar else f"at most {bar['at_most']:,}"
