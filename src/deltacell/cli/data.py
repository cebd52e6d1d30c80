"""`deltacell data ...`: get, import, make, show and query cells and screens."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from deltacell.cli.program import Json, Overwrite, Seed, option, write_json
from deltacell.errors import InputError, did_you_mean


def get(
    names: Annotated[list[str] | None, typer.Argument(help="Downloads; if none, list all.")] = None,
    out: Annotated[Path, option("Folder to put the files into.")] = Path("downloads"),
) -> None:
    """Download public files from their official locations.

    Example: deltacell data get sgd-features string-links costanzo2010
    """
    from deltacell.download import DOWNLOADS
    from deltacell.download import get as fetch
    from deltacell.report import console, print_table
    from deltacell.report.progress import progress_bar

    for name in names or ():
        if name not in DOWNLOADS:
            what = f"unknown download '{name}'{did_you_mean(name, DOWNLOADS)}"
            fix = f"There are: {', '.join(DOWNLOADS)}"
            raise InputError(what, code="unknown-download", fix=fix)
    for name in names or ():
        with progress_bar() as report:
            path, how = fetch(DOWNLOADS[name], out, progress=report)
        console().print(f"{name}: {path} (checksum {how})", markup=False)
    if names:
        console().print(f"Next: deltacell data import {out} --out OUT", markup=False)
    else:
        rows = [[d.name, d.about, d.file] for d in DOWNLOADS.values()]
        print_table("what can be downloaded", ["name", "what it is", "file"], rows)


def synthetic(
    name: Annotated[
        str,
        typer.Argument(
            help="demo, yeast for the size of the real one, or redundancy: interactions only where "
            "two deletions cut both routes to a gene."
        ),
    ],
    out: Annotated[Path, option("Directory to make: OUT/cell and OUT/screens/…")],
    seed: Seed = 0,
    genotypes: Annotated[int | None, option("Number of genotypes.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Make a cell and a screen with planted interactions, reproducibly from a random seed.

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
    full: Annotated[bool, option("Also show how the rows of files were used.", "--full")] = False,
    json: Json = None,
) -> None:
    """Summarise a cell, a screen or an import.

    Example: deltacell data info yeast --json info.json
    """
    from deltacell.report.data import print_data
    from deltacell.store import read_manifest

    def stats(path: Path) -> dict[str, Any]:
        manifest = read_manifest(path)
        meta, checksum = manifest["meta"], manifest["checksum"]
        return {**meta["stats"], "sources": meta["sources"], "checksum": checksum}

    manifest = read_manifest(path)
    kind, meta = manifest["kind"], manifest["meta"]
    if kind == "import":
        screens = {name: stats(path / "screens" / name) for name in meta["screens"]}
        found = {"cell": stats(path / "cell"), "screens": screens}
        found |= {key: meta[key] for key in ("splits", "left_alone", "notes")}
    elif kind in ("cell", "screen"):
        found = {kind: stats(path)}
    else:
        what = f"its kind is {kind}, and a cell, a screen or an import was expected"
        raise InputError(what, code="wrong-kind", where=path)
    print_data(found, str(path), full=full)
    write_json(json, found)


OnUnknown = StrEnum("OnUnknown", ["error", "drop", "add"])
Phenotype = StrEnum("Phenotype", ["interaction", "fitness"])
Format = StrEnum("Format", ["table", "csv", "json"])


def import_(
    folder: Annotated[Path, typer.Argument(help="Folder of files; subfolders are read too.")],
    out: Annotated[Path, option("Directory to make: OUT/cell and OUT/screens/STUDY.")],
    unknown: Annotated[OnUnknown, option("What to do with unknown genes.")] = OnUnknown.drop,
    phenotype: Annotated[Phenotype | None, option("Which score to read.")] = None,
    columns: Annotated[
        list[str] | None,
        option(
            "Columns of a table with other headers: gene1=…,gene2=…,score=… for a screen, "
            "weight=… for a network; by number if there is no header. Applies to each table with "
            "such columns; may be repeated.",
            metavar="KEY=COLUMN,…",
        ),
    ] = None,
    overwrite: Overwrite = False,
    json: Json = None,
) -> None:
    """Read a folder of networks, genes, metabolism and screens, whatever the files are called.

    For each file it reports what was read, resolved, kept and dropped, and why. A file that is not
    recognised is left alone; one that is damaged stops the import, and nothing is written.

    Example: deltacell data import downloads --out yeast
    """
    from deltacell.report import console
    from deltacell.report.data import print_import
    from deltacell.report.progress import progress_bar
    from deltacell.screen.import_folder import import_folder

    score = None if phenotype is None else phenotype.value
    options: dict[str, Any] = {"on_unknown": unknown.value, "phenotype": score}
    with progress_bar() as report:
        imported = import_folder(folder, **options, columns=columns or (), progress=report)
        imported.save(out, overwrite=overwrite)
    account = imported.account()
    print_import(account)
    write_json(json, account)
    console().print(f"Wrote {out}. Next: deltacell data info {out}", markup=False)


def query(
    path: Annotated[Path, typer.Argument(help="A screen, or an import that holds one.")],
    sql: Annotated[str, typer.Argument(help="SQL over `screen` and `deleted`.")],
    format: Annotated[Format, option("How to print the result.")] = Format.table,
    screen: Annotated[str | None, option("Screen of an import with several.")] = None,
) -> None:
    """Run SQL on the memory-mapped columns of a screen.

    Example: deltacell data query demo "select kind, score from screen limit 5"
    """
    import polars as pl
    from polars import selectors

    from deltacell.report import print_table
    from deltacell.screen.import_folder import open_screen

    frame = open_screen(path, screen).query(sql)
    if format is Format.json:
        typer.echo(frame.write_json())
        return

    def text(value: Any) -> str:
        return str(value) if isinstance(value, dict) else " ".join(map(str, value.to_list()))

    flat = frame.with_columns(selectors.nested().map_elements(text, return_dtype=pl.String))
    if format is Format.csv:
        typer.echo(flat.write_csv(), nl=False)
    else:
        print_table(f"{frame.height:,} rows", frame.columns, flat.rows())
