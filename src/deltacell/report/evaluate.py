"""Renderings of an evaluation, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltacell.report.page import sentences
from deltacell.report.terminal import markdown_table, markdown_text, print_line, print_table
from deltacell.words import count_text

_TITLES = {
    "unseen": "by number of unseen genes",
    "kind": "by number of deleted genes",
    "perturbation": "by perturbation",
    "beyond": "beyond a threshold",
}
_TESTED = {("score", "hit"): "scores, and hits of either sign", ("negative",): "hits of one sign"}
_MAIN = "pearson"


Table = tuple[str, list[str], list[list[str]]]


def print_evaluation(result: Mapping[str, Any]) -> None:
    """Print an evaluation, from `Evaluation.to_json`, and how calibrated the best one is."""
    best = result["verdicts"][0]["best"]
    for table in _tables(result, calibration_of=[] if best is None else [best]):
        print_table(*table)
    for sentence in _sentences(result):
        print_line(sentence)


def markdown_evaluation(result: Mapping[str, Any]) -> str:
    parts = [
        f"**{markdown_text(title)}**\n\n{markdown_table(columns, rows)}"
        for title, columns, rows in _tables(result, calibration_of=list(result["predictors"]))
    ]
    parts.append("\n".join(f"- {markdown_text(said)}" for said in _sentences(result)))
    return "\n\n".join(parts) + "\n"


def _tables(result: Mapping[str, Any], calibration_of: Sequence[str]) -> Iterator[Table]:
    metrics, test, tested = result["metrics"], result["groups"][0], result["tested"]
    level = f"{100 * result['bootstrap']['level']:g} % interval"
    titles = [_metric_title(metric) for metric in metrics.values()]
    rows = [
        [
            _predictor(name, result),
            *(_shown(scores[metric], metric) for metric in metrics),
            _number(result["not_additive"][name]["value"], ".1%"),
        ]
        for name, scores in test["scores"].items()
    ]
    sizes = f"{count_text(test['rows'], 'row')}, {count_text(test['gene_sets'], 'gene set')}"
    yield f"test: {sizes} ({level})", ["predictor", *titles, "not additive"], rows
    for by, title in _TITLES.items():
        groups = [group for group in result["groups"] if group["by"] == by]
        if len(groups) < (1 if by == "beyond" else 2):
            continue
        labels = [f"{group['label']} ({count_text(group['rows'], 'row')})" for group in groups]
        rows = [
            [_predictor(name, result), *(_shown(g["scores"][name][_MAIN], _MAIN) for g in groups)]
            for name in test["scores"]
        ]
        yield f"{metrics[_MAIN]['title']} {title} ({level})", ["predictor", *labels], rows
    if tested is None:
        return
    for of, title in _TESTED.items():
        chosen = {name: m for name, m in tested["metrics"].items() if m["of"] in of}
        rows = [
            [_predictor(name, result), *(_shown(scores[metric], metric) for metric in chosen)]
            for name, scores in tested["scores"].items()
        ]
        title = f"among all tested sets: {title} ({tested['hit_share']:.2%} hits, {level})"
        yield title, ["predictor", *(_metric_title(metric) for metric in chosen.values())], rows
    whats = ("predicted", "measured")
    columns = ["sets", *(f"{what}, {of}" for of in ("score", "hits") for what in whats)]
    for name in calibration_of:
        for by, title in (("by_score", "score"), ("by_hit", "probability of a hit")):
            rows = [
                [
                    f"{one['sets']:,.0f}",
                    *(_number(one[f"{what}_score"], ".4f") for what in whats),
                    *(_number(one[f"{what}_hits"], ".2%") for what in whats),
                ]
                for one in tested["calibration"].get(name, {}).get(by) or ()
            ]
            if rows:
                yield f"calibration of {name}: all tested sets by predicted {title}", columns, rows


def _sentences(result: Mapping[str, Any]) -> list[str]:
    missing: dict[tuple[bool, str], list[str]] = {}
    for name, scores in result["groups"][0]["scores"].items():
        for metric, estimate in scores.items():
            if estimate["reason"] is not None:
                key = (estimate["value"] is not None, f"{name}: {estimate['reason']}")
                missing.setdefault(key, []).append(result["metrics"][metric]["title"])
    return sentences("evaluation.txt", **result, missing=missing)


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


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else f"{value:{style}}"
