"""`deltacell data synthetic`: a made-up cell and screen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def synthetic(
    name: Annotated[
        str,
        typer.Argument(
            help="demo, yeast for the size of the real one, or redundancy: interactions only where "
            "two deletions cut both routes to a gene."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory to make: OUT/cell and OUT/screens/…")],
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    genotypes: Annotated[int | None, typer.Option(help="Number of genotypes.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier one.")] = False,
) -> None:
    """Make a cell and a screen with planted interactions, the same for the same seed.

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
