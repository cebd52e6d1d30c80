"""Renderings of an evaluation for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltacell.base.text import count_text
from deltacell.report.page import sentences
from deltacell.report.terminal import Piece, markdown, print_pieces

_TITLES = {
    "unseen": "by number of unseen genes",
    "kind": "by number of deleted genes",
    "perturbation": "by perturbation",
    "beyond": "beyond a threshold",
}
_TESTED = {("score", "hit"): "scores, and hits of either sign", ("negative",): "hits of one sign"}
_MAIN, _WHATS = "pearson", ("predicted", "measured")
# A mean square has the units of the score and can have any magnitude.
_STYLES = {"mse": ".3g", "not_additive": ".1%"}


def print_evaluation(result: Mapping[str, Any]) -> None:
    """Print an evaluation, from `Evaluation.to_json`, and the calibration of the best predictor."""
    best = result["verdicts"][0]["best"]
    print_pieces(_pieces(result, calibration_of=[] if best is None else [best]))


def markdown_evaluation(result: Mapping[str, Any]) -> str:
    return markdown("", _pieces(result, calibration_of=list(result["predictors"])))


def _pieces(result: Mapping[str, Any], calibration_of: Sequence[str]) -> Iterator[Piece]:
    metrics, test, tested = result["metrics"], result["groups"][0], result["tested"]
    level = f"{100 * result['bootstrap']['level']:g} % interval"

    def table(title: str, columns: Mapping[str, tuple[Mapping[str, Any], str]]) -> Piece:
        """Return a table with a row per predictor; a column has scores and a metric."""
        rows = []
        for name in next(iter(columns.values()))[0]:
            seeds = len(result["predictors"][name])
            shown = [_shown(scores[name][metric], metric) for scores, metric in columns.values()]
            rows.append([name if seeds == 1 else f"{name} ({seeds} seeds)", *shown])
        return Piece(title, ["predictor", *columns], rows)

    not_additive = {name: {"not_additive": one} for name, one in result["not_additive"].items()}
    columns = {_title(one): (test["scores"], metric) for metric, one in metrics.items()}
    columns["not additive"] = (not_additive, "not_additive")
    sizes = f"{count_text(test['rows'], 'row')}, {count_text(test['gene_sets'], 'gene set')}"
    yield table(f"test: {sizes} ({level})", columns)
    for by, title in _TITLES.items():
        columns = {
            f"{group['label']} ({count_text(group['rows'], 'row')})": (group["scores"], _MAIN)
            for group in result["groups"]
            if group["by"] == by
        }
        if len(columns) >= (1 if by == "beyond" else 2):
            yield table(f"{metrics[_MAIN]['title']} {title} ({level})", columns)
    for of, title in _TESTED.items() if tested else ():
        chosen = {name: one for name, one in tested["metrics"].items() if one["of"] in of}
        columns = {_title(one): (tested["scores"], metric) for metric, one in chosen.items()}
        hits = f"{tested['hit_share']:.2%} hits, {level}"
        yield table(f"among all tested sets: {title} ({hits})", columns)
    for name in calibration_of if tested else ():
        for by, title in (("by_score", "score"), ("by_hit", "probability of a hit")):
            yield Piece(
                f"calibration of {name}: all tested sets by predicted {title}",
                ["sets", *(f"{what}, {of}" for of in ("score", "hits") for what in _WHATS)],
                [
                    [
                        f"{one['sets']:,.0f}",
                        *(_number(one[f"{what}_score"], ".4f") for what in _WHATS),
                        *(_number(one[f"{what}_hits"], ".2%") for what in _WHATS),
                    ]
                    for one in tested["calibration"].get(name, {}).get(by) or ()
                ],
            )
    missing: dict[tuple[bool, str], list[str]] = {}
    for name, scores in test["scores"].items():
        for metric, estimate in scores.items():
            if estimate["reason"] is not None:
                key = (estimate["value"] is not None, f"{name}: {estimate['reason']}")
                missing.setdefault(key, []).append(metrics[metric]["title"])
    yield Piece("in words", (), sentences("evaluation.txt", **result, missing=missing))


def _title(metric: Mapping[str, str]) -> str:
    arrow = {"higher": " ↑", "lower": " ↓"}.get(metric["better"], "")
    return f"{metric['title']}{arrow}"


def _shown(estimate: Mapping[str, Any], metric: str) -> str:
    style, value = _STYLES.get(metric, ".3f"), estimate["value"]
    low, high, deviation = (estimate[name] for name in ("low", "high", "seed_deviation"))
    spread = "" if deviation is None else f" ± {deviation:{style}}"
    interval = "" if low is None else f" ({low:{style}} to {high:{style}})"
    return "-" if value is None else f"{value:{style}}{spread}{interval}"


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else f"{value:{style}}"
