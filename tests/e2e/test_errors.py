"""What goes wrong is told in a line, with what was meant; the stack trace is for `--debug`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deltacell import store
from deltacell.cli.app import app, main
from deltacell.errors import InputError, MissingExtraError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["bench", "propagate"], "Did you mean 'propagation'?"),
        (["data", "synthetics"], "Did you mean 'synthetic'?"),
        (["train", "--resmue", "x"], "--resume"),
        (["evaluate", "x", "--figure", "y"], "--figures"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "experiment=demmo"], "did you mean 'demo'?"),
        (["train", "experiment=demo", "trainer.epohs=3"], "trainer.epochs"),
        (["train", "experiment=demo", "split.method=geen"], "did you mean 'gene'?"),
        (["train", "experiment=demo", "propagation=detla"], "did you mean 'delta'?"),
        (["train", "experiment=demo", "data.relations=[physicl]"], "(did you mean 'physical'?)"),
        (
            ["train", "experiment=demo", "model=hetero_cell", "model.features=[expresion]"],
            "(did you mean 'expression'?)",
        ),
        (["train", "experiment=demo", "model.relations=[string_databse]"], "'string_database'?"),
        (["train", "--epochs", "3"], "deltacell train trainer.epochs=3"),
        (["train", "--lr=0.1", "experiment=demo"], "deltacell train optimizer.lr=0.1"),
        (["train", "--epohcs", "seed=1"], "deltacell train trainer.epochs=..."),
        (["slurm", "train", "--batch-size", "4"], "deltacell slurm train data.batch_size=4"),
        (["data", "get", "sgd-feature"], "(did you mean 'sgd-features'?)"),
        (["data", "synthetic", "Demo", "--out", "x"], "(did you mean 'demo'?)"),
        (["bench", "propagation", "--strategies", "deltas"], "(did you mean 'delta'?)"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(deltacell: Any, words: list[str], said: str) -> None:
    error = deltacell(*words, code=2).stderr
    assert error.startswith("error: ")
    assert said in error


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

    monkeypatch.setattr(store, "read_manifest", fail)


class OutOfMemoryError(RuntimeError):
    """As PyTorch's, which is not imported for its name."""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "error: ZeroDivisionError: division by zero (this is a fault of deltacell; run with "
            "--debug for the stack trace)\n",
        ),
        (
            AssertionError(),
            1,
            "error: AssertionError (this is a fault of deltacell; run with --debug for the stack "
            "trace)\n",
        ),
        (
            OSError(28, "No space left on device", "runs/a"),
            1,
            "error: runs/a: No space left on device (run with --debug for the stack trace)\n",
        ),
        (
            OutOfMemoryError("CUDA out of memory"),
            1,
            "error: there is not enough memory (run with --debug for the stack trace)\n",
        ),
        (InputError("it is odd", fix="Make it even."), 2, "error: it is odd\n  Make it even.\n"),
        (
            MissingExtraError("This", "wandb"),
            2,
            "error: This needs the extra 'wandb'\n"
            "  Install it with: pip install 'deltacell[wandb]'\n",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_a_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    said: str,
) -> None:
    failing(monkeypatch, error)
    assert run_main(monkeypatch, "data", "info", "x") == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "words", [["--debug", "data", "info", "x"], ["data", "info", "x", "--debug"]]
)
@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), InputError("it is odd")])
def test_debug_shows_the_stack_trace_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, words: list[str], error: Exception
) -> None:
    failing(monkeypatch, error)
    monkeypatch.setenv("DELTACELL_DEBUG", "")
    monkeypatch.setattr(sys, "argv", ["deltacell", *words])
    with pytest.raises(type(error), match=str(error)):
        main()


def test_what_follows_two_dashes_is_not_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ZeroDivisionError())
    assert run_main(monkeypatch, "data", "info", "--", "--debug") == 1


def test_stopping_is_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert run_main(monkeypatch, "data", "info", "x") == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("wandb", "wandb", ["train", "experiment=demo", "loggers.wandb=true"]),
        ("mlflow", "mlflow", ["train", "experiment=demo", "loggers.mlflow=true"]),
        ("line_profiler", "lines", ["train", "experiment=demo", "profiler.kind=lines"]),
    ],
)
def test_a_missing_extra_names_its_install_command(
    deltacell: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    module: str,
    extra: str,
    words: list[str],
) -> None:
    # What stands for None there cannot be imported and is not found.
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    monkeypatch.setattr("deltacell.train.callbacks.find_spec", lambda *_: None)
    error = deltacell(*words, code=2).stderr
    assert f"Install it with: pip install 'deltacell[{extra}]'" in error
    assert list(tmp_path.iterdir()) == []


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


def test_colours_are_for_terminals_that_want_them(tmp_path: Path, deltacell: Any) -> None:
    assert b"\x1b[31m" in on_a_terminal(tmp_path)
    assert b"\x1b" not in on_a_terminal(tmp_path, NO_COLOR="1")
    assert b"\x1b" not in on_a_terminal(tmp_path, TERM="dumb")
    assert "\x1b" not in deltacell("data", "info", "nowhere", code=2).stderr


def test_columns_are_respected_by_help() -> None:
    for width in (60, 120):
        shown = CliRunner().invoke(app, ["train", "-h"], env={"COLUMNS": str(width)}).output
        assert max(map(len, shown.splitlines())) == width
