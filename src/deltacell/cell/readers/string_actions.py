"""STRING actions: typed links, some of which have a direction; one relation a mode."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.arrays import Bools
from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.head import header_of
from deltacell.cell.readers.string_ids import orf_names, scores
from deltacell.table import Table, read_table

NAME = "string_actions"

MIRRORED = "mirrored half of a directional row"

_COLUMNS = ["item_id_a", "item_id_b", "mode", "is_directional", "a_is_acting", "score"]


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header names two items, the mode and its direction."""
    return set(_COLUMNS) <= set(header_of(head, "\t"))


def read(path: str | os.PathLike[str]) -> list[NamedEdges]:
    """Return one relation a mode, ``action_<mode>``, in alphabetical order.

    A mode with any directional row is a directed relation, otherwise undirected. The weight is
    the score / 1000. What a row ``a, b`` gives depends on ``is_directional`` and ``a_is_acting``:

    - ``t, t``: the edge a -> b.
    - ``t, f``: b acts on a, which the row ``b, a`` says too; the row is left out as the mirrored
      half of that one. Where that one is missing, it gives the edge b -> a.
    - ``f``: both act alike. The file writes such a pair both ways round, which gives both
      directions; in a directed relation a missing one is added and counted in the notes.

    Parameters
    ----------
    path
        Tab-separated, with a header.
    """
    table = read_table(path, required=_COLUMNS)
    rows = pl.DataFrame(
        {
            "row": np.arange(len(table)),
            "mode": _modes(table),
            "a": orf_names(table, "item_id_a"),
            "b": orf_names(table, "item_id_b"),
            "directional": _flags(table, "is_directional"),
            "acting": _flags(table, "a_is_acting"),
            "score": scores(table, "score"),
        }
    )
    modes = rows.sort("mode", maintain_order=True).partition_by("mode", maintain_order=True)
    return [_relation(table, rows_of_mode) for rows_of_mode in modes]


def _relation(table: Table, rows: pl.DataFrame) -> NamedEdges:
    directed = bool(rows["directional"].any())
    acting = rows.filter("directional", "acting")
    acted_on = _turned(rows.filter(pl.col("directional") & ~pl.col("acting")))
    alike = rows.filter(~pl.col("directional"))
    unpaired = acted_on.join(acting, on=["a", "b"], how="anti")
    added = _turned(alike).join(alike, on=["a", "b"], how="anti") if directed else alike.clear()
    edges = pl.concat([acting, unpaired, alike, added]).sort("row", maintain_order=True)
    return NamedEdges(
        f"action_{rows['mode'][0]}",
        edges["a"],
        edges["b"],
        edges["score"].to_numpy(),
        directed=directed,
        path=table.path,
        lines=table.lines[edges["row"].to_numpy()],
        sha256=table.sha256,
        reader=NAME,
        notes={
            "rows in the file": len(table),
            "rows of the mode": rows.height,
            "directional rows": int(rows["directional"].sum()),
            "directions added": added.height,
        },
        left_out={MIRRORED: acted_on.height - unpaired.height},
    )


def _turned(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(a=pl.col("b"), b=pl.col("a"))


def _modes(table: Table) -> pl.Series:
    modes = table.strings("mode").str.strip_chars()
    empty = (modes == "").to_numpy()
    if empty.any():
        raise table.error(int(empty.argmax()), "column 'mode' is empty")
    return modes


def _flags(table: Table, column: str) -> Bools:
    written = table.strings(column).str.strip_chars()
    wrong = ~written.is_in(["t", "f"]).to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise table.error(row, f"column '{column}': '{written[row]}' is neither 't' nor 'f'")
    flags: Bools = (written == "t").to_numpy()
    return flags
