"""Pages and tables where they were asked for."""

from __future__ import annotations

from pathlib import Path

from deltacell import files
from deltacell.errors import InputError


def write_text(path: Path, text: str, *, what: str) -> None:
    """Write a text file whole, in a folder that is made where there is none.

    Parameters
    ----------
    path
        The file.
    text
        What is in it.
    what
        What it is called where it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{what} could not be written: its folder cannot be made: {error.strerror}", where=path
        ) from error
    files.write_text(path, text, what=what)
