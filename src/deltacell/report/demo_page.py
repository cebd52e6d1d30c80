"""The demonstration as one page: what was learned, what limits it, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from deltacell.report.axis import Axis
from deltacell.report.numbers import time_text
from deltacell.report.page import page, percent
from deltacell.report.score_scale import ScoreScale, is_known
from deltacell.report.terminal import printable, shown

MOST_SETS = 20
"""Sets of the head of the ranking that are on the page."""
ADDITIVE = "additive"
"""The baseline that is drawn into the learning curves: a model is worth something above it."""


def demo_page(result: Mapping[str, Any]) -> str:
    """Return the page of a demonstration: one file, without anything from the network.

    Parameters
    ----------
    result
        A dict of plain data:

        - ``seed``: of all that was drawn; ``seconds``: how long all of it took, or None.
        - ``cell`` and ``screen``: each a dict of numbers by what they count, in words that stand
          behind the number, such as ``{"genes": 300, "relations": 6}``.
        - ``models``: for each of them a dict with ``name``, ``parameters``, ``epochs`` and
          ``seconds`` of its training, each of which may be None; ``curve``, a list of
          ``{"epoch", "pearson"}`` on the validation part, in which a ``pearson`` may be None or
          NaN; ``pearson``, the dict ``value``, ``low``, ``high`` on the test part, of which each
          may be None; ``verdict``,
          the sentence on whether it beats the additive baseline; and ``limit``, the first sentence
          of `deltacell explain RUN`.
        - ``baselines``: for each a dict with ``name`` and ``pearson`` as above. The one named
          ``additive``, if it is there, is drawn into the learning curves.
        - ``best_baseline``: the sentence on the baseline that does best, and whether the models do
          better than it.
        - ``comparison``: the sentence of the explanation of the two runs against each other.
        - ``recovered``: a dict with ``sentence``, the first line of the page; ``found``, how many
          sets at the head of the ranking are planted; ``of``, how many were looked at; ``chance``,
          how many would be by chance; ``sets``, how many untested sets were ranked; and
          ``planted``, how many of those are planted.
        - ``ranking``: the head of it, a list of dicts with ``genes`` and ``names`` (lists of
          strings), ``score``, ``spread`` (or None) and ``planted`` (true or false).
        - ``links``: the files beside the page, dicts with ``file`` (its path from the page's
          directory, with ``/``), ``title`` and ``words``.
        - ``steps``: what was done, dicts with ``title``, ``words`` and ``command``.
        - ``next``: what to type next, dicts with ``words`` and ``command``.
    """
    models, baselines = result["models"], result["baselines"]
    head = result["ranking"][:MOST_SETS]
    return page(
        "demo",
        scripts=(),
        seed=result["seed"],
        took=None if result["seconds"] is None else _long_time(result["seconds"]),
        sentence=printable(result["recovered"]["sentence"]),
        marks=[bool(row["planted"]) for row in head],
        cell=_facts(result["cell"]),
        screen=_facts(result["screen"]),
        learned=[(printable(model["name"]), printable(model["verdict"])) for model in models],
        best_baseline=printable(result["best_baseline"]),
        limits=[(printable(model["name"]), printable(model["limit"])) for model in models],
        comparison=printable(result["comparison"]),
        curves=_curves(models, baselines),
        head=_head(head),
        recovered={
            "found": shown(result["recovered"]["found"]),
            "of": shown(result["recovered"]["of"]),
            "chance": shown(result["recovered"]["chance"]),
            "sets": shown(result["recovered"]["sets"]),
            "planted": shown(result["recovered"]["planted"]),
        },
        predictors=_predictors(models, baselines),
        links=[
            {
                # A scheme such as that of a script is quoted away: a link leads to a file.
                "href": "./" + quote(link["file"]),
                "file": printable(link["file"]),
                "title": printable(link["title"]),
                "words": printable(link["words"]),
            }
            for link in result["links"]
        ],
        steps=[
            {key: printable(step[key]) for key in ("title", "words", "command")}
            for step in result["steps"]
        ],
        next=[{key: printable(one[key]) for key in ("words", "command")} for one in result["next"]],
    )


def _facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(shown(number), printable(name)) for name, number in facts.items()]


def _long_time(seconds: float | None) -> str:
    if seconds is None or seconds < 100:
        return time_text(seconds)
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _pearson(value: float | None) -> str:
    return "–" if value is None else f"{value + 0.0:.3f}".replace("-", "−")


def _interval(pearson: Mapping[str, float | None]) -> str | None:
    low, high = pearson["low"], pearson["high"]
    return None if low is None or high is None else f"{_pearson(low)} to {_pearson(high)}"


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
    additive = [b["pearson"] for b in baselines if b["name"] == ADDITIVE]
    tested = [model["pearson"] for model in models]
    values = [value for curve in known for _, value in curve]
    values += [x for one in [*tested, *additive] for x in one.values() if x is not None]
    across = Axis.over([epoch for curve in known for epoch, _ in curve], 44, 404)
    up = Axis.over([0.0, *values], 258, 10)
    line = additive[0] if additive and additive[0]["value"] is not None else None
    return {
        "lines": [
            {
                "name": printable(model["name"]),
                "colour": i % 4,
                "points": " ".join(f"{across.at(epoch)},{up.at(value)}" for epoch, value in curve),
                "test": _whisker(model["pearson"], up, 432 + 18 * i),
                "value": _pearson(model["pearson"]["value"]),
            }
            for i, (model, curve) in enumerate(zip(models, known, strict=True))
        ],
        "additive": None if line is None else _whisker(line, up, 44),
        "additive_value": None if line is None else _pearson(line["value"]),
        "across": [tick for tick in across.ticks(6) if "." not in tick[1]],
        "up": up.ticks(5),
        "test_from": 418,
        "width": 440 + 18 * max(len(models), 2),
    }


def _whisker(pearson: Mapping[str, float | None], up: Axis, x: float) -> dict[str, float] | None:
    """Return where a number and its interval are drawn, one above the other."""
    value, low, high = pearson["value"], pearson["low"], pearson["high"]
    if value is None:
        return None
    return {
        "x": x,
        "y": up.at(value),
        "low": up.at(value if low is None else low),
        "high": up.at(value if high is None else high),
    }


def _head(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sets at the head of the ranking with their bars on one scale."""
    scale = ScoreScale.of(rows)
    return [
        {
            "rank": rank,
            "genes": [
                (printable(name), printable(gene))
                for gene, name in zip(row["genes"], row["names"], strict=True)
            ],
            "score": scale.text(row["score"]),
            "spread": None if row["spread"] is None else scale.text(row["spread"], sign=False),
            "planted": bool(row["planted"]),
            "bar": scale.bar(row["score"], row["spread"]),
        }
        for rank, row in enumerate(rows, 1)
    ]


def _predictors(
    models: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of the table of predictors, the best on the test part first."""
    rows: list[tuple[int | None, Mapping[str, Any]]] = [
        *((i % 4, model) for i, model in enumerate(models)),
        *((None, baseline) for baseline in baselines),
    ]
    known = [x for _, one in rows for x in one["pearson"].values() if x is not None]
    scale = Axis.over([0.0, *known], 0.0, 1.0)
    rows.sort(key=lambda row: -_sortable(row[1]["pearson"]["value"]))
    return [
        {
            "name": printable(one["name"]),
            "colour": colour,
            "pearson": _pearson(one["pearson"]["value"]),
            "interval": _interval(one["pearson"]),
            "dot": _dot(one["pearson"], scale),
            "parameters": _count(one.get("parameters")),
            "epochs": _count(one.get("epochs")),
            "time": None if colour is None else _long_time(one["seconds"]),
        }
        for colour, one in rows
    ]


def _count(number: int | None) -> str | None:
    return None if number is None else shown(number)


def _sortable(value: float | None) -> float:
    return -2.0 if value is None else value


def _dot(pearson: Mapping[str, float | None], scale: Axis) -> dict[str, str] | None:
    value, low, high = pearson["value"], pearson["low"], pearson["high"]
    if value is None:
        return None

    def at(number: float) -> str:
        share = (number - scale.low) / (scale.high - scale.low)
        return percent(share)

    return {
        "zero": at(0.0),
        "at": at(value),
        "low": at(value if low is None else low),
        "high": at(value if high is None else high),
    }
