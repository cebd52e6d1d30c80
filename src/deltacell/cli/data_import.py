"""`deltacell data import`: files to a cell and screens."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.output import write_json


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
