"""The page of a ranking in a real Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deltacell.report.ranking_page import ranking_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(made_ranking: Any, hostile: tuple[str, ...]) -> Any:
    """400 sets of 40 genes, some with hostile names, by hostile relations."""
    made = made_ranking(400, measured=300, names=hostile, relations=[*hostile[:4], "coexpression"])
    for row in made["rows"][::9]:
        row["pathways"] = [*row["pathways"], hostile[1]]
    return made


@pytest.fixture(scope="module")
def page(result: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "ranking page.html"
    file.write_text(ranking_page(result))
    return file


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    browser.open(page)
    return browser


def quiet(browser: Any, page: Path) -> bool:
    """Nothing was said on the console, asked for, or shown as a dialog."""
    return (browser.said, browser.dialogs, browser.requests) == ([], [], [page.as_uri()])


def left(browser: Any) -> list[int]:
    """Return which rows are left, all of them shown first."""
    browser.run("(f => f.hidden || f.click())(document.getElementById('further'))")
    found: list[int] = browser.run(
        "[...document.querySelectorAll('#rows tr[data-row]')].filter(r => r.checkVisibility())"
        ".map(r => Number(r.dataset.row))"
    )
    return found


def search(browser: Any, text: str) -> None:
    """Write into the search as a person does."""
    browser.run("document.getElementById('search').value = ''")
    browser.run("document.getElementById('search').focus()")
    browser.type(text)


def set_facet(browser: Any, name: str, said: str) -> None:
    """Choose the option of a filter whose text begins so."""
    browser.run(
        f"""((s, text) => {{
        s.value = [...s.options].find(o => o.textContent.startsWith(text)).value;
        s.dispatchEvent(new Event('change')); }})
        (document.querySelector('[data-facet={name}]'), {json.dumps(said)})"""
    )


def with_genes(result: Any, *names: str) -> list[int]:
    return [i for i, row in enumerate(result["rows"]) if set(names) <= set(row["names"])]


def test_it_opens_from_a_file_and_says_nothing_on_the_console(opened: Any, page: Path) -> None:
    assert opened.run("document.querySelector('h1').innerText").startswith("Untested triples")
    assert opened.run("document.getElementById('found').textContent") == "400 rows"
    assert quiet(opened, page)


def test_searching_by_gene_leaves_only_its_sets(opened: Any, result: Any) -> None:
    # ABC1 is the whole name of a gene: ABC10 to ABC19 are others.
    search(opened, "abc1")
    wanted = with_genes(result, "ABC1")
    assert left(opened) == wanted
    assert len(wanted) > 1
    said = opened.run("document.getElementById('found').textContent")
    assert said == f"{len(wanted)} of 400 rows"
    search(opened, "ABC1, abc20")
    assert left(opened) == with_genes(result, "ABC1", "ABC20") != []
    # By the systematic name too, and by a part of a name.
    gene = result["rows"][0]["genes"][0]
    search(opened, gene.lower())
    assert left(opened) == [i for i, r in enumerate(result["rows"]) if gene in r["genes"]]
    search(opened, "BC3")
    some = [
        i
        for i, r in enumerate(result["rows"])
        if any(name.startswith("ABC3") for name in r["names"])
    ]
    assert left(opened) == some
    search(opened, "no such gene")
    assert left(opened) == []
    assert opened.run("document.getElementById('nothing').checkVisibility()")
    opened.press("Escape")
    assert len(left(opened)) == 400


def test_the_longest_list_is_searched_and_sorted_too(
    browser: Any, made_ranking: Any, tmp_path: Path
) -> None:
    made = made_ranking(2000, measured=2000)
    file = tmp_path / "page.html"
    file.write_text(ranking_page(made))
    browser.open(file)
    search(browser, "ABC1")
    assert left(browser) == with_genes(made, "ABC1")
    browser.press("Escape")
    assert len(left(browser)) == 2000
    browser.run("document.querySelector('th.score button').click()")
    scores = [made["rows"][i]["score"] for i in left(browser)]
    assert scores == sorted(scores, reverse=True)
    assert browser.run("document.querySelectorAll('#scatter .points circle').length") == 2000
    assert quiet(browser, file)


def test_hostile_names_are_found_shown_and_do_not_run(
    opened: Any, page: Path, result: Any, hostile: tuple[str, ...]
) -> None:
    for name in hostile:
        if not name.isprintable():
            continue
        search(opened, name)
        wanted = with_genes(result, name)
        assert left(opened) == wanted != []
        assert name[:15] in opened.run("document.getElementById('panel').textContent")
        assert name in opened.run(
            "[...document.querySelectorAll('.network .node title')].map(t => t.textContent)"
        )
    assert opened.run("document.images.length") == 0
    assert opened.run("document.scripts.length") == 2
    # A name that a shell would take apart is in no command.
    genes = {gene for row in result["rows"] for gene in row["genes"]}
    opened.press("Escape")
    for command in opened.run(
        "[...document.querySelectorAll('#panel code')].map(c => c.innerText)"
    ):
        inside = command.split('"')[1].split()
        assert set(inside) <= genes
    assert quiet(opened, page)


def test_a_gene_whose_name_a_shell_would_take_apart_is_in_no_command(
    browser: Any, made_ranking: Any, tmp_path: Path
) -> None:
    made = made_ranking(1)
    (row,) = made["rows"]
    file = tmp_path / "page.html"
    for name, is_there in (("$(reboot)", False), ("-x", False), ("YAL001W-A", True)):
        row |= {"genes": [name, *row["genes"][1:]], "links": []}
        file.write_text(ranking_page(made))
        browser.open(file)
        assert bool(browser.run("document.querySelectorAll('#panel code').length")) == is_there


def test_filters_work_together(opened: Any, page: Path, result: Any) -> None:
    rows = result["rows"]
    relation = result["relations"][0]
    set_facet(opened, "relation", relation)
    by_relation = [i for i, row in enumerate(rows) if relation in row["relations"]]
    assert left(opened) == by_relation
    set_facet(opened, "pathway", "some")
    both = [i for i in by_relation if rows[i]["pathways"]]
    assert left(opened) == both
    set_facet(opened, "complex", "none")
    three = [i for i in both if not rows[i]["complexes"]]
    assert left(opened) == three
    # What another choice would leave is said beside it.
    counts = opened.run(
        "[...document.querySelectorAll('[data-facet=status] option')].map(o => o.textContent)"
    )
    for status, said in (("untested", "untested"), ("tested", "tested, not significant")):
        n = sum(rows[i]["status"] == status for i in three)
        assert f"{said} ({n})" in counts
    set_facet(opened, "status", "untested")
    set_facet(opened, "end", "highest")
    set_facet(opened, "linked", "not linked")
    search(opened, "ABC3")
    wanted = [
        i
        for i in three
        if rows[i]["status"] == "untested"
        and rows[i]["end"] == "highest"
        and rows[i]["linked"] is False
        and "ABC3" in rows[i]["names"]
    ]
    assert left(opened) == wanted
    assert 0 < len(wanted) < len(three) < len(both) < len(by_relation)
    opened.click("#clear")
    assert len(left(opened)) == 400
    assert quiet(opened, page)


def test_filters_without_a_choice_are_not_there(
    browser: Any, made_ranking: Any, tmp_path: Path
) -> None:
    made = made_ranking(9, relations=(), statuses=("untested",), ends=(None,), runs=1, measured=0)
    for row in made["rows"]:
        row |= {"pathways": [], "complexes": [], "linked": False}
    file = tmp_path / "page.html"
    file.write_text(ranking_page(made))
    browser.open(file)
    visible = "[...document.querySelectorAll('#filters select')].filter(s => s.checkVisibility())"
    assert browser.run(f"{visible}.length") == 0
    assert len(left(browser)) == 9
    assert browser.run("document.querySelectorAll('#scatter').length") == 0
    assert quiet(browser, file)


def test_sorting_goes_by_the_numbers(opened: Any, result: Any) -> None:
    scores = [row["score"] for row in result["rows"]]
    opened.click("th.score button")
    found = [scores[i] for i in left(opened)]
    assert found == sorted(scores, reverse=True)
    opened.press("Enter")
    assert [scores[i] for i in left(opened)] == sorted(scores)
    opened.click("th.measured button")
    known = [result["rows"][i]["measured"] for i in left(opened)]
    n = sum(value is not None for value in known)
    assert known[:n] == sorted(known[:n], reverse=True)
    assert set(known[n:]) == {None}
    opened.click("th.rank button")
    opened.press("Enter")
    assert left(opened) in (list(range(400)), list(reversed(range(400))))


def test_a_chosen_row_is_drawn_with_all_its_genes_and_links(
    opened: Any, page: Path, result: Any
) -> None:
    most = max(range(100), key=lambda i: len(result["rows"][i]["links"]))
    none = next(i for i in range(100) if not result["rows"][i]["links"])
    for i in (0, 7, most, none):
        row = result["rows"][i]
        opened.click(f"#rows tr[data-row='{i}'] td.genes")
        assert opened.run("document.querySelectorAll('.network .node').length") == len(row["genes"])
        assert opened.run("document.querySelectorAll('.network .edge').length") == len(row["links"])
        names = [link["relation"] for link in row["links"]]
        drawn = opened.run(
            "[...document.querySelectorAll('.network .edge title')].map(t => t.textContent)"
        )
        assert sorted(drawn) == sorted(names)
        key = opened.run("document.querySelectorAll('#panel .legend li').length")
        assert key == len(set(names))
        assert opened.run("document.querySelectorAll('#rows [aria-selected=true]').length") == 1
        inside = opened.run(
            "(s => { const b = s.getBoundingClientRect(); return [...s.querySelectorAll("
            "'circle, path')].every(e => { const c = e.getBoundingClientRect(); return c.left >= "
            "b.left - 1 && c.right <= b.right + 1 && c.top >= b.top - 1 && c.bottom <= b.bottom "
            "+ 1; }); })(document.querySelector('.network'))"
        )
        assert inside
    assert len(result["rows"][most]["links"]) > 3
    assert quiet(opened, page)


def test_sets_of_any_size_are_drawn(browser: Any, made_ranking: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for size in (1, 2, 5):
        made = made_ranking(6, size=size, runs=1, measured=0)
        file.write_text(ranking_page(made))
        browser.open(file)
        places = browser.run(
            "[...document.querySelectorAll('.network circle')].map(c => [c.getAttribute('cx'),"
            " c.getAttribute('cy')].join())"
        )
        assert len(set(places)) == size
        assert not any("NaN" in place for place in places)
        edges = browser.run("document.querySelectorAll('.network .edge').length")
        assert edges == len(made["rows"][0]["links"])
        assert "±" not in browser.run("document.getElementById('panel').textContent")
        assert quiet(browser, file)


def test_a_gene_of_the_chosen_set_leads_to_all_its_sets(opened: Any, result: Any) -> None:
    gene = result["rows"][0]["genes"][1]
    opened.click("#panel .more-of button:nth-of-type(2)")
    assert left(opened) == [i for i, row in enumerate(result["rows"]) if gene in row["genes"]]


def test_the_scatter_has_a_point_for_every_measured_set_and_marks_those_sought(
    opened: Any, result: Any
) -> None:
    points = "document.querySelectorAll('#scatter .points circle"
    assert opened.run(f"{points}').length") == 300
    assert opened.run(f"{points}.test').length") == 75
    search(opened, "ABC5")
    wanted = sum("ABC5" in one["names"] for one in result["measured"])
    assert opened.run(f"{points}.with').length") == wanted > 0
    said = opened.run(f"[...{points}.with title')].map(t => t.textContent)")
    assert all("ABC5" in one.split(":")[0].split() for one in said)
    opened.press("Escape")
    assert opened.run(f"{points}.with').length") == 0


def focus(browser: Any) -> dict[str, Any]:
    """Return what has the focus and whether that is seen."""
    found: dict[str, Any] = browser.run(
        "(e => ({id: e.id, row: e.dataset.row === undefined ? null : Number(e.dataset.row),"
        " facet: e.dataset.facet || null, tag: e.tagName,"
        " seen: getComputedStyle(e).outlineStyle !== 'none'}))(document.activeElement)"
    )
    return found


def test_the_keyboard_alone_suffices(opened: Any, page: Path, result: Any) -> None:
    opened.press("/")
    assert focus(opened)["id"] == "search"
    opened.type("ABC4")
    of_gene = with_genes(result, "ABC4")
    met = []
    for _ in range(30):
        opened.press("Tab")
        now = focus(opened)
        assert now["seen"]
        met.append(now)
        if now["row"] is not None:
            break
    assert [one["facet"] for one in met if one["facet"]] == [
        "end", "status", "relation", "pathway", "complex", "evidence", "linked",
    ]  # fmt: skip
    # The rows are one stop, on which the arrows go from set to set.
    assert met[-1]["row"] == of_gene[0]
    opened.press("ArrowDown")
    opened.press("ArrowDown")
    assert focus(opened)["row"] == of_gene[2]
    assert focus(opened)["seen"]
    row = result["rows"][of_gene[2]]
    assert opened.run("document.querySelectorAll('.network .edge').length") == len(row["links"])
    opened.press("ArrowUp")
    assert focus(opened)["row"] == of_gene[1]
    # The last one is beyond those shown at first.
    opened.press("/")
    opened.press("Escape")
    while focus(opened)["row"] is None:
        opened.press("Tab")
    opened.press("End")
    assert focus(opened)["row"] == 399
    opened.press("Home")
    assert focus(opened)["row"] == 0
    opened.press("Tab")
    assert focus(opened)["tag"] == "BUTTON"
    assert quiet(opened, page)


def test_without_scripts_every_row_is_there(browser: Any, page: Path) -> None:
    browser.open(page, scripts=False)
    seen = "[...document.querySelectorAll('#rows tr')].filter(r => r.checkVisibility()).length"
    assert browser.run(seen) == 400
    assert not browser.run("document.getElementById('filters').checkVisibility()")
    assert not browser.run("document.getElementById('keys').checkVisibility()")
    assert browser.run("document.querySelectorAll('#scatter .points circle').length") == 300
    assert browser.run("document.querySelector('footer noscript').textContent") != ""
    assert (browser.dialogs, browser.requests) == ([], [page.as_uri()])


@pytest.mark.parametrize("width", [320, 400, 760, 1000, 1280])
def test_the_page_never_scrolls_sideways(browser: Any, page: Path, width: int) -> None:
    browser.open(page, width=width, height=800)
    browser.click("#rows tr[data-row='2'] td.genes")
    assert browser.run("document.querySelectorAll('.network .node').length") == 3
    assert browser.run("document.getElementById('panel').checkVisibility()")
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_on_a_narrow_screen_the_network_is_below_its_row_and_goes_again(
    browser: Any, page: Path
) -> None:
    browser.open(page, width=400, height=800)
    assert not browser.run("document.getElementById('panel').checkVisibility()")
    browser.click("#rows tr[data-row='3'] td.genes")
    above = browser.run(
        "document.getElementById('panel').closest('tr').previousElementSibling.dataset.row"
    )
    assert above == "3"
    assert len(left(browser)) == 400
    # Sorting takes it along, and leaves as many rows.
    browser.run("document.querySelector('th.spread button').click()")
    assert len(left(browser)) == 400
    browser.run("document.querySelector('th.score button').click()")
    assert len(left(browser)) == 400
    assert browser.run("document.querySelectorAll('#rows .within').length") == 1
    browser.click("#rows tr[data-row='3'] td.genes")
    assert not browser.run("document.getElementById('panel').checkVisibility()")
    browser.resize(1280, 800)
    browser.settle()
    browser.click("#rows tr[data-row='3'] td.genes")
    assert browser.run("document.getElementById('panel').parentElement.id") == "beside"
    assert quiet(browser, page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_page(browser: Any, page: Path, scheme: str) -> None:
    browser.open(page, scheme=scheme)
    browser.click("#rows tr[data-row='1'] td.genes")
    ratios = browser.run(
        """(() => {
        const light = (c) => { const v = c.match(/[\\d.]+/g).map(Number).slice(0, 3)
          .map(x => x / 255).map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
          return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
        const page = light(getComputedStyle(document.body).backgroundColor);
        const panel = light(getComputedStyle(document.getElementById('panel')).backgroundColor);
        return ['h1', '.trust', '.about li', '#found', '.sets td.status', '.sets td.rank',
          '.relations li', '#panel dt', '.flag'].map(s => {
            const ink = light(getComputedStyle(document.querySelector(s)).color);
            return Math.min(...[page, panel].map(
              p => (Math.max(p, ink) + .05) / (Math.min(p, ink) + .05)));
          }); })()"""
    )
    assert min(ratios) >= 4.5


def test_it_prints(opened: Any) -> None:
    assert opened.pdf().startswith(b"%PDF")


def test_the_evidence_is_shown_filtered_by_and_downloaded(
    browser: Any, made_ranking: Any, tmp_path: Path
) -> None:
    made = made_ranking(20)
    first, last = made["rows"][0], made["rows"][-1]
    vote = {"names": ["=A1", "ABC8"], "score": -0.5, "by": "=A1", "replaced": "ABC1"}
    first["votes"] = [{**vote, "relation": "physical", "weight": 0.4, "run": "run-0"}]
    last |= {"links": [], "relations": [], "pathways": [], "complexes": []}
    link = "https://example.org/locus"
    made["gene_facts"] = [{"gene": first["genes"][0], "description": "A helicase", "link": link}]
    file = tmp_path / "page.html"
    file.write_text(ranking_page(made))
    browser.open(file)
    panel = browser.run("document.getElementById('panel').textContent")
    assert "with =A1 in place of ABC1 by physical" in panel
    assert "A helicase" in panel
    assert browser.run("document.querySelector('#panel a').href") == link
    set_facet(browser, "evidence", "measured next to it")
    assert left(browser) == [0]
    # What is downloaded is caught before it becomes a file.
    browser.run(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.csv = text; });"
        " return '#'; }"
    )
    browser.click("#download")
    browser.settle()
    lines = browser.run("window.csv").strip().split("\n")
    assert len(lines) == 2
    assert lines[0].startswith("end,rank,gene1,gene2,gene3,name1")
    assert first["genes"][0] in lines[1]
    set_facet(browser, "evidence", "none")
    assert 19 in left(browser)
    browser.run("document.querySelector('tr[data-row=\"19\"]').click()")
    assert "No evidence" in browser.run("document.getElementById('panel').textContent")
    assert browser.said == []
