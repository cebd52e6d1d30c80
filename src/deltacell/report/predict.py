"""A ranking and the explanation of one gene set, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.page import page
from deltacell.report.terminal import few, print_line, print_table
from deltacell.words import count_text

Table = tuple[str, list[str], list[list[Any]]]


def print_ranking(result: Mapping[str, Any], most: int = 10) -> None:
    """Print the first sets of each end, and what is said of the ranking."""
    for end, title in (
        (None, "from the lowest score up"),
        ("lowest", "lowest scores: the sickest"),
        ("highest", "highest scores: the fittest"),
    ):
        rows = [row for row in result["rows"] if row["end"] == end]
        if rows:
            there = result["counts"][end or "listed"]
            _print_rows(f"{title} ({min(most, len(rows)):,} of {there:,})", rows[:most])
    if not result["rows"]:
        print_line("No set is left of those that were asked for.")
    for sentence in result["sentences"]:
        print_line(sentence)
    for one in result["agreement"]:
        if one["pearson"] is not None:
            print_line(
                f"Predicted against measured: Pearson {one['pearson']:.3f} over {one['sets']:,} "
                f"sets drawn from the {one['part']} part; `deltacell evaluate` uses all of it."
            )


def _print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4f}"

    columns = {
        "rank": [row["rank"] for row in rows],
        "genes": [" ".join(row["names"]) for row in rows],
        "score": [f"{row['score']:.4f}" for row in rows],
        "spread": [number(row["spread"]) for row in rows],
        "status": [row["status"] for row in rows],
        "measured": [number(row["measured"]) for row in rows],
        "linked": ["yes" if row["linked"] else "" for row in rows],
        **{key: [few(r[key], 3) for r in rows] for key in ("relations", "pathways", "complexes")},
    }
    # An empty column would take the place of one that says something.
    shown = {name: values for name, values in columns.items() if any(values)}
    print_table(title, list(shown), list(zip(*shown.values(), strict=True)))


def print_explained_set(result: Mapping[str, Any]) -> None:
    """Print what carries a prediction, from `predict.explain_set`: sentences, then tables."""
    print_line(result["title"], style="bold")
    for sentence in result["sentences"]:
        print_line(sentence)
    print_line("")
    if result["spread"] is not None:
        print_table(*_runs(result))
    if result["explained"] is not None:
        rows = [([row["relation"], row["links"]], row) for row in result["relations"]]
        _print_contributions("relation", ["relation", "links"], rows, result)
        rows = [
            ([_label(row), "yes" if row["deleted"] else "no"], row)
            for row in result["gene_contributions"]
        ]
        if (rest := result["other_genes"])["genes"]:
            others = [count_text(rest["genes"], "other gene"), "no"]
            rows.append((others, {**rest, "spread": None}))
        _print_contributions("gene", ["gene", "deleted"], rows, result)
    for table in (_votes(result), _nearest(result)):
        if table[2]:
            print_table(*table)
    evidence, name = result["evidence"], dict(zip(result["genes"], result["names"], strict=True))
    if evidence["links"]:
        links = [[name[x["first"]], name[x["second"]], x["relation"]] for x in evidence["links"]]
        print_table("Edges between the genes", ["from", "to", "relation"], links)
    for what in ("pathways", "complexes"):
        if evidence[what]:
            print_line(f"Shared {what}: {few(evidence[what], 8)}")
    if result["lost"]:
        print_line(f"Reactions that only the whole set loses: {', '.join(result['lost'])}")


def explained_page(result: Mapping[str, Any]) -> str:
    """Return the explanation of one set, from `predict.explain_set`, as self-contained HTML."""
    tables = [_votes(result), _nearest(result)]
    columns = ["relation", "links", "contribution"]
    rows = [[r["relation"], r["links"], _signed(r["contribution"])] for r in result["relations"]]
    tables += [("What the relations contribute", columns, rows), _runs(result)]
    return page(
        "why",
        result=result,
        runs=count_text(len(result["runs"]), "run"),
        lines=evidence_lines(result),
        tables=[table for table in tables if table[2]],
        numbers={"measured", "weight", "distance", "predicted", "seed", "score", "contribution"},
    )


def evidence_lines(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of a set in lines: the kind of evidence, and what it says.

    ``known`` is a row of a ranking or an explained set, with its evidence at the top or under
    ``evidence``.
    """
    known = {**known, **known.get("evidence", {})}
    lines = [
        (
            "measured next to it",
            f"{' '.join(vote['names'])} {_signed(vote['score'])}, with {vote['by']} in place of "
            f"{vote['replaced']} by {vote['relation']}",
        )
        for vote in known.get("votes", ())[:5]
    ]
    joined = list(dict.fromkeys(link["relation"] for link in known.get("links", ())))
    terms = [f"{term['term']} ({term['annotation']})" for term in known.get("terms", ())]
    named = {
        "joined by": few(joined, len(joined)),
        "shared complexes": few(known.get("complexes", ()), 8),
        "shared pathways": few(known.get("pathways", ()), 8),
        "reactions lost together": few(known.get("lost", ()), 8),
        "shared terms": few(terms, 8),
    }
    return lines + [(kind, names) for kind, names in named.items() if names]


def _votes(result: Mapping[str, Any]) -> Table:
    rows = [
        [
            *(" ".join(vote["names"]), _signed(vote["score"])),
            *(f"{vote['by']} for {vote['replaced']}", vote["relation"]),
            *(f"{vote['weight']:.3g}", vote["run"]),
        ]
        for vote in result["votes"][:20]
    ]
    columns = ["genes", "measured", "in place of", "relation", "weight", "run"]
    return "The measured sets it rests on", columns, rows


def _nearest(result: Mapping[str, Any]) -> Table:
    rows = [
        [
            *(" ".join(near["names"]), f"{near['distance']:.2g}"),
            *(_signed(near["measured"]), _signed(near["predicted"]), near["part"]),
        ]
        for near in result["nearest"]
    ]
    columns = ["genes", "distance", "measured", "predicted", "part"]
    return "The nearest measured sets", columns, rows


def _runs(result: Mapping[str, Any]) -> Table:
    rows = [[r["name"], r["seed"], r["model"], _signed(r["score"])] for r in result["runs"]]
    return "What each run says", ["run", "seed", "model", "score"], rows


def _print_contributions(
    what: str,
    columns: Sequence[str],
    rows: Sequence[tuple[list[Any], Mapping[str, Any]]],
    result: Mapping[str, Any],
) -> None:
    """Print rows from the score without any of them to the score with all."""
    widest = max((abs(row["contribution"]) for _, row in rows), default=0.0)

    def line(labels: Sequence[Any], value: float, spread: float | None, bar: str = "") -> list[Any]:
        spreads = [None if spread is None else f"{spread:.3f}"]
        return [*labels, _signed(value), *(spreads if result["spread"] is not None else []), bar]

    table = [line([f"no {what}", ""], result[f"{what}s_baseline"], None)]
    for labels, row in rows:
        value = row["contribution"]
        bar = ("+" if value > 0 else "-") * (round(16 * abs(value) / widest) if widest else 0)
        table.append(line(labels, value, row["spread"], bar))
    table.append(line(["residual", ""], result[f"{what}s_residual"], None))
    table.append(line(["score", ""], result["explained"], None))
    title = "What the relations contribute" if what == "relation" else None
    spread = ["spread"] if result["spread"] is not None else []
    names = [*columns, "contribution", *spread, ""]
    print_table(title or "What the genes' vectors contribute", names, table, total=True)


def _label(row: Mapping[str, Any]) -> str:
    return str(row["name"] if row["name"] == row["gene"] else f"{row['name']} ({row['gene']})")


def _signed(value: float) -> str:
    return f"{value:+.4f}"
