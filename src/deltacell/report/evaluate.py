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
}
_MAIN = "pearson"


class _Table(NamedTuple):
    title: str
    columns: list[str]
    rows: list[list[str]]


def print_evaluation(result: Mapping[str, Any]) -> None:
    """Print the tables and sentences of an evaluation; the verdicts are of the whole test part.

    Parameters
    ----------
    result
        From `Evaluation.to_json`.
    """
    for table in _tables(result):
        print_table(table.title, table.columns, table.rows)
    whole = result["groups"][0]["label"]
    shown = [verdict for verdict in result["verdicts"] if verdict["group"] == whole]
    others = [verdict for verdict in result["verdicts"] if verdict["group"] != whole]
    said = [verdict["sentence"] for verdict in shown]
    if others:
        beaten = sum(verdict["beats"] for verdict in others)
        said.append(
            f"By number of unseen genes the additive baseline is beaten in {beaten} of "
            f"{count_text(len(others), 'comparison')}; --markdown and --json have each."
        )
    for sentence in (*said, *_remarks(result)):
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
        for table in _tables(result)
    ]
    verdicts = [verdict["sentence"] for verdict in result["verdicts"]]
    parts.append("\n".join(f"- {_escaped(said)}" for said in (*verdicts, *_remarks(result))))
    return "\n\n".join(parts) + "\n"


def _tables(result: Mapping[str, Any]) -> Iterator[_Table]:
    metrics, test = result["metrics"], result["groups"][0]
    level = f"{100 * result['bootstrap']['level']:g} % interval"
    yield _Table(
        f"test: {count_text(test['rows'], 'row')}, {count_text(test['gene_sets'], 'gene set')} "
        f"({level})",
        ["predictor", *(_metric_title(metric) for metric in metrics.values())],
        [
            [_predictor(name, result), *(_shown(scores[metric], metric) for metric in metrics)]
            for name, scores in test["scores"].items()
        ],
    )
    for by, title in _TITLES.items():
        groups = [group for group in result["groups"] if group["by"] == by]
        if len(groups) < 2:
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


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
    yield result["positives"]["sentence"]
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
    return f"{metric['title']} {'↑' if metric['better'] == 'higher' else '↓'}"


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


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line and one cell."""
    plain = printable(text)
    for mark in ("\\", "|", "*", "_", "`", "<", "[", "]"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain
