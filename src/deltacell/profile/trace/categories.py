"""The categories of events, by their names and by those of what encloses them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.ancestors import climb
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.trace import NAMES, NOTHING, Kind, Trace

Categories = npt.NDArray[np.int8]


class Category(IntEnum):
    """What time is spent on; every moment of a step has exactly one category."""

    data_loading, transfer, preparation, forward, loss, backward = range(6)
    communication, optimizer, logging, validation, checkpoint, other = range(6, 12)

    @property
    def title(self) -> str:
        """The name of the category in tables and sentences."""
        return _TITLES.get(self.name, self.name)


_TITLES = {
    "data_loading": "data loading",
    "transfer": "transfer to device",
    "preparation": "graph preparation",
    "communication": "gradient communication",
    "logging": "logging and callbacks",
    "checkpoint": "checkpoints and figures",
}


# The category of each phase of `deltacell.profile.phase_rows.PHASES`.
_OTHER_PHASES = {category.name: category for category in list(Category)[1:]}

CATEGORY_OF_PHASE = {"data_wait": Category.data_loading, **_OTHER_PHASES}


def classify(name: str, kind: Kind) -> Category | None:
    """Return the category of an event by its name; None if no pattern matches."""
    if kind not in _RULES:
        return None
    if len(name) > LONG_NAME:
        # Names are untrusted, and their beginning and end are what matters.
        name = name[: LONG_NAME // 2] + name[-LONG_NAME // 2 :]
    if name.startswith("phase.") and kind is not Kind.python:
        return CATEGORY_OF_PHASE.get(name[6:])
    return next((category for category, rule in _RULES[kind] if rule.search(name)), None)


def own_categories(trace: Trace) -> Categories:
    """Return the category of each event by its own name, or `NOTHING`."""
    # There are far fewer names than events, so these numbers fit into int32.
    pairs = trace.name * np.int32(len(Kind)) + trace.kind
    by_name = np.full(len(trace.names) * len(Kind), NOTHING, dtype=np.int8)
    for pair in np.flatnonzero(np.bincount(pairs)).tolist():
        category = classify(trace.names[pair // len(Kind)], Kind(pair % len(Kind)))
        by_name[pair] = NOTHING if category is None else category
    own: Categories = by_name[pairs]
    return own


def categories(trace: Trace, nesting: Nesting, own: Categories) -> Categories:
    """Return the category of each event, or of its nearest classified ancestor.

    Calls that send a batch to the device are a transfer unless an ancestor is classified.
    """
    nearest_category = nearest(own, nesting)
    to_device = trace.named(lambda name: "HtoD" in name or "HostToDevice" in name)
    copies = trace.correlation[to_device & (trace.kind == Kind.copy)]
    is_unclassified_call = (trace.kind == Kind.runtime) & (nearest_category == NOTHING)
    rows = np.flatnonzero(is_unclassified_call)
    rows = rows[np.isin(trace.correlation[rows], copies[copies >= 0])]
    moves = trace.named(_MOVES.__contains__)
    own = own.copy()
    while len(rows):
        own[rows] = Category.transfer
        above = nesting.parent[rows]
        is_move = (above >= 0) & moves[above]
        rows = above[is_move].astype(np.int64)
    return nearest(own, nesting)


def nearest(own: Categories, nesting: Nesting) -> Categories:
    """Return the category of the nearest classified ancestor of each event, or `NOTHING`."""
    return own[climb(own == NOTHING, nesting.parent)]


LONG_NAME = 1000

_MOVES = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::pin_memory"}


def _compiled(rules: Mapping[str, str]) -> list[tuple[Category, re.Pattern[str]]]:
    return [(Category[category], re.compile(pattern)) for category, pattern in rules.items()]


def _with_libraries(rules: Mapping[str, str]) -> dict[str, str]:
    """Return rules whose communication includes the names of all libraries."""
    names = [library["names"] for library in NAMES["libraries"].values()]
    return {**rules, "communication": "|".join([rules["communication"], *names])}


_RULE_TEXTS = {**NAMES["categories"], "both": _with_libraries(NAMES["categories"]["both"])}
_PATTERNS = {kind: _compiled(rules) for kind, rules in _RULE_TEXTS.items()}

_RULES = {
    Kind.annotation: _PATTERNS["both"] + _PATTERNS["annotation"],
    Kind.operator: _PATTERNS["both"] + _PATTERNS["operator"],
    Kind.python: _PATTERNS["python"],
}


# Whether a name is that of the wait for the next batch, or of a collective.
is_loader = dict(_PATTERNS["both"])[Category.data_loading].search


is_collective = dict(_PATTERNS["both"])[Category.communication].search
