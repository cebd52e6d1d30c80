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

    ``number_of`` converts a loss tensor to a number, which may wait for a device. The bar needs a
    terminal, the line per epoch does not.
    """

    def __init__(self, number_of: Callable[[Any], float]) -> None:
        self._number_of = number_of
        column = progress.TextColumn("{task.fields[metrics]}", markup=False)
        self._bar = _bar(progress.MofNCompleteColumn(), column)
        self._task = self._bar.add_task("", metrics="")
        self._row = {"train_loss": math.nan}
        self._name = ""
        self._n_genotypes = 0
        self._epoch_began = 0.0
        self._updated = 0.0

    def begin(self, epoch: int, epochs: int, batch: int, batches: int) -> None:
        """Begin an epoch, from 0, at a batch."""
        self._name = f"epoch {epoch + 1}/{epochs}"
        self._n_genotypes = 0
        self._epoch_began = time.monotonic()
        self._bar.start()
        n_done = epoch * batches + batch
        n_batches = batches * epochs
        self._bar.update(self._task, description=self._name, completed=n_done, total=n_batches)

    def step(self, loss: Any, n_genotypes: int, n_batches: int) -> None:
        """Advance by the batches of an optimizer step, the last of which has a loss."""
        self._n_genotypes += n_genotypes
        if self._bar.disable:
            return
        now = time.monotonic()
        if now - self._updated >= REFRESH:
            self._updated = now
            if loss is not None:
                self._row["train_loss"] = self._number_of(loss)
            seconds = max(now - self._epoch_began, 1e-9)
            rate = {"samples_per_s": self._n_genotypes / seconds}
            self._bar.update(self._task, metrics=_metrics_text({**rate, **self._row}))
        self._bar.advance(self._task, n_batches)

    def epoch(self, row: Mapping[str, float], step: int) -> None:
        """Show the metrics of an epoch, as a line that stays."""
        if "validation_pearson" in row:
            self._row["validation_pearson"] = row["validation_pearson"]
        shown = {name: row[name] for name in _SHOWN if name in row}
        text = f"{self._name}  step {step:,}{_metrics_text(shown)}"
        self._bar.console.print(text, markup=False)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()


def _metrics_text(row: Mapping[str, float]) -> str:
    return "".join(_SHOWN[name].format(value) for name, value in row.items())


def print_outcome(outcome: Any, *, learned: bool, saved: bool) -> None:
    for line in sentences("outcome.txt", outcome=outcome, learned=learned, saved=saved):
        print_line(line, soft_wrap=True)
