"""Compare logs for which nobody has written a YAML file yet, and write that file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deltacell.base.files import JsonObject
from deltacell.base.text import count_text, ratio_text, seconds_text
from deltacell.profile.explain.log_values import LogsOfFolder, LogUse
from deltacell.profile.explain.reconcile import reconcile_text
from deltacell.profile.logs.readings import Log, Quantity

OTHER_LOG = "OTHER.log"  # stands for the second log if there is only one
_CONDITIONS = ("batch", "ranks", "steps_per_epoch")
# What a YAML calls a quantity; a wait for the loader is not the loader alone.
_MEASURED = {
    Quantity.step: ("training steps", "it/s"),
    Quantity.epoch: ("epochs", "epoch seconds"),
    Quantity.self_sum: ("self times", "trace sum"),
}


@dataclass(frozen=True)
class LikeWithLike:
    """One quantity in two logs."""

    quantity: Quantity
    a: str
    b: str
    a_s: float
    b_s: float
    differences: tuple[str, ...]  # conditions that both logs say and that are not equal
    unknown: tuple[str, ...]  # conditions that a log does not say

    @property
    def ratio(self) -> float:
        """The time of B over that of A."""
        return self.b_s / self.a_s

    def to_json(self) -> JsonObject:
        """Return the comparison as a JSON-serialisable dict."""
        return {
            **asdict(self),
            "quantity": self.quantity.value,
            "differences": list(self.differences),
            "unknown": list(self.unknown),
            "ratio": self.ratio,
        }


def reconcile_logs(
    paths: Sequence[str | os.PathLike[str]], folder: str | os.PathLike[str] = "."
) -> dict[str, Any]:
    """Return what logs say, compared with the first one, as a JSON-serialisable dict.

    ``yaml`` is a file of measurements to start from, for this folder. If two logs have a quantity
    in common, the result is the account of that file, as from `reconcile`.
    """
    logs = LogsOfFolder(Path(folder))
    names = [_name_from(path, logs.folder) for path in paths]
    contents = [logs.read(name) for name in names]
    labels = _labels(names)
    alike: list[LikeWithLike] = []
    for label, log in zip(labels[1:], contents[1:], strict=True):
        alike += _compared(labels[0], contents[0], label, log)
    text = starting_yaml(names, labels, contents)
    result = _without_account(labels, contents, alike)
    if len(contents) == 2 and _common_quantities(contents):
        result = reconcile_text(text, logs.folder / "measurements.yaml", logs)
    uses = [
        LogUse(log, reading, side=label)
        for label, log in zip(labels, contents, strict=True)
        for reading in log.readings
    ]
    return {
        **result,
        "logs": [use.to_json() for use in uses],
        "alike": [comparison.to_json() for comparison in alike],
        "yaml": text,
    }


def starting_yaml(names: Sequence[str], labels: Sequence[str], logs: Sequence[Log]) -> str:
    """Return a YAML file of the first two logs, with comments on what they do not say."""
    lines = [
        "# Written from logs by `deltacell reconcile`. Add what they do not say, and what else was",
        "# measured; if a log is of the loader alone, it is `measured: loader only`.",
    ]
    if len(names) > 2:
        lines.append(f"# Not in it: {', '.join(json.dumps(name) for name in names[2:])}")
    sides = list(zip(("a", "b"), labels, logs, strict=False))
    for key, label, log in sides:
        lines += [f"{key}:", f"  name: {json.dumps(label)}"]
        for condition in _CONDITIONS:
            value = getattr(log, condition)
            lines.append(f"  # {condition}: ?" if value is None else f"  {condition}: {value}")
    if len(logs) < 2:
        lines += ["b:", "  name: the other training"]
    lines.append("measurements:")
    files = [*names, OTHER_LOG][:2]
    for quantity in _common_quantities(logs[:2]) or [Quantity.step]:
        name, measured = _MEASURED[quantity]
        lines += [f"  - name: {name}", f"    measured: {measured}"]
        for key, file in zip(("a", "b"), files, strict=True):
            lines.append(f"    {key}: {{ log: {json.dumps(file)} }}")
    return "\n".join(lines) + "\n"


def _name_from(path: str | os.PathLike[str], folder: Path) -> str:
    """Return a path relative to a folder; absolute if it stays so on another drive."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return str(Path(path).absolute())


def _labels(names: Sequence[str]) -> list[str]:
    """Return the names of files without suffix, or whole paths if those are not different."""
    stems = [Path(name).stem for name in names]
    if len(set(stems)) == len(stems):
        return stems
    if len(set(names)) == len(names):
        return list(names)
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _common_quantities(logs: Sequence[Log]) -> list[Quantity]:
    """Return the quantities that all logs have and that a YAML has a name for."""
    return [
        quantity for quantity in _MEASURED if all(log.reading(quantity) is not None for log in logs)
    ]


def _compared(label_a: str, a: Log, label_b: str, b: Log) -> list[LikeWithLike]:
    comparisons = []
    for quantity in Quantity:
        in_a = a.reading(quantity)
        in_b = b.reading(quantity)
        if in_a is None or in_b is None:
            continue
        differences = []
        unknown = []
        for condition in _CONDITIONS:
            of_a = getattr(a, condition)
            of_b = getattr(b, condition)
            name = condition.replace("_", " ")
            if of_a is None or of_b is None:
                unknown.append(name)
            elif of_a != of_b:
                differences.append(f"{name} {of_a:,} against {of_b:,}")
        if in_a.source != in_b.source:
            differences.append(f"{in_a.source.value} against {in_b.source.value}")
        if quantity == Quantity.self_sum and in_a.n_steps != in_b.n_steps:
            differences.append(f"steps {in_a.n_steps or '?'} against {in_b.n_steps or '?'}")
        comparisons.append(
            LikeWithLike(
                quantity,
                label_a,
                label_b,
                in_a.steady,
                in_b.steady,
                tuple(differences),
                tuple(unknown),
            )
        )
    return comparisons


def _without_account(
    labels: Sequence[str], logs: Sequence[Log], alike: Sequence[LikeWithLike]
) -> dict[str, Any]:
    """Return the result of logs that are not two trainings with a quantity in common."""
    return {
        "sentence": _sentence(labels, logs, alike),
        "evidence": [],
        "a": labels[0],
        "b": labels[1] if len(labels) > 1 else None,
        "advice": [],
        "measurements": [],
        "contradictions": [],
        "accounts": [],
        "comparison": None,
        "parts": None,
    }


def _sentence(labels: Sequence[str], logs: Sequence[Log], alike: Sequence[LikeWithLike]) -> str:
    if len(logs) == 1:
        times = [
            f"{seconds_text(reading.steady)} ({reading.quantity.value})"
            for reading in logs[0].readings
        ]
        return f"{labels[0]}: {', '.join(times)}. A second log is needed for a comparison."
    if not alike:
        return f"The {count_text(len(logs), 'log')} have no time in common."
    slowest = max(alike, key=lambda comparison: comparison.ratio)
    return (
        f"{slowest.b} takes {ratio_text(slowest.ratio)} as long as {slowest.a}"
        f" ({slowest.quantity.value}): {seconds_text(slowest.b_s)} against"
        f" {seconds_text(slowest.a_s)}."
    )
