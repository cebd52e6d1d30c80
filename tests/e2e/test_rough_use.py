"""What a person does who has not read the manual: the program answers with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

ROW = "YAL001C\tTFC3\tYAL002W\tVPS8\t-0.2\t0.02\t1e-3\n"


def folder_with(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("a\tb\tc\td\teps\tsd\tp\n", "column 'epsilon' is not a finite number"),
        ("YAL001C\tYAL002W\n", "other than 7 columns"),
    ],
)
def test_a_bad_first_line_does_not_hide_the_file(deltacell, tmp_path, header, said):
    folder_with(tmp_path, s=header + ROW)
    error = deltacell("data", "import", "in", "--out", "out", code=2).stderr
    assert f"in/s.txt, line 1: {said}" in error
    assert not (tmp_path / "out").exists()


def test_names_are_shown_and_never_obeyed(deltacell, tmp_path):
    folder = folder_with(tmp_path, s=ROW)
    (folder / "\x1b[31m[red]x.txt").write_text("YAL001C\tYAL002W\n")
    done = deltacell("data", "import", "in", "--out", "out")
    shown = done.stdout + deltacell("data", "info", "out").stdout
    assert "\x1b" not in shown
    assert r"\x1b[31m[red]x" in shown
    error = deltacell("data", "info", "\x1b[31mx", code=2).stderr
    assert "\x1b[31mx" not in error


def test_nothing_is_said_on_the_way_where_no_one_watches(deltacell, tmp_path):
    folder_with(tmp_path, s=ROW)
    # In a process of its own, where a library's warning would be seen too.
    assert deltacell("data", "import", "in", "--out", "out", fresh=True).stderr == ""


def test_any_result_of_a_query_is_shown(deltacell):
    deltacell("data", "synthetic", "demo", "--out", "demo", "--genotypes", "100")
    # A title is not folded to the width of a narrow table.
    assert deltacell("data", "query", "demo", "select 1 as a").stdout.startswith("1 rows\n")
    sql = "select [1, 2] as a, [[1], [2, 3]] as b, {'x': 1} as c, null::int[] as d, 2 as e"
    table = 'a,b,c,d,e\n1 2,1 2 3,"{""x"": 1}",,2\n'
    assert deltacell("data", "query", "demo", sql, "--format", "csv").stdout == table
    path = "demo/screens/synthetic"
    error = deltacell("data", "query", path, "select 1", "--screen", "x", code=2).stderr
    assert "'x' was asked for, and this is a screen" in error
