"""Models of gene-deletion phenotypes: the wild type once, every mutant as an exact difference."""

from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
from deltacell.errors import DeltacellError, InputError
from deltacell.screen import Coverage, Genotypes, Screen, StudyCoverage

__all__ = [
    "Cell",
    "Coverage",
    "DeltacellError",
    "Feature",
    "Genes",
    "Genotypes",
    "InputError",
    "Metabolism",
    "Relation",
    "Screen",
    "StudyCoverage",
]
