"""Events written as a beginning and an end, into events with a duration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.events import Arguments


@dataclass(frozen=True)
class Halves:
    """Beginnings and ends.

    Parameters
    ----------
    ends
        Which are ends.
    part
        Their columns; the duration is not known.
    args
        Of each.
    """

    ends: npt.NDArray[np.bool_]
    part: dict[str, npt.NDArray[Any]]
    args: Sequence[Arguments]


def pair(
    halves: Sequence[Halves], nameless: int
) -> tuple[dict[str, npt.NDArray[Any]], Sequence[Arguments], int]:
    """Return events from their beginnings and ends, and how many found no other half.

    On each thread, by time, an end belongs to the last beginning of its name that is still open;
    one without a name to the last beginning of all.

    Parameters
    ----------
    halves
        In the order of the file.
    nameless
        The code of the empty name.
    """
    ends = np.concatenate([h.ends for h in halves])
    columns = {name: np.concatenate([h.part[name] for h in halves]) for name in halves[0].part}
    args = [a for h in halves for a in h.args]
    order = np.lexsort((columns["begin"], columns["thread"]))
    names, times = columns["name"].tolist(), columns["begin"].tolist()
    threads, is_end = columns["thread"].tolist(), ends.tolist()
    beginnings: list[int] = []
    durations: list[int] = []
    alone = 0
    still_open: list[int] = []
    thread = None
    for row in order.tolist():
        if threads[row] != thread:
            alone += len(still_open)
            still_open = []
            thread = threads[row]
        if not is_end[row]:
            still_open.append(row)
            continue
        at = len(still_open) - 1
        while at >= 0 and names[row] not in (nameless, names[still_open[at]]):
            at -= 1
        if at < 0:
            alone += 1
            continue
        # What was begun inside it and is still open has lost its end.
        alone += len(still_open) - 1 - at
        begun = still_open[at]
        del still_open[at:]
        beginnings.append(begun)
        durations.append(times[row] - times[begun])
    alone += len(still_open)
    rows = np.array(beginnings, dtype=np.int64)
    part = {name: column[rows] for name, column in columns.items()}
    part["duration"] = np.array(durations, dtype=np.int64)
    return part, [args[row] for row in beginnings], alone
