"""What was measured: genotypes with their phenotypes, splits, and the loader."""

from deltacell.screen.coverage import Coverage, StudyCoverage
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.grid import Grid
from deltacell.screen.loader import Batch, Loader
from deltacell.screen.screen import Screen
from deltacell.screen.split import Leakage, Split

__all__ = [
    "Batch",
    "Coverage",
    "Genotypes",
    "Grid",
    "Leakage",
    "Loader",
    "Screen",
    "Split",
    "StudyCoverage",
]
