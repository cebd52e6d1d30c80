r"""The part of z that no smaller set of deletions explains.

For a function f of sets, the *interaction* of a set S is
``F(S) = sum over T in S of (-1)^(|S| - |T|) f(T)``, so that ``f(S) = sum over T in S of F(T)``; for
a pair of deletions, ``f(ab) - f(a) - f(b) + f()``. With f = z, F is epistasis.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch

from deltacell.propagate.deleted import Deleted, Smaller
from deltacell.screen import Genotypes


def interaction_of_quotient(n: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    r"""Return the interaction of ``N / D`` for whole sets, from the interactions of N and D.

    With u = 1 / D, the interaction of a product is
    ``(N u)(S) = sum over A, B with union S of N(A) u(B)``. That of ``u D``, which is 1, is 0 for
    every set but the empty one, and so ``u(S) = -1 / D_S * sum over A, B with union S, A not S, of
    u(A) D(B)`` with ``D_S = sum over B in S of D(B)``. No term is a difference of larger numbers.

    Parameters
    ----------
    n
        Interactions of N for all subsets of k genes, [b, 2^k, hidden]; subset i has gene j where
        bit j of i is set. N of the empty set is 0.
    d
        Those of D, [b, 2^k]; D of the empty set is 1.

    Returns
    -------
    torch.Tensor
        [b, hidden].
    """
    n_subsets = d.shape[1]
    whole = n_subsets - 1
    one = torch.ones_like(d[:, 0])
    parts = [one, *d[:, 1:].unbind(1)]
    inverse: list[torch.Tensor] = [one]
    for s in range(1, n_subsets):
        inside = [b for b in range(n_subsets) if b & s == b]
        total = one + sum(parts[b] for b in inside if b)
        found = sum(
            (inverse[a] * parts[b] for a in inside if a != s for b in inside if b and a | b == s),
            torch.zeros_like(one),
        )
        inverse.append(-found / total)
    result = torch.zeros_like(n[:, 0])
    for a in range(1, n_subsets):
        weight = sum(
            (inverse[b] for b in range(n_subsets) if a | b == whole), torch.zeros_like(one)
        )
        result = result + weight.unsqueeze(1) * n[:, a]
    return result


def smaller_sets(genotypes: Genotypes, prepare: Callable[[Genotypes], Deleted]) -> Smaller:
    """Return all non-empty subsets of genotypes, each once, and how they add up to epistasis.

    Parameters
    ----------
    genotypes
        On the host.
    prepare
        What makes of genotypes what they delete.
    """
    number: dict[tuple[int, ...], int] = {}
    subset, owner, sign = [], [], []
    for b, genes in enumerate(genotypes):
        whole = sorted(genes.tolist())
        for size in range(1, len(whole) + 1 if len(whole) > 1 else 1):
            for chosen in combinations(whole, size):
                subset.append(number.setdefault(chosen, len(number)))
                owner.append(b)
                sign.append((-1.0) ** (len(whole) - size))
    return Smaller(
        prepare(Genotypes.of(number)),
        torch.tensor(subset, dtype=torch.int64),
        torch.tensor(owner, dtype=torch.int64),
        torch.tensor(sign, dtype=torch.float64),
    )


def by_difference(z: torch.Tensor, smaller: Smaller, batch: int) -> torch.Tensor:
    """Return epistasis, float64 [batch, hidden], by taking the z of subsets from each other.

    Right in float64. In float32 it is about the size of the rounding of z.

    Parameters
    ----------
    z
        Of the subsets, [m, hidden].
    smaller
        Which subsets of which genotypes they are.
    batch
        Genotypes.
    """
    terms = smaller.sign.unsqueeze(1) * z.double().index_select(0, smaller.subset)
    return terms.new_zeros(batch, z.shape[1]).index_add(0, smaller.owner, terms)
