"""The docs site builds, every link of it leads somewhere, and nothing is loaded from a network."""

import re
import runpy
import subprocess
import sys
from functools import partial
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Links:
    """What a page links to, what it loads, and the places in it."""

    def __init__(self, text: str) -> None:
        found = partial(re.findall, string=re.sub(r"<link[^>]*canonical[^>]*>", "", text))
        self.leads = [unescape(one) for one in found(r'<a\b[^>]*\bhref="?([^"\s>]+)')]
        self.loads = [*found(r'<link\b[^>]*\bhref="?([^"\s>]+)'), *found(r'\bsrc="?([^"\s>]+)')]
        self.places = {unescape(one) for one in found(r'\bid="?([^"\s>]+)')}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_there_and_every_link_leads_somewhere_without_a_network(site: Path) -> None:
    pages = {
        path.resolve(): Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")
    }
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]:
        assert site / page.relative_to(ROOT / "docs").with_suffix(".html") in pages
    checked = 0
    for path, page in pages.items():
        for target in page.loads:
            assert urlsplit(target).scheme in ("", "data"), f"{path.name} loads {target}"
        for target in () if path.name == "404.html" else (*page.leads, *page.loads):
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            at = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert at.is_file(), f"{path.name} leads to {target}"
            if parts.fragment and at in pages:
                assert unquote(parts.fragment) in pages[at].places, f"{path.name}: {target}"
            checked += 1
    assert checked > 100
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import", path.read_text(encoding="utf-8"))


def test_the_picture_has_the_numbers_of_the_table() -> None:
    module = runpy.run_path(str(ROOT / "docs" / "site.py"))
    splits, rows = module["accuracy"]((ROOT / "README.md").read_text(encoding="utf-8"))
    picture = module["PICTURE"].read_text(encoding="utf-8")
    assert len(splits) == 3
    assert len(rows) >= 3
    shown = [*splits, *(f"{v:.3f}" for _, values in rows for v in values if v is not None)]
    assert all(f">{text}<" in picture for text in shown)
