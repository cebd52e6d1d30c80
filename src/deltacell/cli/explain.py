"""`deltacell explain` and `deltacell reconcile`: where the time goes, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import write_json


def explain(
    a: Annotated[
        Path, typer.Argument(help="A run, a trace (.json, .json.gz) or a directory of traces.")
    ],
    b: Annotated[Path | None, typer.Argument(help="A second one: why does it take longer?")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write everything to a JSON file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write it as Markdown.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write it as a page: self-contained HTML.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print all lists and tables.")] = False,
    fail_if: Annotated[
        str | None,
        typer.Option(help="Exit with code 1 if this holds beyond noise: 'slower > 10%'."),
    ] = None,
) -> None:
    """Explain where the time goes, or why B takes longer than A: the cause, then the numbers.

    Works on runs of this program and on traces of any PyTorch program.

    Example: deltacell explain runs/before runs/after --fail-if "slower > 10%"
    """
    from deltacell.cli.program import write_text
    from deltacell.profile.explain.explanation import explain as explained
    from deltacell.profile.explain.explanation import read_condition
    from deltacell.report.explain import markdown_explanation, print_explanation
    from deltacell.report.explanation_page import explanation_page
    from deltacell.report.progress import progress_bar
    from deltacell.report.terminal import print_error

    condition = None if fail_if is None else read_condition(fail_if)
    with progress_bar() as report:
        explanation = explained(a, b, progress=report)
    result = explanation.to_json()
    # Files first: a reader of the output that goes away, as `head` does, must not cost them.
    write_json(json, result)
    if markdown is not None:
        write_text(markdown, markdown_explanation(result), what="the explanation")
    if html is not None:
        write_text(html, explanation_page(result), what="the page")
    print_explanation(result, full=full)
    if condition is not None:
        if condition.holds(explanation):
            print_error(f"failed: {condition.told(explanation)}")
            raise typer.Exit(1)
        typer.echo(f"passed: {condition.told(explanation)}")


def reconcile(
    file: Annotated[Path, typer.Argument(help="YAML file: two trainings and what was measured.")],
    json: Annotated[Path | None, typer.Option(help="Also write it to a JSON file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write it as Markdown.")] = None,
) -> None:
    """Make one account of measurements that disagree: what each supports, and what is wrong.

    Example: deltacell reconcile docs/how-to/dango-against-hetero.yaml
    """
    from deltacell.cli.program import write_text
    from deltacell.profile.explain.reconcile import reconcile as made_consistent
    from deltacell.report.explain import markdown_reconciliation, print_reconciliation

    result = made_consistent(file).to_json()
    print_reconciliation(result)
    write_json(json, result)
    if markdown is not None:
        write_text(markdown, markdown_reconciliation(result), what="the tables")
