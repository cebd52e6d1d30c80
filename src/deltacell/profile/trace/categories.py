"""Categories: what a moment of a training step was for, by the names of events."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.self_time import Nesting, climb
from deltacell.profile.trace.trace import NAMES, NOTHING, Kind, Trace

Categories = npt.NDArray[np.int8]


class Category(IntEnum):
    """What time is spent on; every moment of a step has one category."""

    data_loading, transfer, preparation, forward, loss, backward = range(6)
    communication, optimizer, logging, validation, checkpoint, other = range(6, 12)

    @property
    def title(self) -> str:
        return _TITLES.get(self.name, self.name)


_TITLES = {
    "data_loading": "data loading",
    "transfer": "transfer to device",
    "preparation": "graph preparation",
    "communication": "gradient communication",
    "logging": "logging and callbacks",
    "checkpoint": "checkpoints and figures",
}
CATEGORY_OF_PHASE = {
    "data_wait" if one is Category.data_loading else one.name: one for one in Category
}
"""The category of each phase of `deltacell.profile.phase_rows.PHASES`."""


def classify(name: str, kind: Kind) -> Category | None:
    if kind not in _RULES:
        return None
    if len(name) > _LONG:
        # Names are untrusted, and the telling part is at an end.
        name = name[: _LONG // 2] + name[-_LONG // 2 :]
    if name.startswith("phase.") and kind is not Kind.python:
        return CATEGORY_OF_PHASE.get(name[6:])
    return next((category for category, rule in _RULES[kind] if rule.search(name)), None)


def own_categories(trace: Trace) -> Categories:
    # There are many times fewer names than events, so these fit into int32.
    pairs = trace.name * np.int32(len(Kind)) + trace.kind
    found = np.full(len(trace.names) * len(Kind), NOTHING, dtype=np.int8)
    for pair in np.flatnonzero(np.bincount(pairs)).tolist():
        category = classify(trace.names[pair // len(Kind)], Kind(pair % len(Kind)))
        found[pair] = NOTHING if category is None else category
    own: Categories = found[pairs]
    return own


def categories(trace: Trace, nesting: Nesting, own: Categories) -> Categories:
    """Return the category of the nearest classified ancestor of each event, itself included.

    Calls that send a batch to the device are a transfer where no ancestor is classified.
    """
    found = nearest(own, nesting)
    to_device = trace.named(lambda name: "HtoD" in name or "HostToDevice" in name)
    copies = trace.correlation[to_device & (trace.kind == Kind.copy)]
    rows = np.flatnonzero((trace.kind == Kind.runtime) & (found == NOTHING))
    rows = rows[np.isin(trace.correlation[rows], copies[copies >= 0])]
    moves, own = trace.named(_MOVES.__contains__), own.copy()
    while len(rows):
        own[rows] = Category.transfer
        above = nesting.parent[rows]
        rows = above[(above >= 0) & moves[above]].astype(np.int64)
    return nearest(own, nesting)


def nearest(own: Categories, nesting: Nesting) -> Categories:
    """Return the category of each event, or of its nearest ancestor that has one."""
    return own[climb(own == NOTHING, nesting.parent)]


_LONG = 1000
_MOVES = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::pin_memory"}
_PATTERNS = {
    of: [(Category[category], re.compile(pattern)) for category, pattern in rules.items()]
    for of, rules in NAMES["categories"].items()
}
_RULES = {
    Kind.annotation: _PATTERNS["both"] + _PATTERNS["annotation"],
    Kind.operator: _PATTERNS["both"] + _PATTERNS["operator"],
    Kind.python: _PATTERNS["python"],
}
# Whether a range is the wait for the next batch; whether a name is that of a collective.
is_loader = dict(_PATTERNS["both"])[Category.data_loading].search
is_collective = dict(_PATTERNS["both"])[Category.communication].search
