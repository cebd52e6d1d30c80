"""A ranking of gene sets as one page: search, filters, networks, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltacell.report.page import Axis, ScoreScale, fixed, is_known, json_block, page
from deltacell.report.predict import evidence_lines
from deltacell.words import count_text

MOST_ROWS = 2000  # rows that are on the page; all of them are in the Parquet file
SENTENCES = 5  # sentences that are seen at once, or as many as there are warnings
COLOURS = 10  # colours of relations; further relations have them again, with dashes

_STATUSES = {"measured": "measured", "tested": "tested, not significant", "untested": "untested"}
_PARTS = ("training", "validation", "test")


def ranking_page(result: Mapping[str, Any]) -> str:
    """Return the page of a ranking, given by `Ranking.to_json`, as self-contained HTML."""
    rows = _first_of_each_end(result["rows"])
    lines = [evidence_lines(row) for row in rows]
    met = [link["relation"] for row in rows for link in row["links"]]
    named = [name for row in rows for name in row["relations"]]
    # The number of a relation gives it its colour and dashes on the whole page.
    relations = {
        name: (i % COLOURS, i // COLOURS % 3)
        for i, name in enumerate(dict.fromkeys([*result["relations"], *named, *met]))
    }
    scale = ScoreScale.of(rows)
    # Points of the test part are drawn last and on top.
    points = sorted(result["measured"], key=lambda one: _PARTS.index(one["part"]))
    genes = {
        gene: name
        for one in [*rows, *points]
        for gene, name in zip(one["genes"], one["names"], strict=True)
    }
    place = {gene: i for i, gene in enumerate(genes)}
    known = {one["gene"]: one for one in result.get("gene_facts", ())}
    facts = [known.get(gene, {"description": None, "link": None}) for gene in genes]
    n_sets = int(result["counts"]["rows"])
    if len(result["rows"]) >= n_sets:
        n_sets = len({tuple(row["genes"]) for row in result["rows"]})
    data = {
        "rows": [
            _drawn(row, evidence, place, list(relations), scale)
            for row, evidence in zip(rows, lines, strict=True)
        ],
        "points": [[place[gene] for gene in one["genes"]] for one in points],
        "genes": list(genes.items()),
        "facts": [[one["description"], one["link"]] for one in facts],
        "file": result["file"].removesuffix(".parquet"),
        "relations": [[*line, name] for name, line in relations.items()],
    }
    return page(
        "ranking",
        scripts=("table.js", "ranking.js"),
        result=result,
        n_sets=n_sets,
        sentences=_sentences(result["sentences"]),
        trust=_trust(result),
        scatter=_scatter(points) if points else None,
        has={
            "spread": any(row["spread"] is not None for row in rows),
            "status": len({row["status"] for row in rows}) > 1,
            "measured": any(row["measured"] is not None for row in rows),
            "evidence": any(lines),
        },
        rows=list(zip(rows, lines, strict=True)),
        scale=scale,
        value=_value,
        lines=relations,
        seen=[name for name in relations if name in set(named)],
        data=json_block(data),
    )


def _value(value: float | None) -> str | None:
    """Return a number as the table is sorted by it."""
    return f"{value:.9g}" if is_known(value) else None


def _first_of_each_end(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return as many rows as fit, half of each end where both have more."""
    highest = sum(row["end"] == "highest" for row in rows)
    of_highest = min(highest, max(MOST_ROWS // 2, MOST_ROWS - (len(rows) - highest)))
    room = {True: of_highest, False: MOST_ROWS - of_highest}
    kept = []
    for row in rows:
        room[row["end"] == "highest"] -= 1
        if room[row["end"] == "highest"] >= 0:
            kept.append(row)
    return kept


def _sentences(said: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the sentences that are seen at once, and the rest, which holds no warning."""
    warnings = [one for one in said[1:] if one.startswith("Beware")]
    others = [one for one in said[1:] if not one.startswith("Beware")]
    ordered, at_once = [*said[:1], *warnings, *others], max(SENTENCES, 1 + len(warnings))
    return ordered[:at_once], ordered[at_once:]


def _trust(result: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the sentence on how far to trust the list, and whether it is known."""
    test = next((one for one in result["agreement"] if one["part"] == "test"), None)
    if test is not None and test["pearson"] is not None:
        runs = "the run was" if len(result["runs"]) == 1 else "the runs were"
        said = (
            f"On {count_text(test['sets'], 'measured set')} that {runs} not trained on, predicted "
            f"and measured correlate with a Pearson of {fixed(test['pearson'], 2)} (1 is perfect, "
            "0 is chance)."
        )
        return said, True
    why = "no measured sets were scored with it"
    if test is not None:
        few = count_text(test["sets"], "measured set")
        why = f"the test part has {few} for it, too few or too much alike for a correlation"
    elif result["measured"]:
        why = "none of the measured sets that were scored with it is of the test part"
    return f"How far to trust it is not known here: {why}.", False


def _drawn(
    row: Mapping[str, Any],
    evidence: Sequence[tuple[str, str]],
    place: Mapping[str, int],
    relations: Sequence[str],
    scale: ScoreScale,
) -> dict[str, Any]:
    """Return what the script needs of a row: to filter by, and to draw its network."""
    spread = "" if row["spread"] is None else f" ± {scale.text(row['spread'], False)}"
    inside = {gene: i for i, gene in enumerate(row["genes"])}
    return {
        **{key: row[key] for key in ("end", "rank", "linked", "pathways", "complexes")},
        "genes": [place[gene] for gene in row["genes"]],
        "score": scale.text(row["score"]) + spread,
        "measured": None if row["measured"] is None else scale.text(row["measured"]),
        "value": _value(row["score"]),
        "measured_value": _value(row["measured"]),
        "status": _STATUSES[row["status"]],
        "relations": [relations.index(name) for name in row["relations"]],
        "links": [
            [inside[x["first"]], inside[x["second"]], relations.index(x["relation"])]
            for x in row["links"]
        ],
        "evidence": evidence,
    }


def _scatter(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return where the points, the ticks and the line of equality of the scatter are drawn."""
    across = Axis.over([one["measured"] for one in points], 46, 392)
    up = Axis.over([one["predicted"] for one in points], 252, 8)
    low, high = max(across.low, up.low), min(across.high, up.high)
    equal = [across.at(low), up.at(low), across.at(high), up.at(high)]
    parts = {one["part"] for one in points}
    return {
        "points": [(across.at(one["measured"]), up.at(one["predicted"]), one) for one in points],
        "scale": ScoreScale([one[side] for one in points for side in ("measured", "predicted")]),
        "parts": [part for part in reversed(_PARTS) if part in parts],
        "across": across.ticks(6),
        "up": up.ticks(5),
        "equal": equal if low < high else None,
    }
