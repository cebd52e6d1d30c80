"""Shared parts of all pages: self-contained HTML that runs only its own script.

Names on a page come from users' files and are untrusted. They are inserted as escaped text, or in a
JSON block that they cannot close, and scripts only ever set them as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeGuard

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from deltacell.base.rendering import Values
from deltacell.base.text import change_text, count_text, printable, ratio_text, seconds_text
from deltacell.report.terminal import shown


def page(
    name: str,
    *,
    styles: Iterable[str] = (),
    scripts: Iterable[str] = (),
    **values: Any,
) -> str:
    """Render the templates ``name.html`` and ``name.css`` with other ``styles`` and ``scripts``."""
    style = "".join(_source(file) for file in ("page.css", *styles, f"{name}.css"))
    script = "".join(_source(file) for file in scripts)
    template = _environment().get_template(f"{name}.html")
    return template.render(
        values,
        style=Markup(style),
        style_hash=_hash(style),
        script=Markup(script),
        script_hash=_hash(script) if script else None,
    )


def json_block(value: object) -> Markup:
    """Return JSON with printable strings that cannot close the block or become markup."""
    text = json.dumps(_clean(value), allow_nan=False, separators=(",", ":"))
    return Markup(text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&"}))


def _clean(value: object) -> object:
    """Return a value of JSON with printable strings."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def is_known(value: float | None) -> TypeGuard[float]:
    """Return whether a number is neither missing nor infinite nor NaN."""
    return value is not None and math.isfinite(value)


def fixed(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Format a number with a typographic minus, or a dash if it is unknown."""
    if not is_known(value):
        return "–"
    # Adding 0 turns -0.0 into 0.0.
    rounded = round(value, decimals) + 0.0
    plus = "+" if sign and rounded else ""
    return f"{rounded:{plus},.{decimals}f}".replace("-", "−")


def percent(value: float) -> str:
    """Return a share as a length of CSS and SVG."""
    return f"{100 * value:.3f}%"


def _time(seconds: float | None) -> str:
    return seconds_text(seconds).replace("-", "−") if is_known(seconds) else "–"


def _change(seconds: float) -> str:
    return change_text(seconds).replace("-", "−") if seconds else seconds_text(0.0)


def _share(share: float | None) -> str:
    return f"{fixed(100 * share, 1)} %" if is_known(share) else "–"


def _ratio(ratio: float) -> str:
    return ratio_text(ratio).replace("x", "×")


def _printable_if_text(value: object) -> object:
    # Text that is marked as safe has another type.
    return printable(value) if type(value) is str else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("deltacell.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable_if_text,
    )
    environment.filters |= {
        "count": shown,
        "number_of": count_text,
        "percent": percent,
        "fixed": fixed,
        "time": _time,
        "change": _change,
        "share": _share,
        "ratio": _ratio,
    }
    environment.globals["zip"] = zip
    return environment


def _source(name: str) -> str:
    templates = _environment()
    assert templates.loader is not None
    # A browser hashes the parsed text, whose line ends are line feeds.
    return templates.loader.get_source(templates, name)[0].replace("\r\n", "\n")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()


class Axis(NamedTuple):
    """A range of values, ``low`` to ``high``, on a stretch of a drawing, ``begin`` to ``end``."""

    low: float
    high: float
    begin: float = 0.0
    end: float = 1.0

    @classmethod
    def over(cls, values: Iterable[float], begin: float, end: float) -> Axis:
        """Return an axis of values with some room around them; of no values, from 0 to 1."""
        known = list(values)
        low = min(known, default=0.0)
        high = max(known, default=1.0)
        room = 0.04 * (high - low) or 0.1 * abs(high) or 0.5
        return cls(low - room, high + room, begin, end)

    def share(self, value: float) -> float:
        """Return where a value lies in the range, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def at(self, value: float) -> float:
        """Return the place of a value in the drawing."""
        return round(self.begin + self.share(value) * (self.end - self.begin), 1)

    def ticks(self, about: int = 5) -> list[tuple[float, str]]:
        """Return the places and texts of about ``about`` round values."""
        step = _round_up((self.high - self.low) / about)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        return [(self.at(value), fixed(value, decimals)) for value in values]


def _round_up(value: float) -> float:
    """Return the smallest of 1, 2, 5 and 10 times a power of 10 that is not below a value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * value)


class ScoreScale:
    """Formats the scores of a list with the same decimals, and draws them as bars from 0."""

    def __init__(self, scores: Iterable[float | None]) -> None:
        known = [score for score in scores if is_known(score)]
        largest = max((abs(score) for score in known), default=1.0) or 1.0
        self.decimals = min(max(2 - math.floor(math.log10(largest)), 0), 8)
        low = min([*known, 0.0])
        high = max([*known, 0.0])
        self._axis = Axis(low, high if high > low else 1.0)

    @classmethod
    def of(cls, rows: Iterable[Values]) -> ScoreScale:
        """Return a scale that fits the ``score`` of every row with its ``spread``."""
        ends: list[float] = []
        for row in rows:
            if is_known(row["score"]):
                spread = row["spread"] or 0.0
                ends += [row["score"] - spread, row["score"] + spread]
        return cls(ends)

    def text(self, score: float | None, sign: bool = True) -> str:
        """Return a score with the decimals of the list, or a dash."""
        return fixed(score, self.decimals, sign=sign)

    def bar(self, score: float | None, spread: float | None) -> dict[str, str] | None:
        """Return the places of a bar from 0 to a score, and of its spread; None without a score."""
        if not is_known(score):
            return None
        around = spread if is_known(spread) else 0.0
        zero = self._place(0.0)
        tip = self._place(score)
        return {
            "zero": percent(zero),
            "from": percent(self._place(score - around)),
            "to": percent(self._place(score + around)),
            "x": percent(min(zero, tip)),
            "width": percent(abs(tip - zero)),
            "side": "less" if score < 0 else "more",
        }

    def _place(self, score: float) -> float:
        return min(max(self._axis.share(score), 0.0), 1.0)
