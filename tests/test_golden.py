"""The comparison with golden files, and that it fails where it has to."""

import json

import golden
import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Golden files in a folder of their own; nothing is written unless a test asks for it."""
    path = tmp_path / "tests" / "golden"
    monkeypatch.setattr(golden, "FOLDER", path)
    monkeypatch.setattr(golden, "_is_writing", False)
    return path


def write(name, value):
    golden.write_files(True)
    golden.check(name, value)
    golden.write_files(False)


RECORDED = {"text": "Δ", "values": [1.0, 0.5, 1e-9], "number": 3, "flag": True, "none": None}


@pytest.mark.parametrize(
    "changed",
    [
        {**RECORDED, "text": "D"},
        {**RECORDED, "values": [1.0, 0.5]},
        {**RECORDED, "values": [1.0, 0.5, 1e-9, 2.0]},
        {**RECORDED, "values": [1.0, 0.5001, 1e-9]},
        {**RECORDED, "values": [1, 0.5, 1e-9]},
        {**RECORDED, "values": [1.0, 0.5, float("nan")]},
        {**RECORDED, "number": 3.0},
        {**RECORDED, "number": 4},
        {**RECORDED, "flag": 1},
        {**RECORDED, "none": 0},
        {**RECORDED, "more": None},
        {key: value for key, value in RECORDED.items() if key != "none"},
        dict(reversed(RECORDED.items())),
    ],
)
def test_whatever_changes_is_shown_as_a_diff(folder, changed):
    write("case", RECORDED)
    with pytest.raises(pytest.fail.Exception) as failure:
        golden.check("case", changed)
    lines = str(failure.value).splitlines()
    assert lines[0] == "tests/golden/case.json differs."
    assert any(line.startswith(("-", "+")) for line in lines[3:])
    assert golden.WRITE_OPTION in lines[-1]


def test_floats_may_differ_by_the_tolerance_and_rounded_zeros_by_the_floor(folder):
    write("folder/case", RECORDED)
    golden.check("folder/case", RECORDED)
    close = {**RECORDED, "values": [1.000001, 0.4999999, 1e-9]}
    golden.check("folder/case", close)
    with pytest.raises(pytest.fail.Exception):
        golden.check("folder/case", close, tolerance=1e-8)
    rounded = {**RECORDED, "values": [1.0, 0.5, -2e-9]}
    golden.check("folder/case", rounded, floor=1e-8)
    with pytest.raises(pytest.fail.Exception):
        golden.check("folder/case", rounded)


def test_a_file_is_json_with_an_item_per_line_where_a_line_would_be_long(folder):
    nested = {
        "Δ": list(range(9)),
        "long": [{"a": "x" * 60, "b": [1.5]}, {"a": "y" * 60}],
        "none": {},
    }
    write("nested", nested)
    text = (folder / "nested.json").read_text(encoding="utf-8")
    assert json.loads(text) == nested
    assert text.splitlines()[1] == '  "Δ": [0, 1, 2, 3, 4, 5, 6, 7, 8],'
    assert max(map(len, text.splitlines())) <= golden.WIDTH
    golden.check("nested", nested)


def test_a_file_that_does_not_exist_is_a_failure(folder):
    with pytest.raises(pytest.fail.Exception, match=golden.WRITE_OPTION):
        golden.check("none", 1)
    assert not folder.exists()
