"""The grid of a list of hits: which pairs were tested and had no interaction."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch

from deltacell.base.arrays import AnyArray, Bools, Doubles, Ints
from deltacell.screen.coverage import Coverage
from deltacell.screen.gene_keys import all_pairs
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.screen import Screen, lists_only_hits
from deltacell.screen.split import PARTS, TEST, TRAIN, VALIDATION, Split

Part = Literal["train", "validation", "test"]


@dataclass(frozen=True, eq=False)
class Grid:
    """The pairs that a list of hits implies were tested: each query gene with each array gene.

    This is an assumption; `sentence` states it. Pairs of the grid that the screen does not list are
    its *zeros*: they were tested, and no interaction was reported. Every zero belongs to exactly
    one part of a split: with ``gene`` by its genes, like rows; with ``source`` to the test part if
    a test study crossed it; otherwise by a hash of its gene names and the seed of the split, in
    the shares of the split.
    """

    screen: Screen
    n_pairs: int
    zeros: Ints  # their keys n_genes * smaller + larger, ascending

    @classmethod
    def of(cls, screen: Screen, *, whole: Screen | None = None) -> Grid | None:
        """Return the grid of a list of hits with single-gene queries; None for other screens."""
        queries = [np.diff(study.query_offsets) for study in screen.coverage.studies]
        has_single_query = any((n_genes == 1).any() for n_genes in queries)
        if not has_single_query or not lists_only_hits(screen):
            return None
        n_genes = len(screen.genes)
        tested = _crossed(screen.coverage, n_genes)
        n_pairs = int(np.count_nonzero(tested))
        tested.ravel()[_pair_keys(screen, np.arange(n_genes), n_genes)] = False
        if whole is not None:
            # Hits that were left out of `screen` are not zeros.
            index = screen.genes.resolve(whole.genes.systematic)
            tested.ravel()[_pair_keys(whole, index, n_genes)] = False
        return cls(screen, n_pairs, np.flatnonzero(tested))

    @property
    def listed(self) -> int:
        """Number of pairs that the screen lists."""
        return self.n_pairs - self.n_zeros

    @property
    def n_zeros(self) -> int:
        """Number of pairs that were tested without a hit."""
        return len(self.zeros)

    @property
    def sentence(self) -> str:
        """What is assumed, in words."""
        share = self.listed / max(self.n_pairs, 1)
        return (
            "The screen lists only hits. It is assumed that each study crossed every one of its "
            f"query genes with every one of its array genes: {self.n_pairs:,} pairs, "
            f"of which {self.listed:,} are hits ({share:.2%}); the "
            "others count as tested, with a score of 0."
        )

    def count(self, part: Part, split: Split) -> int:
        """Return the number of zeros in a part of a split."""
        is_in_part = _parts(self, split) == PARTS.index(part)
        return int(is_in_part.sum())

    def draw(self, n: int, *, part: Part, split: Split, seed: int = 0) -> Genotypes:
        """Draw at most `n` zeros of a part uniformly without repetition, the smaller gene first."""
        number = PARTS.index(part)
        zeros_of_part = self.zeros[_parts(self, split) == number]
        rng = np.random.default_rng([seed, number])
        drawn = zeros_of_part[rng.permutation(len(zeros_of_part))[:n]]
        genes = np.stack(np.divmod(drawn, len(self.screen.genes)), axis=1).ravel()
        return Genotypes(torch.from_numpy(genes), torch.arange(len(drawn) + 1) * 2)


def _crossed(coverage: Coverage, n_genes: int) -> Bools:
    """Return which pairs were crossed, [smaller gene, larger gene]."""
    tested = np.zeros((n_genes, n_genes), dtype=bool)
    for study in coverage.studies:
        is_single = np.diff(study.query_offsets) == 1
        queries = study.query_genes[study.query_offsets[:-1][is_single]]
        tested[np.ix_(np.unique(queries), study.array_genes)] = True
    # The order of query and array does not matter, and no strain is crossed with itself.
    both: Bools = np.triu(tested, 1)
    both |= np.tril(tested, -1).T
    return both


@lru_cache(maxsize=1)
def _parts(grid: Grid, split: Split) -> AnyArray:
    """Return the part number of each zero; the last result is cached."""
    split.check(grid.screen)
    n_genes = len(grid.screen.genes)
    first, second = np.divmod(grid.zeros, n_genes)
    chance = _hashed(grid.screen.genes.systematic, split.seed, first, second)
    shares: dict[str, Any] = {
        name: len(getattr(split, name)) / len(split) for name in ("test", "validation")
    }
    if split.method != "named":
        shares |= split.options
    if split.method == "gene":
        is_test = np.isin(first, split.held_out) | np.isin(second, split.held_out)
        validation_genes = split.validation_genes
        is_validation = np.isin(first, validation_genes) | np.isin(second, validation_genes)
    elif split.method == "source":
        crossed = _crossed(grid.screen.coverage.only(split.options["test"]), n_genes)
        is_test = crossed.ravel()[grid.zeros]
        is_validation = chance < shares["validation"]
    else:
        is_test = chance < shares["test"]
        is_validation = chance < shares["test"] + shares["validation"]
    return np.where(is_test, TEST, np.where(is_validation, VALIDATION, TRAIN)).astype(np.int8)


def _pair_keys(screen: Screen, index: Ints, n_genes: int) -> Ints:
    """Return the keys of the pairs that a screen lists, with new gene indices."""
    pairs = all_pairs(index[screen.genotypes.genes.numpy()], screen.offsets, n_genes)
    n_deleted = np.diff(screen.offsets)[pairs.owner]
    return np.unique(pairs.key[n_deleted == 2])


def _hashed(names: tuple[str, ...], seed: int, first: Ints, second: Ints) -> Doubles:
    """Return a number in [0, 1) for each pair that depends on its gene names, in either order."""
    digests = [hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest() for name in names]
    of_gene = np.frombuffer(b"".join(digests), dtype="<u8")
    # The sum does not depend on the order; the steps of SplitMix64 then mix its bits.
    mixed = of_gene[first] + of_gene[second]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    chance: Doubles = (mixed >> np.uint64(11)) * 2.0**-53
    return chance
