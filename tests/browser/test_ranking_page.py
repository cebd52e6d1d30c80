"""The page of a ranking in a real Chromium: search, filters, sorting, networks, keys."""

import json

import pytest

from deltacell.report.predict import ranking_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(made_ranking, hostile):
    """400 sets of 40 genes, some with hostile names, by hostile relations."""
    made = made_ranking(400, measured=300, names=hostile, relations=[*hostile[:4], "coexpression"])
    for row in made["rows"][::9]:
        row["pathways"] = [*row["pathways"], hostile[1]]
    return made


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "ranking page.html"
    file.write_text(ranking_page(result))
    return file


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    return browser


def open_made(browser, made, folder):
    (folder / "page.html").write_text(ranking_page(made))
    browser.open(folder / "page.html")


def left(browser):
    """Return which rows are left, all of them shown first."""
    browser.run("(f => f.hidden || f.click())(document.getElementById('further'))")
    return browser.run(
        "[...document.querySelectorAll('#rows tr[data-row]')].filter(r => r.checkVisibility())"
        ".map(r => Number(r.dataset.row))",
    )


def search(browser, text):
    """Write into the search as a person does."""
    browser.run("(s => { s.value = ''; s.focus(); })(document.getElementById('search'))")
    browser.type(text)


def set_facet(browser, name, said):
    """Choose the option of a filter whose text begins so."""
    browser.run(
        f"""((s, text) => {{
        s.value = [...s.options].find(o => o.textContent.startsWith(text)).value;
        s.dispatchEvent(new Event('change')); }})
        (document.querySelector('[data-facet={name}]'), {json.dumps(said)})""",
    )


def where(result, fits):
    return [i for i, row in enumerate(result["rows"]) if fits(row)]


def test_searching_by_gene_leaves_only_its_sets(opened, result):
    gene = result["rows"][0]["genes"][0]
    for text, fits in (
        # ABC1 is the whole name of a gene: ABC10 to ABC19 are others.
        ("abc1", lambda row: "ABC1" in row["names"]),
        ("ABC1, abc20", lambda row: {"ABC1", "ABC20"} <= set(row["names"])),
        (gene.lower(), lambda row: gene in row["genes"]),
        ("BC3", lambda row: any(name.startswith("ABC3") for name in row["names"])),
    ):
        search(opened, text)
        wanted = where(result, fits)
        assert left(opened) == wanted != []
        assert opened.text("#found") == f"{len(wanted)} of 400 rows"
    points = "#scatter .points circle"
    assert (opened.count(points), opened.count(f"{points}.test")) == (300, 75)
    search(opened, "ABC5")
    wanted = sum("ABC5" in one["names"] for one in result["measured"])
    assert opened.count(f"{points}.with") == wanted > 0
    search(opened, "no such gene")
    assert left(opened) == []
    assert opened.is_seen("#nothing")
    opened.press("Escape")
    assert len(left(opened)) == 400


def test_hostile_names_are_found_shown_and_do_not_run(opened, page, result, hostile):
    for name in filter(str.isprintable, hostile):
        search(opened, name)
        assert left(opened) == where(result, lambda row, name=name: name in row["names"]) != []
        assert name[:15] in opened.text("#panel")
        assert name in opened.texts(".network .node title")
    assert (opened.run("document.images.length"), opened.run("document.scripts.length")) == (0, 2)
    assert opened.is_quiet(page)


def test_a_gene_whose_name_a_shell_would_take_apart_is_in_no_command(
    browser,
    made_ranking,
    tmp_path,
):
    for name, is_there in (("$(reboot)", False), ("-x", False), ("YAL001W-A", True)):
        made = made_ranking(1)
        made["rows"][0] |= {"genes": [name, *made["rows"][0]["genes"][1:]], "links": []}
        open_made(browser, made, tmp_path)
        assert bool(browser.count("#panel code")) == is_there


def test_filters_work_together(opened, result):
    relation, rows, before = result["relations"][0], result["rows"], 400
    chosen = []
    for facet, option, fits in (
        ("relation", relation, lambda row: relation in row["relations"]),
        ("pathway", "some", lambda row: row["pathways"]),
        ("complex", "none", lambda row: not row["complexes"]),
        ("status", "untested", lambda row: row["status"] == "untested"),
        ("end", "highest", lambda row: row["end"] == "highest"),
        ("linked", "not linked", lambda row: row["linked"] is False),
    ):
        if facet == "status":
            # What another choice would leave is said beside it.
            n = sum(rows[i]["status"] == "tested" for i in left(opened))
            assert f"tested, not significant ({n})" in opened.texts("[data-facet=status] option")
        set_facet(opened, facet, option)
        chosen.append(fits)
        wanted = where(result, lambda row: all(one(row) for one in chosen))
        assert left(opened) == wanted
        assert 0 < len(wanted) < before
        before = len(wanted)
    opened.click("#clear")
    assert len(left(opened)) == 400


def test_a_chosen_row_is_drawn_with_all_its_genes_and_links(opened, result):
    most = max(range(100), key=lambda i: len(result["rows"][i]["links"]))
    none = next(i for i in range(100) if not result["rows"][i]["links"])
    assert len(result["rows"][most]["links"]) > 3
    for i in (0, 7, most, none):
        row = result["rows"][i]
        opened.click(f"#rows tr[data-row='{i}'] td.genes")
        assert opened.count(".network .node") == len(row["genes"])
        names = [link["relation"] for link in row["links"]]
        assert sorted(opened.texts(".network .edge title")) == sorted(names)
        assert opened.count("#panel .legend li") == len(set(names))
        assert opened.count("#rows [aria-selected=true]") == 1
        assert opened.run(
            "(s => { const b = s.getBoundingClientRect(); return [...s.querySelectorAll("
            "'circle, path')].every(e => { const c = e.getBoundingClientRect(); return c.left >= "
            "b.left - 1 && c.right <= b.right + 1 && c.top >= b.top - 1 && c.bottom <= b.bottom "
            "+ 1; }); })(document.querySelector('.network'))",
        )
    gene = result["rows"][none]["genes"][1]
    opened.click("#panel .more-of button:nth-of-type(2)")
    assert left(opened) == where(result, lambda row: gene in row["genes"])


def focus(browser):
    """Return what has the focus and whether that is seen."""
    return browser.run(
        "(e => ({id: e.id, row: e.dataset.row === undefined ? null : Number(e.dataset.row),"
        " facet: e.dataset.facet || null,"
        " seen: getComputedStyle(e).outlineStyle !== 'none'}))(document.activeElement)",
    )


def test_the_keyboard_alone_suffices(opened, result):
    opened.press("/")
    assert focus(opened)["id"] == "search"
    opened.type("ABC4")
    of_gene, met = where(result, lambda row: "ABC4" in row["names"]), [focus(opened)]
    while met[-1]["row"] is None:
        opened.press("Tab")
        met.append(focus(opened))
        assert met[-1]["seen"]
    assert [one["facet"] for one in met if one["facet"]] == [
        *("end", "status", "relation", "pathway", "complex", "evidence", "linked"),
    ]
    # The rows are one stop, on which the arrows go from set to set.
    assert met[-1]["row"] == of_gene[0]
    opened.press("ArrowDown", "ArrowDown")
    assert focus(opened)["row"] == of_gene[2]
    assert opened.count(".network .edge") == len(result["rows"][of_gene[2]]["links"])
    opened.press("ArrowUp")
    assert focus(opened)["row"] == of_gene[1]
    # The last one is beyond those shown at first.
    opened.press("/", "Escape")
    while focus(opened)["row"] is None:
        opened.press("Tab")
    opened.press("End")
    assert focus(opened)["row"] == 399
    opened.press("Home")
    assert focus(opened)["row"] == 0


def test_without_scripts_every_row_is_there(browser, page):
    browser.open(page, scripts=False)
    seen = "[...document.querySelectorAll('#rows tr')].filter(r => r.checkVisibility()).length"
    assert browser.run(seen) == 400
    assert not browser.is_seen("#filters")
    assert browser.count("#scatter .points circle") == 300
    assert browser.text("footer noscript") != ""


def test_on_a_narrow_screen_the_network_is_below_its_row_and_goes_again(browser, page):
    browser.open(page, width=400)
    assert not browser.is_seen("#panel")
    browser.click("#rows tr[data-row='3'] td.genes")
    above = "document.getElementById('panel').closest('tr').previousElementSibling.dataset.row"
    assert browser.run(above) == "3"
    # Sorting takes it along, and leaves as many rows.
    for column in ("spread", "score"):
        browser.run(f"document.querySelector('th.{column} button').click()")
        assert len(left(browser)) == 400
    assert browser.count("#rows .within") == 1
    browser.click("#rows tr[data-row='3'] td.genes")
    assert not browser.is_seen("#panel")
    browser.resize(1280, 800)
    browser.settle()
    browser.click("#rows tr[data-row='3'] td.genes")
    assert browser.run("document.getElementById('panel').parentElement.id") == "beside"


def test_the_evidence_is_shown_filtered_by_and_downloaded(browser, made_ranking, tmp_path):
    made = made_ranking(20)
    first, last = made["rows"][0], made["rows"][-1]
    vote = {"names": ["=A1", "ABC8"], "score": -0.5, "by": "=A1", "replaced": "ABC1"}
    first["votes"] = [{**vote, "relation": "physical", "weight": 0.4, "run": "run-0"}]
    first |= {"lost": ["r_0042"], "terms": [{"annotation": "GO slim", "term": "DNA repair"}]}
    last |= {"links": [], "relations": [], "pathways": [], "complexes": []}
    link = "https://example.org/locus"
    made["gene_facts"] = [{"gene": first["genes"][0], "description": "A helicase", "link": link}]
    open_made(browser, made, tmp_path)
    assert "with =A1 in place of ABC1 by physical" in browser.text("#panel")
    for words in ("A helicase", "r_0042", "DNA repair (GO slim)"):
        assert words in browser.text("#panel")
    assert browser.run("document.querySelector('#panel a').href") == link
    set_facet(browser, "evidence", "measured next to it")
    assert left(browser) == [0]
    # What is downloaded is caught before it becomes a file.
    browser.run(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.csv = text; });"
        " return '#'; }",
    )
    browser.click("#download")
    lines = browser.run("window.csv").strip().split("\n")
    assert len(lines) == 2
    assert lines[0].startswith("end,rank,gene1,gene2,gene3,name1")
    assert first["genes"][0] in lines[1]
    set_facet(browser, "evidence", "none")
    assert 19 in left(browser)
    browser.run("document.querySelector('tr[data-row=\"19\"]').click()")
    assert "No evidence" in browser.text("#panel")
    assert browser.said == []
