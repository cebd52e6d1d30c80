"""`deltacell data get`, `synthetic` and `info`: public files, synthetic data, what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deltacell.cli.output import write_json
from deltacell.errors import InputError, did_you_mean


def get(
    names: Annotated[
        list[str] | None, typer.Argument(help="What to download; none lists what there is.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to put the files into.")] = Path("downloads"),
) -> None:
    """Download public files from their official places. Rerun to resume an interrupted transfer.

    Example: deltacell data get sgd-features string-links costanzo2010
    """
    import pooch

    from deltacell.download import DOWNLOADS
    from deltacell.download import get as fetch
    from deltacell.report import console, print_table
    from deltacell.report.progress import progress_bar

    if not names:
        rows = [[d.name, d.about, d.file] for d in DOWNLOADS.values()]
        print_table("what can be downloaded", ["name", "what it is", "file"], rows)
        return
    for name in names:
        if name not in DOWNLOADS:
            raise InputError(
                f"unknown download '{name}'{did_you_mean(name, DOWNLOADS)}",
                code="unknown-download",
                fix=f"There are: {', '.join(DOWNLOADS)}",
            )
    # What it says of its own is written for programmers who call it.
    pooch.get_logger().setLevel("WARNING")
    for name in names:
        with progress_bar() as report:
            path, how = fetch(DOWNLOADS[name], out, progress=report)
        console().print(f"{name}: {path} (checksum {how})", markup=False)
    console().print(f"Next: deltacell data import {out} --out OUT", markup=False)


def synthetic(
    name: Annotated[
        str,
        typer.Argument(
            help="demo, yeast for the size of the real one, or redundancy: interactions only where "
            "two deletions cut both routes to a gene."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory to make: OUT/cell and OUT/screens/…")],
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    genotypes: Annotated[int | None, typer.Option(help="Number of genotypes.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier one.")] = False,
) -> None:
    """Make a cell and a screen with planted interactions, the same for the same random seed.

    Example: deltacell data synthetic demo --out demo
    """
    from deltacell.cell import Cell
    from deltacell.report import console
    from deltacell.screen import Screen
    from deltacell.screen.import_folder import Imported

    cell = Cell.synthetic(name, seed=seed)
    screen = Screen.synthetic(cell, n=genotypes, seed=seed)
    Imported(cell, {"synthetic": screen}).save(out, overwrite=overwrite)
    console().print(f"Wrote {out}: {cell!r} and {screen!r}", markup=False)


def info(
    path: Annotated[Path, typer.Argument(help="A cell, a screen, or an import of both.")],
    full: Annotated[
        bool, typer.Option("--full", help="Also show what became of the rows of every file.")
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
    found: dict[str, Any] = {kind: _stats(path)} if kind != "import" else {}
    if kind == "import":
        found = {
            "cell": _stats(path / "cell"),
            "screens": {name: _stats(path / "screens" / name) for name in meta["screens"]},
            "splits": meta.get("splits", []),
            "left_alone": meta["left_alone"],
            "notes": meta["notes"],
        }
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
