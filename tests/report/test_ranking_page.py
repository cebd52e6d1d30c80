"""The page of a ranking: safe, whole without a network, and what it says is what it was given."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from deltacell.report.ranking_page import MOST_ROWS, ranking_page

OPTIONAL = ("number spread", "number measured", "status", "evidence")


def data_of(text: str) -> Any:
    """Return the block of JSON of a page."""
    (block,) = re.findall(r'<script type="application/json" [^>]*>(.*?)</script>', text)
    return json.loads(block)


def rows_of(page: Any) -> list[str]:
    return [found["data-row"] for found in page.all("tr") if "data-row" in found]


def test_the_first_lines_say_what_it_is_and_how_far_to_trust_it(
    parsed: Any, made_ranking: Any
) -> None:
    result = made_ranking()
    page = parsed(ranking_page(result))
    tags = [tag for tag, _ in page.elements]
    assert tags.index("h1") < min(tags.index(tag) for tag in ("figure", "section", "table", "ul"))
    assert page.texts["p"][0] == "60 gene sets of 9,880 over 40 genes"
    assert result["title"] in page.texts["bdi"]
    assert re.search(r"On 50 measured sets .* Pearson of 0\.50", page.texts["p"][1])
    for words in ("Sentence 0.", "Sentence 6.", "More about this list (2)", "run-2", "0.40"):
        assert words in page.words
    assert ranking_page(made_ranking()) == ranking_page(made_ranking())


def test_warnings_are_never_folded_away(parsed: Any, made_ranking: Any) -> None:
    result = made_ranking(20)
    plain = [f"Sentence {i}." for i in range(6)]
    warnings = [f"Beware: {i}." for i in range(6)]
    result["sentences"] = [*plain, *warnings]
    page = parsed(ranking_page(result))
    told = [text for text in page.texts["bdi"] if text in result["sentences"]]
    assert told == [plain[0], *warnings, *plain[1:]]
    assert "More about this list (5)" in page.words


def test_every_set_has_its_evidence_or_says_that_there_is_none(made_ranking: Any) -> None:
    result = made_ranking(rows=6)
    first, last = result["rows"][0], result["rows"][-1]
    vote = {"names": ["ABC9", "ABC8"], "score": -0.5, "by": "ABC9", "replaced": "ABC1"}
    first["votes"] = [{**vote, "relation": "physical", "weight": 0.4, "run": "run-0"}]
    first |= {"lost": ["r_0042"], "terms": [{"annotation": "GO slim", "term": "DNA repair"}]}
    last |= {"links": [], "relations": [], "pathways": [], "complexes": []}
    facts = {"description": "Helicase <b>", "link": "https://example.org/x"}
    result["gene_facts"] = [{"gene": gene, **facts} for gene in first["genes"]]
    page = ranking_page(result)
    data = data_of(page)
    lines = [dict(map(tuple, row["evidence"])) for row in data["rows"]]
    assert lines[0]["measured next to it"].startswith("ABC9 ABC8 -0.5")
    assert lines[0]["reactions lost together"] == "r_0042"
    assert lines[0]["shared terms"] == "DNA repair (GO slim)"
    assert lines[-1] == {}
    assert page.count(">no evidence<") == sum(not one for one in lines)
    assert [data["facts"][gene] for gene in data["rows"][0]["genes"]] == [[*facts.values()]] * 3
    assert "Helicase <b>" not in page


@pytest.mark.parametrize(
    ("agreement", "words"),
    [
        ([], "none of the measured sets"),
        ([{"part": "test", "sets": 3, "pearson": None}], "the test part has 3 measured sets"),
        ([{"part": "test", "sets": 1, "pearson": -0.001}], "On 1 measured set that the runs were"),
    ],
)
def test_it_says_where_it_is_not_known_how_far_to_trust_it(
    parsed: Any, made_ranking: Any, agreement: list[Any], words: str
) -> None:
    assert words in parsed(ranking_page({**made_ranking(4), "agreement": agreement})).words


def test_every_row_is_on_it_in_order_with_its_numbers(parsed: Any, made_ranking: Any) -> None:
    result = made_ranking(20)
    result["rows"][0] |= {"score": -0.8125, "spread": 0.0625, "measured": None, "linked": True}
    text = ranking_page(result)
    page, drawn = parsed(text), data_of(text)
    assert rows_of(page) == [str(i) for i in range(20)]
    scores = [float(found["data-value"]) for found in page.all("td", "number score")]
    assert scores == pytest.approx([row["score"] for row in result["rows"]])
    for words in ("−0.812", "0.062", "linked", "lowest", "highest"):
        assert words in page.words
    for told, row in zip(drawn["rows"], result["rows"], strict=True):
        genes = [drawn["genes"][i] for i in told["genes"]]
        assert genes == [list(pair) for pair in zip(row["genes"], row["names"], strict=True)]
        links = [[row["genes"][a], row["genes"][b], r] for a, b, r in told["links"]]
        named = [[a, b, drawn["relations"][relation][2]] for a, b, relation in links]
        assert named == [[x["first"], x["second"], x["relation"]] for x in row["links"]]
        for key in ("pathways", "complexes", "linked"):
            assert told[key] == row[key]


def test_bars_are_on_one_scale_with_room_for_the_spread(parsed: Any, made_ranking: Any) -> None:
    result = made_ranking(3, ends=(None,))
    for row, score, spread in zip(result["rows"], (-0.8, 0.1, 0.0), (0.1, 0.0, 0.05), strict=True):
        row |= {"score": score, "spread": spread}
    page = parsed(ranking_page(result))
    # From -0.9 to 0.1, in which nothing is at 90 %.
    bars = [(x["class"], x["x"], x["width"]) for x in page.all("rect", height="100%")]
    assert bars == [
        ("less", "10.000%", "80.000%"),
        ("more", "90.000%", "10.000%"),
        ("more", "90.000%", "0.000%"),
    ]
    around = page.all("line", "around")[0]
    assert (around["x1"], around["x2"]) == ("0.000%", "20.000%")


def test_a_point_for_every_measured_set_and_those_of_test_on_top(
    parsed: Any, made_ranking: Any
) -> None:
    result = made_ranking(4, measured=200)
    text = ranking_page(result)
    points = [found for found in parsed(text).all("circle") if found["r"] in ("2", "2.6")]
    parts = ["training"] * 100 + ["validation"] * 50 + ["test"] * 50
    assert [found["class"] for found in points] == parts
    assert len(data_of(text)["points"]) == 200
    measured = sorted(result["measured"], key=lambda one: parts.index(one["part"]))
    order = sorted(range(200), key=lambda i: measured[i]["measured"])
    across = [float(points[i]["cx"]) for i in order]
    assert across == sorted(across)
    assert 46 <= across[0] < across[-1] <= 392


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize(("measured", "size"), [(0, 1), (1, 2), (0, 4)])
def test_little_is_a_page_too(
    parsed: Any, made_ranking: Any, rows: int, measured: int, size: int
) -> None:
    result = made_ranking(rows, measured=measured, size=size, runs=1, relations=(), ends=(None,))
    page = parsed(ranking_page(result))
    assert len(rows_of(page)) == rows
    assert bool(page.all("figure")) == bool(measured)
    assert ("There is no row in this list" in page.words) == (rows == 0)


def test_empty_columns_are_left_out(parsed: Any, made_ranking: Any) -> None:
    result = made_ranking(10, runs=1, statuses=("untested",), relations=())
    for row in result["rows"]:
        row |= {"pathways": [], "complexes": []}
    little, whole = parsed(ranking_page(result)), parsed(ranking_page(made_ranking(10)))
    for name in OPTIONAL:
        assert (len(little.all("td", name)), len(whole.all("td", name))) == (0, 10)


@pytest.mark.parametrize(
    ("lowest", "highest", "kept"),
    [(1500, 1500, (1000, 1000)), (2900, 100, (1900, 100)), (100, 2900, (100, 1900))],
)
def test_at_most_so_many_rows_of_each_end_and_it_says_so(
    made_ranking: Any, lowest: int, highest: int, kept: tuple[int, int]
) -> None:
    (row,) = made_ranking(1, measured=0)["rows"]
    rows = [{**row, "rank": i + 1} for i in range(lowest)]
    rows += [{**row, "end": "highest", "rank": i + 1} for i in range(highest)]
    text = ranking_page({**made_ranking(0, measured=0), "rows": rows, "rows_not_here": 40})
    drawn = data_of(text)["rows"]
    assert len(drawn) == MOST_ROWS
    for end, n in zip(("lowest", "highest"), kept, strict=True):
        assert [one["rank"] for one in drawn if one["end"] == end] == list(range(1, n + 1))
    assert "of each end, 2,000 together; 1,040 more are in ranking.parquet" in text


def test_hostile_names_are_only_ever_text(
    parsed: Any, made_ranking: Any, hostile: tuple[str, ...]
) -> None:
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


def test_relations_beyond_the_colours_have_dashes(made_ranking: Any) -> None:
    result = made_ranking(40, relations=[f"relation {i}" for i in range(25)])
    drawn = data_of(ranking_page(result))["relations"]
    assert len({(colour, dashes) for colour, dashes, _ in drawn}) == 25
