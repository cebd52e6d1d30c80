"""What every page is made of: one file that loads nothing and runs its own script only.

Names on a page come from files of others and are untrusted. They reach it as escaped text, or
inside a block of JSON in which nothing can end the block, and a script only sets them as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def page(name: str, *, scripts: Sequence[str], **values: Any) -> str:
    """Return a page from the templates of its name, ``name.html`` and ``name.css``.

    Parameters
    ----------
    name
        Of the templates; the HTML extends ``page.html``.
    scripts
        Templates of what runs on it, in order.
    values
        What the template shows.
    """
    style = _source("page.css") + _source(f"{name}.css")
    script = "".join(_source(one) for one in scripts)
    return (
        _environment()
        .get_template(f"{name}.html")
        .render(
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script) if script else None,
            **values,
        )
    )


def json_block(value: Any) -> Markup:
    """Return JSON that nothing inside can end or turn into markup."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def percent(value: float) -> str:
    """Return a share of a drawing's width or height as SVG has it."""
    return f"{100 * value:.3f}%"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("deltacell.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(name: str) -> str:
    templates = _environment()
    if templates.loader is None:
        raise AssertionError("the page has no templates")
    # A browser hashes what it parsed, in which a line ends with a line feed only.
    return templates.loader.get_source(templates, name)[0].replace("\r\n", "\n")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
