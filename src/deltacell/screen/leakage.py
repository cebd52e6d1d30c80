"""How much of what a model is tested on it has met in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deltacell.arrays import AnyArray, Ints
from deltacell.screen.pairs import gene_pairs
from deltacell.screen.screen import Screen


@dataclass(frozen=True)
class Overlap:
    """How many of some distinct things are also in training.

    Parameters
    ----------
    shared
        Those also in training.
    of
        All of them.
    """

    shared: int
    of: int

    @property
    def share(self) -> float | None:
        """``shared / of``; None where there are none."""
        return self.shared / self.of if self.of else None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"shared": self.shared, "of": self.of, "share": self.share}


@dataclass(frozen=True)
class PartLeakage:
    """The distinct genes, pairs and sets of one part's genotypes that are also in training."""

    genes: Overlap
    pairs: Overlap
    sets: Overlap

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "genes": self.genes.to_json(),
            "pairs": self.pairs.to_json(),
            "sets": self.sets.to_json(),
        }


@dataclass(frozen=True)
class Leakage:
    """What the test part and the validation part of a split share with its training part."""

    test: PartLeakage
    validation: PartLeakage

    @classmethod
    def measure(cls, screen: Screen, *, train: Ints, validation: Ints, test: Ints) -> Leakage:
        """Count what parts of a screen, given by their rows, share with training."""
        genes = screen.genotypes.genes.numpy()
        gene_owner = screen.genotypes.owner.numpy()
        pairs = gene_pairs(screen)
        columns = (
            (gene_owner, genes),
            (pairs.owner, pairs.key),
            (np.arange(len(screen)), screen.keys),
        )
        in_training = _mask(screen, train)
        shared = {}
        for name, rows in (("test", test), ("validation", validation)):
            in_part = _mask(screen, rows)
            shared[name] = PartLeakage(
                *(_overlap(key[in_part[owner]], key[in_training[owner]]) for owner, key in columns)
            )
        return cls(**shared)

    @property
    def sentence(self) -> str:
        """The shares in a sentence."""
        return (
            f"Also in training: of the test part {_said(self.test)}; "
            f"of the validation part {_said(self.validation)}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"test": self.test.to_json(), "validation": self.validation.to_json()}


def _mask(screen: Screen, rows: Ints) -> AnyArray:
    mask = np.zeros(len(screen), dtype=bool)
    mask[rows] = True
    return mask


def _overlap(part: AnyArray, training: AnyArray) -> Overlap:
    distinct = np.unique(part)
    return Overlap(int(np.isin(distinct, training).sum()), len(distinct))


def _said(part: PartLeakage) -> str:
    if not part.sets.of:
        return "nothing, as it is empty"
    named = (("genes", part.genes), ("pairs", part.pairs), ("sets", part.sets))
    shares = [f"{_percent(o)} of {o.of:,} {name}" for name, o in named if o.of]
    return " and ".join([", ".join(shares[:-1]), shares[-1]])


def _percent(overlap: Overlap) -> str:
    """Return the share with one decimal; only exactly none is 0 % and only exactly all 100 %."""
    if overlap.shared in (0, overlap.of):
        return "100 %" if overlap.shared else "0 %"
    percent = 100 * overlap.shared / overlap.of
    if percent < 0.1:
        return "under 0.1 %"
    return "over 99.9 %" if percent > 99.9 else f"{percent:.1f} %"
