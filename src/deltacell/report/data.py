"""Renderings of cells, screens, splits and imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltacell.base.text import printable
from deltacell.report.page import sentences
from deltacell.report.terminal import few, print_facts, print_line, print_table, shown


def print_data(found: Mapping[str, Any], path: str = "", *, full: bool = False) -> None:
    cell, screens = found.get("cell"), dict(found.get("screens", {}))
    if "screen" in found:
        screens["screen"] = found["screen"]
    if cell is not None:
        _print_cell(cell)
    told = {name: sentences("data.txt", screen=one)[0] for name, one in screens.items()}
    if told:
        print_facts("screens", {printable(name): text for name, text in told.items()})
    sources = [s for stats in (cell, *screens.values()) if stats for s in stats["sources"]]
    left, notes = found.get("left_alone", ()), found.get("notes", ())
    if full:
        print_import({**found, "sources": sources, "left_alone": left})
        return
    if left:
        print_line(f"Left alone: {few([entry['file'] for entry in left], 3)}.")
    if sources or left or notes:
        more = f", {len(notes)} notes" if notes else ""
        print_line(
            f"{len({s['file'] for s in sources}):,} source files{more}: `deltacell data info "
            f"{path} --full` shows what became of their rows.",
        )


def _print_cell(stats: Mapping[str, Any]) -> None:
    genes, metabolism = sentences("data.txt", cell=stats)
    facts = {"genes": genes, "metabolism": metabolism, "checksum": stats["checksum"][:16]}
    print_facts("cell", facts)
    if stats["relations"]:
        keys = ("relation", "genes_with_an_edge", "edges", "max_degree")
        rows = [[one[key] for key in keys] for one in stats["relations"]]
        rows.append(["sum", None, stats["edges"], None])
        columns = ["relation", "genes with an edge", "edges", "largest degree"]
        print_table("relations (an undirected edge counts once)", columns, rows, total=True)
    known = [[f["feature"], "feature", f["width"], f["known"]] for f in stats["features"]]
    annotations = stats.get("annotations", ())
    known += [[a["annotation"], "annotation", a["terms"], a["genes"]] for a in annotations]
    if known:
        columns = ["name", "", "columns or terms", "genes known"]
        print_table("features and annotations", columns, known)


def print_split(split: Mapping[str, Any]) -> None:
    facts = {
        **{name: f"{n:,} genotypes" for name, n in split["genotypes"].items() if n},
        "held-out genes": split["held_out_genes"] or "none",
        "unseen genes of test genotypes": split["test_genotypes_by_unseen_genes"],
    }
    print_facts(f"split by {split['method']}, seed {split['seed']}", facts)
    for note in split["notes"]:
        print_line(f"{note}.")


def print_import(report: Mapping[str, Any]) -> None:
    sources, counts = report["sources"], ("read", "resolved", "kept", "dropped")
    if sources:
        rows = [
            [one["file"], one["reader"], one["into"], *(one["counts"][x] for x in counts)]
            for one in sources
        ]
        columns = ["file", "reader", "became", *counts]
        print_table("sources (read = kept + dropped)", columns, rows)
    for source in sources:
        notes = [
            f"{name.replace('_', ' ')}: {shown(value)}"
            for name, value in source["notes"].items()
            if not name.endswith("sha256")
        ]
        if notes:
            print_line(f"{source['file']}: {'; '.join(notes)}")
    if report["left_alone"]:
        rows = [[entry["file"], entry["why"]] for entry in report["left_alone"]]
        print_table("left alone", ["file", "why"], rows)
    for note in report.get("notes", ()):
        print_line(note)
