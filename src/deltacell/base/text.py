"""Numbers and names as text."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence

#: Called as ``progress(what, done, total)``; the total is 0 if unknown.
Progress = Callable[[str, int, int], None]

LONGEST_NAME = 80


def fitting_text(*texts: str, width: int = 100, lines: int = 2) -> str:
    """Return the first text that takes at most some lines of a terminal, or the last one."""
    for text in texts:
        if len(textwrap.wrap(text, width)) <= lines:
            return text
    return texts[-1]


def count_text(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with a noun, such as ``1 step`` or ``1,200 steps``."""
    if plural is None:
        plural = f"{singular}s"
    return f"{number:,} {singular if number == 1 else plural}"


def ratio_text(ratio: float) -> str:
    """Return a ratio such as ``54x``, ``1.6x`` or ``0.25x``."""
    if not math.isfinite(ratio):
        return "?"
    size = abs(ratio)
    if size >= 9.95:
        return f"{ratio:,.0f}x"
    return f"{ratio:.1f}x" if size >= 1.495 else f"{ratio:.3g}x"


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
    """Return a difference of times with its sign: ``+1.50 s``."""
    sign = "+" if seconds >= 0 else "-"
    return sign + seconds_text(abs(seconds))


def duration_text(seconds: float) -> str:
    """Return a time in words: ``40 seconds``, ``3 minutes``, ``5 hours``, ``2 days``."""
    for length, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{max(2, round(seconds))} seconds"


def share_text(share: float) -> str:
    """Return a share in percent: ``12 %``, ``1.5 %``, ``under 0.1 %``."""
    percent = 100 * share
    size = abs(percent)
    if 0 < size < 0.1:
        return "under 0.1 %"
    is_whole = size >= 9.95 or size == 0
    return f"{percent:.0f} %" if is_whole else f"{percent:.1f} %"


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
        items = ",".join(map(hydra_text, value))
        return f"[{items}]"
    if isinstance(value, dict):
        items = ",".join(f"{_hydra_key(key)}:{hydra_text(item)}" for key, item in value.items())
        return f"{{{items}}}"
    return str(value) if isinstance(value, int | float) else _quoted_for_hydra(str(value))


def _hydra_key(key: object) -> str:
    """Return the key of a dict as Hydra parses it; keys cannot be quoted."""
    return re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key))


# What Hydra would take for a number, a truth value or none, if it were not quoted.
_OTHER_TYPES = re.compile(r"true|false|null|[-+]?(inf|nan|[\d._]+(e[-+]?\d+)?)", re.IGNORECASE)


def _quoted_for_hydra(text: str) -> str:
    is_plain = re.fullmatch(r"[\w./-]+", text, re.ASCII)
    if is_plain and not _OTHER_TYPES.fullmatch(text):
        return text
    # Hydra takes a backslash as it is, unless a quote or the end of the text follows.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: ``a, b and c``; empty without words."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def capital(text: str) -> str:
    """Return a text with a capital first letter, and otherwise unchanged."""
    return text[:1].upper() + text[1:]
