"""Renderings of cells, screens, splits and imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from deltacell.base.rendering import Values
from deltacell.base.text import printable
from deltacell.report.terminal import few, print_facts, print_line, print_table, shown

COUNTS = ("read", "resolved", "kept", "dropped")
RELATION_KEYS = ("relation", "genes_with_an_edge", "edges", "max_degree")
RELATION_COLUMNS = ("relation", "genes with an edge", "edges", "largest degree")


class MetabolismValues(TypedDict):
    """The sizes of a metabolism."""

    reactions: int
    metabolites: int
    genes_in_rules: int


def print_data(data: Values, path: str = "", *, full: bool = False) -> None:
    """Print the values of a cell, of a screen or of an import, by the names of its parts.

    With ``full``, what became of each source file follows; else a line names the command for it,
    with the ``path`` of the data.
    """
    cell = data.get("cell")
    screens = dict(data.get("screens", {}))
    if "screen" in data:
        screens["screen"] = data["screen"]
    if cell is not None:
        _print_cell(cell)
    if screens:
        facts = {printable(name): screen_text(screen) for name, screen in screens.items()}
        print_facts("screens", facts)
    sources = [] if cell is None else [*cell["sources"]]
    for screen in screens.values():
        sources += screen["sources"]
    if full:
        print_import({"left_alone": (), **data, "sources": sources})
    else:
        _print_summary_of_sources(data, sources, path)


def _print_summary_of_sources(data: Values, sources: Sequence[Values], path: str) -> None:
    left_alone = data.get("left_alone", ())
    notes = data.get("notes", ())
    if left_alone:
        files = [entry["file"] for entry in left_alone]
        print_line(f"Left alone: {few(files, 3)}.")
    if sources or left_alone or notes:
        n_files = len({source["file"] for source in sources})
        and_notes = f", {len(notes)} notes" if notes else ""
        print_line(
            f"{n_files:,} source files{and_notes}: `deltacell data info {path} --full` shows what "
            "became of their rows.",
        )


def _print_cell(cell: Values) -> None:
    genes = f"{shown(cell['genes'])}, {shown(cell['genes_with_position'])} with a known position"
    metabolism = metabolism_text(cell["metabolism"])
    checksum = cell["checksum"][:16]
    print_facts("cell", {"genes": genes, "metabolism": metabolism, "checksum": checksum})
    if cell["relations"]:
        rows = [[relation[key] for key in RELATION_KEYS] for relation in cell["relations"]]
        rows.append(["sum", None, cell["edges"], None])
        title = "relations (an undirected edge counts once)"
        print_table(title, RELATION_COLUMNS, rows, total=True)
    known = [[f["feature"], "feature", f["width"], f["known"]] for f in cell["features"]]
    for annotation in cell.get("annotations", ()):
        name = annotation["annotation"]
        known.append([name, "annotation", annotation["terms"], annotation["genes"]])
    if known:
        columns = ["name", "", "columns or terms", "genes known"]
        print_table("features and annotations", columns, known)


def metabolism_text(metabolism: MetabolismValues | None) -> str:
    """Return the sizes of a metabolism, or that there is none."""
    if metabolism is None:
        return "none"
    return (
        f"{metabolism['reactions']:,} reactions, {metabolism['metabolites']:,} metabolites, "
        f"{metabolism['genes_in_rules']:,} genes in rules"
    )


def screen_text(screen: Values) -> str:
    """Return how many genotypes of which kinds a screen has, and its scores; mean ± deviation."""
    score = screen["score"]
    distribution = "-"
    if score["known"]:
        distribution = f"{score['mean']:.3f} ± {score['standard_deviation']:.3f}"
    n_studies = len(screen["studies"])
    studies = f"; {n_studies:,} studies" if n_studies > 1 else ""
    return (
        f"{shown(screen['genotypes'])} genotypes ({shown(screen['distinct_genotypes'])} distinct) "
        f"of {shown(screen['genes'])} genes: {shown(screen['kinds'])}; "
        f"{', '.join(screen['phenotypes'])} {distribution}, {shown(score['negative'])} negative "
        f"and {shown(score['positive'])} positive{studies}"
    )


def print_split(split: Values) -> None:
    """Print the sizes of the parts of a split, and which genes they share."""
    sizes = {name: f"{n:,} genotypes" for name, n in split["genotypes"].items() if n}
    facts = {
        **sizes,
        "held-out genes": split["held_out_genes"] or "none",
        "unseen genes of test genotypes": split["test_genotypes_by_unseen_genes"],
    }
    print_facts(f"split by {split['method']}, seed {split['seed']}", facts)
    for note in split["notes"]:
        print_line(f"{note}.")


def print_import(account: Values) -> None:
    """Print what became of each file of an import, and which files were left alone."""
    sources = account["sources"]
    if sources:
        rows = [_source_row(source) for source in sources]
        columns = ["file", "reader", "became", *COUNTS]
        print_table("sources (read = kept + dropped)", columns, rows)
    for source in sources:
        notes = _source_notes(source["notes"])
        if notes:
            print_line(f"{source['file']}: {'; '.join(notes)}")
    if account["left_alone"]:
        rows = [[entry["file"], entry["why"]] for entry in account["left_alone"]]
        print_table("left alone", ["file", "why"], rows)
    for note in account.get("notes", ()):
        print_line(note)


def _source_row(source: Values) -> list[object]:
    counts = [source["counts"][name] for name in COUNTS]
    return [source["file"], source["reader"], source["into"], *counts]


def _source_notes(notes: Mapping[str, object]) -> list[str]:
    return [
        f"{name.replace('_', ' ')}: {shown(value)}"
        for name, value in notes.items()
        if not name.endswith("sha256")
    ]
