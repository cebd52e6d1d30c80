"""Looking at the first lines of a file to tell what it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath


def first_line(head: Sequence[str]) -> str:
    """Return the first line that is not blank, or an empty one."""
    return next((line for line in head if line.strip()), "")


def header_of(head: Sequence[str], separator: str) -> list[str]:
    """Return the fields of the first line."""
    return [field.strip() for field in first_line(head).split(separator)]


def stem_of(file_name: str) -> str:
    """Return a file's name without its ending and that of its compression."""
    path = PurePath(PurePath(file_name).name)
    if path.suffix.lower() in (".gz", ".zip"):
        path = path.with_suffix("")
    return path.stem
