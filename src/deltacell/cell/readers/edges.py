"""Edges as a file writes them, the way from there to a relation, and three network formats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from deltacell.arrays import AnyArray, Ints
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import (
    OnUnresolved,
    Reader,
    count_unresolved,
    has_columns,
    header_of,
    names_in,
    refuse_unresolved,
    unresolved_notes,
)
from deltacell.cell.relation import Relation
from deltacell.counts import Counts, Source
from deltacell.errors import InputError
from deltacell.table import Table, read_table


@dataclass(frozen=True)
class NamedEdges:
    """The edges of one relation with their genes' names as written, not yet resolved."""

    name: str
    source: pl.Series
    target: pl.Series
    weight: AnyArray | None
    directed: bool
    path: Path
    lines: Ints  # the line that each edge is written in
    sha256: str
    reader: str
    notes: Mapping[str, int | str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)  # rows that are not edges, by reason

    @classmethod
    def of(
        cls,
        table: Table,
        reader: str,
        name: str,
        source: pl.Series,
        target: pl.Series,
        weight: AnyArray | None = None,
        *,
        directed: bool = False,
        rows: Ints | None = None,
        notes: Mapping[str, int | str] | None = None,
        left_out: Mapping[str, int] | None = None,
    ) -> NamedEdges:
        """Make the edges of a table; `rows` are those that they come from, by default all."""
        lines = table.lines if rows is None else table.lines[rows]
        of_file = directed, table.path, lines, table.sha256, reader, notes or {}, left_out or {}
        return cls(name, source, target, weight, *of_file)

    def __len__(self) -> int:
        return len(self.source)


def relation_of(
    edges: NamedEdges, genes: Genes, on_unknown: OnUnresolved = "error"
) -> tuple[Relation, Source]:
    """Resolve the names of edges and make a relation of them.

    Every row is accounted for: those the reader left out, those whose genes are not found, self
    loops, duplicates and the second writing of undirected edges are counted by reason. The notes
    of the source name the first genes that were not found.
    """
    source, target = genes.resolve(edges.source).index, genes.resolve(edges.target).index
    # Unknown is -1 and ambiguous -2, and an unknown gene counts before an ambiguous one.
    worst = np.where((source == -1) | (target == -1), -1, np.minimum(source, target))
    first = edges.source.zip_with(pl.Series(source < 0), edges.target)
    refuse_unresolved(genes, first, worst, on_unknown, edges.path, edges.lines)
    found = worst >= 0
    relation = Relation.from_edges(
        edges.name,
        source[found],
        target[found],
        None if edges.weight is None else edges.weight[found],
        n_genes=len(genes),
        directed=edges.directed,
    )
    written = Counts(len(edges) + sum(edges.left_out.values()), len(edges), edges.left_out)
    named = Counts(len(edges), int(found.sum()), count_unresolved(worst))
    relation.counts = written.then(named).then(relation.counts)
    notes: dict[str, int | str] = dict(edges.notes)
    if not edges.directed:
        # Aliases make one edge of some.
        pairs = pl.DataFrame({"a": edges.source, "b": edges.target}).filter(
            pl.col("a") != pl.col("b")
        )
        ordered = pairs.select(a=pl.min_horizontal("a", "b"), b=pl.max_horizontal("a", "b"))
        if ordered.n_unique() != relation.n_edges:
            notes["edges_as_written"] = ordered.n_unique()
    names, index = pl.concat([edges.source, edges.target]), np.concatenate([source, target])
    notes |= unresolved_notes(names, index)
    file = edges.path.name, edges.sha256, edges.reader
    return relation, Source(*file, relation.counts, into=edges.name, notes=notes)


def names_of(edges: NamedEdges) -> list[str]:
    """Return the distinct gene names of edges; of those that differ only in case, the first.

    To add unknown genes to a cell, extend its genes by those of these names that do not resolve,
    and then resolve the edges.
    """
    names = pl.concat([edges.source, edges.target]).unique(maintain_order=True)
    return names.filter(names.str.to_uppercase().is_first_distinct()).to_list()


def _read_biogrid(path: str | os.PathLike[str]) -> list[NamedEdges]:
    table = read_table(path, required=["orf1", "orf2"])
    genes = names_in(table, "orf1"), names_in(table, "orf2")
    return [NamedEdges.of(table, "biogrid", "biogrid", *genes)]


def _read_yeastract(path: str | os.PathLike[str]) -> list[NamedEdges]:
    """Return the edges from regulator to target, weighted by the kinds of evidence that are 1."""
    table = read_table(path, required=["tf_orf", "target_orf"])
    evidence = [c for c in table.frame.columns if c not in ("tf_orf", "target_orf")]
    if not evidence:
        what = "there is no column of evidence beside 'tf_orf' and 'target_orf'"
        raise InputError(what, code="missing-columns", where=table.path)
    weight = np.zeros(len(table))
    for column in evidence:
        written = table.strings(column).str.strip_chars()
        table.refuse(column, ~written.is_in(["0", "1"]).to_numpy(), "is neither 0 nor 1")
        weight += (written == "1").to_numpy()
    rows = np.flatnonzero(weight > 0)
    return [
        NamedEdges.of(
            table,
            "yeastract",
            "regulatory",
            names_in(table, "tf_orf").gather(rows),
            names_in(table, "target_orf").gather(rows),
            weight[rows],
            directed=True,
            rows=rows,
            left_out={"no evidence": len(table) - len(rows)},
        )
    ]


def _read_tflink(path: str | os.PathLike[str]) -> list[NamedEdges]:
    """Return the edges from factor to target.

    A protein that several genes encode has their names joined by ``;``; such a row gives an edge
    for each of them, and each counts as read. A row that has ``-`` for a name is left out.
    """
    table = read_table(path, required=["Name.TF", "Name.Target"])
    factor, target = (names_in(table, c).str.split(";") for c in ("Name.TF", "Name.Target"))
    rows = pl.DataFrame({"row": np.arange(len(table)), "factor": factor, "target": target})
    edges = rows.explode("factor").explode("target")
    edges = edges.with_columns(pl.col("factor", "target").str.strip_chars())
    named = edges.filter(*(~pl.col(c).is_in(["", "-"]) for c in ("factor", "target")))
    return [
        NamedEdges.of(
            table,
            "tflink",
            "tflink",
            named["factor"],
            named["target"],
            directed=True,
            rows=named["row"].to_numpy(),
            notes={"rows in the file": len(table)},
            left_out={"no gene name": edges.height - named.height},
        )
    ]


def _starts_with(*columns: str, alone: bool = False) -> Any:
    width = None if alone else len(columns)
    return lambda head, file_name: header_of(head, "\t")[:width] == list(columns)


biogrid = Reader("biogrid", _starts_with("orf1", "orf2", alone=True), _read_biogrid)
yeastract = Reader("yeastract", _starts_with("tf_orf", "target_orf"), _read_yeastract)
tflink = Reader("tflink", has_columns("Name.TF", "Name.Target"), _read_tflink)
