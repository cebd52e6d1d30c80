"""The grid of a list of hits: which pairs were tested and had no interaction."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Bools, Ints
from deltacell.errors import InputError
from deltacell.screen.coverage import Coverage
from deltacell.screen.genotypes import Genotypes
from deltacell.screen.screen import Screen
from deltacell.screen.split import Split

Part = Literal["train", "validation", "test"]

#: A list of hits may have this share of rows that look like none.
_FEW = 0.05


def lists_only_hits(screen: Screen, largest_p: float | None = 0.05) -> bool:
    """Whether a screen is a list of hits, without the pairs that were tested and had none.

    It is where no row has a score and some have a sign. It is too where the coverage of no study
    is complete and the rows agree: all but a few p-values are at most `largest_p` (None to ignore
    them) or, after a merge that leaves none, all but a few scores are farther from 0 than half of
    the median distance.
    """
    score = screen.column("score").astype(np.float64)
    known = np.isfinite(score)
    if not known.any():
        return bool((screen.column("sign") != 0).any())
    studies = screen.coverage.studies
    if not studies or any(study.complete for study in studies):
        return False
    if (screen.column("phenotype") != "interaction").any():
        return False
    p_value = screen.column("p_value")
    p_known = np.isfinite(p_value)
    if p_known.any() and largest_p is not None:
        return bool((p_value[p_known] > largest_p).mean() < _FEW)
    size = np.abs(score[known])
    return bool((size <= np.median(size) / 2).mean() < _FEW)


@dataclass(frozen=True, eq=False)
class Grid:
    """The pairs that a list of hits implies were tested: each query gene with each array gene.

    A list of hits does not say what else was tested. That a study crossed every query gene with
    every array gene of its list is an assumption; `sentence` states it. Pairs of the grid that the
    screen does not list are its *zeros*: they were tested, and no interaction was reported.

    Every zero belongs to exactly one part of a split, the same each time:

    - ``gene``: test if it has a held-out gene, else validation if it has a gene held out for
      validation, else training.
    - ``source``: test if a test study crossed it, else by a hash.
    - ``random`` and ``set``: by a hash of the names of its two genes and the seed of the split,
      in the shares of the split.
    """

    screen: Screen
    coverage: Coverage
    listed_elsewhere: Ints  # keys n_genes * smaller + larger of hits that were left out of `screen`

    @classmethod
    def of(
        cls, screen: Screen, *, whole: Screen | None = None, assume_crossed: bool = True
    ) -> Grid | None:
        """Return the grid of a list of hits; None for any other screen.

        There is none either where the coverage has no query of a single gene.
        """
        if not assume_crossed or not lists_only_hits(screen):
            return None
        if not any((np.diff(s.query_offsets) == 1).any() for s in screen.coverage.studies):
            return None
        elsewhere = np.zeros(0, dtype=np.int64)
        if whole is not None:
            index = screen.genes.resolve(whole.genes.systematic).index
            elsewhere = _pair_keys(whole, index, len(screen.genes))
        return cls(screen, screen.coverage, elsewhere)

    @property
    def n_pairs(self) -> int:
        """Number of different pairs of the grid."""
        return self._tested[0]

    @property
    def listed(self) -> int:
        """How many pairs of the grid are hits."""
        return self.n_pairs - self.n_zeros

    @property
    def n_zeros(self) -> int:
        """How many pairs of the grid are not hits."""
        return len(self._tested[1])

    @property
    def sentence(self) -> str:
        """The assumption and its size, for a person."""
        return (
            "The screen lists only hits. It is assumed that each study crossed every one of its "
            f"query genes with every one of its array genes: {self.n_pairs:,} pairs, "
            f"of which {self.listed:,} are hits ({self.listed / max(self.n_pairs, 1):.2%}); the "
            "others count as tested, with a score of 0."
        )

    def count(self, part: Part, split: Split) -> int:
        """Return how many zeros a part of a split has, exactly."""
        return int((self._parts(split) == _number(part)).sum())

    def draw(self, n: int, *, part: Part, split: Split, seed: int = 0) -> Genotypes:
        """Draw zeros of a part uniformly and without repetition, the smaller gene first.

        A part that has fewer than `n` gives all of them.
        """
        if n < 0:
            raise InputError(f"cannot draw {n} pairs; expected 0 or more", code="invalid-number")
        there = np.flatnonzero(self._parts(split) == _number(part))
        rng = np.random.default_rng([seed, _number(part)])
        drawn = self._tested[1][there[rng.permutation(len(there))[:n]]]
        genes = np.stack(np.divmod(drawn, len(self.screen.genes)), axis=1).ravel()
        return Genotypes(
            torch.from_numpy(genes), torch.arange(0, 2 * len(drawn) + 1, 2, dtype=torch.int64)
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "pairs": self.n_pairs,
            "listed": self.listed,
            "zeros": self.n_zeros,
            "sentence": self.sentence,
        }

    @cached_property
    def _tested(self) -> tuple[int, Ints]:
        """The number of pairs of the grid, and the keys of those that are not listed, ascending."""
        n = len(self.screen.genes)
        tested = self._crossed(self.coverage)
        n_pairs = int(np.count_nonzero(tested))
        listed = _pair_keys(self.screen, np.arange(n), n)
        tested.ravel()[np.concatenate([listed, self.listed_elsewhere])] = False
        return n_pairs, np.flatnonzero(tested)

    def _crossed(self, coverage: Coverage) -> Bools:
        """Return which pairs were crossed, [smaller gene, larger gene]."""
        n = len(self.screen.genes)
        tested = np.zeros((n, n), dtype=bool)
        for study in coverage.studies:
            single = np.diff(study.query_offsets) == 1
            queries = study.query_genes[study.query_offsets[:-1][single]]
            tested[np.ix_(np.unique(queries), study.array_genes)] = True
        # Which of the two was the query does not matter, and no strain is crossed with itself.
        both: Bools = np.triu(tested, 1)
        both |= np.tril(tested, -1).T
        return both

    def _parts(self, split: Split) -> npt.NDArray[np.int8]:
        """Return the part of each zero; that of the last split is kept."""
        last: tuple[Split, npt.NDArray[np.int8]] | None = self.__dict__.get("_last_parts")
        if last is not None and last[0] is split:
            return last[1]
        split.check(self.screen)
        n, zeros = len(self.screen.genes), self._tested[1]
        first, second = np.divmod(zeros, n)
        chance = _hashed(self.screen.genes.systematic, split.seed, first, second)
        by_chance = float(split.options["validation"])
        if split.method == "gene":
            test, validation = (
                np.isin(first, genes) | np.isin(second, genes)
                for genes in (split.held_out, split.validation_genes)
            )
        elif split.method == "source":
            test = self._crossed(self.coverage.only(split.options["test"])).ravel()[zeros]
            validation = chance < by_chance
        else:
            in_test = float(split.options["test"])
            test, validation = chance < in_test, chance < in_test + by_chance
        part = np.where(test, _number("test"), np.where(validation, _number("validation"), 0))
        self.__dict__["_last_parts"] = split, part.astype(np.int8)
        return part.astype(np.int8)


def _number(part: Part) -> int:
    if part not in get_args(Part):
        expected = ", ".join(get_args(Part))
        raise InputError(f"unknown part '{part}'; expected {expected}", code="unknown-part")
    return get_args(Part).index(part)


def _pair_keys(screen: Screen, index: Ints, n_genes: int) -> Ints:
    """Return the keys of the pairs that a screen lists, over other gene indices."""
    starts = screen.offsets[:-1][np.diff(screen.offsets) == 2]
    genes = index[screen.genotypes.genes.numpy()]
    pair = np.sort(np.stack([genes[starts], genes[starts + 1]], axis=1), axis=1)
    pair = pair[pair[:, 0] >= 0]
    keys: Ints = np.unique(pair[:, 0] * n_genes + pair[:, 1])
    return keys


def _hashed(
    names: tuple[str, ...], seed: int, first: Ints, second: Ints
) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each pair, by the names of its genes in either order."""
    digests = [hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest() for name in names]
    of_gene = np.frombuffer(b"".join(digests), dtype="<u8")
    # The sum does not depend on the order; the steps of SplitMix64 then mix its bits.
    mixed = of_gene[first] + of_gene[second]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    chance: npt.NDArray[np.float64] = (mixed >> np.uint64(11)) * 2.0**-53
    return chance
