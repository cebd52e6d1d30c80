"""Renderings of an evaluation, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deltacell.report.terminal import console, print_table, printable
from deltacell.words import count_text

_TITLES = {
    "unseen": "by number of unseen genes",
    "kind": "by number of deleted genes",
    "perturbation": "by perturbation",
    "beyond": "beyond a threshold",
}
_TESTED = {("score", "hit"): "scores, and hits of either sign", ("negative",): "hits of one sign"}
_PREDICTED = ("predicted", "measured")
_MAIN = "pearson"


class _Table(NamedTuple):
    title: str
    columns: list[str]
    rows: list[list[str]]


def print_evaluation(result: Mapping[str, Any]) -> None:
    """Print the tables and sentences of an evaluation, with the calibration of the best predictor.

    Parameters
    ----------
    result
        From `Evaluation.to_json`.
    """
    for table in _tables(result, calibration_of=_best(result)):
        print_table(table.title, table.columns, table.rows)
    for sentence in _sentences(result):
        console().print(printable(sentence), markup=False)


def markdown_evaluation(result: Mapping[str, Any]) -> str:
    """Return the tables and sentences of an evaluation as Markdown.

    Parameters
    ----------
    result
        From `Evaluation.to_json`.
    """
    parts = [
        f"**{_escaped(table.title)}**\n\n{_markdown_table(table.columns, table.rows)}"
        for table in _tables(result, calibration_of=list(result["predictors"]))
    ]
    parts.append("\n".join(f"- {_escaped(said)}" for said in _sentences(result)))
    return "\n\n".join(parts) + "\n"


def _tables(result: Mapping[str, Any], calibration_of: Sequence[str]) -> Iterator[_Table]:
    metrics, test = result["metrics"], result["groups"][0]
    level = f"{100 * result['bootstrap']['level']:g} % interval"
    yield _Table(
        f"test: {count_text(test['rows'], 'row')}, {count_text(test['gene_sets'], 'gene set')} "
        f"({level})",
        ["predictor", *(_metric_title(metric) for metric in metrics.values()), "not additive"],
        [
            [
                _predictor(name, result),
                *(_shown(scores[metric], metric) for metric in metrics),
                _percent(result["not_additive"][name]),
            ]
            for name, scores in test["scores"].items()
        ],
    )
    for by, title in _TITLES.items():
        groups = [group for group in result["groups"] if group["by"] == by]
        if len(groups) < (1 if by == "beyond" else 2):
            continue
        yield _Table(
            f"{metrics[_MAIN]['title']} {title} ({level})",
            [
                "predictor",
                *(f"{group['label']} ({count_text(group['rows'], 'row')})" for group in groups),
            ],
            [
                [
                    _predictor(name, result),
                    *(_shown(group["scores"][name][_MAIN], _MAIN) for group in groups),
                ]
                for name in test["scores"]
            ],
        )
    if result["tested"] is not None:
        yield from _tested_tables(result, level, calibration_of)


def _tested_tables(
    result: Mapping[str, Any], level: str, calibration_of: Sequence[str]
) -> Iterator[_Table]:
    tested = result["tested"]
    about = f"{tested['hit_share']:.2%} hits, {level}"
    for of, title in _TESTED.items():
        chosen = {name: m for name, m in tested["metrics"].items() if m["of"] in of}
        yield _Table(
            f"among all tested sets: {title} ({about})",
            ["predictor", *(_metric_title(metric) for metric in chosen.values())],
            [
                [_predictor(name, result), *(_shown(scores[metric], metric) for metric in chosen)]
                for name, scores in tested["scores"].items()
            ],
        )
    for name in calibration_of:
        for by, title in (("by_score", "score"), ("by_hit", "probability of a hit")):
            bins = tested["calibration"].get(name, {}).get(by)
            if bins:
                yield _Table(
                    f"calibration of {name}: all tested sets by predicted {title}",
                    ["sets", *(f"{what}, {of}" for of in ("score", "hits") for what in _PREDICTED)],
                    [
                        [
                            f"{one['sets']:,.0f}",
                            *(_number(one[f"{what}_score"], ".4f") for what in _PREDICTED),
                            *(_number(one[f"{what}_hits"], ".2%") for what in _PREDICTED),
                        ]
                        for one in bins
                    ],
                )


def _best(result: Mapping[str, Any]) -> list[str]:
    best = result["verdicts"][0]["best"]
    return [] if best is None else [best]


def _sentences(result: Mapping[str, Any]) -> Iterator[str]:
    yield from (verdict["sentence"] for verdict in result["verdicts"])
    yield from _remarks(result)


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
    yield result["positives"]["sentence"]
    if result["tested"] is not None:
        yield from result["tested"]["sentences"]
    yield result["ceiling"]["sentence"]
    yield result["leakage"]
    yield from result["notes"]
    missing: dict[tuple[bool, str], list[str]] = {}
    for name, scores in result["groups"][0]["scores"].items():
        for metric, estimate in scores.items():
            if estimate["reason"] is not None:
                title = result["metrics"][metric]["title"]
                has_value = estimate["value"] is not None
                why = f"{name}: {estimate['reason']}"
                missing.setdefault((has_value, why), []).append(title)
    for (has_value, why), titles in missing.items():
        what = "Given without an interval" if has_value else "Not given"
        yield f"{what} on test: {', '.join(titles)} of {why}."


def _metric_title(metric: Mapping[str, str]) -> str:
    arrow = {"higher": " ↑", "lower": " ↓"}.get(metric["better"], "")
    return f"{metric['title']}{arrow}"


def _predictor(name: str, result: Mapping[str, Any]) -> str:
    seeds = result["predictors"][name]
    return name if len(seeds) == 1 else f"{name} ({len(seeds)} seeds)"


def _shown(estimate: Mapping[str, Any], metric: str) -> str:
    # A mean square has the units of the score, and may be of any size.
    style = ".3g" if metric == "mse" else ".3f"
    value, low, high = estimate["value"], estimate["low"], estimate["high"]
    if value is None:
        return "-"
    deviation = estimate["seed_deviation"]
    spread = "" if deviation is None else f" ± {deviation:{style}}"
    interval = "" if low is None else f" ({low:{style}} to {high:{style}})"
    return f"{value:{style}}{spread}{interval}"


def _percent(estimate: Mapping[str, Any]) -> str:
    return _number(estimate["value"], ".1%")


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else f"{value:{style}}"


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line and one cell."""
    plain = printable(text)
    for mark in ("\\", "|", "*", "_", "`", "<", "[", "]"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain
