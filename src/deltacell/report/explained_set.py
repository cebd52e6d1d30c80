"""The explanation of one gene set on the terminal and as a page, and evidence in lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.page import page
from deltacell.report.terminal import console, print_table, printable
from deltacell.words import count_text

_BAR = 16
_NAMES = 8
_VOTES = 20
_LINES = 5


def print_explained_set(result: Mapping[str, Any]) -> None:
    """Print what carries a prediction: sentences first, then the tables.

    Parameters
    ----------
    result
        From `deltacell.predict.explain_set.explain_set`.
    """
    to = console()
    to.print(printable(result["title"]), style="bold", markup=False)
    for sentence in result["sentences"]:
        to.print(printable(sentence), markup=False)
    to.print()
    several = result["spread"] is not None
    if several:
        print_table(*_runs(result["runs"]))
    if result["explained"] is not None:
        _explained(result, several)
    for table in (_votes(result), _nearest(result)):
        if table[2]:
            print_table(*table)
    _evidence(result)


def explained_page(result: Mapping[str, Any]) -> str:
    """Return the explanation of one set as a self-contained HTML page.

    Parameters
    ----------
    result
        From `deltacell.predict.explain_set.explain_set`.
    """
    tables = [_votes(result), _nearest(result)]
    if result["relations"]:
        rows = [
            [row["relation"], str(row["links"]), _signed(row["contribution"])]
            for row in result["relations"]
        ]
        columns = ["relation", "links", "contribution"]
        tables.append(("What the relations contribute", columns, rows))
    tables.append(_runs(result["runs"]))
    numbers = {"measured", "weight", "distance", "predicted", "seed", "score", "contribution"}
    return page(
        "why",
        scripts=(),
        title=printable(result["title"]),
        of=f"A gene set by {count_text(len(result['runs']), 'run')}",
        sentences=[printable(sentence) for sentence in result["sentences"]],
        genes=[
            {name: None if value is None else printable(value) for name, value in gene.items()}
            for gene in result["gene_facts"]
        ],
        lines=[(kind, printable(text)) for kind, text in evidence_lines(result)],
        tables=[
            {
                "title": title,
                "columns": columns,
                "numbers": {i for i, name in enumerate(columns) if name in numbers},
                "rows": [
                    ["–" if cell is None else printable(str(cell)) for cell in r] for r in rows
                ],
            }
            for title, columns, rows in tables
            if rows
        ],
    )


def evidence_lines(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of a set in lines: the kind of evidence, and what it says.

    Parameters
    ----------
    known
        ``votes`` as in `explain_set`, ``lost`` (names of reactions that only the whole set
        loses), ``terms`` (annotations that genes share, as ``annotation`` and ``term``), and
        ``relations``, ``pathways`` and ``complexes``, at the top or under ``evidence``.
    """
    known = {**known, **known.get("evidence", {})}
    links = known.get("links", [])
    joined = dict.fromkeys(link["relation"] for link in links)
    lines = [
        (
            "measured next to it",
            f"{' '.join(vote['names'])} {_signed(vote['score'])}, with {vote['by']} in place of "
            f"{vote['replaced']} by {vote['relation']}",
        )
        for vote in known.get("votes", ())[:_LINES]
    ]
    if joined:
        lines.append(("joined by", ", ".join(joined)))
    for kind, names in (
        ("shared complexes", known.get("complexes", ())),
        ("shared pathways", known.get("pathways", ())),
        ("reactions lost together", known.get("lost", ())),
        ("shared terms", [f"{t['term']} ({t['annotation']})" for t in known.get("terms", ())]),
    ):
        if names:
            more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
            lines.append((kind, ", ".join(names[:_NAMES]) + more))
    return lines


_Table = tuple[str, list[str], list[list[Any]]]


def _votes(result: Mapping[str, Any]) -> _Table:
    return (
        "The measured sets it rests on",
        ["genes", "measured", "in place of", "relation", "weight", "run"],
        [
            [
                " ".join(vote["names"]),
                _signed(vote["score"]),
                f"{vote['by']} for {vote['replaced']}",
                vote["relation"],
                f"{vote['weight']:.3g}",
                vote["run"],
            ]
            for vote in result["votes"][:_VOTES]
        ],
    )


def _nearest(result: Mapping[str, Any]) -> _Table:
    return (
        "The nearest measured sets",
        ["genes", "distance", "measured", "predicted", "part"],
        [
            [
                " ".join(near["names"]),
                f"{near['distance']:.2g}",
                _signed(near["measured"]),
                _signed(near["predicted"]),
                near["part"],
            ]
            for near in result["nearest"]
        ],
    )


def _runs(runs: Sequence[Mapping[str, Any]]) -> _Table:
    return (
        "What each run says",
        ["run", "seed", "model", "score"],
        [[run["name"], run["seed"], run["model"], _signed(run["score"])] for run in runs],
    )


def _explained(result: Mapping[str, Any], several: bool) -> None:
    """Print what the relations and the genes contribute to the scores of networks."""
    _contributions(
        "What the relations contribute",
        ["relation", "links"],
        [[row["relation"], row["links"]] for row in result["relations"]],
        result["relations"],
        several,
        "no relation",
        result["relations_baseline"],
        result["relations_residual"],
        result["explained"],
    )
    genes, rest = result["gene_contributions"], result["other_genes"]
    labels = [[_label(row), "yes" if row["deleted"] else "no"] for row in genes]
    rows = list(genes)
    if rest["genes"]:
        labels.append([count_text(rest["genes"], "other gene"), "no"])
        rows.append({**rest, "spread": None})
    _contributions(
        "What the genes' vectors contribute",
        ["gene", "deleted"],
        labels,
        rows,
        several,
        "no gene",
        result["genes_baseline"],
        result["genes_residual"],
        result["explained"],
    )


def _contributions(
    title: str,
    columns: Sequence[str],
    labels: Sequence[Sequence[Any]],
    rows: Sequence[Mapping[str, Any]],
    several: bool,
    begin: str,
    baseline: float,
    residual: float,
    score: float,
) -> None:
    """Print rows from the score without any of them to the score with all."""
    widest = max((abs(row["contribution"]) for row in rows), default=0.0)
    blank = [""] * (len(columns) - 1)
    spread = ["spread"] if several else []
    no_spread = [None] if several else []
    table = [[begin, *blank, _signed(baseline), *no_spread, ""]]
    for label, row in zip(labels, rows, strict=True):
        of_runs = [None if row["spread"] is None else f"{row['spread']:.3f}"] if several else []
        bar = _bar(row["contribution"], widest)
        table.append([*label, _signed(row["contribution"]), *of_runs, bar])
    table.append(["residual", *blank, _signed(residual), *no_spread, ""])
    table.append(["score", *blank, _signed(score), *no_spread, ""])
    print_table(title, [*columns, "contribution", *spread, ""], table, total=True)


def _bar(value: float, widest: float) -> str:
    length = round(_BAR * abs(value) / widest) if widest else 0
    return ("+" if value > 0 else "-") * length


def _evidence(result: Mapping[str, Any]) -> None:
    evidence, name = result["evidence"], dict(zip(result["genes"], result["names"], strict=True))
    if evidence["links"]:
        print_table(
            "Edges between the genes",
            ["from", "to", "relation"],
            [
                [name[link["first"]], name[link["second"]], link["relation"]]
                for link in evidence["links"]
            ],
        )
    for what in ("pathways", "complexes"):
        if evidence[what]:
            shown = ", ".join(evidence[what][:_NAMES])
            more = len(evidence[what]) - _NAMES
            more_text = f" and {more} more" if more > 0 else ""
            console().print(printable(f"Shared {what}: {shown}{more_text}"), markup=False)
    if result["lost"]:
        lost = f"Reactions that only the whole set loses: {', '.join(result['lost'])}"
        console().print(printable(lost), markup=False)


def _label(row: Mapping[str, Any]) -> str:
    return str(row["name"] if row["name"] == row["gene"] else f"{row['name']} ({row['gene']})")


def _signed(value: float) -> str:
    return f"{value:+.4f}"
