"""The files of STRING: links, actions, adjacency lists and names of proteins."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.arrays import Bools, Doubles
from deltacell.cell.genes import Genes
from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.names import (
    Reader,
    check_distinct,
    first_line,
    has_columns,
    header_of,
    is_systematic,
    names_in,
    stem_of,
)
from deltacell.counts import Counts, Source
from deltacell.errors import InputError
from deltacell.table import Table, open_text, peek, read_table

CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
ON_REQUEST = ("textmining",)

_LINK = ["protein1", "protein2", "combined_score"]
_ACTION = ["item_id_a", "item_id_b", "mode", "is_directional", "a_is_acting", "score"]
_INFO = ["#string_protein_id", "preferred_name"]
_ROW = re.compile(r"\s*\d+\s*\t\s*\d+\s*\t\s*[-+.\dA-Za-z]+\s*")
_CHANNEL = re.compile(r"(?:^|_)string_(.+?)_adjacency", re.IGNORECASE)


def read_detailed(
    path: str | os.PathLike[str], channels: Sequence[str] = CHANNELS
) -> list[NamedEdges]:
    """Return one undirected relation per channel, ``string_<channel>``, of the pairs above 0.

    The channel ``textmining`` is read only on request, since it has read the papers that a screen
    is published in.
    """
    for channel in channels:
        if channel not in CHANNELS + ON_REQUEST:
            fix = f"Choose from {', '.join(CHANNELS + ON_REQUEST)}."
            what = f"STRING has no channel '{channel}'"
            raise InputError(what, code="unknown-channel", where=path, fix=fix)
    table = read_table(path, separator=" ", required=["protein1", "protein2", *channels])
    source, target = _orf_names(table, "protein1"), _orf_names(table, "protein2")
    relations = []
    for channel in channels:
        score = _scores(table, channel)
        rows = np.flatnonzero(score > 0)
        relations.append(
            NamedEdges.of(
                table,
                "string_detailed",
                f"string_{channel}",
                source.gather(rows),
                target.gather(rows),
                score[rows],
                rows=rows,
                notes={"rows in the file": len(table)},
                left_out={"score 0": len(table) - len(rows)},
            )
        )
    return relations


def _read_physical(path: str | os.PathLike[str]) -> list[NamedEdges]:
    table = read_table(path, separator=" ", required=_LINK)
    # The full network has the same columns, and only the file's name shows which one it is.
    name = "string_combined" if "protein.links" in table.path.name else "physical"
    genes = _orf_names(table, "protein1"), _orf_names(table, "protein2")
    return [NamedEdges.of(table, "string_physical", name, *genes, _scores(table, _LINK[2]))]


def _read_actions(path: str | os.PathLike[str]) -> list[NamedEdges]:
    """Return one relation per mode, ``action_<mode>``, in alphabetical order.

    A mode with any directional row is a directed relation, otherwise undirected. What a row
    ``a, b`` gives depends on ``is_directional`` and ``a_is_acting``:

    - ``t, t``: the edge a -> b.
    - ``t, f``: b acts on a, which the row ``b, a`` says too; the row is left out as the mirrored
      half of that one. Where that one is missing, it gives the edge b -> a.
    - ``f``: both act alike. The file writes such a pair both ways round, which gives both
      directions; in a directed relation a missing one is added and counted in the notes.
    """
    table = read_table(path, required=_ACTION)
    mode = table.strings("mode").str.strip_chars()
    table.refuse("mode", (mode == "").to_numpy(), "is empty")
    rows = pl.DataFrame(
        {
            "row": np.arange(len(table)),
            "mode": mode,
            "a": _orf_names(table, "item_id_a"),
            "b": _orf_names(table, "item_id_b"),
            "directional": _flags(table, "is_directional"),
            "acting": _flags(table, "a_is_acting"),
            "score": _scores(table, "score"),
        }
    )

    def turned(some: pl.DataFrame) -> pl.DataFrame:
        return some.with_columns(a=pl.col("b"), b=pl.col("a"))

    relations = []
    for of_mode in rows.sort("mode", maintain_order=True).partition_by("mode", maintain_order=True):
        directed = bool(of_mode["directional"].any())
        acting = of_mode.filter("directional", "acting")
        acted_on = turned(of_mode.filter(pl.col("directional") & ~pl.col("acting")))
        alike = of_mode.filter(~pl.col("directional"))
        unpaired = acted_on.join(acting, on=["a", "b"], how="anti")
        added = turned(alike).join(alike, on=["a", "b"], how="anti") if directed else alike.clear()
        edges = pl.concat([acting, unpaired, alike, added]).sort("row", maintain_order=True)
        relations.append(
            NamedEdges.of(
                table,
                "string_actions",
                f"action_{of_mode['mode'][0]}",
                edges["a"],
                edges["b"],
                edges["score"].to_numpy(),
                directed=directed,
                rows=edges["row"].to_numpy(),
                notes={
                    "rows in the file": len(table),
                    "rows of the mode": of_mode.height,
                    "directional rows": int(of_mode["directional"].sum()),
                    "directions added": added.height,
                },
                left_out={"mirrored half of a directional row": acted_on.height - unpaired.height},
            )
        )
    return relations


def _recognise_adjacency(head: Sequence[str], file_name: str) -> bool:
    """Whether rows are two whole numbers and a score; below a header, if the name says so too."""
    if _ROW.fullmatch(first_line(head)):
        return True
    rows = [line for line in head if line.strip()][1:]
    return "adjacency" in file_name.lower() and any(_ROW.fullmatch(line) for line in rows)


def read_adjacency(
    path: str | os.PathLike[str], gene_list: str | os.PathLike[str] | None = None
) -> list[NamedEdges]:
    """Return the one relation of the file, ``string_<channel>`` after the file's name."""
    table = read_table(path, columns=["first", "second", "score"])
    listed = _gene_list_beside(table.path) if gene_list is None else Path(gene_list)
    genes = pl.Series(_read_genes(listed), dtype=pl.String)
    ends = []
    for column in ("first", "second"):
        numbers = table.strings(column).str.strip_chars().cast(pl.Int64, strict=False)
        header = numbers.null_count() == 1 and numbers[0] is None
        fix = "Remove the line: no header belongs here." if header else None
        table.refuse(column, numbers.is_null().to_numpy(), "is not a line number", fix)
        outside = (numbers < 1) | (numbers > len(genes))
        what = f"is out of range: the gene list '{listed.name}' has the lines 1 to {len(genes)}"
        table.refuse(column, outside, what, "Check that the gene list belongs to this file.")
        ends.append(genes.gather(numbers - 1))
    channel = _CHANNEL.search(table.path.name)
    name = f"string_{channel[1].lower()}" if channel else stem_of(table.path.name)
    notes = {"gene list": listed.name, "gene list sha256": open_text(listed).sha256}
    weight = table.floats("score")
    return [NamedEdges.of(table, "string_adjacency", name, ends[0], ends[1], weight, notes=notes)]


def _gene_list_beside(path: Path) -> Path:
    def is_gene_list(other: Path) -> bool:
        try:
            return other.is_file() and other != path and _are_genes(peek(other), other.name)
        except InputError:
            return False

    found = [other for other in sorted(path.parent.iterdir()) if is_gene_list(other)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"'{other.name}'" for other in found) or "none"
    raise InputError(
        f"genes are line numbers of a gene list, and the folder holds {len(found)}: {listed}",
        code="no-gene-list",
        where=path,
        fix="Keep the gene list that belongs to this file in its folder, one systematic name per "
        "line.",
    )


def _are_genes(head: Sequence[str], file_name: str) -> bool:
    names = [line.strip() for line in head if line.strip()]
    return bool(names) and all(map(is_systematic, names))


def _read_genes(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of a gene list in order, so that line ``i`` is at ``i - 1``."""
    table = read_table(path, columns=["gene"])
    names = names_in(table, "gene")
    shifted = np.flatnonzero(table.lines != np.arange(1, len(table) + 1))
    if len(shifted):
        what = "a blank line shifts the numbers of the genes below it"
        fix = "Remove the line, if the adjacency files do not count it."
        line = int(shifted[0]) + 1
        raise InputError(what, code="blank-line", where=table.path, line=line, fix=fix)
    if len(names) > 1 and not is_systematic(names[0]) and all(map(is_systematic, names[1:])):
        raise table.error(0, f"'{names[0]}' is a header, and none belongs here", "Remove the line.")
    check_distinct(table, "gene", names)
    return names.to_list()


def _read_info(path: str | os.PathLike[str]) -> tuple[Genes, Source]:
    """Return the genes in the file's order; the preferred name is the standard name."""
    table = read_table(path, required=_INFO)
    systematic = _orf_names(table, _INFO[0])
    check_distinct(table, _INFO[0], systematic)
    preferred = table.strings(_INFO[1]).str.strip_chars()
    standard = [
        name if name and name.upper() != gene.upper() else None
        for gene, name in zip(systematic, preferred, strict=True)
    ]
    counts = Counts(len(table), len(table))
    source = Source(table.path.name, table.sha256, "string_info", counts, into="genes")
    return Genes(systematic, standard), source


def _orf_names(table: Table, column: str) -> pl.Series:
    """Return a column of STRING identifiers without their taxon: ``4932.YDL227C`` is YDL227C."""
    return names_in(table, column).str.replace(r"^\d+\.", "")


def _scores(table: Table, column: str) -> Doubles:
    """Return a column of scores of up to 1000 as numbers from 0 to 1."""
    written = table.floats(column)
    table.refuse(column, (written < 0) | (written > 1000), "is not between 0 and 1000")
    return written / 1000


def _flags(table: Table, column: str) -> Bools:
    written = table.strings(column).str.strip_chars()
    table.refuse(column, ~written.is_in(["t", "f"]).to_numpy(), "is neither 't' nor 'f'")
    flags: Bools = (written == "t").to_numpy()
    return flags


string_detailed = Reader(
    "string_detailed", has_columns("protein1", "protein2", *CHANNELS, separator=" "), read_detailed
)
string_physical = Reader(
    "string_physical", lambda head, file_name: header_of(head, " ") == _LINK, _read_physical
)
string_actions = Reader("string_actions", has_columns(*_ACTION), _read_actions)
string_adjacency = Reader("string_adjacency", _recognise_adjacency, read_adjacency)
string_genes = Reader("string_genes", _are_genes, _read_genes)
string_info = Reader("string_info", has_columns(*_INFO), _read_info)
