"""The tool that lists the functions of a walk counts correctly, and the page names what exists."""

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
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
MOST_RETURNS = 2
"""To any one file of a walk."""

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

    def use_noun():
        noun = other.Noun()
        read(noun)

    def read(noun):
        noun.method()
        other.second()
        other.third()
"""
OTHER = """
    def kept(function):
        return function

    def helper(call):
        return list(map(lambda _: call(), range(2)))

    @kept
    def second():
        helper(int)

    def third():
        pass

    class Noun:
        def __init__(self):
            self.n = 1

        def method(self):
            return self.n
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
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
    yield module
    sys.modules.pop("other", None)


def test_a_function_is_listed_once_where_it_is_called_first(program: Any) -> None:
    steps = walks.steps_of(program.begin)
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
    files = [line for line in walks.lines(steps) if line.endswith(".py")]
    assert files == ["caller.py", "other.py", "caller.py", "other.py"]


def test_methods_of_a_class_and_what_one_function_calls_are_one_visit(program: Any) -> None:
    visits = walks.visits(walks.steps_of(program.use_noun))
    first, second = visits["other.py"]
    assert (first.topic, first.caller.name) == ("Noun", "use_noun")
    # `Noun.method` is read with its class, and `third` beside `second`.
    assert (second.topic, second.caller.name) == ("second", "read")


def test_a_file_that_is_opened_for_several_topics_is_returned_to(program: Any) -> None:
    """What the walk of the former training step did: one file for data, forward, loss and rate."""

    def loop() -> None:
        for stage in (program.first, program.use_noun, program.begin):
            stage()

    assert walks.returns(walks.steps_of(loop))["other.py"] == 2


def test_what_runs_at_import_is_no_part_of_a_walk(program: Any) -> None:
    def work() -> None:
        sys.modules.pop("other")
        importlib.import_module("other").third()

    assert [step.function.name for step in walks.steps_of(work)] == ["third"]


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
def test_a_walk_is_as_recorded_and_seldom_returns_to_a_file(walk: str) -> None:
    # In a process of its own, in which no other test has filled a cache.
    code = f"from deltacell_dev.walks import summary; print(summary({walk!r}))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout.splitlines()[-1])
    assert {file: n for file, n in summary["returns"].items() if n > MOST_RETURNS} == {}
    assert len(summary["topics"]) > 15
    golden.check(f"walks/{walk}", summary["topics"])
