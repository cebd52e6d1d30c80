"""How much of a predictor's scores is more than a sum of gene effects."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import lsmr

from deltacell.base.arrays import Bools, Ints
from deltacell.evaluation.metrics import CONSTANT

FEWEST_FREE = 10  # with fewer degrees of freedom the share that is not additive is undefined


def not_additive(genes: Ints, values: npt.ArrayLike) -> tuple[float | None, str | None]:
    r"""Return the share of the variance over gene sets that is not additive in the genes.

    With a number :math:`x_s` for each of n different sets, and :math:`\hat x_s = \sum_{g \in s}
    \beta_g` their least-squares fit by one effect per gene, which has rank r,

    .. math::

        \frac{\sum_s (x_s - \hat x_s)^2 / (n - r)}{\sum_s (x_s - \bar x)^2 / (n - 1)}

    It is 0 for a sum of gene effects, and 1 on average for noise that has nothing to do with the
    genes, however many genes there are. The second result is why the first is undefined. The sets
    [n, largest] are padded with -1; only the first of repeated sets counts.
    """
    sets, first = np.unique(np.sort(genes, axis=1), axis=0, return_index=True)
    x = np.asarray(values, dtype=np.float64)[first]
    x = x - x.mean()
    total = float(x @ x)
    rounding = 1e-12 * len(x) * float(np.abs(np.asarray(values)).max(initial=0.0)) ** 2
    if len(x) < 2 or total <= rounding:
        return None, CONSTANT
    is_gene = sets >= 0
    sizes = is_gene.sum(axis=1)
    genes_present, gene_of_entry = np.unique(sets[is_gene], return_inverse=True)
    n_genes = len(genes_present)
    # The mean is a sum of gene effects if all sets have one size; otherwise it is another column.
    n_means = int(sizes.min() != sizes.max())
    n_free = len(x) - _rank(gene_of_entry, sizes, n_genes) - n_means
    if n_free < FEWEST_FREE:
        return None, f"{len(x):,} sets of {n_genes:,} genes are too few"
    design = _design(is_gene, gene_of_entry, n_genes, n_means)
    effects = lsmr(design, x, atol=1e-10, btol=1e-10, maxiter=20_000)[0]
    residual = x - design @ effects
    variance_left = float(residual @ residual) / n_free
    return variance_left / (total / (len(x) - 1)), None


def _design(is_gene: Bools, gene_of_entry: Ints, n_genes: int, n_means: int) -> csr_array:
    """Return which genes are in each set, [sets, genes + n_means]; columns of means are 1."""
    n_sets = len(is_gene)
    columns = np.concatenate([gene_of_entry, np.full(n_means * n_sets, n_genes)])
    rows = np.concatenate([np.nonzero(is_gene)[0], np.arange(n_means * n_sets)])
    ones = np.ones(len(columns))
    return csr_array((ones, (rows, columns)), shape=(n_sets, n_genes + n_means))


def _rank(genes: Ints, sizes: Ints, n_genes: int) -> int:
    """Return the rank of the sets' gene indicators; a bound unless all sets are pairs."""
    if (sizes != 2).any():
        return n_genes
    # Pairs are the edges of a graph: each connected component without an odd cycle lacks one rank.
    # Only such a component splits in two in the bipartite double cover.
    first, second = genes.reshape(-1, 2).T
    n_single = _n_components(first, second, n_genes)
    n_double = _n_components(
        np.concatenate([first, second]),
        np.concatenate([second, first]) + n_genes,
        2 * n_genes,
    )
    return n_genes - (n_double - n_single)


def _n_components(first: Ints, second: Ints, n_nodes: int) -> int:
    """Return the number of connected components of a graph with some edges."""
    edges = csr_array((np.ones(len(first)), (first, second)), shape=(n_nodes, n_nodes))
    return int(connected_components(edges, directed=False)[0])
