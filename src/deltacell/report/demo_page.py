"""The demonstration as one page: what was learned, what limits it, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from deltacell.report.page import Axis, ScoreScale, is_known, page
from deltacell.words import seconds_text

MOST_SETS = 20  # sets of the head of the ranking that are on the page
ADDITIVE = "additive"
"""The baseline that is drawn into the learning curves: a model is worth something above it."""


def demo_page(result: Mapping[str, Any]) -> str:
    """Return the page of a demonstration as self-contained HTML.

    ``result`` is what `demo.results` makes: ``seed``, ``seconds``, ``cell`` and ``screen`` (numbers
    by what they count), ``models`` and ``baselines`` (with the Pearson on the test part, and the
    curve on validation), ``best_baseline`` and ``comparison`` (sentences), ``recovered``,
    ``ranking`` (its head), ``links``, ``steps`` and ``next``. A number may be None.
    """
    models, baselines = result["models"], result["baselines"]
    head = result["ranking"][:MOST_SETS]
    return page(
        "demo",
        result=result,
        took=_long_time,
        head=head,
        scale=ScoreScale.of(head),
        curves=_curves(models, baselines),
        predictors=_predictors(models, baselines),
        # A scheme such as that of a script is quoted away: a link leads to a file.
        links=[{**link, "href": "./" + quote(link["file"])} for link in result["links"]],
    )


def _long_time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    whole = int(seconds)
    return seconds_text(seconds) if seconds < 100 else f"{whole // 60} min {whole % 60} s"


def _curves(
    models: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return where the learning curves are drawn, with the test part at their right."""
    known = [
        [(one["epoch"], one["pearson"]) for one in model["curve"] if is_known(one["pearson"])]
        for model in models
    ]
    if not any(known):
        return None
    additive = [one["pearson"] for one in baselines if one["name"] == ADDITIVE]
    tested = [*(model["pearson"] for model in models), *additive]
    values = [value for curve in known for _, value in curve]
    values += [value for one in tested for value in one.values() if value is not None]
    across = Axis.over([epoch for curve in known for epoch, _ in curve], 44, 404)
    up = Axis.over([0.0, *values], 258, 10)
    return {
        "lines": [
            {
                "model": model,
                "points": " ".join(f"{across.at(epoch)},{up.at(value)}" for epoch, value in curve),
                "test": _whisker(model["pearson"], up.at),
            }
            for model, curve in zip(models, known, strict=True)
        ],
        "additive": _whisker(additive[0], up.at) if additive else None,
        "additive_value": additive[0]["value"] if additive else None,
        "across": [tick for tick in across.ticks(6) if "." not in tick[1]],
        "up": up.ticks(5),
        "test_from": 418,
        "width": 440 + 18 * max(len(models), 2),
    }


def _whisker(pearson: Mapping[str, float | None], at: Any) -> dict[str, float] | None:
    """Return where a number and its interval are drawn; None where it is unknown."""
    if (value := pearson["value"]) is None:
        return None
    ends = {name: pearson[name] for name in ("low", "high")}
    return {"at": at(value)} | {k: at(value if end is None else end) for k, end in ends.items()}


def _predictors(
    models: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of the table of predictors, the best on the test part first."""
    every = [*models, *baselines]
    known = [x for one in every for x in one["pearson"].values() if x is not None]
    scale = Axis.over([0.0, *known], 0.0, 1.0)
    nothing = {"parameters": None, "epochs": None, "seconds": None}
    rows = [
        {
            **nothing,
            **one,
            "colour": i % 4 if i < len(models) else None,
            "zero": scale.share(0.0),
            "dot": _whisker(one["pearson"], scale.share),
        }
        for i, one in enumerate(every)
    ]
    values = {id(row): row["pearson"]["value"] for row in rows}
    return sorted(rows, key=lambda row: 2.0 if (x := values[id(row)]) is None else -x)
