"""`deltacell data ...`: download, import, generate, show and query cells and screens."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from deltacell.base.errors import InputError, did_you_mean
from deltacell.cli.program import Columns, Json, Overwrite, Seed, option, write_json


def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Downloads; if omitted, list all."),
    ] = None,
    out: Annotated[Path, option("Folder for the files.")] = Path("downloads"),
    sha256: Annotated[str | None, option("Checksum of the file, for a single download.")] = None,
    unchecked: Annotated[
        bool,
        option("Also fetch files whose checksum is unknown, and record it.", "--unchecked"),
    ] = False,
) -> None:
    """Download public files from their official locations.

    Every file must have its known checksum. For a file without one, give it with --sha256, or use
    --unchecked: the checksum is then recorded in the folder, and later downloads must agree.

    Of costanzo2010 a copy is kept in the user's cache, in ~/.cache/deltacell or DELTACELL_CACHE:
    deltacell start uses it as context for screens of the same genes.

    Example: deltacell data get string-info string-physical costanzo2010
    """
    from deltacell.data.download import DOWNLOADS, NETWORKS
    from deltacell.data.download import get as fetch
    from deltacell.data.public_studies import keep_copy
    from deltacell.report import console, print_table
    from deltacell.report.progress import progress_bar

    for name in names or ():
        if name in NETWORKS:
            what = f"'{name}' is a network and not the name of a download"
            raise InputError(what, code="network-not-download", fix=NETWORKS[name])
        if name not in DOWNLOADS:
            what = f"unknown download '{name}'{did_you_mean(name, DOWNLOADS)}"
            fix = f"Choose from: {', '.join(DOWNLOADS)}"
            raise InputError(what, code="unknown-download", fix=fix)
    if sha256 is not None and len(names or ()) != 1:
        what = "--sha256 is for a single download"
        raise InputError(what, code="several-downloads", fix="Name one download at a time.")
    for name in names or ():
        with progress_bar() as report:
            path, how = fetch(
                DOWNLOADS[name],
                out,
                sha256=sha256,
                unchecked=unchecked,
                progress=report,
            )
        console().print(f"{name}: {path} (checksum {how})", markup=False)
        copy = keep_copy(DOWNLOADS[name], path)
        if copy is not None:
            about = "deltacell start uses it as context for screens of the same genes"
            console().print(f"{name}: a copy is kept in {copy.parent}; {about}", markup=False)
    if names:
        console().print(f"Next: deltacell data import {out} --out OUT", markup=False)
    else:
        rows = [
            [d.name, d.about, d.file, "known" if d.sha256 else "unknown"]
            for d in DOWNLOADS.values()
        ]
        print_table("downloads", ["name", "contents", "file", "checksum"], rows)
        for network, place in NETWORKS.items():
            console().print(f"{network}: {place}", markup=False)


def synthetic(
    name: Annotated[
        str,
        typer.Argument(
            help="demo; yeast, with the size of the real cell; or redundancy, where genes interact "
            "only if their deletions cut both routes to a gene.",
        ),
    ],
    out: Annotated[Path, option("Output directory, with cell and screens/synthetic.")],
    seed: Seed = 0,
    genotypes: Annotated[int | None, option("Number of genotypes.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Generate a cell and a screen with planted interactions from a random seed.

    Example: deltacell data synthetic demo --out demo
    """
    from deltacell.cell import Cell
    from deltacell.data.import_folder import Imported
    from deltacell.report import console
    from deltacell.screen import Screen

    cell = Cell.synthetic(name, seed=seed)
    screen = Screen.synthetic(cell, n=genotypes, seed=seed)
    Imported(cell, {"synthetic": screen}).save(out, overwrite=overwrite)
    console().print(f"Wrote {out}: {cell!r} and {screen!r}", markup=False)


def info(
    path: Annotated[Path, typer.Argument(help="Directory of a cell, a screen or an import.")],
    full: Annotated[bool, option("Also show the use of each file's rows.", "--full")] = False,
    json: Json = None,
) -> None:
    """Summarise a cell, a screen or an import.

    Example: deltacell data info yeast --json info.json
    """
    from deltacell.report.data import print_data
    from deltacell.storage import read_manifest

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
        what = f"the directory is a {kind}; expected a cell, a screen or an import"
        raise InputError(what, code="wrong-kind", where=path)
    print_data(found, str(path), full=full)
    write_json(json, found)


OnUnknown = StrEnum("OnUnknown", ["error", "drop", "add"])
Phenotype = StrEnum("Phenotype", ["interaction", "fitness"])
Format = StrEnum("Format", ["table", "csv", "json"])
FileFormat = StrEnum("FileFormat", ["parquet", "neo4j"])


def import_(
    folder: Annotated[Path, typer.Argument(help="Folder of files, including subfolders.")],
    out: Annotated[Path, option("Output directory, with cell and screens/STUDY.")],
    unknown: Annotated[OnUnknown, option("How to treat unknown genes.")] = OnUnknown.drop,
    phenotype: Annotated[
        Phenotype | None,
        option("Which score to read; screens without it are skipped."),
    ] = None,
    columns: Columns = None,
    overwrite: Overwrite = False,
    json: Json = None,
) -> None:
    """Import a folder of networks, genes, metabolism and screens, recognised by their content.

    Reports for each file what was read, resolved, kept and dropped, and why. Unrecognised files
    are skipped; a damaged file stops the import before anything is written.

    Example: deltacell data import downloads --out yeast
    """
    from deltacell.data.import_folder import import_folder
    from deltacell.report import console
    from deltacell.report.data import print_import
    from deltacell.report.progress import progress_bar

    score = None if phenotype is None else phenotype.value
    options: dict[str, Any] = {"on_unknown": unknown.value, "phenotype": score}
    with progress_bar() as report:
        imported = import_folder(folder, **options, columns=columns or (), progress=report)
        imported.save(out, overwrite=overwrite)
    account = imported.account()
    print_import(account)
    write_json(json, account)
    console().print(f"Wrote {out}. Next: deltacell data info {out}", markup=False)


def split(
    what: Annotated[
        list[str],
        typer.Argument(help="Run directory, or settings as for train: data.folder=yeast."),
    ],
    csv: Annotated[Path, option("Output file, .csv or .tsv.")],
    overwrite: Overwrite = False,
) -> None:
    """Write the genes, score and part of every genotype, to train elsewhere on the same split.

    Compare the predictions of the test part with: deltacell evaluate RUN --predictions FILE

    Example: deltacell data split runs/additive --csv split.csv
    """
    from deltacell.base.files import written
    from deltacell.profile.record import RUN_FILE, SPLIT
    from deltacell.report.data import print_split
    from deltacell.train.config.compose import compose
    from deltacell.train.data import load_data
    from deltacell.train.run_config import resumed_config
    from deltacell.train.split_table import split_table

    if csv.suffix.lower() not in (".csv", ".tsv"):
        message = f"--csv is '{csv}'; expected a .csv or .tsv file"
        raise InputError(message, code="wrong-suffix")
    if csv.exists() and not overwrite:
        raise InputError("the file exists; use --overwrite", code="exists", where=csv)
    run = Path(what[0])
    if len(what) == 1 and (run.is_dir() or "=" not in what[0]):
        if not (run / RUN_FILE).is_file():
            fix = "Name one run directory, or settings such as data.folder=yeast."
            raise InputError("not a run directory", code="not-a-run", where=run, fix=fix)
        data = load_data(resumed_config(run), run / SPLIT)
    else:
        data = load_data(compose(what))
    separator = "\t" if csv.suffix.lower() == ".tsv" else ","
    with written(csv, "the split") as temporary:
        split_table(data).write_csv(temporary, separator=separator)
    print_split(data.split.to_json())
    typer.echo(f"Wrote {csv}")


def tables(
    path: Annotated[Path, typer.Argument(help="Directory of an import.")],
    out: Annotated[Path, option("Output directory.")],
    format: Annotated[
        FileFormat,
        option("Parquet, or CSV files for neo4j-admin database import."),
    ] = FileFormat.parquet,
    overwrite: Overwrite = False,
) -> None:
    """Write genes, relations, annotations, reactions and measurements as tables.

    Missing numbers are NULL. `deltacell data query` joins the tables with SQL.

    Example: deltacell data tables demo --out tables
    """
    from deltacell.data.knowledge import Knowledge, write_knowledge
    from deltacell.data.neo4j import SCRIPT, write_neo4j
    from deltacell.report import console, print_table

    knowledge = Knowledge.load(path)
    if format is FileFormat.neo4j:
        n_rows = write_neo4j(knowledge, out, overwrite=overwrite)
        print_table(str(out), ["file", "rows"], [[file, rows] for file, rows in n_rows.items()])
        console().print(f"Next, where Neo4j is installed: sh {out / SCRIPT}", markup=False)
        return
    write_knowledge(knowledge, out, overwrite=overwrite)
    rows = [
        [name, table.height, ", ".join(table.columns)] for name, table in knowledge.tables.items()
    ]
    print_table(str(out), ["table", "rows", "columns"], rows)
    console().print(f'Next: deltacell data query {out} "select * from pairs limit 5"', markup=False)


def query(
    path: Annotated[Path, typer.Argument(help="Directory of a screen, an import or its tables.")],
    sql: Annotated[
        str,
        typer.Argument(
            help="SQL over `screen` and `deleted` of one screen, or over the tables of "
            "`deltacell data tables`.",
        ),
    ],
    format: Annotated[Format, option("Output format.")] = Format.table,
    screen: Annotated[str | None, option("Screen to query, if an import has several.")] = None,
    out: Annotated[
        Path | None,
        option("Write the result: .parquet, .csv, .tsv, .json, or a directory for a screen."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Query a screen, or all that is known of a cell and its screens, with SQL.

    With --out DIRECTORY, genes and scores in the result become a screen to train on.

    Example: deltacell data query demo "select kind, score from screen limit 5"
    """
    from deltacell.data import knowledge
    from deltacell.report import print_table

    if out is not None and not out.suffix:
        _save_screen(path, sql, out, overwrite=overwrite)
        return
    frame = knowledge.query(path, sql, screen=screen)
    if out is not None:
        knowledge.write_result(frame, out)
        typer.echo(f"Wrote {frame.height:,} rows: {out}")
        return
    if format is Format.json:
        typer.echo(frame.write_json())
        return
    flat = knowledge.with_flat_columns(frame)
    if format is Format.csv:
        typer.echo(flat.write_csv(), nl=False)
    else:
        print_table(f"{frame.height:,} rows", frame.columns, flat.rows())


def _save_screen(path: Path, sql: str, out: Path, *, overwrite: bool) -> None:
    """Save the result of SQL on the tables of an import as a screen."""
    from deltacell.data.knowledge import Knowledge
    from deltacell.screen import Screen

    result = Screen.from_query(Knowledge.load(path), sql, study=out.name)
    result.save(out, overwrite=overwrite)
    typer.echo(f"Wrote a screen of {len(result):,} genotypes: {out}")
