"""What the tests of the readers share: a few genes, and a way to write a small file."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from deltacell.cell import Genes

Write = Callable[..., Path]


@pytest.fixture
def genes() -> Genes:
    """Five genes; the alias BOTH belongs to two of them."""
    return Genes(
        ["YAL001C", "YAL002W", "YAL003W", "YDL227C", "YBR001C-A"],
        ["TFC3", "VPS8", "EFB1", "HO", None],
        [["TSV115"], ["VPT8", "BOTH"], ["BOTH"], [], []],
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes text plainly, as gzip or as zip, as the file's name says."""

    def write(text: str | bytes, name: str = "file.txt") -> Path:
        data = text.encode() if isinstance(text, str) else text
        path = tmp_path / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(data))
        elif name.endswith(".zip"):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(name.removesuffix(".zip"), data)
        else:
            path.write_bytes(data)
        return path

    return write
