"""Profilers of a training: a trace of some of its steps, and profilers of the host.

A failing profiler never stops the training; its errors become notices. Profilers of the host
(Python functions, lines of some functions, memory) slow it down, so compare their times only with
each other.
"""

from __future__ import annotations

import cProfile
import gzip
import inspect
import io
import math
import operator
import os
import pstats
import resource
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction

from deltacell.base.errors import InputError, need
from deltacell.base.files import new_file
from deltacell.base.text import count_text
from deltacell.profile.phases import PhaseTimer
from deltacell.profile.trace.trace import SAMPLES_PER_STEP

MOST_LINES = 100  # functions or lines of code in the report of a host profiler
#: A level of ``KINETO_LOG_LEVEL`` above all messages that torch's profiler writes to stderr.
KINETO_SILENT = "6"

_FAILURES = (OSError, RuntimeError, AssertionError, ValueError)


@dataclass(frozen=True)
class Window:
    """Numbers of optimizer steps to wait, to warm up and to record, and of repetitions.

    Events of the warm-up are discarded. With a repeat of 0, windows are recorded until the training
    ends.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 1

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Window:
        """Return a window from four numbers, as in the config; raise an error if invalid."""
        least = (0, 0, 1, 0)
        if [*map(type, numbers)] == [int] * 4 and all(map(operator.ge, numbers, least)):
            return cls(*numbers)
        what = f"the window is {list(numbers)}; expected 4 integers of at least {list(least)}"
        fix = "Write profiler.window=[wait,warmup,active,repeat], for example [5,2,6,1]."
        raise InputError(what, code="invalid-window", fix=fix)

    @property
    def cycle(self) -> int:
        """Steps from one wait to the next."""
        return self.wait + self.warmup + self.active

    @property
    def steps(self) -> int:
        """Optimizer steps until everything is recorded."""
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
    """Raise an error with the arithmetic if the training ends before the window does.

    ``world_size`` processes share a batch; ``steps`` replaces the epochs if it is given.
    """
    batches = math.ceil(samples / batch_size)
    per_epoch = math.ceil(batches / accumulate)
    total = per_epoch * epochs if steps is None else min(per_epoch, 1) * steps
    if total < window.steps:
        arithmetic = _arithmetic(samples, batch_size, world_size, batches, accumulate, per_epoch)
        if steps is None:
            arithmetic += f" x {count_text(epochs, 'epoch')} = {total} < {window.steps}"
            enough = f"trainer.epochs={math.ceil(window.steps / max(per_epoch, 1))}"
        else:
            enough = f"mode_steps={window.steps}"
            if per_epoch:
                arithmetic = f"{count_text(steps, 'step')} in all < {window.steps}"
        what = f"the window {window} is never reached: {arithmetic}"
        fix = "An epoch has no step: use more samples or a smaller batch."
        if per_epoch:
            shorter = f"a profiler.window of at most {count_text(total, 'step')}"
            fix = f"Set {enough}, or {shorter}."
        raise InputError(what, code="window-not-reached", fix=fix, steps=total)


def _arithmetic(
    samples: int,
    batch_size: int,
    world_size: int,
    batches: int,
    accumulate: int,
    per_epoch: int,
) -> str:
    """Return how many steps an epoch has, such as ``88 samples / 8 per batch = 11 steps``."""
    over_ranks = f" (over {world_size} ranks)" if world_size > 1 else ""
    text = f"{count_text(samples, 'sample')} / {batch_size} per batch{over_ranks} = "
    if accumulate > 1:
        text += f"{count_text(batches, 'batch', 'batches')} / {accumulate} per step = "
    return text + count_text(per_epoch, "step")


class Profiler:
    """A profiler that is called at every optimizer step.

    ``notices`` explain what was not recorded; ``files`` are the files written.
    """

    name: str

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.files: list[Path] = []
        self._steps: Generator[None] | None = None

    def start(self, step: int = 0) -> None:
        """Begin just before a step, whose number appears in a trace as ``ProfilerStep#``."""
        if self._steps is None:
            self._steps = self._record(step)
            self.step()

    def step(self) -> None:
        """End an optimizer step, just after the timer's row was closed."""
        self._advance(next)

    def stop(self) -> None:
        """End the recording; further calls do nothing."""
        self._advance(lambda steps: steps.close())

    def _record(self, step: int) -> Generator[None]:
        """Record, yielding during each step, until it is closed."""
        raise NotImplementedError

    def _advance(self, act: Callable[[Generator[None]], None]) -> None:
        with suppress(StopIteration):
            try:
                if self._steps is not None:
                    act(self._steps)
            except _FAILURES as error:
                self.notices.append(f"{self.name} failed, and the training continued: {error}")


class Capture(Profiler):
    """torch's profiler in a window of optimizer steps.

    Traces are written to ``trace-rank{rank}-window{k}.json.gz``; ``options`` are those of
    `torch.profiler.profile`. An incomplete window is not written. After a restart, windows that all
    ranks have are not recorded again. The ``timer`` marks its rows in which the profiler was on. A
    trace says how many samples of this process a step of it has, if the timer knows.
    """

    name = "the capture"

    def __init__(
        self,
        window: Window,
        folder: Path,
        rank: int = 0,
        *,
        world_size: int = 1,
        timer: PhaseTimer,
        **options: Any,
    ) -> None:
        super().__init__()
        self.window = window
        self.folder = folder
        self.rank = rank
        self.timer = timer
        self._options = options
        self._ranks = range(world_size) if world_size > 1 else (rank,)

    def _record(self, step: int) -> Generator[None]:
        window = self.window
        number = 0
        done = 0
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
                samples: list[int] = []
                for place in range(recorded):
                    yield
                    done += 1
                    if place >= window.warmup and self.timer.last_samples is not None:
                        samples.append(self.timer.last_samples)
                    self.timer.close()
                    self.timer.note_profiler()
                    if place + 1 < recorded:
                        profiler.step()
                if samples:
                    per_step = sum(samples) / len(samples)
                    profiler.add_metadata_json(SAMPLES_PER_STEP, f"{per_step:g}")
                ended = profiler
                profiler = None
                ended.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                _write(ended, self._file(self.rank, number))
                self.files.append(self._file(self.rank, number))
                number += 1
        except GeneratorExit:
            begun = done % window.cycle - window.wait
            if profiler is not None:
                self.notices.append(
                    f"the training ended after {begun} of the {recorded} steps of window {number}, "
                    "so the window was not written",
                )
            elif not self.files:
                self.notices.append(
                    f"the training ended at step {done}, and the window begins after step "
                    f"{window.wait}, so nothing was recorded",
                )
        finally:
            if profiler is not None:
                with suppress(*_FAILURES):
                    profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _file(self, rank: int, number: int) -> Path:
        return self.folder / f"trace-rank{rank}-window{number}.json.gz"

    def _profiler(self, begin: int) -> torch.profiler.profile:
        """Start a profiler that warms up and then records, beginning at a step."""
        if torch.autograd.profiler._is_profiler_enabled:
            # torch would end the other recording together with this one, without an error.
            raise RuntimeError("another torch profiler is on")

        def action(step: int) -> ProfilerAction:
            # torch asks for step 0 before `step_num` is set.
            warm = max(step, begin) < begin + self.window.warmup
            return ProfilerAction.WARMUP if warm else ProfilerAction.RECORD

        # Each rank would write lines about the beginning and the end of its window to stderr.
        os.environ.setdefault("KINETO_LOG_LEVEL", KINETO_SILENT)
        profiler = torch.profiler.profile(schedule=action, **self._options)
        profiler.step_num = begin
        profiler.start()
        self.timer.note_profiler()
        return profiler


def _write(profiler: torch.profiler.profile, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    plain = file.with_name(f".{file.name}.plain.tmp")
    try:
        profiler.export_chrome_trace(str(plain))
        # torch does not report that it could not write everything.
        with plain.open("rb") as source, new_file(file) as packed:
            source.seek(max(plain.stat().st_size - 64, 0))
            if not source.read().rstrip().endswith(b"}"):
                raise OSError(f"torch did not write all of it; is {file.parent} full?")
            source.seek(0)
            with gzip.open(packed, "wb", compresslevel=5) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    finally:
        plain.unlink(missing_ok=True)


class HostProfiler(Profiler):
    """A profiler of Python functions (``cprofile``), ``lines`` of some functions, or ``memory``."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        rank: int = 0,
        functions: Sequence[Callable[..., Any]] = (),
    ) -> None:
        super().__init__()
        if kind == "lines":
            need("line_profiler", "profiler.kind=lines", "lines")
        self.name = f"the profiler '{kind}'"
        self._kind = kind
        self._functions = functions
        self._stem = folder / f"{kind}-rank{rank}"

    def _record(self, step: int) -> Generator[None]:
        return self._memory() if self._kind == "memory" else self._calls()

    def _write(self, ending: str, write: Callable[[Path], Any]) -> None:
        file = self._stem.with_suffix(ending)
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as temporary:
            write(temporary)
        self.files.append(file)

    def _write_text(self, text: str) -> None:
        self._write(".txt", lambda path: path.write_text(text, encoding="utf-8"))

    def _calls(self) -> Generator[None]:
        """Profile the Python functions of this thread (also as ``.prof``), or lines of some."""
        profile: Any = cProfile.Profile()
        text = io.StringIO()
        if self._kind == "lines":
            from line_profiler import LineProfiler

            profile = LineProfiler(*map(inspect.unwrap, self._functions))
        with profile, suppress(GeneratorExit):
            while True:
                yield
        if self._kind == "lines":
            profile.print_stats(stream=text, stripzeros=False)
        else:
            pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(MOST_LINES)
            self._write(".prof", profile.dump_stats)
        self._write_text(text.getvalue())

    def _memory(self) -> Generator[None]:
        """Profile memory after every step, and the lines that hold it at the end.

        Python's own memory, including NumPy's, is ``traced`` to the line that allocated it. torch's
        tensors appear only in the peak memory of the process (``rss``) and of the device. CUDA
        memory is not snapshotted because torch writes snapshots as pickle.
        """
        tracemalloc.start()
        text = ["Memory after each step, in MB", ""]
        text.append("".join(f"{x:>13}" for x in ("traced", "peak", "most rss", "device", "peak")))
        first: tracemalloc.Snapshot | None = None
        # macOS counts bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        try:
            while True:
                yield
                most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                sizes = [*tracemalloc.get_traced_memory(), most]
                if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                    sizes += [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
                    torch.cuda.reset_peak_memory_stats()
                text.append("".join(f"{size / 1e6:>13.1f}" for size in sizes))
                first = first or tracemalloc.take_snapshot()
                tracemalloc.reset_peak()
        finally:
            last = tracemalloc.take_snapshot()
            tracemalloc.stop()
            text += ["", "Lines with the most memory at the end: MB, change since the first step"]
            own = [tracemalloc.Filter(False, tracemalloc.__file__)]
            before = (first or last).filter_traces(own)
            lines = last.filter_traces(own).compare_to(before, "lineno")
            for line in sorted(lines, key=lambda line: -line.size)[:MOST_LINES]:
                held = "".join(f"{size / 1e6:>13.1f}" for size in (line.size, line.size_diff))
                text.append(f"{held} {line.traceback[0].filename}:{line.traceback[0].lineno}")
            self._write_text("\n".join(text) + "\n")
