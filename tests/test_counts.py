from __future__ import annotations

import json

import pytest

from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source


def test_rows_that_are_not_kept_are_dropped_for_a_reason_and_survive_json():
    counts = Counts(10, 4, {"self loop": 3, UNKNOWN_GENE: 2, AMBIGUOUS_NAME: 1, "other": 0})
    dropped = {"self loop": 3, UNKNOWN_GENE: 2, AMBIGUOUS_NAME: 1}
    assert counts.to_json() == {"read": 10, "resolved": 7, "kept": 4, "dropped": dropped}
    source = Source("f.gz", "ab", "string", counts, "physical", {"pairs": 2})
    assert Source.from_json(json.loads(json.dumps(source.to_json()))) == source


@pytest.mark.parametrize(
    ("read", "kept", "dropped"),
    [(3, 3, {"x": 1}), (3, 2, {}), (3, 4, {"x": -1}), (0, -1, {"x": 1})],
)
def test_rows_that_do_not_add_up_are_a_mistake(read, kept, dropped):
    with pytest.raises(ValueError, match="rows"):
        Counts(read, kept, dropped)


def test_a_later_stage_reads_what_the_earlier_kept():
    chained = Counts(10, 8, {"a": 2}).then(Counts(8, 5, {"a": 1, "b": 2}))
    assert chained == Counts(10, 5, {"a": 3, "b": 2})
    with pytest.raises(ValueError, match="read 7 rows, this one kept 8"):
        Counts(10, 8, {"a": 2}).then(Counts(7, 7))
