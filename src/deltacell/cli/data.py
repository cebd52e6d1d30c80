"""`deltacell data ...`: get, import, make, show and query cells and screens."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltacell.cli.program import write_json
from deltacell.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import polars as pl


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


class OnUnknown(StrEnum):
    """What to do with a gene that the cell does not know."""

    error = "error"
    drop = "drop"
    add = "add"


class Phenotype(StrEnum):
    """What to take as the score."""

    interaction = "interaction"
    fitness = "fitness"


def import_(
    folder: Annotated[
        Path, typer.Argument(help="Folder of source files; subfolders are read too.")
    ],
    out: Annotated[Path, typer.Option(help="Directory to make: OUT/cell and OUT/screens/STUDY.")],
    unknown: Annotated[
        OnUnknown, typer.Option(help="What to do with a gene that the cell does not know.")
    ] = OnUnknown.drop,
    phenotype: Annotated[
        Phenotype | None, typer.Option(help="What to take as the score where a file has both.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=COLUMN,…",
            help="Which columns of a table with other headers are what: "
            "gene1=…,gene2=…,score=… for a screen, weight=… for a network; by number where there "
            "is no header. For each table with such columns; can be given more than once.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier import.")] = False,
    json: Annotated[Path | None, typer.Option(help="Also write the account to a file.")] = None,
) -> None:
    """Read a folder of networks, genes, metabolism and screens; files are told by their content.

    For each file it says what was read, resolved, kept and dropped, and why. A file that is not
    recognised is left alone; one that is damaged stops the import, and nothing is written.

    Example: deltacell data import downloads --out yeast
    """
    from deltacell.report import console
    from deltacell.report.data import print_import
    from deltacell.report.progress import progress_bar
    from deltacell.screen.import_folder import import_folder

    with progress_bar() as report:
        imported = import_folder(
            folder,
            on_unknown=unknown.value,
            phenotype=None if phenotype is None else phenotype.value,
            columns=columns or (),
            progress=report,
        )
        imported.save(out, overwrite=overwrite)
    account = imported.account()
    print_import(account)
    write_json(json, account)
    console().print(f"Wrote {out}. Next: deltacell data info {out}", markup=False)


class Format(StrEnum):
    """How to print the result."""

    table = "table"
    csv = "csv"
    json = "json"


def query(
    path: Annotated[Path, typer.Argument(help="A screen, or an import that holds one.")],
    sql: Annotated[str, typer.Argument(help="Over the tables `screen` and `deleted`.")],
    format: Annotated[Format, typer.Option(help="How to print the result.")] = Format.table,
    screen: Annotated[
        str | None, typer.Option(help="Which screen of an import; not needed if it has one.")
    ] = None,
) -> None:
    """Run SQL on the memory-mapped columns of a screen.

    Example: deltacell data query demo "select kind, score from screen limit 5"
    """
    from deltacell.report import print_table
    from deltacell.screen.import_folder import open_screen

    frame = open_screen(path, screen).query(sql)
    if format is Format.csv:
        typer.echo(_flat(frame).write_csv(), nl=False)
    elif format is Format.json:
        typer.echo(frame.write_json())
    else:
        print_table(f"{frame.height:,} rows", frame.columns, _flat(frame).rows())


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with lists as their values with spaces between, and structures as JSON."""
    import polars as pl

    columns = []
    for column in frame.get_columns():
        if isinstance(column.dtype, pl.List | pl.Array | pl.Struct):
            values = [_text(value) for value in column.to_list()]
            columns.append(pl.Series(column.name, values, dtype=pl.String))
        else:
            columns.append(column)
    return pl.DataFrame(columns)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    if isinstance(value, list):
        return " ".join(_text(v) or "" for v in value)
    return str(value)
