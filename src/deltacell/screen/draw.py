"""Drawing parts of a screen at random without tearing apart what belongs together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from deltacell.arrays import AnyArray, Ints
from deltacell.errors import InputError
from deltacell.screen.genotypes import Pairs

PARTS = ("train", "test", "validation", "dropped")
TRAIN, TEST, VALIDATION, DROPPED = range(4)


def numbered(labels: AnyArray) -> Ints:
    """Return labels as numbers from 0 in order of first appearance.

    Groups that are equal get equal numbers, however they were found, and so are drawn equally.
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.ravel()]


def connected(sets: Ints, pairs: Pairs) -> Ints:
    """Return the group of each genotype: those that share a pair, directly or through others."""
    distinct, pair = np.unique(pairs.key, return_inverse=True)
    n_sets = int(sets.max()) + 1
    n = n_sets + len(distinct)
    ends = (sets[pairs.owner], n_sets + pair.ravel())
    graph = coo_array((np.ones(len(pair), dtype=np.int8), ends), shape=(n, n))
    _, component = connected_components(graph, directed=False)
    return numbered(component[sets])


def commonest(pairs: Pairs) -> Pairs:
    """Return for each genotype that one of its pairs that most genotypes have.

    In a screen that crosses query pairs with an array this finds the query pair where roles are
    not known.
    """
    _, pair, count = np.unique(pairs.key, return_inverse=True, return_counts=True)
    order = np.lexsort((pairs.key, count[pair.ravel()], pairs.owner))
    owner = pairs.owner[order]
    last = order[np.append(owner[1:] != owner[:-1], True)] if len(order) else order
    return Pairs(pairs.owner[last], pairs.key[last])


def drawn(groups: Ints, fractions: Mapping[int, float], rng: np.random.Generator) -> Ints | None:
    """Return the part of each genotype, or None where the groups are too large for the parts.

    Groups are taken in random order until a part is as near to its size as whole groups allow, and
    at least one is taken. A group more than twice as large as the smallest part stays in training.
    `fractions` are the shares of the genotypes that the parts should have, in the order of drawing.
    """
    wanted, size = _wanted(groups, fractions), np.bincount(groups)
    part = np.full(len(size), TRAIN, dtype=np.int64)
    order = rng.permutation(len(size))
    order = order[_small(size, wanted)[order]]
    if size[order].sum() < sum(wanted.values()):
        return None
    for number, rows in wanted.items():
        if not len(order):
            return None
        n_taken = 1 + int(np.argmin(np.abs(np.cumsum(size[order]) - rows)))
        part[order[:n_taken]] = number
        order = order[n_taken:]
    return part[groups]


def drawn_apart(
    groups: Ints, pairs: Pairs, fractions: Mapping[int, float], rng: np.random.Generator
) -> Ints | None:
    """Return the part of each genotype, those that share a pair with a drawn one dropped.

    Each part is drawn from what the ones before it left. The first part that cannot be drawn is
    empty; if that is the first of all, the result is None.
    """
    part = np.full(len(groups), TRAIN, dtype=np.int64)
    for number, rows in _wanted(groups, fractions).items():
        left = np.flatnonzero(part == TRAIN)
        chosen = drawn(numbered(groups[left]), {number: rows / len(left)}, rng)
        if chosen is None:
            return part if (part != TRAIN).any() else None
        part[left[chosen == number]] = number
        taken = pairs.key[part[pairs.owner] == number]
        sharing = np.zeros(len(part), dtype=bool)
        sharing[pairs.owner[np.isin(pairs.key, taken)]] = True
        part[sharing & (part == TRAIN)] = DROPPED
        if not (part == TRAIN).any():
            return part
    return part


def too_coarse(groups: Ints, fractions: Mapping[int, float], named: str) -> InputError:
    """Return the error for parts that could not be drawn, with the arithmetic."""
    wanted, size = _wanted(groups, fractions), np.bincount(groups)
    small = _small(size, wanted)
    parts = " and ".join(f"{w:g} for {PARTS[p]}" for p, w in wanted.items())
    return InputError(
        f"a part would be empty: of {len(groups):,} genotypes {parts} are wanted, and of the "
        f"{len(size):,} {named} only {int(small.sum()):,} are small enough (at most "
        f"{2 * min(wanted.values()):g}), with {int(size[small].sum()):,} genotypes",
        code="empty-part",
        fix="Ask for larger shares, or split in another way.",
    )


def checked_fractions(**fractions: float) -> None:
    """Raise where shares of a whole are not shares, or leave nothing for training."""
    for name, fraction in fractions.items():
        if not 0 <= fraction < 1:
            raise InputError(
                f"{name} is {fraction}; expected a share from 0 to below 1", code="invalid-share"
            )
    if sum(fractions.values()) >= 1:
        said = " + ".join(f"{name} {fraction:g}" for name, fraction in fractions.items())
        raise InputError(f"{said} leaves nothing for training", code="invalid-share")


def _wanted(groups: Ints, fractions: Mapping[int, float]) -> dict[int, float]:
    return {part: share * len(groups) for part, share in fractions.items() if share}


def _small(size: Ints, wanted: Mapping[int, float]) -> AnyArray:
    return size <= 2 * min(wanted.values(), default=0.0)
