"""The loading benchmark: what it measures and returns, on a cell small enough for a test."""

from __future__ import annotations

import json

import numpy as np
import pytest

from deltacell.bench import data
from deltacell.cell import Cell, Genes, Relation
from deltacell.errors import InputError
from deltacell.screen import Loader


@pytest.fixture(scope="module")
def cell() -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(
            name,
            rng.integers(20, size=60),
            rng.integers(20, size=60),
            n_genes=20,
            directed=directed,
        )
        for name, directed in (("physical", False), ("regulatory", True))
    ]
    return Cell(Genes(f"g{i}" for i in range(20)), relations)


def test_what_a_run_returns(cell: Cell) -> None:
    told: list[tuple[str, int, int]] = []
    result = data.run(
        50,
        8,
        cell,
        repeats=2,
        seconds=0,
        lazy_batch_size=4,
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    json.dumps(result, allow_nan=False)
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == ["columnar", "per_record", "lazy"]
    for row in rows.values():
        turns = row["samples_per_s_of_each_turn"]
        assert len(turns) == 2
        assert row["samples_per_s"] == pytest.approx(sum(turns) / 2)
        assert row["samples_per_s"] > 0
    assert [row["batch_size"] for row in rows.values()] == [8, 8, 4]
    speed = {name: row["samples_per_s"] for name, row in rows.items()}
    for ratio, other in (
        ("columnar_over_per_record", "per_record"),
        ("columnar_over_lazy", "lazy"),
    ):
        assert result["ratios"][ratio] == speed["columnar"] / speed[other]
        bar = result["bars"][ratio]
        assert bar["at_least"] == {"per_record": 100, "lazy": 10_000}[other]
        assert bar["met"] is (result["ratios"][ratio] >= bar["at_least"])
    assert result["machine"]["cores"] >= 1
    assert result["settings"]["genotypes"] == 50
    assert [done for _, done, _ in told] == list(range(12))
    assert {total for *_, total in told} == {11}
    assert told[-1] == ("done", 11, 11)


def test_bytes_of_a_sample_are_those_of_its_tensors(cell: Cell) -> None:
    result = data.run(16, 8, cell, repeats=1, seconds=0, lazy_batch_size=4)
    size = {row["name"]: row["bytes_per_sample"] for row in result["rows"]}
    # Three genes, 9 offsets for 8 genotypes, a target, a weight and a row.
    assert size["columnar"] == 3 * 8 + 9 * 8 / 8 + 4 + 4 + 8
    # Three genes with their place in the batch, 9 places where a genotype begins, a score.
    assert size["per_record"] == 3 * 8 + 3 * 8 + 9 * 8 / 8 + 4
    edges = sum(relation.n_edges for relation in cell.relations.values())
    # Two ends and a mask an edge; a mask and a place a gene; where a genotype begins; a score.
    assert size["lazy"] == edges * (16 + 1) + 20 * (1 + 8) + 5 * 8 / 4 + 4


def test_the_pipelines_load_the_same_genotypes(cell: Cell) -> None:
    screen = data.random_triples(cell, 30, seed=1)
    loader = Loader(screen, batch_size=30, shuffle=False)
    (batch,) = loader
    records, mutants = data._Records(screen), data._Mutants(cell, screen)
    assert len(records) == len(mutants) == len(batch)
    for i, genes in enumerate(batch.genotypes):
        assert records[i].deleted.tolist() == genes.tolist()
        assert records[i].y.item() == mutants[i]["gene"].y.item() == batch.targets[i].item()
        assert (~mutants[i]["gene"].living).nonzero().ravel().tolist() == sorted(genes.tolist())
        for name, relation in cell.relations.items():
            part = mutants[i]["gene", name, "gene"]
            assert part.edge_index.shape[1] == relation.n_edges
            touched = np.isin(part.edge_index.numpy(), genes.numpy()).any(axis=0)
            assert np.array_equal(part.living.numpy(), ~touched)


def test_random_triples_are_of_different_genes_and_by_seed(cell: Cell) -> None:
    screen = data.random_triples(cell, 2_000, seed=3)
    genes = screen.genotypes.genes.view(-1, 3)
    assert (genes.sort(dim=1).values.diff(dim=1) > 0).all()
    counts = np.bincount(genes[:, 2].numpy(), minlength=20)
    assert counts.min() > 60
    assert data.random_triples(cell, 2_000, seed=3).equals(screen)
    assert not data.random_triples(cell, 2_000, seed=4).equals(screen)


def test_what_cannot_be_measured(cell: Cell) -> None:
    with pytest.raises(InputError, match="repeats 0"):
        data.run(10, 2, cell, repeats=0)
    with pytest.raises(InputError, match="too few for a triple"):
        data.run(10, 2, cell.subset([0, 1]))
