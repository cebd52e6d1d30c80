"""Synthetic screens: the planted truth, what is measured of it, and that a seed gives one."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from deltacell.cell import Cell
from deltacell.screen import Genotypes, Screen
from deltacell.screen.synthetic import Planted, redundancy_effect


@pytest.fixture(scope="module")
def cell():
    return Cell.synthetic("demo")


@pytest.fixture(scope="module")
def screen(cell):
    return Screen.synthetic(cell)


@pytest.fixture(scope="module")
def planted(cell):
    return Planted.of(cell)


def test_effects_agree_with_their_definition_on_every_row_and_in_a_subset(screen, planted, cell):
    effect = planted.effect(screen.genotypes)
    assert planted.within.min() > 0 >= planted.between.max()
    for genes, found in zip(screen.genotypes, effect.tolist(), strict=True):
        hit = sorted(set(planted.pathway[genes.numpy()].tolist()))
        if len(hit) == 1:
            expected = planted.within[hit[0]]
        elif len(hit) == 2:
            expected = planted.between[hit[0], hit[1]] * {2: 1.0, 3: 1.5}[len(genes)]
        else:
            expected = 0.0
        assert found == expected
    chosen = [200, 3, 77, 140]
    part = Planted.of(cell.subset(chosen))
    assert np.array_equal(part.pathway, planted.pathway[chosen])
    assert np.array_equal(part.nuisance, planted.nuisance[chosen])
    assert np.array_equal(part.between, planted.between)


def residuals(screen, planted):
    owner, genes = screen.genotypes.owner.numpy(), screen.genotypes.genes.numpy()
    expected = planted.effect(screen.genotypes) + np.bincount(owner, planted.nuisance[genes])
    deviation = screen.column("standard_deviation").astype(np.float64)
    return screen.column("score") - expected, deviation


def test_a_seed_gives_one_screen_of_effect_nuisance_and_noise(cell, screen, planted):
    # What is measured of the plan is as it was when these checksums were taken.
    assert screen.checksum.startswith("01dbc67d44e8484a")
    assert Screen.synthetic(Cell.synthetic("redundancy")).checksum.startswith("cc190a87a57609cd")
    other = Screen.synthetic(cell, seed=1)
    assert not other.equals(screen)
    residual, deviation = residuals(other, Planted.of(cell, 1))
    assert stats.kstest(residual / deviation, "norm").pvalue > 0.01
    residual, deviation = residuals(screen, planted)
    assert stats.kstest(residual / deviation, "norm").pvalue > 0.01
    assert residual.std() == pytest.approx(planted.noise, rel=0.025)
    assert deviation.max() > 2 * deviation.min()
    z = np.abs(screen.column("score").astype(np.float64)) / deviation
    assert screen.column("p_value") == pytest.approx(2 * stats.norm.sf(z), rel=1e-3, abs=1e-12)
    assert np.array_equal(screen.column("sign"), np.sign(screen.column("score")))


def test_a_screen_has_as_many_rows_as_were_asked_for_or_there_is_room_for(cell, refused):
    for n in (1, 40, 1_000, 20_000):
        assert len(Screen.synthetic(cell, n=n)) == n
    part = cell.subset(range(12))
    assert 10 < len(Screen.synthetic(part)) < 7_000
    routes = Cell.synthetic("redundancy")
    for small, n in ((part, 9_000), (cell, 0), (cell.subset([0]), None), (routes, 8_000)):
        refused("no-room", Screen.synthetic, small, n=n)
    refused("not-synthetic", Screen.synthetic, Cell(["A", "B"], []))


def test_redundancy_is_written_in_the_graph():
    cell = Cell.synthetic("redundancy")
    screen = Screen.synthetic(cell)
    genotypes, score = screen.genotypes, screen.column("score")
    planted = redundancy_effect(cell, genotypes) != 0
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
    assert np.count_nonzero(redundancy_effect(cell, decoys) == 0) > 200
