"""The file of a figure, whoever draws it."""

from __future__ import annotations

from pathlib import Path

from deltacell.errors import InputError

SUFFIXES = (".png", ".svg")


def check_figure(path: Path | None) -> None:
    """Raise where a figure could not be written in the end, before anything is computed.

    Parameters
    ----------
    path
        Of the figure; None where none is wanted.
    """
    if path is not None and path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"a figure is written as {' or '.join(SUFFIXES)}, and this ends in '{path.suffix}'",
            where=path,
        )
