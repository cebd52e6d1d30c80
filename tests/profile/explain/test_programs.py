"""Programs that are really run and recorded: the sentence is right, or says that it is noise."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from deltacell.profile.explain import explain

pytestmark = pytest.mark.slow
NOT_THE_PROGRAM = "no difference beyond noise|every part takes about"


CASES = [
    ("plain", "slow loader", "data loading"),
    ("plain", "slow loader with a worker", "data loading"),
    ("many parameters", "no foreach", "optimizer|aten::(add|mul|addcdiv|lerp|sqrt|div)"),
    ("plain", "items", "aten::item"),
    ("plain", "larger batch", "batch.*64 -> 1024"),
    ("plain", "checkpointing", "recomputes"),
    ("plain", "numpy", "records nothing, between the loader and aten::"),
    ("with stacks", "save", "torch.save"),
]
PROGRAM = Path(__file__).with_name("programs.py")


def record(folder: Path, *names: str) -> list[Path]:
    """Record programs one after another in a process of their own."""
    subprocess.run([sys.executable, PROGRAM, folder, *names], check=True, capture_output=True)
    return [folder / f"{number} {name}.json" for number, name in enumerate(names)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The traces of all programs; the first of a process is slow, and is not used."""
    names = ["plain", *dict.fromkeys(name for case in CASES for name in case[:2])]
    files = record(tmp_path_factory.mktemp("programs"), *names)
    return dict(zip(names[1:], files[1:], strict=True))


@pytest.mark.parametrize(("base", "name", "cause"), CASES)
def test_what_makes_a_program_slower(
    recorded: dict[str, Path], base: str, name: str, cause: str
) -> None:
    found = explain(recorded[base], recorded[name])
    first = re.split(r"\.\s+(?=[A-Z])", found.sentence)[0]
    assert re.search(f"{cause}|{NOT_THE_PROGRAM}", first), first


def test_the_same_in_two_processes(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    # At the same time, so that whatever else the machine does slows both alike.
    both = [subprocess.Popen([sys.executable, PROGRAM, folder, "plain"]) for folder in folders]
    assert [process.wait() for process in both] == [0, 0]
    found = explain(*(folder / "0 plain.json" for folder in folders))
    assert re.search(NOT_THE_PROGRAM, found.sentence), found.sentence


def test_the_same_twice_in_one_process(tmp_path: Path) -> None:
    # What else the machine does may slow one of them, but hardly every time.
    _, *paths = record(tmp_path, *["plain"] * 5)
    said = [explain(a, b).sentence for a, b in pairwise(paths)]
    assert any(re.search(NOT_THE_PROGRAM, sentence) for sentence in said), said
