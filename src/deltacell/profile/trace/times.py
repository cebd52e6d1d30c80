"""Times as written, in microseconds, to whole nanoseconds without loss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import msgspec
import numpy as np

from deltacell.profile.trace.trace import Ints

Written = int | float | Decimal | msgspec.Raw
"""A number of a trace: decoded, or its text."""


class Inexact(Exception):
    """These numbers have lost their nanoseconds; take them from the text."""


def nanoseconds(written: Sequence[Written]) -> Ints:
    """Return decoded times in nanoseconds.

    A double holds a time below 2**43 microseconds (100 days) to less than half a nanosecond, so it
    is the nearest that was meant. Above, whole microseconds are taken and others refused.

    Raises
    ------
    Inexact
        Where a double may be another nanosecond than was written.
    """
    if not written:
        return np.empty(0, dtype=np.int64)
    numbers = np.array(written)
    if numbers.dtype.kind == "i":
        if numbers.max() > _LAST or numbers.min() < -_LAST:
            raise Inexact
        return np.asarray(numbers * 1000, dtype=np.int64)
    if numbers.dtype.kind != "f" or not np.abs(numbers).max() < _EXACT:
        raise Inexact
    whole = np.floor(numbers)
    rest = np.rint((numbers - whole) * 1000)
    return np.asarray(whole.astype(np.int64) * 1000 + rest.astype(np.int64))


def exact_nanoseconds(written: Sequence[Written]) -> Ints:
    """Return times in nanoseconds from their text; a number out of range is at the range's end."""
    texts = [number if isinstance(number, msgspec.Raw) else str(number) for number in written]
    if texts and all(isinstance(text, msgspec.Raw) for text in texts):
        joined = b",".join(texts) + b","  # type: ignore[arg-type]
        # As PyTorch writes them; numpy then reads all at once.
        if _THREE_PLACES.fullmatch(joined):
            return np.fromstring(joined[:-1].replace(b".", b""), dtype=np.int64, sep=",")
    return np.array([_exact(text) for text in texts], dtype=np.int64)


_EXACT = 2.0**43
_LAST = (2**63 - 1) // 1000
_THREE_PLACES = re.compile(rb"(?:-?(?:[0-8][0-9]{15}|[0-9]{1,15})\.[0-9]{3},)+")


def _exact(text: str | msgspec.Raw) -> int:
    number = Decimal(text if isinstance(text, str) else bytes(text).decode())
    number = max(min(number, Decimal(_LAST)), Decimal(-_LAST))
    return int((number * 1000).to_integral_value())
