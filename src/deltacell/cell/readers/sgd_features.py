"""SGD features: every gene's systematic name, standard name, aliases and place."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.arrays import Ints
from deltacell.cell.genes import Genes
from deltacell.cell.readers.head import header_of
from deltacell.counts import Counts, Source
from deltacell.table import Table, read_table

NAME = "sgd_features"

GENE_TYPES = ("ORF", "pseudogene", "blocked_reading_frame", "transposable_element_gene")
NO_NAME = "no systematic name"

_COLUMNS = [
    "sgdid",
    "type",
    "qualifier",
    "systematic",
    "standard",
    "aliases",
    "parent",
    "secondary",
    "chromosome",
    "start",
    "stop",
    "strand",
    "position",
    "coordinate_version",
    "sequence_version",
    "description",
]
_SGDID = re.compile(r"[SL]\d+")


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether one of the first lines has an SGDID and 16 columns.

    A header above it does not hide the file from the reader, which names it.
    """
    rows = [header_of([line], "\t") for line in head if line.strip()][:3]
    return any(len(row) == len(_COLUMNS) and _SGDID.fullmatch(row[0]) for row in rows)


def read(path: str | os.PathLike[str]) -> tuple[Genes, Source]:
    """Return the genes in the file's order.

    Those are features of the types in `GENE_TYPES`. All others, such as RNA genes, introns and
    centromeres, are counted by type. A gene on the Crick strand is written with its start
    above its stop; here the smaller is first.

    Parameters
    ----------
    path
        Tab-separated without a header, 16 columns.
    """
    table = read_table(path, columns=_COLUMNS)
    _check_sgdids(table)
    frame = table.frame.with_columns(pl.all().str.strip_chars())
    is_gene = frame["type"].is_in(GENE_TYPES).to_numpy()
    is_named = (frame["systematic"] != "").to_numpy()
    others = frame["type"].filter(~is_gene).value_counts(sort=True)
    kept = np.flatnonzero(is_gene & is_named)
    genes = Table(frame[kept], table.path, table.lines[kept], table.sha256)
    _check_distinct(genes)
    one_end, other_end = _positions(genes, "start"), _positions(genes, "stop")
    counts = Counts(
        len(table),
        len(kept),
        {
            **{f"feature type {t}": n for t, n in others.iter_rows()},
            NO_NAME: int((is_gene & ~is_named).sum()),
        },
    )
    notes = {
        f"feature type {t}": n for t, n in genes.frame["type"].value_counts(sort=True).iter_rows()
    }
    return (
        Genes(
            genes.frame["systematic"],
            (name or None for name in genes.frame["standard"]),
            (_aliases(written) for written in genes.frame["aliases"]),
            genes.frame["chromosome"],
            np.minimum(one_end, other_end),
            np.maximum(one_end, other_end),
            genes.frame["description"],
        ),
        Source(table.path.name, table.sha256, NAME, counts, into="genes", notes=notes),
    )


def _check_sgdids(table: Table) -> None:
    wrong = ~table.strings("sgdid").str.contains(r"^\s*[SL]\d+\s*$").to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        header = row == 0 and wrong.sum() == 1
        raise table.error(
            row,
            f"'{table.strings('sgdid')[row]}' is not an SGDID such as S000002635"
            + ("; it looks like a header where none belongs" if header else ""),
            fix="Remove the line." if header else None,
        )


def _check_distinct(genes: Table) -> None:
    again = (~genes.frame["systematic"].str.to_uppercase().is_first_distinct()).to_numpy()
    if again.any():
        row = int(again.argmax())
        raise genes.error(row, f"the gene '{genes.frame['systematic'][row]}' stands twice")


def _positions(genes: Table, column: str) -> Ints:
    written = genes.frame[column]
    numbers = written.cast(pl.Int64, strict=False)
    wrong = (numbers.is_null() & (written != "")).to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise genes.error(row, f"column '{column}': '{written[row]}' is not a position")
    positions: Ints = numbers.fill_null(-1).to_numpy().astype(np.int64)
    return positions


def _aliases(written: str) -> list[str]:
    return [alias for part in written.split("|") if (alias := part.strip())]
