"""Laws of splits: parts are disjoint and cover the screen, and nothing leaks that must not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.errors import InputError
from deltacell.screen import Genotypes, Screen, Split

N_GENES = 30
LAW = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**32)


@st.composite
def screens(draw, smallest=1, largest=4):
    """Sets in the manner of a real screen: hubs, repeats, and roles that may be unknown."""
    n_genes = draw(st.integers(8, N_GENES))
    rng = np.random.default_rng(draw(seeds))
    popularity = 1 / np.arange(1, n_genes + 1) ** draw(st.sampled_from([0.0, 1.0]))
    popularity /= popularity.sum()
    sets, roles = [], []
    for _ in range(draw(st.integers(10, 80))):
        if sets and rng.random() < 0.2:
            repeat = list(sets[rng.integers(len(sets))])
            rng.shuffle(repeat)
            sets.append(repeat)
        else:
            size = rng.integers(smallest, largest + 1)
            sets.append(rng.choice(n_genes, size, replace=False, p=popularity).tolist())
        known = rng.random() < 0.7
        n_queries = max(1, len(sets[-1]) - 1)
        of_size = ["query"] * n_queries + ["array"] * (len(sets[-1]) - n_queries)
        roles += of_size if known else ["unknown"] * len(sets[-1])
    studies = [f"s{rng.integers(3)}" for _ in sets]
    return Screen.build(
        Genes(f"g{i}" for i in range(N_GENES)),
        Genotypes.of(sets),
        score=rng.normal(size=len(sets)),
        role=roles,
        study=studies,
    )


def made(make):
    """Return the split; a screen that is too small for it is not what these laws are about."""
    try:
        return make()
    except InputError as error:
        assert "would be" in str(error)  # noqa: PT017
        assume(False)
        raise


def sets_of(screen):
    return [frozenset(genes.tolist()) for genes in screen.genotypes]


def queries_of(screen):
    """The query pairs of each genotype, the slow way."""
    roles = np.split(screen.gene_column("role"), screen.offsets[1:-1])
    pairs = []
    for genes, role in zip(screen.genotypes, roles, strict=True):
        queries = [g for g, r in zip(genes.tolist(), role, strict=True) if r == "query"]
        of = queries if len(queries) > 1 else genes.tolist()
        pairs.append(set(combinations(sorted(of), 2)))
    return pairs


def pairs_of(screen):
    return [set(combinations(sorted(s), 2)) for s in sets_of(screen)]


def assert_no_two_parts_share(split, held):
    parts = [
        set().union(*(held[r] for r in p)) for p in (split.train, split.validation, split.test)
    ]
    for one, other in combinations(parts, 2):
        assert not one & other


def assert_parts(screen, split):
    parts = (split.train, split.validation, split.test, split.dropped)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(screen)))
    assert all(np.array_equal(p, np.sort(p)) for p in parts)
    assert all(len(p) for p in parts[:3])
    assert split.screen_checksum == screen.checksum
    seen = {gene for row in split.train for gene in sets_of(screen)[row]}
    unseen = [len(sets_of(screen)[row] - seen) for row in split.validation]
    assert split.validation_unseen.tolist() == unseen
    seen |= set(split.validation_genes.tolist())
    assert split.unseen.tolist() == [len(sets_of(screen)[row] - seen) for row in split.test]


METHODS: list[Callable[[Screen, int], Split]] = [
    lambda screen, seed: Split.random(screen, seed),
    lambda screen, seed: Split.gene(screen, seed),
    lambda screen, seed: Split.sets(screen, "query", seed),
    lambda screen, seed: Split.sets(screen, "pair", seed),
    lambda screen, seed: Split.source(screen, ["s0"], seed=seed),
]


@LAW
@given(screens(), seeds, st.sampled_from(METHODS))
def test_parts_are_disjoint_and_cover_the_screen(screen, seed, method):
    assume("s0" in screen.column("study"))
    split = made(lambda: method(screen, seed))
    assert_parts(screen, split)
    again = method(screen, seed)
    assert again.equals(split)
    assert again.to_json() == split.to_json()


@LAW
@given(screens(), seeds, st.floats(0.1, 0.4), st.floats(0.1, 0.4))
def test_random_keeps_sets_together(screen, seed, validation, test):
    split = made(lambda: Split.random(screen, seed, validation, test))
    assert not len(split.dropped)
    assert_no_two_parts_share(split, [{s} for s in sets_of(screen)])
    assert len(split.test) <= 2 * test * len(screen)


@LAW
@given(screens(), seeds, st.floats(0.05, 0.4), st.floats(0.05, 0.4))
def test_held_out_genes_are_in_every_test_genotype_and_nowhere_else(
    screen, seed, share, validation
):
    split = made(lambda: Split.gene(screen, seed, held_out=share, validation=validation))
    held, sets = set(split.held_out.tolist()), sets_of(screen)
    assert len(held) == round(share * len(set().union(*sets)))
    assert all(sets[row] & held for row in split.test)
    assert not any(sets[row] & held for row in [*split.train, *split.validation])
    assert (split.unseen >= 1).all()
    assert not len(split.dropped)
    assert_no_two_parts_share(split, [{s} for s in sets])
    chosen = set(split.validation_genes.tolist())
    assert not chosen & held
    assert all(sets[row] & chosen for row in split.validation)
    assert not any(sets[row] & chosen for row in split.train)
    assert (split.validation_unseen >= 1).all()
    # The test part does not depend on validation.
    without = Split.gene(screen, seed, held_out=share, validation=0)
    assert np.array_equal(split.test, without.test)
    assert np.array_equal(split.held_out, without.held_out)
    assert not len(without.validation_genes)


@LAW
@given(screens(largest=3), screens(smallest=2), seeds)
def test_a_split_by_pair_or_query_shares_no_such_pair_and_no_set(one, other, seed):
    for screen, by, pairs in ((one, "pair", pairs_of(one)), (other, "query", queries_of(other))):
        split = made(lambda s=screen, by=by: Split.sets(s, by, seed))  # type: ignore[misc]
        assert_no_two_parts_share(split, pairs)
        assert_no_two_parts_share(split, [{s} for s in sets_of(screen)])
        leakage = split.leakage(screen)
        shared = leakage.test.pairs.shared + leakage.validation.pairs.shared
        assert by == "query" or shared == 0


@LAW
@given(screens(smallest=1, largest=2), seeds, st.sampled_from(["query", "pair"]))
def test_for_pairs_set_equals_random(screen, seed, by):
    random = made(lambda: Split.random(screen, seed))
    split = Split.sets(screen, by, seed)
    assert split.equals(random)
    assert "equals the random split" in split.notes[0]


@LAW
@given(screens(), seeds)
def test_leakage_equals_counting(screen, seed):
    assume("s0" in screen.column("study"))
    split = made(lambda: Split.source(screen, "s0", seed=seed))
    leakage = split.leakage(screen)
    sets = sets_of(screen)
    things = {"genes": sets, "pairs": pairs_of(screen), "sets": [{s} for s in sets]}
    for name, held in things.items():
        train = set().union(*(held[row] for row in split.train))
        for part in ("test", "validation"):
            mine = set().union(*(held[row] for row in getattr(split, part)))
            overlap = getattr(getattr(leakage, part), name)
            assert (overlap.shared, overlap.of) == (len(mine & train), len(mine))
