"""Programs that are really run and recorded: the sentence is right, or says that it is noise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deltacell.profile.explain import explain

pytestmark = pytest.mark.slow
NOT_THE_PROGRAM = "no difference beyond noise|every part takes about"
TURNS = 4

CASES = [
    ("plain,slow loader", "data loading"),
    ("plain,slow loader with a worker", "data loading"),
    ("many parameters,no foreach", "optimizer|aten::(add|mul|addcdiv|lerp|sqrt|div)"),
    ("plain,items", "aten::item"),
    ("plain,larger batch", "batch.*32 -> 4096"),
    ("slow forward,checkpointing", "recomputes"),
    ("plain,numpy", "records nothing, between the loader and aten::"),
    ("with stacks,save", "torch.save"),
    ("plain,plain", NOT_THE_PROGRAM),
]


def started(folder: Path, *groups: str) -> subprocess.Popen[str]:
    words = [sys.executable, Path(__file__).with_name("programs.py"), folder, str(TURNS), *groups]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of all programs, those of each case in turns."""
    folder = tmp_path_factory.mktemp("programs")
    process = started(folder, *(programs for programs, _ in CASES))
    process.communicate()
    assert process.returncode == 0
    return folder


@pytest.mark.parametrize(("programs", "cause"), CASES)
def test_what_makes_a_program_slower(recorded: Path, programs: str, cause: str) -> None:
    found = explain(*sorted((recorded / programs).iterdir()))
    first = re.split(r"\.\s+(?=[A-Z])", found.sentence)[0]
    assert re.search(f"{cause}|{NOT_THE_PROGRAM}", first), first


def test_the_same_in_two_processes(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    both = [started(folder, "plain") for folder in folders]
    for turn in range(TURNS):
        for process in both[:: -1 if turn % 2 else 1]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
    for process in both:
        process.communicate()
    assert [process.returncode for process in both] == [0, 0]
    found = explain(*(folder / "plain" / "0 plain" for folder in folders))
    assert re.search(NOT_THE_PROGRAM, found.sentence), found.sentence
