"""The phases of a predictor that is fitted in one call, which has no training steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import new_file

OTHER = "other"
FIT_COLUMNS = pl.Schema({"attempt": pl.Int64(), "phase": pl.String(), "seconds": pl.Float64()})


class FitTimer:
    """The wall time of a fit by phase.

    At every moment exactly one phase is current, so the phases add up to the time since the timer
    was made. Phases may be nested: the outer one is current again after the inner one. The
    ``clock`` is monotonic and returns nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._nanoseconds: dict[str, int] = {}
        self._current = OTHER
        self._since = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within a block towards a phase."""
        before = self._current
        self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase until now, in the order of their beginning."""
        self._switch(self._current)
        return {phase: time / 1e9 for phase, time in self._nanoseconds.items()}

    def _switch(self, phase: str) -> None:
        now = self._clock()
        spent = self._nanoseconds.get(self._current, 0) + now - self._since
        self._nanoseconds[self._current] = spent
        self._since = now
        self._current = phase


def write_fit_phases(
    folder: str | os.PathLike[str],
    attempt: int,
    seconds: Mapping[str, float],
) -> None:
    """Write the phases of an attempt next to where a network's run has those of its steps."""
    folder = Path(folder)
    rows = [(attempt, phase, time) for phase, time in seconds.items()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(folder / f"fit-attempt{attempt}.parquet") as temporary:
            pl.DataFrame(rows, FIT_COLUMNS, orient="row").write_parquet(temporary)
    except OSError as error:
        what = f"the phases could not be written: {error.strerror or error}"
        fix = "Free some space; no incomplete file was left."
        raise StoreError(what, code="not-written", where=folder, fix=fix) from error


def read_fit_phases(folder: str | os.PathLike[str]) -> pl.DataFrame:
    """Return the phases of all attempts, with `FIT_COLUMNS`; no row for a run with steps."""
    parts = [pl.DataFrame(schema=FIT_COLUMNS)]
    for file in sorted(Path(folder).glob("fit-attempt*.parquet")):
        try:
            parts.append(pl.read_parquet(file).select(list(FIT_COLUMNS)).cast(FIT_COLUMNS))
        except (pl.exceptions.PolarsError, OSError) as error:
            what = f"not a valid file of phases: {str(error).splitlines()[0]}"
            raise InputError(what, code="damaged-phases", where=file) from error
    return pl.concat(parts)
