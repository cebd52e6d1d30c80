"""Numbers and names as text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

#: Called as ``progress(what, done, total)``; the total is 0 if unknown.
Progress = Callable[[str, int, int], None]

LONGEST_NAME = 80


def count_text(number: int, one: str, many: str | None = None) -> str:
    """Return a number with a noun, such as ``1 step`` or ``1,200 steps``."""
    return f"{number:,} {one if number == 1 else f'{one}s' if many is None else many}"


def ratio_text(ratio: float) -> str:
    """Return a ratio such as ``54x``, ``1.6x`` or ``0.25x``."""
    if not math.isfinite(ratio):
        return "?"
    if abs(ratio) >= 9.95:
        return f"{ratio:,.0f}x"
    return f"{ratio:.1f}x" if abs(ratio) >= 1.495 else f"{ratio:.3g}x"


def seconds_text(seconds: float) -> str:
    """Return a time with three digits in a suitable unit."""
    size = abs(seconds)
    if size < 5e-10:
        return "0 s"
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if size >= 0.9995 * length or unit == "ns":
            break
    value = seconds / length
    if abs(value) >= 99.95:
        return f"{value:,.0f} {unit}"
    return f"{value:.1f} {unit}" if abs(value) >= 9.995 else f"{value:.2f} {unit}"


def change_text(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{seconds_text(abs(seconds))}"


def duration_text(seconds: float) -> str:
    """Return a time in words: ``40 seconds``, ``3 minutes``, ``5 hours``, ``2 days``."""
    for length, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{max(2, round(seconds))} seconds"


def share_text(share: float) -> str:
    percent = 100 * share
    if 0 < abs(percent) < 0.1:
        return "under 0.1 %"
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def short_name(name: str) -> str:
    """Return an untrusted name in one line, printable and of bounded length."""
    line = "".join(c if c.isprintable() else "?" for c in name)
    return line if len(line) <= LONGEST_NAME else f"{line[: LONGEST_NAME - 1]}…"


def printable(text: str) -> str:
    """Return a text with control characters (escapes, line ends) written as codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def hydra_text(value: object) -> str:
    """Return a value as Hydra parses it, quoted if necessary."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(hydra_text, value))}]"
    if isinstance(value, dict):
        # Keys cannot be quoted.
        keys = (re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key)) for key in value)
        items = map("{}:{}".format, keys, map(hydra_text, value.values()))
        return f"{{{','.join(items)}}}"
    text = str(value)
    if re.fullmatch(r"[\w./-]+", text, re.ASCII):
        return text
    # Hydra takes a backslash as it is, unless a quote or the end of the text follows.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"


def listed(words: Sequence[str]) -> str:
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} and {words[-1]}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
