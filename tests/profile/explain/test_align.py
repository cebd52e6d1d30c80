"""Operations of two traces: the same, moved, renamed, or in one only; and they add up."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.explain.align import align

NAMES = st.sampled_from(["aten::mul", "aten::add", "aten::mm", "model.gin", "model.gin2", "x"])
PATHS = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=4).map(" > ".join),
    st.tuples(st.integers(1, 10**9), st.integers(1, 20)),
    max_size=12,
)


def frame(paths):
    return pl.DataFrame(
        [(path, "forward", count, time) for path, (time, count) in paths.items()],
        schema={"path": pl.String, "category": pl.String, "count": pl.Int64, "time": pl.Int64},
        orient="row",
    )


def found(a, b, steps=(1, 1)):
    return {row["operation"]: row for row in align(frame(a), frame(b), steps).to_dicts()}


def test_the_same_call():
    rows = found({"f > aten::mul": (4_000_000, 2)}, {"f > aten::mul": (9_000_000, 6)}, (2, 3))
    row = rows["aten::mul"]
    assert row["found as"] == "same"
    assert (row["a ms a step"], row["b ms a step"], row["change ms"]) == pytest.approx((2, 3, 1))
    assert (row["a calls a step"], row["b calls a step"]) == (1, 2)


def test_a_call_that_moved():
    rows = found(
        {"loss > aten::mul": (10, 1), "forward > aten::mul": (20, 1)},
        {"loss > scaled > aten::mul": (30, 1), "forward > aten::mul": (20, 1)},
    )
    a = {"loss > aten::mul": (10, 1)}
    b = {"loss > scaled > aten::mul": (30, 1)}
    assert found(a, b)["aten::mul"]["found as"] == "moved"
    assert rows["aten::mul"]["found as"] in ("same", "moved")


def test_of_two_places_the_nearer_one_is_where_it_moved():
    a = {"model > loss > aten::mul": (10, 1)}
    b = {"data > aten::mul": (99, 1), "model > loss > part > aten::mul": (10, 1)}
    rows = align(frame(a), frame(b), (1, 1)).to_dicts()
    moved = next(row for row in rows if row["found as"] == "moved")
    assert moved["path in b"] == "model > loss > part > aten::mul"
    assert {row["found as"] for row in rows} == {"moved", "only in b"}


def test_a_call_that_was_renamed():
    rows = found({"f > aten::_scatter_add": (50, 3)}, {"f > aten::scatter_add": (40, 3)})
    assert rows["aten::_scatter_add -> aten::scatter_add"]["found as"] == "renamed"


def test_another_name_called_another_number_of_times_is_another_call():
    rows = found({"f > aten::scatter_a": (50, 3)}, {"f > aten::scatter_b": (40, 9)})
    assert {row["found as"] for row in rows.values()} == {"only in a", "only in b"}


@settings(max_examples=100, deadline=None)
@given(a=PATHS, b=PATHS)
def test_changes_add_up_and_mirror(a, b):
    there, back = align(frame(a), frame(b), (1, 1)), align(frame(b), frame(a), (1, 1))
    gap = sum(time for time, _ in b.values()) - sum(time for time, _ in a.values())
    assert there["change ms"].sum() == pytest.approx(gap / 1e6, abs=1e-6)
    pairs = {(row["path in a"], row["path in b"]) for row in there.to_dicts()}
    assert {(row["path in b"], row["path in a"]) for row in back.to_dicts()} == pairs
    for side, paths in (("path in a", a), ("path in b", b)):
        assert sorted(there[side].drop_nulls().to_list()) == sorted(paths)


@settings(max_examples=50, deadline=None)
@given(a=PATHS)
def test_against_itself_nothing_changes(a):
    rows = align(frame(a), frame(a), (1, 1))
    assert (rows["change ms"] == 0).all()
    assert (rows["found as"] == "same").all()
