"""The page of the demonstration: safe, whole, and drawn where the numbers say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from deltacell.report.demo_page import MOST_SETS, demo_page


def test_the_answers_are_first(parsed: Any, made_demo: Any) -> None:
    result = made_demo()
    text = demo_page(result)
    page = parsed(text)
    said = [
        result["recovered"]["sentence"],
        *(model["verdict"] for model in result["models"]),
        result["best_baseline"],
        *(model["limit"] for model in result["models"]),
        result["comparison"],
    ]
    places = [text.index(f"<bdi>{one}</bdi>") for one in said]
    assert places == sorted(places)
    assert max(places) < text.index("<figure") < text.index("<table")
    for words in ("made in 2 min 11 s", "300", "6,790", "0.520 to 0.580", "61,000", "41.5 s"):
        assert words in page.words
    assert not page.all("script")
    assert text == demo_page(made_demo())


def test_the_curves_are_drawn_where_the_numbers_say(parsed: Any, made_demo: Any) -> None:
    page = parsed(demo_page(made_demo()))
    curves = [
        [tuple(map(float, point.split(","))) for point in found["points"].split()]
        for found in page.all("polyline")
    ]
    # The first epoch of each has no number and no point.
    assert [len(curve) for curve in curves] == [11, 11]
    for curve in curves:
        assert curve == sorted(curve, key=lambda point: (point[0], -point[1]))
        assert all(44 <= x <= 404 and 10 <= y <= 258 for x, y in curve)
    # The second learns less, and both lie above the additive baseline.
    assert all(a[1] < b[1] for a, b in zip(*curves, strict=True))
    (path,) = page.all("path", "additive")
    additive = float(re.findall(r"[\d.]+", path["d"])[1])
    assert all(y < additive for curve in curves for _, y in curve)
    # One scale for all: 0.24 of additive against 0.55 of the first on the test part.
    tested = float(page.all("circle", "tested")[0]["cy"])
    ticks = zip(page.all("text"), page.texts["text"], strict=True)
    (zero,) = [float(found["y"]) - 4 for found, text in ticks if text == "0.0"]
    assert (zero - tested) / (zero - additive) == pytest.approx(0.55 / 0.24, rel=0.02)


def test_the_head_of_the_ranking_says_what_is_planted(parsed: Any, made_demo: Any) -> None:
    result = made_demo(sets=30)
    page = parsed(demo_page(result))
    planted = [row["planted"] for row in result["ranking"][:MOST_SETS]]
    assert len(page.all("tr", "planted")) == sum(planted) == 15
    marks = [x["class"] for x in page.all("svg") if str(x.get("class")).startswith("mark")]
    assert marks == ["mark planted" if one else "mark" for one in planted]
    for number in ("812,345", "37,774", "0.93"):
        assert number in page.words


def test_predictors_stand_from_the_best_to_the_worst(parsed: Any, made_demo: Any) -> None:
    page = parsed(demo_page(made_demo()))
    dots = [float(found["cx"].rstrip("%")) for found in page.all("circle", r="4", cy="50%")]
    assert len(dots) == 4
    assert dots == sorted(dots, reverse=True)
    names = page.texts["bdi"][page.texts["bdi"].index("boosted trees") - 2 :]
    assert names[:5] == ["DANGO", "HeteroCell", "boosted trees", "additive", "global mean"]


@pytest.mark.parametrize(("models", "epochs", "sets"), [(1, 1, 1), (0, 0, 0), (5, 40, 20)])
def test_little_and_much_are_a_page_too(
    parsed: Any, made_demo: Any, models: int, epochs: int, sets: int
) -> None:
    result = made_demo(models=models, epochs=epochs, sets=sets)
    result["baselines"] = [] if sets == 1 else result["baselines"]
    result |= {"seconds": None, "links": [], "steps": [], "next": []}
    page = parsed(demo_page(result))
    assert len(page.all("polyline")) == (models if epochs > 1 else 0)
    assert "made in" not in page.words


def test_numbers_that_are_not_known(parsed: Any, made_demo: Any) -> None:
    result = made_demo()
    for one in [*result["models"], *result["baselines"]]:
        one["pearson"] = {"value": None, "low": None, "high": None}
    result["models"][0]["pearson"] = {"value": 0.5, "low": None, "high": None}
    result["models"][1] |= {"seconds": None}
    result["models"][1]["curve"][3]["pearson"] = float("nan")
    result["ranking"][0] |= {"spread": None}
    page = parsed(demo_page(result))
    assert not page.all("path", "additive")
    assert len(page.all("circle", "tested")) == 1
    assert [len(found["points"].split()) for found in page.all("polyline")] == [11, 10]


def test_hostile_names_are_only_ever_text(
    parsed: Any, made_demo: Any, hostile: tuple[str, ...]
) -> None:
    plain = [tag for tag, _ in parsed(demo_page(made_demo())).elements]
    for name in hostile:
        assert [tag for tag, _ in parsed(demo_page(made_demo(name=name))).elements] == plain


@pytest.mark.parametrize(
    "file", ["javascript:alert(1)", "//elsewhere/x", "data:text/html,x", "a b/ü?#.html"]
)
def test_links_lead_to_files_beside_the_page_only(parsed: Any, made_demo: Any, file: str) -> None:
    result = made_demo()
    result["links"] = [{"file": file, "title": "x", "words": "y"}]
    (link,) = parsed(demo_page(result)).all("a")
    assert link["href"].startswith("./")
    assert not set(':?# "') & set(link["href"])
