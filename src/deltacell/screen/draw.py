"""Drawing parts of a screen at random without tearing apart what belongs together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from deltacell.arrays import AnyArray, Ints, ragged_positions
from deltacell.errors import InputError
from deltacell.screen.pairs import Pairs

TRAIN, TEST, VALIDATION, DROPPED = 0, 1, 2, 3


def numbered(labels: AnyArray) -> Ints:
    """Return labels as numbers from 0 in order of first appearance.

    Groups that are equal get equal numbers, however they were found, and so are drawn equally.
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.ravel()]


def connected(sets: Ints, pairs: Pairs) -> Ints:
    """Return the group of each genotype: those that share a pair, directly or through others.

    Parameters
    ----------
    sets
        The number of each genotype's gene set, from 0.
    pairs
        The pairs that each genotype holds.
    """
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


def commonest_gene(genes: Ints, starts: Ints, sizes: Ints) -> Ints:
    """Return for each genotype that one of its genes that most of the genotypes have.

    In a screen that crosses queries with an array this is mostly the query.

    Parameters
    ----------
    genes
        The genes of all genotypes of the screen, one after the other.
    starts, sizes
        Where those of each chosen genotype begin, and how many they are, at least one.
    """
    mine = genes[ragged_positions(starts, sizes)]
    count = np.bincount(mine)[mine] if len(mine) else mine
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((mine, count, owner))
    return mine[order[np.cumsum(sizes) - 1]]


def in_runs(groups: Ints, length: int, rng: np.random.Generator) -> Ints:
    """Return an order in which members of a group stand together, at most `length` at a time.

    The members of each group are cut into runs, the first of which is as long as chance has it, and
    the runs are shuffled; every member of a group is equally likely at every position of the order.

    Parameters
    ----------
    groups
        The group of each, already in random order.
    length
        Of a run.
    rng
        Where chance comes from.
    """
    if not len(groups):
        return np.zeros(0, dtype=np.int64)
    number = numbered(groups)
    order = np.argsort(number, kind="stable")
    size = np.bincount(number)
    begin = np.cumsum(size) - size
    within = np.arange(len(groups)) - np.repeat(begin, size)
    shift = rng.integers(0, length, len(size))
    run = (within + np.repeat(shift, size)) // length
    first = np.ones(len(groups), dtype=bool)
    first[1:] = (np.diff(run) != 0) | (np.diff(number[order]) != 0)
    of_run = np.cumsum(first) - 1
    place = rng.permutation(int(of_run[-1]) + 1)
    return order[np.argsort(place[of_run], kind="stable")]


def drawn(groups: Ints, fractions: Mapping[int, float], rng: np.random.Generator) -> Ints | None:
    """Return the part of each genotype, or None where the groups are too large for the parts.

    Groups are taken in random order until a part is as near to its size as whole groups allow, and
    at least one is taken. A group more than twice as large as the smallest part stays in training.

    Parameters
    ----------
    groups
        The group of each genotype, from 0.
    fractions
        The share of the genotypes that each part should have, in the order they are drawn.
    rng
        Where chance comes from.
    """
    wanted = _wanted(groups, fractions)
    size = np.bincount(groups)
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

    Parameters
    ----------
    groups, fractions, rng
        As in `drawn`.
    pairs
        The pairs that no two parts may share.
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
    wanted = _wanted(groups, fractions)
    size = np.bincount(groups)
    small = _small(size, wanted)
    n = len(groups)
    parts = " and ".join(
        f"{fractions[p]:g} x {n:,} = {w:g} for {_SAID[p]}" for p, w in wanted.items()
    )
    return InputError(
        f"a part would be empty: wanted are {parts}, and of the {len(size):,} {named} only "
        f"{int(small.sum()):,} are small enough (at most {2 * min(wanted.values()):g}), with "
        f"{int(size[small].sum()):,} of {n:,} genotypes",
        fix="Ask for larger shares, or split in another way.",
    )


def checked_fractions(**fractions: float) -> None:
    """Raise where shares of a whole are not shares, or leave nothing for training."""
    for name, fraction in fractions.items():
        if not 0 <= fraction < 1:
            raise InputError(f"{name} is {fraction}; expected a share from 0 to below 1")
    if sum(fractions.values()) >= 1:
        said = " + ".join(f"{name} {fraction:g}" for name, fraction in fractions.items())
        raise InputError(f"nothing is left for training: {said} = {sum(fractions.values()):g}")


_SAID = {TEST: "test", VALIDATION: "validation"}


def _wanted(groups: Ints, fractions: Mapping[int, float]) -> dict[int, float]:
    return {part: share * len(groups) for part, share in fractions.items() if share}


def _small(size: Ints, wanted: Mapping[int, float]) -> AnyArray:
    return size <= 2 * min(wanted.values(), default=0.0)
