"""Programs that are really run and recorded: the sentence is right, or says that it is noise."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deltacell.profile.explain import explain

pytestmark = pytest.mark.slow
NOT_THE_PROGRAM = "no difference beyond noise|every part takes about"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """A function that records a program in a process of its own, each only once."""
    folder = tmp_path_factory.mktemp("programs")

    def record(name: str, time: int = 0) -> Path:
        path = folder / f"{name}{time or ''}.json"
        if not path.exists():
            program = Path(__file__).with_name("programs.py")
            subprocess.run([sys.executable, program, name, path], check=True, capture_output=True)
        return path

    return record


@pytest.mark.parametrize(
    ("base", "name", "cause"),
    [
        ("plain", "slow loader", "data loading"),
        ("plain", "slow loader with a worker", "data loading"),
        ("many parameters", "no foreach", "optimizer|aten::(add|mul|addcdiv|lerp|sqrt|div)"),
        ("plain", "items", "aten::item"),
        ("plain", "larger batch", "batch.*256 -> 1024"),
        ("plain", "checkpointing", "recomputes"),
        ("plain", "numpy", "records nothing, between the loader and aten::"),
        ("with stacks", "save", "torch.save"),
    ],
)
def test_what_makes_a_program_slower(
    recorded: Callable[..., Path], base: str, name: str, cause: str
) -> None:
    found = explain(recorded(base), recorded(name))
    first = re.split(r"\.\s+(?=[A-Z])", found.sentence)[0]
    assert re.search(f"{cause}|{NOT_THE_PROGRAM}", first), first


def test_the_same_in_two_processes(tmp_path: Path) -> None:
    program = Path(__file__).with_name("programs.py")
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    # At the same time, so that whatever else the machine does slows both alike.
    both = [subprocess.Popen([sys.executable, program, "plain", path]) for path in paths]
    assert [process.wait() for process in both] == [0, 0]
    found = explain(*paths)
    assert re.search(NOT_THE_PROGRAM, found.sentence), found.sentence


def test_the_same_twice_in_one_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import programs; "
        "[programs.record(Path(path)) for path in sys.argv[2:]]"
    )
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", code, here, *paths], check=True, capture_output=True)
    found = explain(*paths)
    assert re.search(NOT_THE_PROGRAM, found.sentence), found.sentence
