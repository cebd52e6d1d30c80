"""Profilers of the host: Python's functions, the lines of some functions, and memory.

They slow a training down, so compare their times with each other and not with another run's.
"""

from __future__ import annotations

import cProfile
import inspect
import io
import pstats
import resource
import sys
import tracemalloc
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from deltacell.errors import need
from deltacell.files import new_file

Function = Callable[..., Any]
MOST_LINES = 100  # functions or lines of code in a text


class HostProfiler:
    """A profiler of a kind (``cprofile``, ``lines`` of some functions, ``memory``).

    When it stops, it writes ``files`` into a folder. A failure of it is never the training's:
    ``notices`` say what was not recorded, and why.
    """

    def __init__(
        self, kind: str, folder: Path, rank: int = 0, functions: Sequence[Function] = ()
    ) -> None:
        if kind == "lines":
            need("line_profiler", "profiler.kind=lines", "lines")
        self.notices: list[str] = []
        self.files: list[Path] = []
        self._kind, self._functions = kind, functions
        self._stem = folder / f"{kind}-rank{rank}"
        self._profile: _Profile | None = None

    def start(self) -> None:
        if self._profile is None:
            self._profile = _KINDS[self._kind](self._write, self._functions)
            self._go_on(None)

    def step(self) -> None:
        self._go_on(True)

    def stop(self) -> None:
        """Stop and write what was seen; this can be called at any time and more than once."""
        self._go_on(False)

    def _go_on(self, is_step: bool | None) -> None:
        try:
            if self._profile is not None:
                self._profile.send(is_step)
        except StopIteration:
            pass
        except (OSError, RuntimeError, ValueError) as error:
            self.notices.append(f"the profiler '{self._kind}' failed: {error}")

    def _write(self, ending: str, write: Callable[[Path], Any]) -> None:
        file = self._stem.with_suffix(ending)
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as temporary:
            write(temporary)
        self.files.append(file)


_Write = Callable[[str, Callable[[Path], Any]], None]
_Profile = Generator[None, bool | None, None]
"""A profiler begins at once, is sent True after each step, and False at the end."""


def _cprofile(write: _Write, functions: Sequence[Function]) -> _Profile:
    """Profile every Python function of this thread, as text and as ``.prof`` for `pstats`."""
    profile, text = cProfile.Profile(), io.StringIO()
    profile.enable()
    while (yield):
        pass
    profile.disable()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(MOST_LINES)
    write(".txt", lambda path: path.write_text(text.getvalue(), encoding="utf-8"))
    write(".prof", profile.dump_stats)


def _lines(write: _Write, functions: Sequence[Function]) -> _Profile:
    from line_profiler import LineProfiler

    profile, text = LineProfiler(*map(inspect.unwrap, functions)), io.StringIO()
    profile.enable_by_count()
    while (yield):
        pass
    profile.disable_by_count()
    profile.print_stats(stream=text, stripzeros=False)
    write(".txt", lambda path: path.write_text(text.getvalue(), encoding="utf-8"))


def _memory(write: _Write, functions: Sequence[Function]) -> _Profile:
    """Profile memory after every step, and the lines that hold it at the end.

    Python's own memory, including numpy's, is known by the line that asked for it (``traced``, and
    its peak in the step). torch's tensors are only in the memory of the process (``rss``, at most
    so far) and, on CUDA, of the device. CUDA memory is not snapshotted because torch writes
    snapshots as pickle.
    """
    tracemalloc.start()
    text = ["Memory after each step, in MB", ""]
    text.append("".join(f"{x:>13}" for x in ("traced", "peak", "most rss", "device", "peak")))
    first: tracemalloc.Snapshot | None = None
    # Bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    try:
        while (yield):
            most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            sizes = [*tracemalloc.get_traced_memory(), most]
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                sizes += [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
                torch.cuda.reset_peak_memory_stats()
            text.append("".join(f"{size / 1e6:>13.1f}" for size in sizes))
            first = first or tracemalloc.take_snapshot()
            tracemalloc.reset_peak()
        last = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    text += ["", "Lines that hold most at the end: MB, MB more than after the first step", ""]
    own = [tracemalloc.Filter(False, tracemalloc.__file__)]
    lines = last.filter_traces(own).compare_to((first or last).filter_traces(own), "lineno")
    for line in sorted(lines, key=lambda line: -line.size)[:MOST_LINES]:
        held = "".join(f"{size / 1e6:>13.1f}" for size in (line.size, line.size_diff))
        text.append(f"{held} {line.traceback[0].filename}:{line.traceback[0].lineno}")
    write(".txt", lambda path: path.write_text("\n".join(text) + "\n", encoding="utf-8"))


_KINDS = {"cprofile": _cprofile, "lines": _lines, "memory": _memory}
