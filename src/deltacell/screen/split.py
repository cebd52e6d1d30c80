"""Splits of a screen into training, validation and test, as data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltacell import store
from deltacell.arrays import Ints, offsets_of
from deltacell.errors import InputError, StoreError
from deltacell.screen.draw import (
    DROPPED,
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
from deltacell.screen.keys import comparable_keys
from deltacell.screen.leakage import Leakage
from deltacell.screen.pairs import gene_pairs, query_pairs
from deltacell.screen.screen import Screen

Method = Literal["random", "gene", "set", "source", "named"]
By = Literal["query", "pair"]


def _no_rows() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Which rows of a screen a model is trained on, chosen with, and tested on.

    The parts are disjoint and, with ``dropped``, are all rows of the screen. Rows with the same
    set of genes stay together, except that `source` never moves a row out of the test studies.

    Parameters
    ----------
    train, validation, test
        Rows in ascending order, int64.
    method
        How it was made: ``random``, ``gene``, ``set``, ``source`` or ``named``.
    seed
        Of all that was drawn.
    screen_checksum
        Of the screen whose rows these are.
    options
        What else it was made with.
    dropped
        Rows left out of all parts so that nothing leaks.
    notes
        What is worth knowing about it, in sentences.
    held_out
        Gene indices that ``gene`` kept out of training and validation.
    unseen
        For each test genotype, the number of its genes that no training genotype deletes. Genes
        that were held out for validation do not count, so that the choice of a validation part
        does not change the groups of the test part.
    validation_genes
        Gene indices that ``gene`` kept out of training so that validation has unseen genes.
    validation_unseen
        For each validation genotype, the number of its genes that no training genotype deletes.
    """

    train: Ints
    validation: Ints
    test: Ints
    method: Method
    seed: int
    screen_checksum: str
    options: Mapping[str, Any] = field(default_factory=dict)
    dropped: Ints = field(default_factory=_no_rows)
    notes: tuple[str, ...] = ()
    held_out: Ints = field(default_factory=_no_rows)
    unseen: Ints = field(default_factory=_no_rows)
    validation_genes: Ints = field(default_factory=_no_rows)
    validation_unseen: Ints = field(default_factory=_no_rows)

    def __post_init__(self) -> None:
        for name in (*_PARTS, *_GENE_FACTS):
            frozen = np.array(getattr(self, name), dtype=np.int64)
            frozen.setflags(write=False)
            object.__setattr__(self, name, frozen)
        object.__setattr__(self, "options", dict(self.options))
        object.__setattr__(self, "notes", tuple(self.notes))
        rows = np.sort(np.concatenate([self.train, self.validation, self.test, self.dropped]))
        if not np.array_equal(rows, np.arange(len(rows))):
            raise InputError(
                f"the parts of a split must be all rows from 0 to {len(rows) - 1}, each once"
            )
        for unseen, part in ((self.unseen, self.test), (self.validation_unseen, self.validation)):
            if len(unseen) not in (0, len(part)):
                raise InputError(f"{len(unseen)} numbers of unseen genes for {len(part)} rows")

    @classmethod
    def random(
        cls, screen: Screen, seed: int = 0, validation: float = 0.1, test: float = 0.1
    ) -> Split:
        """Split the distinct gene sets of a screen at random.

        Parameters
        ----------
        screen
            What was measured.
        seed
            Of the draw.
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
        screen
            What was measured.
        seed
            Of the draw.
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
                fix="Hold out a larger share.",
            )
        held = np.sort(rng.choice(present, n_held, replace=False))
        is_held = np.zeros(len(screen.genes), dtype=bool)
        is_held[held] = True
        part = np.full(len(screen), TRAIN, dtype=np.int64)
        part[owner[is_held[genes]]] = TEST
        why = (
            f"{n_held:,} of {len(present):,} genes are held out, and "
            f"{int((part == TEST).sum()):,} of {len(screen):,} genotypes delete one of them"
        )
        chosen = _hold_out_for_validation(screen, part, validation, rng)
        notes = [why]
        if len(chosen):
            notes.append(
                f"{len(chosen):,} more are held out of training, and "
                f"{int((part == VALIDATION).sum()):,} genotypes that delete one of them are for "
                "validation"
            )
        options = {"held_out": held_out, "validation": validation}
        return _made(
            screen,
            part,
            "gene",
            seed,
            options,
            held_out=held,
            validation_genes=chosen,
            notes=notes,
            why=". ".join(notes),
        )

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
        screen
            What was measured.
        by
            ``query``: the two query genes of a genotype; where it has none, all its pairs.
            ``pair``: any two of its genes.
        seed
            Of the draw.
        validation, test
            The share of the screen's rows in these parts, as near as whole groups allow.
        """
        if by not in ("query", "pair"):
            raise InputError(f"cannot split sets by '{by}'; by 'query' or 'pair'")
        checked_fractions(validation=validation, test=test)
        fractions = {TEST: test, VALIDATION: validation}
        options = {"by": by, "validation": validation, "test": test}
        named = "query pair" if by == "query" else "gene pair"
        pairs = query_pairs(screen) if by == "query" else gene_pairs(screen)
        sets = numbered(screen.keys)
        groups = connected(sets, pairs)
        part = drawn(groups, fractions, _rng(seed))
        if part is not None:
            alike = np.array_equal(groups, sets)
            note = f"No two gene sets share a {named}, so this equals the random split"
            return _made(screen, part, "set", seed, options, notes=[note] if alike else [])
        candidates = {
            "query pair": connected(sets, query_pairs(screen)),
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
        return _made(screen, part, "set", seed, options, notes=[why], why=why)

    @classmethod
    def source(
        cls, screen: Screen, test: str | Sequence[str], validation: float = 0.1, seed: int = 0
    ) -> Split:
        """Test on some studies and train on the others.

        A gene set that both measured is in both parts; `leakage` says how many there are.

        Parameters
        ----------
        screen
            What was measured.
        test
            The studies to test on.
        validation
            The share of the other studies' rows in the validation part, drawn by gene set.
        seed
            Of that draw.
        """
        checked_fractions(validation=validation)
        wanted = [test] if isinstance(test, str) else list(test)
        study = screen.rows["study"].combine_chunks().cast("string")
        there = sorted(pc.unique(study).to_pylist())
        unknown = [name for name in wanted if name not in there]
        if unknown or not wanted:
            said = f"no study is called '{unknown[0]}'" if unknown else "no study was given"
            raise InputError(
                f"{said}; there are {', '.join(repr(name) for name in there)}",
                fix="Name the studies to test on.",
            )
        part = np.full(len(screen), TRAIN, dtype=np.int64)
        part[pc.is_in(study, pa.array(wanted)).to_numpy(zero_copy_only=False)] = TEST
        why = (
            f"{int((part == TEST).sum()):,} of {len(screen):,} genotypes are of "
            f"{', '.join(repr(name) for name in wanted)}"
        )
        _draw_validation(screen, part, validation, _rng(seed))
        options = {"test": wanted, "validation": validation}
        return _made(screen, part, "source", seed, options, notes=[why], why=why)

    @classmethod
    def named(cls, screen: Screen, sets: Sequence[Sequence[str]], parts: Sequence[str]) -> Split:
        """Take over a split that names the part of each gene set.

        Genotypes of the screen that are in no part are dropped, and a note says how many.

        Parameters
        ----------
        screen
            What was measured.
        sets
            Gene sets by the names of their genes; those that the screen does not have are ignored.
        parts
            ``train``, ``validation`` or ``test`` for each set.
        """
        strange = sorted(set(parts) - {"train", "validation", "test"})
        if strange:
            raise InputError(f"'{strange[0]}' is not a part: train, validation or test")
        sizes = np.array([len(genes) for genes in sets], dtype=np.int64)
        gene = screen.genes.resolve([name for genes in sets for name in genes]).index
        owner = np.repeat(np.arange(len(sets)), sizes)
        known = np.ones(len(sets), dtype=bool)
        known[owner[gene < 0]] = False
        theirs = screen.genotypes.genes.numpy(), screen.offsets
        keys, ours = comparable_keys(
            len(screen.genes), (gene[known[owner]], offsets_of(sizes[known])), theirs
        )
        numbers = np.array([_NUMBER[part] for part in parts], dtype=np.int64)[known]
        part_of: dict[int, int] = {}
        for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
            if part_of.setdefault(key, number) != number:
                at = int(np.flatnonzero(known)[np.flatnonzero(keys == key)[0]])
                raise InputError(f"the genes {' '.join(sets[at])} are in two parts of the split")
        part = np.array([part_of.get(key, DROPPED) for key in ours.tolist()], dtype=np.int64)
        without = int((part == DROPPED).sum())
        notes = [f"{without:,} genotypes are in no part of the split and are left out."]
        options = {"validation": int("validation" in parts), "sets": len(sets)}
        return _made(screen, part, "named", 0, options, notes=notes if without else ())

    def __len__(self) -> int:
        """Return the number of rows of the screen."""
        return len(self.train) + len(self.validation) + len(self.test) + len(self.dropped)

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
        """Return what it is in numbers, without the rows."""
        return {
            "method": self.method,
            "seed": self.seed,
            "options": dict(self.options),
            "genotypes": {
                "train": len(self.train),
                "validation": len(self.validation),
                "test": len(self.test),
                "dropped": len(self.dropped),
            },
            "held_out_genes": len(self.held_out),
            "test_genotypes_by_unseen_genes": {str(k): n for k, n in self.unseen_counts.items()},
            "validation_genes": len(self.validation_genes),
            "validation_genotypes_by_unseen_genes": {
                str(k): n for k, n in _counted(self.validation_unseen).items()
            },
            "notes": list(self.notes),
            "screen": self.screen_checksum,
        }

    @cached_property
    def checksum(self) -> str:
        """The checksum of its rows, as the manifest of a saved split has it."""
        return store.checksum(self._tables())

    def _tables(self) -> dict[str, pa.Table]:
        return {
            **{name: pa.table({"row": pa.array(getattr(self, name))}) for name in _PARTS},
            **{name: pa.table({"value": pa.array(getattr(self, name))}) for name in _GENE_FACTS},
        }

    def equals(self, other: Split) -> bool:
        """Whether both put the same rows of the same screen into the same parts."""
        return self.screen_checksum == other.screen_checksum and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _PARTS
        )

    def on(self, screen: Screen, was: Screen) -> Split:
        """Return the same split of the same rows of a screen over other genes.

        Parameters
        ----------
        screen
            The screen over the other genes, see `Screen.on`.
        was
            The screen it was made of.
        """
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
        """Read a split of a screen; one of another screen is refused.

        Parameters
        ----------
        path
            The directory.
        screen
            The screen it was made of.
        verify
            Compare every part with its checksum first.
        """
        stored = store.read(path, "split", verify=verify)
        parts, meta = stored.parts, stored.meta
        missing = [name for name in (*_PARTS, *_GENE_FACTS) if name not in parts]
        if missing:
            raise StoreError(
                f"the split was saved by an earlier version: it has no part '{missing[0]}'",
                where=path,
                fix="Split the screen again.",
            )
        split = cls(
            **{name: parts[name]["row"].to_numpy() for name in _PARTS},
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
                where=where,
                fix="Use the screen it was made of, or split this one again.",
            )


def _rng(seed: int) -> np.random.Generator:
    if seed < 0:
        raise InputError(f"the seed is {seed}; it must not be negative")
    return np.random.default_rng(seed)


def _draw_validation(
    screen: Screen, part: Ints, validation: float, rng: np.random.Generator
) -> None:
    """Move a share of the training rows to validation, by gene set."""
    rest = np.flatnonzero(part == TRAIN)
    if not len(rest):
        return
    sets = numbered(screen.keys[rest])
    chosen = drawn(sets, {VALIDATION: validation}, rng)
    if chosen is None:
        raise too_coarse(sets, {VALIDATION: validation}, "gene sets that are not tested")
    part[rest] = chosen


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
        return _no_rows()
    if not len(order):
        raise InputError(
            f"the validation part would be empty: wanted are {validation:g} x "
            f"{int((part == TRAIN).sum()):,} = {wanted:g} genotypes, and each of the "
            f"{int((rows_of_gene > 0).sum()):,} genes that are not held out is in more than "
            f"{2 * wanted:g}",
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
    return {int(k): int(n) for k, n in zip(values, counts, strict=True)}


def _made(
    screen: Screen,
    part: Ints,
    method: Method,
    seed: int,
    options: Mapping[str, Any],
    *,
    held_out: Ints | None = None,
    validation_genes: Ints | None = None,
    notes: Sequence[str] = (),
    why: str = "",
) -> Split:
    rows = {name: np.flatnonzero(part == number) for name, number in _NUMBER.items()}
    not_asked_for = {name for name, option in options.items() if option == 0} | {"dropped"}
    for name in rows:
        if name not in not_asked_for and not len(rows[name]):
            counts = ", ".join(f"{len(r):,} {n}" for n, r in rows.items())
            raise InputError(
                f"the {name} part would be empty. {why}{'. ' if why else ''}"
                f"The {len(screen):,} genotypes would be: {counts}",
                fix="Ask for other shares, or split in another way.",
            )
    genes, owner = screen.genotypes.genes.numpy(), screen.genotypes.owner.numpy()
    seen = np.zeros(len(screen.genes), dtype=bool)
    seen[genes[part[owner] == TRAIN]] = True
    unseen = np.bincount(owner[~seen[genes]], minlength=len(screen))
    chosen = _no_rows() if validation_genes is None else validation_genes
    seen[chosen] = True
    unseen_in_test = np.bincount(owner[~seen[genes]], minlength=len(screen))
    return Split(
        **rows,
        method=method,
        seed=seed,
        screen_checksum=screen.checksum,
        options=options,
        notes=tuple(notes),
        held_out=_no_rows() if held_out is None else held_out,
        unseen=unseen_in_test[rows["test"]],
        validation_genes=chosen,
        validation_unseen=unseen[rows["validation"]],
    )


_PARTS = ("train", "validation", "test", "dropped")
_GENE_FACTS = ("held_out", "unseen", "validation_genes", "validation_unseen")
_NUMBER = {"train": TRAIN, "validation": VALIDATION, "test": TEST, "dropped": DROPPED}
