"""Readers of networks, genes, metabolism, features and annotations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from deltacell.cell.readers import edge_list, sbml, terms
from deltacell.cell.readers.edges import (
    NamedEdges,
    biogrid,
    names_of,
    relation_of,
    tflink,
    yeastract,
)
from deltacell.cell.readers.features import (
    NoFeatureError,
    features_anndata,
    features_npz,
    features_table,
)
from deltacell.cell.readers.genes import gene_table, sgd_features
from deltacell.cell.readers.names import Reader, in_capitals, is_systematic
from deltacell.cell.readers.string import (
    string_actions,
    string_adjacency,
    string_detailed,
    string_genes,
    string_info,
    string_physical,
)
from deltacell.sheet import ColumnNames
from deltacell.table import holds_several_files, peek

__all__ = [
    "EDGE_READERS",
    "FEATURE_READERS",
    "GENE_READERS",
    "NamedEdges",
    "NoFeatureError",
    "Reader",
    "edge_list",
    "in_capitals",
    "is_systematic",
    "names_of",
    "recognise",
    "relation_of",
    "sbml",
    "string_genes",
    "terms",
]

# The first that recognises a file reads it. Plain edge lists are asked after all others.
EDGE_READERS: tuple[Reader, ...] = (
    string_detailed,
    string_physical,
    string_actions,
    string_adjacency,
    yeastract,
    tflink,
    biogrid,
)
GENE_READERS: tuple[Reader, ...] = (sgd_features, string_info, gene_table)
FEATURE_READERS: tuple[Reader, ...] = (features_npz, features_anndata, features_table)


def recognise(path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()) -> str | None:
    """Return the name of the reader that understands a file, by its content; None if none."""
    path = Path(path)
    for reader in (features_npz, features_anndata):
        if reader.recognise(path):
            return reader.NAME
    if holds_several_files(path):
        return None
    head = peek(path)
    if sbml.recognise(head, path.name):
        return sbml.NAME
    for reader in (*GENE_READERS, string_genes, *EDGE_READERS):
        if reader.recognise(head, path.name):
            return reader.NAME
    of_terms = terms.recognise(path)
    if of_terms is not None:
        return of_terms
    # Two names of one gene and a number have the form of an edge, so features are asked first.
    if features_table.recognise(path):
        return features_table.NAME
    return edge_list.NAME if edge_list.recognise(path, columns) else None
