"""The page of a ranking: safe, whole without a network, and what it says is what it was given."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from deltacell.report.ranking_page import MOST_ROWS, ranking_page


def data_of(text: str) -> Any:
    """Return the block of JSON of a page."""
    (block,) = re.findall(r'<script type="application/json" [^>]*>(.*?)</script>', text)
    assert not set("<>&\u2028\u2029") & set(block)
    return json.loads(block)


def rows_of(page: Any) -> list[dict[str, str | None]]:
    return [found for found in page.all("tr") if "data-row" in found]


def test_the_first_lines_say_what_it_is_and_how_far_to_trust_it(
    parsed: Any, made_ranking: Any
) -> None:
    page = parsed(ranking_page(made_ranking()))
    tags = [tag for tag, _ in page.elements]
    assert tags.index("h1") < min(tags.index(tag) for tag in ("figure", "section", "table", "ul"))
    assert page.texts["p"][0] == "60 gene sets of 9,880 over 40 genes"
    title = "Untested triples of 40 genes, lowest and highest by score"
    trust = (
        "On 50 measured sets that the runs were not trained on, predicted and measured "
        "correlate with a Pearson of 0.50 (1 is perfect, 0 is chance)."
    )
    assert title in page.texts["bdi"]
    assert trust in page.texts["p"]
    for words in (
        "Sentence 0.",
        "Sentence 6.",
        "More about this list (2)",
        "run-2",
        "Pearson on validation",
        "0.40",
    ):
        assert words in page.words


def test_what_to_beware_of_is_never_folded_away(parsed: Any, made_ranking: Any) -> None:
    result = made_ranking(20)
    plain = [f"Sentence {i}." for i in range(6)]
    warnings = [f"Beware: {i}." for i in range(6)]
    result["sentences"] = [*plain, *warnings]
    page = parsed(ranking_page(result))
    told = [text for text in page.texts["bdi"] if text in result["sentences"]]
    assert told == [plain[0], *warnings, *plain[1:]]
    assert "More about this list (5)" in page.words


def with_evidence(result: dict[str, Any]) -> dict[str, Any]:
    """Give the first row a vote, a lost reaction and a shared term, and the last one nothing."""
    first, last = result["rows"][0], result["rows"][-1]
    vote = {"names": ["ABC9", "ABC8"], "score": -0.5, "by": "ABC9", "replaced": "ABC1"}
    first["votes"] = [{**vote, "relation": "physical", "weight": 0.4, "run": "run-0"}]
    first["lost"] = ["r_0042"]
    first["terms"] = [{"annotation": "GO slim", "term": "DNA repair"}]
    last |= {"links": [], "relations": [], "pathways": [], "complexes": []}
    facts = {"description": "Helicase <b>", "link": "https://example.org/x"}
    result["gene_facts"] = [
        {"gene": gene, "name": name, **facts}
        for gene, name in zip(first["genes"], first["names"], strict=True)
    ]
    return result


def test_every_set_has_its_evidence_or_says_that_there_is_none(made_ranking: Any) -> None:
    result = with_evidence(made_ranking(rows=6))
    page = ranking_page(result)
    data = json.loads(page.split('id="ranking-data">')[1].split("</script>")[0])
    lines = [dict(map(tuple, row["evidence"])) for row in data["rows"]]
    assert lines[0]["measured next to it"].startswith("ABC9 ABC8 -0.5")
    assert lines[0]["reactions lost together"] == "r_0042"
    assert lines[0]["shared terms"] == "DNA repair (GO slim)"
    assert lines[-1] == {}
    assert page.count(">no evidence<") == sum(not one for one in lines)
    facts = [data["facts"][gene] for gene in data["rows"][0]["genes"]]
    assert facts == [["Helicase <b>", "https://example.org/x"]] * 3
    assert "Helicase <b>" not in page


@pytest.mark.parametrize(
    ("agreement", "words"),
    [
        ([], "none of the measured sets that were scored with it is of the test part"),
        (
            [{"part": "test", "sets": 3, "pearson": None}],
            "the test part has 3 measured sets for it, too few or too much alike",
        ),
        (
            [{"part": "test", "sets": 1, "pearson": -0.001}],
            "On 1 measured set that the runs were not trained on",
        ),
    ],
)
def test_it_says_where_it_is_not_known_how_far_to_trust_it(
    parsed: Any, made_ranking: Any, agreement: list[Any], words: str
) -> None:
    page = parsed(ranking_page({**made_ranking(4), "agreement": agreement}))
    assert words in page.words


def test_every_row_is_on_it_in_order_with_its_numbers(parsed: Any, made_ranking: Any) -> None:
    result = made_ranking(20)
    result["rows"][0] |= {"score": -0.8125, "spread": 0.0625, "measured": None, "linked": True}
    text = ranking_page(result)
    page = parsed(text)
    assert [found["data-row"] for found in rows_of(page)] == [str(i) for i in range(20)]
    scores = [
        float(str(found["data-value"])) for found in page.all("td", **{"class": "number score"})
    ]
    assert scores == pytest.approx([row["score"] for row in result["rows"]])
    for words in ("−0.812", "0.062", "linked", "lowest", "highest"):
        assert words in page.words
    drawn = data_of(text)
    for told, row in zip(drawn["rows"], result["rows"], strict=True):
        genes = [drawn["genes"][i] for i in told["genes"]]
        assert [gene for gene, _ in genes] == row["genes"]
        assert [name for _, name in genes] == row["names"]
        assert [
            {
                "first": row["genes"][a],
                "second": row["genes"][b],
                "relation": drawn["relations"][relation][2],
            }
            for a, b, relation in told["links"]
        ] == row["links"]
        assert (told["pathways"], told["complexes"]) == (row["pathways"], row["complexes"])
        assert told["linked"] is row["linked"]


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
    around = [(x["x1"], x["x2"]) for x in page.all("line", **{"class": "around"})]
    assert around[0] == ("0.000%", "20.000%")


def test_a_point_for_every_measured_set_and_those_of_test_on_top(
    parsed: Any, made_ranking: Any
) -> None:
    result = made_ranking(4, measured=200)
    text = ranking_page(result)
    page = parsed(text)
    points = [found for found in page.all("circle") if found["r"] in ("2", "2.6")]
    assert [found["class"] for found in points] == (
        ["training"] * 100 + ["validation"] * 50 + ["test"] * 50
    )
    assert len(data_of(text)["points"]) == 200
    by_measured = sorted(result["measured"], key=lambda one: one["measured"])
    across = [float(str(found["cx"])) for found in points]
    assert min(across) >= 46
    assert max(across) <= 392
    leftmost = points[across.index(min(across))]
    rightmost = points[across.index(max(across))]
    assert leftmost["class"] == by_measured[0]["part"]
    assert rightmost["class"] == by_measured[-1]["part"]


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("measured", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_little_is_a_page_too(
    parsed: Any, made_ranking: Any, rows: int, measured: int, size: int
) -> None:
    result = made_ranking(rows, measured=measured, size=size, runs=1, relations=(), ends=(None,))
    page = parsed(ranking_page(result))
    assert len(rows_of(page)) == rows
    assert bool(page.all("figure")) == bool(measured)
    assert ("There is no row in this list" in page.words) == (rows == 0)
    assert not page.all("td", **{"class": "number spread"})
    assert "the run " not in page.words or "the runs " not in page.words


def test_columns_in_which_nothing_is_are_left_out(parsed: Any, made_ranking: Any) -> None:
    result = made_ranking(10, runs=1, statuses=("untested",), relations=())
    for row in result["rows"]:
        row |= {"pathways": [], "complexes": []}
    page = parsed(ranking_page(result))
    assert [found["class"] for found in page.all("th") if "class" in found][:3] == [
        "number rank",
        "genes",
        "number score",
    ]
    for name in ("number spread", "number measured", "status", "evidence"):
        assert not page.all("td", **{"class": name})
    whole = parsed(ranking_page(made_ranking(10)))
    for name in ("number spread", "number measured", "status", "evidence"):
        assert len(whole.all("td", **{"class": name})) == 10


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
    result = {**made_ranking(0, measured=0), "rows": rows, "rows_not_here": 40}
    text = ranking_page(result)
    drawn = data_of(text)["rows"]
    assert len(drawn) == MOST_ROWS
    assert tuple(sum(one["end"] == end for one in drawn) for end in ("lowest", "highest")) == kept
    assert {one["rank"] for one in drawn if one["end"] == "lowest"} == set(range(1, kept[0] + 1))
    assert (
        "The page has the first rows of each end, 2,000 together; 1,040 more are in ranking.parquet"
    ) in text


def test_hostile_names_are_only_ever_text(
    parsed: Any, made_ranking: Any, hostile: tuple[str, ...]
) -> None:
    result = made_ranking(60, names=hostile, relations=hostile)
    for row, name in zip(result["rows"], hostile, strict=False):
        row |= {"pathways": [name], "complexes": [name], "genes": row["genes"]}
    result["title"], result["file"] = hostile[0], hostile[1]
    result["sentences"], result["rows_not_here"] = list(hostile), 5
    result["request"] = {name: [name] for name in hostile}
    for run, name in zip(result["runs"], hostile, strict=False):
        run |= {"name": name, "checkpoint": name, "sha256": name}
    text = ranking_page(result)
    text.encode()
    page = parsed(text)
    plain = parsed(ranking_page(made_ranking(60)))
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in plain.elements}
    assert len(page.all("script")) == 2
    assert not any(key.startswith("on") for _, found in page.elements for key in found)
    assert "{{ 7 * 7 }}" in page.words
    assert "\u2028" not in text
    assert "\u202e" not in text
    for name in hostile:
        if name.isprintable():
            assert page.texts["bdi"].count(name) >= 5
    names = {name for _, name in data_of(text)["genes"]}
    assert {name for name in hostile if name.isprintable()} <= names


def test_it_loads_nothing_and_only_its_own_script_and_style_run(
    loads_nothing: Any, made_ranking: Any
) -> None:
    loads_nothing(ranking_page(made_ranking()))


def test_relations_beyond_the_colours_have_dashes(made_ranking: Any) -> None:
    result = made_ranking(40, relations=[f"relation {i}" for i in range(25)])
    drawn = data_of(ranking_page(result))["relations"]
    assert len({(colour, dashes) for colour, dashes, _ in drawn}) == 25


def test_what_is_not_a_link_of_the_set_is_an_error(made_ranking: Any) -> None:
    result = made_ranking(1)
    result["rows"][0]["links"] = [{"first": "x", "second": "y", "relation": "coexpression"}]
    with pytest.raises(KeyError):
        ranking_page(result)


def test_the_same_ranking_is_the_same_page(made_ranking: Any) -> None:
    assert ranking_page(made_ranking()) == ranking_page(made_ranking())
