"""The page of the demonstration: safe, whole, and drawn where the numbers say."""

from __future__ import annotations

import pytest

from deltacell.report.demo_page import MOST_SETS, demo_page


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
def test_little_and_much_are_a_page_too(parsed, made_demo, models, sets):
    result = made_demo(models=models, sets=sets)
    result["baselines"] = [] if sets == 1 else result["baselines"]
    result |= {"seconds": None, "links": [], "steps": [], "next": []}
    for one in result["models"]:
        one |= {"seconds": None, "pearson": {"value": 0.5, "low": None, "high": None}}
    page = parsed(demo_page(result))
    assert "made in" not in page.words
    known = [one["pearson"]["value"] for one in [*result["models"], *result["baselines"]]]
    assert len(page.all("svg", "dots")) == sum(value is not None for value in known)


def test_hostile_names_are_only_ever_text(parsed, made_demo, hostile):
    plain = [tag for tag, _ in parsed(demo_page(made_demo())).elements]
    for name in hostile:
        assert [tag for tag, _ in parsed(demo_page(made_demo(name=name))).elements] == plain


@pytest.mark.parametrize(
    "file", ["javascript:alert(1)", "//elsewhere/x", "data:text/html,x", "a b/ü?#.html"]
)
def test_links_lead_to_files_beside_the_page_only(parsed, made_demo, file):
    result = made_demo()
    result["links"] = [{"file": file, "title": "x", "words": "y"}]
    (link,) = parsed(demo_page(result)).all("a")
    assert link["href"].startswith("./")
    assert not set(':?# "') & set(link["href"])
