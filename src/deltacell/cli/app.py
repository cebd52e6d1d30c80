"""The program `deltacell`: its commands put together, and errors as sentences."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from deltacell.cli import (
    bench_dango,
    bench_data,
    bench_propagation,
    bench_scaling,
    bench_trace,
    bench_train,
    data_get,
    data_import,
    data_info,
    data_query,
    data_synthetic,
    evaluate,
    explain,
    modes,
    reconcile,
    slurm,
    train,
)
from deltacell.errors import DeltacellError

app = typer.Typer(
    name="deltacell",
    help="Models of gene-deletion phenotypes: the wild type once, every mutant as a difference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(
    no_args_is_help=True, help="Get, import, make, show and query cells and screens."
)
bench = typer.Typer(no_args_is_help=True, help="Measure speed and memory on this machine.")
jobs = typer.Typer(no_args_is_help=True, help="Write the scripts of Slurm jobs.")
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(jobs, name="slurm")

app.command("train")(train.train)
app.command("modes")(modes.modes)
jobs.command("train")(slurm.train)
app.command("evaluate")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.command("reconcile")(reconcile.reconcile)
data.command("get")(data_get.get)
data.command("import")(data_import.import_)
data.command("synthetic")(data_synthetic.synthetic)
data.command("info")(data_info.info)
data.command("query")(data_query.query)
bench.command("data")(bench_data.data)
bench.command("dango")(bench_dango.dango)
bench.command("propagation")(bench_propagation.propagation)
bench.command("scaling")(bench_scaling.scaling)
bench.command("trace")(bench_trace.trace)
bench.command("train")(bench_train.train)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deltacell {version('deltacell')}")
        raise typer.Exit


@app.callback()
def options(
    _show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and stop.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the stack trace of errors.")] = False,
) -> None:
    """Hold the options that come before any command."""
    if debug:
        os.environ["DELTACELL_DEBUG"] = "1"


def main() -> None:
    """Run a command; an error that a user can act on is a sentence, and the exit code is 2."""
    try:
        app()
    except DeltacellError as error:
        if os.environ.get("DELTACELL_DEBUG"):
            raise
        from deltacell.report.terminal import printable

        said = "\n".join(printable(line) for line in str(error).split("\n"))
        typer.secho(f"error: {said}", fg="red", err=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of a pipe went away, as `head` does; there is no one left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
