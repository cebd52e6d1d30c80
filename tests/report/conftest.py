"""A page taken apart."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Elements with their attributes and text; every element is closed, and nothing is loaded."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self._check_it_loads_nothing(text)

    def handle_starttag(self, tag, attrs: list[tuple[str, str | None]]):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs: list[tuple[str, str | None]]):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag, css=None, **wanted):
        """Return the attributes of all elements of a tag, a class and other attributes."""
        wanted |= {} if css is None else {"class": css}
        found = [attributes for name, attributes in self.elements if name == tag]
        return [one for one in found if all(one.get(k) == v for k, v in wanted.items())]

    @property
    def words(self):
        shown = [t for tag, ts in self.texts.items() if tag not in ("script", "style") for t in ts]
        return " ".join(" ".join(shown).split())

    def _check_it_loads_nothing(self, text):
        for _, found in self.elements:
            assert not {"src", "style"} & set(found)
            assert not any(key.startswith("on") for key in found)
            assert str(found.get("href", "./")).startswith(("./", "data:,"))
        assert not {"\u2028", "\u202e"} & set(text)
        policy = self.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for tag in ("style", "script"):
            inline = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
            assert len(inline) == 1 or (tag == "script" and "script-src 'none'" in policy)
            for code in inline:
                assert not re.search(r"https?:", code.replace("http://www.w3.org/2000/svg", ""))
                digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
                assert f"{tag}-src 'sha256-{digest}'" in policy


@pytest.fixture
def parsed():
    """What takes a page apart; it fails where an element is not closed or could load anything."""
    return Page
