"""Renderings of cells, screens, imports and the data benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.terminal import console, print_facts, print_table, printable, shown

_NAMED = 3
_SETS_AND_GENES = ("distinct_sets_as_written", "genes_as_written", "distinct_sets", "genes")


def print_data(found: Mapping[str, Any], path: str, *, full: bool = False) -> None:
    """Print what a cell, a screen or an import holds, on a page.

    Parameters
    ----------
    found
        ``cell`` (`Cell.stats`), ``screen`` or, by name, ``screens`` (`Screen.stats`); of an import
        also ``splits``, ``left_alone`` and ``notes``.
    path
        Where it is, for hints.
    full
        Whether to print what became of the rows of every source, too.
    """
    cell = found.get("cell")
    screens = dict(found.get("screens", {}))
    if "screen" in found:
        screens["screen"] = found["screen"]
    if cell is not None:
        _print_cell(cell)
    if screens:
        _print_screens(screens)
    sources = [s for stats in (cell, *screens.values()) if stats for s in stats["sources"]]
    if full:
        print_import({**found, "sources": sources, "left_alone": found.get("left_alone", ())})
        return
    left, notes = found.get("left_alone", ()), found.get("notes", ())
    if left:
        names = ", ".join(entry["file"] for entry in left[:_NAMED])
        more = f" and {len(left) - _NAMED:,} more" if len(left) > _NAMED else ""
        _say(f"Left alone: {names}{more}.")
    if sources or left or notes:
        told = f", {len(notes)} notes" if notes else ""
        _say(
            f"{len({s['file'] for s in sources}):,} source files{told}: what became of their rows "
            f"is shown by `deltacell data info {path} --full`."
        )


def _print_cell(stats: Mapping[str, Any]) -> None:
    print_facts(
        "cell",
        {
            "genes": f"{stats['genes']:,}, {stats['genes_with_position']:,} with a known position",
            "metabolism": _metabolism(stats["metabolism"]),
            "checksum": stats["checksum"][:16],
        },
    )
    if stats["relations"]:
        rows: list[list[Any]] = [
            [r["relation"], r["genes_with_an_edge"], r["edges"], r["max_degree"]]
            for r in stats["relations"]
        ]
        rows.append(["sum", None, stats["edges"], None])
        print_table(
            "relations (an undirected edge counts once)",
            ["relation", "genes with an edge", "edges", "largest degree"],
            rows,
            total=True,
        )
    known = [[f["feature"], "feature", f["width"], f["known"]] for f in stats["features"]]
    known += [
        [a["annotation"], "annotation", a["terms"], a["genes"]]
        for a in stats.get("annotations", ())
    ]
    if known:
        print_table(
            "features and annotations", ["name", "", "columns or terms", "genes known"], known
        )


def _print_screens(screens: Mapping[str, Mapping[str, Any]]) -> None:
    facts = {}
    for name, stats in screens.items():
        score = stats["score"]
        mean = f"{score['mean']:.3f} ± {score['standard_deviation']:.3f}" if score["known"] else "-"
        studies = len(stats["studies"])
        facts[printable(name)] = (
            f"{stats['genotypes']:,} genotypes ({stats['distinct_genotypes']:,} distinct) of "
            f"{stats['genes']:,} genes: {shown(stats['kinds'])}; {', '.join(stats['phenotypes'])} "
            f"{mean}, {score['negative']:,} negative and {score['positive']:,} positive"
            + (f"; {studies:,} studies" if studies > 1 else "")
        )
    print_facts("screens", facts)


def print_split(split: Mapping[str, Any]) -> None:
    """Print the parts of a split, from `Split.to_json`."""
    parts = split["genotypes"]
    print_facts(
        f"split by {split['method']}, seed {split['seed']}",
        {
            **{name: f"{n:,} genotypes" for name, n in parts.items() if n},
            "held-out genes": split["held_out_genes"] or "none",
            "unseen genes of test genotypes": split["test_genotypes_by_unseen_genes"],
        },
    )
    for note in split["notes"]:
        console().print(printable(f"{note}."), markup=False)


def print_sources(sources: Sequence[Mapping[str, Any]]) -> None:
    """Print what became of the rows of each source."""
    if not sources:
        return
    print_table(
        "sources (read = kept + dropped)",
        ["file", "reader", "became", "read", "resolved", "kept", "dropped"],
        [
            [
                s["file"],
                s["reader"],
                s["into"],
                s["counts"]["read"],
                s["counts"]["resolved"],
                s["counts"]["kept"],
                s["counts"]["dropped"],
            ]
            for s in sources
        ],
    )
    for source in sources:
        facts = "; ".join(_notes(source))
        if facts:
            console().print(printable(f"{source['file']}: {facts}"), markup=False)


def print_import(report: Mapping[str, Any]) -> None:
    """Print what an import read, and what it left alone."""
    print_sources(report["sources"])
    if report["left_alone"]:
        print_table(
            "left alone",
            ["file", "why"],
            [[entry["file"], entry["why"]] for entry in report["left_alone"]],
        )
    for note in report.get("notes", ()):
        _say(note)


def _say(sentence: str) -> None:
    console().print(printable(sentence), markup=False)


def _notes(source: Mapping[str, Any]) -> list[str]:
    notes = dict(source["notes"])
    told = []
    if all(name in notes for name in _SETS_AND_GENES):
        sets_written, genes_written, sets, genes = (shown(notes.pop(n)) for n in _SETS_AND_GENES)
        when = "before rows were dropped for their genes, " if source["counts"]["dropped"] else ""
        told.append(
            f"{when}distinct sets and genes as written: {sets_written} and {genes_written}, after "
            f"aliases: {sets} and {genes}"
        )
    return told + [
        f"{name.replace('_', ' ')}: {shown(value)}"
        for name, value in notes.items()
        if not name.endswith("sha256")
    ]


def _metabolism(stats: Mapping[str, Any] | None) -> str:
    if stats is None:
        return "none"
    return (
        f"{stats['reactions']:,} reactions, {stats['metabolites']:,} metabolites, "
        f"{stats['genes_in_rules']:,} genes in rules"
    )
