"""The docs site builds, every link of it leads somewhere, and nothing is loaded from a network."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]


def site_module():
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Links(HTMLParser):
    """What a page links to, what it loads, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        values = dict(attrs)
        if "id" in values:
            self.places.add(values["id"])
        if tag == "a" and values.get("href"):
            self.leads.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical",):
            self.loads.append(values.get("href", ""))
        elif values.get("src"):
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_there_and_every_link_leads_somewhere(site: Path) -> None:
    pages = {
        path.resolve(): Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")
    }
    for page in (ROOT / "docs").rglob("*.md"):
        assert site / page.relative_to(ROOT / "docs").with_suffix(".html") in pages
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        assert site / "notebooks" / f"{notebook.stem}.html" in pages
    checked = 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for target in (*page.leads, *page.loads):
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            at = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert at.is_file(), f"{path.name} leads to {target}"
            if parts.fragment and at in pages:
                assert unquote(parts.fragment) in pages[at].places, f"{path.name}: {target}"
            checked += 1
    assert checked > 100


def test_it_is_read_without_a_network(site: Path) -> None:
    for path in site.rglob("*.html"):
        for target in Links(path.read_text(encoding="utf-8")).loads:
            assert urlsplit(target).scheme in ("", "data"), f"{path.name} loads {target}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import", path.read_text(encoding="utf-8"))


def test_the_picture_has_the_numbers_of_the_table() -> None:
    module = site_module()
    splits, rows = module.accuracy((ROOT / "README.md").read_text(encoding="utf-8"))
    picture = module.PICTURE.read_text(encoding="utf-8")
    assert len(splits) == 3
    assert len(rows) >= 3
    for split in splits:
        assert f">{split}<" in picture
    for _, values in rows:
        for value in values:
            assert value is None or f">{value:.3f}<" in picture
