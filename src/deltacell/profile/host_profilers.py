"""Profilers of the host: Python's functions, the lines of some functions, and memory.

They slow a training down, so compare their times with each other and not with another run's.
"""

from __future__ import annotations

import cProfile
import inspect
import io
import linecache
import os
import pstats
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch

from deltacell.errors import InputError, MissingExtraError, did_you_mean

Function = Callable[..., Any] | torch.nn.Module


class HostProfiler:
    """A profiler that writes ``files`` into a folder, text for people and Parquet for programs.

    A failure of it is never the training's: ``notices`` say what was not recorded, and why.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int = 0) -> None:
        self.folder = Path(folder)
        self.rank = rank
        self.notices: list[str] = []
        self.files: list[Path] = []
        self._running = False

    def start(self) -> None:
        """Begin, just before the first step."""
        if not self._running:
            self._running = self._try(self._begin, "did not start")

    def step(self) -> None:
        """Say that a step is over."""
        if self._running:
            self._try(self._after_step, "failed")

    def stop(self) -> None:
        """Stop and write what was seen; this can be called at any time and more than once."""
        if self._running:
            self._running = False
            self._try(self._end, "did not end well")

    def __enter__(self) -> HostProfiler:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _begin(self) -> None:
        raise NotImplementedError

    def _after_step(self) -> None:
        pass

    def _end(self) -> None:
        raise NotImplementedError

    def _try(self, act: Callable[[], None], how: str) -> bool:
        try:
            act()
        except (OSError, RuntimeError, ValueError, pl.exceptions.PolarsError) as error:
            self.notices.append(f"the profiler {type(self).__name__} {how}: {error}")
            return False
        return True

    def _write(self, stem: str, ending: str, content: str | pl.DataFrame) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{stem}-rank{self.rank}.{ending}"
        temporary = file.with_name(f".{file.name}.tmp")
        try:
            if isinstance(content, str):
                temporary.write_text(content, encoding="utf-8")
            else:
                content.write_parquet(temporary)
            temporary.rename(file)
        finally:
            temporary.unlink(missing_ok=True)
        self.files.append(file)


class CProfile(HostProfiler):
    """Calls and times of every Python function of this thread, as ``cprofile-rank{rank}``."""

    def __init__(self, folder: str | os.PathLike[str], rank: int = 0) -> None:
        super().__init__(folder, rank)
        self._profile = cProfile.Profile()

    def _begin(self) -> None:
        self._profile.enable()

    def _end(self) -> None:
        self._profile.disable()
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).sort_stats("tottime").print_stats(_TEXT_LINES)
        self._write("cprofile", "pstats.txt", text.getvalue())
        calls = []
        for x in self._profile.getstats():
            place: tuple[str, int, str] = ("", 0, str(x.code))
            if not isinstance(x.code, str):
                place = (x.code.co_filename, x.code.co_firstlineno, x.code.co_name)
            count = (x.callcount, x.callcount - x.reccallcount)
            calls.append((*place, *count, x.inlinetime, x.totaltime))
        schema = _schema("file line function calls primitive_calls self_s total_s")
        table = pl.DataFrame(calls, schema=schema, orient="row")
        self._write("cprofile", "parquet", table.sort("self_s", descending=True))


class Lines(HostProfiler):
    """Times of every line of some functions, as ``lines-rank{rank}``; needs the extra ``lines``.

    Of a module of torch, its ``forward`` is profiled.
    """

    def __init__(
        self, folder: str | os.PathLike[str], rank: int = 0, functions: Sequence[Function] = ()
    ) -> None:
        super().__init__(folder, rank)
        try:
            from line_profiler import LineProfiler
        except ImportError:
            raise MissingExtraError("profiler.kind=lines", "lines") from None
        if not functions:
            raise InputError("the line profiler needs at least one function", code="no-function")
        self._profile = LineProfiler()
        for function in functions:
            if isinstance(function, torch.nn.Module):
                function = type(function).forward
            plain = inspect.unwrap(getattr(function, "__func__", function))
            if not inspect.isfunction(plain):
                what = f"the line profiler cannot profile {function!r}, which has no Python lines"
                raise InputError(what, code="no-lines")
            self._profile.add_function(plain)

    def _begin(self) -> None:
        self._profile.enable_by_count()

    def _end(self) -> None:
        self._profile.disable_by_count()
        stats = self._profile.get_stats()
        text = io.StringIO()
        self._profile.print_stats(stream=text, stripzeros=False)
        self._write("lines", "txt", text.getvalue())
        lines = [
            (file, name, line, linecache.getline(file, line).rstrip("\n"), hits, time * stats.unit)
            for (file, _, name), timings in sorted(stats.timings.items())
            for line, hits, time in timings
        ]
        schema = _schema("file function line text hits seconds")
        self._write("lines", "parquet", pl.DataFrame(lines, schema=schema, orient="row"))


class Memory(HostProfiler):
    """Memory after every step, and the lines that hold it at the end.

    Python's own memory, including numpy's, is known by the line that asked for it. torch's tensors
    are only in the memory of the process (``rss_bytes``) and, on CUDA, of the device. CUDA memory
    is not snapshotted because torch writes snapshots as pickle.

    Peaks are of each step, except ``peak_rss_bytes``; ``grown_bytes`` is since the first step.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int = 0) -> None:
        super().__init__(folder, rank)
        self._was_tracing = False
        self._steps: list[tuple[int | None, ...]] = []
        self._first: dict[tuple[str, int], int] = {}

    def _begin(self) -> None:
        self._was_tracing = tracemalloc.is_tracing()
        if not self._was_tracing:
            tracemalloc.start()
        self._reset_peaks()

    def _after_step(self) -> None:
        traced = tracemalloc.get_traced_memory()
        device: tuple[int | None, int | None] = (None, None)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            device = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
        self._steps.append((len(self._steps), *traced, *_rss(), *device))
        if len(self._steps) == 1:
            self._first = {(file, line): size for file, line, size, _ in _lines_held()}
        self._reset_peaks()

    def _end(self) -> None:
        try:
            held = _lines_held()
        finally:
            if not self._was_tracing:
                tracemalloc.stop()
        grown = [
            (file, line, size, blocks, size - self._first.get((file, line), 0))
            for file, line, size, blocks in held
        ]
        schema = _schema("file line bytes blocks grown_bytes")
        lines = pl.DataFrame(grown, schema=schema, orient="row").sort("bytes", descending=True)
        steps = pl.DataFrame(self._steps, schema=_STEPS, orient="row")
        self._write("memory_steps", "parquet", steps)
        self._write("memory_lines", "parquet", lines)
        self._write("memory", "txt", _memory_text(steps, lines))

    def _reset_peaks(self) -> None:
        tracemalloc.reset_peak()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()


KINDS = ("cprofile", "lines", "memory")


def host_profiler(
    kind: str, folder: str | os.PathLike[str], rank: int = 0, functions: Sequence[Function] = ()
) -> HostProfiler:
    """Return the profiler of a kind: ``cprofile``, ``lines`` of some functions, or ``memory``."""
    if kind == "lines":
        return Lines(folder, rank, functions)
    if kind not in KINDS:
        near = did_you_mean(kind, KINDS)
        what = f"profiler.kind is '{kind}'; expected one of {', '.join(KINDS)}{near}"
        raise InputError(what, code="unknown-profiler")
    return CProfile(folder, rank) if kind == "cprofile" else Memory(folder, rank)


_TEXT_LINES = 100
_TEXTS = ("file", "function", "text")
_FLOATS = ("self_s", "total_s", "seconds")


def _schema(names: str) -> dict[str, Any]:
    kinds = {**dict.fromkeys(_TEXTS, pl.String), **dict.fromkeys(_FLOATS, pl.Float64)}
    return {name: kinds.get(name, pl.Int64) for name in names.split()}


_STEPS = _schema(
    "step traced_bytes traced_peak_bytes rss_bytes peak_rss_bytes device_bytes device_peak_bytes"
)


def _lines_held() -> list[tuple[str, int, int, int]]:
    own = tracemalloc.Filter(False, tracemalloc.__file__)
    statistics = tracemalloc.take_snapshot().filter_traces([own]).statistics("lineno")
    return [(s.traceback[0].filename, s.traceback[0].lineno, s.size, s.count) for s in statistics]


def _rss() -> tuple[int | None, int | None]:
    """Return the memory that the process holds and has held at most."""
    if sys.platform == "win32":
        return None, None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = peak if sys.platform == "darwin" else peak * 1024
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None, peak
    return pages * os.sysconf("SC_PAGE_SIZE"), peak


def _memory_text(steps: pl.DataFrame, lines: pl.DataFrame) -> str:
    def mb(size: int | None) -> str:
        return f"{'-':>12}" if size is None else f"{size / 1e6:>12.1f}"

    text = ["Memory after each step, in MB", ""]
    text.append(" ".join(f"{name.removesuffix('_bytes'):>12}" for name in _STEPS))
    text += [f"{step:>12} " + " ".join(map(mb, sizes)) for step, *sizes in steps.iter_rows()]
    text += ["", "Lines that hold most at the end: MB, MB more than after the first step", ""]
    for file, line, size, _, grown in lines.head(_TEXT_LINES).iter_rows():
        text.append(f"{mb(size)} {mb(grown)} {file}:{line}")
    return "\n".join(text) + "\n"
