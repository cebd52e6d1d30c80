r"""Stage 3 of `late`: the part of z that no smaller set of deletions explains.

For a function f of sets, the *interaction* of a set S is
``F(S) = sum over T in S of (-1)^(|S| - |T|) f(T)``, so that ``f(S) = sum over T in S of F(T)``; for
a pair of deletions, ``f(ab) - f(a) - f(b) + f()``. With f = z, F is epistasis. A subset of the
genes of a genotype is a number, in which bit i stands for gene i.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from deltacell.base.arrays import Bools, Ints
from deltacell.propagate.late.shared_rows import SharedRows, SignedSum


@dataclass(frozen=True, eq=False)
class SubsetUnits:
    """Shared rows, each with every subset of the genes that touch it."""

    row: Ints  # the number of the shared row, [u]
    deleted_units: Ints  # the single units of the genes of the subset, -1 for none, [u, largest]


@dataclass(frozen=True, eq=False)
class InteractionTerms:
    """The units that interactions need, and how these add up."""

    units: SubsetUnits
    sums: SignedSum  # of the interactions; a genotype has a place for each subset of its genes


def interaction_terms(shared: SharedRows) -> InteractionTerms:
    """Return the interactions of every subset of two or more genes, as sums over its subsets.

    On the path 0 - 1 - 2 - 3, genes 0 and 2 touch row 1. Its units are row 1 without {}, {0}, {2}
    and {0, 2}, and the interaction of {0, 2} is the sum of their terms with these signs:

    >>> shared = SharedRows(np.array([0]), np.array([1]), np.array([[1, 2]]))
    >>> terms = interaction_terms(shared)
    >>> terms.units.deleted_units.tolist()
    [[-1, -1], [1, -1], [-1, 2], [1, 2]]
    >>> terms.sums.units.tolist(), terms.sums.signs.flatten().tolist()
    ([0, 1, 2, 3], [1.0, -1.0, -1.0, 1.0])
    >>> terms.sums.places.tolist()
    [3, 3, 3, 3]
    """
    largest = shared.touching_units.shape[1]
    bits = np.arange(largest)
    subsets = np.arange(1 << largest)
    touching = (shared.touching_units >= 0) @ (1 << bits)
    is_subset: Bools = (touching[:, None] & subsets) == subsets
    row, subset = np.nonzero(is_subset)
    is_member = (subset[:, None] >> bits) & 1
    deleted_units = np.where(is_member, shared.touching_units[row], -1)
    return InteractionTerms(
        SubsetUnits(row, deleted_units), _interactions(shared.genotype, is_subset)
    )


def _interactions(genotype: Ints, is_subset: Bools) -> SignedSum:
    """Return the interactions of all subsets [rows, subsets] of the genes that touch each row."""
    numbers = np.cumsum(is_subset).reshape(is_subset.shape) - 1
    n_subsets = is_subset.shape[1]
    units = []
    places = []
    signs = []
    for whole in range(n_subsets):
        if whole.bit_count() < 2:
            continue
        rows = np.flatnonzero(is_subset[:, whole])
        for part in subsets_of(whole, n_subsets):
            units.append(numbers[rows, part])
            places.append(genotype[rows] * n_subsets + whole)
            signs.append((-1.0) ** (whole.bit_count() - part.bit_count()))
    if not units:
        nothing: Ints = np.zeros(0, dtype=np.int64)
        return SignedSum.of([nothing], [nothing], [1.0])
    return SignedSum.of(units, places, signs)


def subsets_of(whole: int, n_subsets: int) -> list[int]:
    """Return the subsets of a set, among the numbers below `n_subsets`.

    >>> subsets_of(0b101, 8)
    [0, 1, 4, 5]
    """
    return [part for part in range(n_subsets) if part & whole == part]


def interaction_of_quotient(n: Tensor, d: Tensor) -> Tensor:
    r"""Return the interaction of ``N / D`` for whole sets, from the interactions of N and D.

    With u = 1 / D, ``(N u)(S) = sum over A, B with union S of N(A) u(B)``; and as ``u D`` is 1,
    ``u(S) = -1 / D_S * sum over A, B with union S, A not S, of u(A) D(B)`` with
    ``D_S = sum over B in S of D(B)``. No term is a difference of larger numbers.

    Take a pair with N = 0, 1, 2, 6 and D = 1, 1, 2, 2 for {}, {a}, {b} and {a, b}. The interactions
    of N are 0, 1, 2, 3, and those of D are 1, 0, 1, 0. The interaction of N / D is
    ``6 / 2 - 1 / 1 - 2 / 2 + 0 / 1``:

    >>> n = torch.tensor([[[0.0], [1.0], [2.0], [3.0]]])
    >>> interaction_of_quotient(n, torch.tensor([[1.0, 0.0, 1.0, 0.0]])).tolist()
    [[1.0]]

    Parameters
    ----------
    n
        The interactions of N by subset, [sets, subsets, hidden]; that of {} is not read, as 0.
    d
        The interactions of D, [sets, subsets]; that of {} is not read, as 1.
    """
    n_subsets = d.shape[1]
    inverse = _interactions_of_inverse(d)
    result = torch.zeros_like(n[:, 0])
    for subset in range(1, n_subsets):
        others = [other for other in range(n_subsets) if subset | other == n_subsets - 1]
        weight = sum((inverse[other] for other in others), torch.zeros_like(d[:, 0]))
        result = result + weight.unsqueeze(1) * n[:, subset]
    return result


def _interactions_of_inverse(d: Tensor) -> list[Tensor]:
    """Return the interactions of 1 / D by subset, [sets] each."""
    n_subsets = d.shape[1]
    zero = torch.zeros_like(d[:, 0])
    one_of_empty = torch.ones_like(d[:, 0])
    of_d = [one_of_empty, *d[:, 1:].unbind(1)]
    inverse = [one_of_empty]
    for whole in range(1, n_subsets):
        parts = subsets_of(whole, n_subsets)
        terms = [
            inverse[smaller] * of_d[part]
            for smaller, part in product(parts[:-1], parts[1:])
            if smaller | part == whole
        ]
        total = sum((of_d[part] for part in parts), zero)
        inverse.append(-sum(terms, zero) / total)
    return inverse
