"""The tool that lists the functions of a walk counts correctly, and the page names what exists."""

import importlib.util
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deltacell
from deltacell_dev import walks

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTIONS = {
    "training": "## A training step",
    "explanation": "## An explanation",
    "ranking": "## A ranking",
}
MOST_RETURNS = 8
"""To any one file of a walk; 2 is the aim."""

CALLER = """
    import other

    def begin(times=2):
        for _ in range(times):
            first()
        other.second()
        [number() for _ in range(3)]

    def first():
        other.helper(number)

    def number():
        return 1
"""
OTHER = """
    def helper(call):
        return list(map(lambda _: call(), range(2)))

    def second():
        helper(int)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A program of two files, which stand for those of deltacell."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(walks, "_PREFIX", f"{tmp_path}/")
    for name, text in (("other", OTHER), ("caller", CALLER)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location("caller", tmp_path / "caller.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.begin
    sys.modules.pop("other", None)


def test_a_function_is_listed_once_where_it_is_called_first(program: Callable[[], Any]) -> None:
    steps = walks.steps_of(program)
    names = [(step.function.file, step.function.name) for step in steps]
    assert names == [
        ("caller.py", "begin"),
        ("caller.py", "first"),
        ("other.py", "helper"),
        ("caller.py", "number"),
        ("other.py", "second"),
    ]
    # Called back by `helper`, `number` takes the reader to the first file again.
    assert walks.returns(steps) == {"caller.py": 1, "other.py": 1}
    assert list(walks.lines(steps)) == [
        *("caller.py", "     4  begin", "    10  first"),
        *("other.py", "     2  helper"),
        *("caller.py", "    13  number"),
        *("other.py", "     5  second"),
    ]


@pytest.mark.parametrize("walk", SECTIONS)
def test_the_page_names_files_that_exist(walk: str) -> None:
    section = PAGE.partition(SECTIONS[walk])[2].partition("\n## ")[0]
    sources = Path(deltacell.__file__).parent
    files = re.findall(r"`([\w/]+/\w*\.?\w*)`", section)
    assert len(files) > 5
    missing = [
        file for file in files if not (sources / file).exists() and not (ROOT / file).exists()
    ]
    assert missing == []


@pytest.mark.slow
@pytest.mark.parametrize("walk", SECTIONS)
def test_a_walk_seldom_returns_to_a_file(walk: str) -> None:
    steps = walks.walk(walk)
    n_returns = walks.returns(steps)
    assert len(n_returns) > 15
    assert {file: n for file, n in n_returns.items() if n > MOST_RETURNS} == {}
