"""Renderings of a ranking, of the explanation of one gene set, and of the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from deltacell.base.text import count_text
from deltacell.report.page import Axis, ScoreScale, is_known, json_block, page
from deltacell.report.terminal import Piece, few, print_line, print_pieces, print_table, shown

MOST_ROWS = 2000  # rows on the page; the Parquet file has all of them
MOST_SETS = 20  # gene sets on the page of the demo
SENTENCES = 5  # sentences that are not folded away, unless there are more warnings
COLOURS = 10  # colours of relations; further relations reuse them with dashes

_ENDS = (None, "lowest", "highest")
_PARTS = ("training", "validation", "test")
_FORMATS: dict[str, Callable[[Any], str]] = {
    **{"names": " ".join, "deleted": shown},
    **{"distance": "{:.2g}".format, "weight": "{:.3g}".format},
    **dict.fromkeys(("score", "measured", "predicted", "contribution"), "{:+.4f}".format),
}
_COLUMNS = (
    *("rank", "genes", "score", "spread", "status", "measured", "linked"),
    *("relations", "pathways", "complexes"),
)


def print_ranking(result: Mapping[str, Any], most: int = 10) -> None:
    for end in _ENDS:
        rows = []
        for row in [row for row in result["rows"] if row["end"] == end][:most]:
            keys = ("score", "spread", "measured")
            known = {key: "" if row[key] is None else f"{row[key]:.4f}" for key in keys}
            known |= {key: few(row[key], 3) for key in ("relations", "pathways", "complexes")}
            linked, genes = "yes" if row["linked"] else "", " ".join(row["names"])
            rows.append({**row, **known, "linked": linked, "genes": genes})
        columns = [key for key in _COLUMNS if any(row[key] for row in rows)]
        if rows:
            title = _title_of_end(result, end)
            title += f" ({len(rows):,} of {result['counts'][end or 'listed']:,})"
            print_table(title, columns, [[row[key] for key in columns] for row in rows])
    if not result["rows"]:
        print_line("No gene set matches the request.")
    for sentence in result["sentences"]:
        print_line(sentence)
    for one in result["agreement"]:
        if one["pearson"] is not None:
            print_line(
                f"Pearson correlation of predicted and measured scores: {one['pearson']:.3f} on "
                f"{one['sets']:,} sets of the {one['part']} part; `deltacell evaluate` uses all.",
            )


def _title_of_end(result: Mapping[str, Any], end: str | None) -> str:
    if end is None:
        return "in order of increasing score"
    meaning = result.get("low_means" if end == "lowest" else "high_means")
    return f"{end} scores" if meaning is None else f"{end} scores: {meaning}"


def print_explained_set(result: Mapping[str, Any]) -> None:
    print_line(result["title"], style="bold")
    lines = [f"{kind}: {text}" for kind, text in evidence_lines({**result, "votes": ()})]
    for sentence in [*result["sentences"], *lines]:
        print_line(sentence)
    genes, rest = list(result["gene_contributions"]), result["other_genes"]
    if rest["genes"]:
        name = count_text(rest["genes"], "other gene")
        genes.append({**rest, "name": name, "gene": "", "deleted": False})
    title, columns = "What the genes' vectors contribute", "name gene deleted contribution"
    print_pieces([*_tables(result), _table(title, columns, genes)])


def explained_page(result: Mapping[str, Any]) -> str:
    """Render the explanation of one set, from `predict.explain_set`, as self-contained HTML."""
    return page(
        "why",
        result=result,
        runs=count_text(len(result["runs"]), "run"),
        lines=evidence_lines(result),
        tables=[table for table in _tables(result) if table.rows],
        numbers={"measured", "weight", "distance", "predicted", "seed", "score", "contribution"},
    )


def _tables(result: Mapping[str, Any]) -> list[Piece]:
    votes = [
        {**vote, "measured": vote["score"], "in_place_of": f"{vote['by']} for {vote['replaced']}"}
        for vote in result["votes"][:20]
    ]
    runs = [{**run, "run": run["name"]} for run in result["runs"]]
    of_votes = "genes measured in_place_of relation weight run"
    of_nearest = "genes distance measured predicted part"
    return [
        _table("The measured sets it is based on", of_votes, votes),
        _table("The nearest measured sets", of_nearest, result["nearest"]),
        _table("What the relations contribute", "relation links contribution", result["relations"]),
        _table("What each run predicts", "run seed model score", runs),
    ]


def _table(title: str, columns: str, rows: Sequence[Mapping[str, Any]]) -> Piece:
    keys = ["names" if key == "genes" else key for key in columns.split()]
    cells = [[_FORMATS[k](row[k]) if k in _FORMATS else row[k] for k in keys] for row in rows]
    return Piece(title, [key.replace("_", " ") for key in columns.split()], cells)


def evidence_lines(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the evidence for a row of a ranking or an explained set: pairs of kind and text."""
    known = {"votes": (), "lost": (), "terms": (), **known, **known.get("evidence", {})}
    lines = [
        (
            "measured next to it",
            f"{' '.join(vote['names'])} {vote['score']:+.4f}, with {vote['by']} in place of "
            f"{vote['replaced']} by {vote['relation']}",
        )
        for vote in known["votes"][:5]
    ]
    named = {
        "joined by": ", ".join(known["relations"]),
        "shared complexes": few(known["complexes"], 8),
        "shared pathways": few(known["pathways"], 8),
        "reactions lost together": few(known["lost"], 8),
        "shared terms": few([f"{t['term']} ({t['annotation']})" for t in known["terms"]], 8),
    }
    return lines + [(kind, names) for kind, names in named.items() if names]


def ranking_page(result: Mapping[str, Any]) -> str:
    """Render a ranking, from `Ranked.page_data`, as self-contained HTML."""
    most = MOST_ROWS // max(1, len({row["end"] for row in result["rows"]}))
    rows = [row for row in result["rows"] if row["rank"] <= most]
    lines = [evidence_lines(row) for row in rows]
    seen = {name for row in rows for name in row["relations"]}
    # The number of a relation determines its colour and dashes.
    relations = {name: i for i, name in enumerate(dict.fromkeys([*result["relations"], *seen]))}
    styles = {name: (i % COLOURS, i // COLOURS % 3) for name, i in relations.items()}
    scale = ScoreScale.of(rows)
    # Points of the test part are drawn last, on top.
    points = sorted(result["measured"], key=lambda one: _PARTS.index(one["part"]))
    genes: dict[str, str] = {}
    for one in [*rows, *points]:
        genes |= zip(one["genes"], one["names"], strict=True)
    place = {gene: i for i, gene in enumerate(genes)}
    facts = {x["gene"]: [x["description"], x["link"]] for x in result.get("gene_facts", ())}

    def drawn(row: Mapping[str, Any], evidence: list[tuple[str, str]]) -> dict[str, Any]:
        inside = {gene: i for i, gene in enumerate(row["genes"])}
        spread = "" if row["spread"] is None else f" ± {scale.text(row['spread'], False)}"
        same = ("end", "rank", "status", "linked", "pathways", "complexes")
        return {
            **{key: row[key] for key in same},
            "genes": [place[gene] for gene in row["genes"]],
            "score": scale.text(row["score"]) + spread,
            "measured": None if row["measured"] is None else scale.text(row["measured"]),
            "value": _value(row["score"]),
            "measured_value": _value(row["measured"]),
            "relations": [relations[name] for name in row["relations"]],
            "links": [
                [inside[x["first"]], inside[x["second"]], relations[x["relation"]]]
                for x in row["links"]
            ],
            "evidence": evidence,
        }

    data = {
        "rows": [drawn(row, evidence) for row, evidence in zip(rows, lines, strict=True)],
        "points": [[place[gene] for gene in one["genes"]] for one in points],
        "genes": list(genes.items()),
        "facts": [facts.get(gene, [None, None]) for gene in genes],
        "file": result["file"].removesuffix(".parquet"),
        "relations": [[*style, name] for name, style in styles.items()],
    }
    first, *others = result["sentences"]
    # Warnings are never folded away.
    others.sort(key=lambda sentence: not sentence.startswith("Beware"))
    at_once = max(SENTENCES, 1 + sum(one.startswith("Beware") for one in others))
    said = [first, *others]
    return page(
        "ranking",
        scripts=("table.js", "ranking.js"),
        result=result,
        sentences=(said[:at_once], said[at_once:]),
        scatter=_scatter(points) if points else None,
        rows=list(zip(rows, lines, strict=True)),
        scale=scale,
        value=_value,
        lines=styles,
        seen=[name for name in relations if name in seen],
        data=json_block(data),
    )


def _value(value: float | None) -> str | None:
    return f"{value:.9g}" if is_known(value) else None


def _scatter(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    across = Axis.over([one["measured"] for one in points], 66, 392)
    up = Axis.over([one["predicted"] for one in points], 252, 8)
    low, high = max(across.low, up.low), min(across.high, up.high)
    equal = [across.at(low), up.at(low), across.at(high), up.at(high)]
    return {
        "points": [(across.at(one["measured"]), up.at(one["predicted"]), one) for one in points],
        "scale": ScoreScale([one[side] for one in points for side in ("measured", "predicted")]),
        "parts": list(dict.fromkeys(one["part"] for one in reversed(points))),
        "across": across.ticks(6),
        "up": up.ticks(5),
        "equal": equal if low < high else None,
    }


def demo_page(result: Mapping[str, Any]) -> str:
    """Render the demo, from `demo.results`, as self-contained HTML."""
    unknown = dict.fromkeys(("parameters", "epochs", "seconds", "colour"))
    predictors = [{**model, "colour": i % 4} for i, model in enumerate(result["models"])]
    predictors += [{**unknown, **one} for one in result["baselines"]]
    # The best come first, those without a correlation last.
    predictors.sort(
        key=lambda one: (one["pearson"]["value"] is None, -(one["pearson"]["value"] or 0)),
    )
    ends = [one["pearson"][key] for one in predictors for key in ("value", "low", "high")]
    head = result["ranking"][:MOST_SETS]
    return page(
        "demo",
        result=result,
        head=head,
        scale=ScoreScale.of(head),
        predictors=predictors,
        share=Axis.over([0.0, *(end for end in ends if end is not None)], 0.0, 1.0).share,
        # Quoting removes schemes such as javascript:, so a link always leads to a file.
        links=[{**link, "href": "./" + quote(link["file"])} for link in result["links"]],
    )
