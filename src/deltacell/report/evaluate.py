"""Renderings of an evaluation for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deltacell.base.rendering import Values
from deltacell.base.text import count_text
from deltacell.report.evaluation_sentences import evaluation_sentences
from deltacell.report.terminal import Piece, markdown, print_line, print_pieces

MAIN = "pearson"  # the metric of the tables by group
GROUPINGS = {
    "unseen": "by number of unseen genes",
    "context": "by what other studies measured",
    "kind": "by number of deleted genes",
    "perturbation": "by perturbation",
    "beyond": "beyond a threshold",
}
# What the metrics of a table are of.
TESTED_TABLES = {
    "scores, and hits of either sign": ("score", "hit"),
    "hits of one sign": ("negative",),
}
# A mean square has the units of the score and can have any magnitude.
STYLES = {"mse": ".3g", "not_additive": ".1%"}
ARROWS = {"higher": " ↑", "lower": " ↓"}
CALIBRATION_COLUMNS = (
    "sets",
    "predicted, score",
    "measured, score",
    "predicted, hits",
    "measured, hits",
)


@dataclass(frozen=True)
class MetricColumn:
    """A column of a table of predictors: one metric of some scores."""

    title: str
    scores: Mapping[str, Values]  # by predictor: its estimates by metric
    metric: str

    def text(self, predictor: str) -> str:
        """Return the estimate of a predictor, with its spread and its interval if known."""
        return estimate_text(self.scores[predictor][self.metric], self.metric)


def print_evaluation(result: Values) -> None:
    """Print an evaluation, from `Evaluation.to_json`, and the calibration of the best predictor."""
    for sentence in _lead(result):
        print_line(sentence, style="bold")
    best = result["verdicts"][0]["best"]
    print_pieces(_pieces(result, calibration_of=[] if best is None else [best]))


def markdown_evaluation(result: Values) -> str:
    """Return an evaluation as Markdown, with the calibration of every predictor."""
    return markdown(
        " ".join(_lead(result)), _pieces(result, calibration_of=list(result["predictors"]))
    )


def _lead(result: Values) -> list[str]:
    """Return what has to be read before the tables: the best run beside the best baseline."""
    headline = result.get("headline")
    return list(headline["sentences"]) if headline else []


def _pieces(result: Values, calibration_of: Sequence[str]) -> Iterator[Piece]:
    yield _table_of_test(result)
    yield from _tables_by_group(result)
    if result["intervals"]:
        yield _table_of_intervals(result["intervals"])
    if result["tested"]:
        yield from _tables_of_tested(result)
        for name in calibration_of:
            yield from _calibration(name, result["tested"]["calibration"].get(name, {}))
    yield Piece("in words", (), evaluation_sentences(result))


def _table_of_test(result: Values) -> Piece:
    test = result["groups"][0]
    columns = [
        MetricColumn(_title(description), test["scores"], metric)
        for metric, description in result["metrics"].items()
    ]
    not_additive = {
        name: {"not_additive": estimate} for name, estimate in result["not_additive"].items()
    }
    columns.append(MetricColumn("not additive", not_additive, "not_additive"))
    rows = count_text(test["rows"], "row")
    sets = count_text(test["gene_sets"], "gene set")
    return _table(result, f"test: {rows}, {sets} ({_level(result)})", columns)


def _table_of_intervals(coverages: Sequence[Values]) -> Piece:
    rows = [
        [
            coverage["predictor"],
            coverage["label"],
            f"{coverage['rows']:,}",
            f"{coverage['share']:.1%}",
            f"{coverage['width']:.3g}",
        ]
        for coverage in coverages
    ]
    title = f"measured scores within their {coverages[0]['level']:.0%} intervals"
    return Piece(title, ["predictor", "rows of", "rows", "within", "mean width"], rows)


def _tables_by_group(result: Values) -> Iterator[Piece]:
    """Yield a table for every grouping of the test rows that tells more than their whole."""
    metric = result["metrics"][MAIN]["title"]
    for grouping, title in GROUPINGS.items():
        columns = [
            MetricColumn(_title_of_group(group), group["scores"], MAIN)
            for group in result["groups"]
            if group["by"] == grouping
        ]
        fewest = 1 if grouping in ("beyond", "context") else 2
        if len(columns) >= fewest:
            yield _table(result, f"{metric} {title} ({_level(result)})", columns)


def _tables_of_tested(result: Values) -> Iterator[Piece]:
    tested = result["tested"]
    hits = f"{tested['hit_share']:.2%} hits, {_level(result)}"
    for title, kinds in TESTED_TABLES.items():
        columns = [
            MetricColumn(_title(description), tested["scores"], metric)
            for metric, description in tested["metrics"].items()
            if description["of"] in kinds
        ]
        yield _table(result, f"among all tested sets: {title} ({hits})", columns)


def _table(result: Values, title: str, columns: Sequence[MetricColumn]) -> Piece:
    """Return a table with a row per predictor, which is named with its number of seeds."""
    rows = []
    for name in columns[0].scores:
        n_seeds = len(result["predictors"][name])
        label = name if n_seeds == 1 else f"{name} ({n_seeds} seeds)"
        rows.append([label, *(column.text(name) for column in columns)])
    titles = [column.title for column in columns]
    return Piece(title, ["predictor", *titles], rows)


def _calibration(name: str, calibration: Values) -> Iterator[Piece]:
    """Yield what was measured of sets with similar predictions, by score and by probability."""
    for key, title in (("by_score", "score"), ("by_hit", "probability of a hit")):
        yield Piece(
            f"calibration of {name}: all tested sets by predicted {title}",
            CALIBRATION_COLUMNS,
            [_calibration_row(sets) for sets in calibration.get(key) or ()],
        )


def _calibration_row(sets: Values) -> list[str]:
    return [
        f"{sets['sets']:,.0f}",
        _number(sets["predicted_score"], ".4f"),
        _number(sets["measured_score"], ".4f"),
        _number(sets["predicted_hits"], ".2%"),
        _number(sets["measured_hits"], ".2%"),
    ]


def _level(result: Values) -> str:
    return f"{100 * result['bootstrap']['level']:g} % interval"


def _title(metric: Values) -> str:
    arrow = ARROWS.get(metric["better"], "")
    return f"{metric['title']}{arrow}"


def _title_of_group(group: Values) -> str:
    return f"{group['label']} ({count_text(group['rows'], 'row')})"


def estimate_text(estimate: Values, metric: str) -> str:
    """Return a value such as ``0.857 ± 0.010 (0.746 to 0.928)``, or a dash without one.

    The deviation is over seeds, and in brackets is the interval; either may be missing.
    """
    if estimate["value"] is None:
        return "-"
    style = STYLES.get(metric, ".3f")
    text = _number(estimate["value"], style)
    if estimate["seed_deviation"] is not None:
        text += f" ± {estimate['seed_deviation']:{style}}"
    if estimate["low"] is not None:
        text += f" ({estimate['low']:{style}} to {estimate['high']:{style}})"
    return text


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else f"{value:{style}}"
