"""The capture: a trace of some steps of a training, one file per window and rank.

It must not harm the training: what goes wrong in it is kept as a notice, and the training goes on.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.profiler import ProfilerAction

from deltacell.errors import InputError
from deltacell.profile.phases import NoTimer, PhaseTimer


@dataclass(frozen=True)
class Window:
    """Optimizer steps to wait, to warm up and to record, and how often.

    In the warm-up the profiler is on and what it sees is thrown away; a repeat of 0 goes on for as
    long as the training lasts.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 1

    def __post_init__(self) -> None:
        lowest = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0}
        for name, least in lowest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(
                    f"the window's {name} is {value!r}, and a whole number of at least {least} "
                    "was expected",
                    fix=_HOW,
                )

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Window:
        """Return the window of four numbers: wait, warmup, active, repeat."""
        if len(numbers) != 4:
            raise InputError(
                f"the window has {len(numbers)} numbers ({list(numbers)}), and 4 were expected",
                fix=_HOW,
            )
        return cls(*numbers)

    @property
    def cycle(self) -> int:
        """Steps from the beginning of one wait to the next."""
        return self.wait + self.warmup + self.active

    @property
    def steps(self) -> int:
        """Optimizer steps after which all that was asked for is recorded."""
        return self.cycle * max(self.repeat, 1)

    def __str__(self) -> str:
        return f"[{self.wait},{self.warmup},{self.active},{self.repeat}]"


def steps_per_epoch(
    samples: int, batch_size: int, accumulate: int = 1, *, drop_last: bool = False
) -> int:
    """Return the optimizer steps of one epoch.

    That is ``ceil(ceil(samples / batch_size) / accumulate)``, the batch being that of all
    processes: what is left of the samples is a smaller batch, left out with ``drop_last``, and
    what is left of the batches a step of fewer.
    """
    _check_counts(samples=samples, batch_size=batch_size, accumulate=accumulate)
    return _up(_batches(samples, batch_size, drop_last), accumulate)


def optimizer_steps(
    samples: int, batch_size: int, accumulate: int = 1, epochs: int = 1, *, drop_last: bool = False
) -> int:
    """Return the optimizer steps of a training: `steps_per_epoch` times the epochs."""
    _check_counts(epochs=epochs)
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

    ``world_size`` processes share a batch; ``steps`` is set where it is given instead of epochs.
    """
    _check_counts(world_size=world_size)
    an_epoch = steps_per_epoch(samples, batch_size, accumulate, drop_last=drop_last)
    if steps is None:
        total = optimizer_steps(samples, batch_size, accumulate, epochs, drop_last=drop_last)
    else:
        _check_counts(steps=steps)
        total = steps if an_epoch else 0
    if total >= window.steps:
        return
    arithmetic = _steps_sentence(samples, batch_size, accumulate, world_size, drop_last)
    if steps is None:
        arithmetic += f" x {_count(epochs, 'epoch')} = {total} < {window.steps}"
    elif an_epoch:
        arithmetic = f"{_count(steps, 'step')} in all < {window.steps}"
    raise InputError(
        f"the window {window} is never reached: {arithmetic}",
        fix=_smallest_change(window, an_epoch, total, steps is None),
    )


_HOW = "Write profiler.window=[wait,warmup,active,repeat], for example [5,2,5,1]."


def _batches(samples: int, batch_size: int, drop_last: bool) -> int:
    return samples // batch_size if drop_last else _up(samples, batch_size)


def _up(count: int, size: int) -> int:
    return -(-count // size)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s" if noun != "batch" else "es")


def _check_counts(**counts: int) -> None:
    may_be_nothing = {"samples", "epochs", "steps"}
    for name, value in counts.items():
        least = 0 if name in may_be_nothing else 1
        if value < least:
            raise InputError(f"{name} is {value}, and at least {least} was expected")


def _steps_sentence(
    samples: int, batch_size: int, accumulate: int, world_size: int, drop_last: bool
) -> str:
    ranks = ""
    if world_size > 1:
        share, left = divmod(batch_size, world_size)
        ranks = f" (over {world_size} ranks)" if left else f" ({world_size} ranks x {share})"
    batches = _batches(samples, batch_size, drop_last)
    text = f"{_count(samples, 'sample')} / {batch_size} per batch{ranks} = "
    if accumulate > 1:
        text += f"{_count(batches, 'batch')} / {accumulate} per step = "
    return text + _count(_up(batches, accumulate), "step")


def _smallest_change(window: Window, an_epoch: int, total: int, by_epochs: bool) -> str:
    if not an_epoch:
        return "There is no step in an epoch: give it more samples or a smaller batch."
    longer = (
        f"trainer.epochs={_up(window.steps, an_epoch)}"
        if by_epochs
        else f"mode_steps={window.steps}"
    )
    nearer = _nearest(window, total)
    return f"Set {longer}" + ("." if nearer is None else f", or profiler.window={nearer}.")


def _nearest(window: Window, total: int) -> Window | None:
    repeats = max(window.repeat, 1)
    recorded = window.warmup + window.active
    if total // repeats >= recorded:
        return replace(window, wait=total // repeats - recorded)
    if total >= recorded:
        return replace(window, wait=0, repeat=total // recorded)
    if total > window.warmup:
        return replace(window, wait=0, active=total - window.warmup, repeat=1)
    return Window(0, total - 1, 1, 1) if total else None


class Capture:
    """torch's profiler in a window of optimizer steps.

    Outside the window it costs a comparison per step. A window that the training ends in is not
    written. After a restart, windows that are there already are not recorded again. ``notices``
    say what was not recorded, and why; ``files`` are the traces written.

    Parameters
    ----------
    window
        The steps to record.
    folder
        Where the traces go, as ``trace-rank{rank}-window{k}.json.gz``; made where it is missing.
    record_shapes, profile_memory, with_stack
        As in `torch.profiler.profile`.
    rank, world_size
        Of several processes that trace, a window counts as there when all ranks have it.
    timer
        The phases' timer, which learns in which of its rows the profiler was on.
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
        self._timer = timer
        self._ranks = range(world_size) if world_size > 1 else (rank,)
        self._record_shapes = record_shapes
        self._profile_memory = profile_memory
        self._with_stack = with_stack
        self._profiler: torch.profiler.profile | None = None
        self._running = False
        self._first = 0
        self._done = 0
        self._number = 0

    @property
    def recording(self) -> bool:
        """Whether the profiler is on, warm-up included."""
        return self._profiler is not None

    @property
    def remaining(self) -> int | None:
        """How many windows are still to be recorded; null where there is no end to them."""
        if not self.window.repeat:
            return None
        done = self._number if self._running else self._windows_there()
        return max(self.window.repeat - done, 0)

    def start(self, step: int = 0) -> None:
        """Begin to count, just before the first step.

        Parameters
        ----------
        step
            The number of that step, which the trace shows as ``ProfilerStep#``.
        """
        if self._running:
            return
        self._number = self._windows_there()
        self._running = True
        self._first = step
        self._done = 0
        self._open_if_due()

    def step(self) -> None:
        """Say that an optimizer step is over; best just after the phases' row was closed."""
        if not self._running:
            return
        self._done += 1
        if self._profiler is not None:
            if self._timer is not None:
                self._timer.close()
            self._note_profiler()
            if self._done % self.window.cycle == 0:
                self._close(self._profiler, write=True)
            else:
                self._go_on(self._profiler)
        self._open_if_due()

    def stop(self) -> None:
        """End it, wherever it is. It can be called at any time and more than once."""
        if not self._running:
            return
        if self._profiler is not None:
            begun = self._done % self.window.cycle - self.window.wait
            self.notices.append(
                f"the training ended after {begun} of the "
                f"{self.window.warmup + self.window.active} steps of window {self._number}, "
                "so that was not written"
            )
            self._close(self._profiler, write=False)
        elif not self.files and self.remaining != 0 and not self.notices:
            self.notices.append(
                f"the training ended at step {self._done}, and the window begins after step "
                f"{self.window.wait}, so nothing was recorded"
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

        try:
            self._profiler = torch.profiler.profile(
                schedule=action,
                record_shapes=self._record_shapes,
                profile_memory=self._profile_memory,
                with_stack=self._with_stack,
            )
            self._profiler.step_num = begin
            self._profiler.start()
        except _FAILURES as error:
            self._give_up(f"torch's profiler did not start: {error}")
        self._note_profiler()

    def _go_on(self, profiler: torch.profiler.profile) -> None:
        try:
            profiler.step()
        except _FAILURES as error:
            self._give_up(f"torch's profiler failed: {error}")

    def _close(self, profiler: torch.profiler.profile, *, write: bool) -> None:
        self._profiler = None
        file = self.folder / _name(self.rank, self._number)
        try:
            profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if write:
                self.folder.mkdir(parents=True, exist_ok=True)
                _write(profiler, file)
                self.files.append(file)
                self._number += 1
        except _FAILURES as error:
            self._give_up(f"the trace {file} could not be written: {error}")

    def _give_up(self, why: str) -> None:
        self._running = False
        self.notices.append(f"the capture was given up, and the training went on: {why}")
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with suppress(*_FAILURES):
                profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _note_profiler(self) -> None:
        if self._timer is not None:
            self._timer.note_profiler()

    def _windows_there(self) -> int:
        number = 0
        while all((self.folder / _name(rank, number)).is_file() for rank in self._ranks):
            number += 1
        return number


_FAILURES = (OSError, RuntimeError, AssertionError, ValueError)


def _name(rank: int, number: int) -> str:
    return f"trace-rank{rank}-window{number}.json.gz"


def _write(profiler: torch.profiler.profile, file: Path) -> None:
    plain, packed = (file.with_name(f".{file.name}.{kind}.tmp") for kind in ("plain", "packed"))
    try:
        profiler.export_chrome_trace(str(plain))
        # torch says nothing where it could not write, or not all.
        if not _ends_well(plain):
            raise OSError(f"torch left it unfinished; is there space in {file.parent}?")
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=5) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        packed.rename(file)
    finally:
        for temporary in (plain, packed):
            temporary.unlink(missing_ok=True)


def _ends_well(trace: Path) -> bool:
    if not trace.is_file():
        return False
    with trace.open("rb") as file:
        file.seek(max(trace.stat().st_size - 64, 0))
        return file.read().rstrip().endswith(b"}")
