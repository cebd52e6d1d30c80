"""Renderings of cells, screens, splits and imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.terminal import few, print_facts, print_line, print_table, printable, shown


def print_data(found: Mapping[str, Any], path: str, *, full: bool = False) -> None:
    """Print what a cell, a screen or an import holds, on a page."""
    cell, screens = found.get("cell"), dict(found.get("screens", {}))
    if "screen" in found:
        screens["screen"] = found["screen"]
    if cell is not None:
        _print_cell(cell)
    if screens:
        facts = {printable(name): _screen(stats) for name, stats in screens.items()}
        print_facts("screens", facts)
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
            f"{path} --full` shows what became of their rows."
        )


def _print_cell(stats: Mapping[str, Any]) -> None:
    metabolism = "none"
    if (found := stats["metabolism"]) is not None:
        metabolism = (
            f"{found['reactions']:,} reactions, {found['metabolites']:,} metabolites, "
            f"{found['genes_in_rules']:,} genes in rules"
        )
    genes = f"{stats['genes']:,}, {stats['genes_with_position']:,} with a known position"
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


def _screen(stats: Mapping[str, Any]) -> str:
    score, studies = stats["score"], len(stats["studies"])
    mean = f"{score['mean']:.3f} ± {score['standard_deviation']:.3f}" if score["known"] else "-"
    return (
        f"{stats['genotypes']:,} genotypes ({stats['distinct_genotypes']:,} distinct) of "
        f"{stats['genes']:,} genes: {shown(stats['kinds'])}; {', '.join(stats['phenotypes'])} "
        f"{mean}, {score['negative']:,} negative and {score['positive']:,} positive"
        + (f"; {studies:,} studies" if studies > 1 else "")
    )


def print_split(split: Mapping[str, Any]) -> None:
    """Print the parts of a split, from `Split.to_json`."""
    facts = {
        **{name: f"{n:,} genotypes" for name, n in split["genotypes"].items() if n},
        "held-out genes": split["held_out_genes"] or "none",
        "unseen genes of test genotypes": split["test_genotypes_by_unseen_genes"],
    }
    print_facts(f"split by {split['method']}, seed {split['seed']}", facts)
    for note in split["notes"]:
        print_line(f"{note}.")


def print_sources(sources: Sequence[Mapping[str, Any]]) -> None:
    """Print what became of the rows of each source."""
    if not sources:
        return
    counts = ("read", "resolved", "kept", "dropped")
    rows = [
        [source["file"], source["reader"], source["into"], *(source["counts"][x] for x in counts)]
        for source in sources
    ]
    columns = ["file", "reader", "became", *counts]
    print_table("sources (read = kept + dropped)", columns, rows)
    for source in sources:
        if notes := "; ".join(_notes(source)):
            print_line(f"{source['file']}: {notes}")


def _notes(source: Mapping[str, Any]) -> list[str]:
    notes, found = dict(source["notes"]), []
    keys = ("distinct_sets_as_written", "genes_as_written", "distinct_sets", "genes")
    if all(key in notes for key in keys):
        sets_written, genes_written, sets, genes = (shown(notes.pop(key)) for key in keys)
        when = "before rows were dropped for their genes, " if source["counts"]["dropped"] else ""
        found.append(
            f"{when}distinct sets and genes as written: {sets_written} and {genes_written}, after "
            f"aliases: {sets} and {genes}"
        )
    others = {name: value for name, value in notes.items() if not name.endswith("sha256")}
    return found + [f"{name.replace('_', ' ')}: {shown(value)}" for name, value in others.items()]


def print_import(report: Mapping[str, Any]) -> None:
    """Print what an import read, and what it left alone."""
    print_sources(report["sources"])
    if report["left_alone"]:
        rows = [[entry["file"], entry["why"]] for entry in report["left_alone"]]
        print_table("left alone", ["file", "why"], rows)
    for note in report.get("notes", ()):
        print_line(note)
