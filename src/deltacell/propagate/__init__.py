"""How message passing is carried out on many mutants of one cell."""

from deltacell.propagate.product import SparseMatrix, mean_product, product

__all__ = ["SparseMatrix", "mean_product", "product"]
