"""What the host did in each piece of its time, as a human-readable name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from deltacell.base.arrays import Bools, Indices
from deltacell.profile.trace.ancestors import climb
from deltacell.profile.trace.categories import LONG_NAME, classify, is_loader
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Pieces, Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

BARE = 0.02  # a longer share of a step without events is named by its neighbours
CALLING = 20_000  # nanoseconds that Python takes at most to call an operator once more
_RECORDS_NOTHING = "Python code that records nothing, "  # names of moments without an event

NOT_RECORDED = f"{_RECORDS_NOTHING}in short stretches"


class PieceNames(NamedTuple):
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


def names_of_pieces(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    pieces: Pieces,
    row: Indices,
) -> PieceNames:
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
    return PieceNames(np.where(is_call, called, code), codes.names(), is_call)


def _name_bare_stretches(
    pieces: Pieces,
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
    pieces: Pieces,
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
    return not is_classified and _LIBRARY.search(name[:LONG_NAME]) is not None


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
