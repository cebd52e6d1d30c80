"""The page of an explanation: safe, whole without a network, and drawn where the numbers say."""

from __future__ import annotations

import json
import re
from typing import Any

import polars as pl
import pytest

from deltacell.profile.explain import Account, compare
from deltacell.profile.explain.account import Table
from deltacell.profile.explain.explanation import Explanation
from deltacell.report.explanation_page import MOST_ROWS, explanation_page

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "]]></style><svg onload=alert(3)>",
    "\"' onmouseover='alert(4)",
    "a\u2028b\u202ec{{ 7 * 7 }}",
    "\ud800",
)


def bar(name: str, **more: Any) -> dict[str, Any]:
    made = {"lane": 0, "name": name, "begin_ms": 1.0, "duration_ms": 2.0, "category": "forward"}
    return {**made, "depth": 0, "count": 1, "busy_ms": 2.0, **more}


def rank(*bars: dict[str, Any], name: str = "rank 0", lane: str = "thread 1") -> dict[str, Any]:
    made = {"name": name, "step": 3, "begin_ms": 0.0, "step_ms": 10.0, "lanes": [lane]}
    return {**made, "lanes_left_out": 0, "events": 5, "events_left_out": 0, "bars": list(bars)}


def explained(a: Account, b: Account | None = None, **more: Any) -> dict[str, Any]:
    compared = None if b is None else compare(a, b)
    accounts = (a,) if b is None else (a, b)
    told = {"sentence": "It is the loader.", "evidence": ("Seen.",), "advice": ("Try.",)}
    return Explanation(
        **{**told, "confidence": "high", **more},  # type: ignore[arg-type]
        accounts=accounts,
        comparison=compared,
    ).to_json()


ONE = Account("one", "trace", {"data loading": 0.03, "forward": 0.06, "odd part": 0.01})


def test_the_sentence_is_first_and_everything_is_there(parsed: Any) -> None:
    data = explained(
        ONE,
        confidence="low",
        warnings=("Confidence is low: a reason.",),
        facts=({"device": "cpu", "ranks": 2},),
        tables=(Table("t", "some numbers", pl.DataFrame({"name": ["x"], "share of a": [0.25]})),),
        timeline={"ranks": [rank(bar("aten::mm"))]},
    )
    page = parsed(explanation_page(data))
    assert page.texts["bdi"][1] == "It is the loader."
    tags = [tag for tag, _ in page.elements]
    assert tags.index("h1") < min(tags.index(tag) for tag in ("section", "table", "canvas", "h2"))
    for words in ("Confidence is low: a reason.", "Seen.", "Try.", "Some numbers", "25.0 %"):
        assert words in page.words
    assert "Step 3, 10.0 ms, 5 events." in page.words
    assert len(page.all("canvas")) == 1
    (stack,) = page.all("svg", role="img")
    assert stack["aria-label"] == (
        "one, 100 ms per step: data loading 30.0 ms (30.0 %); forward 60.0 ms (60.0 %); "
        "odd part 10.0 ms (10.0 %)."
    )


def test_without_traces_or_anything_else_it_is_still_a_page(parsed: Any) -> None:
    data = explained(Account("none", "figures", {}), evidence=(), advice=())
    page = parsed(explanation_page(data))
    assert not page.all("canvas")
    assert not page.all("table")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_ever_text(parsed: Any, name: str) -> None:
    a = Account(name, "trace", {name: 0.03, "forward": 0.06}, facts={name: name})
    b = Account(f"{name}2", "trace", {"forward": 0.05, f"{name}3": 0.1}, facts={name: "other"})
    data = explained(
        a,
        b,
        sentence=f"It is {name}.",
        evidence=(name,),
        advice=(name,),
        warnings=(name,),
        facts=({name: name}, {name: [name]}),
        tables=(Table("t", name, pl.DataFrame({name: [name]})),) if name.isprintable() else (),
        timeline={"ranks": [rank(bar(name, category=name), name=name, lane=name)]},
    )
    text = explanation_page(data)
    text.encode()
    page = parsed(text)
    plain = parsed(explanation_page(explained(ONE, timeline={"ranks": [rank(bar("x"))]})))
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain.elements} | {
        "table", "caption", "line", "td", "th", "tr", "thead", "tbody", "dl", "dt", "dd", "input",
        "p", "output", "label", "button",
    }  # fmt: skip
    assert len(page.all("script")) == 2
    assert not any(key.startswith("on") for _, found in page.elements for key in found)
    assert not page.all("img")
    if name.isprintable():
        assert page.texts["bdi"].count(name) >= 5
        assert f"It is {name}." in page.texts["bdi"]
    assert "49" not in page.words.replace(name, "")
    assert "\u2028" not in text
    assert "\u202e" not in text


def test_the_drawing_holds_the_names_as_they_are() -> None:
    hostile = [name for name in HOSTILE if name.isprintable()]
    data = explained(ONE, timeline={"ranks": [rank(*(bar(name) for name in hostile))]})
    text = explanation_page(data)
    (block,) = re.findall(r'<script type="application/json" [^>]*>(.*?)</script>', text)
    assert not set("<>&\u2028\u2029") & set(block)
    drawn = json.loads(block)
    assert [drawn["names"][found[4]] for found in drawn["ranks"][0]["bars"]] == hostile


def test_it_loads_nothing_and_only_its_own_script_and_style_run(loads_nothing: Any) -> None:
    loads_nothing(explanation_page(explained(ONE, timeline={"ranks": [rank(bar("x"))]})))


def test_bars_of_the_waterfall_begin_where_the_last_one_ended(parsed: Any) -> None:
    a = Account("a", "trace", {"forward": 4.0, "data loading": 1.0})
    b = Account("b", "trace", {"forward": 2.0, "data loading": 7.0, "loss": 1.0})
    text = explanation_page(explained(a, b))
    page = parsed(text)
    bars = [found for found in page.all("rect", y="20%") if found["class"] != "sum"]
    drawn = [(found["class"], found["x"], found["width"]) for found in bars]
    # 5 s; +6 is 11; -2 is 9; +1 is 10; the scale ends at 11.
    assert drawn == [
        ("more", "45.455%", "54.545%"),
        ("less", "81.818%", "18.182%"),
        ("more", "81.818%", "9.091%"),
    ]
    sums = [found["width"] for found in page.all("rect", y="20%", **{"class": "sum"})]
    assert sums == ["45.455%", "90.909%"]
    for words in ("+6.00 s", "−2.00 s", "+1.00 s", "120.0 %", "−40.0 %", "They add up to +5.00 s."):
        assert words in page.words
    assert "The scale begins" not in page.words


def test_a_scale_that_does_not_begin_at_nothing_says_so(parsed: Any) -> None:
    a = Account("a", "trace", {"forward": 100.0, "loss": 1.0})
    b = Account("b", "trace", {"forward": 101.0, "loss": 1.0})
    page = parsed(explanation_page(explained(a, b)))
    assert "The scale begins at 101 s, not at 0." in page.words
    assert all(
        0 <= float(str(found["width"]).rstrip("%")) <= 100 for found in page.all("rect", y="20%")
    )


def test_equal_ones_and_empty_ones_are_drawn_too(parsed: Any) -> None:
    for account in (ONE, Account("none", "figures", {})):
        parsed(explanation_page(explained(account, account)))


def test_epochs_and_what_is_not_equal(parsed: Any) -> None:
    a = Account("a", "run", {"forward": 1.0}, 8, 10, {"validation": 10.0}, facts={"device": "cpu"})
    b = Account("b", "run", {"forward": 2.0}, 4, 20, facts={"device": "cuda"})
    words = parsed(explanation_page(explained(a, b))).words
    assert "The ratio of epochs" in words
    assert "The steps alone predict 4.0×" in words
    assert "device: cpu against cuda" in words


def test_tables_sort_by_the_value_and_not_by_what_is_shown(parsed: Any) -> None:
    frame = pl.DataFrame(
        {"name": ["x", "y"], "ms": [1234.5, None], "share of it": [0.5, 1.2], "change_s": [-0.5, 2]}
    )
    page = parsed(explanation_page(explained(ONE, tables=(Table("t", "t", frame),))))
    values = [found["data-value"] for found in page.all("td") if "data-value" in found]
    assert values == ["1234.5", "0.5", "-0.5", "1.2", "2.0"]
    assert page.texts["button"][-4:] == ["name", "ms", "share of it", "change"]
    for words in ("1,234", "50.0 %", "−500 ms", "120.0 %"):
        assert words in page.words
    # A share above 1 does not leave its cell.
    assert [found["width"] for found in page.all("rect", height="100%")][-2:] == [
        "50.000%",
        "100.000%",
    ]


def test_very_long_tables_are_cut_and_say_so(parsed: Any) -> None:
    frame = pl.DataFrame({"n": range(MOST_ROWS + 7)})
    page = parsed(explanation_page(explained(ONE, tables=(Table("t", "t", frame),))))
    assert "7 more rows are left out here" in page.words
    assert "1,007 rows" in page.words


def test_numbers_that_are_none_or_not_finite(parsed: Any) -> None:
    frame = pl.DataFrame({"ms": [1.0, float("nan"), float("inf"), None]})
    page = parsed(explanation_page(explained(ONE, tables=(Table("t", "t", frame),))))
    assert [found["data-value"] for found in page.all("td") if "data-value" in found] == ["1.0"]


def test_the_same_explanation_is_the_same_page() -> None:
    data = explained(ONE, timeline={"ranks": [rank(bar("x"))]})
    assert explanation_page(data) == explanation_page(data)
