"""STRING detailed links: one score a channel, and so one relation a channel."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import polars as pl

from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.head import header_of
from deltacell.cell.readers.string_ids import orf_names, scores
from deltacell.errors import InputError
from deltacell.table import read_table

NAME = "string_detailed"

CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
ON_REQUEST = ("textmining",)


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header names two proteins and the channels."""
    return {"protein1", "protein2", *CHANNELS} <= set(header_of(head, " "))


def read(path: str | os.PathLike[str], channels: Sequence[str] = CHANNELS) -> list[NamedEdges]:
    """Return one undirected relation a channel, ``string_<channel>``.

    A pair is an edge of a channel where its score is above 0; all other rows are left out as
    ``score 0``. The weight is the score / 1000.

    Parameters
    ----------
    path
        Space-separated, with a header.
    channels
        Which ones; ``textmining`` only on request, since it has read the papers that a screen is
        published in.
    """
    for channel in channels:
        if channel not in CHANNELS + ON_REQUEST:
            raise InputError(
                f"STRING has no channel '{channel}'",
                where=path,
                fix=f"Choose from {', '.join(CHANNELS + ON_REQUEST)}.",
            )
    table = read_table(path, separator=" ", required=["protein1", "protein2", *channels])
    source, target = orf_names(table, "protein1"), orf_names(table, "protein2")
    relations = []
    for channel in channels:
        score = scores(table, channel)
        scored = np.flatnonzero(score > 0)
        at = pl.Series(scored, dtype=pl.UInt32)
        relations.append(
            NamedEdges(
                f"string_{channel}",
                source.gather(at),
                target.gather(at),
                score[scored],
                directed=False,
                path=table.path,
                lines=table.lines[scored],
                sha256=table.sha256,
                reader=NAME,
                notes={"rows in the file": len(table)},
                left_out={"score 0": len(table) - len(scored)},
            )
        )
    return relations
