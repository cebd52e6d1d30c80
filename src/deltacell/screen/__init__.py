"""What was measured: genotypes with their phenotypes, splits, and the loader."""

from deltacell.screen.batch import Batch
from deltacell.screen.coverage import Coverage, StudyCoverage
from deltacell.screen.dataset import GenotypeDataset
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.grid import Grid
from deltacell.screen.leakage import Leakage
from deltacell.screen.loader import Loader
from deltacell.screen.screen import Screen
from deltacell.screen.split import Split

__all__ = [
    "Batch",
    "Coverage",
    "GenotypeDataset",
    "Genotypes",
    "Grid",
    "Leakage",
    "Loader",
    "Screen",
    "Split",
    "StudyCoverage",
]
