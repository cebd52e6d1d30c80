"""Jumps of the clock within a trace, such as a correction by the network while it was recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deltacell.base.arrays import Ints

SHORTEST_JUMP = 3600 * 10**9  # nanoseconds; a shorter pause may be a step that is slow
LONGER_THAN_THE_REST = 100  # a jump is longer than this many times all other time of the trace
#: With fewer other pauses per long one, long pauses are usual in the trace: a few events, or those
#: of a program that does something every hour. A single step of a program has hundreds.
FEWEST_PAUSES = 10
LEFT = 1_000  # nanoseconds that stay, so that events keep their order


@dataclass(frozen=True, eq=False)
class Corrected:
    """The times of a trace without the time in which the clock jumped."""

    begin: Ints
    duration: Ints
    removed: tuple[int, ...]  # nanoseconds of each jump


def without_jumps(begin: Ints, duration: Ints) -> Corrected:
    """Return the times with every jump cut out; events that last through it become shorter.

    A jump is a pause in which no event of any thread begins or ends, which takes an hour or more
    and many times longer than everything else in the trace. Where such pauses are usual, none
    is a jump. A program that hangs for hours looks the same, so the caller says what was removed.
    """
    end = begin + duration
    is_short = len(begin) == 0 or int(end.max()) - int(begin.min()) < SHORTEST_JUMP
    if is_short:
        # Nearly all traces are, and sorting the times would take as long as reading them.
        return Corrected(begin, duration, ())
    boundaries = np.unique(np.concatenate([begin, end]))
    pauses = np.diff(boundaries)
    is_long = pauses >= SHORTEST_JUMP
    if np.count_nonzero(~is_long) < FEWEST_PAUSES * np.count_nonzero(is_long):
        return Corrected(begin, duration, ())
    rest = int(pauses[~is_long].sum())
    jumps = np.flatnonzero(is_long & (pauses > LONGER_THAN_THE_REST * rest))
    if not len(jumps):
        return Corrected(begin, duration, ())
    removed = pauses[jumps] - LEFT
    before = np.append(0, np.cumsum(removed))
    ends_of_jumps = boundaries[jumps + 1]

    def moved(times: Ints) -> Ints:
        earlier: Ints = times - before[np.searchsorted(ends_of_jumps, times, side="right")]
        return earlier

    new_begin = moved(begin)
    new_duration = moved(begin + duration) - new_begin
    return Corrected(new_begin, new_duration, tuple(removed.tolist()))
