"""Laws of splits, in which nothing leaks that must not, and of the grid of a list of hits."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from cells import screen_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deltacell.base.errors import InputError
from deltacell.cell import Genes
from deltacell.screen import Genotypes, Grid, Screen, Split
from deltacell.screen.grid import Part

N_GENES = 30
LAW = settings(max_examples=30, deadline=None)
PARTS: tuple[Part, ...] = ("train", "validation", "test")
seeds = st.integers(0, 2**32)
hit_list = partial(screen_of, complete=False)
METHODS: list[Callable[[Screen, int], Split]] = [
    lambda screen, seed: Split.random(screen, seed, validation=0.2, test=0.3),
    lambda screen, seed: Split.gene(screen, seed, held_out=0.2, validation=0.2),
    lambda screen, seed: Split.sets(screen, "pair", seed, validation=0.2, test=0.2),
    lambda screen, seed: Split.sets(screen, "query", seed, validation=0.2, test=0.2),
    lambda screen, seed: Split.source(screen, ["s0"], seed=seed, validation=0.2),
]


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
        assert error.code == "empty-part"  # noqa: PT017
        assume(False)
        raise


def split_of(screen, method, seed):
    assume("s0" in screen.column("study"))
    return made(lambda: method(screen, seed))


def sets_of(given):
    """The sets of genes of a screen, or of genotypes."""
    return [frozenset(genes.tolist()) for genes in getattr(given, "genotypes", given)]


def queries_of(screen):
    """The query pairs of each genotype, the slow way."""
    roles = np.split(screen.column("role"), screen.offsets[1:-1])
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
    assert split.unseen.tolist() == [len(sets_of(screen)[row] - seen) for row in split.test]


@LAW
@given(screens(), seeds, st.sampled_from(METHODS))
def test_parts_are_disjoint_and_cover_the_screen(screen, seed, method):
    split = split_of(screen, method, seed)
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
    screen,
    seed,
    share,
    validation,
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
    split = split_of(screen, METHODS[-1], seed)
    leakage = split.leakage(screen)
    sets = sets_of(screen)
    things = {"genes": sets, "pairs": pairs_of(screen), "sets": [{s} for s in sets]}
    for name, held in things.items():
        train = set().union(*(held[row] for row in split.train))
        for part in ("test", "validation"):
            mine = set().union(*(held[row] for row in getattr(split, part)))
            overlap = getattr(getattr(leakage, part), name)
            assert (overlap.shared, overlap.of) == (len(mine & train), len(mine))


# --- the grid of a list of hits, against the plain enumeration of its crosses ---


@st.composite
def hit_lists(draw):
    """Two studies, each with some hits of its queries on its array; queries may be array genes."""
    n_genes = draw(st.integers(12, 30))
    rng = np.random.default_rng(draw(seeds))
    sets, roles, studies = [], [], []
    for study in ("s0", "s1"):
        queries = rng.choice(n_genes, rng.integers(3, 8), replace=False)
        arrays = rng.choice(n_genes, rng.integers(4, 12), replace=False)
        for query in queries:
            for array in arrays:
                if query != array and rng.random() < 0.3:
                    as_written = [int(query), int(array)]
                    role = ["query", "array"]
                    if rng.random() < 0.5:
                        as_written, role = as_written[::-1], role[::-1]
                    sets.append(as_written)
                    roles += role
                    studies.append(study)
    assume(len(sets) >= 12)
    score = rng.choice([-1, 1], len(sets)) * rng.uniform(0.1, 0.15, len(sets))
    names = Genes(f"g{i}" for i in range(n_genes))
    return hit_list(names, sets, score, roles, studies)


def crossed(coverage):
    return {
        frozenset((int(query), int(array)))
        for study in coverage.studies
        for query in study.query_genes
        for array in study.array_genes
        if query != array
    }


def grid_of(screen):
    grid = Grid.of(screen)
    assert grid is not None
    return grid


@LAW
@given(hit_lists(), seeds, st.sampled_from(METHODS))
def test_the_parts_are_all_zeros_each_once(screen, seed, method):
    split, grid = split_of(screen, method, seed), grid_of(screen)
    all_pairs, listed = crossed(screen.coverage), set(sets_of(screen))
    assert (grid.n_pairs, grid.listed) == (len(all_pairs), len(all_pairs & listed))
    drawn = [
        zero
        for part in PARTS
        for zero in sets_of(grid.draw(10**6, part=part, split=split, seed=seed))
    ]
    assert Counter(drawn) == Counter(all_pairs - listed)
    assert sum(grid.count(part, split) for part in PARTS) == grid.n_zeros
    for part in PARTS:
        assert len(grid.draw(10**6, part=part, split=split)) == grid.count(part, split)


@LAW
@given(hit_lists(), seeds, st.sampled_from(METHODS))
def test_a_zero_keeps_its_part_whatever_the_draw_and_the_order_of_genes(screen, seed, method):
    split, grid = split_of(screen, method, seed), grid_of(screen)
    for part in PARTS:
        everything = set(sets_of(grid.draw(10**6, part=part, split=split)))
        few = sets_of(grid.draw(3, part=part, split=split, seed=seed % 1000))
        assert set(few) <= everything
        assert len(set(few)) == min(3, len(everything))
        again = grid_of(screen).draw(3, part=part, split=split, seed=seed % 1000)
        assert sets_of(again) == few
    # The same screen with its genes numbered the other way round.
    n = len(screen.genes)
    turned = hit_list(
        Genes(screen.genes.systematic[::-1]),
        [[n - 1 - g for g in s.tolist()] for s in screen.genotypes],
        screen.column("score"),
        list(screen.column("role")),
        list(screen.column("study")),
    )
    if split.method != "random":
        return
    for part in PARTS:
        here = set(sets_of(grid.draw(10**6, part=part, split=split)))
        there = grid_of(turned).draw(10**6, part=part, split=method(turned, seed))
        assert {frozenset(n - 1 - g for g in s) for s in sets_of(there)} == here


@LAW
@given(hit_lists(), seeds)
def test_zeros_of_the_gene_split_have_the_genes_of_their_part(screen, seed):
    split = split_of(screen, METHODS[1], seed)
    grid = grid_of(screen)
    held, chosen = set(split.held_out.tolist()), set(split.validation_genes.tolist())
    zeros = {part: sets_of(grid.draw(10**6, part=part, split=split)) for part in PARTS}
    assert all(zero & held for zero in zeros["test"])
    assert all(zero & chosen and not zero & held for zero in zeros["validation"])
    assert not any(zero & (held | chosen) for zero in zeros["train"])


def many_hits(n_genes=220, share=0.05, seed=0):
    rng = np.random.default_rng(seed)
    half = n_genes // 2
    sets = [[q, a] for q in range(half) for a in range(half, n_genes) if rng.random() < share]
    score = rng.choice([-0.2, 0.2], len(sets))
    roles = ["query", "array"] * len(sets)
    return hit_list(Genes(f"g{i}" for i in range(n_genes)), sets, score, roles, ["s0"] * len(sets))


def test_parts_have_the_shares_of_a_random_split_and_draws_are_uniform():
    screen = many_hits()
    grid, split = grid_of(screen), Split.random(screen, 3, validation=0.1, test=0.25)
    for part, share in (("validation", 0.1), ("test", 0.25)):
        expected = share * grid.n_zeros
        assert abs(grid.count(part, split) - expected) < 5 * np.sqrt(expected)  # type: ignore[arg-type]
    other = Split.random(screen, 4, validation=0.1, test=0.25)
    one, two = (set(sets_of(grid.draw(10**6, part="test", split=s))) for s in (split, other))
    assert len(one & two) < 0.35 * len(one)
    # How often a pair is drawn over many seeds is binomial.
    times = Counter(
        zero
        for seed in range(200)
        for zero in sets_of(grid.draw(500, part="test", split=split, seed=seed))
    )
    n = grid.count("test", split)
    p = 500 / n
    counts = np.array([*times.values(), *[0] * (n - len(times))])
    assert counts.sum() == 200 * 500
    assert counts.var() == pytest.approx(200 * p * (1 - p), rel=0.15)


def test_there_is_a_grid_of_a_hit_list_only_and_it_can_be_turned_off():
    screen = many_hits()
    scores = np.random.default_rng(0).normal(0, 0.1, len(screen))
    sets = [s.tolist() for s in screen.genotypes]
    # One that keeps all that was measured, and one without roles.
    for score, roles in ((scores, ["query", "array"]), (0.2, ["unknown", "unknown"])):
        other = hit_list(screen.genes, sets, score, roles * len(sets), ["s0"] * len(sets))
        assert Grid.of(other) is None
    grid = grid_of(screen)
    assert f"{grid.n_pairs:,}" in grid.sentence
    assert "assumed" in grid.sentence
    assert grid.n_zeros == grid.n_pairs - grid.listed


def test_rows_that_were_left_out_are_not_zeros():
    screen = many_hits()
    part = screen.subset(100)
    grid = Grid.of(part, whole=screen)
    assert grid is not None
    split = Split.random(part, 0)
    zeros = {z for p in PARTS for z in sets_of(grid.draw(10**6, part=p, split=split))}
    assert not zeros & set(sets_of(screen))
    assert len(zeros) == grid.n_zeros == grid_of(screen).n_zeros
    without = grid_of(part)
    assert without.n_zeros == grid.n_zeros + len(screen) - len(part)


def test_a_named_split_has_zeros_in_its_shares_and_another_screens_split_is_refused(refused):
    screen = many_hits()
    grid = grid_of(screen)
    random = Split.random(screen, 0, validation=0.1, test=0.25)
    part_of = {row: part for part in PARTS for row in getattr(random, part)}
    sets = [[screen.genes[i] for i in s.tolist()] for s in screen.genotypes]
    named = Split.named(screen, sets, [part_of[row] for row in range(len(screen))])
    counts = {part: grid.count(part, named) for part in PARTS}
    assert sum(counts.values()) == grid.n_zeros
    assert counts["test"] == pytest.approx(0.25 * grid.n_zeros, rel=0.1)
    refused("other-screen", lambda: grid.count("test", Split.random(many_hits(seed=1))))
