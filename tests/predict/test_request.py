"""What a ranking is asked for, and what is wrong with that."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltacell.errors import InputError
from deltacell.predict.request import Request, differences, read_sets_option, read_status_option
from deltacell.predict.status import STATUSES
from deltacell.predict.work import Ranks


def test_both_ends_of_what_is_untested_unless_asked_for_more():
    request = Request("pairs")
    assert request.ends == ("lowest", "highest")
    assert (request.most, request.statuses, request.keeps_linked) == (1_000, ("untested",), False)
    assert request.n_genes == 2
    assert Request("triples").n_genes == 3


@pytest.mark.parametrize(
    ("given", "ends", "most"),
    [
        ({"above": 0.2}, ("highest",), None),
        ({"below": -0.2}, ("lowest",), None),
        ({"above": 0.2, "below": -0.2}, ("lowest", "highest"), None),
        ({"above": 0.2, "top": 5}, ("highest",), 5),
        ({"top": 5}, ("lowest", "highest"), 5),
    ],
)
def test_a_threshold_keeps_all_beyond_it_at_its_end(given, ends, most):
    request = Request("pairs", **given)
    assert (request.ends, request.most) == (ends, most)


def test_a_threshold_is_a_number_that_a_score_can_have():
    # 0.7 has no exact float32; a score that prints as 0.7 counts as reaching it.
    assert Request("pairs", above=0.7).limit("highest") < 0.7
    assert Request("pairs", above=0.7).limit("lowest") is None


def test_all_of_a_file_is_listed():
    request = Request("file", file=Path("some/mine.txt"))
    assert (request.ends, request.most, request.keeps_linked) == ((None,), None, True)
    assert request.statuses == ("measured", "tested", "untested")
    assert request.to_json()["file"] == "mine.txt"
    assert Request("file", file=Path("mine.txt"), top=3).ends == ("lowest", "highest")


def test_with_has_one_gene_more_than_given():
    assert Request("with", given=("A", "B")).n_genes == 3
    assert Request("with", given=("A",), size=4).n_genes == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sets": "with"}, "names no gene"),
        ({"sets": "with", "given": ("A", "B"), "size": 2}, "Set --size 3 or more"),
        ({"sets": "pairs", "size": 3}, "--size is for --sets with"),
        ({"sets": "pairs", "top": 0}, "--top is 0; expected 1 or more"),
        ({"sets": "pairs", "distance": -1}, "--distance is -1"),
        ({"sets": "pairs", "above": float("nan")}, "--above is nan; expected a number"),
        ({"sets": "pairs", "above": 1e39}, r"--above is 1e\+39; expected a number"),
        ({"sets": "pairs", "status": ("untried",)}, "there is no status 'untried'"),
        ({"sets": "pairs", "status": ()}, "--status names none; there are measured, tested"),
        ({"sets": "file", "file": Path("a"), "genes": "all"}, "those of a file are given"),
    ],
)
def test_what_is_wrong_is_said(given, said):
    with pytest.raises(InputError, match=said):
        Request(**given)


def test_the_words_behind_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("A B\n")
    assert read_sets_option("pairs", []) == {"sets": "pairs"}
    assert read_sets_option("with A,B", ["C"]) == {"sets": "with", "given": ("A", "B", "C")}
    assert read_sets_option("with", ["C"]) == {"sets": "with", "given": ("C",)}
    assert read_sets_option("with", ["A,B", "C"]) == {"sets": "with", "given": ("A", "B", "C")}
    assert read_sets_option("mine.txt", []) == {"sets": "file", "file": Path("mine.txt")}
    with pytest.raises(InputError, match="Did you mean --sets triples"):
        read_sets_option("triple", [])
    with pytest.raises(InputError, match="'C' is no directory"):
        read_sets_option("pairs", ["C"])
    with pytest.raises(InputError, match="expected pairs, triples"):
        read_sets_option("", [])


def test_the_words_behind_status():
    assert read_status_option("tested, untested") == ("tested", "untested")
    assert read_status_option("any") == read_status_option("any,tested") == STATUSES
    assert read_status_option(",") == ()


def test_differences_are_told_by_name():
    was = {"top": 30, "status": ["untested"], "cell": "a" * 64, "same": 1}
    now = {"top": 7, "status": ["untested", "tested"], "cell": "b" * 64, "same": 1}
    assert differences(was, now) == [
        "top was 30 and is 7",
        "status was untested and is untested, tested",
        f"cell was {'a' * 12} and is {'b' * 12}",
    ]
    assert differences(was, was) == []


def test_which_process_this_is(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Ranks.of_environment() == Ranks(0, 1)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(InputError, match="WORLD_SIZE is None; expected both"):
        Ranks.of_environment()
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert Ranks.of_environment() == Ranks(2, 3)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="RANK is 2"):
        Ranks.of_environment()
