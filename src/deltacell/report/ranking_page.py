"""A ranking of gene sets as one page: search, filters, networks, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deltacell.report.axis import Axis
from deltacell.report.explained_set import evidence_lines
from deltacell.report.page import json_block, page
from deltacell.report.score_scale import ScoreScale, is_known
from deltacell.report.terminal import printable, shown
from deltacell.words import count_text

MOST_ROWS = 2000
"""Rows that are on the page; all of them are in the Parquet file."""
SENTENCES = 5
"""Sentences that are seen at once, or as many as there are warnings."""
COLOURS = 10
"""Colours of relations; further relations have them again, with dashes."""


def ranking_page(result: Mapping[str, Any]) -> str:
    """Return the page of a ranking: one file, without anything from the network.

    Parameters
    ----------
    result
        From `Ranking.to_json`.
    """
    rows = _first_of_each_end(result["rows"])
    relations = _relations(result, rows)
    index = _Index()
    scale = ScoreScale.of(rows)
    statuses = {row["status"] for row in rows}
    points = _points(result["measured"])
    return page(
        "ranking",
        scripts=("table.js", "ranking.js"),
        title=printable(result["title"]),
        sentences=_sentences([printable(one) for one in result["sentences"]]),
        runs=[_run(run) for run in result["runs"]],
        trust=_trust(result),
        counts={
            "rows": count_text(_n_sets(result), "gene set"),
            "sets": shown(result["counts"]["sets"]),
            "genes": count_text(result["counts"]["genes"], "gene"),
        },
        scatter=_scatter(points) if points else None,
        agreement=[_agreement(one) for one in result["agreement"]],
        has={
            "spread": any(row["spread"] is not None for row in rows),
            "status": len(statuses) > 1,
            "measured": any(row["measured"] is not None for row in rows),
            "evidence": any(evidence_lines(row) for row in rows),
        },
        rows=[_row(i, row, relations, scale) for i, row in enumerate(rows)],
        count=shown(len(rows)),
        left_out=_left_out(result, len(rows)),
        relations=[
            (*_line(number), printable(name))
            for name, number in relations.items()
            if any(name in row["relations"] for row in rows)
        ],
        asked=[(printable(str(name)), _asked(value)) for name, value in result["request"].items()],
        data=json_block(
            {
                "rows": [_drawn(row, relations, index, scale) for row in rows],
                "points": [index.genes(one) for one in points],
                "genes": index.listed,
                "facts": _facts(result, index),
                "file": printable(result["file"]).removesuffix(".parquet"),
                "relations": [
                    [*_line(number), printable(name)] for name, number in relations.items()
                ],
            }
        ),
    )


_SIGNS = {"lowest": ("↓", "less"), "highest": ("↑", "more"), None: ("", "")}
_STATUSES = {"measured": "measured", "tested": "tested, not significant", "untested": "untested"}
_PARTS = ("training", "validation", "test")


class _Index:
    """Genes by the order in which they are met: each name is on the page once."""

    def __init__(self) -> None:
        self.listed: list[list[str]] = []
        self.order: list[str] = []
        self._places: dict[str, int] = {}

    def genes(self, of: Mapping[str, Any]) -> list[int]:
        for gene, name in zip(of["genes"], of["names"], strict=True):
            if gene not in self._places:
                self._places[gene] = len(self.listed)
                self.listed.append([printable(gene), printable(name)])
                self.order.append(gene)
        return [self._places[gene] for gene in of["genes"]]


def _facts(result: Mapping[str, Any], index: _Index) -> list[list[str | None]]:
    """Return the description and the link of each gene, in the order of the index."""
    known = {one["gene"]: one for one in result.get("gene_facts", ())}
    nothing: dict[str, str | None] = {"description": None, "link": None}
    return [
        [
            None if (value := known.get(gene, nothing)[name]) is None else printable(value)
            for name in nothing
        ]
        for gene in index.order
    ]


def _value(value: float | None) -> str | None:
    """Return a number as the table is sorted by it."""
    return f"{value:.9g}" if is_known(value) else None


def _first_of_each_end(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return as many rows as fit, half of each end where both have more."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    highest = sum(row["end"] == "highest" for row in rows)
    others = len(rows) - highest
    of_highest = min(highest, max(MOST_ROWS // 2, MOST_ROWS - others))
    room = {True: of_highest, False: MOST_ROWS - of_highest}
    kept = []
    for row in rows:
        is_highest = row["end"] == "highest"
        if room[is_highest]:
            room[is_highest] -= 1
            kept.append(row)
    return kept


def _relations(result: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of each relation, by which it has its colour on the whole page."""
    met = (link["relation"] for row in rows for link in row["links"])
    named = (name for row in rows for name in row["relations"])
    order = dict.fromkeys([*result["relations"], *named, *met])
    return {name: number for number, name in enumerate(order)}


def _line(number: int) -> tuple[int, int]:
    """Return the colour and the dashes of a relation."""
    return number % COLOURS, number // COLOURS % 3


def _sentences(said: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the sentences that are seen at once, and the rest: what to beware of is no rest."""
    warnings = [one for one in said[1:] if one.startswith("Beware")]
    others = [one for one in said[1:] if not one.startswith("Beware")]
    ordered = [*said[:1], *warnings, *others]
    at_once = max(SENTENCES, 1 + len(warnings))
    return ordered[:at_once], ordered[at_once:]


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    pearson = run["validation_pearson"]
    return {
        "name": printable(run["name"]),
        "model": printable(run["model"]),
        "seed": shown(run["seed"]),
        "checkpoint": printable(str(run["checkpoint"])),
        "sha256": printable(str(run["sha256"]))[:12],
        "pearson": "–" if pearson is None else _pearson(pearson),
    }


def _trust(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sentence on how far to trust the list, and whether it is known."""
    test = [one for one in result["agreement"] if one["part"] == "test"]
    if test and test[0]["pearson"] is not None:
        sets, runs = test[0]["sets"], len(result["runs"])
        said = (
            f"On {count_text(sets, 'measured set')} that "
            f"{'the run was' if runs == 1 else 'the runs were'} not trained on, predicted and "
            f"measured correlate with a Pearson of {_pearson(test[0]['pearson'])} "
            "(1 is perfect, 0 is chance)."
        )
        return {"said": said, "is_known": True}
    if test:
        few = count_text(test[0]["sets"], "measured set")
        why = f"the test part has {few} for it, too few or too much alike for a correlation"
    elif result["measured"]:
        why = "none of the measured sets that were scored with it is of the test part"
    else:
        why = "no measured sets were scored with it"
    return {"said": f"How far to trust it is not known here: {why}.", "is_known": False}


def _n_sets(result: Mapping[str, Any]) -> int:
    """Return how many sets are ranked."""
    rows, n = result["rows"], int(result["counts"]["rows"])
    return n if len(rows) < n else len({tuple(row["genes"]) for row in rows})


def _agreement(one: Mapping[str, Any]) -> dict[str, str]:
    return {
        "part": printable(one["part"]),
        "sets": shown(one["sets"]),
        "pearson": "–" if one["pearson"] is None else _pearson(one["pearson"]),
    }


def _pearson(value: float) -> str:
    return f"{value + 0.0:.2f}".replace("-", "−")


def _left_out(result: Mapping[str, Any], here: int) -> str | None:
    missing = len(result["rows"]) - here + result["rows_not_here"]
    if not missing:
        return None
    file = printable(result["file"])
    ends = "rows of each end" if len({row["end"] for row in result["rows"]}) > 1 else "rows"
    return (
        f"The page has the first {ends}, {shown(here)} together; {shown(missing)} more are in "
        f"{file}."
    )


def _asked(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(shown(one) for one in value) or "–"
    return shown(value)


def _row(
    place: int, row: Mapping[str, Any], relations: Mapping[str, int], scale: ScoreScale
) -> dict[str, Any]:
    """Return a row of the table as it is written, and where its bar is drawn."""
    sign, side = _SIGNS[row["end"]]
    shared = [*row["pathways"], *row["complexes"]]
    return {
        "place": place,
        "sign": sign,
        "side": side,
        "end": row["end"],
        "rank": shown(row["rank"]),
        "genes": [
            (printable(name), printable(gene))
            for gene, name in zip(row["genes"], row["names"], strict=True)
        ],
        "linked": row["linked"],
        "score": scale.text(row["score"]),
        "score_value": _value(row["score"]),
        "bar": scale.bar(row["score"], row["spread"]),
        "spread": scale.text(row["spread"], sign=False),
        "spread_value": _value(row["spread"]),
        "status": row["status"],
        "measured": scale.text(row["measured"]),
        "measured_value": _value(row["measured"]),
        "relations": [(*_line(relations[name]), printable(name)) for name in row["relations"]],
        "evidence": len(row["links"]) + len(shared) + len(row.get("votes", ())),
        "votes": len(row.get("votes", ())),
        "has_none": not evidence_lines(row),
        "shared": printable(", ".join(shared)),
    }


def _drawn(
    row: Mapping[str, Any], relations: Mapping[str, int], index: _Index, scale: ScoreScale
) -> dict[str, Any]:
    """Return what the script needs of a row: to filter by, and to draw its network."""
    genes = index.genes(row)
    place = {gene: i for i, gene in enumerate(row["genes"])}
    spread = "" if row["spread"] is None else f" ± {scale.text(row['spread'], sign=False)}"
    return {
        "end": row["end"],
        "rank": row["rank"],
        "genes": genes,
        "score": scale.text(row["score"]) + spread,
        "measured": None if row["measured"] is None else scale.text(row["measured"]),
        "value": _value(row["score"]),
        "measured_value": _value(row["measured"]),
        "status": _STATUSES[row["status"]],
        "linked": row["linked"],
        "relations": [relations[name] for name in row["relations"]],
        "links": [
            [place[link["first"]], place[link["second"]], relations[link["relation"]]]
            for link in row["links"]
        ],
        "pathways": [printable(name) for name in row["pathways"]],
        "complexes": [printable(name) for name in row["complexes"]],
        "evidence": [[kind, printable(text)] for kind, text in evidence_lines(row)],
    }


def _points(measured: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the measured sets as they are drawn, those of the test part last and on top."""
    return sorted(measured, key=lambda one: _PARTS.index(one["part"]))


def _scatter(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return where the points, the ticks and the line of equality of the scatter are drawn."""
    across = Axis.over([one["measured"] for one in points], 46, 392)
    up = Axis.over([one["predicted"] for one in points], 252, 8)
    scale = ScoreScale([one[side] for one in points for side in ("measured", "predicted")])
    low, high = max(across.low, up.low), min(across.high, up.high)
    return {
        "points": [
            {
                "x": across.at(one["measured"]),
                "y": up.at(one["predicted"]),
                "part": one["part"],
                "said": f"{' '.join(printable(name) for name in one['names'])}: predicted "
                f"{scale.text(one['predicted'])}, measured {scale.text(one['measured'])}",
            }
            for one in points
        ],
        "count": shown(len(points)),
        "parts": [part for part in reversed(_PARTS) if any(one["part"] == part for one in points)],
        "across": across.ticks(6),
        "up": up.ticks(5),
        "equal": [across.at(low), up.at(low), across.at(high), up.at(high)] if low < high else None,
    }
