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

from deltacell.base.text import (
    capital,
    change_text,
    count_text,
    listed,
    printable,
    ratio_text,
    seconds_text,
)
from deltacell.report.terminal import shown


def page(name: str, *, scripts: Iterable[str] = (), **values: Any) -> str:
    """Render the templates ``name.html`` and ``name.css`` with the ``scripts``."""
    style = _source("page.css") + _source(f"{name}.css")
    script = "".join(_source(one) for one in scripts)
    values |= {"style": Markup(style), "script": Markup(script), "style_hash": _hash(style)}
    values["script_hash"] = _hash(script) if script else None
    return _environment().get_template(f"{name}.html").render(values)


def sentences(template: str, **values: Any) -> list[str]:
    text = _environment(autoescape=False).get_template(template).render(values)
    return [line for line in text.split("\n") if line]


def json_block(value: Any) -> Markup:
    """Return JSON with printable strings that cannot close the block or become markup."""
    text = json.dumps(_clean(value), allow_nan=False, separators=(",", ":"))
    return Markup(text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&"}))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list | tuple) else value


def is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def fixed(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Format a number with a typographic minus, or a dash if it is unknown."""
    if not is_known(value):
        return "–"
    # Adding 0 turns -0.0 into 0.0.
    rounded = round(value, decimals) + 0.0
    return f"{rounded:{'+' if sign and rounded else ''},.{decimals}f}".replace("-", "−")


def _percent(value: float) -> str:
    return f"{100 * value:.3f}%"


@cache
def _environment(autoescape: bool = True) -> Environment:
    made = Environment(
        loader=PackageLoader("deltacell.report"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    made.filters |= {
        "count": shown,
        "capital": capital,
        "listed": listed,
        "signed": "{:+.3g}".format,
        "number_of": count_text,
        "percent": _percent,
        "fixed": fixed,
        "time": lambda s: seconds_text(s).replace("-", "−") if is_known(s) else "–",
        "change": lambda s: change_text(s).replace("-", "−") if s else seconds_text(0.0),
        "share": lambda x: "–" if not is_known(x) else f"{fixed(100 * x, 1)} %",
        "ratio": lambda x: ratio_text(x).replace("x", "×"),
    }
    made.globals["zip"] = zip
    return made


def _source(name: str) -> str:
    templates = _environment()
    assert templates.loader is not None
    # A browser hashes the parsed text, whose line ends are line feeds.
    return templates.loader.get_source(templates, name)[0].replace("\r\n", "\n")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class Axis(NamedTuple):
    """A range of values, ``low`` to ``high``, on a stretch of a drawing, ``begin`` to ``end``."""

    low: float
    high: float
    begin: float = 0.0
    end: float = 1.0

    @classmethod
    def over(cls, values: Iterable[float], begin: float, end: float) -> Axis:
        held = list(values)
        low, high = min(held, default=0.0), max(held, default=1.0)
        room = 0.04 * (high - low) or 0.1 * abs(high) or 0.5
        return cls(low - room, high + room, begin, end)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def at(self, value: float) -> float:
        return round(self.begin + self.share(value) * (self.end - self.begin), 1)

    def ticks(self, about: int = 5) -> list[tuple[float, str]]:
        """Return the places and texts of about ``about`` round values."""
        wanted = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(wanted))
        step = next(power * x for x in (1, 2, 5, 10) if power * x >= 0.999 * wanted)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(self.at(i * step), fixed(i * step, decimals)) for i in range(first, last + 1)]


class ScoreScale:
    """Formats the scores of a list with the same decimals, and draws them as bars from 0."""

    def __init__(self, scores: Iterable[float | None]) -> None:
        known = [score for score in scores if is_known(score)]
        largest = max((abs(score) for score in known), default=1.0) or 1.0
        self.decimals = min(max(2 - math.floor(math.log10(largest)), 0), 8)
        low, high = min([*known, 0.0]), max([*known, 0.0])
        self._axis = Axis(low, high if high > low else 1.0)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> ScoreScale:
        """Return a scale that fits the ``score`` of every row with its ``spread``."""
        known = [(row["score"], row["spread"] or 0.0) for row in rows if is_known(row["score"])]
        return cls(score + sign * spread for score, spread in known for sign in (-1, 1))

    def text(self, score: float | None, sign: bool = True) -> str:
        return fixed(score, self.decimals, sign=sign)

    def bar(self, score: float | None, spread: float | None) -> dict[str, str] | None:
        if not is_known(score):
            return None
        around = spread if is_known(spread) else 0.0
        ends = (0.0, score, score - around, score + around)
        zero, at, low, high = (min(max(self._axis.share(x), 0.0), 1.0) for x in ends)
        return {
            **{"zero": _percent(zero), "from": _percent(low), "to": _percent(high)},
            **{"x": _percent(min(zero, at)), "width": _percent(abs(at - zero))},
            "side": "less" if score < 0 else "more",
        }
