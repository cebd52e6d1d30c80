"""Comparable keys for gene sets, whatever the order their genes are written in."""

from __future__ import annotations

import numpy as np

from deltacell.arrays import AnyArray, Bools, Ints


def set_keys(genes: Ints, offsets: Ints, n_genes: int) -> AnyArray:
    """Return one key a set; two are equal exactly when the sets are.

    Parameters
    ----------
    genes, offsets
        The sets, as a ragged pair.
    n_genes
        Number of genes of the cell. Keys of sets over the same number of genes and with the same
        largest size can be compared.
    """
    return matrix_keys(sorted_matrix(genes, offsets), n_genes)


def comparable_keys(n_genes: int, *sets: tuple[Ints, Ints]) -> list[AnyArray]:
    """Return the keys of several lists of sets, comparable between the lists."""
    width = max((int(np.diff(offsets).max(initial=0)) for _, offsets in sets), default=0)
    return [matrix_keys(sorted_matrix(g, o, width), n_genes) for g, o in sets]


def repeats_a_gene(genes: Ints, offsets: Ints) -> Bools:
    """Return which sets name a gene more than once; negative indices are not compared."""
    matrix = sorted_matrix(genes, offsets)
    repeated: Bools = ((matrix[:, 1:] == matrix[:, :-1]) & (matrix[:, 1:] >= 0)).any(axis=1)
    return repeated


def sorted_matrix(genes: Ints, offsets: Ints, width: int | None = None) -> Ints:
    """Return the sets as rows of ascending genes, padded with -1 in front."""
    sizes = np.diff(offsets)
    width = int(sizes.max(initial=0)) if width is None else width
    matrix = np.full((len(sizes), width), -1, dtype=np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    matrix[owner, np.arange(len(genes)) - np.repeat(offsets[:-1], sizes)] = genes
    matrix.sort(axis=1)
    return matrix


def matrix_keys(matrix: Ints, n_genes: int) -> AnyArray:
    """Return one key a row of a `sorted_matrix`."""
    base, width = n_genes + 1, matrix.shape[1]
    if base**width < 2**63:
        key = np.zeros(len(matrix), dtype=np.int64)
        for column in range(width):
            key = key * base + matrix[:, column] + 1
        return key
    contiguous = np.ascontiguousarray(matrix + 1)
    return contiguous.view(np.dtype((np.void, 8 * width))).ravel()
