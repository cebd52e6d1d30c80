"""The capture: a trace of some steps of a training, one file per window and rank.

It must not harm the training: what goes wrong becomes a notice, and the training continues.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction

from deltacell.errors import InputError
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.words import count_text

_HOW = "Write profiler.window=[wait,warmup,active,repeat], for example [5,2,5,1]."


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

    def __post_init__(self) -> None:
        for name, least in {"wait": 0, "warmup": 0, "active": 1, "repeat": 0}.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                what = f"the window's {name} is {value!r}; expected an integer of at least {least}"
                raise InputError(what, code="invalid-window", fix=_HOW)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Window:
        """Return the window of four numbers: wait, warmup, active, repeat."""
        if len(numbers) != 4:
            what = f"the window has {len(numbers)} numbers; expected 4"
            raise InputError(what, code="invalid-window", fix=_HOW)
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


def steps_per_epoch(
    samples: int, batch_size: int, accumulate: int = 1, *, drop_last: bool = False
) -> int:
    """Return the optimizer steps of one epoch: ``ceil(ceil(samples / batch_size) / accumulate)``.

    The batch is that of all processes. With ``drop_last`` a last, smaller batch is left out.
    """
    for name, value in (("batch_size", batch_size), ("accumulate", accumulate)):
        if value < 1:
            what = f"{name} is {value}; expected at least 1"
            raise InputError(what, code="invalid-count")
    return _up(samples // batch_size if drop_last else _up(samples, batch_size), accumulate)


def optimizer_steps(
    samples: int, batch_size: int, accumulate: int = 1, epochs: int = 1, *, drop_last: bool = False
) -> int:
    """Return the optimizer steps of a training: `steps_per_epoch` times the epochs."""
    return steps_per_epoch(samples, batch_size, accumulate, drop_last=drop_last) * epochs


def check_window(
    window: Window,
    *,
    samples: int,
    batch_size: int,
    accumulate: int = 1,
    epochs: int = 1,
    world_size: int = 1,
    drop_last: bool = False,
    steps: int | None = None,
) -> None:
    """Raise an error with the arithmetic where the training ends before the window does.

    ``world_size`` processes share a batch; ``steps`` replaces the epochs where it is given.
    """
    per_epoch = steps_per_epoch(samples, batch_size, accumulate, drop_last=drop_last)
    total = per_epoch * epochs if steps is None else min(per_epoch, 1) * steps
    if total >= window.steps:
        return
    share, left = divmod(batch_size, world_size)
    ranks = f" (over {world_size} ranks)" if left else f" ({world_size} ranks x {share})"
    arithmetic = f"{count_text(samples, 'sample')} / {batch_size} per batch"
    arithmetic += f"{ranks if world_size > 1 else ''} = "
    if accumulate > 1:
        batches = steps_per_epoch(samples, batch_size, drop_last=drop_last)
        arithmetic += f"{count_text(batches, 'batch', 'batches')} / {accumulate} per step = "
    arithmetic += count_text(per_epoch, "step")
    if steps is None:
        arithmetic += f" x {count_text(epochs, 'epoch')} = {total} < {window.steps}"
    elif per_epoch:
        arithmetic = f"{count_text(steps, 'step')} in all < {window.steps}"
    fix = "An epoch has no step: use more samples or a smaller batch."
    if per_epoch:
        longer = f"trainer.epochs={_up(window.steps, per_epoch)}"
        fix = f"Set {longer if steps is None else f'mode_steps={window.steps}'}"
        fix += f", or profiler.window={_nearest(window, total)}." if total else "."
    what = f"the window {window} is never reached: {arithmetic}"
    raise InputError(what, code="window-not-reached", fix=fix, steps=total, needed=window.steps)


def _up(count: int, size: int) -> int:
    return -(-count // size)


def _nearest(window: Window, total: int) -> Window:
    repeats = max(window.repeat, 1)
    recorded = window.warmup + window.active
    if total // repeats >= recorded:
        return replace(window, wait=total // repeats - recorded)
    if total >= recorded:
        return replace(window, wait=0, repeat=total // recorded)
    if total > window.warmup:
        return replace(window, wait=0, active=total - window.warmup, repeat=1)
    return Window(0, total - 1, 1, 1)


class Capture:
    """torch's profiler in a window of optimizer steps.

    Outside the window it costs a comparison per step. A window that the training ends in is not
    written. After a restart, windows that all ranks have are not recorded again. ``notices`` say
    what was not recorded, and why; ``files`` are the traces written.

    Parameters
    ----------
    folder
        Where the traces go, as ``trace-rank{rank}-window{k}.json.gz``.
    record_shapes, profile_memory, with_stack
        As in `torch.profiler.profile`.
    timer
        The phase timer, which learns in which of its rows the profiler was on.
    """

    def __init__(
        self,
        window: Window,
        folder: str | os.PathLike[str],
        rank: int = 0,
        record_shapes: bool = True,
        profile_memory: bool = False,
        with_stack: bool = False,
        *,
        world_size: int = 1,
        timer: PhaseTimer | NoTimer | None = None,
    ) -> None:
        self.window = window
        self.folder = Path(folder)
        self.rank = rank
        self.notices: list[str] = []
        self.files: list[Path] = []
        self._timer = NoTimer() if timer is None else timer
        self._ranks = range(world_size) if world_size > 1 else (rank,)
        self._options: dict[str, Any] = {
            **{"record_shapes": record_shapes, "with_stack": with_stack},
            "profile_memory": profile_memory,
        }
        self._profiler: torch.profiler.profile | None = None
        self._running = False
        self._first = self._done = self._number = 0

    @property
    def recording(self) -> bool:
        """Whether the profiler is on, warm-up included."""
        return self._profiler is not None

    @property
    def remaining(self) -> int | None:
        """How many windows are still to be recorded; None where there is no end to them."""
        if not self.window.repeat:
            return None
        done = self._number if self._running else self._windows_there()
        return max(self.window.repeat - done, 0)

    def start(self, step: int = 0) -> None:
        """Begin to count just before a step, whose number the trace shows as ``ProfilerStep#``."""
        if not self._running:
            self._number = self._windows_there()
            self._running, self._first, self._done = True, step, 0
            self._open_if_due()

    def step(self) -> None:
        """Say that an optimizer step is over; best just after the timer's row was closed."""
        if not self._running:
            return
        self._done += 1
        if self._profiler is not None:
            self._timer.close()
            self._timer.note_profiler()
            if self._done % self.window.cycle == 0:
                self._close(write=True)
            else:
                self._try(self._profiler.step, "torch's profiler failed")
        self._open_if_due()

    def stop(self) -> None:
        """End the capture; this can be called at any time and more than once."""
        if not self._running:
            return
        window = self.window
        if self._profiler is not None:
            begun = self._done % window.cycle - window.wait
            self.notices.append(
                f"the training ended after {begun} of the {window.warmup + window.active} steps of "
                f"window {self._number}, so that was not written"
            )
            self._close(write=False)
        elif not self.files and self.remaining != 0 and not self.notices:
            self.notices.append(
                f"the training ended at step {self._done}, and the window begins after step "
                f"{window.wait}, so nothing was recorded"
            )
        self._running = False

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _open_if_due(self) -> None:
        due = self._running and self._done % self.window.cycle == self.window.wait
        if not due or self._profiler is not None or self.remaining == 0:
            return
        if torch.autograd.profiler._is_profiler_enabled:
            # torch would not complain, and would end the other one's recording with ours.
            self._give_up("another of torch's profilers is on")
            return
        begin = self._first + self._done
        recorded_from = begin + self.window.warmup

        def action(step: int) -> ProfilerAction:
            # torch asks for step 0 before it is told where it begins.
            warm = max(step, begin) < recorded_from
            return ProfilerAction.WARMUP if warm else ProfilerAction.RECORD

        def begin_profiling() -> None:
            self._profiler = torch.profiler.profile(schedule=action, **self._options)
            self._profiler.step_num = begin
            self._profiler.start()

        self._try(begin_profiling, "torch's profiler did not start")
        self._timer.note_profiler()

    def _close(self, *, write: bool) -> None:
        profiler, self._profiler = self._profiler, None
        file = self.folder / self._name(self.rank, self._number)

        def close() -> None:
            assert profiler is not None
            profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if write:
                self.folder.mkdir(parents=True, exist_ok=True)
                _write(profiler, file)
                self.files.append(file)
                self._number += 1

        self._try(close, f"the trace {file} could not be written")

    def _try(self, act: Callable[[], None], failure: str) -> None:
        try:
            act()
        except _FAILURES as error:
            self._give_up(f"{failure}: {error}")

    def _give_up(self, why: str) -> None:
        self._running = False
        self.notices.append(f"the capture was given up, and the training continued: {why}")
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with suppress(*_FAILURES):
                profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _windows_there(self) -> int:
        number = 0
        while all((self.folder / self._name(rank, number)).is_file() for rank in self._ranks):
            number += 1
        return number

    @staticmethod
    def _name(rank: int, number: int) -> str:
        return f"trace-rank{rank}-window{number}.json.gz"


_FAILURES = (OSError, RuntimeError, AssertionError, ValueError)


def _write(profiler: torch.profiler.profile, file: Path) -> None:
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
