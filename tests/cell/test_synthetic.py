from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

from deltacell.cell import Cell
from deltacell.cell.synthetic import pathways_of, plan_of
from deltacell.errors import InputError

#: The table of the specification: genes with an edge, edges.
REFERENCE = {
    "regulatory": (3_632, 9_753),
    "physical": (5_721, 139_463),
    "tflink": (5_092, 201_898),
    "string_neighborhood": (2_204, 147_874),
    "string_fusion": (3_095, 11_810),
    "string_cooccurence": (2_615, 11_115),
    "string_coexpression": (6_503, 1_002_538),
    "string_experimental": (6_036, 825_101),
    "string_database": (4_044, 73_818),
}
DIRECTED = {"regulatory", "tflink"}


@pytest.fixture(scope="module")
def yeast():
    return Cell.synthetic("yeast")


@pytest.fixture(scope="module")
def demo():
    return Cell.synthetic("demo")


def test_the_yeast_cell_has_the_sizes_of_the_reference(yeast):
    stats = yeast.stats()
    found = {r["relation"]: (r["genes_with_an_edge"], r["edges"]) for r in stats["relations"]}
    assert found == REFERENCE
    assert list(found) == list(REFERENCE)
    assert {r["relation"] for r in stats["relations"] if r["directed"]} == DIRECTED
    assert (stats["genes"], stats["edges"]) == (6_607, 2_423_370)
    assert stats["metabolism"] == {
        "reactions": 4_131,
        "metabolites": 2_806,
        "genes_in_rules": 1_161,
        "reactions_with_rule": 2_709,
    }
    assert yeast.metabolism.split().n_reactions == 7_122


def test_degrees_are_heavy_tailed_and_weights_lie_in_the_unit_interval(yeast):
    for relation in yeast.relations.values():
        degree = np.sort(relation.in_degree + relation.out_degree)[::-1]
        degree = degree[degree > 0]
        busiest = degree[: len(degree) // 100].sum() / degree.sum()
        assert busiest > 0.03, relation
        assert degree[0] > 5 * np.median(degree), relation
        assert relation.weights.min() > 0
        assert relation.weights.max() <= 1


def test_three_deletions_change_as_much_of_the_cell_as_in_the_reference(yeast):
    rng = np.random.default_rng(0)
    shares = []
    for genes in rng.integers(0, yeast.n_genes, (60, 3)):
        changed = np.zeros(yeast.n_genes, dtype=bool)
        for relation in yeast.relations.values():
            targets = relation.transpose
            for gene in genes:
                changed[targets.indices[targets.indptr[gene] : targets.indptr[gene + 1]]] = True
        shares.append(changed.mean())
    assert 0.13 < np.mean(shares) < 0.21


def test_the_metabolism_is_a_plausible_one(yeast):
    m = yeast.metabolism
    sizes = np.diff(m.clause_offsets)
    alternatives = np.bincount(m.clause_reaction)
    assert sizes.max() > 2
    assert (sizes > 1).mean() > 0.03
    assert alternatives.max() > 4
    assert set(m.metabolite.tolist()) == set(range(m.n_metabolites))
    assert set(m.reaction.tolist()) == set(range(m.n_reactions))
    assert (m.coefficient < 0).any()
    assert (m.coefficient > 0).any()
    pairs = m.reaction.astype(np.int64) * m.n_metabolites + m.metabolite
    assert len(np.unique(pairs)) == len(pairs)


def test_loading_the_yeast_cell_maps_its_parts_and_copies_next_to_nothing(yeast, tmp_path):
    yeast.save(tmp_path / "yeast")
    on_disk = sum(file.stat().st_size for file in (tmp_path / "yeast").iterdir())
    before = pa.total_allocated_bytes()
    loaded = Cell.load(tmp_path / "yeast")
    assert pa.total_allocated_bytes() - before < on_disk / 100
    for relation in loaded.relations.values():
        for array in (relation.indptr, relation.indices, relation.weights):
            assert not array.flags.owndata
            assert not array.flags.writeable
    assert loaded.equals(yeast)
    assert loaded.checksum == yeast.checksum


def test_genes_look_like_yeasts_and_are_none_of_its(demo, yeast):
    for cell in (demo, yeast):
        assert all(re.fullmatch(r"Y[A-P][LR]\d{4}[WC]", name) for name in cell.genes)
        assert len(set(cell.genes.chromosome)) == 16
        assert cell.genes.has_position.all()
        assert (cell.genes.start < cell.genes.end).all()
        for chromosome in ("1", "16"):
            starts = cell.genes.start[np.array(cell.genes.chromosome) == chromosome]
            assert (np.diff(starts) > 1_500).all()
            assert (np.diff(starts) < 2_500).all()


def test_the_demo_cell_is_small_and_has_everything(demo):
    assert 200 <= demo.n_genes <= 500
    assert list(demo.relations) == list(REFERENCE)
    assert {r.name for r in demo.relations.values() if r.directed} == DIRECTED
    assert demo.metabolism.n_reactions == 150
    assert demo.features["expression"].values.shape == (300, 16)
    assert 0.8 < demo.features["protein"].known.mean() < 1
    assert np.isnan(demo.features["protein"].values).any(axis=1).mean() < 0.2


def test_the_same_seed_gives_the_same_cell_on_every_machine_and_version(demo):
    # Runs and documented figures refer to these cells by checksum.
    assert demo.checksum.startswith("2f45dc413a2f9970")
    assert Cell.synthetic("redundancy").checksum.startswith("a0d9f7bed440f9e7")


def test_another_seed_gives_another_cell_of_the_same_sizes(demo):
    other = Cell.synthetic("demo", seed=1)
    assert not other.equals(demo)
    sizes = [(r.name, r.n_connected, r.n_edges) for r in other.relations.values()]
    assert sizes == [(r.name, r.n_connected, r.n_edges) for r in demo.relations.values()]
    assert other.metabolism.split().n_reactions == demo.metabolism.split().n_reactions == 260


def test_every_gene_has_a_pathway_and_every_pathway_two_that_back_it_up(demo):
    plan = plan_of(demo)
    sizes = np.bincount(plan.pathway)
    assert (sizes >= 8).all()
    assert (sizes <= 20).all()
    assert plan.n_pathways == len(sizes) == 25
    assert np.bincount(plan.redundant.ravel()).tolist() == [2] * 25
    assert (plan.redundant[:, 0] < plan.redundant[:, 1]).all()


def test_reactions_with_a_rule_belong_to_a_pathway_of_the_plan(demo, yeast):
    for cell in (demo, yeast):
        metabolism, pathway = cell.metabolism, pathways_of(cell)
        ruled = set(metabolism.clause_reaction.tolist())
        assert [bool(names) for names in metabolism.pathways] == [
            r in ruled for r in range(metabolism.n_reactions)
        ]
        reaction, gene = metabolism.rule_genes
        for r in sorted(ruled):
            (name,) = metabolism.pathways[r]
            assert name in {f"pathway {p}" for p in pathway[gene[reaction == r]]}


def test_relations_show_the_pathways_each_with_its_own_strength(demo):
    pathway = pathways_of(demo)
    by_chance = (np.bincount(pathway) / len(pathway) @ np.bincount(pathway)) / len(pathway)
    share = {}
    for relation in demo.relations.values():
        source, target, _ = relation.edges()
        share[relation.name] = (pathway[source] == pathway[target]).mean()
    assert share["string_database"] > share["string_coexpression"] > share["string_neighborhood"]
    assert share["string_neighborhood"] > 5 * by_chance
    assert share["string_cooccurence"] < 0.12
    assert share["regulatory"] < 0.12


def test_features_show_the_pathways_through_noise(demo):
    pathway = pathways_of(demo)
    values = demo.features["expression"].values
    distance = np.linalg.norm(values[:, None] - values[None], axis=2)
    same = pathway[:, None] == pathway[None]
    off_diagonal = ~np.eye(len(pathway), dtype=bool)
    assert distance[same & off_diagonal].mean() < 0.9 * distance[~same].mean()
    assert distance[same & off_diagonal].min() > 0


def test_pathways_follow_the_genes_through_a_subset(demo, tmp_path):
    whole = pathways_of(demo)
    part = demo.subset([5, 200, 7])
    assert pathways_of(part).tolist() == whole[[5, 200, 7]].tolist()
    part.save(tmp_path / "part")
    assert pathways_of(Cell.load(tmp_path / "part")).tolist() == whole[[5, 200, 7]].tolist()
    assert plan_of(part).n_pathways == 25


def test_a_cell_that_is_not_synthetic_has_no_pathways(demo):
    for recipe in (None, demo.synthetic_recipe):
        with pytest.raises(InputError) as caught:
            pathways_of(Cell(["A", "B"], [], synthetic=recipe))
        assert caught.value.code == "not-synthetic"


@pytest.mark.parametrize(
    ("name", "seed", "code"), [("mouse", 0, "unknown-cell"), ("demo", -1, "bad-seed")]
)
def test_what_cannot_be_made_is_refused(name, seed, code):
    with pytest.raises(InputError) as caught:
        Cell.synthetic(name, seed=seed)
    assert caught.value.code == code
