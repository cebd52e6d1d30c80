"""The sentences of explanations: Jinja templates, one per line of ``sentences.txt``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from deltacell import words


def say(key: str, **values: Any) -> str:
    return _templates()[key].render(values)


def has(key: str) -> bool:
    return key in _templates()


@cache
def _templates() -> dict[str, Template]:
    made = Environment(undefined=StrictUndefined, autoescape=False)
    made.filters |= {
        "change": words.change_text,
        "formatted": format,
        "listed": words.listed,
        "name": words.short_name,
        "number_of": words.count_text,
        "ratio": words.ratio_text,
        "share": words.share_text,
        "time": words.seconds_text,
    }
    lines = Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {key: made.from_string(text) for key, text in pairs}
