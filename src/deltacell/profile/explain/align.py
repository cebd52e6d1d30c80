"""Operations of two traces side by side: aligned by call path, renamed and moved ones found."""

from __future__ import annotations

import difflib
from collections import defaultdict
from dataclasses import dataclass

import polars as pl

PARTED_BY = " > "
"""Between the names of a path."""

TRIED = 300
"""How many of the longest operations without a counterpart are looked at for another name."""

SAME_NAME = 60
"""How many of the longest operations of one name are looked at for another place."""

ALIKE = 0.6
"""How alike two names have to be to be one that was renamed, 0 to 1."""

COLUMNS = pl.Schema(
    {
        "operation": pl.String(),
        "found as": pl.String(),
        "a ms a step": pl.Float64(),
        "b ms a step": pl.Float64(),
        "change ms": pl.Float64(),
        "a calls a step": pl.Float64(),
        "b calls a step": pl.Float64(),
        "path in a": pl.String(),
        "path in b": pl.String(),
    }
)


def align(a: pl.DataFrame, b: pl.DataFrame, steps: tuple[int, int]) -> pl.DataFrame:
    """Return the operations of both by the change of their self time, the largest first.

    Operations of the same path are the same. Of the rest, those of the same name are ``moved``;
    those with an alike name in the same place, called equally often, are ``renamed``; what is left
    is in one of them only. Every moment of both is in exactly one row, so changes add up to the
    gap between the steps.

    Parameters
    ----------
    a, b
        Of `deltacell.profile.trace.operations.call_paths`.
    steps
        How many steps each counts.
    """
    left, right = _by_path(a, steps[0]), _by_path(b, steps[1])
    pairs = [(one, right[path], "same") for path, one in left.items() if path in right]
    only_a = {path: one for path, one in left.items() if path not in right}
    only_b = {path: one for path, one in right.items() if path not in left}
    pairs += _moved(only_a, only_b)
    pairs += _renamed(only_a, only_b)
    rows = [_row(one, other, how) for one, other, how in pairs]
    rows += [_row(one, None, "only in a") for one in only_a.values()]
    rows += [_row(None, other, "only in b") for other in only_b.values()]
    rows.sort(key=lambda row: (-abs(row[4]), row[0], row[7] or "", row[8] or ""))
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


@dataclass(frozen=True)
class _Operation:
    path: str
    seconds: float
    calls: float

    @property
    def name(self) -> str:
        return self.path.rpartition(PARTED_BY)[2]

    @property
    def place(self) -> str:
        return self.path.rpartition(PARTED_BY)[0]


_Row = tuple[str, str, float, float, float, float | None, float | None, str | None, str | None]
_Left = dict[str, _Operation]
_Pair = tuple[_Operation, _Operation, str]


def _by_path(frame: pl.DataFrame, steps: int) -> _Left:
    summed = frame.group_by("path").agg(pl.col("time").sum(), pl.col("count").sum())
    return {
        path: _Operation(path, time / 1e9 / steps, count / steps)
        for path, time, count in summed.sort("path").iter_rows()
    }


def _moved(only_a: _Left, only_b: _Left) -> list[_Pair]:
    """Pair operations of one name in different places, those with most of the path in common."""
    by_name: dict[str, tuple[list[_Operation], list[_Operation]]] = defaultdict(lambda: ([], []))
    for one in only_a.values():
        by_name[one.name][0].append(one)
    for other in only_b.values():
        by_name[other.name][1].append(other)
    pairs: list[_Pair] = []
    for ones, others in by_name.values():
        scored = [
            (float(_in_common(one.path, other.path)), one, other)
            for one in _longest(ones, SAME_NAME)
            for other in _longest(others, SAME_NAME)
        ]
        pairs += _best(scored, only_a, only_b, "moved")
    return pairs


def _renamed(only_a: _Left, only_b: _Left) -> list[_Pair]:
    """Pair operations of alike names in the same place."""
    by_place: dict[str, list[_Operation]] = defaultdict(list)
    for other in _longest(list(only_b.values()), TRIED):
        by_place[other.place].append(other)
    scored = [
        (score, one, other)
        for one in _longest(list(only_a.values()), TRIED)
        for other in by_place[one.place]
        if _as_often(one, other) and (score := _alike(one.name, other.name)) >= ALIKE
    ]
    return _best(scored, only_a, only_b, "renamed")


def _longest(operations: list[_Operation], count: int) -> list[_Operation]:
    return sorted(operations, key=lambda op: (-op.seconds, op.path))[:count]


def _best(
    scored: list[tuple[float, _Operation, _Operation]], only_a: _Left, only_b: _Left, how: str
) -> list[_Pair]:
    """Take the pairs of the highest score first, each operation once; the same from both sides."""
    scored.sort(
        key=lambda s: (-s[0], -s[1].seconds - s[2].seconds, *sorted((s[1].path, s[2].path)))
    )
    pairs: list[_Pair] = []
    for _, one, other in scored:
        if one.path in only_a and other.path in only_b:
            del only_a[one.path], only_b[other.path]
            pairs.append((one, other, how))
    return pairs


def _in_common(a: str, b: str) -> int:
    """Return how many names two paths share at their end and at their beginning."""
    left, right = a.split(PARTED_BY), b.split(PARTED_BY)
    first = _equal(left, right)
    return first + min(_equal(left[::-1], right[::-1]), min(len(left), len(right)) - first)


def _equal(a: list[str], b: list[str]) -> int:
    for place, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return place
    return min(len(a), len(b))


def _alike(a: str, b: str) -> float:
    # Names are untrusted and may be long.
    first, second = sorted((a[:200], b[:200]))
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()


def _as_often(a: _Operation, b: _Operation) -> bool:
    return abs(a.calls - b.calls) <= 0.1 * max(a.calls, b.calls)


def _row(one: _Operation | None, other: _Operation | None, how: str) -> _Row:
    named = other if one is None else one
    name = "" if named is None else named.name
    if one is not None and other is not None and one.name != other.name:
        name = f"{one.name} -> {other.name}"
    in_a = 0.0 if one is None else 1e3 * one.seconds
    in_b = 0.0 if other is None else 1e3 * other.seconds
    return (
        name,
        how,
        in_a,
        in_b,
        in_b - in_a,
        None if one is None else one.calls,
        None if other is None else other.calls,
        None if one is None else one.path,
        None if other is None else other.path,
    )
