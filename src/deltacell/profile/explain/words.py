"""Numbers in sentences: ratios, times, shares, and names that come from outside."""

from __future__ import annotations

import math

LONGEST_NAME = 80


def ratio_text(ratio: float) -> str:
    """Return how many times something is, such as ``54x``, ``1.6x`` or ``0.25x``."""
    if not math.isfinite(ratio):
        return "?"
    if abs(ratio) >= 9.95:
        return f"{ratio:,.0f}x"
    return f"{ratio:.1f}x" if abs(ratio) >= 1.495 else f"{ratio:.3g}x"


def seconds_text(seconds: float) -> str:
    """Return a time in the unit in which it is best read, three digits of it."""
    size = abs(seconds)
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= 0.9995 * length:
            return f"{_digits(seconds / length)} {unit}"
    return "0 s" if size < 5e-10 else f"{_digits(seconds / 1e-9)} ns"


def change_text(seconds: float) -> str:
    """Return a difference of times with its sign."""
    return f"{'+' if seconds >= 0 else '-'}{seconds_text(abs(seconds))}"


def share_text(share: float) -> str:
    """Return a share in percent."""
    percent = 100 * share
    if 0 < abs(percent) < 0.1:
        return "under 0.1 %"
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def short_name(name: str) -> str:
    """Return a name from outside in one line, printable and of bounded length."""
    line = "".join(c if c.isprintable() else "?" for c in name)
    return line if len(line) <= LONGEST_NAME else f"{line[: LONGEST_NAME - 1]}…"


def listed(words: list[str] | tuple[str, ...]) -> str:
    """Return words as a list in a sentence."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
