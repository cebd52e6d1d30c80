"""Edges as a file writes them, and the way from there to a relation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.arrays import Ints
from deltacell.cell.genes import UNKNOWN, Genes
from deltacell.cell.readers.names import OnUnresolved, check_policy, name_error, unresolved_notes
from deltacell.cell.relation import Relation
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source


@dataclass(frozen=True)
class NamedEdges:
    """The edges of one relation with their genes' names as written, not yet resolved.

    Parameters
    ----------
    name
        What the relation is called.
    source, target
        Gene names, one an edge.
    weight
        One number an edge; None where the file gives none.
    directed
        Whether an edge has a direction.
    path
        The file.
    lines
        The line that each edge is written in.
    sha256
        Checksum of the file.
    reader
        Name of the reader that understood it.
    notes
        Further counts worth knowing.
    left_out
        Rows of the file that are no edges of this relation, by reason.
    """

    name: str
    source: pl.Series
    target: pl.Series
    weight: npt.NDArray[Any] | None
    directed: bool
    path: Path
    lines: Ints
    sha256: str
    reader: str
    notes: Mapping[str, int | str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.source)


def relation_of(
    edges: NamedEdges, genes: Genes, on_unknown: OnUnresolved = "error"
) -> tuple[Relation, Source]:
    """Resolve the names of edges and make a relation of them.

    Every row is accounted for: those the reader left out, those whose genes are not found, self
    loops, duplicates and the second writing of undirected edges are counted by reason. The notes
    of the source name the first genes that were not found.

    Parameters
    ----------
    edges
        As a reader returned them.
    genes
        The cell's genes.
    on_unknown
        What to do with a row that names a gene which is unknown or ambiguous: ``error``, or
        ``drop`` it with a count.
    """
    check_policy(on_unknown)
    source, target = genes.resolve(edges.source), genes.resolve(edges.target)
    resolved = source.found & target.found
    if on_unknown == "error" and not resolved.all():
        row = int(np.argmin(resolved))
        name = edges.target[row] if source.found[row] else edges.source[row]
        rows = int((~resolved).sum())
        raise name_error(
            genes,
            name,
            edges.path,
            line=int(edges.lines[row]),
            place=f" (the first of {rows:,} such rows)" if rows > 1 else "",
        )
    unknown = (source.index == UNKNOWN) | (target.index == UNKNOWN)
    relation = Relation.from_edges(
        edges.name,
        source.index[resolved],
        target.index[resolved],
        None if edges.weight is None else edges.weight[resolved],
        n_genes=len(genes),
        directed=edges.directed,
    )
    written = Counts(len(edges) + sum(edges.left_out.values()), len(edges), edges.left_out)
    named = Counts(
        len(edges),
        int(resolved.sum()),
        {UNKNOWN_GENE: int(unknown.sum()), AMBIGUOUS_NAME: int((~resolved & ~unknown).sum())},
    )
    not_found = unresolved_notes(
        pl.concat([edges.source, edges.target]), np.concatenate([source.index, target.index])
    )
    relation.counts = written.then(named).then(relation.counts)
    return relation, Source(
        edges.path.name,
        edges.sha256,
        edges.reader,
        relation.counts,
        into=edges.name,
        notes={**edges.notes, **_as_written(edges, relation), **not_found},
    )


def names_of(edges: NamedEdges) -> list[str]:
    """Return the distinct gene names of edges; of those that differ only in case, the first.

    To add unknown genes to a cell, extend its genes by those of these names that do not resolve,
    and then resolve the edges.
    """
    names = pl.concat([edges.source.unique(maintain_order=True), edges.target]).unique(
        maintain_order=True
    )
    spelling: dict[str, str] = {}
    for name in names:
        spelling.setdefault(name.upper(), name)
    return list(spelling.values())


def _as_written(edges: NamedEdges, relation: Relation) -> dict[str, int]:
    """Return the number of undirected edges before aliases made one of some, where it differs."""
    if edges.directed:
        return {}
    pairs = pl.DataFrame({"a": edges.source, "b": edges.target}).filter(pl.col("a") != pl.col("b"))
    ordered = pairs.select(a=pl.min_horizontal("a", "b"), b=pl.max_horizontal("a", "b"))
    distinct = ordered.n_unique()
    return {} if distinct == relation.n_edges else {"edges_as_written": distinct}
