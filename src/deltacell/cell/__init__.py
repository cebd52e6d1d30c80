"""The wild type: its genes, its relations, its metabolism."""

from deltacell.cell.cell import Cell
from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import LostReactions, Metabolism
from deltacell.cell.relation import Edges, Relation

__all__ = ["Cell", "Edges", "Feature", "Genes", "LostReactions", "Metabolism", "Relation"]
