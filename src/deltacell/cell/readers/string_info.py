"""STRING protein info: the systematic and the preferred name of every protein."""

from __future__ import annotations

import os
from collections.abc import Sequence

from deltacell.cell.genes import Genes
from deltacell.cell.readers.head import header_of
from deltacell.cell.readers.string_ids import orf_names
from deltacell.counts import Counts, Source
from deltacell.table import read_table

NAME = "string_info"

_ID, _PREFERRED = "#string_protein_id", "preferred_name"


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header has STRING's identifier and the preferred name."""
    return {_ID, _PREFERRED} <= set(header_of(head, "\t"))


def read(path: str | os.PathLike[str]) -> tuple[Genes, Source]:
    """Return the genes in the file's order; the preferred name is the standard name.

    Parameters
    ----------
    path
        Tab-separated, with a header.
    """
    table = read_table(path, required=[_ID, _PREFERRED])
    systematic = orf_names(table, _ID)
    again = (~systematic.str.to_uppercase().is_first_distinct()).to_numpy()
    if again.any():
        row = int(again.argmax())
        raise table.error(row, f"the gene '{systematic[row]}' stands twice")
    preferred = table.strings(_PREFERRED).str.strip_chars()
    genes = Genes(
        systematic,
        (
            name if name and name.upper() != gene.upper() else None
            for gene, name in zip(systematic, preferred, strict=True)
        ),
    )
    counts = Counts(len(table), len(genes))
    return genes, Source(table.path.name, table.sha256, NAME, counts, into="genes")
