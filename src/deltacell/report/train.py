"""A training as it goes on: a bar where someone watches, a line an epoch where no one does."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from deltacell.report.terminal import console, printable

REFRESH = 0.5
"""Seconds from one look at the loss to the next."""


class TrainingBar:
    """Shows samples/s, the loss and the validation's Pearson; a callback of the training loop.

    Parameters
    ----------
    look
        Called with a loss on its device, returns a number without waiting.
    watched
        Whether to show a bar; where the console is no terminal there is none.
    """

    def __init__(self, look: Any, *, watched: bool = True) -> None:
        self._look = look
        self._to: Console = console(stderr=True)
        self._bar: Progress | None = None
        self._watched = watched and self._to.is_terminal
        self._quiet = not watched
        self._task: Any = None
        self._pearson = math.nan
        self._loss = math.nan
        self._genotypes = 0
        self._since = self._looked = time.monotonic()
        self._epoch = (0, 0)

    def begin(self, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Show that an epoch begins."""
        self._epoch = (epoch + 1, epochs)
        self._genotypes, self._since = 0, time.monotonic()
        if not self._watched:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[told]}", markup=False),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._to,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=steps * epochs, told="")
        self._bar.update(
            self._task,
            description=f"epoch {epoch + 1}/{epochs}",
            completed=epoch * steps + step,
            total=steps * epochs,
        )

    def step(self, loss: Any, genotypes: int) -> None:
        """Show a batch; the loss is looked at twice a second at most."""
        self._genotypes += genotypes
        if self._bar is None:
            return
        now = time.monotonic()
        if now - self._looked >= REFRESH:
            self._looked = now
            if loss is not None:
                self._loss = self._look(loss)
            told = f"{self._rate(now):,.0f} samples/s  loss {self._loss:.4g}"
            if not math.isnan(self._pearson):
                told += f"  validation Pearson {self._pearson:.3f}"
            self._bar.update(self._task, told=told)
        self._bar.advance(self._task)

    def epoch(self, row: Mapping[str, float], validation: Any, step: int) -> None:
        """Show the end of an epoch, as a line that stays."""
        if "validation_pearson" in row:
            self._pearson = row["validation_pearson"]
        if self._quiet:
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

    def _rate(self, now: float) -> float:
        return self._genotypes / max(now - self._since, 1e-9)


def print_outcome(
    path: Any,
    *,
    signal: int,
    best: float | None,
    sentence: str | None,
    learned: bool = True,
    saved: bool = True,
) -> None:
    """Print how a run ended, and what to type next.

    Parameters
    ----------
    path
        The run's directory.
    signal
        The number of the signal that stopped it, or 0.
    best
        The highest validation Pearson, where it was measured.
    sentence
        What limits the run, where that is known.
    learned
        Whether there is a model to go on with; not in modes that leave out a part of the step.
    saved
        Whether a signal left a checkpoint; not where a predictor is fitted in one call.
    """
    # Commands are to be copied, so no line is folded.
    to = console()
    if signal and not learned:
        to.print(
            f"Stopped by signal {signal}: {printable(str(path))}", markup=False, soft_wrap=True
        )
        return
    if signal:
        to.print(
            f"Stopped by signal {signal}{' and saved' if saved else ''}: {printable(str(path))}",
            markup=False,
            soft_wrap=True,
        )
        to.print(
            f"{'Go on with' if saved else 'Fit it again with'}: "
            f"deltacell train --resume {printable(str(path))}",
            markup=False,
            soft_wrap=True,
        )
        return
    told = "" if best is None else f" (best validation Pearson {best:.3f})"
    to.print(f"Finished: {printable(str(path))}{told}", markup=False, soft_wrap=True)
    if sentence is not None:
        to.print(sentence, markup=False, soft_wrap=True)
    if learned:
        to.print(
            f"Test it with: deltacell evaluate {printable(str(path))}", markup=False, soft_wrap=True
        )
