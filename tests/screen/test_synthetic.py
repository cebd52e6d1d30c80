from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.screen import Genotypes, Screen
from deltacell.screen.synthetic import Planted, Redundancy


@pytest.fixture(scope="module")
def cell():
    return Cell.synthetic("demo")


@pytest.fixture(scope="module")
def screen(cell):
    return Screen.synthetic(cell)


@pytest.fixture(scope="module")
def planted(cell):
    return Planted.of(cell)


def test_the_planted_truth_is_about_sets(cell, planted):
    members = [np.flatnonzero(planted.pathway == p) for p in range(len(planted.within))]
    p, q = planted.redundant[0]
    r = next(r for r in range(25) if r not in (p, q) and not planted.between[[p, q], r].any())
    (a, b, c), (d, e), f = members[p][:3], members[q][:2], members[r][0]
    sets = [
        [a],
        [a, b],
        [a, b, c],
        [a, d],
        [d, a],
        [a, b, d],
        [a, d, e],
        [a, f],
        [a, d, f],
        [a, b, f],
    ]
    within, between = planted.within[p], planted.between[p, q]
    expected = [0, within, within, between, between, 1.5 * between, 1.5 * between, 0, 0, 0]
    genotypes = Genotypes.of([[int(g) for g in s] for s in sets])
    assert planted.effect(genotypes).tolist() == pytest.approx(expected)
    assert planted.is_planted(genotypes).tolist() == [x != 0 for x in expected]
    assert within > 0
    assert between < 0


def test_effects_agree_with_their_definition_on_every_row(screen, planted):
    effect = planted.effect(screen.genotypes)
    for genes, found in zip(screen.genotypes, effect.tolist(), strict=True):
        hit = sorted(set(planted.pathway[genes.numpy()].tolist()))
        if len(hit) == 1:
            expected = planted.within[hit[0]]
        elif tuple(hit) in planted.redundant:
            expected = planted.between[hit[0], hit[1]] * {2: 1.0, 3: 1.5}[len(genes)]
        else:
            expected = 0.0
        assert found == expected


def test_the_truth_follows_the_genes_through_a_subset(cell, planted):
    chosen = [200, 3, 77, 140]
    part = Planted.of(cell.subset(chosen))
    assert np.array_equal(part.pathway, planted.pathway[chosen])
    assert np.array_equal(part.nuisance, planted.nuisance[chosen])
    assert np.array_equal(part.between, planted.between)


def test_effects_of_what_is_no_genotype_are_refused(planted):
    for sets, code in (([[]], "empty-genotype"), ([[300, 1]], "gene-outside-cell")):
        with pytest.raises(InputError) as caught:
            planted.effect(Genotypes.of(sets))
        assert caught.value.code == code
    assert len(planted.effect(Genotypes.of([]))) == 0


def test_the_screen_is_crosses_of_queries_with_an_array(cell, screen):
    assert len(screen) == 7_000
    (study,) = screen.coverage.studies
    assert (study.study, study.complete) == ("synthetic", True)
    assert set(screen.column("study")) == {"synthetic"}
    kinds = screen.stats()["kinds"]
    assert set(kinds) == {"digenic", "trigenic"}
    assert min(kinds.values()) > 2_000
    genes, offsets = screen.genotypes.genes.numpy(), screen.offsets
    assert study.tested(genes, offsets, cell.n_genes).all()
    role = screen.gene_column("role")
    assert (role[offsets[1:] - 1] == "array").all()
    assert set(genes[role == "array"]) <= set(study.array_genes.tolist())
    assert np.bincount(screen.genotypes.owner.numpy(), role == "array").tolist() == [1] * 7_000
    crosses = study.n_queries * len(study.array_genes)
    assert 0.9 < len(screen) / crosses < 1.05


def test_a_sixth_is_planted_and_most_that_is_planted_is_untested(cell, screen, planted):
    share = planted.is_planted(screen.genotypes).mean()
    assert 0.10 < share < 0.20
    effect = planted.effect(screen.genotypes)
    assert (effect < 0).mean() > 0.05
    assert (effect > 0).mean() > 0.02
    pairs = Genotypes.of(combinations(range(cell.n_genes), 2))
    there = pairs.take(torch.from_numpy(np.flatnonzero(planted.is_planted(pairs))))
    tested = screen.coverage.tested(there.genes.numpy(), there.offsets.numpy(), cell.n_genes)
    assert 0.05 < tested.mean() < 0.5


def test_a_score_is_effect_nuisance_and_noise_of_the_stated_size(screen, planted):
    residual, deviation = residuals(screen, planted)
    assert stats.kstest(residual / deviation, "norm").pvalue > 0.01
    assert residual.std() == pytest.approx(planted.noise, rel=0.025)
    assert deviation.max() > 2 * deviation.min()
    z = np.abs(screen.column("score").astype(np.float64)) / deviation
    assert screen.column("p_value") == pytest.approx(2 * stats.norm.sf(z), rel=1e-3, abs=1e-12)
    assert np.array_equal(screen.column("sign"), np.sign(screen.column("score")))


def residuals(screen, planted):
    owner, genes = screen.genotypes.owner.numpy(), screen.genotypes.genes.numpy()
    expected = planted.effect(screen.genotypes) + np.bincount(owner, planted.nuisance[genes])
    deviation = screen.column("standard_deviation").astype(np.float64)
    return screen.column("score") - expected, deviation


def test_some_genotypes_are_measured_again_with_noise_of_their_own(screen):
    _, first, times = np.unique(screen.keys, return_index=True, return_counts=True)
    repeated = len(screen) - len(first)
    assert 0.02 < repeated / len(screen) < 0.06
    score = screen.column("score")
    for key in screen.keys[first[times > 1]][:20]:
        assert len(np.unique(score[screen.keys == key])) > 1


def test_the_same_seed_gives_the_same_screen(cell, screen):
    assert Screen.synthetic(cell).equals(screen)
    other = Screen.synthetic(cell, seed=1)
    assert not other.equals(screen)
    assert not np.array_equal(Planted.of(cell, 1).within, Planted.of(cell, 0).within)
    residual, deviation = residuals(other, Planted.of(cell, 1))
    assert stats.kstest(residual / deviation, "norm").pvalue > 0.01


@pytest.mark.parametrize("n", [1, 40, 1_000, 20_000])
def test_a_screen_has_as_many_rows_as_were_asked_for(cell, n):
    assert len(Screen.synthetic(cell, n=n)) == n


def test_a_small_cell_gives_what_it_has_room_for(cell):
    part = cell.subset(range(12))
    everything = Screen.synthetic(part)
    assert 10 < len(everything) < 7_000
    for small, n in ((part, 9_000), (cell, 0), (cell.subset([0]), None)):
        with pytest.raises(InputError) as caught:
            Screen.synthetic(small, n=n)
        assert caught.value.code == "no-room"
    with pytest.raises(InputError):
        Screen.synthetic(Cell(["A", "B"], []))


@pytest.mark.slow
def test_the_yeast_cell_has_a_screen_too():
    cell = Cell.synthetic("yeast")
    screen = Screen.synthetic(cell, n=100_000)
    planted = Planted.of(cell)
    assert len(screen) == 100_000
    assert 0.10 < planted.is_planted(screen.genotypes).mean() < 0.20
    assert set(screen.stats()["kinds"]) == {"digenic", "trigenic"}


def test_redundancy_is_written_in_the_graph() -> None:
    cell = Cell.synthetic("redundancy")
    screen = Screen.synthetic(cell)
    truth = Redundancy.of(cell)
    genotypes, score = screen.genotypes, screen.column("score")
    planted = truth.is_planted(genotypes)
    assert len(screen) == 120 * 119 // 2
    assert 400 < planted.sum() < 521
    # Really delete both: a planted pair leaves a gene without any route, and no other pair does.
    routes = cell.relation("routes")
    reached = np.diff(routes.indptr) > 0
    for b in [*np.flatnonzero(planted)[:20], *np.flatnonzero(~planted)[:200]]:
        left = ~np.isin(routes.indices, genotypes.genes[2 * b : 2 * b + 2].numpy())
        heard = np.add.reduceat(np.append(left, False), routes.indptr[:-1])[reached]
        assert (heard == 0).any() == planted[b]
    assert score[planted].mean() == pytest.approx(-0.3, abs=0.05)
    assert abs(score[~planted].mean()) < 0.01
    # Pairs that share a gene with a third route are there and do nothing.
    thirds = [routes.indices[a:b] for a, b in pairwise(routes.indptr) if b - a == 3]
    decoys = Genotypes.of(sorted(t[:2].tolist()) for t in thirds)
    assert np.count_nonzero(truth.effect(decoys) == 0) > 200


def test_redundancy_is_the_same_for_the_same_seed() -> None:
    one, other = Cell.synthetic("redundancy", seed=1), Cell.synthetic("redundancy", seed=2)
    assert one.equals(Cell.synthetic("redundancy", seed=1))
    assert not one.equals(other)
    some = Screen.synthetic(one, n=500, seed=4)
    assert some.equals(Screen.synthetic(one, n=500, seed=4))
    assert len(some) == 500
    with pytest.raises(InputError) as caught:
        Screen.synthetic(one, n=8000)
    assert caught.value.code == "no-room"
