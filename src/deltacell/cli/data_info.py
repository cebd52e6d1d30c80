"""`deltacell data info`: what a directory holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.json_file import write_json


def info(
    path: Annotated[Path, typer.Argument(help="A cell, a screen, or an import of both.")],
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Show what a directory holds, with the counts of what was read, resolved and kept.

    Example: deltacell data info yeast --json info.json
    """
    from deltacell.cell import Cell
    from deltacell.report.data import print_cell, print_import, print_screen
    from deltacell.screen import Screen
    from deltacell.screen.import_folder import Imported
    from deltacell.store import read_manifest

    kind = read_manifest(path)["kind"]
    found: dict[str, object]
    if kind == "cell":
        stats = Cell.load(path).stats()
        print_cell(stats)
        found = {"cell": stats}
    elif kind == "screen":
        stats = Screen.load(path).stats()
        print_screen(stats)
        found = {"screen": stats}
    else:
        imported = Imported.load(path)
        cell_stats = imported.cell.stats()
        screens = {name: screen.stats() for name, screen in imported.screens.items()}
        print_cell(cell_stats)
        for name, screen_stats in screens.items():
            print_screen(screen_stats, f"screen {name}")
        account = imported.account()
        print_import({**account, "sources": []})
        found = {"cell": cell_stats, "screens": screens, "left_alone": account["left_alone"]}
    write_json(json, found)
