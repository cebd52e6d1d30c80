"""How much of the head of a ranking is true, where the truth was planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.predict.gene_sets import Block, Combinations
from deltacell.predict.request import DISTANCE
from deltacell.predict.status import LINKED, STATUSES, UNTESTED, Linkage, Statuses
from deltacell.screen import Genotypes, Screen
from deltacell.screen.synthetic import Planted

FIRST = 20
"""Sets at the head of a ranking that are held against the truth."""


@dataclass(frozen=True)
class Recovered:
    """How much of the head of a ranking is true.

    Parameters
    ----------
    planted
        Of each set at the head, whether it has a planted interaction.
    sets
        How many untested sets the ranking went through.
    planted_sets
        How many of those have a planted interaction.
    """

    planted: tuple[bool, ...]
    sets: int
    planted_sets: int

    @property
    def found(self) -> int:
        """How many sets at the head are planted ones."""
        return sum(self.planted)

    @property
    def chance(self) -> float:
        """How many of as many would be, drawn at random from all that were ranked."""
        return len(self.planted) * self.planted_sets / self.sets


def recovered(cell: Cell, screen: Screen, sets: Sequence[Sequence[str]], seed: int) -> Recovered:
    """Compare the head of a ranking of untested triples with the planted truth.

    Parameters
    ----------
    cell
        That the ranking was made on: the synthetic one, or the part of it that was screened.
    screen
        Over the genes of that cell.
    sets
        The names of the genes of each set, the head of the ranking first.
    seed
        That the screen was made with.
    """
    planted = Planted.of(cell, seed)
    head = np.array([[cell.genes.index(name) for name in names] for names in sets[:FIRST]])
    n_sets = n_planted = 0
    genes: Ints = np.unique(screen.genotypes.genes.numpy())
    linkage, statuses = Linkage(cell.genes, DISTANCE), Statuses([screen], ["interaction"])
    for block in Combinations(genes, 3).pieces(0, 1):
        ranked = _ranked(block, linkage, statuses)
        n_sets += len(ranked)
        n_planted += int(planted.is_planted(_genotypes(ranked)).sum())
    is_planted = planted.is_planted(_genotypes(head.reshape(-1, 3)))
    return Recovered(tuple(is_planted.tolist()), n_sets, n_planted)


def _ranked(block: Block, linkage: Linkage, statuses: Statuses) -> Ints:
    """Return the sets of a block that a ranking of untested sets goes through."""
    sets = np.sort(block.sets(), axis=1)
    sets = sets[linkage.of(sets) != LINKED]
    untested: Ints = sets[statuses.of(sets) == STATUSES.index(UNTESTED)]
    return untested


def _genotypes(sets: Ints) -> Genotypes:
    n, size = sets.shape
    return Genotypes(torch.from_numpy(sets.astype(np.int64).ravel()), torch.arange(n + 1) * size)
