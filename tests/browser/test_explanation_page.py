"""The page of an explanation in a real Chromium."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from deltacell.profile.explain import explain
from deltacell.report.explanation_page import explanation_page

pytestmark = pytest.mark.slow

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script>"
OPERATIONS = ["aten::mm", "aten::add", IMAGE, SCRIPT, *(f"aten::op{i:02}" for i in range(30))]


def write_trace(path: Path, *, loading: float) -> Path:
    """A trace of three steps that wait this many microseconds for their loader."""
    events: list[dict[str, Any]] = []

    def add(name: str, begin: float, length: float, kind: str = "cpu_op", tid: Any = 1) -> None:
        event = {"ph": "X", "pid": 1, "tid": tid, "cat": kind, "name": name}
        events.append({**event, "ts": begin, "dur": length})

    begin = 0.0
    for number in range(3):
        wall = loading + 40 * len(OPERATIONS) + 100
        add(f"ProfilerStep#{number}", begin, wall, "user_annotation")
        add("enumerate(DataLoader)#_Loader.__next__", begin + 10, loading, "user_annotation")
        first = begin + loading + 20
        add("phase.forward", first, 40 * len(OPERATIONS), "user_annotation")
        for i, name in enumerate(OPERATIONS):
            add(name, first + 40 * i, 5 + i, tid=1)
        add(IMAGE, first, 50, tid=f"thread {SCRIPT}")
        begin += wall + 5
    path.write_text(json.dumps({"traceEvents": events, "pytorch_version": IMAGE}))
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hostile traces of which the second waits for its loader, explained."""
    folder = tmp_path_factory.mktemp("page")
    a = write_trace(folder / "before.json", loading=100)
    b = write_trace(folder / "after<b>&amp;.json", loading=900)
    file = folder / "explanation page.html"
    file.write_text(explanation_page(explain(a, b).to_json()))
    return file


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    browser.open(page)
    return browser


def quiet(browser: Any, page: Path) -> bool:
    """Nothing was said on the console, asked for, or shown as a dialog."""
    return (browser.said, browser.dialogs, browser.requests) == ([], [], [page.as_uri()])


def test_it_opens_from_a_file_and_says_nothing_on_the_console(opened: Any, page: Path) -> None:
    assert quiet(opened, page)
    assert "data loading accounts for +800 µs" in opened.run(
        "document.querySelector('h1').innerText"
    )


def test_hostile_names_are_shown_and_do_not_run(opened: Any, page: Path) -> None:
    opened.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    opened.run("document.querySelectorAll('.toggle:not([hidden])').forEach(b => b.click())")
    opened.settle()
    text = opened.run("document.body.innerText")
    assert IMAGE in text
    assert SCRIPT in text
    assert "after<b>&amp;" in text
    assert opened.run("document.images.length") == 0
    assert opened.run("document.scripts.length") == 2
    # Every bar is visited, so that every name has been put into the page by the script.
    opened.run("document.getElementById('timeline').focus()")
    said = set()
    for _ in range(80):
        opened.press("n")
        said.add(opened.run("document.querySelector('#timeline-chosen b').textContent"))
    assert {IMAGE, SCRIPT} <= said
    assert quiet(opened, page)


def test_what_is_injected_all_the_same_cannot_run(injected_runs_not: Any, page: Path) -> None:
    injected_runs_not(page)


SHOWN = """(name => { const rows = [...document.querySelectorAll('section.table')]
  .find(s => s.querySelector('h2').innerText.startsWith(name)).querySelector('tbody').rows;
  return [...rows].filter(r => !r.hidden).map(r => [...r.cells].map(c => c.innerText.trim()));
})"""


def table_of(browser: Any, title: str) -> str:
    """Return the selector of the table with this title, opened and in view."""
    found: str = browser.run(
        f"""(() => {{ const s = [...document.querySelectorAll('section.table')]
        .find(s => s.querySelector('h2').innerText.startsWith({json.dumps(title)}));
        s.querySelector('details').open = true; s.scrollIntoView(); return '#' + s.id; }})()"""
    )
    return found


def test_tables_sort_by_mouse_and_by_keyboard(opened: Any) -> None:
    title = "Where the time of after"
    table = table_of(opened, title)
    column = f"{table} th:nth-child(2)"

    def rows() -> list[float]:
        return [float(row[1].replace(",", "")) for row in opened.run(f"{SHOWN}({title!r})")]

    opened.click(f"{column} button")
    assert opened.run(f"document.querySelector('{column}').ariaSort") == "descending"
    assert rows() == sorted(rows(), reverse=True)
    assert len(set(rows())) > 1
    opened.press("Enter")
    assert opened.run(f"document.querySelector('{column}').ariaSort") == "ascending"
    assert rows() == sorted(rows())
    opened.click(f"{table} th:nth-child(1) button")
    names = [row[0] for row in opened.run(f"{SHOWN}({title!r})")]
    assert names == sorted(names)
    assert opened.run(f"document.querySelectorAll('{table} [aria-sort]').length") == 1


def test_tables_filter_and_long_ones_begin_short(opened: Any) -> None:
    title = "Operations of the host by self time: after"
    table = table_of(opened, title)
    told = f"document.querySelector('{table} .filter output').textContent"
    every = int(opened.run(told).split()[0])
    assert every > len(OPERATIONS) - 5
    assert len(opened.run(f"{SHOWN}({title!r})")) == 12
    opened.click(f"{table} .toggle")
    assert len(opened.run(f"{SHOWN}({title!r})")) == every
    opened.click(f"{table} input")
    opened.type("OP1")
    rows = opened.run(f"{SHOWN}({title!r})")
    assert {row[0] for row in rows} <= {f"aten::op1{i}" for i in range(10)}
    assert len(rows) > 1
    assert opened.run(told) == f"{len(rows)} of {every} rows"
    opened.type(" no such")
    assert opened.run(f"{SHOWN}({title!r})") == []


def view(browser: Any) -> tuple[float, float]:
    begin, end = browser.run(
        "(d => [Number(d.from), Number(d.to)])(document.getElementById('timeline').dataset)"
    )
    return begin, end


def drawn(browser: Any) -> str:
    """What the first rank's canvas looks like."""
    found: str = browser.run("document.querySelector('canvas').toDataURL()")
    return found


def test_the_timeline_zooms_by_buttons_keys_and_wheel(opened: Any, page: Path) -> None:
    whole, first = view(opened), drawn(opened)
    assert whole[0] == 0
    opened.click("[data-do=in]")
    half = view(opened)
    assert half[1] - half[0] == pytest.approx(whole[1] / 2)
    assert drawn(opened) != first
    opened.click("[data-do=all]")
    assert (view(opened), drawn(opened)) == (whole, first)

    opened.run("document.getElementById('timeline').focus()")
    opened.press("+")
    opened.press("+")
    quarter = view(opened)
    assert quarter[1] - quarter[0] == pytest.approx(whole[1] / 4)
    opened.press("ArrowRight")
    assert view(opened)[0] > quarter[0]
    opened.press("ArrowLeft")
    assert view(opened) == pytest.approx(quarter)
    opened.press("-")
    opened.press("0")
    assert view(opened) == whole

    opened.wheel("canvas", -300)
    turned = view(opened)
    assert turned[1] - turned[0] < whole[1]
    opened.press("0")
    opened.press("n")
    opened.press("n")
    opened.press("Enter")
    assert view(opened) != whole
    assert quiet(opened, page)


def test_the_wheel_scrolls_the_page_where_the_timeline_has_no_focus(opened: Any) -> None:
    whole = view(opened)
    opened.wheel("canvas", -300)
    assert view(opened) == whole


def test_a_bar_pointed_at_says_what_it_is(opened: Any) -> None:
    opened.middle("canvas")
    x, y = opened.run(
        "(b => [b.x + b.width / 4, b.y + 20 + 19 + 8])"
        "(document.querySelector('canvas').getBoundingClientRect())"
    )
    opened.move(x, y)
    assert "ProfilerStep" in opened.run("document.getElementById('timeline-chosen').textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (360, 740)])
def test_the_first_screen_shows_the_sentence(
    browser: Any, page: Path, scheme: str, width: int, height: int
) -> None:
    browser.open(page, width=width, height=height, scheme=scheme)
    place = browser.run(
        "(b => [b.left, b.top, b.right, b.bottom])"
        "(document.querySelector('h1').getBoundingClientRect())"
    )
    assert place[0] >= 0
    assert place[2] <= width
    assert 0 <= place[1] < place[3] <= height
    screen = Image.open(io.BytesIO(browser.screenshot())).convert("L")
    assert screen.size == (width, height)
    sentence = screen.crop(tuple(round(side) for side in place))  # type: ignore[arg-type]
    dark, light = sentence.getextrema()
    paper = screen.getpixel((2, 2))
    assert (paper > 200) if scheme == "light" else (paper < 60)
    assert light - dark > 150
    # Letters cover a part of the place of the sentence, not none and not all of it.
    inked = sum(abs(value - paper) > 100 for value in sentence.tobytes()) / len(sentence.tobytes())
    assert 0.02 < inked < 0.5
    assert quiet(browser, page)


@pytest.mark.parametrize("width", [320, 390, 800, 1280])
def test_the_page_never_scrolls_sideways(browser: Any, page: Path, width: int) -> None:
    browser.open(page, width=width, height=800)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_all_controls_are_reached_by_tab_and_the_focus_is_seen(opened: Any) -> None:
    opened.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    wanted = opened.run(
        "[...document.querySelectorAll('button, input, summary, #timeline')]"
        ".filter(e => e.checkVisibility()).length"
    )
    reached = 0
    for _ in range(3 * wanted):
        opened.press("Tab")
        seen = opened.run(
            "(e => e === document.body ? null : [e.matches('button, input, summary, #timeline'),"
            " getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        if seen is None:
            break
        reached += seen[0]
        assert seen[1] != "none"
    assert reached == wanted


def test_it_prints(opened: Any) -> None:
    assert opened.pdf().startswith(b"%PDF")
