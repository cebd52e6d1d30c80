"""`deltacell explain` and `deltacell reconcile`: where the time goes, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import Html, Json, Markdown, option, write_json, write_rendered


def explain(
    a: Annotated[Path, typer.Argument(help="A run, a trace or a directory of traces.")],
    b: Annotated[Path | None, typer.Argument(help="A second one, which is slower.")] = None,
    json: Json = None,
    markdown: Markdown = None,
    html: Html = None,
    full: Annotated[bool, option("Print all lists and tables.", "--full")] = False,
    fail_if: Annotated[str | None, option("Exit with 1 if true: 'slower > 10%'.")] = None,
) -> None:
    """Explain where the time goes, or why B is slower than A: the cause, then the numbers.

    Works on runs of this program and on traces of any PyTorch program.

    Example: deltacell explain runs/before runs/after --fail-if "slower > 10%"
    """
    from deltacell.profile.explain.condition import read_condition
    from deltacell.profile.explain.explanation import explain as explained
    from deltacell.report.explain import markdown_explanation, print_explanation
    from deltacell.report.explanation_page import explanation_page
    from deltacell.report.progress import progress_bar
    from deltacell.report.terminal import print_error

    condition = None if fail_if is None else read_condition(fail_if)
    with progress_bar() as report:
        explanation = explained(a, b, progress=report)
    result = explanation.to_json()
    # Files first, in case the reader of the output, such as `head`, closes the pipe.
    write_json(json, result)
    write_rendered(markdown, markdown_explanation, result)
    write_rendered(html, explanation_page, result)
    print_explanation(result, full=full)
    if condition is not None:
        holds, said = condition.check(explanation)
        if holds:
            print_error(f"failed: {said}")
            raise typer.Exit(1)
        typer.echo(f"passed: {said}")


def reconcile(
    files: Annotated[
        list[Path],
        typer.Argument(help="A YAML file of trainings and measurements, or logs of trainings."),
    ],
    write: Annotated[Path | None, option("Write a YAML file to start from (for logs).")] = None,
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Reconcile contradictory measurements: what each one supports, and which is wrong.

    A YAML file lists them, and may name logs. Of logs alone, times are read and compared.

    Example: deltacell reconcile docs/how-to/dango-against-hetero.yaml
    """
    from deltacell.base.errors import InputError
    from deltacell.base.files import write_text
    from deltacell.profile.explain.reconcile import reconcile as made_consistent
    from deltacell.profile.explain.reconcile_logs import reconcile_logs
    from deltacell.report.explain import markdown_reconciliation, print_reconciliation

    has_yaml = any(file.suffix.lower() in (".yaml", ".yml") for file in files)
    if has_yaml and (len(files) > 1 or write is not None):
        raise InputError(
            "a YAML file of measurements is reconciled alone",
            code="yaml-and-logs",
            fix="Name the logs in it, as in a: {log: slurm-1234.out}; or give the logs alone.",
        )
    if has_yaml:
        result = made_consistent(files[0])
    else:
        result = reconcile_logs(files, "." if write is None else write.parent)
    if write is not None:
        write_text(write, result["yaml"], what="the measurements")
    print_reconciliation(result)
    if not has_yaml and write is None:
        typer.echo(f"\n{result['yaml']}", nl=False)
    write_json(json, result)
    write_rendered(markdown, markdown_reconciliation, result)
