"""The page of an explanation: safe, whole without a network, and drawn where the numbers say."""

import json
import re

import polars as pl
import pytest

from deltacell.profile.explain import Account, compare
from deltacell.profile.explain.account import EvidenceTable
from deltacell.profile.explain.explanation import Explanation
from deltacell.report.explanation_page import MOST_ROWS, explanation_page

ONE = Account("one", "trace", {"data loading": 0.03, "forward": 0.06, "odd part": 0.01})


def timeline(*names, rank="rank 0", category="forward"):
    bar = {"lane": 0, "begin_ms": 1.0, "duration_ms": 2.0, "depth": 0, "count": 1, "busy_ms": 2.0}
    bars = [{**bar, "name": name, "category": category} for name in names]
    step = {"step": 3, "begin_ms": 0.0, "step_ms": 10.0, "events": 5}
    return {"ranks": [{"name": rank, "lanes": [rank], "lanes_left_out": 0, "bars": bars, **step}]}


def explained(a, b=None, **more):
    """Return the page of one or two accounts."""
    told = {"sentence": "It is the loader.", "evidence": ("Seen.",), "advice": ("Try.",)}
    told |= {"accounts": (a,)} if b is None else {"accounts": (a, b), "comparison": compare(a, b)}
    return explanation_page(Explanation(**(told | more)).to_json())


def test_the_sentence_is_first_and_everything_is_there(parsed):
    page = parsed(
        explained(
            ONE,
            doubts=("a reason",),
            warnings=("Confidence is low: a reason.",),
            facts=({"device": "cpu", "ranks": 2},),
            tables=(
                EvidenceTable(
                    "t", "some numbers", pl.DataFrame({"x": ["y"], "share of a": [0.25]})
                ),
            ),
            timeline=timeline("aten::mm"),
        ),
    )
    assert page.texts["bdi"][1] == "It is the loader."
    tags = [tag for tag, _ in page.elements]
    assert tags.index("h1") < min(tags.index(tag) for tag in ("section", "table", "canvas", "h2"))
    for words in ("low: a reason.", "Seen.", "Try.", "ome numbers", "25.0 %", "10.0 ms, 5 events."):
        assert words in page.words
    assert len(page.all("canvas")) == 1
    (stack,) = page.all("svg", role="img")
    assert stack["aria-label"].split(": ")[1].split("; ") == [
        *(
            "data loading 30.0 ms (30.0 %)",
            "forward 60.0 ms (60.0 %)",
            "odd part 10.0 ms (10.0 %).",
        ),
    ]


@pytest.mark.parametrize("b", [None, Account("none", "figures", {})])
def test_without_traces_or_anything_else_it_is_still_a_page(parsed, b):
    assert not parsed(explained(Account("none", "figures", {}), b)).all("canvas")


def test_hostile_names_are_only_ever_text(parsed, hostile):
    def of(name):
        a = Account(name, "trace", {name: 0.03, "forward": 0.06}, facts={name: name})
        b = Account(f"{name}2", "trace", {"forward": 0.05, f"{name}3": 0.1}, facts={name: "other"})
        return parsed(
            explained(
                *(a, b),
                sentence=f"It is {name}.",
                **dict.fromkeys(("evidence", "advice", "warnings"), (name,)),
                facts=({name: name}, {name: [name]}),
                tables=(EvidenceTable("t", name, pl.DataFrame({name: [name]})),),
                timeline=timeline(name, rank=name, category=name),
            ),
        )

    names = [name for name in hostile if name.isprintable()]
    text = explained(ONE, timeline=timeline(*names))
    (block,) = re.findall(r'<script type="application/json" [^>]*>(.*?)</script>', text)
    drawn = json.loads(block)
    assert [found[4] for found in drawn["ranks"][0]["bars"]] == names
    plain = {tag for tag, _ in of("plain").elements}
    for name in (*hostile, "\x1b[31m\n"):
        page = of(name)
        assert {tag for tag, _ in page.elements} - {"details", "summary"} <= plain
        assert len(page.all("script")) == 2
        if name.isprintable():
            assert page.texts["bdi"].count(name) >= 5
        assert "49" not in page.words.replace(name, "")


def test_bars_of_the_waterfall_begin_where_the_last_one_ended(parsed):
    a = Account("a", "trace", {"forward": 4.0, "data loading": 1.0})
    b = Account("b", "trace", {"forward": 2.0, "data loading": 7.0, "loss": 1.0})
    page = parsed(explained(a, b))
    bars = page.all("rect", y="20%")
    drawn = [(bar["class"], bar.get("x"), bar["width"]) for bar in bars]
    # 5 s; +6 is 11; -2 is 9; +1 is 10; the scale ends at 11.
    assert drawn == [
        ("sum", None, "45.455%"),
        ("more", "45.455%", "54.545%"),
        ("less", "81.818%", "18.182%"),
        ("more", "81.818%", "9.091%"),
        ("sum", None, "90.909%"),
    ]
    for words in ("+6.00 s", "−2.00 s", "+1.00 s", "120.0 %", "−40.0 %", "add up to +5.00 s."):
        assert words in page.words
    assert "The scale begins" not in page.words


def test_tables_sort_by_the_value_and_are_cut(parsed):
    numbers = {"ms": [1234.5, None, float("nan")], "share of it": [0.5, 1.2, None]}
    frame = pl.DataFrame({"name": ["x", "y", "z"], **numbers, "change_s": [-0.5, 2.0, None]})
    long = pl.DataFrame({"n": range(MOST_ROWS + 7)})
    page = parsed(
        explained(ONE, tables=(EvidenceTable("t", "t", frame), EvidenceTable("u", "u", long)))
    )
    values = [found["data-value"] for found in page.all("td") if "data-value" in found]
    assert values[:5] == ["1234.5", "0.5", "-0.5", "1.2", "2.0"]
    assert len(values) == 5 + MOST_ROWS
    for words in ("1,234", "50.0 %", "−500 ms", "120.0 %", "7 more rows are left out here"):
        assert words in page.words
    # A share above 1 does not leave its cell.
    assert [x["width"] for x in page.all("rect", height="100%")][-2:] == ["50.000%", "100.000%"]
