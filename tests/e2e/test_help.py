"""Help and completion: an example for every command, and nothing heavy is loaded for them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.train.compose import compose

# Python runs this at the start of every process.
TELL = """
import atexit, sys
HEAVY = {"torch", "polars", "pyarrow", "hydra", "lightning", "matplotlib"}
atexit.register(lambda: print(*(HEAVY & sys.modules.keys()), file=sys.stderr))
"""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that lead to it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(get_command(app)))
IDS = [" ".join(path) or "deltacell" for path in ALL]


def parsed(words: list[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Take the words of a command as it would, without running it."""
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in ALL:
        path, words = (*path, words[0]), words[1:]
    return path, ALL[path].make_context(" ".join(path), words).params


def test_the_walk_finds_the_commands() -> None:
    assert {(), ("train",), ("bench", "data"), ("data", "import"), ("slurm", "train")} <= set(ALL)
    with pytest.raises(Exception, match="No such option"):
        parsed(["train", "--resmue", "runs/a"])


@pytest.mark.parametrize("path", ALL, ids=IDS)
def test_help_ends_with_an_example_that_is_a_command(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).output
    # On a line of its own, so that it can be copied.
    last = shown.rstrip().splitlines()[-1].strip()
    assert last.startswith("Example: deltacell ")
    typed = re.sub(r" > [\w.]+$", "", last.removeprefix("Example: deltacell "))
    reached, given = parsed(shlex.split(typed))
    assert reached[: len(path)] == path
    assert not getattr(ALL[reached], "commands", None)
    if "overrides" in given:
        compose(given["overrides"])


@pytest.mark.parametrize("path", ALL, ids=IDS)
def test_every_option_and_argument_is_told(path: tuple[str, ...]) -> None:
    assert ALL[path].help
    for parameter in ALL[path].params:
        assert parameter.help, parameter.name


def offered(tmp_path: Path, words: str, at: int) -> list[str]:
    """Return what bash is offered, and see that nothing heavy was loaded for it."""
    (tmp_path / "sitecustomize.py").write_text(TELL)
    done = subprocess.run(
        [Path(sys.executable).with_name("deltacell")],
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "_DELTACELL_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(at),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "", done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        ("deltacell tra", 1, ["train"]),
        ("deltacell bench propa", 2, ["propagation"]),
        ("deltacell explain --ht", 2, ["--html"]),
        # Bash splits at the sign.
        ("deltacell train experiment = demo_", 4, ["demo_hetero", "demo_pairs"]),
        ("deltacell modes trainer.epo", 2, ["trainer.epochs=10"]),
    ],
)
def test_the_shell_completes_and_loads_nothing_heavy(
    tmp_path: Path, words: str, at: int, expected: list[str]
) -> None:
    assert offered(tmp_path, words, at) == expected


def test_experiments_are_offered_after_the_sign(tmp_path: Path) -> None:
    assert {"demo", "demo_hetero"} <= set(offered(tmp_path, "deltacell train experiment =", 3))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_shown_and_installed(shell: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("deltacell")
    # Typer would look which shell this runs in, and under make that is none it knows.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    home = {**os.environ, **named, "HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    for how in ("--show-completion", "--install-completion"):
        done = subprocess.run(
            [program, how, shell], env=home, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    written = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any("_DELTACELL_COMPLETE" in text for text in written)
