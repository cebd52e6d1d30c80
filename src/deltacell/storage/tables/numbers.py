"""Text as numbers: decimal commas, and what counts as missing.

Commas between thousands are recognised only so that they are not taken for decimal commas: the
numbers that have them are bad.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Doubles

#: Representations of a missing value, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "#n/a", "null", "none", "-", "."})

_MINUS = "\u2212"
_NUMBER = re.compile(r"[-+]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][-+]?\d+)?")
_WITH_DECIMAL_COMMA = r"^[-+\u2212]?\d*,\d+(?:[eE][-+]?\d+)?$"
_WITH_DECIMAL_POINT = r"^[-+]?\d*\.\d+"
_WITH_THOUSANDS = r"^[-+]?[1-9]\d{0,2},\d{3}$"
_LARGEST = float(np.finfo(np.float32).max)


class Numbers(NamedTuple):
    """A column as numbers, [rows] each."""

    values: Doubles  # NaN where the field is missing or bad
    is_bad: Bools  # neither a finite number nor missing


def numbers_of(written: pl.Series, *, decimal_comma: bool) -> Numbers:
    """Return a column of text as numbers.

    A comma is decimal if no number has a point and it cannot separate thousands; with
    `decimal_comma`, as in a file separated by ``;``, it never separates thousands.
    """
    absent = is_missing(written)
    numbers = written.cast(pl.Float64, strict=False)
    if (numbers.is_null().to_numpy() & ~absent).any():
        numbers = _with_points(written, decimal_comma).cast(pl.Float64, strict=False)
    values = numbers.to_numpy().astype(np.float64, copy=True)
    is_finite = np.abs(values) <= _LARGEST
    is_bad: Bools = ~absent & ~is_finite
    values[absent | is_bad] = np.nan
    return Numbers(values, is_bad)


def _with_points(written: pl.Series, decimal_comma: bool) -> pl.Series:
    """Return numbers as text with ASCII minus signs, and points in place of decimal commas."""
    plain = written.str.replace(_MINUS, "-", literal=True)
    with_comma = plain.str.contains(_WITH_DECIMAL_COMMA)
    has_points = plain.str.contains(_WITH_DECIMAL_POINT).any()
    if has_points or not with_comma.any():
        return plain
    if not decimal_comma and plain.filter(with_comma).str.contains(_WITH_THOUSANDS).all():
        return plain
    return plain.str.replace(",", ".", literal=True)


def is_number(written: str) -> bool:
    """Return whether a field is a number; commas may be decimal."""
    return _NUMBER.fullmatch(written.replace(_MINUS, "-")) is not None


def is_missing(written: pl.Series) -> Bools:
    """Return which fields of a column of text mean a missing value, [rows]."""
    return written.str.to_lowercase().is_in(list(MISSING)).to_numpy()


def present(column: pl.Series) -> pl.Series:
    """Return a column of text with missing values as empty strings."""
    return column.set(pl.Series(is_missing(column), dtype=pl.Boolean), "")
