"""Progress bars, shown on terminals only, and the progress of a training run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich import progress

from deltacell.base.text import Progress
from deltacell.report.page import sentences
from deltacell.report.terminal import console, print_line

REFRESH = 0.5  # seconds between updates of the loss
# How columns of metrics.csv are shown.
_SHOWN = {
    "train_loss": "  loss {:.4g}",
    "validation_pearson": "  validation Pearson {:.3f}",
    "samples_per_s": "  {:,.0f} samples/s",
}


def _bar(*columns: progress.ProgressColumn) -> progress.Progress:
    to = console(stderr=True)
    first = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn())
    last = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    return progress.Progress(
        *(*first, *columns, *last),
        console=to,
        transient=True,
        disable=not to.is_terminal,
    )


@contextmanager
def progress_bar() -> Iterator[Progress]:
    with _bar(progress.TaskProgressColumn()) as bar:
        task = bar.add_task("", total=None)

        def report(label: str, done: int, total: int) -> None:
            bar.update(task, description=label[:48], completed=done, total=total or None)

        yield report


class TrainingBar:
    """Shows the samples/s, loss and validation Pearson of a training loop.

    ``look`` converts a loss tensor to a number. Nothing is shown unless ``watched``; the bar needs
    a terminal, the line per epoch does not.
    """

    def __init__(self, look: Callable[[Any], float], *, watched: bool = True) -> None:
        self._look, self._watched = look, watched
        column = progress.TextColumn("{task.fields[metrics]}", markup=False)
        self._bar = _bar(progress.MofNCompleteColumn(), column)
        self._task = self._bar.add_task("", metrics="")
        self._row = {"train_loss": math.nan}
        self._genotypes, self._name, self._since, self._looked = 0, "", 0.0, 0.0

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        self._name = f"epoch {epoch + 1}/{epochs}"
        self._genotypes, self._since = 0, time.monotonic()
        if self._watched:
            self._bar.start()
            done, total = epoch * steps + step, steps * epochs
            self._bar.update(self._task, description=self._name, completed=done, total=total)

    def step(self, loss: Any, genotypes: int) -> None:
        self._genotypes += genotypes
        if not self._watched or self._bar.disable:
            return
        now = time.monotonic()
        if now - self._looked >= REFRESH:
            self._looked = now
            if loss is not None:
                self._row["train_loss"] = self._look(loss)
            rate = {"samples_per_s": self._genotypes / max(now - self._since, 1e-9)}
            self._bar.update(self._task, metrics=_metrics_text({**rate, **self._row}))
        self._bar.advance(self._task)

    def epoch(self, row: Mapping[str, float], step: int) -> None:
        self._row |= {k: v for k, v in row.items() if k == "validation_pearson"}
        if self._watched:
            known = {name: row[name] for name in _SHOWN if name in row}
            text = f"{self._name}  step {step:,}{_metrics_text(known)}"
            self._bar.console.print(text, markup=False)

    def close(self) -> None:
        self._bar.stop()


def _metrics_text(row: Mapping[str, float]) -> str:
    return "".join(_SHOWN[name].format(value) for name, value in row.items())


def print_outcome(outcome: Any, *, learned: bool, saved: bool) -> None:
    for line in sentences("outcome.txt", outcome=outcome, learned=learned, saved=saved):
        print_line(line, soft_wrap=True)
