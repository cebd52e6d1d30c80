"""Gene sets and gene pairs as keys that compare equal whatever the order of the genes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deltacell.arrays import AnyArray, Bools, Ints


def set_keys(genes: Ints, offsets: Ints, n_genes: int) -> AnyArray:
    """Return one key per set; comparable for the same `n_genes` and largest size."""
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
    """Return one key per row of a `sorted_matrix`."""
    base, width = n_genes + 1, matrix.shape[1]
    if base**width < 2**63:
        key = np.zeros(len(matrix), dtype=np.int64)
        for column in range(width):
            key = key * base + matrix[:, column] + 1
        return key
    contiguous = np.ascontiguousarray(matrix + 1)
    return contiguous.view(np.dtype((np.void, 8 * width))).ravel()


class Pairs(NamedTuple):
    """Gene pairs with the genotype that holds each; ``key = n_genes * smaller + larger``."""

    owner: Ints
    key: Ints


def all_pairs(genes: Ints, offsets: Ints, n_genes: int) -> Pairs:
    """Return every pair of genes within every set."""
    matrix = sorted_matrix(genes, offsets)
    owners, keys = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for low in range(matrix.shape[1]):
        holders = np.flatnonzero(matrix[:, low] >= 0)
        for high in range(low + 1, matrix.shape[1]):
            owners.append(holders)
            keys.append(matrix[holders, low] * n_genes + matrix[holders, high])
    return Pairs(np.concatenate(owners), np.concatenate(keys))
