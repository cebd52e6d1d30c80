"""Pages of a ranking and of the demo: safe, whole, and what they say is what they were given."""

import json
import re

import pytest

from deltacell.report.predict import MOST_ROWS, MOST_SETS, demo_page, ranking_page


def data_of(text):
    """Return the block of JSON of a page."""
    (block,) = re.findall(r'<script type="application/json" [^>]*>(.*?)</script>', text)
    return json.loads(block)


def rows_of(page):
    return [found["data-row"] for found in page.all("tr") if "data-row" in found]


def test_the_first_lines_say_what_it_is_and_how_far_to_trust_it(parsed, made_ranking):
    result = made_ranking(measured=200)
    page = parsed(ranking_page(result))
    tags = [tag for tag, _ in page.elements]
    assert tags.index("h1") < min(tags.index(tag) for tag in ("figure", "section", "table", "ul"))
    assert page.texts["p"][0] == "60 of 9,880 gene sets of 40 genes"
    assert result["title"] in page.texts["bdi"]
    assert re.search(r"On 50 measured sets .* is 0\.50", page.texts["p"][1])
    for words in ("Sentence 0.", "Sentence 6.", "More about this list (2)", "run-2", "0.40"):
        assert words in page.words
    text = ranking_page(result)
    assert text == ranking_page(made_ranking(measured=200))
    # A point for every measured set, and those of the test part on top.
    points = [found["class"] for found in page.all("circle") if found["r"] in ("2", "2.6")]
    assert points == ["training"] * 100 + ["validation"] * 50 + ["test"] * 50
    assert len(data_of(text)["points"]) == 200
    # Warnings are never folded away.
    plain = [f"Sentence {i}." for i in range(6)]
    warnings = [f"Beware: {i}." for i in range(6)]
    result["sentences"] = [*plain, *warnings]
    page = parsed(ranking_page(result))
    told = [text for text in page.texts["bdi"] if text in result["sentences"]]
    assert told == [plain[0], *warnings, *plain[1:]]
    assert "More about this list (5)" in page.words


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (None, "none of the measured sets"),
        ({"sets": 3, "pearson": None}, "the test part has 3 measured sets"),
        ({"sets": 1, "pearson": -0.001}, "On 1 measured set that the runs were"),
    ],
)
def test_a_page_without_a_test_says_that_trust_is_unknown(made_ranking, test, words):
    agreement = [] if test is None else [{"part": "test", **test}]
    assert words in ranking_page({**made_ranking(4), "agreement": agreement})


def test_every_row_is_on_it_in_order_with_its_numbers(parsed, made_ranking):
    result = made_ranking(20)
    result["rows"][0] |= {"score": -0.8125, "spread": 0.0625, "measured": None, "linked": True}
    page = parsed(ranking_page(result))
    assert rows_of(page) == [str(i) for i in range(20)]
    scores = [float(found["data-value"]) for found in page.all("td", "number score")]
    assert scores == pytest.approx([row["score"] for row in result["rows"]])
    for words in ("−0.812", "0.062", "linked", "lowest", "highest"):
        assert words in page.words


def test_intervals_are_told_where_they_are_known(parsed, made_ranking):
    result = made_ranking(4)
    result["rows"][0] |= {"score": -0.5, "low": -0.75, "high": 0.25}
    text = ranking_page(result)
    rows = data_of(text)["rows"]
    assert [rows[0][key] for key in ("interval", "low", "high")] == [
        "−0.750 to +0.250",
        "-0.75",
        "0.25",
    ]
    assert [row["interval"] for row in rows[1:]] == [None] * 3
    titles = [cell.get("title") for cell in parsed(text).all("td", "number score")]
    assert titles == ["90 % interval: −0.750 to +0.250", None, None, None]


@pytest.mark.parametrize(("rows", "measured", "size"), [(0, 0, 1), (1, 1, 2), (2, 0, 4)])
def test_little_is_a_page_too(parsed, made_ranking, rows, measured, size):
    few = {"runs": 1, "relations": (), "ends": (None,), "statuses": ("untested",)}
    result = made_ranking(rows, measured=measured, size=size, **few)
    for row in result["rows"]:
        row |= {"pathways": [], "complexes": []}
    page, whole = parsed(ranking_page(result)), parsed(ranking_page(made_ranking(10)))
    assert len(rows_of(page)) == rows
    assert bool(page.all("figure")) == bool(measured)
    assert ("The list is empty" in page.words) == (rows == 0)
    # Empty columns are left out.
    for name in ("number spread", "number measured", "status", "evidence"):
        assert (len(page.all("td", name)), len(whole.all("td", name))) == (0, 10)


def test_at_most_so_many_rows_of_each_end_and_it_says_so(made_ranking):
    (row,) = made_ranking(1, measured=0)["rows"]
    rows = [
        {**row, "end": end, "rank": i + 1} for end in ("lowest", "highest") for i in range(1500)
    ]
    text = ranking_page({**made_ranking(0, measured=0), "rows": rows, "rows_not_here": 40})
    drawn = data_of(text)["rows"]
    half = list(range(1, MOST_ROWS // 2 + 1))
    for end in ("lowest", "highest"):
        assert [one["rank"] for one in drawn if one["end"] == end] == half
    assert "of each end, 2,000 in total; 1,040 more are in ranking.parquet" in text


def test_hostile_names_are_only_ever_text(parsed, made_ranking, made_demo, hostile):
    result = made_ranking(60, names=hostile, relations=hostile)
    for row, name in zip(result["rows"], hostile, strict=False):
        row |= {"pathways": [name], "complexes": [name]}
    result |= {"title": hostile[0], "file": hostile[1], "sentences": [*hostile]}
    result |= {"rows_not_here": 5, "request": {name: [name] for name in hostile}}
    for run, name in zip(result["runs"], hostile, strict=False):
        run |= {"name": name, "checkpoint": name, "sha256": name}
    text = ranking_page(result)
    page, plain = parsed(text), parsed(ranking_page(made_ranking(60)))
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in plain.elements}
    assert len(page.all("script")) == 2
    assert "{{ 7 * 7 }}" in page.words
    names = {name for _, name in data_of(text)["genes"]}
    for name in filter(str.isprintable, hostile):
        assert page.texts["bdi"].count(name) >= 5
        assert name in names
    tags = [tag for tag, _ in parsed(demo_page(made_demo())).elements]
    for name in hostile:
        assert [tag for tag, _ in parsed(demo_page(made_demo(name=name))).elements] == tags


def test_the_answers_are_first(parsed, made_demo):
    result = made_demo(sets=30)
    text = demo_page(result)
    page = parsed(text)
    limits = [model["limit"] for model in result["models"]]
    said = [result["recovered"]["sentence"], result["verdict"], *limits, result["comparison"]]
    places = [text.index(f"<bdi>{one}</bdi>") for one in said]
    assert places == sorted(places)
    assert max(places) < text.index("<table")
    for words in ("made in 131 s", "300", "6,790", "0.520 to 0.580", "61,000", "41.5 s"):
        assert words in page.words
    assert not page.all("script")
    assert text == demo_page(made_demo(sets=30))
    planted = [row["planted"] for row in result["ranking"][:MOST_SETS]]
    assert len(page.all("tr", "planted")) == sum(planted) == 15
    marks = [x["class"] for x in page.all("svg") if str(x.get("class")).startswith("mark")]
    assert marks == ["mark planted" if one else "mark" for one in planted]
    for number in ("812,345", "37,774", "0.93"):
        assert number in page.words
    names = page.texts["bdi"][page.texts["bdi"].index("boosted trees") - 2 :]
    assert names[:5] == ["DANGO", "HeteroCell", "boosted trees", "additive", "global mean"]


@pytest.mark.parametrize(("models", "sets"), [(1, 1), (0, 0), (5, 20)])
def test_a_demo_of_little_and_of_much_is_a_page_too(parsed, made_demo, models, sets):
    result = made_demo(models=models, sets=sets)
    result["baselines"] = [] if sets == 1 else result["baselines"]
    result |= {"seconds": None, "links": [], "steps": [], "next": []}
    for one in result["models"]:
        one |= {"seconds": None, "pearson": {"value": 0.5, "low": None, "high": None}}
    page = parsed(demo_page(result))
    assert "made in" not in page.words
    known = [one["pearson"]["value"] for one in [*result["models"], *result["baselines"]]]
    assert len(page.all("svg", "dots")) == sum(value is not None for value in known)


@pytest.mark.parametrize(
    "file",
    ["javascript:alert(1)", "//elsewhere/x", "data:text/html,x", "a b/ü?#.html"],
)
def test_links_lead_to_files_beside_the_page_only(parsed, made_demo, file):
    result = made_demo()
    result["links"] = [{"file": file, "title": "x", "words": "y"}]
    (link,) = parsed(demo_page(result)).all("a")
    assert link["href"].startswith("./")
    assert not set(':?# "') & set(link["href"])
