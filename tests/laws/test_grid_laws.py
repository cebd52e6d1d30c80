"""Laws of the grid of a list of hits, against the plain enumeration of its crosses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.errors import InputError
from deltacell.screen import Coverage, Genotypes, Grid, Screen, Split
from deltacell.screen.grid import Part

LAW = settings(max_examples=40, deadline=None)
PARTS: tuple[Part, ...] = ("train", "validation", "test")
seeds = st.integers(0, 2**32)
METHODS: list[Callable[[Screen, int], Split]] = [
    lambda screen, seed: Split.random(screen, seed, validation=0.2, test=0.3),
    lambda screen, seed: Split.gene(screen, seed, held_out=0.2, validation=0.2),
    lambda screen, seed: Split.sets(screen, "pair", seed, validation=0.2, test=0.2),
    lambda screen, seed: Split.source(screen, ["s0"], seed=seed, validation=0.2),
]


def hit_list(genes, sets, score, role, study):
    genotypes = Genotypes.of(sets)
    role = [role] * len(genotypes.genes) if isinstance(role, str) else role
    study = [study] * len(genotypes) if isinstance(study, str) else study
    coverage = Coverage.from_rows(
        genotypes.genes.numpy(),
        genotypes.offsets.numpy(),
        pl.Series(role),
        pl.Series(study),
        complete=False,
    )
    return Screen.build(genes, genotypes, coverage=coverage, score=score, role=role, study=study)


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


def sets_of(genotypes):
    return [frozenset(genes.tolist()) for genes in genotypes]


def split_of(screen, method, seed):
    assume("s0" in screen.column("study"))
    try:
        return method(screen, seed)
    except InputError as error:
        assert "would be" in str(error)  # noqa: PT017
        assume(False)
        raise


def grid_of(screen):
    grid = Grid.of(screen)
    assert grid is not None
    return grid


@LAW
@given(hit_lists(), seeds, st.sampled_from(METHODS))
def test_the_parts_are_all_zeros_each_once(screen, seed, method):
    split, grid = split_of(screen, method, seed), grid_of(screen)
    all_pairs, listed = crossed(screen.coverage), set(sets_of(screen.genotypes))
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
        list(screen.gene_column("role")),
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
    return hit_list(Genes(f"g{i}" for i in range(n_genes)), sets, score, roles, "s0")


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
    assert Grid.of(screen, assume_crossed=False) is None
    scores = np.random.default_rng(0).normal(0, 0.1, len(screen))
    sets = [s.tolist() for s in screen.genotypes]
    keeps_all = hit_list(screen.genes, sets, scores, ["query", "array"] * len(sets), "s0")
    assert Grid.of(keeps_all) is None
    no_roles = hit_list(screen.genes, sets, 0.2, "unknown", "s0")
    assert Grid.of(no_roles) is None
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
    assert not zeros & set(sets_of(screen.genotypes))
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
