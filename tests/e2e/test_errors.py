"""What goes wrong is told in a line, with what was meant; the stack trace is for `--debug`."""

import os
import pty
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deltacell import storage
from deltacell.base.errors import InputError
from deltacell.cli import program
from deltacell.cli.app import app, main

DEMO = ("train", "experiment=demo")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["data", "synthetics"], "Did you mean 'synthetic'?"),
        (["train", "--resmue", "x"], "--resume"),
        (["train", "experiment=demmo"], "did you mean 'demo'?"),
        ([*DEMO, "trainer.epohs=3"], "trainer.epochs"),
        ([*DEMO, "data.relations=[physicl]"], "(did you mean 'physical'?)"),
        (["bench", "propagation", "--strategies", "deltas"], "(did you mean 'delta'?)"),
    ],
)
def test_a_mistyped_word_or_name_gets_a_suggestion(deltacell, monkeypatch, words, said):
    monkeypatch.setenv("COLUMNS", "120")
    assert said in deltacell(*words, code=2).stderr


def run_main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the program in this process and return its exit code."""
    monkeypatch.setenv("DELTACELL_DEBUG", "")
    monkeypatch.setattr(sys, "argv", ["deltacell", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `deltacell data info` fail."""

    def fail(_path: Any) -> None:
        raise error

    monkeypatch.setattr(storage, "read_manifest", fail)


class OutOfMemoryError(RuntimeError):
    """As PyTorch's, which is not imported for its name."""


DEBUG = "run with --debug for the stack trace)\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ZeroDivisionError("division\nby zero"),
            1,
            f"ZeroDivisionError: division by zero (this is a bug in deltacell; {DEBUG}",
        ),
        (AssertionError(), 1, f"AssertionError (this is a bug in deltacell; {DEBUG}"),
        (OSError(28, "No space", "runs/a"), 1, f"runs/a: No space ({DEBUG}"),
        (OutOfMemoryError("CUDA"), 1, f"there is not enough memory ({DEBUG}"),
        (InputError("it is odd", fix="Make it even."), 2, "it is odd\n  Make it even.\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_a_line_and_a_code(monkeypatch, capsys, error, code, said):
    failing(monkeypatch, error)
    assert run_main(monkeypatch, "data", "info", "x") == code
    assert capsys.readouterr().err == f"error: {said}"


@pytest.mark.parametrize("words", [["--debug", "data", "info"], ["data", "info", "--debug"]])
@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), InputError("it is odd")])
def test_debug_shows_the_stack_trace_wherever_it_stands(monkeypatch, words, error):
    failing(monkeypatch, error)
    with pytest.raises(type(error), match=str(error)):
        run_main(monkeypatch, *words, "x")


def test_a_warning_is_shown_once_and_without_its_place(monkeypatch, capsys):
    ours = program.__file__
    usual = []
    monkeypatch.setattr(warnings, "showwarning", lambda *words: usual.append(str(words[0])))
    program.show_warnings_in_a_line()
    for line in (1, 2):
        warnings.showwarning(UserWarning("it leaks"), UserWarning, ours, line)
    assert capsys.readouterr().err == "warning: it leaks\n"
    warnings.showwarning(DeprecationWarning("old name"), DeprecationWarning, ours, 3)
    warnings.showwarning(UserWarning("not ours"), UserWarning, "other.py", 4)
    assert (usual, capsys.readouterr().err) == (["old name", "not ours"], "")


def test_words_after_two_dashes_are_no_options_and_an_interrupt_exits_with_130(monkeypatch, capsys):
    failing(monkeypatch, ZeroDivisionError())
    assert run_main(monkeypatch, "data", "info", "--", "--debug") == 1
    capsys.readouterr()
    failing(monkeypatch, KeyboardInterrupt())
    assert run_main(monkeypatch, "data", "info", "x") == 130
    assert capsys.readouterr().err == "stopped\n"


def on_a_terminal(folder: Path, **environment: str) -> bytes:
    """Return what an error looks like to a person."""
    ours, theirs = pty.openpty()
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    subprocess.run(
        [sys.executable, "-m", "deltacell", "data", "info", "nowhere"],
        cwd=folder,
        env={**known, "TERM": "xterm-256color", **environment},
        stdout=theirs,
        stderr=theirs,
        check=False,
    )
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        return terminal.read(10_000)


def test_colours_and_columns_are_those_of_the_terminal(tmp_path, deltacell):
    assert b"\x1b[31m" in on_a_terminal(tmp_path)
    assert b"\x1b" not in on_a_terminal(tmp_path, NO_COLOR="1")
    assert b"\x1b" not in on_a_terminal(tmp_path, TERM="dumb")
    assert "\x1b" not in deltacell("data", "info", "nowhere", code=2).stderr
    for width in (60, 120):
        shown = CliRunner().invoke(app, ["train", "-h"], env={"COLUMNS": str(width)}).output
        assert max(map(len, shown.splitlines())) == width
