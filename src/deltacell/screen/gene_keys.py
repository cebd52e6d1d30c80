"""Keys to compare gene sets: one number or text for each set, whatever its order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deltacell.base.arrays import AnyArray, Ints


def set_keys(genes: Ints, offsets: Ints, n_genes: int) -> AnyArray:
    """Return one key per set; comparable for equal `n_genes` and largest size."""
    return matrix_keys(sorted_matrix(genes, offsets), n_genes)


def comparable_keys(n_genes: int, *sets: tuple[Ints, Ints]) -> list[AnyArray]:
    """Return the keys of several lists of sets, comparable between the lists."""
    width = max((int(np.diff(offsets).max(initial=0)) for _, offsets in sets), default=0)
    return [matrix_keys(sorted_matrix(g, o, width), n_genes) for g, o in sets]


def sorted_matrix(genes: Ints, offsets: Ints, width: int | None = None) -> Ints:
    """Return the sets as rows of ascending genes, padded with -1 on the left."""
    sizes = np.diff(offsets)
    width = int(sizes.max(initial=0)) if width is None else width
    matrix = np.full((len(sizes), width), -1, dtype=np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(genes)) - np.repeat(offsets[:-1], sizes)
    matrix[owner, position] = genes
    matrix.sort(axis=1)
    return matrix


def matrix_keys(matrix: Ints, n_genes: int) -> AnyArray:
    """Return one key per row of a `sorted_matrix`."""
    base = n_genes + 1
    width = matrix.shape[1]
    if base**width < 2**63:
        key = np.zeros(len(matrix), dtype=np.int64)
        for column in range(width):
            key = key * base + matrix[:, column] + 1
        return key
    contiguous = np.ascontiguousarray(matrix + 1)
    return contiguous.view(np.dtype((np.void, 8 * width))).ravel()


class Pairs(NamedTuple):
    """Gene pairs and the genotype of each; ``key = n_genes * smaller + larger``."""

    owner: Ints
    key: Ints


def all_pairs(genes: Ints, offsets: Ints, n_genes: int) -> Pairs:
    """Return every pair of genes within every set."""
    matrix = sorted_matrix(genes, offsets)
    low, high = np.triu_indices(matrix.shape[1], 1)
    is_pair = matrix[:, low].T >= 0
    keys = (matrix[:, low] * n_genes + matrix[:, high]).T
    return Pairs(np.nonzero(is_pair)[1], keys[is_pair])
