"""How wrong predictions are for genes with few and with many edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.screen import Genotypes

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ResidualByDegree:
    """Residuals (measured minus predicted) of genotypes, by the degree of each deleted gene.

    Parameters
    ----------
    degree
        The mean degree of each bin, [bins].
    low, mean, high
        Quartiles about, and mean of, the residuals.
    rms
        Root of their mean square.
    genes
        Deleted genes in each bin; a gene counts once for every genotype that deletes it.
    """

    degree: Doubles
    low: Doubles
    mean: Doubles
    high: Doubles
    rms: Doubles
    genes: Ints


def gene_degree(cell: Cell) -> Ints:
    """Return the number of edges of each gene over all relations, in and out, [n_genes].

    Parameters
    ----------
    cell
        The wild type.
    """
    degree: Ints = np.zeros(cell.n_genes, dtype=np.int64)
    for relation in cell.relations.values():
        degree += relation.in_degree
        if relation.directed:
            degree += relation.out_degree
    return degree


def residual_by_degree(
    cell: Cell,
    genotypes: Genotypes,
    predicted: npt.ArrayLike,
    measured: npt.ArrayLike,
    *,
    bins: int = 12,
) -> ResidualByDegree:
    """Return the residuals in bins of about equally many deleted genes, by their degree.

    Genes of the same degree are in the same bin, so there may be fewer bins than asked for.

    Parameters
    ----------
    cell
        The wild type.
    genotypes
        [rows].
    predicted, measured
        One number a row; rows without a measured score are left out.
    bins
        About how many.
    """
    residual = np.asarray(measured, dtype=np.float64) - np.asarray(predicted, dtype=np.float64)
    if residual.shape != (len(genotypes),):
        raise InputError(f"residuals of shape {residual.shape} for {len(genotypes)} genotypes")
    of_gene = residual[genotypes.owner.numpy()]
    known = np.isfinite(of_gene)
    if not known.any():
        raise InputError("no row has a measured score")
    of_gene = of_gene[known]
    degree = gene_degree(cell)[genotypes.genes.numpy()[known]]
    inner = np.unique(np.quantile(degree, np.linspace(0, 1, bins + 1)[1:-1]))
    at = np.searchsorted(inner, degree, side="right")
    parts = [(degree[at == b], of_gene[at == b]) for b in np.unique(at)]
    quartiles = np.array([np.quantile(values, [0.25, 0.75]) for _, values in parts])
    return ResidualByDegree(
        degree=np.array([d.mean() for d, _ in parts]),
        low=quartiles[:, 0],
        mean=np.array([values.mean() for _, values in parts]),
        high=quartiles[:, 1],
        rms=np.array([np.sqrt((values**2).mean()) for _, values in parts]),
        genes=np.array([len(values) for _, values in parts]),
    )
