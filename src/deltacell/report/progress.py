"""Progress bars, shown on terminals only, and the progress of a training run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, SupportsFloat

from rich import progress

from deltacell.base.text import Progress
from deltacell.report.terminal import console, print_line

REFRESH = 0.5  # seconds between updates of the loss
# How columns of metrics.csv are shown.
_SHOWN = {
    "train_loss": "  loss {:.4g}",
    "validation_pearson": "  validation Pearson {:.3f}",
    "samples_per_s": "  {:,.0f} samples/s",
}


def _bar(*columns: progress.ProgressColumn) -> progress.Progress:
    stderr = console(stderr=True)
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        *columns,
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield a function that shows a progress as a bar, which disappears at the end."""
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

    def __init__(self, number_of: Callable[[SupportsFloat], float]) -> None:
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

    def step(self, loss: SupportsFloat | None, n_genotypes: int, n_batches: int) -> None:
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


class TrainingEnd(Protocol):
    """How a training ended: a `deltacell.train.outcome.Outcome`."""

    @property
    def path(self) -> Path:
        """The run directory."""

    @property
    def signal(self) -> int:
        """The number of the signal that stopped it, or 0."""

    @property
    def best(self) -> float | None:
        """The metric of the best checkpoint, if there was a validation."""

    @property
    def best_metric(self) -> str | None:
        """The name of that metric, such as ``validation_pearson``."""

    @property
    def limits(self) -> str | None:
        """What limits the run, if its phases were recorded."""


def print_outcome(outcome: TrainingEnd, *, learned: bool, saved: bool) -> None:
    """Print how a run ended, and what to type next; the commands are not folded."""
    for line in outcome_lines(outcome, learned=learned, saved=saved):
        print_line(line, soft_wrap=True)


def outcome_lines(outcome: TrainingEnd, *, learned: bool, saved: bool) -> Iterator[str]:
    """Yield how a run ended, and what to type next.

    Args:
        outcome: How it ended.
        learned: Whether the run learns, so that it can be resumed and tested.
        saved: Whether a stopped run can continue; if not, it begins again when resumed.
    """
    if outcome.signal:
        how = " and saved" if learned and saved else ""
        yield f"Stopped by signal {outcome.signal}{how}: {outcome.path}"
        if learned:
            action = "Resume with" if saved else "Fit it again with"
            yield f"{action}: deltacell train --resume {outcome.path}"
        return
    best = outcome.best
    name = (outcome.best_metric or "").replace("_", " ").replace("pearson", "Pearson")
    metric = "" if best is None else f" (best {name} {best:.3f})"
    yield f"Finished: {outcome.path}{metric}"
    if outcome.limits:
        yield outcome.limits
    if learned:
        yield f"Test it with: deltacell evaluate {outcome.path}"
