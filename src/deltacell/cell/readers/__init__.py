"""Readers of networks, genes, metabolism, features and annotations."""

from typing import Any

from deltacell.cell.readers import embeddings, features, sbml
from deltacell.cell.readers.genes import GENE_READERS
from deltacell.cell.readers.names import Reader
from deltacell.cell.readers.networks import EDGE_READERS, edge_list, string_genes
from deltacell.cell.readers.terms import TERM_READERS

#: The first that finds its format in a file reads it. Two names of one gene and a number have the
#: form of an edge, so features are tried before edge lists.
CELL_READERS: tuple[Reader[Any, Any], ...] = (
    sbml.reader,
    *GENE_READERS,
    string_genes,
    *EDGE_READERS,
    *TERM_READERS,
    features.reader,
    embeddings.table_reader,
    edge_list,
)
