"""Read a log of any known format."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path

from deltacell.base.errors import InputError
from deltacell.profile.logs.bar_rates import BarReader
from deltacell.profile.logs.bars import bar_lines
from deltacell.profile.logs.csv_log import columns_of, read_csv_log
from deltacell.profile.logs.lightning_profile import LightningProfileReader
from deltacell.profile.logs.lines import LogLine, read_lines
from deltacell.profile.logs.readings import Log
from deltacell.profile.logs.torch_table import TorchTableReader

# Not val_batch_size, per_device_batch_size and the like, which are other sizes.
_BATCH = re.compile(r"(?<![\w.-])batch_size[\"']?\s{0,20}[:=]\s{0,20}(\d{1,9})\b(?![.\w])")
# Lightning: All distributed processes registered. Starting with 4 processes
#            Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4
# and world_size=4 in a config or an environment.
_RANKS = re.compile(
    r"processes registered\. Starting with (?P<started>\d{1,6}) processes"
    r"|GLOBAL_RANK: \d{1,6}, MEMBER: \d{1,6}/(?P<members>\d{1,6})\b"
    r"|(?<![\w.-])world_size[\"']?\s{0,20}[:=]\s{0,20}(?P<world>\d{1,6})\b(?![.\w])",
    re.IGNORECASE,
)
_OF_RANKS = ("processes registered", "MEMBER: ", "world_size", "WORLD_SIZE")


def read_log(path: str | os.PathLike[str]) -> Log:
    """Read the times of steps and epochs from a log.

    Known are progress bars of tqdm, Lightning and rich, the text of Lightning's profilers, tables
    of torch.profiler, and CSV files with columns of steps and times. Memory is bounded.
    """
    path = Path(path)
    lines = read_lines(path)
    first = next(lines, None)
    columns = None if first is None else columns_of(first.text.removeprefix("\ufeff"))
    if columns is not None:
        log = read_csv_log(path, columns, lines)
    else:
        log = _read_text(path, lines if first is None else itertools.chain([first], lines))
    if not log.readings:
        raise InputError(
            "no times of training steps or epochs were found in this log",
            code="no-readings-in-log",
            where=path,
            fix="Expected progress bars (tqdm, Lightning, rich), the text of a Lightning profiler,"
            " a table of torch.profiler, or a CSV file with columns of steps and times.",
        )
    return log


def _read_text(path: Path, lines: Iterable[LogLine]) -> Log:
    bars = BarReader()
    profile = LightningProfileReader()
    table = TorchTableReader()
    batches: set[int] = set()
    ranks: set[int] = set()
    n_lines = 0
    n_long_lines = 0
    for line in lines:
        n_lines = line.number
        n_long_lines += line.is_cut
        for state in bar_lines(line.number, line.text):
            bars.add(state)
        profile.add(line.number, line.text)
        table.add(line.number, line.text)
        if "batch_size" in line.text:
            _add_numbers(batches, _BATCH, line.text)
        if any(words in line.text for words in _OF_RANKS):
            _add_numbers(ranks, _RANKS, line.text)
    return Log(
        path,
        (*bars.readings(), *profile.readings(), *table.readings()),
        batch=_only(batches),
        ranks=_only(ranks),
        steps_per_epoch=bars.steps_per_epoch(),
        n_lines=n_lines,
        n_long_lines=n_long_lines,
    )


def _add_numbers(numbers: set[int], pattern: re.Pattern[str], text: str) -> None:
    """Add what a line says; two different numbers are enough to know that it is not clear."""
    for match in pattern.finditer(text):
        if len(numbers) < 2:
            numbers.add(int(match[match.lastindex or 1]))


def _only(numbers: set[int]) -> int | None:
    """Return the number that a log says, if it says only one."""
    number = next(iter(numbers), 0)
    return number if len(numbers) == 1 and number > 0 else None
