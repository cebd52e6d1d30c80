"""Help, its reference page and completion: an example for every command, and nothing heavy."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.train.compose import compose

# Python runs this at the start of every process.
TELL = """
import atexit, sys
HEAVY = {"torch", "polars", "pyarrow", "hydra", "lightning", "matplotlib"}
atexit.register(lambda: print(*(HEAVY & sys.modules.keys()), file=sys.stderr))
"""


TOOL = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "command_reference.py"))
ALL: dict[tuple[str, ...], Any] = dict(TOOL["commands"]())
IDS = [" ".join(path) or "deltacell" for path in ALL]


def parsed(words: list[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Take the words of a command as it would, without running it."""
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in ALL:
        path, words = (*path, words[0]), words[1:]
    return path, ALL[path].make_context(" ".join(path), words).params


def test_the_reference_is_up_to_date_with_every_command_and_option() -> None:
    assert {(), ("train",), ("bench", "data"), ("data", "import"), ("slurm", "train")} <= set(ALL)
    page = TOOL["PAGE"].read_text(encoding="utf-8")
    assert page == TOOL["reference"](), "run python tools/command_reference.py"


@pytest.mark.parametrize("path", ALL, ids=IDS)
def test_help_ends_with_an_example_that_is_a_command(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).output
    assert ALL[path].help
    assert all(parameter.help for parameter in ALL[path].params)
    # On a line of its own, so that it can be copied.
    last = shown.rstrip().splitlines()[-1].strip()
    assert last.startswith("Example: deltacell ")
    typed = re.sub(r" > [\w.]+$", "", last.removeprefix("Example: deltacell "))
    reached, given = parsed(shlex.split(typed))
    assert reached[: len(path)] == path
    assert not getattr(ALL[reached], "commands", None)
    if "overrides" in given:
        compose(given["overrides"])


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        ("deltacell tra", 1, ["train"]),
        ("deltacell bench propa", 2, ["propagation"]),
        ("deltacell explain --ht", 2, ["--html"]),
        # Bash splits at the sign.
        ("deltacell train experiment = demo_", 4, ["demo_hetero", "demo_pairs"]),
        ("deltacell modes trainer.epo", 2, ["trainer.epochs="]),
    ],
)
def test_the_shell_completes_and_loads_nothing_heavy(
    tmp_path: Path, words: str, at: int, expected: list[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(TELL)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    asked = {"_DELTACELL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    done = subprocess.run(
        [Path(sys.executable).with_name("deltacell")],
        env={**os.environ, "PYTHONPATH": path, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "", done.stderr
    assert done.stdout.split() == expected
