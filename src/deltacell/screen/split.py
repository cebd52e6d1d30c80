"""Splits of a screen into training, validation and test, and their leakage."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from deltacell import storage
from deltacell.base.arrays import AnyArray, Ints, commonest, numbered, offsets_of
from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.base.rendering import as_html
from deltacell.base.text import listed, share_text
from deltacell.screen.gene_keys import Pairs, all_pairs, comparable_keys
from deltacell.screen.genotypes import sets_with
from deltacell.screen.screen import Screen

Method = Literal["random", "gene", "set", "source", "named", "everything"]
By = Literal["query", "pair"]

PARTS = ("train", "validation", "test", "dropped")
TRAIN, VALIDATION, TEST, DROPPED = range(4)
_GENE_FACTS = ("held_out", "unseen", "validation_genes", "validation_unseen")


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """The rows of a screen for training, validation and test.

    The parts are disjoint and, with ``dropped``, cover the screen. Rows with the same set of genes
    stay together, except that `source` never moves a row out of the test studies.
    """

    train: Ints  # rows in ascending order
    validation: Ints
    test: Ints
    method: Method
    seed: int
    screen_checksum: str
    options: Mapping[str, Any] = field(default_factory=dict)  # the other parameters of the method
    dropped: Ints = field(default_factory=_none)  # rows omitted so that nothing leaks
    notes: tuple[str, ...] = ()
    held_out: Ints = field(default_factory=_none)  # genes that `gene` holds out for the test part
    # For each test genotype, the number of its genes that no training genotype deletes. A gene of
    # validation genotypes alone is unseen too: predictors are not fitted on these, although they
    # may stop early, or weight their members, by them.
    unseen: Ints = field(default_factory=_none)
    validation_genes: Ints = field(default_factory=_none)  # genes held out for validation
    validation_unseen: Ints = field(default_factory=_none)

    def __post_init__(self) -> None:
        for name in (*PARTS, *_GENE_FACTS):
            frozen = np.array(getattr(self, name), dtype=np.int64)
            frozen.setflags(write=False)
            object.__setattr__(self, name, frozen)
        parts = [getattr(self, name) for name in PARTS]
        rows = np.sort(np.concatenate(parts))
        if not np.array_equal(rows, np.arange(len(rows))):
            message = f"the parts of a split must contain each row from 0 to {len(rows) - 1} once"
            raise InputError(message, code="invalid-split")

    @classmethod
    def random(
        cls,
        screen: Screen,
        seed: int = 0,
        validation: float = 0.1,
        test: float = 0.1,
    ) -> Split:
        """Split the distinct gene sets of a screen at random, in the given shares of its rows."""
        rng = _rng(seed, validation=validation, test=test)
        part = _drawn(numbered(screen.keys), {TEST: test, VALIDATION: validation}, rng)
        return _made(screen, part, "random", seed, {"validation": validation, "test": test})

    @classmethod
    def gene(
        cls,
        screen: Screen,
        seed: int = 0,
        held_out: float = 0.2,
        validation: float = 0.1,
    ) -> Split:
        """Hold out a share of the genes: every genotype that deletes one is a test genotype.

        Validation genotypes are chosen from the rest in the same way, by further held-out genes, so
        that validation is about unseen genes too.
        """
        _rng(seed, held_out=held_out)
        rng = _rng(seed, validation=validation)
        genes = screen.genotypes.genes.numpy()
        owner = screen.genotypes.owner.numpy()
        all_genes = np.unique(genes)
        n_held_out = round(held_out * len(all_genes))
        test_genes = np.sort(rng.choice(all_genes, n_held_out, replace=False))
        part = np.full(len(screen), TRAIN)
        part[owner[np.isin(genes, test_genes)]] = TEST
        validation_genes = _hold_out_for_validation(screen, part, validation, rng)
        options = {"held_out": held_out, "validation": validation}
        return _made(
            screen,
            part,
            "gene",
            seed,
            options,
            held_out=test_genes,
            validation_genes=np.sort(validation_genes),
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
        """Split so that no two parts share a pair of genes.

        With ``query`` this is the two query genes of a genotype, or all its pairs if it has none;
        with ``pair``, any two of its genes. Genotypes that share a pair, directly or indirectly,
        stay together if these groups are small enough. Otherwise test and then validation genotypes
        are drawn (by query pair, by the most frequent pair of each, or by gene set, the first that
        is fine enough), and every other genotype that shares a pair with them is dropped.
        """
        if by not in get_args(By):
            raise InputError(f"unknown by='{by}'; expected 'query' or 'pair'", code="unknown-by")
        rng = _rng(seed, validation=validation, test=test)
        shares = {TEST: test, VALIDATION: validation}
        options = {"by": by, "validation": validation, "test": test}
        pair_name = "query pair" if by == "query" else "gene pair"
        query_pairs = _query_pairs(screen)
        sets = numbered(screen.keys)
        pairs = query_pairs if by == "query" else _gene_pairs(screen)
        groups = _connected(sets, pairs)
        part = _drawn(groups, shares, rng)
        if part is not None:
            note = f"No two gene sets share a {pair_name}, so this equals the random split"
            notes = [note] if np.array_equal(groups, sets) else []
            return _made(screen, part, "set", seed, options, notes)
        units = _fine_units(sets, query_pairs, pairs, shares, seed)
        part = _drawn_apart(units.group, pairs, shares, _rng(seed))
        n_rows = np.bincount(part, minlength=len(PARTS))
        note = (
            f"Genotypes connected by a shared {pair_name} form groups too large for the parts, the "
            f"largest of {int(np.bincount(groups).max()):,} of {len(screen):,}. So "
            f"{n_rows[TEST]:,} were drawn for test and {n_rows[VALIDATION]:,} for validation, by "
            f"{units.name}, and {n_rows[DROPPED]:,} others that share a {pair_name} with one of "
            "them were dropped"
        )
        return _made(screen, part, "set", seed, options, [note])

    @classmethod
    def source(
        cls,
        screen: Screen,
        test: str | Sequence[str],
        validation: float = 0.1,
        seed: int = 0,
    ) -> Split:
        """Test on some studies and train on the others.

        A gene set that both measured is in both parts; see `leakage`.
        """
        rng = _rng(seed, validation=validation)
        wanted = [test] if isinstance(test, str) else list(test)
        study = screen.column("study")
        unknown = sorted(set(wanted) - set(study))
        if unknown or not wanted:
            message = f"unknown study '{unknown[0]}'" if unknown else "no test study"
            fix = f"Choose from {', '.join(sorted(set(study)))}."
            raise InputError(message, code="unknown-study", fix=fix)
        part = np.where(np.isin(study, wanted), TEST, TRAIN)
        rest = np.flatnonzero(part == TRAIN)
        if len(rest):
            chosen = _drawn(numbered(screen.keys[rest]), {VALIDATION: validation}, rng)
            part[rest] = TRAIN if chosen is None else chosen
        options = {"test": wanted, "validation": validation}
        return _made(screen, part, "source", seed, options)

    @classmethod
    def named(cls, screen: Screen, sets: Sequence[Sequence[str]], parts: Sequence[str]) -> Split:
        """Make a split from the part of each gene set: train, validation or test.

        Sets that the screen lacks are ignored, and genotypes without a part are dropped.
        """
        for unknown in sorted(set(parts) - set(PARTS[:DROPPED])):
            message = f"unknown part '{unknown}'; expected train, validation or test"
            raise InputError(message, code="unknown-part")
        sizes = np.array(list(map(len, sets)), dtype=np.int64)
        gene = screen.genes.resolve(list(chain.from_iterable(sets)))
        is_known = ~sets_with(gene < 0, offsets_of(sizes))
        keys_of_sets, keys_of_screen = comparable_keys(
            len(screen.genes),
            (gene[np.repeat(is_known, sizes)], offsets_of(sizes[is_known])),
            (screen.genotypes.genes.numpy(), screen.offsets),
        )
        part_of: dict[Any, str] = {}
        numbers = np.flatnonzero(is_known).tolist()
        for i, key in zip(numbers, keys_of_sets.tolist(), strict=True):
            if part_of.setdefault(key, parts[i]) != parts[i]:
                message = f"the genes {' '.join(sets[i])} are in two parts of the split"
                raise InputError(message, code="set-in-two-parts")
        names = [part_of.get(key, "dropped") for key in keys_of_screen.tolist()]
        part = np.array(list(map(PARTS.index, names)))
        n_without = int((part == DROPPED).sum())
        notes = [f"{n_without:,} genotypes are in no part of the split and are dropped."]
        options = {"validation": int("validation" in parts), "sets": len(sets)}
        return _made(screen, part, "named", 0, options, notes if n_without else ())

    @classmethod
    def everything(cls, screen: Screen, seed: int = 0) -> Split:
        """Put all genotypes into the training part, for a predictor that is tested no more."""
        options = {"validation": 0, "test": 0}
        return _made(screen, np.full(len(screen), TRAIN), "everything", seed, options)

    def __len__(self) -> int:
        return sum(len(getattr(self, name)) for name in PARTS)

    def __repr__(self) -> str:
        shown = PARTS if len(self.dropped) else PARTS[:DROPPED]
        counts = ", ".join(f"{len(getattr(self, name)):,} {name}" for name in shown)
        return f"Split({self.method}: {counts})"

    def _repr_html_(self) -> str:
        return as_html("data:print_split", self.to_json())

    def leakage(self, screen: Screen) -> Leakage:
        """Return what test and validation share with training."""
        self.check(screen)
        genes = _Owned(screen.genotypes.owner.numpy(), screen.genotypes.genes.numpy())
        pairs = _Owned(*_gene_pairs(screen))
        sets = _Owned(np.arange(len(screen)), screen.keys)

        def of_part(rows: Ints) -> PartLeakage:
            return PartLeakage(
                genes.overlap(rows, self.train),
                pairs.overlap(rows, self.train),
                sets.overlap(rows, self.train),
            )

        return Leakage(of_part(self.test), of_part(self.validation))

    def to_json(self) -> JsonObject:
        """Return a JSON-serialisable dict, without the rows."""
        return {
            "method": self.method,
            "seed": self.seed,
            "options": dict(self.options),
            "genotypes": {name: len(getattr(self, name)) for name in PARTS},
            "held_out_genes": len(self.held_out),
            "test_genotypes_by_unseen_genes": _counted(self.unseen),
            "validation_genes": len(self.validation_genes),
            "validation_genotypes_by_unseen_genes": _counted(self.validation_unseen),
            "notes": list(self.notes),
            "screen": self.screen_checksum,
        }

    @cached_property
    def checksum(self) -> str:
        """The checksum of its rows, as in the manifest of a saved split."""
        return storage.checksum(self._tables())

    def _tables(self) -> dict[str, pa.Table]:
        return self._saved

    @cached_property
    def _saved(self) -> dict[str, pa.Table]:
        tables = {name: pa.table({"row": pa.array(getattr(self, name))}) for name in PARTS}
        for name in _GENE_FACTS:
            tables[name] = pa.table({"value": pa.array(getattr(self, name))})
        return tables

    def equals(self, other: Split) -> bool:
        """Return whether both divide the same screen in the same way."""
        return self.screen_checksum == other.screen_checksum and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in PARTS
        )

    def on(self, screen: Screen, was: Screen) -> Split:
        """Return the same split for a screen with other gene indices than it `was` made for."""
        self.check(was)
        place = screen.genes.resolve(was.genes.systematic)
        return replace(
            self,
            screen_checksum=screen.checksum,
            held_out=np.sort(place[self.held_out]),
            validation_genes=np.sort(place[self.validation_genes]),
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write it to a directory, all of it or nothing."""
        described = self.to_json()
        meta = {key: described[key] for key in ("method", "seed", "screen", "options", "notes")}
        storage.write(path, "split", self._tables(), meta, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], screen: Screen | None = None) -> Split:
        """Read a split, such as that of a run in ``RUN/split``; raise if it is of another screen.

        Without a screen, nothing is checked.
        """
        stored = storage.read(path, "split")
        meta = dict(stored.meta)
        columns = {name: stored.parts[name][0].to_numpy() for name in (*PARTS, *_GENE_FACTS)}
        screen_checksum = meta.pop("screen")
        notes = tuple(meta.pop("notes"))
        split = cls(**columns, **meta, screen_checksum=screen_checksum, notes=notes)
        if screen is None:
            return split
        split.check(screen, where=path)
        # Earlier versions counted genes of validation genotypes as seen. What is saved again, and
        # the checksum by which a checkpoint knows its split, stay those of the directory.
        unseen = _n_unseen(screen, split.train)
        recounted = replace(
            split,
            unseen=unseen[split.test],
            validation_unseen=unseen[split.validation],
        )
        vars(recounted)["_saved"] = {name: stored.parts[name] for name in columns}
        return recounted

    def check(self, screen: Screen, where: str | os.PathLike[str] | None = None) -> None:
        """Raise if this is not a split of the screen."""
        if self.screen_checksum != screen.checksum or len(self) != len(screen):
            message = f"this split of {len(self):,} genotypes was made for another screen"
            fix = "Split this screen again."
            raise InputError(message, code="other-screen", where=where, fix=fix)


class _Units(NamedTuple):
    """The groups of genotypes by which a split is drawn."""

    name: str
    group: Ints  # of each genotype


def _fine_units(
    sets: Ints,
    query_pairs: Pairs,
    pairs: Pairs,
    shares: Mapping[int, float],
    seed: int,
) -> _Units:
    """Return the largest groups that are small enough for the parts: by query pair, or finer.

    The most frequent pair of a genotype is its query pair, if roles are unknown.
    """
    most_frequent = commonest(pairs.owner, pairs.key)
    commonest_pairs = Pairs(pairs.owner[most_frequent], pairs.key[most_frequent])
    candidates = [
        _Units("query pair", _connected(sets, query_pairs)),
        _Units("commonest pair", _connected(sets, commonest_pairs)),
        _Units("gene set", sets),
    ]
    for units in candidates:
        if _drawn(units.group, shares, _rng(seed)) is not None:
            return units
    return candidates[-1]


def _hold_out_for_validation(
    screen: Screen,
    part: Ints,
    share: float,
    rng: np.random.Generator,
) -> Ints:
    """Hold out genes until their genotypes are the given share of those for training.

    Moves these genotypes from training to validation in `part` [genotypes], and returns the genes.
    A gene with more than twice as many rows as the part is not held out for it.
    """
    genes = screen.genotypes.genes.numpy()
    owner = screen.genotypes.owner.numpy()
    n_wanted = share * int((part == TRAIN).sum())
    is_in_training = part[owner] == TRAIN
    training_genes = genes[is_in_training]
    n_rows = np.bincount(training_genes, minlength=len(screen.genes))
    order = rng.permutation(np.flatnonzero(n_rows))
    order = order[n_rows[order] <= 2 * n_wanted] if share else _none()
    # A row joins validation with the first of its genes in this order.
    position = np.full(len(screen.genes), len(order))
    position[order] = np.arange(len(order))
    joins_with = np.full(len(screen), len(order))
    np.minimum.at(joins_with, owner[is_in_training], position[training_genes])
    n_joining = np.bincount(joins_with, minlength=len(order))[: len(order)]
    held_out = order[: _n_taken(n_joining, n_wanted)]
    part[joins_with < len(held_out)] = VALIDATION
    return held_out


class _Owned(NamedTuple):
    """Genes, pairs or sets, and the row that each belongs to."""

    owner: Ints
    key: AnyArray

    def overlap(self, rows: Ints, training: Ints) -> Overlap:
        """Return how many of the distinct keys of some rows are also in training rows."""
        own = np.unique(self.key[np.isin(self.owner, rows)])
        seen = self.key[np.isin(self.owner, training)]
        return Overlap(int(np.isin(own, seen).sum()), len(own))


class Overlap(NamedTuple):
    """The number of distinct items (``of``) and how many of these are also in training."""

    shared: int
    of: int

    @property
    def share(self) -> float | None:
        """The share that is also in training; None without items."""
        return self.shared / self.of if self.of else None


class PartLeakage(NamedTuple):
    """The distinct genes, pairs and sets of one part's genotypes that are also in training."""

    genes: Overlap
    pairs: Overlap
    sets: Overlap

    def __str__(self) -> str:
        overlaps = {name: o for name, o in self._asdict().items() if o.of}
        shares = [f"{share_text(o.share)} of {o.of:,} {name}" for name, o in overlaps.items()]
        return listed(shares) or "nothing"


class Leakage(NamedTuple):
    """What the test and validation parts of a split share with its training part."""

    test: PartLeakage
    validation: PartLeakage

    @property
    def sentence(self) -> str:
        """The leakage in words."""
        return (
            f"Also in training: of the test part {self.test}; "
            f"of the validation part {self.validation}."
        )


def _made(
    screen: Screen,
    part: Ints | None,
    method: Method,
    seed: int,
    options: Mapping[str, Any],
    notes: Sequence[str] = (),
    **chosen_genes: Ints,
) -> Split:
    """Return the split with the given part of each row; raise if a part is empty.

    Without `part`, no split was possible, and the error says so.
    """
    if part is None:
        part = np.full(len(screen), DROPPED)
    rows = {name: np.flatnonzero(part == number) for number, name in enumerate(PARTS)}
    may_be_empty = {name for name, option in options.items() if option == 0} | {"dropped"}
    empty = [name for name in PARTS if not len(rows[name]) and name not in may_be_empty]
    if empty:
        counts = ", ".join(f"{len(rows[name]):,} {name}" for name in PARTS)
        message = f"the {empty[0]} part would be empty: {counts} of {len(screen):,} genotypes"
        fix = ". ".join([*notes, "Ask for other shares, or split in another way."])
        raise InputError(message, code="empty-part", fix=fix)
    unseen = _n_unseen(screen, rows["train"])
    return Split(
        **rows,
        method=method,
        seed=seed,
        screen_checksum=screen.checksum,
        options=options,
        notes=tuple(notes),
        unseen=unseen[rows["test"]],
        validation_unseen=unseen[rows["validation"]],
        **chosen_genes,
    )


def _n_unseen(screen: Screen, train: Ints) -> Ints:
    """Return how many genes of each genotype no training genotype deletes, [genotypes]."""
    genes = screen.genotypes.genes.numpy()
    owner = screen.genotypes.owner.numpy()
    seen = np.zeros(len(screen.genes), dtype=bool)
    seen[genes[np.isin(owner, train)]] = True
    return np.bincount(owner[~seen[genes]], minlength=len(screen))


def _counted(numbers: Ints) -> dict[str, int]:
    return {str(number): n for number, n in sorted(Counter(numbers.tolist()).items())}


def _gene_pairs(screen: Screen) -> Pairs:
    return all_pairs(screen.genotypes.genes.numpy(), screen.offsets, len(screen.genes))


def _query_pairs(screen: Screen) -> Pairs:
    """Return the pairs of query genes; all pairs of a genotype without two query genes."""
    genes = screen.genotypes.genes.numpy()
    owner = screen.genotypes.owner.numpy()
    n_rows = len(screen)
    is_query = screen.column("role") == "query"
    n_queries = np.bincount(owner[is_query], minlength=n_rows)
    is_kept = is_query | (n_queries < 2)[owner]
    offsets = offsets_of(np.bincount(owner[is_kept], minlength=n_rows))
    return all_pairs(genes[is_kept], offsets, len(screen.genes))


def _connected(sets: Ints, pairs: Pairs) -> Ints:
    """Return the group of each genotype: those that share a pair, directly or through others."""
    distinct, pair = np.unique(pairs.key, return_inverse=True)
    n_sets = int(sets.max()) + 1
    n_nodes = n_sets + len(distinct)  # an edge for every pair in a set
    ends = (sets[pairs.owner], n_sets + pair.ravel())
    graph = coo_array((np.ones(len(pair), dtype=np.int8), ends), shape=(n_nodes, n_nodes))
    _, component = connected_components(graph, directed=False)
    return numbered(component[sets])


def _drawn(groups: Ints, fractions: Mapping[int, float], rng: np.random.Generator) -> Ints | None:
    """Return the part of each genotype, or None if the groups are too large for the parts.

    `fractions` are the shares of the parts, in the order of drawing. At least one group is taken,
    and none with more than twice as many genotypes as the smallest part.
    """
    size = np.bincount(groups)
    wanted = {part: share * len(groups) for part, share in fractions.items() if share}
    part = np.full(len(size), TRAIN, dtype=np.int64)
    order = rng.permutation(len(size))
    order = order[size[order] <= 2 * min(wanted.values(), default=0.0)]
    if size[order].sum() < sum(wanted.values()):
        return None
    for number, rows in wanted.items():
        if not len(order):
            return None
        n_taken = _n_taken(size[order], rows)
        part[order[:n_taken]] = number
        order = order[n_taken:]
    return part[groups]


def _n_taken(sizes: Ints, wanted: float) -> int:
    """Return how many of the first groups come closest to `wanted` rows; at least 1, if any."""
    return 1 + int(np.argmin(np.abs(np.cumsum(sizes) - wanted))) if len(sizes) else 0


def _drawn_apart(
    groups: Ints,
    pairs: Pairs,
    fractions: Mapping[int, float],
    rng: np.random.Generator,
) -> Ints:
    """Return the part of each genotype; those that share a pair with a drawn one are dropped."""
    part = np.full(len(groups), TRAIN, dtype=np.int64)
    for number, share in fractions.items():
        left = np.flatnonzero(part == TRAIN)
        if not share or not len(left):
            continue
        chosen = _drawn(numbered(groups[left]), {number: share * len(groups) / len(left)}, rng)
        if chosen is None:
            break
        part[left[chosen == number]] = number
        taken = pairs.key[part[pairs.owner] == number]
        sharing = np.zeros(len(part), dtype=bool)
        sharing[pairs.owner[np.isin(pairs.key, taken)]] = True
        part[sharing & (part == TRAIN)] = DROPPED
    return part


def _rng(seed: int, **shares: float) -> np.random.Generator:
    """Return a generator; raise if the seed or the shares of a split are invalid."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be at least 0", code="invalid-number")
    is_outside = any(not 0 <= share < 1 for share in shares.values())
    if is_outside or sum(shares.values()) >= 1:
        written = ", ".join(f"{name}={share:g}" for name, share in shares.items())
        message = f"{written}; expected shares of at least 0 that add up to less than 1"
        raise InputError(message, code="invalid-share")
    return np.random.default_rng(seed)
