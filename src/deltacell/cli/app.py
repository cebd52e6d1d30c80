"""The program `deltacell`: its commands, and how it reports errors."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer

from deltacell.base.errors import DeltacellError
from deltacell.base.memory import check_limit, lacks_memory, memory_sentence
from deltacell.cli import (
    bench,
    compare,
    data,
    explain,
    predict,
    refit,
    runs,
    slurm,
    start,
    train,
)
from deltacell.cli.program import Program, option, show_warnings_in_a_line

UNLIMITED = frozenset(("-h", "--help", "--version"))  # need no library
app = typer.Typer(
    name="deltacell",
    cls=Program,
    help="Train, test, explain and apply models of gene-deletion phenotypes.",
    epilog="Example: deltacell train experiment=demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": start.demo,
    "start": start.start,
    "train": train.train,
    "evaluate": predict.evaluate,
    "refit": refit.refit,
    "predict": predict.predict,
    "why": predict.why,
    "explain": explain.explain,
    "compare": compare.compare,
    "reconcile": explain.reconcile,
    "modes": train.modes,
    "runs list": runs.list_,
    "data get": data.get,
    "data import": data.import_,
    "data synthetic": data.synthetic,
    "data info": data.info,
    "data tables": data.tables,
    "data query": data.query,
    "data split": data.split,
    **{f"bench {name}": command for name, command in bench.COMMANDS.items()},
    "slurm train": slurm.train,
    "slurm predict": slurm.predict,
    "slurm evaluate": slurm.evaluate,
    "slurm compare": slurm.compare,
}
PASS_ON = (slurm.predict, slurm.evaluate, slurm.compare)
GROUPS = {
    "data": ("Get, import, generate, show, split and query cells and screens.", "info demo"),
    "runs": ("Compare runs.", "list runs"),
    "bench": ("Measure speed and memory on this machine.", "propagation --quick"),
    "slurm": ("Write Slurm job scripts.", "train experiment=demo > job.sbatch"),
}
_groups = {"": app}
for _name, (_help, _example) in GROUPS.items():
    _example = f"Example: deltacell {_name} {_example}"
    _groups[_name] = typer.Typer(no_args_is_help=True, help=_help, epilog=_example)
    app.add_typer(_groups[_name], name=_name)
for _words, _function in COMMANDS.items():
    _group, _, _name = _words.rpartition(" ")
    # The last paragraph of a docstring is an example, which the help shows below the options.
    _help, _, _example = inspect.cleandoc(_function.__doc__ or "").rpartition("\n\n")
    # A bracket would begin a style of rich.
    _groups[_group].command(
        _name,
        help=_help,
        epilog=_example.replace("[", "\\["),
        context_settings=slurm.PASSES_ON if _function in PASS_ON else None,
    )(_function)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deltacell {version('deltacell')}")
        raise typer.Exit


_VERSION = option("Print the version.", "--version", callback=_print_version, is_eager=True)
_DEBUG = option("Show the stack trace of an error; accepted anywhere.", "--debug")


@app.callback()
def options(
    _show_version: Annotated[bool, _VERSION] = False,
    debug: Annotated[bool, _DEBUG] = False,
) -> None:
    if debug:
        os.environ["DELTACELL_DEBUG"] = "1"


def main() -> None:
    """Run a command; print an error without its stack trace, unless `--debug` is given.

    The exit code is 2 for errors that the user can correct, and 1 for all others.
    """
    show_warnings_in_a_line()
    try:
        if not UNLIMITED.intersection(sys.argv):
            check_limit()
        app()
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("DELTACELL_DEBUG"):
            raise
        from deltacell.report.terminal import print_error

        print_error(f"error: {_sentence(error)}")
        sys.exit(2 if isinstance(error, DeltacellError) else 1)


def _sentence(error: Exception) -> str:
    if isinstance(error, DeltacellError):
        return str(error)
    said, fault = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": "), ""
    if lacks_memory(error):
        said = memory_sentence()
    elif isinstance(error, OSError) and error.strerror:
        said = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    else:
        fault = "this is a bug in deltacell; "
    return f"{said} ({fault}run with --debug for the stack trace)"
