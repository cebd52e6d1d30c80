"""The capture: a trace of some steps of a training, one file per window and rank.

It must not harm the training: what goes wrong becomes a notice, and the training continues.
"""

from __future__ import annotations

import gzip
import math
import shutil
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction

from deltacell.errors import InputError
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.profile.say import say


@dataclass(frozen=True)
class Window:
    """Optimizer steps to wait, to warm up and to record, and how often.

    What the profiler sees in the warm-up is discarded. With a repeat of 0 it records windows for as
    long as the training lasts.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 1

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Window:
        least = (0, 0, 1, 0)
        are_right = len(numbers) == 4 and all(
            type(n) is int and n >= m for n, m in zip(numbers, least, strict=True)
        )
        if not are_right:
            what = f"the window is {list(numbers)}; expected 4 integers of at least {list(least)}"
            fix = "Write profiler.window=[wait,warmup,active,repeat], for example [5,2,5,1]."
            raise InputError(what, code="invalid-window", fix=fix)
        return cls(*numbers)

    @property
    def cycle(self) -> int:
        """Steps from the beginning of one wait to the next."""
        return self.wait + self.warmup + self.active

    @property
    def steps(self) -> int:
        """Optimizer steps after which everything is recorded."""
        return self.cycle * max(self.repeat, 1)

    def __str__(self) -> str:
        return f"[{self.wait},{self.warmup},{self.active},{self.repeat}]"


def check_window(
    window: Window,
    *,
    samples: int,
    batch_size: int,
    accumulate: int = 1,
    epochs: int = 1,
    world_size: int = 1,
    steps: int | None = None,
) -> None:
    """Raise an error with the arithmetic where the training ends before the window does.

    ``world_size`` processes share a batch; ``steps`` replaces the epochs where it is given.
    """
    batches = math.ceil(samples / batch_size)
    per_epoch = math.ceil(batches / accumulate)
    total = per_epoch * epochs if steps is None else min(per_epoch, 1) * steps
    if total < window.steps:
        x: dict[str, Any] = {"samples": samples, "batch_size": batch_size, "batches": batches}
        x |= {"accumulate": accumulate, "per_epoch": per_epoch, "epochs": epochs, "steps": steps}
        x |= {"ranks": world_size, "total": total, "window": window}
        what, fix = say("window", **x), say("longer window", **x)
        raise InputError(what, code="window-not-reached", fix=fix, steps=total)


class Capture:
    """torch's profiler in a window of optimizer steps.

    Traces go to ``trace-rank{rank}-window{k}.json.gz``; ``options`` are those of
    `torch.profiler.profile`. Outside the window it costs a comparison per step. A window that the
    training ends in is not written. After a restart, windows that all ranks have are not recorded
    again. ``notices`` say what was not recorded, and why; ``files`` are the traces written. The
    ``timer`` learns in which of its rows the profiler was on.
    """

    def __init__(
        self,
        window: Window,
        folder: Path,
        rank: int = 0,
        *,
        world_size: int = 1,
        timer: PhaseTimer | NoTimer,
        **options: Any,
    ) -> None:
        self.window, self.folder, self.rank = window, folder, rank
        self.notices: list[str] = []
        self.files: list[Path] = []
        self.timer, self._options = timer, options
        self._ranks = range(world_size) if world_size > 1 else (rank,)
        self._windows: Generator[None] | None = None

    def start(self, step: int = 0) -> None:
        """Begin to count just before a step, whose number the trace shows as ``ProfilerStep#``."""
        if self._windows is None:
            self._windows = self._record(step)
            self.step()

    def step(self) -> None:
        """Say that an optimizer step is over; best just after the timer's row was closed."""
        if self._windows is not None:
            next(self._windows, None)

    def stop(self) -> None:
        """End the capture; this can be called at any time and more than once."""
        if self._windows is not None:
            self._windows.close()

    def _record(self, step: int) -> Generator[None]:
        """Record the windows that are missing; it goes on when a step is over."""
        window, number, done = self.window, 0, 0
        recorded = window.warmup + window.active
        profiler: torch.profiler.profile | None = None
        while all(self._file(rank, number).is_file() for rank in self._ranks):
            number += 1
        try:
            while not window.repeat or number < window.repeat:
                for _ in range(window.wait):
                    yield
                    done += 1
                profiler = self._profiler(step + done)
                for place in range(recorded):
                    yield
                    done += 1
                    self.timer.close()
                    self.timer.note_profiler()
                    if place + 1 < recorded:
                        profiler.step()
                ended, profiler = profiler, None
                ended.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                _write(ended, self._file(self.rank, number))
                self.files.append(self._file(self.rank, number))
                number += 1
        except GeneratorExit:
            begun = done % window.cycle - window.wait
            if profiler is not None:
                self.notices.append(
                    f"the training ended after {begun} of the {recorded} steps of window {number}, "
                    "so that was not written"
                )
            elif not self.files:
                self.notices.append(
                    f"the training ended at step {done}, and the window begins after step "
                    f"{window.wait}, so nothing was recorded"
                )
        except _FAILURES as error:
            self.notices.append(f"the capture was given up, and the training continued: {error}")
        finally:
            if profiler is not None:
                with suppress(*_FAILURES):
                    profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _file(self, rank: int, number: int) -> Path:
        return self.folder / f"trace-rank{rank}-window{number}.json.gz"

    def _profiler(self, begin: int) -> torch.profiler.profile:
        """Return a profiler that warms up, and then records, from a step on."""
        if torch.autograd.profiler._is_profiler_enabled:
            # torch would not complain, and would end the other one's recording with ours.
            raise RuntimeError("another of torch's profilers is on")

        def action(step: int) -> ProfilerAction:
            # torch asks for step 0 before it is told where it begins.
            warm = max(step, begin) < begin + self.window.warmup
            return ProfilerAction.WARMUP if warm else ProfilerAction.RECORD

        profiler = torch.profiler.profile(schedule=action, **self._options)
        profiler.step_num = begin
        profiler.start()
        self.timer.note_profiler()
        return profiler


_FAILURES = (OSError, RuntimeError, AssertionError, ValueError)


def _write(profiler: torch.profiler.profile, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    plain, packed = (file.with_name(f".{file.name}.{kind}.tmp") for kind in ("plain", "packed"))
    try:
        profiler.export_chrome_trace(str(plain))
        # torch is silent where it could not write everything.
        with plain.open("rb") as source:
            source.seek(max(plain.stat().st_size - 64, 0))
            if not source.read().rstrip().endswith(b"}"):
                raise OSError(f"torch left it unfinished; is there space in {file.parent}?")
            source.seek(0)
            with gzip.open(packed, "wb", compresslevel=5) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        packed.rename(file)
    finally:
        for temporary in (plain, packed):
            temporary.unlink(missing_ok=True)
