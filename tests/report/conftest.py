"""A page taken apart."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Elements with their attributes and text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and all(attributes.get(k) == v for k, v in wanted.items())
        ]

    @property
    def words(self) -> str:
        shown = [
            text
            for tag, texts in self.texts.items()
            if tag not in ("script", "style")
            for text in texts
        ]
        return " ".join(" ".join(shown).split())


@pytest.fixture
def loads_nothing() -> Callable[[str], None]:
    """Fail where a page names anything to load, or where more than its own script could run."""
    return check_it_loads_nothing


def check_it_loads_nothing(text: str) -> None:
    page = Page(text)
    # The name of SVG is an address that nothing asks for.
    plain = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]", re.sub(r"//[^\n]*", "", plain))
    for _, found in page.elements:
        assert "src" not in found
        assert "style" not in found
        assert found.get("href") in (None, "data:,")
    policy = str(page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"])
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inline,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


@pytest.fixture
def parsed() -> type[Page]:
    """What takes a page apart; it fails where an element is not closed."""
    return Page
