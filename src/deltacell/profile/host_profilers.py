"""Profilers of the host: Python's functions, the lines of some functions, and memory.

Each is started before the first step, told of every step, and stopped after the last, and then
writes a text for people and Parquet for programs. They slow a training down, so their times are
to be compared with each other and not with those of another run.
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import polars as pl
import torch

from deltacell.errors import InputError, MissingExtraError, did_you_mean

KINDS = ("cprofile", "lines", "memory")


class HostProfiler(ABC):
    """A profiler that writes ``files`` into a folder, named by rank.

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
            self._running = self._do(self._begin, "did not start")

    def step(self) -> None:
        """Say that a step is over."""
        if self._running:
            self._do(self._after_step, "failed")

    def stop(self) -> None:
        """End it and write what it saw. It can be called at any time and more than once."""
        if self._running:
            self._running = False
            self._do(self._end, "did not end well")

    def __enter__(self) -> HostProfiler:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @abstractmethod
    def _begin(self) -> None:
        """Turn the profiler on."""

    @abstractmethod
    def _end(self) -> None:
        """Turn the profiler off, and write."""

    def _after_step(self) -> None:  # noqa: B027 - most need not know of steps
        """Take note of a step."""

    def _do(self, act: Callable[[], None], how: str) -> bool:
        try:
            act()
        except (OSError, RuntimeError, ValueError, pl.exceptions.PolarsError) as error:
            self.notices.append(f"the profiler {type(self).__name__} {how}: {error}")
            return False
        return True

    def _write_text(self, name: str, text: str) -> None:
        self._write(name, lambda file: file.write_text(text, encoding="utf-8"))

    def _write_table(self, name: str, table: pl.DataFrame) -> None:
        self._write(name, lambda file: table.write_parquet(file))

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        stem, ending = name.split(".", 1)
        file = self.folder / f"{stem}-rank{self.rank}.{ending}"
        temporary = file.with_name(f".{file.name}.tmp")
        try:
            write(temporary)
            temporary.rename(file)
        finally:
            temporary.unlink(missing_ok=True)
        self.files.append(file)


class CProfile(HostProfiler):
    """Calls and times of every Python function of this thread.

    It writes ``cprofile-rank{rank}.pstats.txt``, by the time in the function itself, and
    ``cprofile-rank{rank}.parquet`` with the columns file, line, function, calls,
    primitive_calls, self_s and total_s.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int = 0) -> None:
        super().__init__(folder, rank)
        self._profile = cProfile.Profile()

    def _begin(self) -> None:
        self._profile.enable()

    def _end(self) -> None:
        self._profile.disable()
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).sort_stats("tottime").print_stats(_TEXT_LINES)
        self._write_text("cprofile.pstats.txt", text.getvalue())
        calls = [
            (*_place(x.code), x.callcount, x.callcount - x.reccallcount, x.inlinetime, x.totaltime)
            for x in self._profile.getstats()
        ]
        table = pl.DataFrame(calls, schema=_CALLS, orient="row")
        self._write_table("cprofile.parquet", table.sort("self_s", descending=True))


class Lines(HostProfiler):
    """Times of every line of some functions; needs the extra ``lines``.

    It writes ``lines-rank{rank}.txt`` and ``lines-rank{rank}.parquet`` with the columns file,
    function, line, text, hits and seconds.

    ``functions`` are the functions or methods to look into; of a module of torch, its ``forward``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int = 0,
        functions: Sequence[Callable[..., Any] | torch.nn.Module] = (),
    ) -> None:
        super().__init__(folder, rank)
        try:
            from line_profiler import LineProfiler
        except ImportError:
            raise MissingExtraError("profiler.kind=lines", "lines") from None
        if not functions:
            raise InputError("the profiler of lines was given no function to look into")
        self._profile = LineProfiler()
        for function in functions:
            self._profile.add_function(_plain_function(function))

    def _begin(self) -> None:
        self._profile.enable_by_count()

    def _end(self) -> None:
        self._profile.disable_by_count()
        stats = self._profile.get_stats()
        text = io.StringIO()
        self._profile.print_stats(stream=text, stripzeros=False)
        self._write_text("lines.txt", text.getvalue())
        lines = [
            (file, name, line, linecache.getline(file, line).rstrip("\n"), hits, time * stats.unit)
            for (file, _, name), timings in sorted(stats.timings.items())
            for line, hits, time in timings
        ]
        self._write_table("lines.parquet", pl.DataFrame(lines, schema=_LINES, orient="row"))


class Memory(HostProfiler):
    """Memory after every step, and the lines that hold it at the end.

    Python's own memory, numpy's included, is known by the line that asked for it. The memory of
    torch's tensors is not; it is in what the process holds (``rss_bytes``) and, on CUDA, in the
    device's columns. No snapshot of CUDA's memory is taken, because torch writes those as pickle.

    It writes ``memory-rank{rank}.txt``, and ``memory_steps-rank{rank}.parquet`` with the columns
    step, traced_bytes, traced_peak_bytes (of that step), rss_bytes, peak_rss_bytes (of the process
    until then), device_bytes and device_peak_bytes (of that step), and
    ``memory_lines-rank{rank}.parquet`` with file, line, bytes, blocks and grown_bytes (since the
    end of the first step).
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
        self._steps.append((len(self._steps), *traced, _rss(), _peak_rss(), *_on_device()))
        if len(self._steps) == 1:
            self._first = {place: size for place, size, _ in _lines_held()}
        self._reset_peaks()

    def _end(self) -> None:
        try:
            held = _lines_held()
        finally:
            if not self._was_tracing:
                tracemalloc.stop()
        first = self._first
        lines = pl.DataFrame(
            [
                (*place, size, blocks, size - first[place] if place in first else size)
                for place, size, blocks in held
            ],
            schema=_HELD,
            orient="row",
        ).sort("bytes", descending=True)
        steps = pl.DataFrame(self._steps, schema=_STEPS, orient="row")
        self._write_table("memory_steps.parquet", steps)
        self._write_table("memory_lines.parquet", lines)
        self._write_text("memory.txt", _memory_text(steps, lines))

    def _reset_peaks(self) -> None:
        tracemalloc.reset_peak()
        if _uses_cuda():
            torch.cuda.reset_peak_memory_stats()


def host_profiler(
    kind: str,
    folder: str | os.PathLike[str],
    rank: int = 0,
    functions: Sequence[Callable[..., Any] | torch.nn.Module] = (),
) -> HostProfiler:
    """Return the profiler of a kind: ``cprofile``, ``lines`` of some functions, or ``memory``."""
    if kind == "lines":
        return Lines(folder, rank, functions)
    if kind not in KINDS:
        raise InputError(
            f"profiler.kind is '{kind}', and one of {', '.join(KINDS)} was expected"
            f"{did_you_mean(kind, KINDS)}"
        )
    return CProfile(folder, rank) if kind == "cprofile" else Memory(folder, rank)


_TEXT_LINES = 100
_CALLS = {
    **{"file": pl.String, "line": pl.Int64, "function": pl.String},
    **dict.fromkeys(("calls", "primitive_calls"), pl.Int64),
    **dict.fromkeys(("self_s", "total_s"), pl.Float64),
}
_LINES = {
    **{"file": pl.String, "function": pl.String, "line": pl.Int64},
    **{"text": pl.String, "hits": pl.Int64, "seconds": pl.Float64},
}
_STEPS = dict.fromkeys(
    (
        *("step", "traced_bytes", "traced_peak_bytes", "rss_bytes"),
        *("peak_rss_bytes", "device_bytes", "device_peak_bytes"),
    ),
    pl.Int64,
)
_HELD = {"file": pl.String, **dict.fromkeys(("line", "bytes", "blocks", "grown_bytes"), pl.Int64)}


def _place(code: CodeType | str) -> tuple[str, int, str]:
    if isinstance(code, str):
        return "", 0, code
    return code.co_filename, code.co_firstlineno, code.co_name


def _plain_function(function: Callable[..., Any] | torch.nn.Module) -> Callable[..., Any]:
    if isinstance(function, torch.nn.Module):
        function = type(function).forward
    plain: Callable[..., Any] = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(plain):
        raise InputError(f"the profiler of lines cannot look into {function!r}, which has no lines")
    return plain


def _lines_held() -> list[tuple[tuple[str, int], int, int]]:
    own = tracemalloc.Filter(False, tracemalloc.__file__)
    statistics = tracemalloc.take_snapshot().filter_traces([own]).statistics("lineno")
    return [((s.traceback[0].filename, s.traceback[0].lineno), s.size, s.count) for s in statistics]


def _rss() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _peak_rss() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _uses_cuda() -> bool:
    initialised: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return initialised


def _on_device() -> tuple[int | None, int | None]:
    if not _uses_cuda():
        return None, None
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def _memory_text(steps: pl.DataFrame, lines: pl.DataFrame) -> str:
    def mb(size: int | None) -> str:
        return "-" if size is None else f"{size / 1e6:.1f}"

    text = ["Memory after each step, in MB", ""]
    text.append(" ".join(f"{name.removesuffix('_bytes'):>12}" for name in _STEPS))
    for step, *sizes in steps.iter_rows():
        text.append(f"{step:>12} " + " ".join(f"{mb(size):>12}" for size in sizes))
    text += ["", "Lines that hold most at the end: MB, MB more than after the first step", ""]
    for file, line, size, _, grown in lines.head(_TEXT_LINES).iter_rows():
        text.append(f"{mb(size):>12} {mb(grown):>12} {file}:{line}")
    return "\n".join(text) + "\n"
