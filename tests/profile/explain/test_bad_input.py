"""What is hardly a trace: an error or a stated limit, never a wrong number in silence."""

from __future__ import annotations

import json

import pytest

from deltacell.errors import InputError
from deltacell.profile.explain import explain


def trace_of(*events):
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    made = [{**event, "name": name, "ts": ts, "dur": dur} for name, ts, dur in events]
    return json.dumps({"schemaVersion": 1, "traceEvents": made})


@pytest.fixture
def good(tmp_path):
    (tmp_path / "good.json").write_text(trace_of(("aten::mul", 0, 5)))
    return tmp_path / "good.json"


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "not a trace", "{}", '{"traceEvents": []}', "[1, 2]", "null", "\\0\\0"),
        *(trace_of(), trace_of(("aten::mul", 0, 0))),
    ],
)
def test_what_is_not_a_trace(tmp_path, good, text):
    (tmp_path / "bad.json").write_text(text)
    for given in ([tmp_path / "bad.json"], [good, tmp_path / "bad.json"]):
        with pytest.raises(InputError, match=r"bad\.json"):
            explain(*given)


def test_names_without_end_are_cut_in_sentences(tmp_path, good):
    (tmp_path / "b.json").write_text(trace_of(("x" * 100_000, 0, 5)))
    found = explain(good, tmp_path / "b.json")
    assert found.confidence == "low"
    assert all(len(sentence) < 2_000 for sentence in (found.sentence, *found.evidence))
