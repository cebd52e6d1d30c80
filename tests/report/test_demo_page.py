"""The page of the demonstration: what is said first, pictures where the numbers are, safe links."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest

from deltacell.report.demo_page import MOST_SETS, demo_page


def test_the_first_screen_says_what_was_learned_and_what_limits_it(
    parsed: Any, made_demo: Any
) -> None:
    result = made_demo()
    text = demo_page(result)
    page = parsed(text)
    tags = [tag for tag, _ in page.elements]
    assert tags.index("h1") < tags.index("section") < tags.index("table")
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
    for words in ("made in 2 min 11 s", "300", "relations", "6,790", "measured gene sets"):
        assert words in page.words


def test_the_curves_are_drawn_where_the_numbers_say(parsed: Any, made_demo: Any) -> None:
    result = made_demo()
    page = parsed(demo_page(result))
    curves = [
        [tuple(map(float, point.split(","))) for point in str(found["points"]).split()]
        for found in page.all("polyline")
    ]
    # The first epoch of each has no number and no point.
    assert [len(curve) for curve in curves] == [11, 11]
    for curve in curves:
        assert [x for x, _ in curve] == sorted(x for x, _ in curve)
        assert [y for _, y in curve] == sorted((y for _, y in curve), reverse=True)
        assert all(44 <= x <= 404 and 10 <= y <= 258 for x, y in curve)
    # The second learns less, and both lie above the additive baseline.
    assert all(a[1] < b[1] for a, b in zip(*curves, strict=True))
    (line,) = [
        re.fullmatch(r"M44 ([\d.]+)H\d+", str(found["d"]))
        for found in page.all("path", **{"class": "additive"})
    ]
    assert line is not None
    additive = float(line[1])
    assert all(y < additive for curve in curves for _, y in curve)
    # One scale for all: 0.24 of additive against 0.55 of the first on the test part.
    tested = [float(str(found["cy"])) for found in page.all("circle", **{"class": "tested"})]
    (zero,) = [
        float(str(found["y"])) - 4
        for found, text in zip(page.all("text"), page.texts["text"], strict=True)
        if text == "0.0"
    ]
    assert (zero - tested[0]) / (zero - additive) == pytest.approx(0.55 / 0.24, rel=0.02)
    band = page.all("rect", **{"class": "band"})[0]
    assert float(str(band["y"])) < additive < float(str(band["y"])) + float(str(band["height"]))


def test_the_head_of_the_ranking_says_what_is_planted(parsed: Any, made_demo: Any) -> None:
    result = made_demo(sets=30)
    page = parsed(demo_page(result))
    planted = [row["planted"] for row in result["ranking"][:MOST_SETS]]
    rows = [found for found in page.all("tr") if found.get("class") == "planted"]
    assert len(rows) == sum(planted) == 15
    marks = [found["class"] for found in page.all("svg") if "mark" in str(found.get("class"))]
    assert marks == ["mark planted" if one else "mark" for one in planted]
    assert (
        "Of the 812,345 untested sets that were ranked 37,774 are, so "
        "20 drawn at random would hold 0.93."
    ) in page.words


def test_predictors_stand_from_the_best_to_the_worst(parsed: Any, made_demo: Any) -> None:
    page = parsed(demo_page(made_demo()))
    dots = [float(str(found["cx"]).rstrip("%")) for found in page.all("circle", r="4", cy="50%")]
    assert len(dots) == 4
    assert dots == sorted(dots, reverse=True)
    order = ["DANGO", "HeteroCell", "boosted trees", "additive", "global mean"]
    names = page.texts["bdi"][page.texts["bdi"].index("boosted trees") - 2 :]
    assert names[:5] == order
    for told in ("0.550", "0.520 to 0.580", "61,000", "41.5 s"):
        assert told in page.words


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
    nothing = {"value": None, "low": None, "high": None}
    for one in [*result["models"], *result["baselines"]]:
        one["pearson"] = nothing
    result["models"][0]["pearson"] = {"value": 0.5, "low": None, "high": None}
    result["models"][1] |= {"seconds": None}
    result["models"][1]["curve"][3]["pearson"] = float("nan")
    result["ranking"][0] |= {"spread": None}
    page = parsed(demo_page(result))
    assert not page.all("path", **{"class": "additive"})
    assert len(page.all("circle", **{"class": "tested"})) == 1
    assert "–" in page.words
    assert [len(str(found["points"]).split()) for found in page.all("polyline")] == [11, 10]


def test_hostile_names_are_only_ever_text(
    parsed: Any, made_demo: Any, hostile: tuple[str, ...]
) -> None:
    plain = parsed(demo_page(made_demo()))
    for name in hostile:
        text = demo_page(made_demo(name=name))
        text.encode()
        page = parsed(text)
        assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
        assert not any(key.startswith("on") for _, found in page.elements for key in found)
        assert not page.all("script")
        assert "\u2028" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize(
    "file", ["javascript:alert(1)", "//elsewhere/x", "data:text/html,x", "a b/ü?#.html"]
)
def test_links_lead_to_files_beside_the_page_only(parsed: Any, made_demo: Any, file: str) -> None:
    result = made_demo()
    result["links"] = [{"file": file, "title": "x", "words": "y"}]
    (link,) = parsed(demo_page(result)).all("a")
    href = str(link["href"])
    assert href.startswith("./")
    assert not set(':?# "') & set(href)


def test_it_loads_nothing_and_nothing_runs_on_it(parsed: Any, made_demo: Any) -> None:
    text = demo_page(made_demo())
    page = parsed(text)
    assert not re.search(r"https?:|[\"' ]//", text)
    for _, found in page.elements:
        assert "src" not in found
        assert "style" not in found
    assert not page.all("script")
    policy = str(page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"])
    assert "script-src 'none'" in policy
    assert "unsafe" not in policy
    (inline,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy


def test_the_same_demonstration_is_the_same_page(made_demo: Any) -> None:
    assert demo_page(made_demo()) == demo_page(made_demo())
