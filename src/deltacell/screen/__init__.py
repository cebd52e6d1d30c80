"""What was measured: genotypes with their phenotypes, splits, and the loader."""

from deltacell.screen.coverage import Coverage, StudyCoverage
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.screen import Screen

__all__ = ["Coverage", "Genotypes", "Screen", "StudyCoverage"]
