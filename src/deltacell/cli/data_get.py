"""`deltacell data get`: fetch public files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltacell.errors import InputError, did_you_mean


def get(
    names: Annotated[
        list[str] | None, typer.Argument(help="What to fetch; none lists what there is.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to put the files into.")] = Path("downloads"),
) -> None:
    """Fetch public files from their official places; a transfer cut off goes on where it stopped.

    Example: deltacell data get sgd-features string-links costanzo2010
    """
    import pooch

    from deltacell.download import DOWNLOADS
    from deltacell.download import get as fetch
    from deltacell.report import console, print_table
    from deltacell.report.progress import progress_bar

    if not names:
        rows = [[d.name, d.about, d.file] for d in DOWNLOADS.values()]
        print_table("what can be fetched", ["name", "what it is", "file"], rows)
        return
    for name in names:
        if name not in DOWNLOADS:
            raise InputError(
                f"there is nothing called '{name}'{did_you_mean(name, DOWNLOADS)}",
                fix=f"There are: {', '.join(DOWNLOADS)}",
            )
    # What it says of its own is written for programmers who call it.
    pooch.get_logger().setLevel("WARNING")
    for name in names:
        with progress_bar() as report:
            path, how = fetch(DOWNLOADS[name], out, progress=report)
        console().print(f"{name}: {path} (checksum {how})", markup=False)
    console().print(f"Next: deltacell data import {out} --out OUT", markup=False)
