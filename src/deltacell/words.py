"""Numbers in words that agree with them."""

from __future__ import annotations


def count_text(number: int, one: str, many: str | None = None) -> str:
    """Return a number and what it counts, such as ``1 step`` or ``1,200 steps``.

    Parameters
    ----------
    number
        How many.
    one, many
        What follows where it is one, and where it is not; by default with an s.
    """
    return f"{number:,} {one if number == 1 else f'{one}s' if many is None else many}"
