"""The host's time: what every moment of a step is spent on, by the names of events.

This is the time of the thread that runs the steps. While that thread only waits for the threads of
the backward, the time is theirs; while it waits for a collective of the host, it is communication.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.base.arrays import Bools, Indices, Ints, distinct
from deltacell.profile.trace.self_time import Covered, Nesting, Timeline, climb, timeline
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NAMES, NOTHING, Kind, Trace

# The longest pause between two operators that belongs to the forward: this share of a step, within
# bounds in nanoseconds.
PAUSE = (100_000, 500_000, 0.02)
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
CATEGORY_OF_PHASE = {"data_wait": Category.data_loading} | {x.name: x for x in list(Category)[1:]}


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
    rows = np.flatnonzero((trace.kind == Kind.runtime) & (nearest_category == NOTHING))
    rows = rows[np.isin(trace.correlation[rows], copies[copies >= 0])]
    moves = trace.named(_MOVES.__contains__)
    own = own.copy()
    while len(rows):
        own[rows] = Category.transfer
        above = nesting.parent[rows]
        rows = above[(above >= 0) & moves[above]].astype(np.int64)
    return nearest(own, nesting)


def nearest(own: Categories, nesting: Nesting) -> Categories:
    """Return the category of the nearest classified ancestor of each event, or `NOTHING`."""
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
# Whether a name is that of the wait for the next batch, or of a collective.
is_loader = dict(_PATTERNS["both"])[Category.data_loading].search
is_collective = dict(_PATTERNS["both"])[Category.communication].search


def by_time(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return the total ``time`` and the ``count`` of rows by keys, the longest time first."""
    count = pl.len().cast(pl.Int64).alias("count")
    sums = frame.group_by(*keys).agg(count, pl.sum("time"))
    return sums.sort("time", *keys, descending=[True, *(False for _ in keys)])


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
        inside = np.minimum(self.end[places], end) - np.maximum(self.begin[places], begin)
        return places, inside

    def spent(self, steps: Steps) -> pl.DataFrame:
        """Return the time in counted steps and the ``count`` of events by name and category."""
        names = pl.Series(self.names, dtype=pl.String)
        titles = pl.Series([category.title for category in Category])
        row = np.where(self.is_call, np.int32(NOTHING), self.row)
        return (
            pl.DataFrame({"name": self.name, "category": self.category, "row": row})
            .with_columns(pl.Series("time", self.end - self.begin))
            .filter(pl.Series(steps.counted[self.step]))
            .group_by("name", "category")
            .agg(
                # Pieces without an event are one together, unless they count for an operator.
                pl.col("row").filter(pl.col("row") >= 0).n_unique().clip(1).alias("count"),
                pl.col("time").sum(),
            )
            .with_columns(pl.col("count").cast(pl.Int64))
            .with_columns(
                name=pl.lit(names).gather(pl.col("name")),
                category=pl.lit(titles).gather(pl.col("category").cast(pl.UInt32)),
            )
            .sort("time", "name", "category", descending=[True, False, False])
        )


def host_time(trace: Trace, nesting: Nesting, steps: Steps) -> HostTime:
    """Divide the steps into pieces with what the host did in each."""
    own = own_categories(trace)
    by_row = _with_forward(trace, nesting, steps, own, categories(trace, nesting, own))
    backward = (own == Category.backward) & (trace.kind == Kind.operator)
    helpers = np.unique(trace.thread[backward & (trace.thread != steps.thread)]).tolist()
    main = timeline(trace, nesting, steps.thread)
    others = [timeline(trace, nesting, lane) for lane in helpers]
    # Collectives of the host run in parallel; ranges of NCCL only launch work on the device.
    beside = trace.named(lambda x: is_collective(x) and not x.startswith(("nccl:", "rccl:")))
    beside &= (trace.kind == Kind.annotation) & (nesting.lane != steps.thread)
    collectives = Covered.union(trace.begin[beside], trace.ends(beside))
    bounds = (steps.begin, steps.end, collectives.begin, collectives.end)
    times, _ = distinct(np.concatenate([*bounds, *(line.times for line in (main, *others))]))
    # The bounds of steps are among the times, so a piece lies in one step or in none.
    step = steps.place(times[:-1]).astype(np.int32)
    inside = step >= 0
    begin = times[:-1][inside]
    end = times[1:][inside]
    step = step[inside]
    row, category, waits = _busy(trace, by_row, main, others, begin)
    category[_exposed(own, row, waits, begin, collectives)] = Category.communication
    least, most, share = PAUSE
    pause = min(max(least, share * float(np.median(steps.wall))), most)
    _fill(category, step, begin, end, pause)
    if int((end - begin).sum()) != int(steps.wall.sum()):
        raise AssertionError("the host's time does not add up to that of the steps")
    loading = trace.named(is_loader) & (nesting.lane == steps.thread)
    loading &= trace.kind != Kind.runtime
    loader = Covered.union(trace.begin[loading], nesting.cut[loading])
    waited = loader.within(steps.begin, steps.end)
    name, names, is_call = _names(trace, nesting, steps, begin, end, row)
    return HostTime(
        begin=begin,
        end=end,
        row=row,
        category=category,
        step=step,
        name=name,
        names=names,
        loader=waited,
        is_call=is_call,
        helpers=tuple(helpers),
        events=by_row,
    )


def _busy(
    trace: Trace,
    found: Categories,
    main: Timeline,
    others: Sequence[Timeline],
    begin: Ints,
) -> tuple[Indices, Categories, Bools]:
    row = main.at(begin)
    category = np.where(row >= 0, found[row], np.int8(NOTHING))
    kind = trace.kind[row]
    # Nothing is running, or only a range in which other threads may be working.
    waits = (row < 0) | (kind == Kind.annotation) | (kind == Kind.python)
    waits &= (category == NOTHING) | (category == Category.backward)
    for line in others:
        other = line.at(begin)
        helped = waits & (other >= 0)
        row = np.where(helped, other, row)
        theirs = np.where(found[other] == NOTHING, np.int8(Category.backward), found[other])
        category = np.where(helped, theirs, category)
        waits &= ~helped
    return row, category, waits


def _with_forward(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    own: Categories,
    found: Categories,
) -> Categories:
    """Classify unclassified operators as forward if their backward follows in the same step.

    An operator that needs no gradient has the number of the next one that does, so only the last
    operator with a number, and everything inside it, belongs to the forward.
    """
    numbered = trace.sequence >= 0
    back = np.flatnonzero(numbered & (own == Category.backward))
    untold = numbered & (found == NOTHING)
    untold &= (trace.kind == Kind.operator) & (trace.thread == steps.thread)
    rows = np.flatnonzero(untold)
    both = np.concatenate([rows, back])
    step = np.searchsorted(steps.begin, trace.begin[both], side="right")
    # A damaged trace may have a number so large that a multiple of it overflows.
    _, number = np.unique(trace.sequence[both], return_inverse=True)
    keys, of_back = np.split(step * len(both) + number, [len(rows)])
    meant = np.isin(keys, of_back)
    rows = rows[meant]
    keys = keys[meant]
    # Rows are sorted by beginning. Of those with one key, keep the last that no other one encloses.
    outer = nesting.parent[rows]
    inside = np.isin(outer, rows)
    inside[inside] = keys[np.searchsorted(rows, outer[inside])] == keys[inside]
    rows = rows[~inside]
    keys = keys[~inside]
    _, from_end = np.unique(keys[::-1], return_index=True)
    named = found.copy()
    named[rows[len(rows) - 1 - from_end]] = Category.forward
    return nearest(named, nesting)


def _exposed(
    own: Categories,
    row: Indices,
    waits: Bools,
    begin: Ints,
    collectives: Covered,
) -> Bools:
    """Return where the host waits for a collective, except between operators of the backward."""
    is_open = collectives.within(begin, begin + 1) > 0
    works = np.flatnonzero(~waits)
    following = np.searchsorted(works, np.arange(len(row)))
    after = np.append(row[works], NOTHING)[following]
    continues = (after >= 0) & (own[after] == Category.backward)
    exposed: Bools = is_open & waits & ~continues
    return exposed


def _fill(category: Categories, step: Indices, begin: Ints, end: Ints, pause: float) -> None:
    """Extend forward and backward over unclassified pieces between two pieces of the same category.

    Such a piece is Python code between operators. A long pause in the forward can be anything, so
    it is not filled.
    """
    known = np.flatnonzero(category != NOTHING).astype(np.int32)
    untold = np.flatnonzero(category == NOTHING).astype(np.int32)
    after = np.searchsorted(known, untold)
    inner = (after > 0) & (after < len(known))
    between = untold[inner]
    after = after[inner]
    left = known[after - 1]
    right = known[after]
    same = (
        (category[left] == category[right])
        & (step[left] == step[between])
        & (step[right] == step[between])
        & np.isin(category[left], (Category.forward, Category.backward))
        & ((category[left] == Category.backward) | (begin[right] - end[left] <= pause))
    )
    filled = category[left[same]]
    category[untold] = Category.other
    category[between[same]] = filled


def _names(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    begin: Ints,
    end: Ints,
    row: Indices,
) -> tuple[Indices, list[str], Bools]:
    """Return a human-readable name for every piece of the host's time.

    The last array says which pieces are Python that counts for the operator that it calls.

    A call into the driver is named by its operator, Python code by the innermost function that is
    not in a library or that has a known purpose, such as ``torch.save``, and a stretch without
    events by its neighbours. What Python takes to call an operator again and again counts for it.
    """
    shown = [_spoken(name) for name in plain_names(trace)]
    known: dict[str, int] = {}
    codes = [known.setdefault(name, len(known)) for name in (*shown, NOT_RECORDED)]
    # The last entry stands for no event.
    piece = np.append(_named_by(trace, nesting), np.int32(NOTHING))[row]
    code = np.array(codes, dtype=np.int32)[np.append(trace.name, np.int32(len(shown)))[piece]]
    _name_built_in(trace, row, piece, code, known)
    names = list(known)
    bare = np.flatnonzero(piece < 0)
    first = bare[np.flatnonzero(np.diff(bare, prepend=-2) > 1)]
    last = bare[np.flatnonzero(np.diff(bare, append=len(code) + 1) > 1)]
    long = end[last] - begin[first] > BARE * float(np.median(steps.wall))
    for start, stop in zip(first[long].tolist(), last[long].tolist(), strict=True):
        before = _brief(names[code[start - 1]]) if start else "the start"
        after = _brief(names[code[stop + 1]]) if stop + 1 < len(code) else "the end"
        after = "the next batch" if after == _LOADER else after
        text = f"{_RECORDS_NOTHING}between {before} and {after}"
        code[start : stop + 1] = known.setdefault(text, len(known))
    called = _called_again(trace, begin, end, piece, code)
    is_call = called >= 0
    return np.where(is_call, called, code), list(known), is_call


def _called_again(
    trace: Trace,
    begin: Ints,
    end: Ints,
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
    is_short = begin[right] - end[left] <= CALLING
    called[quiet] = np.where(is_same & is_short, code[left], np.int32(NOTHING))
    return called


def _named_by(trace: Trace, nesting: Nesting) -> Indices:
    """Return the event that names each event, or `NOTHING`."""
    above = np.where(nesting.parent >= 0, trace.kind[nesting.parent], np.int8(NOTHING))
    climbs = trace.kind == Kind.runtime
    climbs |= trace.named(lambda name: name == "aten::_local_scalar_dense")
    climbs &= above == Kind.operator
    untold = trace.named(
        lambda name: classify(name, Kind.python) is None and _LIBRARY.search(name[:1000]),
    )
    climbs |= (trace.kind == Kind.python) & untold & (above == Kind.python)
    place = climb(climbs, nesting.parent)
    rows: Indices = np.where(trace.named(_STEP.match)[place], np.int32(NOTHING), place)
    return rows


def records_nothing(name: str) -> bool:
    """Return whether a name is that of moments in which no event is open."""
    return name.startswith(_RECORDS_NOTHING)


def _name_built_in(
    trace: Trace,
    row: Indices,
    piece: Indices,
    code: Indices,
    known: dict[str, int],
) -> None:
    """Name the built-in function of Python with the function that calls it, such as sleep.

    ``code`` and ``known`` are changed: ``row`` is the event of each piece of time and ``piece`` the
    one that names it.
    """
    names = list(known)
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
            code[place] = known.setdefault(text, len(known))


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
    operation = trace.text(row)
    site = None
    inside = True
    above = int(nesting.parent[row])
    while above != NOTHING:
        kind = trace.kind[above]
        text = trace.text(above)
        inside &= kind == Kind.operator
        operation = text if inside else operation
        if kind == Kind.python and site is None and not _TORCH.search(text):
            site = text
        if site is None and len(trace.stack) and trace.stack[above] != NOTHING:
            calls = [c.strip() for c in trace.stacks[trace.stack[above]].split(";") if c.strip()]
            own_calls = [call for call in calls if not _TORCH.search(call)]
            site = next(iter([*own_calls, *calls]), None)
        above = int(nesting.parent[above])
    return operation, trace.text(row), site
