"""`deltacell reconcile`: figures that disagree, as one account."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.output import write_json


def reconcile(
    file: Annotated[Path, typer.Argument(help="YAML file: two trainings and what was measured.")],
    json: Annotated[Path | None, typer.Option(help="Also write it to a JSON file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write it as Markdown.")] = None,
) -> None:
    """Make one account of measurements that disagree: what each supports, and what is wrong.

    Example: deltacell reconcile docs/how-to/dango-against-hetero.yaml
    """
    from deltacell.cli.output import write_text
    from deltacell.profile.explain.reconcile import reconcile as made_consistent
    from deltacell.report.explain import markdown_reconciliation, print_reconciliation

    result = made_consistent(file).to_json()
    print_reconciliation(result)
    write_json(json, result)
    if markdown is not None:
        write_text(markdown, markdown_reconciliation(result), what="the tables")
