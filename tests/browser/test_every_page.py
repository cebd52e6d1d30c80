"""What holds for all pages in a real Chromium: hostile names, sizes, colours, keys, paper."""

import io

import pytest
from PIL import Image
from simulated_trials import SimulatedRunner, side

from deltacell.profile.explain import explain
from deltacell.report.comparison import comparison_page
from deltacell.report.explanation_page import explanation_page
from deltacell.report.predict import demo_page, ranking_page
from deltacell.train.comparing.compare import compare_trainings

pytestmark = pytest.mark.slow
PAGES = ("comparison", "demo", "explanation", "ranking")
FIRST = {
    "comparison": ("h1",),
    "demo": ("h1", ".marks", ".learned", ".limits"),
    "explanation": ("h1",),
}


@pytest.fixture(scope="module")
def pages(made_demo, made_ranking, hostile_trace, hostile, tmp_path_factory):
    """Each page, with hostile names in it."""
    folder = tmp_path_factory.mktemp("pages")
    demo = made_demo()
    demo["models"][1]["name"] = hostile[0]
    demo["ranking"][2]["names"] = list(hostile[:3])
    demo["ranking"][3]["names"] = [hostile[5], hostile[6], "x"]
    demo["comparison"] += hostile[1]
    demo["links"].append({"file": "javascript:alert(5)", "title": "no script", "words": ""})
    trace = explain(hostile_trace(folder / "trace.json", loading=900)).to_json()
    ranking = made_ranking(60, names=hostile, relations=[*hostile[:4], "coexpression"])
    tried = compare_trainings(
        side(hostile[0], "model.propagation=subgraph"),
        side(hostile[1], "data.batch_size=8"),
        folder / "tried",
        run=SimulatedRunner(),
        turns=1,
    )
    texts = {
        "comparison": comparison_page(tried.to_json()),
        "demo": demo_page(demo),
        "explanation": explanation_page(trace),
        "ranking": ranking_page(ranking),
    }
    for name, text in texts.items():
        (folder / f"{name} page.html").write_text(text)
    return {name: folder / f"{name} page.html" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_from_a_file_prints_and_runs_nothing_but_its_own(
    browser, pages, name, tmp_path
):
    browser.open(pages[name])
    assert browser.run("document.images.length") == 0
    assert browser.run("[...document.links].every(a => a.protocol === 'file:')")
    assert browser.is_quiet(pages[name])
    assert browser.pdf().startswith(b"%PDF")
    broken = tmp_path / "broken.html"
    injected = "<img src=x onerror=alert(1)><script>alert(2)</script></main>"
    broken.write_text(pages[name].read_text().replace("</main>", injected))
    browser.open(broken)
    assert browser.dialogs == []
    assert any("Content Security Policy" in said for said in browser.said)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [320, 400, 800, 1280])
def test_a_page_never_scrolls_sideways(browser, pages, name, width):
    browser.open(pages[name], width=width)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    if name == "ranking":
        browser.click("#rows tr[data-row='2'] td.genes")
        assert browser.is_seen("#panel")
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (400, 1150)])
def test_the_first_screen_has_the_answer(browser, pages, name, scheme, width, height):
    browser.open(pages[name], width=width, height=height, scheme=scheme)
    for selector in FIRST[name]:
        left, top, right, bottom = browser.box(selector)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    screen = Image.open(io.BytesIO(browser.screenshot())).convert("L")
    sentence = screen.crop(tuple(round(side) for side in browser.box("h1")))  # type: ignore
    paper = screen.getpixel((2, 2))
    assert (paper > 200) if scheme == "light" else (paper < 60)
    # Letters cover a part of the place of the sentence, not none and not all of it.
    inked = sum(abs(value - paper) > 100 for value in sentence.tobytes()) / len(sentence.tobytes())
    assert 0.02 < inked < 0.5


@pytest.mark.parametrize("name", ["demo", "explanation"])
def test_all_controls_are_reached_by_tab_and_the_focus_is_seen(browser, pages, name):
    browser.open(pages[name])
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    controls = "a, button, input, summary, #timeline"
    found = f"[...document.querySelectorAll('{controls}')].filter(e => e.checkVisibility())"
    wanted, reached = browser.run(f"{found}.length"), 0
    for _ in range(3 * wanted):
        browser.press("Tab")
        seen = browser.run(
            f"(e => e === document.body ? null : [e.matches('{controls}'),"
            " getComputedStyle(e).outlineStyle])(document.activeElement)",
        )
        if seen is None:
            break
        reached += seen[0]
        assert seen[1] != "none"
    assert reached == wanted
