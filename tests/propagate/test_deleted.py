from __future__ import annotations

import pytest
import torch

from deltacell.cell import Cell, Genes, Metabolism, Relation
from deltacell.errors import InputError
from deltacell.propagate import GENE, REACTION, Deleted
from deltacell.screen import Genotypes


@pytest.fixture
def cell() -> Cell:
    genes = Genes(["g0", "g1", "g2", "g3"])
    relation = Relation.from_edges("r", [0], [1], n_genes=4, directed=True)
    metabolism = Metabolism.build(
        genes, ["q0", "q1"], ["p0"], [(0, 0, 1.0)], ["g0 and g1", "g1 or g2"], [0.0] * 2, [1.0] * 2
    )
    return Cell(genes, [relation], metabolism)


def test_finds_genes_and_the_reactions_lost_with_them(cell: Cell) -> None:
    deleted = Deleted.of(cell, Genotypes.of([[0], [3], [1, 2]]), metabolism=True)
    assert len(deleted) == 3
    assert deleted.nodes[GENE].nodes.tolist() == [0, 3, 1, 2]
    assert deleted.nodes[GENE].owner.tolist() == [0, 1, 2, 2]
    assert deleted.nodes[REACTION].nodes.tolist() == [0, 0, 1]
    assert deleted.nodes[REACTION].owner.tolist() == [0, 2, 2]


def test_a_tile_begins_at_zero(cell: Cell) -> None:
    tile = Deleted.of(cell, Genotypes.of([[0], [3], [1, 2], [2]])).nodes[GENE].tile(1, 3)
    assert tile.nodes.tolist() == [3, 1, 2]
    assert tile.owner.tolist() == [0, 1, 1]
    assert tile.starts == (0, 1, 3)


def test_an_empty_batch(cell: Cell) -> None:
    deleted = Deleted.of(cell, Genotypes.of([]), metabolism=True)
    assert len(deleted) == 0
    assert deleted.nodes[GENE].starts == deleted.nodes[REACTION].starts == (0,)


def test_moves_with_all_its_tensors(cell: Cell) -> None:
    there = Deleted.of(cell, Genotypes.of([[0]]), metabolism=True).to("meta")
    tensors = [
        there.genotypes.genes,
        *(t for n in there.nodes.values() for t in (n.nodes, n.owner)),
    ]
    assert {t.device for t in tensors} == {torch.device("meta")}


@pytest.mark.parametrize(
    ("sets", "message"),
    [([[0], [4]], "deletes gene 4"), ([[0], []], "deletes no gene"), ([[1, 1]], "twice")],
)
def test_genotypes_that_do_not_fit(cell: Cell, sets: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Deleted.of(cell, Genotypes.of(sets))


def test_metabolism_that_is_not_there(cell: Cell) -> None:
    without = Cell(cell.genes, cell.relations)
    with pytest.raises(InputError, match="no metabolism"):
        Deleted.of(without, Genotypes.of([[0]]), metabolism=True)
