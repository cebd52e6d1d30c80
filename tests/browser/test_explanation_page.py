"""The page of an explanation in a real Chromium: its tables and its timeline."""

import json

import pytest

from deltacell.profile.explain import explain
from deltacell.report.explanation_page import explanation_page

pytestmark = pytest.mark.slow

SHOWN = """(id => [...document.querySelector(id + ' tbody').rows].filter(r => !r.hidden)
  .map(r => [...r.cells].map(c => c.innerText.trim())))"""


@pytest.fixture(scope="module")
def page(hostile_trace, tmp_path_factory):
    """Two hostile traces of which the second waits for its loader, explained."""
    folder = tmp_path_factory.mktemp("page")
    a = hostile_trace(folder / "before.json", loading=100)
    b = hostile_trace(folder / "after<b>&amp;.json", loading=900)
    file = folder / "explanation page.html"
    file.write_text(explanation_page(explain(a, b).to_json()))
    return file


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    return browser


def table_of(browser, title):
    """Return the selector of the table with this title, opened and in view."""
    found: str = browser.run(
        f"""(() => {{ const s = [...document.querySelectorAll('section.table')]
        .find(s => s.querySelector('h2').innerText.startsWith({json.dumps(title)}));
        s.querySelector('details').open = true; s.scrollIntoView(); return '#' + s.id; }})()""",
    )
    return found


def view(browser):
    dataset = "document.getElementById('timeline').dataset"
    begin, end = browser.run(f"(d => [Number(d.from), Number(d.to)])({dataset})")
    return begin, end


def test_hostile_names_are_shown_and_do_not_run(opened, page, hostile):
    assert "data loading accounts for +800 µs" in opened.text("h1")
    opened.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    opened.run("document.querySelectorAll('.toggle:not([hidden])').forEach(b => b.click())")
    text = opened.run("document.body.innerText")
    for name in (*hostile[:2], "after<b>&amp;"):
        assert name in text
    # Every bar is visited, so that every name has been put into the page by the script.
    opened.run("document.getElementById('timeline').focus()")
    said = set()
    for _ in range(80):
        opened.press("n")
        said.add(opened.text("#timeline-chosen b"))
    assert set(hostile[:2]) <= said
    assert (opened.run("document.images.length"), opened.run("document.scripts.length")) == (0, 2)
    assert opened.is_quiet(page)


@pytest.mark.parametrize("length", [90, 120, 150, 195])
def test_the_first_sentence_takes_two_lines_of_a_wide_window(browser, tmp_path, page, length):
    words = (
        "subgraph takes 23x as long per sample as dango (101 ms against 4.40 ms): every mutant has"
    )
    sentence = f"{words} a graph of its own (propagation=subgraph), and dango passes messages once "
    sentence += "per step, which is faster on this cell."
    values = explain(page.parent / "before.json").to_json()
    file = tmp_path / "page.html"
    file.write_text(explanation_page({**values, "sentence": sentence[:length].rjust(length, "x")}))
    browser.open(file, width=1280)
    height = browser.run("parseFloat(getComputedStyle(document.querySelector('h1')).lineHeight)")
    _, top, _, bottom = browser.box("h1")
    assert round((bottom - top) / height) <= 2


def test_tables_sort_by_mouse_and_by_keyboard(opened):
    table = table_of(opened, "Where the time of after")
    column = f"{table} th:nth-child(2)"

    def cells(i):
        return [row[i] for row in opened.run(f"{SHOWN}({table!r})")]

    for order, act in (
        ("descending", lambda: opened.click(f"{column} button")),
        ("ascending", lambda: opened.press("Enter")),
    ):
        act()
        assert opened.run(f"document.querySelector('{column}').ariaSort") == order
        numbers = [float(cell.replace(",", "")) for cell in cells(1)]
        assert numbers == sorted(numbers, reverse=order == "descending")
        assert len(set(numbers)) > 1
    opened.click(f"{table} th:nth-child(1) button")
    assert cells(0) == sorted(cells(0))
    assert opened.count(f"{table} [aria-sort]") == 1


def test_tables_filter_and_long_ones_begin_short(opened):
    table = table_of(opened, "What the host does, by change")
    every = int(opened.text(f"{table} .filter output").split()[0])
    assert every > 30
    assert len(opened.run(f"{SHOWN}({table!r})")) == 12
    opened.click(f"{table} .toggle")
    assert len(opened.run(f"{SHOWN}({table!r})")) == every
    opened.click(f"{table} input")
    opened.type("OP1")
    rows = opened.run(f"{SHOWN}({table!r})")
    assert {row[0] for row in rows} <= {f"aten::op1{i}" for i in range(10)}
    assert len(rows) > 1
    assert opened.text(f"{table} .filter output") == f"{len(rows)} of {every} rows"
    opened.type(" no such")
    assert opened.run(f"{SHOWN}({table!r})") == []


def test_the_timeline_zooms_by_buttons_keys_and_wheel(opened):
    def drawn():
        return opened.run("document.querySelector('canvas').toDataURL()")

    whole, first = view(opened), drawn()
    # Without the focus the wheel scrolls the page.
    opened.wheel("canvas", -300)
    assert view(opened) == whole
    opened.click("[data-do=in]")
    half = view(opened)
    assert half[1] - half[0] == pytest.approx(whole[1] / 2)
    assert drawn() != first
    opened.click("[data-do=all]")
    assert (view(opened), drawn()) == (whole, first)
    opened.run("document.getElementById('timeline').focus()")
    opened.press("+", "+")
    quarter = view(opened)
    assert quarter[1] - quarter[0] == pytest.approx(whole[1] / 4)
    opened.press("ArrowRight")
    assert view(opened)[0] > quarter[0]
    opened.press("ArrowLeft")
    assert view(opened) == pytest.approx(quarter)
    opened.press("-", "0")
    assert view(opened) == whole
    opened.wheel("canvas", -300)
    turned = view(opened)
    assert turned[1] - turned[0] < whole[1]
    opened.press("0", "n", "n", "Enter")
    assert view(opened) != whole


def test_a_bar_pointed_at_says_what_it_is(opened):
    opened.middle("canvas")
    left, top, right, _ = opened.box("canvas")
    opened.move(left + (right - left) / 4, top + 20 + 19 + 8)
    assert "ProfilerStep" in opened.text("#timeline-chosen")
