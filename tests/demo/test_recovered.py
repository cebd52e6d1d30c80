"""The head of a ranking held against the planted truth."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import pytest

from deltacell import Cell, Screen
from deltacell.demo import recovered as module
from deltacell.demo.recovered import FIRST, recovered
from deltacell.errors import InputError
from deltacell.predict.gene_sets import Combinations
from deltacell.screen import Genotypes
from deltacell.screen.synthetic import Planted

SEED = 3


@pytest.fixture(scope="module")
def small() -> tuple[Cell, Screen]:
    whole = Cell.synthetic("demo", seed=SEED)
    screen = Screen.synthetic(whole, n=300, seed=SEED)
    cell = whole.subset(np.unique(screen.genotypes.genes.numpy())[:24])
    return cell, screen.on(cell, on_unknown="drop")


def ranked_one_by_one(cell: Cell, screen: Screen) -> list[tuple[int, ...]]:
    """Every triple that a ranking of untested sets has, found without the code of rankings."""
    genes = np.unique(screen.genotypes.genes.numpy()).tolist()
    measured = {tuple(sorted(genotype.tolist())) for genotype in screen.genotypes}
    found = []
    for triple in combinations(genes, 3):
        on = [cell.genes.chromosome[gene] for gene in triple]
        near = any(
            on[a] == on[b]
            and max(
                cell.genes.start[triple[b]] - cell.genes.end[triple[a]],
                cell.genes.start[triple[a]] - cell.genes.end[triple[b]],
            )
            < 200_000
            for a, b in combinations(range(3), 2)
        )
        tested = screen.coverage.tested(np.array(triple), np.array([0, 3]), cell.n_genes)[0]
        if not near and not tested and triple not in measured:
            found.append(triple)
    return found


def test_chance_is_the_share_of_planted_sets_among_all_that_are_ranked(
    small: tuple[Cell, Screen],
) -> None:
    cell, screen = small
    ranked = ranked_one_by_one(cell, screen)
    planted = Planted.of(cell, SEED).is_planted(Genotypes.of(ranked))
    assert 0 < planted.sum() < len(ranked)
    head = [[cell.genes[gene] for gene in ranked[i]] for i in range(30)]
    found = recovered(cell, screen, head, SEED)
    assert (found.sets, found.planted_sets) == (len(ranked), planted.sum())
    assert found.planted == tuple(planted[:FIRST])
    assert found.found == planted[:FIRST].sum()
    assert found.chance == pytest.approx(FIRST * planted.mean())


def test_chance_is_the_same_however_the_sets_are_cut_into_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = Cell.synthetic("demo", seed=SEED)
    screen = Screen.synthetic(cell, n=2_000, seed=SEED)
    cell = cell.subset(np.unique(screen.genotypes.genes.numpy())[:60])
    screen = screen.on(cell, on_unknown="drop")
    assert (np.diff(screen.offsets) == 3).any()
    head = [[cell.genes[gene] for gene in (0, 1, 2)]]
    whole = recovered(cell, screen, head, SEED)
    # Tiles are mixed, so that of several the genes of a set do not ascend.
    monkeypatch.setattr(module, "Combinations", partial(Combinations, sets_a_piece=8**3))
    assert recovered(cell, screen, head, SEED) == whole


def test_a_set_of_other_genes_is_an_error(small: tuple[Cell, Screen]) -> None:
    cell, screen = small
    with pytest.raises(InputError, match="no gene is called 'NOWHERE'"):
        recovered(cell, screen, [["NOWHERE", cell.genes[0], cell.genes[1]]], SEED)
