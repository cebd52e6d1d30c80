"""Help, its reference page and completion: an example for every command, and nothing heavy."""

import json
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.train.config.compose import compose
from deltacell_dev import command_reference

ALL: dict[tuple[str, ...], Any] = dict(command_reference.commands())
IDS = [" ".join(path) or "deltacell" for path in ALL]


def parsed(words: list[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Take the words of a command as it would, without running it."""
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in ALL:
        path, words = (*path, words[0]), words[1:]
    return path, ALL[path].make_context(" ".join(path), words).params


def test_the_reference_is_up_to_date_with_every_command_and_option() -> None:
    assert {(), ("train",), ("bench", "data"), ("data", "import"), ("slurm", "train")} <= set(ALL)
    page = command_reference.PAGE.read_text(encoding="utf-8")
    assert page == command_reference.reference(), "run python -m deltacell_dev.command_reference"


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


COMPLETED = {
    "deltacell tra": ["train"],
    "deltacell bench propa": ["propagation"],
    "deltacell explain --ht": ["--html"],
    "deltacell train experiment=demo_": ["experiment=demo_hetero", "experiment=demo_pairs"],
    "deltacell modes trainer.epo": ["trainer.epochs="],
}
COMPLETE = """
import contextlib, json, os, sys
from deltacell.cli import main
os.environ["_DELTACELL_COMPLETE"] = "complete_bash"
typed = json.loads(sys.argv.pop())
sys.argv = ["deltacell"]
for words in typed:
    os.environ |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    with contextlib.suppress(SystemExit):
        main()
    print(";")
heavy = {"torch", "polars", "pyarrow", "hydra", "lightning_fabric", "matplotlib"}
print(heavy & sys.modules.keys())
"""


def test_the_shell_completes_and_loads_nothing_heavy() -> None:
    command = [sys.executable, "-c", COMPLETE, json.dumps([*COMPLETED])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *completed, loaded = done.stdout.split(";")
    assert [one.split() for one in completed] == [*COMPLETED.values()]
    assert (loaded.strip(), done.stderr) == ("set()", "")
