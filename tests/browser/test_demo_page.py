"""The page of the demonstration in a real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltacell.report.demo_page import demo_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(
    made_demo: Any, hostile: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The page, with a page to go to beside it and a hostile name in one place of each kind."""
    folder = tmp_path_factory.mktemp("page")
    result = made_demo()
    result["models"][1]["name"] = hostile[0]
    result["ranking"][2]["names"] = list(hostile[:3])
    result["ranking"][3]["names"] = [hostile[5], hostile[6], "x"]
    result["comparison"] += hostile[1]
    result["links"].append({"file": "javascript:alert(5)", "title": "no script", "words": ""})
    (folder / "ranking.html").write_text("<!doctype html><title>beside</title>")
    file = folder / "index.html"
    file.write_text(demo_page(result))
    return file


def quiet(browser: Any, page: Path) -> bool:
    """Nothing was said on the console, asked for, or shown as a dialog."""
    return (browser.said, browser.dialogs, browser.requests) == ([], [], [page.as_uri()])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (400, 1150)])
def test_the_first_screen_has_both_answers(
    browser: Any, page: Path, scheme: str, width: int, height: int
) -> None:
    browser.open(page, width=width, height=height, scheme=scheme)
    for selector in ("h1", ".marks", ".learned", ".limits"):
        left, top, right, bottom = browser.run(
            f"(b => [b.left, b.top, b.right, b.bottom])"
            f"(document.querySelector('{selector}').getBoundingClientRect())"
        )
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    assert quiet(browser, page)


@pytest.mark.parametrize("width", [320, 400, 800, 1280])
def test_the_page_never_scrolls_sideways(browser: Any, page: Path, width: int) -> None:
    browser.open(page, width=width, height=800)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_the_pictures_have_all_that_was_given(browser: Any, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('.chart .curve').length") == 2
    assert browser.run("document.querySelectorAll('.chart .additive').length") == 1
    assert browser.run("document.querySelectorAll('.marks .planted').length") == 15
    assert browser.run("document.querySelectorAll('.head tbody tr.planted').length") == 15
    inside = browser.run(
        "(s => { const b = s.getBoundingClientRect(); return [...s.querySelectorAll('*')]"
        ".every(e => { const c = e.getBoundingClientRect(); return c.left >= b.left - 2"
        " && c.right <= b.right + 2 && c.bottom <= b.bottom + 2; }); })"
        "(document.querySelector('.chart'))"
    )
    assert inside


def test_links_lead_to_files_and_run_nothing(browser: Any, page: Path) -> None:
    browser.open(page)
    assert browser.run("[...document.links].every(a => a.protocol === 'file:')")
    assert browser.run("document.links.length") == 3
    for _ in range(40):
        browser.press("Tab")
        if browser.run("document.activeElement.tagName") == "A":
            break
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert browser.run("document.activeElement.href") == (page.parent / "ranking.html").as_uri()


def test_what_is_injected_all_the_same_cannot_run(injected_runs_not: Any, page: Path) -> None:
    injected_runs_not(page)


def test_it_prints(browser: Any, page: Path) -> None:
    browser.open(page)
    assert browser.pdf().startswith(b"%PDF")
