"""Progress bars with an honest estimate, silent where no one watches; a training as it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from deltacell.report.terminal import console, print_line

Report = Callable[[str, int, int], None]

REFRESH = 0.5  # seconds from one look at the loss to the next


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Give a function to call with a label, how much is done and the total."""
    to = console(stderr=True)
    bar = Progress(
        *(TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()),
        *(TimeElapsedColumn(), TimeRemainingColumn()),
        console=to,
        transient=True,
        disable=not to.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=None)

        def report(label: str, done: int, total: int) -> None:
            bar.update(task, description=label[:48], completed=done, total=total or None)

        yield report


class TrainingBar:
    """Shows samples/s, the loss and the validation's Pearson; a callback of the training loop.

    Parameters
    ----------
    look
        Called with a loss on its device, returns a number without waiting.
    watched
        Whether to show a bar, and a line per epoch; a bar needs a terminal.
    """

    def __init__(self, look: Callable[[Any], float], *, watched: bool = True) -> None:
        self._look, self._watched = look, watched
        self._to = console(stderr=True)
        self._bar: Progress | None = None
        self._task: Any = None
        self._pearson = self._loss = math.nan
        self._genotypes, self._epoch = 0, (0, 0)
        self._since = self._looked = time.monotonic()

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Show that an epoch begins."""
        self._epoch = (epoch + 1, epochs)
        self._genotypes, self._since = 0, time.monotonic()
        if not self._watched or not self._to.is_terminal:
            return
        if self._bar is None:
            self._bar = Progress(
                *(TextColumn("{task.description}", markup=False), BarColumn()),
                *(MofNCompleteColumn(), TextColumn("{task.fields[told]}", markup=False)),
                *(TimeElapsedColumn(), TimeRemainingColumn()),
                console=self._to,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=steps * epochs, told="")
        done, name = epoch * steps + step, f"epoch {epoch + 1}/{epochs}"
        self._bar.update(self._task, description=name, completed=done, total=steps * epochs)

    def step(self, loss: Any, genotypes: int) -> None:
        """Show a batch; the loss is looked at twice per second at most."""
        self._genotypes += genotypes
        if self._bar is None:
            return
        now = time.monotonic()
        if now - self._looked >= REFRESH:
            self._looked = now
            if loss is not None:
                self._loss = self._look(loss)
            rate = self._genotypes / max(now - self._since, 1e-9)
            told = f"{rate:,.0f} samples/s  loss {self._loss:.4g}"
            if not math.isnan(self._pearson):
                told += f"  validation Pearson {self._pearson:.3f}"
            self._bar.update(self._task, told=told)
        self._bar.advance(self._task)

    def epoch(self, row: Mapping[str, float], validation: Any, step: int) -> None:
        """Show the end of an epoch, as a line that stays."""
        self._pearson = row.get("validation_pearson", self._pearson)
        if not self._watched:
            return
        told = f"epoch {self._epoch[0]}/{self._epoch[1]}  step {step:,}"
        if "train_loss" in row:
            told += f"  loss {row['train_loss']:.4g}"
        if "validation_pearson" in row:
            told += f"  validation Pearson {row['validation_pearson']:.3f}"
        if "samples_per_s" in row:
            told += f"  {row['samples_per_s']:,.0f} samples/s"
        self._to.print(told, markup=False)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def print_outcome(
    path: Any,
    *,
    signal: int,
    best: float | None,
    sentence: str | None,
    learned: bool = True,
    saved: bool = True,
) -> None:
    """Print how a run ended, and what to type next."""
    if signal:
        how = " and saved" if learned and saved else ""
        print_line(f"Stopped by signal {signal}{how}: {path}", soft_wrap=True)
        if learned:
            what = "Resume with" if saved else "Fit it again with"
            print_line(f"{what}: deltacell train --resume {path}", soft_wrap=True)
        return
    told = "" if best is None else f" (best validation Pearson {best:.3f})"
    print_line(f"Finished: {path}{told}", soft_wrap=True)
    if sentence is not None:
        print_line(sentence, soft_wrap=True)
    if learned:
        print_line(f"Test it with: deltacell evaluate {path}", soft_wrap=True)
