"""STRING channels as adjacency lists: line numbers of a gene list, and a score."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.arrays import Ints
from deltacell.cell.readers import string_genes
from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.head import first_line, stem_of
from deltacell.errors import InputError
from deltacell.table import Table, open_text, peek, read_table

NAME = "string_adjacency"

_ROW = re.compile(r"\s*\d+\s*\t\s*\d+\s*\t\s*[-+.\dA-Za-z]+\s*")
_CHANNEL = re.compile(r"(?:^|_)string_(.+?)_adjacency", re.IGNORECASE)


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether rows are two whole numbers and a score, separated by tabs.

    A header does not belong in such a file. With one, the file's name has to say what it is.
    """
    if _ROW.fullmatch(first_line(head)):
        return True
    rows = [line for line in head if line.strip()][1:]
    return "adjacency" in file_name.lower() and any(_ROW.fullmatch(line) for line in rows)


def read(
    path: str | os.PathLike[str], gene_list: str | os.PathLike[str] | None = None
) -> list[NamedEdges]:
    """Return the one relation of the file, ``string_<channel>`` after the file's name.

    Undirected; the weight is the score.

    Parameters
    ----------
    path
        Tab-separated without a header: two line numbers of the gene list, from 1, and a score.
    gene_list
        The file whose lines are numbered. None: the only one in the same folder.
    """
    table = read_table(path, columns=["first", "second", "score"])
    listed = _gene_list_beside(table.path) if gene_list is None else Path(gene_list)
    genes = pl.Series(string_genes.read(listed), dtype=pl.String)
    first, second = (_numbers(table, c, len(genes), listed) for c in ("first", "second"))
    channel = _CHANNEL.search(table.path.name)
    return [
        NamedEdges(
            f"string_{channel[1].lower()}" if channel else stem_of(table.path.name),
            genes.gather(first - 1),
            genes.gather(second - 1),
            table.floats("score"),
            directed=False,
            path=table.path,
            lines=table.lines,
            sha256=table.sha256,
            reader=NAME,
            notes={"gene list": listed.name, "gene list sha256": open_text(listed).sha256},
        )
    ]


def _gene_list_beside(path: Path) -> Path:
    found = [
        other
        for other in sorted(path.parent.iterdir())
        if other.is_file() and other != path and _is_gene_list(other)
    ]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"'{other.name}'" for other in found)
    raise InputError(
        "genes are given as line numbers of a gene list, and "
        + (f"the folder holds {len(found)} of them: {listed}" if found else "there is none beside"),
        where=path,
        fix="Name the gene list, or keep the one that belongs to this file in the same folder "
        "(one systematic name a line).",
    )


def _is_gene_list(path: Path) -> bool:
    try:
        return string_genes.recognise(peek(path), path.name)
    except InputError:
        return False


def _numbers(table: Table, column: str, n_genes: int, gene_list: Path) -> Ints:
    written = table.strings(column).str.strip_chars()
    numbers = written.cast(pl.Int64, strict=False)
    if numbers.null_count():
        row = int(numbers.is_null().to_numpy().argmax())
        fix = None
        what = f"'{written[row]}' is not a line number"
        if row == 0 and numbers.null_count() == 1:
            what += "; it looks like a header where none belongs"
            fix = "Remove the line."
        raise table.error(row, what, fix)
    index: Ints = numbers.to_numpy().astype(np.int64)
    outside = (index < 1) | (index > n_genes)
    if outside.any():
        row = int(outside.argmax())
        raise table.error(
            row,
            f"the line number {index[row]} is out of range: the gene list '{gene_list.name}' has "
            f"the lines 1 to {n_genes}",
            fix="Check that this is the gene list that belongs to the file.",
        )
    return index
