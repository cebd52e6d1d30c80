"""`deltacell runs list`: the runs of a folder side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import Html, option, write_rendered


def list_(
    folder: Annotated[Path, typer.Argument(help="Folder of run directories.")] = Path("runs"),
    csv: Annotated[Path | None, option("Also write the list as .csv.")] = None,
    html: Html = None,
) -> None:
    """List runs by their validation, the best first, with the config keys that differ.

    Example: deltacell runs list runs/demo-sweep --csv runs.csv
    """
    from deltacell.report.runs import print_runs, runs_page
    from deltacell.train.listed_runs import runs_in, write_runs

    listed = runs_in(folder)
    if csv is not None:
        write_runs(listed, csv)
    write_rendered(html, lambda runs: runs_page(runs, str(folder)), listed)
    print_runs(listed, str(folder))
