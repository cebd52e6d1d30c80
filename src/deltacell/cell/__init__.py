"""The wild type: its genes, relations, metabolism, features and annotations."""

from deltacell.cell.annotation import Annotation, Feature
from deltacell.cell.cell import Cell
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import LostReactions, Metabolism
from deltacell.cell.relation import Edges, Relation

__all__ = [
    "Annotation",
    "Cell",
    "Edges",
    "Feature",
    "Genes",
    "LostReactions",
    "Metabolism",
    "Relation",
]
