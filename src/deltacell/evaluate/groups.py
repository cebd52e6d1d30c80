"""The groups of test rows that are looked at on their own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deltacell.arrays import Bools, Ints
from deltacell.evaluate.evaluation import By
from deltacell.screen import Screen, Split
from deltacell.screen.columns import PERTURBATIONS


class Group(NamedTuple):
    """Some of the test rows.

    Parameters
    ----------
    by
        What they have in common.
    label
        Its name.
    members
        Which of the test rows, [test rows].
    """

    by: By
    label: str
    members: Bools


def groups(screen: Screen, split: Split) -> list[Group]:
    """Return the whole test part, then its groups.

    By the number of genes that no training genotype deletes, by kind (digenic, trigenic, …), and by
    what was done to the genes (deletion, temperature-sensitive allele, …).

    Parameters
    ----------
    screen
        What was measured.
    split
        Its parts.
    """
    everything: Bools = np.ones(len(split.test), dtype=bool)
    found = [Group("test", "test", everything)]
    found += [
        Group("unseen", _unseen_label(int(number)), split.unseen == number)
        for number in np.unique(split.unseen)
    ]
    kind = np.array(screen.kind)[split.test]
    sizes = np.diff(screen.offsets)[split.test]
    # By size and not by name, so that digenic comes before trigenic.
    for size in np.unique(sizes):
        members: Bools = sizes == size
        found.append(Group("kind", str(kind[np.argmax(members)]), members))
    code = _perturbation_codes(screen)[split.test]
    return found + [
        Group("perturbation", _perturbation_label(int(number)), code == number)
        for number in np.unique(code)
    ]


def _unseen_label(number: int) -> str:
    return f"{number} unseen gene{'' if number == 1 else 's'}"


def _perturbation_codes(screen: Screen) -> Ints:
    """Return a number a row with one bit for each perturbation among its genes."""
    owner = screen.genotypes.owner.numpy()
    perturbation = screen.gene_column("perturbation").astype(str)
    code: Ints = np.zeros(len(screen), dtype=np.int64)
    for bit, name in enumerate(PERTURBATIONS):
        there = np.zeros(len(screen), dtype=bool)
        there[owner[perturbation == name]] = True
        code |= there.astype(np.int64) << bit
    return code


def _perturbation_label(code: int) -> str:
    names = [name for bit, name in enumerate(PERTURBATIONS) if code >> bit & 1]
    return " + ".join(names) or "other"
