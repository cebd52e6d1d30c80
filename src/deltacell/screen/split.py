"""Splits of a screen into training, validation and test, and what these share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from deltacell import store
from deltacell.arrays import AnyArray, Ints, offsets_of
from deltacell.errors import InputError, StoreError
from deltacell.screen.draw import (
    DROPPED,
    PARTS,
    TEST,
    TRAIN,
    VALIDATION,
    checked_fractions,
    commonest,
    connected,
    drawn,
    drawn_apart,
    numbered,
    too_coarse,
)
from deltacell.screen.genotypes import Pairs, all_pairs, comparable_keys
from deltacell.screen.screen import Screen

Method = Literal["random", "gene", "set", "source", "named"]
By = Literal["query", "pair"]

_GENE_FACTS = ("held_out", "unseen", "validation_genes", "validation_unseen")


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Which rows of a screen a model is trained on, chosen with, and tested on.

    The parts are disjoint and, with ``dropped``, are all rows of the screen. Rows with the same
    set of genes stay together, except that `source` never moves a row out of the test studies.
    """

    train: Ints  # rows in ascending order
    validation: Ints
    test: Ints
    method: Method
    seed: int
    screen_checksum: str
    options: Mapping[str, Any] = field(default_factory=dict)  # what else it was made with
    dropped: Ints = field(default_factory=_none)  # rows left out so that nothing leaks
    notes: tuple[str, ...] = ()
    held_out: Ints = field(default_factory=_none)  # genes that `gene` kept for the test part
    # For each test genotype, the number of its genes that no training genotype deletes. Genes held
    # out for validation do not count, so that the groups do not depend on the validation part.
    unseen: Ints = field(default_factory=_none)
    validation_genes: Ints = field(default_factory=_none)  # genes that `gene` kept for validation
    validation_unseen: Ints = field(default_factory=_none)

    def __post_init__(self) -> None:
        for name in (*PARTS, *_GENE_FACTS):
            frozen = np.array(getattr(self, name), dtype=np.int64)
            frozen.setflags(write=False)
            object.__setattr__(self, name, frozen)
        object.__setattr__(self, "options", dict(self.options))
        object.__setattr__(self, "notes", tuple(self.notes))
        rows = np.sort(np.concatenate([getattr(self, name) for name in PARTS]))
        if not np.array_equal(rows, np.arange(len(rows))):
            raise InputError(
                f"the parts of a split must be all rows from 0 to {len(rows) - 1}, each once",
                code="invalid-split",
            )
        for unseen, part in ((self.unseen, self.test), (self.validation_unseen, self.validation)):
            if len(unseen) not in (0, len(part)):
                raise InputError(
                    f"{len(unseen)} numbers of unseen genes for {len(part)} rows",
                    code="invalid-split",
                )

    @classmethod
    def random(
        cls, screen: Screen, seed: int = 0, validation: float = 0.1, test: float = 0.1
    ) -> Split:
        """Split the distinct gene sets of a screen at random.

        Parameters
        ----------
        validation, test
            The share of the screen's rows in these parts, as near as whole gene sets allow.
        """
        checked_fractions(validation=validation, test=test)
        fractions = {TEST: test, VALIDATION: validation}
        sets = numbered(screen.keys)
        part = drawn(sets, fractions, _rng(seed))
        if part is None:
            raise too_coarse(sets, fractions, "gene sets")
        return _made(screen, part, "random", seed, {"validation": validation, "test": test})

    @classmethod
    def gene(
        cls, screen: Screen, seed: int = 0, held_out: float = 0.2, validation: float = 0.1
    ) -> Split:
        """Hold out genes: every genotype that deletes one of them is a test genotype.

        Training and validation have none of them. Validation is made in the same way from what is
        left: some more genes are held out, and every remaining genotype that deletes one of those
        is a validation genotype. So validation asks what the test asks, about unseen genes.

        Parameters
        ----------
        held_out
            The share of the screen's genes to hold out.
        validation
            The share of the rows without a held-out gene in the validation part, as near as whole
            genes allow.
        """
        checked_fractions(validation=validation)
        checked_fractions(held_out=held_out)
        rng = _rng(seed)
        genes, owner = screen.genotypes.genes.numpy(), screen.genotypes.owner.numpy()
        present = np.unique(genes)
        n_held = round(held_out * len(present))
        if not n_held:
            raise InputError(
                f"no gene would be held out: {held_out:g} x {len(present):,} genes of the screen "
                f"= {held_out * len(present):g}",
                code="empty-part",
                fix="Hold out a larger share.",
            )
        held = np.sort(rng.choice(present, n_held, replace=False))
        part = np.full(len(screen), TRAIN, dtype=np.int64)
        part[owner[np.isin(genes, held)]] = TEST
        notes = [
            f"{n_held:,} of {len(present):,} genes are held out, and "
            f"{int((part == TEST).sum()):,} of {len(screen):,} genotypes delete one of them"
        ]
        chosen = _hold_out_for_validation(screen, part, validation, rng)
        if len(chosen):
            notes.append(
                f"{len(chosen):,} more are held out of training, and "
                f"{int((part == VALIDATION).sum()):,} genotypes that delete one of them are for "
                "validation"
            )
        options = {"held_out": held_out, "validation": validation}
        return _made(screen, part, "gene", seed, options, notes, held, chosen)

    @classmethod
    def sets(
        cls,
        screen: Screen,
        by: By = "query",
        seed: int = 0,
        validation: float = 0.1,
        test: float = 0.1,
    ) -> Split:
        """Split so that no two parts share a query pair, or a gene pair of any kind.

        Genotypes that share a pair, directly or through others, stay together where these groups
        are small enough to make parts of the wanted size. Where they are not, test and then
        validation genotypes are drawn (by query pair, by the commonest pair of each, or by gene
        set, the first that is fine enough), and every other genotype that shares a pair with
        them is dropped.

        Parameters
        ----------
        by
            ``query``: the two query genes of a genotype; where it has none, all its pairs.
            ``pair``: any two of its genes.
        validation, test
            The share of the screen's rows in these parts, as near as whole groups allow.
        """
        if by not in ("query", "pair"):
            raise InputError(
                f"cannot split sets by '{by}'; by 'query' or 'pair'", code="unknown-by"
            )
        checked_fractions(validation=validation, test=test)
        fractions = {TEST: test, VALIDATION: validation}
        options = {"by": by, "validation": validation, "test": test}
        named = "query pair" if by == "query" else "gene pair"
        pairs = _query_pairs(screen) if by == "query" else _gene_pairs(screen)
        sets = numbered(screen.keys)
        groups = connected(sets, pairs)
        part = drawn(groups, fractions, _rng(seed))
        if part is not None:
            alike = np.array_equal(groups, sets)
            note = f"No two gene sets share a {named}, so this equals the random split"
            return _made(screen, part, "set", seed, options, [note] if alike else [])
        candidates = {
            "query pair": connected(sets, _query_pairs(screen)),
            "commonest pair": connected(sets, commonest(pairs)),
            "gene set": sets,
        }
        fine = (n for n, g in candidates.items() if drawn(g, fractions, _rng(seed)) is not None)
        drawn_by = next(fine, "gene set")
        part = drawn_apart(candidates[drawn_by], pairs, fractions, _rng(seed))
        if part is None:
            raise too_coarse(groups, fractions, f"groups that share a {named}")
        n = np.bincount(part, minlength=4)
        why = (
            f"Genotypes that share a {named} hang together in groups too large for the parts, "
            f"the largest of {int(np.bincount(groups).max()):,} of {len(screen):,}. So "
            f"{n[TEST]:,} were drawn for test and {n[VALIDATION]:,} for validation, by {drawn_by}, "
            f"and {n[DROPPED]:,} others that share a {named} with one of them were dropped"
        )
        return _made(screen, part, "set", seed, options, [why])

    @classmethod
    def source(
        cls, screen: Screen, test: str | Sequence[str], validation: float = 0.1, seed: int = 0
    ) -> Split:
        """Test on some studies and train on the others.

        A gene set that both measured is in both parts; `leakage` says how many there are.

        Parameters
        ----------
        validation
            The share of the other studies' rows in the validation part, drawn by gene set.
        """
        checked_fractions(validation=validation)
        wanted = [test] if isinstance(test, str) else list(test)
        study = screen.column("study")
        there = sorted(set(study))
        unknown = [name for name in wanted if name not in there]
        if unknown or not wanted:
            said = f"no study is called '{unknown[0]}'" if unknown else "no study was given"
            raise InputError(
                f"{said}; there are {', '.join(map(repr, there))}",
                code="unknown-study",
                fix="Name the studies to test on.",
            )
        part = np.where(np.isin(study, wanted), TEST, TRAIN)
        why = (
            f"{int((part == TEST).sum()):,} of {len(screen):,} genotypes are of "
            f"{', '.join(map(repr, wanted))}"
        )
        rest = np.flatnonzero(part == TRAIN)
        if len(rest):
            sets, fractions = numbered(screen.keys[rest]), {VALIDATION: validation}
            chosen = drawn(sets, fractions, _rng(seed))
            if chosen is None:
                raise too_coarse(sets, fractions, "gene sets that are not tested")
            part[rest] = chosen
        options = {"test": wanted, "validation": validation}
        return _made(screen, part, "source", seed, options, [why])

    @classmethod
    def named(cls, screen: Screen, sets: Sequence[Sequence[str]], parts: Sequence[str]) -> Split:
        """Take over a split that names the part of each gene set.

        Genotypes of the screen that are in no part are dropped, and a note says how many.

        Parameters
        ----------
        sets
            Gene sets by the names of their genes; those that the screen does not have are ignored.
        parts
            ``train``, ``validation`` or ``test`` for each set.
        """
        strange = sorted(set(parts) - {"train", "validation", "test"})
        if strange:
            raise InputError(
                f"'{strange[0]}' is not a part: train, validation or test", code="unknown-part"
            )
        sizes = np.array([len(genes) for genes in sets], dtype=np.int64)
        gene = screen.genes.resolve([name for genes in sets for name in genes]).index
        owner = np.repeat(np.arange(len(sets)), sizes)
        known = np.ones(len(sets), dtype=bool)
        known[owner[gene < 0]] = False
        keys, ours = comparable_keys(
            len(screen.genes),
            (gene[known[owner]], offsets_of(sizes[known])),
            (screen.genotypes.genes.numpy(), screen.offsets),
        )
        part_of: dict[Any, int] = {}
        for at, key in zip(np.flatnonzero(known).tolist(), keys.tolist(), strict=True):
            number = PARTS.index(parts[at])
            if part_of.setdefault(key, number) != number:
                raise InputError(
                    f"the genes {' '.join(sets[at])} are in two parts of the split",
                    code="set-in-two-parts",
                )
        part = np.array([part_of.get(key, DROPPED) for key in ours.tolist()], dtype=np.int64)
        without = int((part == DROPPED).sum())
        notes = [f"{without:,} genotypes are in no part of the split and are left out."]
        options = {"validation": int("validation" in parts), "sets": len(sets)}
        return _made(screen, part, "named", 0, options, notes if without else ())

    def __len__(self) -> int:
        """Return the number of rows of the screen."""
        return sum(len(getattr(self, name)) for name in PARTS)

    def __repr__(self) -> str:
        left = f", {len(self.dropped):,} dropped" if len(self.dropped) else ""
        return (
            f"Split({self.method}: {len(self.train):,} train, {len(self.validation):,} "
            f"validation, {len(self.test):,} test{left})"
        )

    def _repr_html_(self) -> str:
        from deltacell.report.data import print_split
        from deltacell.report.terminal import as_html

        return as_html(lambda: print_split(self.to_json()))

    @property
    def unseen_counts(self) -> dict[int, int]:
        """The number of test genotypes by their number of unseen genes."""
        return _counted(self.unseen)

    def leakage(self, screen: Screen) -> Leakage:
        """Return what test and validation share with training."""
        self.check(screen)
        return Leakage.measure(screen, train=self.train, validation=self.validation, test=self.test)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict, without the rows."""
        unseen, validation_unseen = (
            {str(k): n for k, n in _counted(numbers).items()}
            for numbers in (self.unseen, self.validation_unseen)
        )
        return {
            "method": self.method,
            "seed": self.seed,
            "options": dict(self.options),
            "genotypes": {
                name: len(getattr(self, name))
                for name in ("train", "validation", "test", "dropped")
            },
            "held_out_genes": len(self.held_out),
            "test_genotypes_by_unseen_genes": unseen,
            "validation_genes": len(self.validation_genes),
            "validation_genotypes_by_unseen_genes": validation_unseen,
            "notes": list(self.notes),
            "screen": self.screen_checksum,
        }

    @cached_property
    def checksum(self) -> str:
        """The checksum of its rows, as the manifest of a saved split has it."""
        return store.checksum(self._tables())

    def _tables(self) -> dict[str, pa.Table]:
        order = ("train", "validation", "test", "dropped")
        return {
            **{name: pa.table({"row": pa.array(getattr(self, name))}) for name in order},
            **{name: pa.table({"value": pa.array(getattr(self, name))}) for name in _GENE_FACTS},
        }

    def equals(self, other: Split) -> bool:
        """Whether both put the same rows of the same screen into the same parts."""
        return self.screen_checksum == other.screen_checksum and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in PARTS
        )

    def on(self, screen: Screen, was: Screen) -> Split:
        """Return the same split of the same rows, of a screen that `was` over other genes."""
        self.check(was)
        place = screen.genes.resolve(was.genes.systematic).index
        return replace(
            self,
            screen_checksum=screen.checksum,
            held_out=np.sort(place[self.held_out]),
            validation_genes=np.sort(place[self.validation_genes]),
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the split to a directory, all of it or nothing."""
        meta = {
            "method": self.method,
            "seed": self.seed,
            "screen": self.screen_checksum,
            "options": dict(self.options),
            "notes": list(self.notes),
        }
        store.write(path, "split", self._tables(), meta, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], screen: Screen, *, verify: bool = True) -> Split:
        """Read a split of a screen; one of another screen is refused."""
        stored = store.read(path, "split", verify=verify)
        parts, meta = stored.parts, stored.meta
        missing = [name for name in (*PARTS, *_GENE_FACTS) if name not in parts]
        if missing:
            raise StoreError(
                f"the split was saved by an earlier version: it lacks '{missing[0]}'",
                code="old-version",
                where=path,
                fix="Split the screen again.",
            )
        split = cls(
            **{name: parts[name]["row"].to_numpy() for name in PARTS},
            **{name: parts[name]["value"].to_numpy() for name in _GENE_FACTS},
            method=meta["method"],
            seed=meta["seed"],
            screen_checksum=meta["screen"],
            options=meta["options"],
            notes=tuple(meta["notes"]),
        )
        split.check(screen, where=path)
        return split

    def check(self, screen: Screen, where: str | os.PathLike[str] | None = None) -> None:
        """Raise where this is not a split of the screen."""
        if self.screen_checksum != screen.checksum or len(self) != len(screen):
            raise InputError(
                f"this split was made of another screen: of {len(self):,} genotypes with the "
                f"checksum {self.screen_checksum[:12]}…, and this one has {len(screen):,} and "
                f"{screen.checksum[:12]}…",
                code="other-screen",
                where=where,
                fix="Use the screen it was made of, or split this one again.",
            )


@dataclass(frozen=True)
class Overlap:
    """How many of some distinct things (``of``) are also in training (``shared``)."""

    shared: int
    of: int

    @property
    def share(self) -> float | None:
        """``shared / of``; None where there are none."""
        return self.shared / self.of if self.of else None

    def __str__(self) -> str:
        """Return the share with one decimal; only exactly none is 0 %, and exactly all 100 %."""
        if self.shared in (0, self.of):
            return "100 %" if self.shared else "0 %"
        percent = 100 * self.shared / self.of
        if percent < 0.1:
            return "under 0.1 %"
        return "over 99.9 %" if percent > 99.9 else f"{percent:.1f} %"


@dataclass(frozen=True)
class PartLeakage:
    """The distinct genes, pairs and sets of one part's genotypes that are also in training."""

    genes: Overlap
    pairs: Overlap
    sets: Overlap

    def __str__(self) -> str:
        """Return the shares as part of a sentence."""
        if not self.sets.of:
            return "nothing, as it is empty"
        shares = [f"{o} of {o.of:,} {name}" for name, o in vars(self).items() if o.of]
        return " and ".join([", ".join(shares[:-1]), shares[-1]])


@dataclass(frozen=True)
class Leakage:
    """What the test part and the validation part of a split share with its training part."""

    test: PartLeakage
    validation: PartLeakage

    @classmethod
    def measure(cls, screen: Screen, *, train: Ints, validation: Ints, test: Ints) -> Leakage:
        """Count what parts of a screen, given by their rows, share with training."""
        columns = (
            Pairs(screen.genotypes.owner.numpy(), screen.genotypes.genes.numpy()),
            _gene_pairs(screen),
            Pairs(np.arange(len(screen)), screen.keys),
        )

        def within(rows: Ints) -> list[AnyArray]:
            mask = np.zeros(len(screen), dtype=bool)
            mask[rows] = True
            return [np.unique(key[mask[owner]]) for owner, key in columns]

        seen = within(train)
        shared = (
            PartLeakage(
                *(
                    Overlap(int(np.isin(mine, theirs).sum()), len(mine))
                    for mine, theirs in zip(within(rows), seen, strict=True)
                )
            )
            for rows in (test, validation)
        )
        return cls(*shared)

    @property
    def sentence(self) -> str:
        """The shares in a sentence."""
        return (
            f"Also in training: of the test part {self.test}; "
            f"of the validation part {self.validation}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            part: {
                name: {"shared": o.shared, "of": o.of, "share": o.share}
                for name, o in vars(shared).items()
            }
            for part, shared in vars(self).items()
        }


def _rng(seed: int) -> np.random.Generator:
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be at least 0", code="invalid-number")
    return np.random.default_rng(seed)


def _gene_pairs(screen: Screen) -> Pairs:
    return all_pairs(screen.genotypes.genes.numpy(), screen.offsets, len(screen.genes))


def _query_pairs(screen: Screen) -> Pairs:
    """Return the pairs of query genes; all pairs of a genotype without two query genes."""
    genes, owner = screen.genotypes.genes.numpy(), screen.genotypes.owner.numpy()
    n = len(screen)
    is_query = screen.gene_column("role") == "query"
    kept = is_query | (np.bincount(owner[is_query], minlength=n) < 2)[owner]
    return all_pairs(
        genes[kept], offsets_of(np.bincount(owner[kept], minlength=n)), len(screen.genes)
    )


def _hold_out_for_validation(
    screen: Screen, part: Ints, validation: float, rng: np.random.Generator
) -> Ints:
    """Move the training rows of some genes to validation, and return these genes, ascending.

    Genes are taken in random order until the part is as near to its size as whole genes allow, and
    at least one is taken. A gene of more than twice as many rows as the part stays in training.
    """
    genes, owner = screen.genotypes.genes.numpy(), screen.genotypes.owner.numpy()
    left = part[owner] == TRAIN
    wanted = validation * int((part == TRAIN).sum())
    rows_of_gene = np.bincount(genes[left], minlength=len(screen.genes))
    order = rng.permutation(np.flatnonzero(rows_of_gene))
    order = order[rows_of_gene[order] <= 2 * wanted]
    if not validation or not left.any():
        return _none()
    if not len(order):
        raise InputError(
            f"the validation part would be empty: {wanted:g} genotypes are wanted, and each of the "
            f"{int((rows_of_gene > 0).sum()):,} genes that are not held out is in more than "
            f"{2 * wanted:g}",
            code="empty-part",
            fix="Ask for a larger share, or split in another way.",
        )
    # A row joins validation with the first of its genes in this order.
    position = np.full(len(screen.genes), len(order))
    position[order] = np.arange(len(order))
    joins = np.full(len(screen), len(order))
    np.minimum.at(joins, owner[left], position[genes[left]])
    sizes = np.cumsum(np.bincount(joins[joins < len(order)], minlength=len(order)))
    n_taken = 1 + int(np.argmin(np.abs(sizes - wanted)))
    part[joins < n_taken] = VALIDATION
    return np.sort(order[:n_taken])


def _counted(numbers: Ints) -> dict[int, int]:
    values, counts = np.unique(numbers, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _made(
    screen: Screen,
    part: Ints,
    method: Method,
    seed: int,
    options: Mapping[str, Any],
    notes: Sequence[str] = (),
    held_out: Ints | None = None,
    validation_genes: Ints | None = None,
) -> Split:
    rows = {name: np.flatnonzero(part == number) for number, name in enumerate(PARTS)}
    not_asked_for = {name for name, option in options.items() if option == 0} | {"dropped"}
    for name in rows:
        if name not in not_asked_for and not len(rows[name]):
            counts = ", ".join(f"{len(r):,} {n}" for n, r in rows.items())
            raise InputError(
                f"the {name} part would be empty; the {len(screen):,} genotypes would be {counts}",
                code="empty-part",
                fix=". ".join([*notes, "Ask for other shares, or split in another way."]),
            )
    genes, owner = screen.genotypes.genes.numpy(), screen.genotypes.owner.numpy()
    chosen = _none() if validation_genes is None else validation_genes
    seen = np.zeros(len(screen.genes), dtype=bool)
    seen[genes[part[owner] == TRAIN]] = True
    unseen = np.bincount(owner[~seen[genes]], minlength=len(screen))
    seen[chosen] = True
    unseen_in_test = np.bincount(owner[~seen[genes]], minlength=len(screen))
    return Split(
        **rows,
        method=method,
        seed=seed,
        screen_checksum=screen.checksum,
        options=options,
        notes=tuple(notes),
        held_out=_none() if held_out is None else held_out,
        unseen=unseen_in_test[rows["test"]],
        validation_genes=chosen,
        validation_unseen=unseen[rows["validation"]],
    )
