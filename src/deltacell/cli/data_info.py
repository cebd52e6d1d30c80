"""`deltacell data info`: what a directory holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deltacell.cli.json_file import write_json


def info(
    path: Annotated[Path, typer.Argument(help="A cell, a screen, or an import of both.")],
    full: Annotated[
        bool, typer.Option("--full", help="Show what became of the rows of every file, too.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Show what a directory holds, on a page.

    What became of every file of an import is in its account.json, and shown with --full.

    Example: deltacell data info yeast --json info.json
    """
    from deltacell.report.data import print_data
    from deltacell.store import read_manifest

    manifest = read_manifest(path)
    kind, meta = manifest["kind"], manifest["meta"]
    found: dict[str, Any]
    if kind == "import":
        screens = {name: _stats(path / "screens" / name) for name in meta["screens"]}
        found = {
            "cell": _stats(path / "cell"),
            "screens": screens,
            "splits": meta.get("splits", []),
            "left_alone": meta["left_alone"],
            "notes": meta["notes"],
        }
    else:
        found = {kind: _stats(path)}
    print_data(found, str(path), full=full)
    write_json(json, found)


def _stats(path: Path) -> dict[str, Any]:
    """Return what a cell or a screen holds, from its manifest where that says it."""
    from deltacell.store import read_manifest

    manifest = read_manifest(path)
    meta = manifest["meta"]
    if "stats" in meta:
        return {**meta["stats"], "sources": meta["sources"], "checksum": manifest["checksum"]}
    # Those of earlier versions have to be opened, which loads PyTorch.
    from deltacell.cell import Cell
    from deltacell.screen import Screen

    return (Cell if manifest["kind"] == "cell" else Screen).load(path).stats()
