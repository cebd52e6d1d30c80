"""The host's time: what every moment of a step is spent on, by the names of events.

This is the time of the thread that runs the steps. While that thread only waits for the threads of
the backward, the time is theirs; while it waits for a collective of the host, it is communication.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.base.arrays import Bools, Indices, Ints, distinct
from deltacell.profile.trace.self_time import Covered, Nesting, Timeline, climb, timeline
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NAMES, NOTHING, Kind, Trace

# The longest pause between two operators that belongs to the forward: this share of a step, within
# bounds in nanoseconds.
SHORTEST_PAUSE = 100_000
LONGEST_PAUSE = 500_000
SHARE_PAUSE = 0.02
BARE = 0.02  # a longer share of a step without events is named by its neighbours
CALLING = 20_000  # nanoseconds that Python takes at most to call an operator once more
_RECORDS_NOTHING = "Python code that records nothing, "  # names of moments without an event
NOT_RECORDED = f"{_RECORDS_NOTHING}in short stretches"

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
    if len(name) > _LONG:
        # Names are untrusted, and their beginning and end are what matters.
        name = name[: _LONG // 2] + name[-_LONG // 2 :]
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


_LONG = 1000
_MOVES = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::pin_memory"}


def _compiled(rules: Mapping[str, str]) -> list[tuple[Category, re.Pattern[str]]]:
    return [(Category[category], re.compile(pattern)) for category, pattern in rules.items()]


_PATTERNS = {kind: _compiled(rules) for kind, rules in NAMES["categories"].items()}
_RULES = {
    Kind.annotation: _PATTERNS["both"] + _PATTERNS["annotation"],
    Kind.operator: _PATTERNS["both"] + _PATTERNS["operator"],
    Kind.python: _PATTERNS["python"],
}
# Whether a name is that of the wait for the next batch, or of a collective.
is_loader = dict(_PATTERNS["both"])[Category.data_loading].search
is_collective = dict(_PATTERNS["both"])[Category.communication].search


def by_time(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return the total ``time`` and the ``count`` of rows by keys, the longest time first."""
    count = pl.len().cast(pl.Int64).alias("count")
    sums = frame.group_by(*keys).agg(count, pl.sum("time"))
    is_descending = [True] + [False] * len(keys)
    return sums.sort("time", *keys, descending=is_descending)


@dataclass(frozen=True, eq=False)
class HostTime:
    """Consecutive pieces of time that fill all steps, with one entry per piece."""

    begin: Ints
    end: Ints
    row: Indices  # the event that the piece belongs to, or NOTHING
    category: Categories
    step: Indices  # the index of the step
    name: Indices  # what the host did, as an index into names
    names: list[str]  # human-readable
    loader: Ints  # nanoseconds of each step spent in the loader
    is_call: Bools  # the piece is Python that counts for the operator that it calls
    helpers: tuple[int, ...]  # the threads that ran the backward
    events: Categories  # the category of each event of the trace, or NOTHING

    def covered(self, which: Bools) -> Covered:
        """Return the time of the pieces that are chosen."""
        return Covered.union(self.begin[which], self.end[which])

    def between(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Return the pieces between two times, and the nanoseconds of each within them."""
        first = int(np.searchsorted(self.end, begin, side="right"))
        last = int(np.searchsorted(self.begin, end, side="left"))
        places = np.arange(first, max(first, last))
        begin_inside = np.maximum(self.begin[places], begin)
        end_inside = np.minimum(self.end[places], end)
        return places, end_inside - begin_inside

    def spent(self, steps: Steps) -> pl.DataFrame:
        """Return the time in counted steps and the ``count`` of events by name and category."""
        names = pl.Series(self.names, dtype=pl.String)
        titles = pl.Series([category.title for category in Category])
        row = np.where(self.is_call, np.int32(NOTHING), self.row)
        time = self.end - self.begin
        columns = {"name": self.name, "category": self.category, "row": row, "time": time}
        counted = pl.DataFrame(columns).filter(pl.Series(steps.counted[self.step]))
        # Pieces without an event are one together, unless they count for an operator.
        events = pl.col("row").filter(pl.col("row") >= 0)
        n_events = events.n_unique().clip(1).cast(pl.Int64)
        sums = counted.group_by("name", "category").agg(n_events.alias("count"), pl.sum("time"))
        with_names = sums.with_columns(
            name=pl.lit(names).gather(pl.col("name")),
            category=pl.lit(titles).gather(pl.col("category").cast(pl.UInt32)),
        )
        keys = ("time", "name", "category")
        return with_names.sort(*keys, descending=[True, False, False])


class _Pieces(NamedTuple):
    """Consecutive pieces of time that fill all steps."""

    begin: Ints
    end: Ints
    step: Indices  # the index of the step

    @classmethod
    def of(cls, steps: Steps, lines: Sequence[Timeline], collectives: Covered) -> _Pieces:
        """Return the pieces between any two times at which something begins or ends."""
        bounds = (steps.begin, steps.end, collectives.begin, collectives.end)
        times, _ = distinct(np.concatenate([*bounds, *(line.times for line in lines)]))
        # The bounds of steps are among the times, so a piece lies in one step or in none.
        step = steps.place(times[:-1]).astype(np.int32)
        is_inside = step >= 0
        return cls(times[:-1][is_inside], times[1:][is_inside], step[is_inside])


class _Activity(NamedTuple):
    """What the host does in each piece of time."""

    row: Indices  # the event, or NOTHING
    category: Categories
    waits: Bools  # nothing is running, or only a range


def host_time(trace: Trace, nesting: Nesting, steps: Steps) -> HostTime:
    """Divide the steps into pieces with what the host did in each."""
    own = own_categories(trace)
    by_row = _with_forward(trace, nesting, steps, own, categories(trace, nesting, own))
    helpers = _threads_of_backward(trace, steps, own)
    main = timeline(trace, nesting, steps.thread)
    others = [timeline(trace, nesting, lane) for lane in helpers]
    collectives = _collectives_of_host(trace, nesting, steps)
    pieces = _Pieces.of(steps, [main, *others], collectives)
    activity = _activity(trace, by_row, main, others, pieces.begin)
    exposed = _exposed(own, activity, pieces.begin, collectives)
    category = activity.category.copy()
    category[exposed] = Category.communication
    _fill(category, pieces, _longest_pause(steps))
    if int((pieces.end - pieces.begin).sum()) != int(steps.wall.sum()):
        raise AssertionError("the host's time does not add up to that of the steps")
    named = _names(trace, nesting, steps, pieces, activity.row)
    return HostTime(
        begin=pieces.begin,
        end=pieces.end,
        row=activity.row,
        category=category,
        step=pieces.step,
        name=named.name,
        names=named.names,
        loader=_loader_time(trace, nesting, steps),
        is_call=named.is_call,
        helpers=tuple(helpers),
        events=by_row,
    )


def _threads_of_backward(trace: Trace, steps: Steps, own: Categories) -> list[int]:
    """Return the other threads that run operators of the backward."""
    is_backward = (own == Category.backward) & (trace.kind == Kind.operator)
    is_elsewhere = trace.thread != steps.thread
    threads: list[int] = np.unique(trace.thread[is_backward & is_elsewhere]).tolist()
    return threads


def _collectives_of_host(trace: Trace, nesting: Nesting, steps: Steps) -> Covered:
    """Return when collectives of the host run, which is beside the thread of the steps.

    Ranges of NCCL only launch work on the device.
    """

    def is_of_host(name: str) -> bool:
        is_launch_only = name.startswith(("nccl:", "rccl:"))
        return is_collective(name) is not None and not is_launch_only

    is_beside = trace.named(is_of_host)
    is_beside &= (trace.kind == Kind.annotation) & (nesting.lane != steps.thread)
    return Covered.union(trace.begin[is_beside], trace.ends(is_beside))


def _loader_time(trace: Trace, nesting: Nesting, steps: Steps) -> Ints:
    """Return the time of each step that its thread spends in the loader."""
    is_loading = trace.named(is_loader) & (nesting.lane == steps.thread)
    is_loading &= trace.kind != Kind.runtime
    covered = Covered.union(trace.begin[is_loading], nesting.cut[is_loading])
    return covered.within(steps.begin, steps.end)


def _longest_pause(steps: Steps) -> float:
    """Return the longest pause between two operators that belongs to the forward."""
    share_of_step = SHARE_PAUSE * float(np.median(steps.wall))
    return min(max(SHORTEST_PAUSE, share_of_step), LONGEST_PAUSE)


def _activity(
    trace: Trace,
    by_row: Categories,
    main: Timeline,
    others: Sequence[Timeline],
    begin: Ints,
) -> _Activity:
    """Return what the main thread does; while it waits, what the other threads do for it."""
    row = main.at(begin)
    category = np.where(row >= 0, by_row[row], np.int8(NOTHING))
    kind = trace.kind[row]
    # Nothing is running, or only a range in which other threads may be working.
    waits = (row < 0) | (kind == Kind.annotation) | (kind == Kind.python)
    waits &= (category == NOTHING) | (category == Category.backward)
    for line in others:
        row_of_other = line.at(begin)
        is_helped = waits & (row_of_other >= 0)
        row = np.where(is_helped, row_of_other, row)
        is_unclassified = by_row[row_of_other] == NOTHING
        of_other = np.where(is_unclassified, np.int8(Category.backward), by_row[row_of_other])
        category = np.where(is_helped, of_other, category)
        waits &= ~is_helped
    return _Activity(row, category, waits)


def _with_forward(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    own: Categories,
    categories_of_rows: Categories,
) -> Categories:
    """Classify unclassified operators as forward if their backward follows in the same step.

    An operator that needs no gradient has the number of the next one that does, so only the last
    operator with a number, and everything inside it, belongs to the forward.
    """
    is_numbered = trace.sequence >= 0
    of_backward = np.flatnonzero(is_numbered & (own == Category.backward))
    is_candidate = is_numbered & (categories_of_rows == NOTHING)
    is_candidate &= (trace.kind == Kind.operator) & (trace.thread == steps.thread)
    rows = np.flatnonzero(is_candidate)
    keys, keys_of_backward = _keys_of_sequences(trace, steps, rows, of_backward)
    has_backward = np.isin(keys, keys_of_backward)
    rows = rows[has_backward]
    last = _last_outermost(rows, keys[has_backward], nesting)
    with_forward = categories_of_rows.copy()
    with_forward[last] = Category.forward
    return nearest(with_forward, nesting)


def _keys_of_sequences(trace: Trace, steps: Steps, first: Ints, second: Ints) -> list[Ints]:
    """Return keys of two lists of events, equal for events of one step and sequence number."""
    both = np.concatenate([first, second])
    step = np.searchsorted(steps.begin, trace.begin[both], side="right")
    # A damaged trace may have a number so large that a multiple of it overflows.
    _, number = np.unique(trace.sequence[both], return_inverse=True)
    return np.split(step * len(both) + number, [len(first)])


def _last_outermost(rows: Ints, keys: Ints, nesting: Nesting) -> Ints:
    """Return the last event of each key that no other event with the key encloses.

    The events are sorted by their beginning.
    """
    outer = nesting.parent[rows]
    is_inside = np.isin(outer, rows)
    outer_keys = keys[np.searchsorted(rows, outer[is_inside])]
    is_inside[is_inside] = outer_keys == keys[is_inside]
    rows = rows[~is_inside]
    keys = keys[~is_inside]
    _, from_end = np.unique(keys[::-1], return_index=True)
    return rows[len(rows) - 1 - from_end]


def _exposed(
    own: Categories,
    activity: _Activity,
    begin: Ints,
    collectives: Covered,
) -> Bools:
    """Return where the host waits for a collective, except between operators of the backward."""
    is_open = collectives.within(begin, begin + 1) > 0
    works = np.flatnonzero(~activity.waits)
    following = np.searchsorted(works, np.arange(len(begin)))
    following_row = np.append(activity.row[works], NOTHING)[following]
    continues = (following_row >= 0) & (own[following_row] == Category.backward)
    exposed: Bools = is_open & activity.waits & ~continues
    return exposed


def _fill(category: Categories, pieces: _Pieces, pause: float) -> None:
    """Extend forward and backward over unclassified pieces between two pieces of the same category.

    Such a piece is Python code between operators. A long pause in the forward can be anything, so
    it is not filled. All other unclassified pieces become `Category.other`.
    """
    classified = np.flatnonzero(category != NOTHING).astype(np.int32)
    unclassified = np.flatnonzero(category == NOTHING).astype(np.int32)
    after = np.searchsorted(classified, unclassified)
    is_between = (after > 0) & (after < len(classified))
    between = unclassified[is_between]
    left = classified[after[is_between] - 1]
    right = classified[after[is_between]]
    in_one_step = pieces.step[left] == pieces.step[right]
    in_one_step &= pieces.step[right] == pieces.step[between]
    is_backward = category[left] == Category.backward
    is_short = pieces.begin[right] - pieces.end[left] <= pause
    is_extended = is_backward | ((category[left] == Category.forward) & is_short)
    is_filled = (category[left] == category[right]) & in_one_step & is_extended
    filled_with = category[left[is_filled]]
    category[unclassified] = Category.other
    category[between[is_filled]] = filled_with


class _PieceNames(NamedTuple):
    """Human-readable names of the pieces of the host's time."""

    name: Indices  # of each piece, as an index into names
    names: list[str]
    is_call: Bools  # the piece is Python that counts for the operator that it calls


class _NameCodes:
    """Names, each with a number in the order in which they were first used."""

    def __init__(self, names: Iterable[str]) -> None:
        self._codes: dict[str, int] = {}
        for name in names:
            self.code(name)

    def code(self, name: str) -> int:
        """Return the number of a name, a new one if it is new."""
        return self._codes.setdefault(name, len(self._codes))

    def names(self) -> list[str]:
        """Return the names by their numbers."""
        return list(self._codes)


def _names(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    pieces: _Pieces,
    row: Indices,
) -> _PieceNames:
    """Name every piece of the host's time.

    A call into the driver is named by its operator, Python code by the innermost function that is
    not in a library or that has a known purpose, such as ``torch.save``, and a stretch without
    events by its neighbours. What Python takes to call an operator again and again counts for it.
    """
    shown = [_spoken(name) for name in plain_names(trace)]
    codes = _NameCodes([*shown, NOT_RECORDED])
    # The last entry stands for no event.
    piece = np.append(_named_by(trace, nesting), np.int32(NOTHING))[row]
    name_of_piece = np.append(trace.name, np.int32(len(shown)))[piece]
    code_of_name = [codes.code(name) for name in (*shown, NOT_RECORDED)]
    code = np.array(code_of_name, dtype=np.int32)[name_of_piece]
    _name_built_in(trace, row, piece, code, codes)
    _name_bare_stretches(pieces, piece, code, codes, BARE * float(np.median(steps.wall)))
    called = _called_again(trace, pieces, piece, code)
    is_call = called >= 0
    return _PieceNames(np.where(is_call, called, code), codes.names(), is_call)


def _name_bare_stretches(
    pieces: _Pieces,
    piece: Indices,
    code: Indices,
    codes: _NameCodes,
    longest: float,
) -> None:
    """Name stretches without events that are longer than ``longest`` by their neighbours.

    ``code`` is changed: it is the number of each piece's name.
    """
    names = codes.names()
    bare = np.flatnonzero(piece < 0)
    first = bare[np.flatnonzero(np.diff(bare, prepend=-2) > 1)]
    last = bare[np.flatnonzero(np.diff(bare, append=len(code) + 1) > 1)]
    is_long = pieces.end[last] - pieces.begin[first] > longest
    for start, stop in zip(first[is_long].tolist(), last[is_long].tolist(), strict=True):
        before = _brief(names[code[start - 1]]) if start else "the start"
        after = _brief(names[code[stop + 1]]) if stop + 1 < len(code) else "the end"
        after = "the next batch" if after == _LOADER else after
        text = f"{_RECORDS_NOTHING}between {before} and {after}"
        code[start : stop + 1] = codes.code(text)


def _called_again(
    trace: Trace,
    pieces: _Pieces,
    piece: Indices,
    code: Indices,
) -> Indices:
    """Return the operator that each short piece between two calls of it counts for, or `NOTHING`.

    Such a piece is one in which nothing is open but Python. A longer one can be anything.
    """
    is_operator = (piece >= 0) & (trace.kind[piece] == Kind.operator)
    operators = np.flatnonzero(is_operator)
    called: Indices = np.full(len(code), NOTHING, dtype=np.int32)
    if len(operators) < 2:
        return called
    is_quiet = (piece < 0) | (trace.kind[piece] == Kind.python)
    quiet = np.flatnonzero(is_quiet)
    after = np.searchsorted(operators, quiet)
    is_between = (after > 0) & (after < len(operators))
    quiet = quiet[is_between]
    left = operators[after[is_between] - 1]
    right = operators[after[is_between]]
    others = np.cumsum(~is_quiet & ~is_operator)
    is_same = (code[left] == code[right]) & (others[left] == others[right])
    is_short = pieces.begin[right] - pieces.end[left] <= CALLING
    called[quiet] = np.where(is_same & is_short, code[left], np.int32(NOTHING))
    return called


def _named_by(trace: Trace, nesting: Nesting) -> Indices:
    """Return the event that names each event, or `NOTHING`."""
    has_parent = nesting.parent >= 0
    above = np.where(has_parent, trace.kind[nesting.parent], np.int8(NOTHING))
    climbs = trace.kind == Kind.runtime
    climbs |= trace.named(lambda name: name == "aten::_local_scalar_dense")
    climbs &= above == Kind.operator
    is_of_library = trace.named(_has_no_purpose)
    climbs |= (trace.kind == Kind.python) & is_of_library & (above == Kind.python)
    place = climb(climbs, nesting.parent)
    is_step = trace.named(_STEP.match)
    rows: Indices = np.where(is_step[place], np.int32(NOTHING), place)
    return rows


def _has_no_purpose(name: str) -> bool:
    """Return whether a Python function is one of a library, without a known purpose."""
    is_classified = classify(name, Kind.python) is not None
    return not is_classified and _LIBRARY.search(name[:_LONG]) is not None


def records_nothing(name: str) -> bool:
    """Return whether a name is that of moments in which no event is open."""
    return name.startswith(_RECORDS_NOTHING)


def _name_built_in(
    trace: Trace,
    row: Indices,
    piece: Indices,
    code: Indices,
    codes: _NameCodes,
) -> None:
    """Name the built-in function of Python with the function that calls it, such as sleep.

    ``code`` is changed: it is the number of each piece's name, ``row`` is the event of the piece,
    and ``piece`` the one that names it.
    """
    names = codes.names()
    built_in = [_BUILT_IN.match(name[:200]) for name in trace.names]
    is_built_in = np.array([matched is not None for matched in built_in], dtype=bool)
    is_named_by_caller = (row >= 0) & (piece >= 0) & (piece != row)
    is_named_by_caller &= is_built_in[trace.name[row]] & (trace.kind[row] == Kind.python)
    for place in np.flatnonzero(is_named_by_caller).tolist():
        matched = built_in[trace.name[row[place]]]
        caller = names[code[place]]
        # A caller with a known purpose, such as torch.save, is named by that.
        if matched is not None and caller.startswith(_PYTHON_CODE):
            text = f"{matched['name']} in {caller.removeprefix(_PYTHON_CODE)}"
            code[place] = codes.code(text)


def _spoken(name: str) -> str:
    """Return the name of an event as a person says it: that of a Python function with its place."""
    if len(name) >= 300:
        return name
    known = _SPOKEN.match(name)
    if known is not None:
        return f"torch.{known[1]}"
    function = _FUNCTION.match(name)
    if function is None:
        return name
    return f"{_PYTHON_CODE}{function['function']} ({function['file']}, line {function['line']})"


def _brief(name: str) -> str:
    if is_loader(name):
        return _LOADER
    short = name.partition("#")[0].removeprefix(_PYTHON_CODE)
    return short if len(short) <= 40 else f"{short[:39]}…"


_STEP = re.compile(r"^ProfilerStep#\d+$")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VENDOR = re.compile(r"^(?:hip|xpu|musa|mtia)(?=[A-Z])")
_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|^torch/|/torch/|^<|/lib/python3|^(?:threading|contextlib|runpy)\.py",
)
_LOADER = "the loader"
_PYTHON_CODE = "Python code of "
_FUNCTION = re.compile(r"^(?:.*/)?(?P<file>[^/()]+\.py)\((?P<line>\d+)\): (?P<function>[^/]+)$")
_BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<name>\w+(?: of (?!object)\S+)?)")
_SPOKEN = re.compile(r"^.*torch/serialization\.py\(\d+\): (save|load)$", re.DOTALL)


def plain_names(trace: Trace) -> list[str]:
    """Return the names of a trace without addresses, step numbers and vendors."""
    names = (_STEP.sub("ProfilerStep", name) for name in trace.names)
    names = (_ADDRESS.sub("", name) if " at 0x" in name else name for name in names)
    return [_VENDOR.sub("cuda", name).replace("rccl", "nccl") for name in names]


def waiting_calls(trace: Trace) -> Bools:
    """Return which events are calls that wait for the device, including blocking copies."""
    is_call = trace.kind == Kind.runtime
    waits: Bools = trace.named(lambda name: _CALLS.match(name[:101])) & is_call
    # A copy to pageable memory of the host is blocking.
    to_host = trace.named(lambda name: _TO_HOST.search(name[:200])) & (trace.kind == Kind.copy)
    copies = trace.correlation[to_host]
    waits[is_call] |= np.isin(trace.correlation[is_call], copies[copies >= 0])
    return waits


def sync_points(trace: Trace, nesting: Nesting, steps: Steps) -> pl.DataFrame:
    """Return where the host waits for the device in counted steps, the longest wait first.

    The ``operation`` is the outermost operator around the ``call`` that waits; ``site`` is the
    file, line and function if the trace has stacks.
    """
    calls = np.flatnonzero(waiting_calls(trace))
    calls = calls[steps.in_counted(trace.begin[calls])]
    schema = dict.fromkeys(("operation", "call", "site"), pl.String)
    askers = [_asked_by(trace, nesting, row) for row in calls.tolist()]
    frame = pl.DataFrame(askers, schema=schema, orient="row")
    time = pl.Series("time", trace.duration[calls], dtype=pl.Int64)
    return by_time(frame.with_columns(time), *schema)


_CALLS = re.compile(
    r"(?:cuda|hip|cu|musa|xpu)\w*(?:Stream|Device|Event|Ctx)Synchronize(?:_\w+)?$"
    r"|(?:cuda|hip)Memcpy(?:2D|3D)?(?:_\w+)?$|cuMemcpy(?:DtoH|HtoD)(?:_v2)?$|(?:cuda|hip)Free$",
)
_TO_HOST = re.compile(r"(?:DtoH|DeviceToHost)(?!.*Pinned)")
_TORCH = re.compile(r"(?:site-packages|dist-packages)/|^torch/|/torch/|^<|nn\.Module: |<built-in")


def _asked_by(trace: Trace, nesting: Nesting, row: int) -> tuple[str, str, str | None]:
    """Return the operation, the call and the site of a call that waits."""
    operation = trace.text(row)
    site = None
    is_inside = True
    above = int(nesting.parent[row])
    while above != NOTHING:
        kind = trace.kind[above]
        text = trace.text(above)
        is_inside &= kind == Kind.operator
        operation = text if is_inside else operation
        is_own_code = kind == Kind.python and not _TORCH.search(text)
        if site is None:
            site = text if is_own_code else _site_of_stack(trace, above)
        above = int(nesting.parent[above])
    return operation, trace.text(row), site


def _site_of_stack(trace: Trace, row: int) -> str | None:
    """Return the first call in the stack of an event that is not one of PyTorch, if it has one."""
    if not len(trace.stack) or trace.stack[row] == NOTHING:
        return None
    stack = trace.stacks[trace.stack[row]]
    calls = [call.strip() for call in stack.split(";")]
    calls = [call for call in calls if call]
    own_calls = [call for call in calls if not _TORCH.search(call)]
    return next(iter([*own_calls, *calls]), None)
