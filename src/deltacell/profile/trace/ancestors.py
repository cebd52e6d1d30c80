"""Ancestors of events, found by doubling the distance, so that deep stacks take few rounds."""

from __future__ import annotations

import numpy as np

from deltacell.base.arrays import Bools, Indices, Ints
from deltacell.profile.trace.trace import NOTHING


def climb(climbs: Bools, parent: Indices) -> Indices:
    """Return the nearest of each event and its ancestors that does not climb, or the root."""
    place = np.where(climbs & (parent >= 0), parent, np.arange(len(parent), dtype=np.int32))
    # The distance doubles each time, so even a deep stack takes few rounds.
    while not np.array_equal(further := place[place], place):
        place = further
    return place


def count_above(counted: Bools, parent: Indices) -> Ints:
    """Return how many of each event's ancestors are counted, [events]."""
    is_root = parent < 0
    total = np.where(is_root, 0, counted[parent]).astype(np.int64)
    # The ancestor up to which `total` counts; a root stays, and what is above it counts 0.
    reached = np.where(is_root, np.arange(len(parent), dtype=np.int32), parent)
    while not np.array_equal(further := reached[reached], reached):
        total += total[reached]
        reached = further
    return total


def first_open(rows: Ints | Indices, times: Ints, end: Ints, parent: Indices) -> Indices:
    """Return the nearest of each row and its ancestors that ends after a time, or `NOTHING`.

    Ancestors must not end before what is in them. Each of ``log2(depth)`` rounds halves the
    distance that is left, so deep stacks take as long as shallow ones with as many events.
    """
    # The last entry stands for no event, and never ends.
    ends = np.append(end, np.iinfo(np.int64).max)
    none = np.int32(len(end))
    jump = np.append(np.where(parent >= 0, parent, none), none).astype(np.int32)
    jumps = []
    while (jump != none).any():
        jumps.append(jump)
        jump = jump[jump]
    place = np.where(rows >= 0, rows, none).astype(np.int32)
    for far in reversed(jumps):
        above = far[place]
        place = np.where(ends[above] <= times, above, place)
    has_ended = ends[place] <= times
    nearest = jumps[0] if jumps else np.full(len(ends), none)
    place = np.where(has_ended, nearest[place], place)
    return np.where(place == none, NOTHING, place).astype(np.int32)
