"""The program `deltacell`: its commands put together, and errors as sentences."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from deltacell.cli import bench as bench_commands
from deltacell.cli import data as data_commands
from deltacell.cli import evaluate, explain, predict, slurm, start, train
from deltacell.cli.program import Program, WithSettings
from deltacell.errors import DeltacellError

app = typer.Typer(
    name="deltacell",
    cls=Program,
    help="Models of gene-deletion phenotypes: the wild type once, every mutant as a difference.",
    epilog="Example: deltacell train experiment=demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(
    no_args_is_help=True,
    help="Get, import, make, show and query cells and screens.",
    epilog="Example: deltacell data synthetic demo --out demo",
)
bench = typer.Typer(
    no_args_is_help=True,
    help="Measure speed and memory on this machine.",
    epilog="Example: deltacell bench data --quick",
)
jobs = typer.Typer(
    no_args_is_help=True,
    help="Write the scripts of Slurm jobs.",
    epilog="Example: deltacell slurm train experiment=demo > job.sbatch",
)
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(jobs, name="slurm")


def _add(
    group: typer.Typer,
    name: str,
    function: Callable[..., Any],
    kind: type[TyperCommand] = TyperCommand,
) -> None:
    """Add a command; the example that ends its docstring ends its help, below the options."""
    told, _, example = inspect.cleandoc(function.__doc__ or "").rpartition("\n\n")
    # In help a bracket begins a style.
    group.command(name, cls=kind, help=told, epilog=example.replace("[", "\\["))(function)


_add(app, "demo", start.demo)
_add(app, "start", start.start)
_add(app, "train", train.train, WithSettings)
_add(app, "evaluate", evaluate.evaluate)
_add(app, "predict", predict.predict)
_add(app, "why", predict.why)
_add(app, "explain", explain.explain)
_add(app, "reconcile", explain.reconcile)
_add(app, "modes", train.modes)
_add(jobs, "train", slurm.train, WithSettings)
_add(data, "get", data_commands.get)
_add(data, "import", data_commands.import_)
_add(data, "synthetic", data_commands.synthetic)
_add(data, "info", data_commands.info)
_add(data, "query", data_commands.query)
for _name in (
    *("data", "dango", "explain", "faults", "mutants", "pairs"),
    *("predict", "propagation", "scaling", "start", "trace", "train"),
):
    _add(bench, _name, getattr(bench_commands, _name))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"deltacell {version('deltacell')}")
        raise typer.Exit


@app.callback()
def options(
    _show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and stop.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the stack trace of errors; anywhere in a command.")
    ] = False,
) -> None:
    """Hold the options that come before any command."""
    if debug:
        os.environ["DELTACELL_DEBUG"] = "1"


def main() -> None:
    """Run a command; an error is a sentence.

    The exit code is 2 where the user can act on it, 1 where the fault is not his. The stack trace
    is shown with `--debug`.
    """
    try:
        app()
    except BrokenPipeError:
        # The reader of a pipe went away, as `head` does; there is no one left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("DELTACELL_DEBUG"):
            raise
        _tell(error)
        sys.exit(2 if isinstance(error, DeltacellError) else 1)


def _tell(error: Exception) -> None:
    from deltacell.report.terminal import print_error

    if isinstance(error, DeltacellError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f"{error.filename}: "
        text = f"{place}{error.strerror} (run with --debug for the stack trace)"
    elif _is_out_of_memory(error):
        text = "there is not enough memory (run with --debug for the stack trace)"
    else:
        said = " ".join(str(error).split())
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
        text += " (this is a fault of deltacell; run with --debug for the stack trace)"
    print_error(f"error: {text}")


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # A library that cannot be loaded for want of memory says so in words alone.
    said = str(error).lower()
    return any(sign in said for sign in ("cannot allocate memory", "failed to map segment"))
