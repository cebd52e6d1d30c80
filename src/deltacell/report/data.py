"""Renderings of cells, screens, imports and the data benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.terminal import console, print_facts, print_table, printable, shown

_SETS_AND_GENES = ("distinct_sets_as_written", "genes_as_written", "distinct_sets", "genes")


def print_cell(stats: Mapping[str, Any], title: str = "cell") -> None:
    """Print what a cell holds, from `Cell.stats`."""
    relations = stats["relations"]
    print_facts(
        title,
        {
            "genes": f"{stats['genes']:,}, {stats['genes_with_position']:,} with a known position",
            "metabolism": _metabolism(stats["metabolism"]),
            "features": len(stats["features"]) or "none",
            "checksum": stats["checksum"][:16],
        },
    )
    rows: list[list[Any]] = [
        [
            r["relation"],
            "directed" if r["directed"] else "undirected",
            r["genes_with_an_edge"],
            r["edges"],
            r["max_degree"],
        ]
        for r in relations
    ]
    rows.append(["sum", "", None, stats["edges"], None])
    print_table(
        "relations (an undirected edge counts once)",
        ["relation", "", "genes with an edge", "edges", "largest degree"],
        rows,
        total=True,
    )
    if stats["features"]:
        print_table(
            "features",
            ["feature", "width", "genes known", "missing of these"],
            [
                [f["feature"], f["width"], f["known"], f"{f['missing']:.1%}"]
                for f in stats["features"]
            ],
        )
    print_sources(stats["sources"])


def print_screen(stats: Mapping[str, Any], title: str = "screen") -> None:
    """Print what a screen holds, from `Screen.stats`."""
    score = stats["score"]
    covered = [
        f"{c['study']}: {c['queries']:,} queries x {c['array_genes']:,} array genes"
        + ("" if c["complete"] else " (those with a hit: a lower bound)")
        for c in stats["coverage"]
    ]
    print_facts(
        title,
        {
            "genotypes": f"{stats['genotypes']:,}, {stats['distinct_genotypes']:,} distinct, "
            f"over {stats['genes']:,} genes",
            "kinds": stats["kinds"],
            "studies": stats["studies"],
            "phenotypes": stats["phenotypes"],
            "perturbations": stats["perturbations"],
            "scores": f"{score['known']:,} known"
            + (
                f", mean {score['mean']:.4f}, standard deviation {score['standard_deviation']:.4f}"
                if score["known"]
                else ""
            ),
            "signs": f"{score['negative']:,} negative, {score['positive']:,} positive",
            "tested": "; ".join(covered) or "unknown",
            "checksum": stats["checksum"][:16],
        },
    )
    print_sources(stats["sources"])


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
    for note in report["notes"]:
        console().print(printable(note), markup=False)


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
